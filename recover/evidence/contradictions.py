"""Intact records that their queue contradicts: a topic, queue id, queue offset or property that no checksum covers.

A unit still names the record's place and length, the places beside it are right, and one changed
field explains everything: then that field was damaged, not the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from msgspec import Struct, structs

from formats.commitlog import Record
from formats.consumequeue import CQ_UNIT
from formats.errors import FormatError
from formats.kernels.queue import RIGHT
from formats.record_columns import BIT_GHOST, BIT_STRAY, BIT_SUPERSEDED
from recover.evidence.contradicted_carrier import Place, changed_property, restored_carrier
from recover.evidence.expected import Expectation, QueueKey, lmq_targets
from recover.evidence.queue_verdict import ConsumeQueueReport
from recover.evidence.stray_places import StrayPlace, Unit
from recover.files.topics import LMQ_PREFIX
from recover.memory.columns import Rows
from recover.scan.log import LogView
from recover.scan.log_reader import LogReader

#: Queue, queue offset and size that a unit says of a record.
_Claim = tuple[QueueKey, int, int]

_RUN = 3
"""Of so many wrong units beside one another each may be right, where their records are in another queue, and as many
in theirs are right; those of a queue that is shifted or stale itself name more, or its own records."""

_LIMIT = 10_000
_CARRIER_LIMIT = 100  # each is tried with every bit of its properties changed


class Contradiction(Struct, frozen=True):
    """The record at `phy_offset` says `field` = `stored`; queues say that it is the message at `places`.

    `record` is what is stored, `right` the record with that field as the queues have it; its property CRC,
    if there is one, is still that of the stored one.
    """

    phy_offset: int
    size: int
    places: tuple[Place, ...]
    field: str
    stored: str
    record: Record
    right: Record

    @property
    def key(self) -> QueueKey:
        """The first queue."""
        return self.places[0][0]

    @property
    def queue_offset(self) -> int:
        """The place in the first queue."""
        return self.places[0][1]


def contradictions(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport, placed: Collection[StrayPlace]
) -> list[Contradiction]:
    """Every record that queue units claim for a place that one field of it denies, ascending by phy_offset.

    `placed` are records whose place shows otherwise, which counts where no unit speaks for another.
    """
    claims = _Claims(queues, placed)
    found: list[Contradiction] = []
    with LogReader(log.queue) as reader:
        for row in _rows_at(log, claims.places):
            phy_offset, size = int(row["phy_offset"]), int(row["size"])
            own = claims.of(phy_offset)
            if any(claim[2] != size for claim in own):
                continue
            try:
                record = reader.record(phy_offset, size)
            except (FormatError, OSError):
                continue
            if phy_offset in claims.carried:
                found += _misses_queues(record, own, expectation, queues)
            elif len(own) == 1 and not _is_right(expectation, queues, row, own[0][0]):
                found += (
                    item for item in _denied(record, *own[0][:2])
                    if not (own[0] in claims.beside_others and item.field == "queue_offset")
                    and not _is_shifted(item, expectation)
                )
    return found


class _Claims:
    """What is said of records, by phy_offset: by units of ordinary queues and by what else gives a place, and by units
    of LMQ queues.

    `beside_others` are those of units that stand beside other wrong ones.
    """

    def __init__(self, queues: ConsumeQueueReport, placed: Collection[StrayPlace]) -> None:
        self.plain: dict[int, list[_Claim]] = {}
        self.carried: dict[int, list[_Claim]] = {}
        self.beside_others: set[_Claim] = set()
        places = {(item.key, item.queue_offset) for item in placed if item.named}
        for key, verdict in queues.verdicts.items():
            for run in _runs([unit for unit in verdict.wrong if (key, unit[0]) not in places]):
                if len(run) == 1 or len(run) <= min(_RUN, verdict.counts.get(RIGHT, 0)):
                    self._take(key, run)
        by_units = frozenset(self.plain)
        for item in placed:
            if item.named or item.phy_offset not in by_units:
                self.plain.setdefault(item.phy_offset, []).append((item.key, item.queue_offset, item.size))
        few = len(self.carried) <= _CARRIER_LIMIT
        self.carried = {at: own for at, own in self.carried.items() if few and at not in self.plain}
        if len(self.plain) > _LIMIT:
            self.plain, self.carried = {}, {}

    def _take(self, key: QueueKey, run: list[Unit]) -> None:
        is_lmq = key.topic.startswith(LMQ_PREFIX)
        for queue_offset, phy_offset, size in run if len(run) == 1 or not is_lmq else ():
            claim = (key, queue_offset, size)
            (self.carried if is_lmq else self.plain).setdefault(phy_offset, []).append(claim)
            if len(run) > 1:
                self.beside_others.add(claim)

    @property
    def places(self) -> Rows:
        """The phy offsets of all these records (int64), ascending."""
        return np.array(sorted({*self.plain, *self.carried}), dtype=np.int64)

    def of(self, phy_offset: int) -> list[_Claim]:
        """The claims of one record."""
        return list(dict.fromkeys(self.plain.get(phy_offset) or self.carried[phy_offset]))


def _runs(units: list[Unit]) -> Iterator[list[Unit]]:
    """Units of a queue that are beside one another."""
    run: list[Unit] = []
    for unit in units:
        if run and unit[0] != run[-1][0] + 1:
            yield run
            run = []
        run.append(unit)
    if run:
        yield run


def _misses_queues(
    record: Record, claims: list[_Claim], expectation: Expectation, queues: ConsumeQueueReport
) -> Iterator[Contradiction]:
    """The record as one that fills all LMQ queues of which units name it, if one bit explains that it does not."""
    places = tuple((key, queue_offset) for key, queue_offset, _ in claims)
    named = lmq_targets(record)
    unknown = [place for place in named if place[0] not in queues.verdicts]
    rows = expectation.lmq_rows[expectation.lmq_rows["phy_offset"] == record.phy_offset]
    # a place that a later record names as well is that one's
    its_own = {(expectation.keys[row["queue"]], int(row["queue_offset"])) for row in rows}
    stands = [place for place in named if place in its_own and _stands(queues, *place)]
    right = restored_carrier(record, places, stands, unknown)
    if right is not None:
        field, stored = changed_property(record, right)
        yield Contradiction(record.phy_offset, record.total_size, places, field, stored, record, right)


def _is_shifted(item: Contradiction, expectation: Expectation) -> bool:
    """True when the unit stands whole files away from its record's place, and alone: then its file has a wrong name."""
    file_cells = expectation.topics.store.queue_file_size // CQ_UNIT.size
    if item.field != "queue_offset" or not file_cells or (item.queue_offset - item.record.queue_offset) % file_cells:
        return False
    beside = (item.queue_offset - 1, item.queue_offset + 1)
    return not any(np.isin(beside, rows["queue_offset"]).any() for _, rows in expectation.grouped({item.key}))


def _rows_at(log: LogView, places: Rows) -> Iterator[np.void]:
    for split in log.splits() if places.size else ():
        rows = split.records[(split.records["bits"] & BIT_GHOST) == 0]
        yield from rows[np.isin(rows["phy_offset"], places)]


def _is_right(expectation: Expectation, queues: ConsumeQueueReport, row: np.void, claimed: QueueKey) -> bool:
    """True when the queue position that the record itself names holds it."""
    bits = int(row["bits"])
    key = expectation.keys[int(row["queue"])]
    if bits & BIT_STRAY:
        return False
    if bits & BIT_SUPERSEDED:
        # a later record holds that position; a unit of another queue shows that this one was never in it
        return key == claimed
    return _stands(queues, key, int(row["queue_offset"]))


def _stands(queues: ConsumeQueueReport, key: QueueKey, queue_offset: int) -> bool:
    """True when a message is expected at this place, and a unit names it."""
    verdict = queues.verdicts.get(key)
    if verdict is None or not verdict.expected:
        return False
    return not verdict.misses(queue_offset) and queue_offset not in {index for index, _, _ in verdict.wrong}


def _denied(record: Record, key: QueueKey, queue_offset: int) -> Iterator[Contradiction]:
    differing = [
        (field, str(stored))
        for field, stored, claimed in (
            ("topic", record.topic_name, key.topic), ("queue_id", record.queue_id, key.queue_id),
            ("queue_offset", record.queue_offset, queue_offset),
        )
        if stored != claimed
    ]
    if len(differing) != 1:
        return
    field, stored = differing[0]
    if field == "topic" and len(key.topic.encode()) != len(record.topic):
        return
    right = structs.replace(record, topic=key.topic.encode(), queue_id=key.queue_id, queue_offset=queue_offset)
    yield Contradiction(record.phy_offset, record.total_size, ((key, queue_offset),), field, stored, record, right)
