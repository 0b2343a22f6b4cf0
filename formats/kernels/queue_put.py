"""Compiled puts of a broker into a consume queue. It may only say yes: what is no plain queue, the reference builds.

Source: broker class ConsumeQueue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import BOOL, INT, Array, kernel, part
from formats.consumequeue import CQ_UNIT, PRE_BLANK
from formats.kernels.byte_reads import pointer_to, put_file_i32, put_file_i64
from formats.kernels.generations import is_numbered
from formats.kernels.queue_follow import LEFT_OUT, NOT_PLAIN
from formats.record_columns import BIT_MARKER, EXPECTED, NO_PLACE, RECORD

_UNIT = CQ_UNIT.size
_AT_OFFSET = CQ_UNIT.offset("phy_offset")
_AT_SIZE = CQ_UNIT.offset("size")
_AT_TAGS = CQ_UNIT.offset("tags_code")
_BLANK_OFFSET, _BLANK_SIZE, _BLANK_TAGS = PRE_BLANK
_NUMBERS = Array(np.int64, out=True)


@part
def _put_unit(raw: Any, at: int, phy_offset: int, size: int, tags_code: int) -> None:
    put_file_i64(raw, at + _AT_OFFSET, phy_offset)
    put_file_i32(raw, at + _AT_SIZE, size)
    put_file_i64(raw, at + _AT_TAGS, tags_code)


@kernel(units=Array(np.uint8, out=True), start=INT, count=INT, returns=None)
def put_blanks(units: Any, start: int, count: int) -> None:
    """Fill `count` units from byte `start` on with pre-blanks, as far as `units` (uint8) go."""
    raw = pointer_to(units)
    for at in range(start, min(start + count * _UNIT, units.size - _UNIT + 1), _UNIT):
        _put_unit(raw, at, _BLANK_OFFSET, _BLANK_SIZE, _BLANK_TAGS)


@kernel(records=Array(RECORD), at=_NUMBERS, stops=Array(np.int64), due=_NUMBERS, units=Array(np.uint8, out=True),
        returns=None)
def put_plain(records: Any, at: Any, stops: Any, due: Any, units: Any) -> None:
    """Put the units of the rows of one split (RECORD, in log order) behind those of earlier splits, queue by queue.

    One a queue (int64): `at` is where in `units` (uint8) its next unit goes, and is updated; LEFT_OUT for queues that
    are not wanted, and from then on for one with a row that is not the next position, which is `due`, or stands for a
    lost or delayed message, or finds no room in front of `stops`.
    """
    raw = pointer_to(units)
    for number in range(records.size):
        record = records[number]
        queue = record.queue
        here, bits = at[queue], record.bits
        if here < 0 or bits & NO_PLACE or not is_numbered(record.sys_flag, bits):
            continue
        end = here + _UNIT
        if bits & NOT_PLAIN or record.queue_offset != due[queue] or end > stops[queue] or end > units.size:
            at[queue] = LEFT_OUT
            continue
        _put_unit(raw, here, record.phy_offset, record.size, record.tags_code)
        at[queue] = end
        due[queue] += 1


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
        _put_unit(raw, number * _UNIT, _BLANK_OFFSET, _BLANK_SIZE, _BLANK_TAGS)
    for number in range(rows.size):
        row = rows[number]
        if row.queue_offset != first + blanks + number or row.bits & BIT_MARKER:
            return False
        _put_unit(raw, (blanks + number) * _UNIT, row.phy_offset, row.size, tags_codes[number])
    return True
