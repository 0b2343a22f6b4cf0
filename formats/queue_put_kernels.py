"""Compiled puts of a broker into a consume queue. It may only say yes: what is no plain queue, the reference builds.

Source: broker class ConsumeQueue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.byte_kernels import pointer_to, put_file_i32, put_file_i64
from formats.compiled import BOOL, INT, Array, kernel
from formats.consumequeue import CQ_UNIT, PRE_BLANK
from formats.record_columns import BIT_MARKER, EXPECTED

_UNIT = CQ_UNIT.size
_AT_OFFSET = CQ_UNIT.offset("phy_offset")
_AT_SIZE = CQ_UNIT.offset("size")
_AT_TAGS = CQ_UNIT.offset("tags_code")
_BLANK_OFFSET, _BLANK_SIZE, _BLANK_TAGS = PRE_BLANK


@kernel(rows=Array(EXPECTED), tags_codes=Array(np.int64), first=INT, units=Array(np.uint8, out=True), returns=BOOL)
def put_rows(rows: Any, tags_codes: Any, first: int, units: Any) -> bool:
    """Fill `units` (uint8), the first of which is queue offset `first`: pre-blanks, and behind them those of `rows`.

    False, and `units` are worth nothing, unless the rows stand for all last places of the queue, one behind the other
    up to the end of `units`, and none for a lost message. `tags_codes` (int64, one a row) are what the units carry.
    """
    blanks = units.size // _UNIT - rows.size
    if blanks < 0:
        return False
    raw = pointer_to(units)
    for number in range(blanks):
        at = number * _UNIT
        put_file_i64(raw, at + _AT_OFFSET, _BLANK_OFFSET)
        put_file_i32(raw, at + _AT_SIZE, _BLANK_SIZE)
        put_file_i64(raw, at + _AT_TAGS, _BLANK_TAGS)
    for number in range(rows.size):
        row = rows[number]
        if row.queue_offset != first + blanks + number or row.bits & BIT_MARKER:
            return False
        at = (blanks + number) * _UNIT
        put_file_i64(raw, at + _AT_OFFSET, row.phy_offset)
        put_file_i32(raw, at + _AT_SIZE, row.size)
        put_file_i64(raw, at + _AT_TAGS, tags_codes[number])
    return True
