"""What a pass over all rows of a log counts, queue by queue and in all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct, structs

from formats.native.rows import BITS, FILLERS, FLAGS, LAST_TIME, MARKERS, MESSAGES, NEWEST_TIME, TOTALS, tally_rows
from formats.record_columns import BIT_INNER_BATCH
from recover.memory.columns import Rows


class Tally(Struct, frozen=True, eq=False):
    """Counts over the live rows of a log, those without ghosts and superseded records.

    One a queue: `positions` (int64) in it, `least` and `most` its queue offsets (int64, `most` -1 where it has none),
    `fallen` (bool) whether they fall back somewhere along the log. `bits` and `flags` are those of all rows, or-ed.
    Fillers, markers and times (ms) are also those of superseded records.
    """

    positions: Rows
    least: Rows
    most: Rows
    fallen: Rows
    messages: int
    fillers: int
    markers: int
    last_timestamp: int
    newest_timestamp: int
    bits: int
    flags: int

    @property
    def gapped(self) -> Rows:
        """Which queues have fewer positions than their queue offsets span (bool array); none where the log has records
        that take several.
        """
        if self.bits & BIT_INNER_BATCH:
            return np.zeros(self.positions.size, dtype=np.bool_)
        return np.asarray((self.most >= 0) & (self.most - self.least >= self.positions))

    def __eq__(self, other: object) -> bool:
        mine = structs.astuple(self)
        return isinstance(other, Tally) and all(map(np.array_equal, mine, structs.astuple(other)))


class Counter:
    """Counts rows as they come, in log order, as if none of them was a ghost or superseded.

    `queues` are as many as the numbers of rows call for by then.
    """

    def __init__(self, queues: int = 0) -> None:
        self.last_offset = np.full(queues, -1, dtype=np.int64)
        self.fallen = np.zeros(queues, dtype=np.bool_)
        self.positions = np.zeros(queues, dtype=np.int64)
        self.least = np.full(queues, np.iinfo(np.int64).max)
        self.most = np.full(queues, -1, dtype=np.int64)
        self.totals = np.zeros(TOTALS, dtype=np.int64)
        self.rows = 0

    def add(self, records: Rows, queues: int) -> None:
        """Count these rows."""
        self.rows += records.size
        self._make_room(queues)
        tally_rows(
            np.asarray(records), self.last_offset, self.fallen, self.positions, self.least, self.most, self.totals,
        )

    def _make_room(self, queues: int) -> None:
        size = self.fallen.size
        if queues > size:
            more = Counter(max(queues, 2 * size))
            for name in ("last_offset", "fallen", "positions", "least", "most"):
                getattr(more, name)[:size] = getattr(self, name)
                setattr(self, name, getattr(more, name))

    def join(self, behind: Counter, numbers: Rows) -> bool:
        """Take over what was counted of the file behind, whose queue i is queue `numbers[i]` here (int, one a queue).

        False where a queue falls back between the two, or in that file.
        """
        behind._make_room(numbers.size)
        own = behind.result(numbers.size)
        numbered = own.most >= 0
        if own.fallen.any() or (own.least[numbered] <= self.most[numbers[numbered]]).any():
            return False
        self.positions[numbers] += own.positions
        self.least[numbers] = np.minimum(self.least[numbers], own.least)
        self.most[numbers[numbered]] = own.most[numbered]
        if behind.rows:
            self.rows += behind.rows
            for at in (MESSAGES, FILLERS, MARKERS):
                self.totals[at] += behind.totals[at]
            for at in (BITS, FLAGS):
                self.totals[at] |= behind.totals[at]
            self.totals[LAST_TIME] = behind.totals[LAST_TIME]
            self.totals[NEWEST_TIME] = max(self.totals[NEWEST_TIME], behind.totals[NEWEST_TIME])
        return True

    def result(self, queues: int) -> Tally:
        """What was counted, of the first so many queues."""
        totals = self.totals.tolist()
        return Tally(
            self.positions[:queues], self.least[:queues], self.most[:queues], self.fallen[:queues], totals[MESSAGES],
            totals[FILLERS], totals[MARKERS], totals[LAST_TIME], totals[NEWEST_TIME], totals[BITS], totals[FLAGS],
        )


def joined(
    counters: Iterable[Counter | None], numbers: Iterable[Rows], queues: int
) -> Counter | None:
    """What was counted of stretches of a log, one behind the other, whose queues are called `numbers` in it.

    None where one of them was not counted, or queues fall back, which takes all rows in their order.
    """
    whole = Counter(queues)
    for part, own in zip(counters, numbers, strict=True):
        if part is None or not whole.join(part, own):
            return None
    return whole
