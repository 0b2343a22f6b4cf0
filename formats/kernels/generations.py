"""Compiled looks at the queues of rows in log order: where each stands, and which rows it has."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import BOOL, INT, Array, kernel, part
from formats.record_columns import BIT_FILLER, EXPECTED, NO_PLACE, RECORD
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT

_NUMBERS = Array(np.int64)
_NUMBERS_OUT = Array(np.int64, out=True)


@part
def is_numbered(sys_flag: int, bits: int) -> bool:
    """Whether the queue offset of such a row counts in its queue: ordinary and committed messages, no filler."""
    kind = sys_flag & TRANSACTION
    return kind in (TRANSACTION_NOT, TRANSACTION_COMMIT) and bits & BIT_FILLER == 0


@kernel(records=Array(RECORD), last_offset=_NUMBERS_OUT, reached=_NUMBERS_OUT, returns=None)
def note_last(records: Any, last_offset: Any, reached: Any) -> None:
    """Put the queue offset of each queue's last numbered row into `last_offset` (int64, one a queue).

    `reached` (the same) is how far the queue has come for certain: a row that leaps ahead may have a wrong number, and
    counts once the next one follows it.
    """
    for row in range(records.size):
        record = records[row]
        if is_numbered(record.sys_flag, record.bits):
            before = record.queue_offset - 1
            if before <= reached[record.queue] or before == last_offset[record.queue]:
                reached[record.queue] = record.queue_offset
            last_offset[record.queue] = record.queue_offset


@kernel(
    records=Array(RECORD), first=INT, wanted=Array(np.bool_), next_place=_NUMBERS_OUT, stops=_NUMBERS,
    order=_NUMBERS_OUT, returns=BOOL,
)
def order_rows(records: Any, first: int, wanted: Any, next_place: Any, stops: Any, order: Any) -> bool:
    """Note where the live rows are that have a position in a wanted queue (bool, one a queue), queue by queue.

    Rows are numbered in log order, the first of `records` is `first`. `next_place` (int64, one a queue) says where in
    `order` (int64) the number of a queue's next row goes, and is updated; `stops` where its room ends. False when that
    is too small.
    """
    for number in range(records.size):
        record = records[number]
        queue = record.queue
        if not wanted[queue] or record.bits & NO_PLACE or not is_numbered(record.sys_flag, record.bits):
            continue
        if next_place[queue] >= stops[queue]:
            return False
        order[next_place[queue]] = first + number
        next_place[queue] += 1
    return True


@kernel(
    records=Array(RECORD), first=INT, queues=_NUMBERS, next_place=_NUMBERS_OUT, stops=_NUMBERS, order=_NUMBERS,
    start=INT, out=Array(EXPECTED, out=True), returns=None,
)
def take_rows(
    records: Any, first: int, queues: Any, next_place: Any, stops: Any, order: Any, start: int, out: Any
) -> None:
    """Copy the rows of `records` that some queues have next in `order`, as `order_rows` has left it.

    What is noted at `start` of `order` goes to the beginning of `out`. `next_place` (int64, one a queue) is updated,
    `stops` is where the queue's rows end. Rows come split by split, `first` is the number of the first one here.
    """
    end = first + records.size
    for queue in queues:
        place = next_place[queue]
        while place < stops[queue] and order[place] < end:
            record = records[order[place] - first]
            row = out[place - start]
            row.queue_offset = record.queue_offset
            row.phy_offset = record.phy_offset
            row.tags_code = record.tags_code
            row.store_timestamp = record.store_timestamp
            row.size = record.size
            row.queue = record.queue
            row.bits = record.bits
            place += 1
        next_place[queue] = place
