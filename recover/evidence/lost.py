"""Which messages a damaged log has lost: positions that a unit or a step in queue offsets names, also after its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, compress
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from formats.checkpoint import Checkpoint
from formats.consumequeue import CQ_UNIT
from formats.record import BLANK_SIZE, MIN_RECORD_SIZE
from formats.record.rows import BIT_FILLER, BIT_INNER_BATCH, BIT_STALE, BIT_SUPERSEDED, NOT_LIVE
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.log.file_scan import FileScan, Gap
from recover.log.scan import MISSING_FILE, STALE_RECORDS, Damage, LogView, Tail, dead_ranges
from recover.store.columns import Rows, Split, within
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
        last: Split | None = None
        for split in self._log.splits():
            ends = [int(np.searchsorted(places, split.last, side="right")) for places in (starts, stops) if split.size]
            if split.summary is not None and ends == [len(fronts), len(backs)]:
                last = split
                continue
            live = _live(split)
            if not live.size:
                continue
            offsets = live["phy_offset"]
            end = int(np.searchsorted(starts, offsets[-1], side="right"))
            places = np.searchsorted(offsets, starts[len(fronts) : end]).tolist()
            fronts += [neighbour_in(live, at - 1) if at else _last_in(last) for at in places]
            end = int(np.searchsorted(stops, offsets[-1], side="right"))
            backs += [neighbour_in(live, at) for at in np.searchsorted(offsets, stops[len(backs) : end]).tolist()]
            last = split
        fronts += [_last_in(last)] * (len(damaged) - len(fronts))
        backs += [None] * (len(damaged) - len(backs))
        return dict(zip((damage.start for damage in damaged), zip(fronts, backs, strict=True), strict=True))


def _live(split: Split) -> Rows:
    return np.asarray(split.records[(split.records["bits"] & BIT_STALE) == 0])


def _last_in(split: Split | None) -> Neighbour | None:
    return None if split is None else neighbour_in(_live(split), -1)


def neighbour_in(rows: Rows, at: int) -> Neighbour:
    """The record in row `at`."""
    return Neighbour(int(rows["store_timestamp"][at]), int(rows["bits"][at]))


_GAP_LIMIT = 10_000_000


class LostPosition(Struct, frozen=True):
    """One message that is gone: its place in a queue, and where its record stood if a unit still says so."""

    key: QueueKey
    queue_offset: int
    phy_offset: int | None
    size: int | None

    @property
    def place(self) -> tuple[QueueKey, int]:
        return self.key, self.queue_offset

    @property
    def start(self) -> int:
        """Physical offset of its record, -1 where no unit says so."""
        return -1 if self.phy_offset is None else self.phy_offset

    @property
    def stop(self) -> int:
        """Physical offset of the end of its record, -1 where no unit says so."""
        return -1 if self.phy_offset is None else self.phy_offset + (self.size or 0)


class UnexplainedGap(NamedTuple):
    """Queue offsets that are missing in the log, and that no damage took; phy_offset of the records of the queue around
    them (-1 for its beginning)."""

    key: QueueKey
    first: int
    last: int
    before: int
    behind: int


class Losses(Struct):
    """Lost positions of each damaged range: `by_damage[i]` belongs to `LogView.damaged[i]`.

    `unexplained` are steps in queue offsets that no damage explains. `unproven` are those that nothing but
    the units of queues names, after the end of the log, `indexed` as many more messages as the index alone names there.
    """

    by_damage: list[list[LostPosition]]
    unexplained: list[UnexplainedGap] = field(default_factory=list)
    unproven: list[LostPosition] = field(default_factory=list)
    indexed: int = 0

    @property
    def total(self) -> int:
        """Positions in damaged ranges; several of them can be those of one record."""
        return sum(map(len, self.by_damage))

    @property
    def records(self) -> int:
        """Records that were lost in one way or the other, as far as anything names them."""
        return sum(map(record_count, [*self.by_damage, self.unproven])) + self.indexed


INDEXED = "indexed"
"""Fact of a damaged range: so many messages stood there by the index."""


def held_records(damage: Damage, positions: Iterable[LostPosition]) -> int:
    """How many records a damaged range held, as far as anything still tells: `positions` are those lost in it.

    One that a record or the next file ends held one, even if no queue says so.
    """
    indexed: int = damage.facts.get(INDEXED, 0)
    least = damage.envelope or damage.ended_by in ("record", "blank", "next-file")
    return max(record_count(positions), indexed, int(least))


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
    first one takes it. `behind` are the positions that units name after the end of the log, `held` those that are
    not lost: intact records hold them whose own number is wrong.
    """
    losses = Losses([[] for _ in log.damaged])
    if not log.damaged and queues is None:
        return losses
    starts = [damage.start for damage in log.damaged]
    fits = [(damage.stop - damage.start) // MIN_RECORD_SIZE for damage in log.damaged]
    room = [0, *accumulate(fits)]
    named: dict[QueueKey, list[int]] = defaultdict(list)
    taken: dict[QueueKey, list[int]] = defaultdict(list)
    for position in chain(named_by_units(queues, "lost"), behind):
        at = bisect_right(starts, position.start) - 1
        if at >= 0 and position.start < log.damaged[at].stop:
            named[position.key].append(position.queue_offset)
            losses.by_damage[at].append(position)
        elif position.start >= log.log_end:
            losses.unproven.append(position)
    for key, queue_offset in held:
        taken[key].append(queue_offset)
    for places in (*named.values(), *taken.values()):
        places.sort()
    for gap in _unexplained_gaps(log, expectation):
        known, others = (_between(places[gap.key], gap.first, gap.last) for places in (named, taken))
        missing = gap.last - gap.first + 1 - len(others)
        if missing <= len(known):
            continue
        first, stop = bisect_right(starts, gap.before), bisect_left(starts, gap.behind)
        if room[max(first, stop)] - room[first] < missing:
            # the damage is not what took them
            losses.unexplained.append(gap)
            continue
        own = {*known, *others}
        wanted = [at for at in range(gap.first, min(gap.last + 1, gap.first + _GAP_LIMIT)) if at not in own]
        at = 0
        for number in range(first, stop):
            if at >= len(wanted):
                break
            found = wanted[at : at + fits[number]]
            losses.by_damage[number].extend(LostPosition(gap.key, place, None, None) for place in found)
            at += fits[number]
    for positions in losses.by_damage:
        positions.sort(key=lambda position: position.place)
    return losses


def named_by_units(queues: ConsumeQueueReport | None, *kinds: str) -> Iterator[LostPosition]:
    """What the units of these kinds (`lost`, `beyond`, `wrong` as in `QueueVerdict`) name."""
    for key, verdict in queues.verdicts.items() if queues is not None else ():
        for kind in kinds:
            for unit in getattr(verdict, kind):
                yield LostPosition(key, *unit)


def not_held(expectation: Expectation, named: Iterable[LostPosition]) -> list[LostPosition]:
    """Those of `named` whose place in their queue no record of the log holds, ascending by phy_offset."""
    left: dict[QueueKey, list[LostPosition]] = defaultdict(list)
    for position in named:
        left[position.key].append(position)
    for key, rows in expectation.grouped(set(left)):
        held = np.isin([position.queue_offset for position in left[key]], rows["queue_offset"]).tolist()
        left[key] = [position for position, is_held in zip(left[key], held, strict=True) if not is_held]
    return sorted(chain(*left.values()), key=lambda position: (position.start, position.place))


def _between(places: list[int], first: int, last: int) -> list[int]:
    return places[bisect_left(places, first) : bisect_right(places, last)]


def _unexplained_gaps(log: LogView, expectation: Expectation) -> Iterator[UnexplainedGap]:
    """The missing numbers of all queues: where nothing is damaged, not of those that LMQ records alone fill."""
    tally, counts = log.tally, expectation.counts
    may = np.full(counts.size, bool(log.damaged))
    if not tally.bits & BIT_INNER_BATCH:
        may[: tally.gapped.size] = tally.gapped | ((tally.least > 0) & (log.min_offset == 0))
    for key, rows in expectation.of(np.flatnonzero(may & (counts > 0)).tolist()):
        offsets, places = rows["queue_offset"], rows["phy_offset"]
        if log.min_offset == 0 and offsets[0] > 0:
            yield UnexplainedGap(key, 0, int(offsets[0]) - 1, -1, int(places[0]))
        for at in np.flatnonzero(np.diff(offsets) > 1).tolist():
            yield UnexplainedGap(
                key, int(offsets[at]) + 1, int(offsets[at + 1]) - 1, int(places[at]), int(places[at + 1])
            )


def old_end(log: LogView, queue_file_size: int) -> int | None:
    """Where a run of old records begins at the very end of the log, if a queue of theirs ends with a full file.

    A start dispatches them: 5.3.3 and 5.4.0 make a next file for such a queue, put nothing into it, and fail on that.
    Stale ones may be among them, and filler where old ones were damaged.
    """
    if not log.superseded:
        return None
    full = (log.tally.most >= 0) & ((log.tally.most + 1) * CQ_UNIT.size % queue_file_size == 0)
    for scan in reversed(log.files):
        rows = [split.records for split in scan.splits if split.records.size]
        if not rows:
            continue
        records = np.concatenate(rows)
        live = np.flatnonzero((records["bits"] & (NOT_LIVE | BIT_FILLER)) == 0)
        run = records[live[-1] + 1 if live.size else 0 :]
        chained = run[(run["bits"] & BIT_SUPERSEDED) != 0]
        if not live.size or not full[chained["queue"]].any():
            return None
        start = int(run["phy_offset"][0])
        return None if any(damage.stop > start and damage.reason != STALE_RECORDS for damage in log.damaged) else start
    return None


# --- Messages after the end of the log: nothing but queue units names them any more. ---------------------------------
#
# Where they stood are other bytes, or no file at all: then the log was damaged. Or zeros, as if nothing had ever been
# written there: then it is one queue's word, until another queue's units adjoin its own, the checkpoint knows of a
# later message, or the index of one at that very place. Without such a witness the queue may as well be what is wrong.


TORN_RECORD = "torn-record"
ZEROED = "zeroed"
_NOWHERE = np.empty(0, dtype=np.int64)


def named_behind(log: LogView, expectation: Expectation, queues: ConsumeQueueReport) -> list[LostPosition]:
    """Messages that units name after the last record of the log, ascending by phy_offset.

    A unit counts if a broker can have written it: the log holds no message for its queue offset, and a record of its
    size fits at its place, which is no more than a file away from anything else that is known.
    """
    if not log.files or log.queue.file_size <= 0:
        return []
    # a unit that repeats the one before stands for a message that was lost before
    found: dict[tuple[QueueKey, int], LostPosition] = {}
    for position in not_held(expectation, named_by_units(queues, "beyond")):
        if _fits(log, position.start, position.stop - position.start):
            found.setdefault((position.key, position.start), position)
    positions = list(found.values())
    return list(compress(positions, _in_reach(log, _of_each(positions, "start"))))


def indexed_behind(
    log: LogView, index_ends: Iterable[tuple[int, int]], units: Callable[[], Rows]
) -> Rows:
    """The physical offsets of messages after the last record of the log that the index names, ascending.

    `index_ends` as in `file_named_elsewhere`; `units`: the offsets that units of the index name there. Both have to
    report a message.
    """
    if not log.files or log.queue.file_size <= 0:
        return _NOWHERE
    newest = log.tally.newest_timestamp
    ends = [place for place, time in index_ends if time >= newest and _fits(log, place, MIN_RECORD_SIZE)]
    places = units() if ends else _NOWHERE
    places = places[(places <= max(ends, default=0)) & _fits(log, places, MIN_RECORD_SIZE)]
    return np.asarray(places[_in_reach(log, places)])


def named_by_index_alone(by_index: Rows, log: LogView, losses: Losses) -> int:
    """How many of `indexed_behind` stood in no damaged range, and are in no queue either."""
    in_damage = within(by_index, _of_each(log.damaged, "start"), _of_each(log.damaged, "stop"))
    return int(np.count_nonzero(~in_damage & ~np.isin(by_index, _of_each(losses.unproven, "start"))))


def _fits(log: LogView, phy_offset: Any, size: int) -> Any:
    """Whether a record of that size can stand there, with the room for a blank after it in its file; of each offset of
    an array, or of one."""
    room = log.queue.file_size - BLANK_SIZE - (
        phy_offset - log.files[-1].mapped_file.file_from_offset) % log.queue.file_size
    return (phy_offset >= log.log_end) & (size >= MIN_RECORD_SIZE) & (size <= room)


def _in_reach(log: LogView, places: Rows) -> Rows:
    """Which of these offsets, ascending, lie in no file that goes on in another way, up to the first that is too far
    from all others (bool array)."""
    gaps = [gap for _, gap in _gaps_behind(log)]
    files = np.array([(scan.mapped_file.file_from_offset, scan.file_end) for scan in log.files], dtype=np.int64)
    possible = within(places, _of_each(gaps, "start"), _of_each(gaps, "stop")) | ~within(places, *files.T)
    kept = places[possible]
    reach = np.maximum(np.append(files[-1, 1], kept[:-1]), files[-1, 1]) + log.queue.file_size
    far = kept[kept > reach[: kept.size]]
    return np.asarray(possible & (places < far[0]) if far.size else possible)


def _of_each(items: Sequence[Any], name: str) -> Rows:
    """An offset of each item."""
    return np.array([getattr(item, name) for item in items], dtype=np.int64)


def note_damage_behind(
    log: LogView, by_queues: list[LostPosition], by_index: Rows, last_time: int
) -> bool:
    """Add to `log.damaged` the ranges after its end in which messages were; whether there are any.

    `last_time` is the store timestamp (ms) of the last message that the checkpoint knows of.
    """
    in_queues = _of_each(by_queues, "start")
    later = last_time > log.tally.newest_timestamp
    witness = bool(later or _queues_adjoin(by_queues) or np.isin(in_queues, by_index).any())
    starts = np.concatenate([in_queues, by_index])
    # of a message that only the index names no more than the least size is known
    stops = np.concatenate([_of_each(by_queues, "stop"), by_index + MIN_RECORD_SIZE])
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    found = list(_ranges_in_files(log, starts, stops, witness))
    ends = stops[starts >= log.files[-1].file_end]
    # without an end mark before it there was no file after the last one
    if ends.size and (witness or log.files[-1].blank is not None):
        found.append(_missing_files(log.files[-1], int(ends.max()) - 1))
    for damage in found:
        tail = log.tail
        if tail is not None and tail.mapped_file == damage.mapped_file and damage.start <= tail.start < damage.stop:
            rest = Tail(damage.stop, tail.stop, tail.reason, tail.mapped_file)
            log.tail = rest if damage.stop < tail.stop else None
        first, last = np.searchsorted(by_index, [damage.start, damage.stop]).tolist()
        damage.facts |= {INDEXED: last - first} if last > first else {}
    log.damaged = sorted([*log.damaged, *found], key=lambda damage: damage.start)
    return bool(found)


def _queues_adjoin(named: list[LostPosition]) -> bool:
    """True when a unit ends where that of another queue begins: no queue alone can make that up."""
    ends = {position.stop: position.key for position in named}
    return any(ends.get(position.start, position.key) != position.key for position in named)


def _gaps_behind(log: LogView) -> Iterator[tuple[FileScan, Gap]]:
    for scan in log.files:
        if scan.file_end > log.log_end:
            yield from ((scan, gap) for gap in dead_ranges(scan, stale=log.stale > 0) if gap.stop > log.log_end)


def _ranges_in_files(log: LogView, starts: Rows, stops: Rows, witness: bool) -> Iterator[Damage]:
    """The ranges after the log's end in files that are there; `starts` (ascending) and `stops`: of named messages."""
    behind = [damage for damage in log.damaged if damage.stop > log.log_end]
    for scan, gap in _gaps_behind(log):
        start = max([gap.start, *(d.stop for d in behind if d.start < gap.stop and d.stop > gap.start)])
        first, last = np.searchsorted(starts, [start, gap.stop]).tolist()
        if first >= last:
            continue
        begin, stop = int(starts[first]), min(int(stops[first:last].max()), scan.file_end)
        facts = dict(gap.facts) if start == gap.start else {}
        if begin < gap.last_data:
            yield Damage(start, stop, TORN_RECORD, 0, "record", False, scan.mapped_file, facts)
        elif not scan.record_count or witness:
            yield Damage(begin, stop, ZEROED, 0, "record", False, scan.mapped_file)


def file_named_elsewhere(
    files: Sequence[FileScan], newest: int, index_ends: Iterable[tuple[int, int]], checkpoint: Checkpoint | None
) -> Damage | None:
    """The log files after the last one of `files`, if index or checkpoint know of messages there; else None.

    `newest`: the highest store timestamp (ms) in the log. `index_ends`: (phy offset, store timestamp in ms) of each
    index file's last message. The log itself says so, too, by an end mark without a file after it: a broker makes that
    file at once. Without one nothing else is believed.
    """
    if not files or files[-1].blank is None:
        return None
    start = files[-1].file_end
    said = [phy_offset for phy_offset, time in index_ends if phy_offset >= start and time > newest]
    if checkpoint is not None:
        times = (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp)
        said += [start for time in times if time > newest]
        said += [place for place in (checkpoint.logics_physical_offset,) if place >= start]
    if not said:
        return None
    # how many files are missing nobody can say for sure: a wrong offset names one far away
    return _missing_files(files[-1], min(said))


def _missing_files(end: FileScan, last: int) -> Damage:
    """The files after `end`, the last one that is there, up to the one with the physical offset `last`."""
    start, size = end.file_end, end.file_size
    return Damage(start, start + ((last - start) // size + 1) * size, MISSING_FILE, 0, "next-file", False, None)
