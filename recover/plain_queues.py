"""Queues of which nothing is on disk and nothing is lost, put beside the rows of the log as they stand, many at a time.

It may only say yes: a queue that is not plain in every respect is built by `recover.rebuild_consumequeue` alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from formats.consumequeue import CQ_UNIT
from formats.queue_follow_kernels import LEFT_OUT
from formats.queue_put_kernels import put_blanks, put_plain
from recover.expected import Expectation, QueueKey
from recover.queue_files import UNIT_SIZE
from recover.rebuild_consumequeue import QueueBuilder, QueueCells
from recover.store import Store

_AT_ONCE = 80 << 20
"""Bytes of units that are made in one pass over the rows."""


def plain_queues(
    builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None
) -> Iterator[QueueCells]:
    """The plain queues among those wanted (None: all), as a broker would build them from the log alone."""
    if builder.evidence.records:
        return
    batch: list[tuple[int, range, int]] = []
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
            yield from _put(expectation, batch, room)
            batch, room = [], 0
        batch.append((number, span, first))
        room += size
    if batch:
        yield from _put(expectation, batch, room)


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


def _is_free(store: Store, key: QueueKey) -> bool:
    """Whether no folder of the queue is there."""
    place = f"{key.topic}/{key.queue_id}"
    return not any((folder / place).exists() for folder in (store.consumequeue_dir, store.consumequeue_ext_dir))


def _put(expectation: Expectation, batch: list[tuple[int, range, int]], room: int) -> Iterator[QueueCells]:
    units = np.empty(room, dtype=np.uint8)
    at = np.full(len(expectation.keys), LEFT_OUT, dtype=np.int64)
    stops, due, begins = at.copy(), at.copy(), []
    start = 0
    for number, span, first in batch:
        begins.append(start)
        put_blanks(units, start, span.start - first)
        at[number] = start + (span.start - first) * UNIT_SIZE
        due[number] = span.start
        start = stops[number] = start + (span.stop - first) * UNIT_SIZE
    for split in expectation.log.splits():
        put_plain(np.asarray(split.records), at, stops, due, units)
    for begin, (number, _, first) in zip(begins, batch, strict=True):
        if at[number] == stops[number]:
            yield QueueCells(expectation.keys[number], first, units[begin : stops[number]].view(CQ_UNIT.dtype))
