"""The messages that a damaged log lost: positions shown by units or by jumps in queue offsets, also past its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, compress, zip_longest
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
from recover.store.columns import Rows, within
from recover.store.config_files import LMQ_PREFIX


class Neighbour(NamedTuple):
    """The relevant facts of a record next to a range: its store timestamp (ms) and its bits."""

    store_timestamp: int
    bits: int


Pair = tuple[Neighbour | None, Neighbour | None]


class Surroundings:
    """The records around the damaged ranges of one log."""

    def __init__(self, log: LogView) -> None:
        self._splits = [split for split in log.splits() if split.size]
        self._ends = [split.last for split in self._splits]
        self._live = lru_cache(maxsize=2)(self._live_in)

    def of(self, damage: Damage) -> Pair:
        """Return the last live record before a range and the first after it; None where there is none."""
        first, last = (bisect_left(self._ends, place) for place in (damage.start, damage.stop))
        before = (self._row(number, damage.start, -1) for number in range(min(first, len(self._ends) - 1), -1, -1))
        behind = (self._row(number, damage.stop, 0) for number in range(last, len(self._ends)))
        return next(filter(None, before), None), next(filter(None, behind), None)

    def times(self, damage: Damage) -> tuple[int, int]:
        """Return the store timestamps (ms) of these two; if one is missing, the other's twice; 0 if both are."""
        before, behind = (0 if neighbour is None else neighbour.store_timestamp for neighbour in self.of(damage))
        return before or behind, behind or before

    def _row(self, number: int, place: int, step: int) -> Neighbour | None:
        """Return the live record of a split `step` rows from the first one at or after `place`."""
        live, offsets = self._live(number)
        at = int(np.searchsorted(offsets, place)) + step
        return neighbour_in(live, at) if 0 <= at < offsets.size else None

    def _live_in(self, number: int) -> tuple[Rows, Rows]:
        rows = self._splits[number].records
        live = rows[(rows["bits"] & BIT_STALE) == 0]
        return live, live["phy_offset"].copy()


def neighbour_in(rows: Rows, at: int) -> Neighbour:
    """Return the record in row `at` as a neighbour."""
    return Neighbour(int(rows["store_timestamp"][at]), int(rows["bits"][at]))


_GAP_LIMIT = 10_000_000


class LostPosition(Struct, frozen=True):
    """One lost message: its place in a queue, and the place of its record if a unit still names it."""

    key: QueueKey
    queue_offset: int
    phy_offset: int | None
    size: int | None

    @property
    def place(self) -> tuple[QueueKey, int]:
        return self.key, self.queue_offset

    @property
    def start(self) -> int:
        """The physical offset of its record, -1 if no unit names it."""
        return -1 if self.phy_offset is None else self.phy_offset

    @property
    def stop(self) -> int:
        """The physical offset of its record's end, -1 if no unit names it."""
        return -1 if self.phy_offset is None else self.phy_offset + (self.size or 0)


class UnexplainedGap(NamedTuple):
    """Queue offsets that are missing in the log and that no damage explains; phy_offset of the queue's records before
    (-1 at its beginning) and after (`behind`) them."""

    key: QueueKey
    first: int
    last: int
    before: int
    behind: int


class Losses(Struct):
    """Lost positions of each damaged range: `by_damage[i]` belongs to `LogView.damaged[i]`.

    `unexplained`: jumps in queue offsets that no damage explains. `unproven`: positions past the end of the log that
    only queue units name; `indexed`: number of further messages there that only the index names. `again`: messages of
    a topic that was deleted and created again, lost in the i-th range, while an intact older message has their place.
    """

    by_damage: list[list[LostPosition]]
    again: list[list[LostPosition]] = field(default_factory=list)
    unexplained: list[UnexplainedGap] = field(default_factory=list)
    unproven: list[LostPosition] = field(default_factory=list)
    indexed: int = 0

    @property
    def total(self) -> int:
        """The number of positions in damaged ranges; several of them can belong to one record."""
        return sum(map(len, self.by_damage))

    @property
    def records(self) -> int:
        """The number of lost records, as far as any evidence names them."""
        return sum(map(record_count, [*self.all_by_damage, self.unproven])) + self.indexed

    @property
    def all_by_damage(self) -> list[list[LostPosition]]:
        """All messages that each damaged range is known to have held."""
        return [[*lost, *again] for lost, again in zip_longest(self.by_damage, self.again, fillvalue=())]


INDEXED = "indexed"
"""Key of a fact of damaged ranges: the number of messages there according to the index."""


def held_records(damage: Damage, positions: Iterable[LostPosition]) -> int:
    """Return how many records a damaged range held according to the evidence; `positions` are those lost in it.

    A range that ends at a record or the next file held at least one, even if no queue shows it.
    """
    indexed: int = damage.facts.get(INDEXED, 0)
    least = damage.has_frame or damage.ended_by in ("record", "blank", "next-file")
    return max(record_count(positions), indexed, int(least))


def record_count(positions: Iterable[LostPosition]) -> int:
    """Return how many records these positions stand for: a record that also fills LMQ queues has several of them."""
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
    """Collect the positions that units name in each damaged range, then those that only jumps in queue offsets show.

    A jump in a queue's offsets is assigned to the damaged range between its two records; if there are several, the
    first one takes as many as fit. `behind`: positions past the end of the log that units name; `held`: positions that
    are not lost, since intact records with a wrong queue offset belong there.
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
            # the damage is too small to have taken them
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
    losses.again = [*_made_again(log, losses, queues)]
    for positions in losses.by_damage:
        positions.sort(key=lambda position: position.place)
    return losses


def _made_again(log: LogView, losses: Losses, queues: ConsumeQueueReport | None) -> Iterator[list[LostPosition]]:
    """Yield per damaged range what wrong units name in it: they adjoin other messages there, or its edges, and no
    jump shows a lost message of their queue, which would be the same one."""
    starts = [damage.start for damage in log.damaged]
    found: list[dict[int, LostPosition]] = [{} for _ in starts]
    for position in named_by_units(queues, "wrong") if starts else ():
        at = bisect_right(starts, position.start) - 1
        if at >= 0 and position.start < position.stop <= log.damaged[at].stop:
            found[at].setdefault(position.start, position)
    for damage, lost, again in zip(log.damaged, losses.by_damage, found, strict=True):
        named = [*lost, *again.values()]
        begins = {damage.stop, *(position.start for position in named)}
        ends = {damage.start, *(position.stop for position in named)}
        known = {position.start for position in lost} | {
            position.start for position in again.values() if position.start not in ends and position.stop not in begins}
        unnamed = {position.key for position in lost if position.phy_offset is None}
        yield [position for position in again.values() if position.start not in known and position.key not in unnamed]


def named_by_units(queues: ConsumeQueueReport | None, *kinds: str) -> Iterator[LostPosition]:
    """Yield what the units of these kinds (`lost`, `beyond`, `wrong` as in `QueueVerdict`) name."""
    for key, verdict in queues.verdicts.items() if queues is not None else ():
        for kind in kinds:
            for unit in getattr(verdict, kind):
                yield LostPosition(key, *unit)


def not_held(expectation: Expectation, named: Iterable[LostPosition]) -> list[LostPosition]:
    """Return those of `named` whose place in their queue no record of the log holds, ascending by phy_offset."""
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
    """Yield the missing offsets of all queues; in a log without damage, not those of queues that only LMQ records
    fill."""
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
    """Return the physical offset of a run of old records at the very end of the log if a queue in it ends with a full
    file.

    A start dispatches them: 5.3.3 and 5.4.0 create a next file for such a queue, put nothing into it, and fail on that.
    The run may include stale records, and filler for damaged old ones. None without such a run.
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


# --- Messages past the end of the log: only queue units still name them. ---------------------------------------------
#
# Other bytes, or no file, in their place mean that the log was damaged. Zeros there, as if nothing had been written,
# leave one queue's claim alone; it counts if units of another queue adjoin its own, the checkpoint knows a later
# message, or the index names one at the same place. Without such a witness the queue may as well be wrong.


TORN_RECORD = "torn-record"
ZEROED = "zeroed"
_NOWHERE = np.empty(0, dtype=np.int64)


def named_after_end(log: LogView, expectation: Expectation, queues: ConsumeQueueReport) -> list[LostPosition]:
    """Return the messages that units name after the last record of the log, ascending by phy_offset.

    A unit counts if a broker can have written it: the log holds no message for its queue offset, and a record of its
    size fits at its place, at most one file size away from other known messages.
    """
    if not log.files or log.queue.file_size <= 0:
        return []
    # a unit that repeats the one before fills in for a message that was lost earlier
    found: dict[tuple[QueueKey, int], LostPosition] = {}
    for position in not_held(expectation, named_by_units(queues, "beyond")):
        if _fits(log, position.start, position.stop - position.start):
            found.setdefault((position.key, position.start), position)
    positions = list(found.values())
    return list(compress(positions, _in_reach(log, _column(positions, "start"))))


def indexed_after_end(
    log: LogView, index_ends: Iterable[tuple[int, int]], units: Callable[[], Rows]
) -> Rows:
    """Return the physical offsets of messages after the last record of the log that the index names, ascending.

    `index_ends` as in `file_named_elsewhere`; `units` returns the offsets that index units name there. Both must name a
    message.
    """
    if not log.files or log.queue.file_size <= 0:
        return _NOWHERE
    newest = log.tally.newest_timestamp
    ends = [place for place, time in index_ends if time >= newest and _fits(log, place, MIN_RECORD_SIZE)]
    places = units() if ends else _NOWHERE
    places = places[(places <= max(ends, default=0)) & _fits(log, places, MIN_RECORD_SIZE)]
    return np.asarray(places[_in_reach(log, places)])


def named_by_index_alone(by_index: Rows, log: LogView, losses: Losses) -> int:
    """Return how many of `indexed_after_end` are in no damaged range and in no queue."""
    in_damage = within(by_index, _column(log.damaged, "start"), _column(log.damaged, "stop"))
    return int(np.count_nonzero(~in_damage & ~np.isin(by_index, _column(losses.unproven, "start"))))


def _fits(log: LogView, phy_offset: Any, size: int) -> Any:
    """Whether a record of that size fits at `phy_offset` (one or an array), with room for a blank after it in its
    file."""
    room = log.queue.file_size - BLANK_SIZE - (
        phy_offset - log.files[-1].mapped_file.file_from_offset) % log.queue.file_size
    return (phy_offset >= log.log_end) & (size >= MIN_RECORD_SIZE) & (size <= room)


def _in_reach(log: LogView, places: Rows) -> Rows:
    """Which of these ascending offsets are in no intact part of a file, up to the first that is too far from all others
    (bool array)."""
    gaps = [gap for _, gap in _gaps_past_end(log)]
    files = np.array([(scan.mapped_file.file_from_offset, scan.file_end) for scan in log.files], dtype=np.int64)
    possible = within(places, _column(gaps, "start"), _column(gaps, "stop")) | ~within(places, *files.T)
    kept = places[possible]
    reach = np.maximum(np.append(files[-1, 1], kept[:-1]), files[-1, 1]) + log.queue.file_size
    far = kept[kept > reach[: kept.size]]
    return np.asarray(possible & (places < far[0]) if far.size else possible)


def _column(items: Sequence[Any], name: str) -> Rows:
    """Return one field of each item (int64 array)."""
    return np.array([getattr(item, name) for item in items], dtype=np.int64)


def note_damage_after_end(
    log: LogView, by_queues: list[LostPosition], by_index: Rows, last_time: int
) -> bool:
    """Add to `log.damaged` the ranges past its end that held messages; return whether there are any.

    `last_time`: store timestamp (ms) of the last message that the checkpoint knows of.
    """
    in_queues = _column(by_queues, "start")
    later = last_time > log.tally.newest_timestamp
    witness = bool(later or _queues_adjoin(by_queues) or np.isin(in_queues, by_index).any())
    starts = np.concatenate([in_queues, by_index])
    # for a message that only the index names, assume the minimum size
    stops = np.concatenate([_column(by_queues, "stop"), by_index + MIN_RECORD_SIZE])
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    found = list(_ranges_in_files(log, starts, stops, witness))
    ends = stops[starts >= log.files[-1].file_end]
    # without an end mark the last file was not full, so no file followed it
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
    """Whether a unit ends where that of another queue begins: one wrong queue alone cannot produce that."""
    ends = {position.stop: position.key for position in named}
    return any(ends.get(position.start, position.key) != position.key for position in named)


def _gaps_past_end(log: LogView) -> Iterator[tuple[FileScan, Gap]]:
    for scan in log.files:
        if scan.file_end > log.log_end:
            yield from ((scan, gap) for gap in dead_ranges(scan, stale=log.stale > 0) if gap.stop > log.log_end)


def _ranges_in_files(log: LogView, starts: Rows, stops: Rows, witness: bool) -> Iterator[Damage]:
    """Yield damaged ranges past the log's end in existing files; `starts` (ascending), `stops`: of the named
    messages."""
    behind = [damage for damage in log.damaged if damage.stop > log.log_end]
    for scan, gap in _gaps_past_end(log):
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
    """Return the missing log files after the last of `files`, if index or checkpoint know of messages there; else None.

    `newest`: highest store timestamp (ms) in the log. `index_ends`: (phy offset, store timestamp in ms) of each index
    file's last message. The log must support it by an end mark in its last file, after which a broker creates the next
    file at once; without one, no other evidence counts.
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
    # the number of missing files is uncertain: take the nearest, as a wrong offset may name one far away
    return _missing_files(files[-1], min(said))


def _missing_files(end: FileScan, last: int) -> Damage:
    """Return the damage of the files after `end`, the last existing one, up to the file with physical offset `last`."""
    start, size = end.file_end, end.file_size
    return Damage(start, start + ((last - start) // size + 1) * size, MISSING_FILE, 0, "next-file", False, None)
