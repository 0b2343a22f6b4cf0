"""Queues of which nothing is on disk and nothing is lost, put beside the rows of the log as they stand, many at a time.

It may only say yes: a queue that is not plain in every respect is built by `recover.derived.queues` alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from msgspec import Struct

from formats.consumequeue import CQ_UNIT
from formats.layout import Buffer
from formats.names import offset_to_name
from formats.native.queues import LEFT_OUT, NOT_PLAIN, put_blanks, put_plain
from formats.record.rows import EXPECTED
from recover.change.content import LazyContent, Spool, padded
from recover.change.model import Install, Step
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.derived.maker import Maker
from recover.derived.queues import (
    NO_EVIDENCE,
    Evidence,
    QueueBuilder,
    QueueCells,
    file_spans,
    queue_steps,
    repaired_steps,
)
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.derived_files import UNIT_SIZE
from recover.store.store import Store

_AT_ONCE = 80 << 20
"""Bytes of units that are made in one pass over the rows."""


class _Member(Struct, frozen=True):
    """A queue by its number, with what of its batch's units is its own, bytes [start, stop), from queue offset `first`
    on; its messages stand at the queue offsets `span`."""

    number: int
    span: range
    first: int
    start: int
    stop: int


_Batch = list[_Member]


def plain_queues(
    builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None
) -> Iterator[QueueCells]:
    """The plain queues among those wanted (None: all), as a broker would build them from the log alone."""
    for batch in _batches(builder, expectation, wanted):
        units, whole = _put(expectation, batch)
        for member in whole:
            cells = units[member.start : member.stop].view(CQ_UNIT.dtype)
            yield QueueCells(expectation.keys[member.number], member.first, cells)


def plain_steps(
    builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None, spool: Spool
) -> Iterator[tuple[QueueKey, list[Step]]]:
    """Each plain queue among those wanted (None: all), and the steps that make its files.

    Where the counts of the log prove which queues are plain, their units are made when the steps are carried out,
    beside the index; else they are made now, to see it.
    """
    if expectation.log.tally.bits & NOT_PLAIN:
        for queue in plain_queues(builder, expectation, wanted):
            yield queue.key, [*queue_steps(builder.store, queue, spool)]
        return
    made = _Made(expectation)
    for batch in _batches(builder, expectation, wanted):
        for member in batch:
            key = expectation.keys[member.number]
            yield key, [*_files(builder.store, key, member, partial(made.of, batch))]


def fresh_queues(
    builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None
) -> Iterator[QueueCells]:
    """Each wanted queue (None: all) that the log fills, built from the log alone; in any order."""
    done = set()
    for queue in plain_queues(builder, expectation, wanted):
        done.add(queue.key)
        yield queue
    rest = {*expectation.queues()} - done
    for key, rows in expectation.grouped(rest if wanted is None else rest & wanted):
        yield builder.fresh(key, rows)


def _batches(builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None) -> Iterator[_Batch]:
    """The queues whose counts tell that they may be plain, so many together as have at most _AT_ONCE units, or one."""
    batch: _Batch = []
    room = 0
    for number, key in enumerate(expectation.keys):
        if (wanted is not None and key not in wanted) or not expectation.counts[number]:
            continue
        span = expectation.span(number)
        if span is None or not _is_free(builder.store, key):
            continue
        first = builder.first_in_file(span.start)
        size = (span.stop - first) * UNIT_SIZE
        if batch and room + size > _AT_ONCE:
            yield batch
            batch, room = [], 0
        batch.append(_Member(number, span, first, room, room + size))
        room += size
    if batch:
        yield batch


def _is_free(store: Store, key: QueueKey) -> bool:
    """Whether no folder of the queue is there."""
    place = f"{key.topic}/{key.queue_id}"
    return not any((folder / place).exists() for folder in (store.consumequeue_dir, store.consumequeue_ext_dir))


class _Made:
    """Units of batches, made for who asks first; those of one batch at a time are kept."""

    def __init__(self, expectation: Expectation) -> None:
        self._expectation = expectation
        self._batch: _Batch = []
        self._units: Rows = np.empty(0, dtype=np.uint8)
        self._lock = threading.Lock()

    def of(self, batch: _Batch) -> Rows:
        """The units of a batch. `RuntimeError` when the rows are no longer what was counted."""
        with self._lock:
            if self._batch is not batch:
                units, whole = _put(self._expectation, batch)
                if whole != batch:
                    raise RuntimeError("the rows of the log are not as they were counted")
                self._batch, self._units = batch, units
            return self._units


def _files(store: Store, key: QueueKey, member: _Member, units: Callable[[], Rows]) -> Iterator[Step]:
    """A step for each file of a queue of which nothing is on disk; `units` are those of its batch."""
    folder, size = store.consumequeue_dir / key.topic / str(key.queue_id), store.queue_file_size
    for offset, start, stop in file_spans(member.first, member.stop - member.start, size):
        content = LazyContent(
            size, partial(_content, units, member.start + start, member.start + stop, size), allocated=stop - start
        )
        yield Install(store.relative(folder / offset_to_name(offset)), content)


def _content(units: Callable[[], Rows], start: int, stop: int, size: int) -> Iterator[Buffer]:
    return padded(units()[start:stop].data, size)


def _put(expectation: Expectation, batch: _Batch) -> tuple[Rows, _Batch]:
    """The units of a batch (uint8), and which of its queues are plain, as far as their rows show."""
    units = np.empty(batch[-1].stop, dtype=np.uint8)
    at = np.full(len(expectation.keys), LEFT_OUT, dtype=np.int64)
    stops, due = at.copy(), at.copy()
    for member in batch:
        blanks = member.span.start - member.first
        put_blanks(units, member.start, blanks)
        at[member.number] = member.start + blanks * UNIT_SIZE
        stops[member.number], due[member.number] = member.stop, member.span.start
    for split in expectation.log.splits():
        put_plain(np.asarray(split.records), at, stops, due, units)
    return units, [member for member in batch if at[member.number] == member.stop]


def consumequeue_steps(
    store: Store, log: LogView, expectation: Expectation, queues: ConsumeQueueReport, spool: Spool,
    *, visible: bool = False, wanted: set[QueueKey] | None = None, evidence: Evidence = NO_EVIDENCE,
    maker: Maker | None = None,
) -> Iterator[Step]:
    """Steps that put every unsound queue right (of `wanted`, if given); units that are `evidence` stay.

    `maker` makes those that the log fills, if given.
    """
    unsound = {key for key, verdict in queues.verdicts.items() if not verdict.sound}
    if wanted is not None:
        unsound &= wanted
    builder = QueueBuilder(
        store, queues.delays, log.min_offset, log.log_end, visible=visible, evidence=evidence,
        bridge=log.stand_in(),
    )
    done = set()
    for key, steps in (
        maker.queues(builder, expectation, unsound, fresh=False) if maker is not None
        else _filled(builder, expectation, unsound, spool)
    ):
        done.add(key)
        yield from steps
    for key in sorted(unsound - done, key=lambda k: (k.topic, k.queue_id)):
        yield from repaired_steps(builder, key, np.empty(0, dtype=EXPECTED), spool)


def _filled(
    builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey], spool: Spool
) -> Iterator[tuple[QueueKey, list[Step]]]:
    """Each wanted queue that the log fills, in the order of their numbers, and the steps that put it right."""
    found = dict(plain_steps(builder, expectation, wanted, spool))
    for key, rows in expectation.grouped(wanted - found.keys()):
        found[key] = [*repaired_steps(builder, key, rows, spool)]
    yield from ((key, found[key]) for key in expectation.keys if key in found)
