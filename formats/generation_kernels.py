"""Compiled looks at the queue offsets of rows in log order: where a queue stands, and whether it ever falls back."""

from __future__ import annotations

from typing import Any

from numba import njit

from formats.record_columns import BIT_FILLER, BIT_GHOST
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT


@njit(cache=True, nogil=True)
def _is_numbered(sys_flag: int, bits: int) -> bool:
    kind = sys_flag & TRANSACTION
    return kind in (TRANSACTION_NOT, TRANSACTION_COMMIT) and bits & BIT_FILLER == 0


@njit(cache=True, nogil=True)
def note_last(records: Any, last_offset: Any) -> None:
    """Put the queue offset of each queue's last numbered row into `last_offset` (int64, one a queue)."""
    for row in range(records.size):
        record = records[row]
        if _is_numbered(record.sys_flag, record.bits):
            last_offset[record.queue] = record.queue_offset


@njit(cache=True, nogil=True)
def note_falls(records: Any, last_offset: Any, fallen: Any) -> None:
    """Set `fallen` (bool, one a queue) where a numbered row that is no ghost does not step up from `last_offset`.

    `last_offset` (int64, one a queue, -1 at first) is carried from call to call.
    """
    for row in range(records.size):
        record = records[row]
        if _is_numbered(record.sys_flag, record.bits) and record.bits & BIT_GHOST == 0:
            if record.queue_offset <= last_offset[record.queue]:
                fallen[record.queue] = True
            last_offset[record.queue] = record.queue_offset
