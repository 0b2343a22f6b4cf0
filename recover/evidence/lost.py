"""Which messages a damaged log has lost: queue positions that a unit or a step in the queue offsets names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from formats.consumequeue import CQ_UNIT
from formats.record import MIN_RECORD_SIZE
from formats.record.rows import BIT_GHOST, BIT_INNER_BATCH, BIT_SUPERSEDED, STALE
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.log.scan import Damage, LogView
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX


class Neighbour(NamedTuple):
    """What matters of a record beside a range: its store timestamp (ms) and its bits."""

    store_timestamp: int
    bits: int


Pair = tuple[Neighbour | None, Neighbour | None]


class Surroundings:
    """Of the damaged ranges of one log, which stand in its order and do not overlap."""

    def __init__(self, log: LogView) -> None:
        self._log = log

    def of(self, damage: Damage) -> Pair:
        """The last live record before a range and the first after it; None where there is none."""
        return self._all[damage.start]

    def times(self, damage: Damage) -> tuple[int, int]:
        """Store timestamps (ms) of these two; where there is but one of them its twice, 0 for none."""
        before, behind = (0 if neighbour is None else neighbour.store_timestamp for neighbour in self.of(damage))
        return before or behind, behind or before

    @cached_property
    def _all(self) -> dict[int, Pair]:
        damaged = self._log.damaged
        starts = np.array([damage.start for damage in damaged], dtype=np.int64)
        stops = np.array([damage.stop for damage in damaged], dtype=np.int64)
        fronts: list[Neighbour | None] = []
        backs: list[Neighbour | None] = []
        last: Neighbour | None = None
        for split in self._log.splits():
            live: Rows = split.records[(split.records["bits"] & BIT_GHOST) == 0]
            if not live.size:
                continue
            offsets = live["phy_offset"]
            end = int(np.searchsorted(starts, offsets[-1], side="right"))
            places = np.searchsorted(offsets, starts[len(fronts) : end]).tolist()
            fronts += [_neighbour(live, at - 1) if at else last for at in places]
            end = int(np.searchsorted(stops, offsets[-1], side="right"))
            backs += [_neighbour(live, at) for at in np.searchsorted(offsets, stops[len(backs) : end]).tolist()]
            last = _neighbour(live, live.size - 1)
        fronts += [last] * (len(damaged) - len(fronts))
        backs += [None] * (len(damaged) - len(backs))
        return dict(zip((damage.start for damage in damaged), zip(fronts, backs, strict=True), strict=True))


def _neighbour(rows: Rows, at: int) -> Neighbour:
    return Neighbour(int(rows["store_timestamp"][at]), int(rows["bits"][at]))


_GAP_LIMIT = 10_000_000


class LostPosition(Struct, frozen=True):
    """One message that is gone: its place in a queue, and where its record stood if a unit still says so."""

    key: QueueKey
    queue_offset: int
    phy_offset: int | None
    size: int | None

    @property
    def start(self) -> int:
        """Physical offset of its record, -1 where no unit says so."""
        return -1 if self.phy_offset is None else self.phy_offset

    @property
    def stop(self) -> int:
        """Physical offset of the end of its record, -1 where no unit says so."""
        return -1 if self.phy_offset is None else self.phy_offset + (self.size or 0)


class Lack(NamedTuple):
    """Queue offsets that the log lacks, and that no damage took; phy_offset of the records of the queue around them
    (-1 for its beginning)."""

    key: QueueKey
    first: int
    last: int
    before: int
    behind: int


class Losses(Struct):
    """Lost positions of each damaged range: `by_damage[i]` belongs to `LogView.damaged[i]`.

    `lacking` are steps in queue offsets that no damage explains. `unproven` are those that nothing but
    the units of queues names, after the end of the log.
    """

    by_damage: list[list[LostPosition]]
    lacking: list[Lack] = field(default_factory=list)
    unproven: list[LostPosition] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Positions in damaged ranges; several of them can be those of one record."""
        return sum(len(positions) for positions in self.by_damage)

    @property
    def records(self) -> int:
        """Records that were lost in one way or the other, as far as anything names them."""
        return sum(map(record_count, [*self.by_damage, self.unproven]))


def was_a_message(damage: Damage) -> bool:
    """True when at least one message stood in the range, even if no queue says so."""
    return damage.envelope or damage.ended_by in ("record", "blank", "next-file")


def record_count(positions: Iterable[LostPosition]) -> int:
    """How many records these positions stand for: one that fills LMQ queues, too, has several of them."""
    named: set[int] = set()
    unnamed = 0
    in_queue: Counter[QueueKey] = Counter()
    for position in positions:
        lmq = position.key.topic.startswith(LMQ_PREFIX)
        if lmq:
            in_queue[position.key] += 1
        if position.phy_offset is not None:
            named.add(position.phy_offset)
        elif not lmq:
            unnamed += 1
    return max(len(named) + unnamed, *in_queue.values(), 0)


def lost_positions(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport | None, behind: Iterable[LostPosition] = (),
    held: Iterable[tuple[QueueKey, int]] = (),
) -> Losses:
    """Collect what the units name in each damaged range, then what only the queue offsets give away.

    A step in a queue's offsets belongs to a damaged range that lies between its two records; with several, the
    first one takes it. `after` are the positions that units name after the end of the log, `held` those that are
    not lost: intact records hold them whose own number is wrong.
    """
    losses = Losses([[] for _ in log.damaged])
    if not log.damaged and queues is None:
        return losses
    known: dict[QueueKey, _Known] = defaultdict(_Known)
    ranges = _Ranges(log.damaged)
    for position in chain(_in_damage(queues), behind):
        at = bisect_right(ranges.starts, position.start) - 1
        if at >= 0 and position.start < log.damaged[at].stop:
            known[position.key].named.append(position.queue_offset)
            losses.by_damage[at].append(position)
        elif position.start >= log.log_end:
            losses.unproven.append(position)
    for key, queue_offset in held:
        known[key].held.append(queue_offset)
    for places in known.values():
        places.named.sort()
        places.held.sort()
    for key, rows in expectation.of(_with_gaps(log, expectation)):
        _take_gaps(losses, log, ranges, key, rows, known[key])
    for positions in losses.by_damage:
        positions.sort(key=lambda p: (p.key.topic, p.key.queue_id, p.queue_offset))
    return losses


def old_end(log: LogView, queue_file_size: int) -> int | None:
    """Where a run of old records begins at the very end of the log, if a queue of theirs ends with a full file.

    A start dispatches them: 5.3.3 and 5.4.0 make a next file for such a queue, put nothing into it, and fail on that.
    """
    if not log.superseded:
        return None
    full = (log.tally.most >= 0) & ((log.tally.most + 1) * CQ_UNIT.size % queue_file_size == 0)
    for scan in reversed(log.files):
        rows = [split.records for split in scan.splits if split.records.size]
        if not rows:
            continue
        records = np.concatenate(rows)
        live = np.flatnonzero((records["bits"] & STALE) == 0)
        run = records[live[-1] + 1 if live.size else 0 :]
        chained = run[(run["bits"] & BIT_SUPERSEDED) != 0]
        if not live.size or not full[chained["queue"]].any():
            return None
        start = int(run["phy_offset"][0])
        return None if any(damage.stop > start for damage in log.damaged) else start
    return None


class _Known:
    """Places of one queue: of messages that units `named` in damaged ranges, and those that are `held` (ascending)."""

    def __init__(self) -> None:
        self.named: list[int] = []
        self.held: list[int] = []

    def between(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """Those of both from `first` to `last`."""
        return _between(self.named, first, last), _between(self.held, first, last)


def _between(places: list[int], first: int, last: int) -> list[int]:
    return places[bisect_left(places, first) : bisect_right(places, last)]


def _in_damage(queues: ConsumeQueueReport | None) -> Iterator[LostPosition]:
    for key, verdict in queues.verdicts.items() if queues is not None else ():
        for queue_offset, phy_offset, size in verdict.lost:
            yield LostPosition(key, queue_offset, phy_offset, size)


class _Ranges:
    """The damaged ranges of a log in its order, with how many records fit into them."""

    def __init__(self, damaged: list[Damage]) -> None:
        self.starts = [damage.start for damage in damaged]
        self.fits = [(damage.stop - damage.start) // MIN_RECORD_SIZE for damage in damaged]
        self._in_front = [0, *accumulate(self.fits)]

    def between(self, before: int, behind: int) -> tuple[range, int]:
        """Numbers of those that begin after `before` and before `after`, and how many records fit into all."""
        first, stop = bisect_right(self.starts, before), bisect_left(self.starts, behind)
        return range(first, stop), self._in_front[max(first, stop)] - self._in_front[first]


def _with_gaps(log: LogView, expectation: Expectation) -> list[int]:
    """Numbers of the queues that may lack positions: where nothing is damaged, not those that only carriers fill."""
    tally, counts = log.tally, expectation.counts
    may = np.full(counts.size, bool(log.damaged))
    if not tally.bits & BIT_INNER_BATCH:
        may[: tally.gapped.size] = tally.gapped | ((tally.least > 0) & (log.min_offset == 0))
    return [int(number) for number in np.flatnonzero(may & (counts > 0))]


def _take_gaps(
    losses: Losses, log: LogView, ranges: _Ranges, key: QueueKey, rows: Rows, known: _Known
) -> None:
    for first, last, before, behind in _gaps(log, rows):
        named, held = known.between(first, last)
        missing = last - first + 1 - len(held)
        if missing <= len(named):
            continue
        between, room = ranges.between(before, behind)
        if room < missing:
            # the damage is not what took them
            losses.lacking.append(Lack(key, first, last, before, behind))
            continue
        taken_up = {*named, *held}
        wanted = [offset for offset in range(first, min(last + 1, first + _GAP_LIMIT)) if offset not in taken_up]
        at = 0
        for i in between:
            if at >= len(wanted):
                break
            taken = wanted[at : at + ranges.fits[i]]
            losses.by_damage[i].extend(LostPosition(key, offset, None, None) for offset in taken)
            at += len(taken)


def _gaps(log: LogView, rows: Rows) -> Iterator[tuple[int, int, int, int]]:
    """(first missing, last missing, phy_offset of the record before, of the one after) of one queue."""
    offsets, places = rows["queue_offset"], rows["phy_offset"]
    if offsets.size and log.min_offset == 0 and offsets[0] > 0:
        yield 0, int(offsets[0]) - 1, -1, int(places[0])
    for at in np.flatnonzero(np.diff(offsets) > 1).tolist():
        yield int(offsets[at]) + 1, int(offsets[at + 1]) - 1, int(places[at]), int(places[at + 1])
