"""Intact records of which one field, that no checksum covers, is contradicted: topic, queue id, queue offset, or the
transaction bits of the sysFlag; and the properties that name LMQ queues.

The log outranks its queues. A unit that disagrees with a record is wrong, unless the log bears it out: its place is
one that the queue lacks, between or beside records of the queue that stand on either side of it in the log, and the
place that the record names for itself has fewer witnesses. Such a record is told of; what derives from the log is
judged by the place that it has (`relocated`), and only --mend-bits writes the field.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import structs

from formats import sysflag
from formats.record import Record
from formats.record.rows import BIT_GHOST, BIT_STRAY, BIT_SUPERSEDED, row_of
from recover.claims import Claim, believed
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey, lmq_targets
from recover.evidence.edits import Edit, Place, between, property_bit
from recover.evidence.misplaced import StrayPlace, Unit
from recover.evidence.policy import POLICIES
from recover.log.file_scan import FileScan
from recover.log.judge import LogReader
from recover.log.scan import LogView, in_order
from recover.store.columns import ColumnStore, Rows, Split
from recover.store.config_files import LMQ_PREFIX


def names_again(
    record: Record, claimed: Collection[Place], right: Collection[Place], unknown: Collection[Place] = ()
) -> Edit | None:
    """The one bit without which a record names every place that units claim it for.

    It has to go on naming those places of the stored record at which its units stand (`right`), and may name
    those of queues that are not there (`unknown`), but no others.
    """
    needed = set(claimed) | set(right)
    allowed = needed | set(unknown)
    return property_bit("lmq", record, lambda one: needed <= set(lmq_targets(one)) <= allowed, tuple(claimed))


#: Queue, queue offset and size that a unit says of a record.
_Claim = tuple[QueueKey, int, int]

class _Asked(NamedTuple):
    """An intact record, the place that it names, and what is claimed for it; `stray`: it steps out of its queue."""

    record: Record
    own: Place
    claims: list[_Claim]
    stray: bool
    time: int

    @property
    def places(self) -> set[Place]:
        return {self.own, *((key, queue_offset) for key, queue_offset, _ in self.claims)}


class _Beside(NamedTuple):
    """What the log says of a place of a queue for one record: how many of the places beside it hold records in order
    (1 where it is between two that are further away), -1 where another record holds the place, or where this one does
    not fit in there by its own place in the log. `later`: the record before the place was stored after it."""

    neighbours: int
    later: bool


def contradictions(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport, placed: Collection[StrayPlace]
) -> list[Edit]:
    """Every record that belongs to another place than one field of it says, ascending by its start.

    `placed` are records whose place shows otherwise, which counts where no unit speaks for another.
    """
    claims = _Claims(queues, placed)
    found: list[Edit] = []
    asked: list[_Asked] = []
    with LogReader(log.queue) as reader:
        for row in _rows_at(log, claims.places):
            phy_offset, size = int(row["phy_offset"]), int(row["size"])
            own = claims.of(phy_offset)
            if any(claim[2] != size for claim in own):
                continue
            record = reader.find(phy_offset, size)
            if record is None or record.property_crc is not None:
                continue  # it covers the whole record: nothing of it is wrong
            place = expectation.keys[int(row["queue"])], int(row["queue_offset"])
            stray = bool(int(row["bits"]) & BIT_STRAY)
            asked.append(_Asked(record, place, own, stray, int(row["store_timestamp"])))
    beside = _beside(expectation, asked)
    for item in asked:
        at = item.record.phy_offset
        if at not in claims.carried:
            found += _judged(item, beside, queues, claims)
        elif all(beside[(key, queue_offset), at].neighbours >= 0 for key, queue_offset, _ in item.claims):
            # no other record names these places, and this one stands in their order
            found += _misses_queues(item.record, item.claims, expectation, queues)
    return sorted(found, key=lambda edit: edit.start)


def _judged(
    asked: _Asked, beside: dict[tuple[Place, int], _Beside], queues: ConsumeQueueReport, claims: _Claims
) -> Iterator[Edit]:
    """The record at the place that more independent claims give it than its own, if one field makes the difference."""
    at = asked.record.phy_offset
    votes = [Claim("record", asked.own)]
    if not asked.stray:
        neighbours = beside[asked.own, at].neighbours
        votes.append(Claim("neighbours", asked.own, max(0, neighbours)))
        if neighbours >= 0 and _stands(queues, *asked.own) and (asked.own, at) not in claims.units:
            votes.append(Claim("unit", asked.own))
    for place in asked.places:
        log = beside[place, at]
        if (place, at) in claims.units:
            votes.append(Claim("unit", place, place == asked.own or (log.neighbours >= 0 and not log.later)))
        elif place != asked.own and not log.later:
            # nothing but this place is left for it
            votes.append(Claim("elimination", place, log.neighbours >= 0))
        if place != asked.own and log.neighbours > 0 and not log.later:
            votes.append(Claim("neighbours", place, log.neighbours))
    place = believed(votes, asked.own)
    if place != asked.own:
        yield from _denied(asked.record, *place)
    elif asked.record.sys_flag & sysflag.TRANSACTION_PREPARED and {"unit", "neighbours"} <= {
        claim.source for claim in votes if claim.weight
    }:
        yield from _not_prepared(asked.record, asked.own)


def _beside(expectation: Expectation, asked: list[_Asked]) -> dict[tuple[Place, int], _Beside]:
    """What the log says of each place that is named for a record, by (place, phy_offset of the record)."""
    wanted: dict[QueueKey, set[tuple[int, int, int]]] = defaultdict(set)
    for item in asked:
        for key, queue_offset in item.places:
            wanted[key].add((queue_offset, item.record.phy_offset, item.time))
    nothing = np.empty(0, dtype=np.int64)
    found = {}
    for key, rows in _with_nothing(expectation, wanted):
        numbers, places = (rows["queue_offset"], rows["phy_offset"]) if rows is not None else (nothing, nothing)
        times = rows["store_timestamp"] if rows is not None else nothing
        for queue_offset, phy_offset, time in wanted[key]:
            first, stop = (int(np.searchsorted(numbers, queue_offset, side)) for side in ("left", "right"))
            before = first - 1 - (first > 0 and places[first - 1] == phy_offset)
            behind = stop + (stop < numbers.size and places[stop] == phy_offset)
            neighbours, later = int(queue_offset == 0), False
            if before >= 0:
                neighbours += int(numbers[before] == queue_offset - 1)
                later = bool(times[before] > time)
            if behind < numbers.size:
                neighbours += int(numbers[behind] == queue_offset + 1)
            if before >= 0 and behind < numbers.size:
                neighbours = max(1, neighbours)  # between two records of its queue, be others beside it damaged, too
            in_order = (before < 0 or places[before] < phy_offset) and (
                behind >= numbers.size or phy_offset < places[behind])
            is_free = not any(place != phy_offset for place in places[first:stop].tolist())
            found[(key, queue_offset), phy_offset] = _Beside(neighbours if is_free and in_order else -1, later)
    return found


def _with_nothing(
    expectation: Expectation, wanted: Collection[QueueKey]
) -> Iterator[tuple[QueueKey, Rows | None]]:
    """The rows of each of these queues, None of one that has none."""
    left = dict.fromkeys(wanted)
    for key, rows in expectation.grouped(set(wanted)):
        del left[key]
        yield key, rows
    yield from left.items()


class _Claims:
    """What is said of records, by phy_offset: by units of ordinary queues and by what else gives a place, and by units
    of LMQ queues.

    `units` are the places, and phy_offsets, that units themselves give.
    """

    def __init__(self, queues: ConsumeQueueReport, placed: Collection[StrayPlace]) -> None:
        self.plain: dict[int, list[_Claim]] = {}
        self.carried: dict[int, list[_Claim]] = {}
        self.units: set[tuple[Place, int]] = set()
        for key, verdict in queues.verdicts.items():
            self._take(key, verdict.wrong)
        by_units = frozenset(self.plain)
        for item in placed:
            if item.named:
                self.units.add(((item.key, item.queue_offset), item.phy_offset))
            if item.named or item.phy_offset not in by_units:
                self.plain.setdefault(item.phy_offset, []).append((item.key, item.queue_offset, item.size))
        few = len(self.carried) <= POLICIES["lmq"].limit
        self.carried = {at: own for at, own in self.carried.items() if few and at not in self.plain}
        if len(self.plain) > POLICIES["place"].limit:
            self.plain, self.carried = {}, {}

    def _take(self, key: QueueKey, units: list[Unit]) -> None:
        if key.topic.startswith(LMQ_PREFIX):
            beside = {number for (one, *_), (other, *_) in pairwise(units) if one + 1 == other
                      for number in (one, other)}
            units = [unit for unit in units if unit[0] not in beside]
        for queue_offset, phy_offset, size in units:
            own = self.carried if key.topic.startswith(LMQ_PREFIX) else self.plain
            own.setdefault(phy_offset, []).append((key, queue_offset, size))
            self.units.add(((key, queue_offset), phy_offset))

    @property
    def places(self) -> Rows:
        """The phy offsets of all these records (int64), ascending."""
        return np.array(sorted({*self.plain, *self.carried}), dtype=np.int64)

    def of(self, phy_offset: int) -> list[_Claim]:
        """The claims of one record."""
        return list(dict.fromkeys(self.plain.get(phy_offset) or self.carried[phy_offset]))


def _misses_queues(
    record: Record, claims: list[_Claim], expectation: Expectation, queues: ConsumeQueueReport
) -> Iterator[Edit]:
    """The record as one that fills all LMQ queues of which units name it, if one bit explains that it does not."""
    places = tuple((key, queue_offset) for key, queue_offset, _ in claims)
    named = lmq_targets(record)
    unknown = [place for place in named if place[0] not in queues.verdicts]
    rows = expectation.lmq_rows[expectation.lmq_rows["phy_offset"] == record.phy_offset]
    # a place that a later record names as well is that one's
    its_own = {(expectation.keys[row["queue"]], int(row["queue_offset"])) for row in rows}
    stands = [place for place in named if place in its_own and _stands(queues, *place)]
    edit = names_again(record, places, stands, unknown)
    if edit is not None:
        yield edit


def _rows_at(log: LogView, places: Rows) -> Iterator[np.void]:
    for split in log.splits() if places.size else ():
        rows = split.records[(split.records["bits"] & BIT_GHOST) == 0]
        yield from rows[np.isin(rows["phy_offset"], places)]


def _stands(queues: ConsumeQueueReport, key: QueueKey, queue_offset: int) -> bool:
    """True when a message is expected at this place, and a unit names it."""
    verdict = queues.verdicts.get(key)
    if verdict is None or not verdict.expected:
        return False
    return not verdict.misses(queue_offset) and queue_offset not in {index for index, _, _ in verdict.wrong}


def _denied(record: Record, key: QueueKey, queue_offset: int) -> Iterator[Edit]:
    differing = [
        (field, str(stored), str(claimed))
        for field, stored, claimed in (
            ("topic", record.topic_name, key.topic), ("queue_id", record.queue_id, key.queue_id),
            ("queue_offset", record.queue_offset, queue_offset),
        )
        if stored != claimed
    ]
    if len(differing) != 1:
        return
    field, stored, told = differing[0]
    if field == "topic" and len(key.topic.encode()) != len(record.topic):
        return
    right = structs.replace(record, topic=key.topic.encode(), queue_id=key.queue_id, queue_offset=queue_offset)
    yield between("place", record, right, field, (stored, told), ((key, queue_offset),))


def _not_prepared(record: Record, place: Place) -> Iterator[Edit]:
    """The record without the bit that makes a half message of it; those of brokers have no number in a queue."""
    right = structs.replace(record, sys_flag=record.sys_flag ^ sysflag.TRANSACTION_PREPARED)
    yield between("place", record, right, "sys_flag", (f"{record.sys_flag:#x}", f"{right.sys_flag:#x}"), (place,))


def relocated(log: LogView, denied: Collection[Edit], *, memory: int) -> LogView:
    """The log as if each contradicted record said what all else says of it; `written` has these records.

    Its rows are copies, of which at most `memory` bytes are in memory.
    """
    columns = ColumnStore(memory)
    queues = list(log.queues)
    numbers = {key: number for number, key in enumerate(queues)}
    for item in denied:
        key = item.record.topic, item.record.queue_id
        if numbers.setdefault(key, len(queues)) == len(queues):
            queues.append(key)
    right = {item.start: row_of(item.record, numbers[item.record.topic, item.record.queue_id]) for item in denied}
    places = np.array(sorted(right), dtype=np.int64)
    scans = []
    for scan in log.files:
        scans.append(scan.copied([*_splits(scan, places, right, columns)]))
    changed = structs.replace(
        log, files=scans, queues=queues, damaged=[*log.damaged],
        written={item.start: item.record for item in denied},
    )
    changed.superseded, changed.tally = in_order(scans, len(queues))
    return changed


def _splits(
    scan: FileScan, places: np.ndarray, right: dict[int, tuple[np.ndarray, np.ndarray]], columns: ColumnStore
) -> Iterator[Split]:
    for split in scan.splits:
        rows, hashes = np.array(split.records), np.array(split.hashes)
        rows["bits"] &= np.uint16(~(BIT_STRAY | BIT_SUPERSEDED) & 0xFFFF)
        ends = None
        for at in np.flatnonzero(np.isin(rows["phy_offset"], places)).tolist():
            row, keys = right[int(rows["phy_offset"][at])]
            if ends is None:
                ends = np.cumsum(rows["hashes"].astype(np.int64))
            count = int(rows["hashes"][at])
            if keys.size == count:
                hashes[ends[at] - count : ends[at]] = keys
            row["hashes"] = count
            rows[at] = row[0]
        yield columns.keep(rows, hashes)
