"""A compiled pass over the rows of a log beside the units of many queues. It may only say yes.

The units of a queue come in stretches, as the file has them, and rows split by split, so nothing has to be put in
another order. A queue of which a unit is not exactly what the broker would have put is left out from there on, and
`queue.py` judges it. Source: broker class ConsumeQueue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import INT, Array, kernel
from formats.consumequeue import CQ_UNIT, MAX_EXT_ADDRESS, PRE_BLANK
from formats.kernels.byte_reads import i32, i64, pointer_to
from formats.kernels.generations import is_numbered
from formats.record_columns import BIT_DELAY, BIT_MARKER, NO_PLACE, RECORD

LEFT_OUT = -1
UNIT = CQ_UNIT.size

_AT_SIZE = CQ_UNIT.offset("size")
_AT_TAGS = CQ_UNIT.offset("tags_code")
_BLANK_OFFSET, _BLANK_SIZE, _BLANK_TAGS = PRE_BLANK
NOT_PLAIN = BIT_DELAY | BIT_MARKER
_BYTES = Array(np.uint8)
_NUMBERS = Array(np.int64)
_NUMBERS_OUT = Array(np.int64, out=True)


@kernel(
    records=Array(RECORD), first=INT, log_end=INT, numbers=Array(np.int32), units=_BYTES, at=_NUMBERS_OUT,
    stops=_NUMBERS, due=_NUMBERS_OUT, returns=INT,
)
def follow_rows(
    records: Any, first: int, log_end: int, numbers: Any, units: Any, at: Any, stops: Any, due: Any
) -> int:
    """Hold the rows from `first` on against the next units of their queues; the row for which more units are wanted.

    Rows (RECORD, in log order) are those of one split; `numbers` (int32, one a queue of the log) tells which of the
    queues below is meant, LEFT_OUT for none. One a queue: `at` (int64) is where in `units` (uint8) its next unit
    stands, `stops` where the units end that are there, `due` (int64) the queue offset of the next unit. `at` becomes
    LEFT_OUT where a row is not the one of the next unit. Behind the last row the answer is how many rows there are.
    """
    raw = pointer_to(units)
    for row in range(first, records.size):
        record = records[row]
        queue = numbers[record.queue]
        if queue < 0:
            continue
        here = at[queue]
        bits = record.bits
        if here < 0 or bits & NO_PLACE or not is_numbered(record.sys_flag, bits):
            continue
        if bits & NOT_PLAIN or record.queue_offset != due[queue] or record.phy_offset + record.size > log_end:
            at[queue] = LEFT_OUT
            continue
        if here + UNIT > stops[queue]:
            return row
        if (
            i64(raw, here) != record.phy_offset or i32(raw, here + _AT_SIZE) != record.size
            or i64(raw, here + _AT_TAGS) != record.tags_code
        ):
            at[queue] = LEFT_OUT
            continue
        at[queue] = here + UNIT
        due[queue] += 1
    return int(records.size)


@kernel(min_offset=INT, units=_BYTES, at=_NUMBERS_OUT, stops=_NUMBERS, due=_NUMBERS_OUT, returns=None)
def pass_expired(min_offset: int, units: Any, at: Any, stops: Any, due: Any) -> None:
    """Go on in each queue behind the units of messages in front of `min_offset`, the log's start."""
    raw = pointer_to(units)
    for queue in range(at.size):
        here = at[queue]
        while 0 <= here <= stops[queue] - UNIT:
            offset, size, tags = i64(raw, here), i32(raw, here + _AT_SIZE), i64(raw, here + _AT_TAGS)
            if not 0 <= offset < min_offset or size <= 0:
                break
            hole = offset == _BLANK_OFFSET and size == _BLANK_SIZE and tags == _BLANK_TAGS
            if hole or tags <= MAX_EXT_ADDRESS:
                here = LEFT_OUT
                break
            here += UNIT
            due[queue] += 1
        at[queue] = here


@kernel(units=_BYTES, at=_NUMBERS_OUT, stops=_NUMBERS, returns=None)
def nothing_behind(units: Any, at: Any, stops: Any) -> None:
    """Leave out the queues that have anything but zeros behind their last unit."""
    raw = pointer_to(units)
    for queue in range(at.size):
        here = at[queue]
        if here < 0:
            continue
        stop = stops[queue]
        while here + 8 <= stop and i64(raw, here) == 0:
            here += 8
        while here < stop:
            if units[here] != 0:
                at[queue] = LEFT_OUT
                break
            here += 1
