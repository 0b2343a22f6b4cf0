"""Compiled looks at the queues of rows in log order: where each stands, and which rows it has."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import BOOL, Array, kernel, part
from formats.record_columns import BIT_FILLER, BIT_STRAY, EXPECTED, RECORD
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT


@part
def is_numbered(sys_flag: int, bits: int) -> bool:
    """Whether the queue offset of such a row counts in its queue: ordinary and committed messages, no filler."""
    kind = sys_flag & TRANSACTION
    return kind in (TRANSACTION_NOT, TRANSACTION_COMMIT) and bits & BIT_FILLER == 0


@kernel(records=Array(RECORD), last_offset=Array(np.int64, out=True), returns=None)
def note_last(records: Any, last_offset: Any) -> None:
    """Put the queue offset of each queue's last numbered row into `last_offset` (int64, one a queue)."""
    for row in range(records.size):
        record = records[row]
        if is_numbered(record.sys_flag, record.bits):
            last_offset[record.queue] = record.queue_offset


@kernel(
    records=Array(RECORD), wanted=Array(np.bool_), next_place=Array(np.int64, out=True), stops=Array(np.int64),
    out=Array(EXPECTED, out=True), returns=BOOL,
)
def group_rows(records: Any, wanted: Any, next_place: Any, stops: Any, out: Any) -> bool:
    """Put the rows that have a position in a wanted queue (bool, one a queue) side by side, each queue in log order.

    `next_place` (int64, one a queue) says where in `out` the next row of a queue goes, and is updated; `stops` where
    its room ends. False when that is too small.
    """
    for number in range(records.size):
        record = records[number]
        queue = record.queue
        if not wanted[queue] or record.bits & BIT_STRAY or not is_numbered(record.sys_flag, record.bits):
            continue
        if next_place[queue] >= stops[queue]:
            return False
        row = out[next_place[queue]]
        row.queue_offset = record.queue_offset
        row.phy_offset = record.phy_offset
        row.tags_code = record.tags_code
        row.store_timestamp = record.store_timestamp
        row.size = record.size
        row.queue = queue
        row.bits = record.bits
        next_place[queue] += 1
    return True
