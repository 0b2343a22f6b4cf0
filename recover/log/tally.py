"""What a pass over all rows of a log counts, queue by queue and in all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct, structs

from formats.native.rows import (
    BITS,
    FILLERS,
    FLAGS,
    LAST_TIME,
    MARKERS,
    MESSAGES,
    NEWEST_TIME,
    TOTALS,
    renumber,
    tally_rows,
)
from formats.native.walk import QUEUE_COLUMNS, new_queue_slots
from formats.record.rows import BIT_INNER_BATCH
from recover.store.columns import Rows, Split

_QUEUES = 2
_NAMES_USED = 3
_SLOTS = 1 << 12
_NAMES = 1 << 17


def number_rows(splits: Iterable[Split], numbers: Rows) -> None:
    """Call the queue of each row what `numbers` (int32, one a queue) says that it is called."""
    if (numbers != np.arange(numbers.size)).any():
        for split in splits:
            renumber(np.asarray(split.records), numbers)


class QueueTable:
    """`slots` (int32), `names` (uint8) and `table` (int64 (n, QUEUE_COLUMNS)) are what the kernels take.

    `state` is the walk's, which counts queues and bytes of names in it.
    """

    def __init__(self, state: Rows) -> None:
        self._state = state
        self.slots = np.full(_SLOTS, -1, dtype=np.int32)
        self.names = np.zeros(_NAMES, dtype=np.uint8)
        self.table = np.zeros((_SLOTS // 2, QUEUE_COLUMNS), dtype=np.int64)

    def __len__(self) -> int:
        return int(self._state[_QUEUES])

    @property
    def is_nearly_full(self) -> bool:
        """Another queue may find no place."""
        return len(self) * 2 >= self.slots.size - 2 or int(self._state[_NAMES_USED]) * 2 > self.names.size

    def keys(self, first: int = 0) -> list[tuple[bytes, int]]:
        """(topic, queue id) of each queue from number `first` on."""
        rows = self.table[first : len(self)].tolist()
        names = self.names.tobytes() if rows else b""
        return [(names[at : at + length], queue_id) for at, length, queue_id in rows]

    def number(self, topic: bytes, queue_id: int) -> int:
        """Number of a queue, for a record that the compiled walk did not take."""
        queues = self.keys()
        if (topic, queue_id) in queues:
            return queues.index((topic, queue_id))
        number = len(queues)
        while int(self._state[_NAMES_USED]) + len(topic) > self.names.size or number + 1 >= self.table.shape[0]:
            self.grow()
        at = int(self._state[_NAMES_USED])
        self.names[at : at + len(topic)] = np.frombuffer(topic, dtype=np.uint8)
        self.table[number] = at, len(topic), queue_id
        self._state[_QUEUES], self._state[_NAMES_USED] = number + 1, at + len(topic)
        self.slots = new_queue_slots(self.slots.size, self.names, self.table, number + 1)
        return number

    def begin_with(self, known: QueueTable) -> None:
        """Give the queues that another table has the same numbers here, where there are none yet."""
        self.slots, self.names, self.table = known.slots.copy(), known.names.copy(), known.table.copy()
        self._state[_QUEUES:] = known._state[_QUEUES:]

    def grow(self) -> None:
        """Four times the room."""
        names = np.zeros(self.names.size * 4, dtype=np.uint8)
        names[: self.names.size] = self.names
        table = np.zeros((self.table.shape[0] * 4, QUEUE_COLUMNS), dtype=np.int64)
        table[: self.table.shape[0]] = self.table
        self.names, self.table = names, table
        self.slots = new_queue_slots(self.slots.size * 4, names, table, len(self))


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
        """Take over what was counted of the file after, whose queue i is queue `numbers[i]` here (int, one a queue).

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
    """What was counted of stretches of a log, one after the other, whose queues are called `numbers` in it.

    None where one of them was not counted, or queues fall back, which takes all rows in their order.
    """
    whole = Counter(queues)
    for part, own in zip(counters, numbers, strict=True):
        if part is None or not whole.join(part, own):
            return None
    return whole
