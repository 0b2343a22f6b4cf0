"""What a consume queue should hold, computed from the log: one position a message, grouped by queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field

from formats import properties as props
from formats.basics import FormatError, is_safe_directory_name
from formats.consumequeue import CqUnit
from formats.native.rows import group_rows, numbered
from formats.record import Record
from formats.record.rows import BIT_LMQ, BIT_MARKER, BIT_STALE, BIT_SUPERSEDED, EXPECTED, FILLER_TOPIC
from recover.broker.settings import DelayTable
from recover.change.content import Writes
from recover.change.model import Step
from recover.findings.model import Finding
from recover.log.generations import batches, misnumbered_among
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.store.columns import Rows, Split, ask, scratch_zeros
from recover.store.config_files import LMQ_PREFIX, Topics, topic_text
from recover.store.derived_files import unit_of
from recover.store.store import Store
from recover.store.unread import rocksdb_queue_folders

if TYPE_CHECKING:
    from recover.derived.index_rebuild import FileBuilder, RebuiltIndexFile, Target
    from recover.derived.queues import QueueBuilder


_BATCH_ROWS = 1_500_000

NOTHING, PRE_BLANK_UNIT, EXPIRED, BEYOND_LOG, LOST, RIGHT, WRONG = range(7)
"""Classes of a cell of a queue."""


class QueueKey(NamedTuple):
    """One consume queue."""

    topic: str
    queue_id: int


class Expectation(Struct):
    """The queues that a log fills. Rows name a queue by its index in `keys`; LMQ queues follow those of the log.

    `skipped` (bool array, one a queue of the log): the queue's own records fill nothing, see `deleted` and `unsafe`.
    """

    log: LogView
    topics: Topics
    keys: list[QueueKey]
    counts: Rows
    lmq_rows: Rows
    deleted: list[str]
    unsafe: list[str]
    skipped: Rows

    def queues(self) -> dict[QueueKey, int]:
        """Return each queue with at least one expected position, and their number."""
        return {key: int(count) for key, count in zip(self.keys, self.counts, strict=True) if count}

    def tally_of(self, number: int) -> Rows | None:
        """Return the QUEUE_TALLY of a queue by its index; None if it does not describe what the queue should hold."""
        if not 0 <= number < self.skipped.size:
            return None
        tally: Rows = self.log.tally.queues[number]
        return tally if tally["positions"] == self.counts[number] > 0 else None

    def grouped(self, wanted: set[QueueKey] | None = None) -> Iterator[tuple[QueueKey, Rows]]:
        """Yield each wanted queue with its EXPECTED rows by queue offset; they are valid until the next queue."""
        counts = self.counts.tolist()
        yield from self.of(i for i, key in enumerate(self.keys) if counts[i] and (wanted is None or key in wanted))

    def of(self, numbers: Iterable[int]) -> Iterator[tuple[QueueKey, Rows]]:
        """Like `grouped`, for the queues of these indexes, which ascend; each has at least one position."""
        room = np.empty(0, dtype=EXPECTED)
        for batch in batches(numbers, self.counts, _BATCH_ROWS):
            starts = np.zeros(len(self.keys), dtype=np.int64)
            stops = np.zeros(len(self.keys), dtype=np.int64)
            stops[batch] = np.cumsum(self.counts[batch])
            starts[batch] = stops[batch] - self.counts[batch]
            if stops[batch[-1]] > room.size:
                # one buffer for all: allocations between batches would fragment the space of the next
                room = scratch_zeros(int(stops[batch[-1]]), EXPECTED)
            self._fill(batch, starts, stops, room)
            for number in batch:
                part = room[starts[number] : stops[number]]
                offsets = part["queue_offset"]
                if not (offsets[1:] > offsets[:-1]).all():
                    part = part[np.lexsort((part["phy_offset"], offsets))]
                yield self.keys[number], part

    def _fill(self, batch: list[int], starts: Rows, stops: Rows, rows: Rows) -> None:
        """Write the positions of some queues into `rows`, each queue between its start and its stop."""
        wanted = np.zeros(len(self.keys), dtype=np.bool_)
        wanted[batch] = True
        lmq = self.lmq_rows[wanted[self.lmq_rows["queue"]]]  # ascending by queue
        wanted[: self.skipped.size] &= ~self.skipped
        places = starts.copy()
        elsewhere = [split for split in self.log.splits() if not split.is_here and wanted[split.numbers].any()]
        found = dict(zip(elsewhere, ask([(split, partial(placed, wanted[split.numbers])) for split in elsewhere]),
                         strict=True))
        for split in self.log.splits():
            if split in found:
                own = found[split]
                in_queue = np.arange(own.size) - np.searchsorted(own["queue"], own["queue"])
                own["queue"] = split.numbers[own["queue"]]
                rows[places[own["queue"]] + in_queue] = own
                places += np.bincount(own["queue"], minlength=places.size)
            elif split.is_here:
                fits = group_rows(np.asarray(split.records), wanted, places, stops, rows)
                assert fits, "the rows were counted by the same rule"
        in_queue = np.arange(lmq.size) - np.searchsorted(lmq["queue"], lmq["queue"])
        rows[places[lmq["queue"]] + in_queue] = lmq


def placed(wanted: Rows, split: Split) -> Rows:
    """Return the positions (EXPECTED) of a split in the `wanted` queues (bool array), queue by queue."""
    records = np.ascontiguousarray(split.records)
    stops = np.cumsum(np.where(wanted, np.bincount(records["queue"], minlength=wanted.size), 0))
    starts = np.r_[0, stops[:-1]]
    places, rows = starts.copy(), np.empty(int(stops[-1]) if stops.size else 0, dtype=EXPECTED)
    fits = group_rows(records, wanted, places, stops, rows)
    assert fits, "every row has room"
    if np.array_equal(places, stops):
        return rows
    return rows[np.arange(rows.size) < np.repeat(places, stops - starts)]


def expect(log: LogView, topics: Topics) -> Expectation:
    """Return the queues and positions that the intact records of `log` should fill (docs/commands/verify.md)."""
    names = [topic_text(topic) for topic, _ in log.queues]
    known = [name for name in names if not FILLER_TOPIC.startswith(name)]
    deleted = deleted_topics(log, topics, known)
    unsafe = sorted({name for name in names if not is_safe_directory_name(name)})
    skip_names = set(deleted) | set(unsafe)
    skip = np.array([name in skip_names for name in names], dtype=bool)
    batch = np.array([name in topics.batch for name in names], dtype=bool)
    keys = [QueueKey(name, queue_id) for name, (_, queue_id) in zip(names, log.queues, strict=True)]
    counts = np.where(skip | batch, 0, log.tally.positions)
    lmq_rows, gone = _lmq_rows(log, topics, keys)
    deleted = sorted({*deleted, *gone})
    if lmq_rows.size or len(keys) > counts.size:
        counts = np.concatenate([counts, np.zeros(len(keys) - counts.size, dtype=np.int64)])
        counts += np.bincount(lmq_rows["queue"], minlength=len(keys))
    return Expectation(log, topics, keys, counts, lmq_rows, deleted, unsafe, skip | batch)


def deleted_topics(log: LogView, topics: Topics, names: Iterable[str]) -> list[str]:
    """Return which of these topics of the log were deleted (see `Topics.deleted`), sorted."""
    absent = topics.absent(names)
    if not absent:
        return []
    numbers = [number for number, (topic, _) in enumerate(log.queues) if topic_text(topic) in absent]
    last = np.zeros(len(log.queues), dtype=np.int64)
    splits = [*log.splits_of(numbers)]
    for split, times in zip(splits, ask([(split, _last_times) for split in splits]), strict=True):
        own = split.numbering(times.size)
        last[own] = np.maximum(last[own], times)
    times_of: dict[str, int] = defaultdict(int)
    for number in numbers:
        name = topic_text(log.queues[number][0])
        times_of[name] = max(times_of[name], int(last[number]))
    return topics.deleted(times_of)


def _last_times(split: Split) -> Rows:
    """Return the last store time (ms) of each queue of a split, by its number there."""
    rows = split.records
    times = np.zeros(max(split.numbers.size, int(rows["queue"].max(initial=-1)) + 1), dtype=np.int64)
    np.maximum.at(times, rows["queue"], rows["store_timestamp"])
    return times


def _lmq_rows(log: LogView, topics: Topics, keys: list[QueueKey]) -> tuple[Rows, set[str]]:
    """Return positions in LMQ queues, and those that were deleted; queues that only they fill are added to `keys`."""
    if not log.tally.bits & BIT_LMQ:
        return np.empty(0, dtype=EXPECTED), set()
    numbers = {key: number for number, key in enumerate(keys)}
    parts: list[tuple[Any, ...]] = []
    last: dict[str, int] = defaultdict(int)
    first: dict[str, int] = {}
    with LogReader(log.queue) as reader:
        for rows in ask([(split, _carriers) for split in log.splits() if split.has(BIT_LMQ)]):
            for row in rows:
                record = log.written.get(int(row["phy_offset"])) or _reread(reader, row)
                for key, queue_offset in lmq_targets(record):
                    if not is_safe_directory_name(key.topic):
                        continue
                    last[key.topic] = max(last[key.topic], int(row["store_timestamp"]))
                    first.setdefault(key.topic, int(row["phy_offset"]))
                    number = numbers.setdefault(key, len(numbers))
                    if number == len(keys):
                        keys.append(key)
                    parts.append((queue_offset, row["phy_offset"], row["tags_code"], row["store_timestamp"],
                                  row["size"], number, row["bits"]))
    # no table names LMQ queues: one that dispatch did not reach has no folder yet
    deleted = {topic for topic in topics.deleted(last) if first[topic] < topics.dispatched_to}
    # a folder that cannot be listed has no queue; a database beside folders has the queues without one
    elsewhere = topics.absent(last) if topics.folders and rocksdb_queue_folders(topics.store) else frozenset()
    gone = np.array([key.topic in deleted | elsewhere for key in keys])
    rows = np.array(parts, dtype=EXPECTED)
    return _one_each(rows[~gone[rows["queue"]]], keys, topics.store), deleted - elsewhere


def _carriers(split: Split) -> Rows:
    """Return the rows of a split that name LMQ queues and count, or counted, in their own."""
    rows = split.records[(split.records["bits"] & (BIT_LMQ | BIT_STALE)) == BIT_LMQ]
    return np.ascontiguousarray(rows[numbered(rows)])


def _one_each(rows: Rows, keys: list[QueueKey], store: Store) -> Rows:
    """Keep, of several records that claim one position, the one written last of those that may hold it."""
    rows = rows[np.lexsort((rows["phy_offset"], rows["queue"]))]
    falls = (np.diff(rows["queue"]) == 0) & (np.diff(rows["queue_offset"]) <= 0)
    gives_way = np.zeros(rows.size, dtype=np.bool_)
    for queue in np.unique(rows["queue"][1:][falls]).tolist():
        own = slice(*np.searchsorted(rows["queue"], [queue, queue + 1]).tolist())
        gives_way[own] = _gives_way(rows[own], partial(unit_of, store, *keys[queue]))
    rows = rows[~gives_way]
    rows = rows[np.lexsort((rows["phy_offset"], rows["queue_offset"], rows["queue"]))]
    last = np.r_[(np.diff(rows["queue"]) != 0) | (np.diff(rows["queue_offset"]) != 0), True]
    return rows[last[: rows.size]]


def _gives_way(own: Rows, unit_at: Callable[[int], CqUnit | None]) -> Rows:
    """Which records of an LMQ queue, in log order, do not hold the position that they claim (bool array).

    1. Those that are superseded in the queue of their topic, unless the live ones are all in order with them.
    2. Of several that claim one position, those out of the order of the queue which no unit there names: no checksum
       covers the property with the positions, and a number that is cut short is another message's.
    """
    offsets = own["queue_offset"]
    older = (own["bits"] & BIT_SUPERSEDED) != 0
    before = np.maximum.accumulate(np.where(older, -1, offsets))
    after = np.minimum.accumulate(np.where(older, np.iinfo(np.int64).max, offsets)[::-1])[::-1]
    gives_way = older & ((before >= offsets) | (after <= offsets))
    left = np.flatnonzero(~gives_way)
    _, which, claims = np.unique(offsets[left], return_inverse=True, return_counts=True)
    strays = misnumbered_among(offsets[left], own["store_timestamp"][left]) & (claims[which] > 1)
    for at in left[strays].tolist():
        unit = unit_at(int(offsets[at]))
        gives_way[at] = unit is None or unit.phy_offset != own["phy_offset"][at]
    return np.asarray(gives_way)


def _reread(reader: LogReader, row: Any) -> Record | None:
    try:
        return reader.record(int(row["phy_offset"]), int(row["size"]))
    except (FormatError, OSError):
        return None


def lmq_targets(record: Record | None) -> list[tuple[QueueKey, int]]:
    """Return queue and queue offset of each LMQ queue that a multi-dispatch record names."""
    if record is None:
        return []
    return [(QueueKey(queue, 0 if queue.startswith(LMQ_PREFIX) else record.queue_id), offset)
            for queue, offset in props.multi_dispatch(record.property_map())]


def is_lost(rows: Rows) -> Rows:
    """Which positions are held by a marker: their message is lost (bool array)."""
    return np.asarray((rows["bits"] & BIT_MARKER) != 0)


class QueueVerdict(Struct):
    """The result of checking one queue. `end`: queue offset after its last unit; `min_index`: queue offset at which its
    first file starts; `sound` is false if a rebuild would change it. `lost`, `beyond` and `wrong` list (queue offset,
    phy_offset, size) of units in damaged ranges, past the log's end, and naming no right record; `wrong_tags` are the
    tags codes of the last. `missing_offsets` (int64, ascending): positions without a unit. `live`: where the files hold
    exactly the log's units, one a queue offset from there to `end`; None where cells were judged one by one."""

    key: QueueKey
    units: int = 0
    expected: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    missing: int = 0
    end: int = 0
    min_index: int = 0
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    beyond: list[tuple[int, int, int]] = field(default_factory=list)
    wrong: list[tuple[int, int, int]] = field(default_factory=list)
    wrong_tags: list[int] = field(default_factory=list)
    missing_offsets: Rows = np.empty(0, dtype=np.int64)
    live: int | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing in the queue needs to change."""
        return all(item.severity == "info" for item in self.findings)

    def misses(self, queue_offset: int) -> bool:
        """Whether a unit should be at this position and is not."""
        missing = self.missing_offsets
        at = int(np.searchsorted(missing, queue_offset))
        return at < missing.size and bool(missing[at] == queue_offset)


class ConsumeQueueReport(Struct):
    """The results of all queues. Counts are units (cells in use) and expected positions."""

    queues: int
    verdicts: dict[QueueKey, QueueVerdict]
    delays: DelayTable
    findings: list[Finding]

    def total(self, kind: int) -> int:
        """Return the number of units of one class over all queues."""
        return sum(v.counts.get(kind, 0) for v in self.verdicts.values())

    def json(self) -> dict[str, int]:
        """The `consumequeue` object of the verify document."""
        verdicts = self.verdicts.values()
        return {
            "queues": self.queues, "units": sum(verdict.units for verdict in verdicts),
            "expected": sum(verdict.expected for verdict in verdicts),
            "missing": sum(verdict.missing for verdict in verdicts), "right": self.total(RIGHT),
            "wrong": self.total(WRONG), "beyond_log": self.total(BEYOND_LOG), "expired": self.total(EXPIRED),
            "lost": self.total(LOST), "holes": self.total(PRE_BLANK_UNIT),
        }


# --- Derived files built elsewhere: by an engine whose executors keep the scan. --------------------------------------


class Producer(Writes, Protocol):
    """Builds the derived files of one log elsewhere."""

    def queues(
        self, builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None, *, fresh: bool
    ) -> Iterator[tuple[QueueKey, list[Step]]]:
        """Yield each wanted queue that the log fills with the steps that repair it; `fresh`: install all of it."""

    def index_files(
        self, builder: FileBuilder, targets: Iterable[Target], files: Iterable[RebuiltIndexFile]
    ) -> Iterator[RebuiltIndexFile]:
        """Yield the files of the targets, with content built elsewhere."""
