"""Intact records that their queue contradicts: a topic, queue id or queue offset that no checksum covers.

A unit still names the record's place and length, the places beside it are right, and one changed
field explains everything: then that field was damaged, not the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formats.commitlog import Record
from formats.consumequeue import CQ_UNIT
from formats.errors import FormatError
from formats.record_columns import BIT_GHOST, BIT_STRAY
from recover.columns import Rows
from recover.expected import Expectation, QueueKey
from recover.log import LogView
from recover.log_reader import LogReader
from recover.topics import LMQ_PREFIX, topic_text
from recover.verify.consumequeue import ConsumeQueueReport

_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The record at `phy_offset` says `field` = `stored`; its queue says `key` and `queue_offset`."""

    phy_offset: int
    size: int
    key: QueueKey
    queue_offset: int
    field: str
    stored: str
    record: Record


def contradictions(log: LogView, expectation: Expectation, queues: ConsumeQueueReport) -> list[Contradiction]:
    """Every record that exactly one queue position claims and one field denies, ascending by phy_offset."""
    claims: dict[int, list[tuple[QueueKey, int, int]]] = {}
    for key, verdict in queues.verdicts.items():
        wrong = {queue_offset for queue_offset, _, _ in verdict.wrong}
        for queue_offset, phy_offset, size in verdict.wrong:
            # beside another wrong unit the queue itself is what is shifted or stale
            if not {queue_offset - 1, queue_offset + 1} & wrong and not key.topic.startswith(LMQ_PREFIX):
                claims.setdefault(phy_offset, []).append((key, queue_offset, size))
    for phy_offset, claim in _places_of_strays(log, expectation):
        claims.setdefault(phy_offset, []).append(claim)
    if not claims or len(claims) > _LIMIT:
        return []
    file_cells = expectation.topics.store.queue_file_size // CQ_UNIT.size
    found = []
    with LogReader(log.queue) as reader:
        for row in _rows_at(log, np.array(sorted(claims))):
            own = list(dict.fromkeys(claims[int(row["phy_offset"])]))
            if len(own) != 1 or own[0][2] != int(row["size"]) or _is_right(log, queues, row):
                continue
            try:
                record = reader.record(int(row["phy_offset"]), int(row["size"]))
            except (FormatError, OSError):
                continue
            found += [
                item for item in _denied(record, *own[0][:2])
                if item.field != "queue_offset" or not _is_shifted(item, expectation, file_cells)
            ]
    return found


def _is_shifted(item: Contradiction, expectation: Expectation, file_cells: int) -> bool:
    """True when the unit stands whole files away from its record's place, and alone: then its file has a wrong name."""
    if not file_cells or (item.queue_offset - item.record.queue_offset) % file_cells:
        return False
    beside = (item.queue_offset - 1, item.queue_offset + 1)
    return not any(np.isin(beside, rows["queue_offset"]).any() for _, rows in expectation.grouped({item.key}))


def _places_of_strays(log: LogView, expectation: Expectation) -> Iterator[tuple[int, tuple[QueueKey, int, int]]]:
    """Stray records whose neighbours in the queue leave room for exactly one queue offset."""
    strays: dict[QueueKey, list[np.void]] = {}
    for split in log.splits():
        for row in split.records[(split.records["bits"] & BIT_STRAY) != 0]:
            topic, queue_id = log.queues[int(row["queue"])]
            strays.setdefault(QueueKey(topic_text(topic), queue_id), []).append(row)
    for key, rows in expectation.grouped(set(strays)):
        for stray in strays[key]:
            at = int(np.searchsorted(rows["phy_offset"], stray["phy_offset"]))
            if 0 < at < rows.size and rows["queue_offset"][at] - rows["queue_offset"][at - 1] == 2:
                place = int(rows["queue_offset"][at]) - 1
                yield int(stray["phy_offset"]), (key, place, int(stray["size"]))


def _rows_at(log: LogView, places: Rows) -> Iterator[np.void]:
    for split in log.splits():
        rows = split.records[(split.records["bits"] & BIT_GHOST) == 0]
        yield from rows[np.isin(rows["phy_offset"], places)]


def _is_right(log: LogView, queues: ConsumeQueueReport, row: np.void) -> bool:
    """True when the queue position that the record itself names holds it."""
    if int(row["bits"]) & BIT_STRAY:
        return False
    topic, queue_id = log.queues[int(row["queue"])]
    verdict = queues.verdicts.get(QueueKey(topic_text(topic), queue_id))
    if verdict is None or not verdict.expected:
        return False
    queue_offset = int(row["queue_offset"])
    at = int(np.searchsorted(verdict.missing_offsets, queue_offset))
    missing = at < verdict.missing_offsets.size and verdict.missing_offsets[at] == queue_offset
    return not missing and queue_offset not in {index for index, _, _ in verdict.wrong}


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
    yield Contradiction(record.phy_offset, record.total_size, key, queue_offset, field, stored, record)
