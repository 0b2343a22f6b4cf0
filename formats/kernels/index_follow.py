"""A compiled pass over an index file beside the log, for files in which nothing is amiss. It may only say yes.

Units come as the file has them, block by block, and records split by split; nothing of the file is kept but the heads
of the chains. Where a unit is not exactly what the broker would have put, the pass stops, and `index.py` judges.
Source: broker class IndexFile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import INT, Array, kernel, part
from formats.kernels.byte_reads import i32, i64, pointer_to, prefetch
from formats.kernels.index import (
    TAG_ABSENT,
    TAG_PRESENT,
    TAG_UNKNOWN,
    divisor_of,
    slot_of,
    time_diff,
)
from formats.kernels.index_wanted import is_set, set_bit
from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_HAS_TAGS, BIT_MARKER, RECORD

AT_UNIT = 0
AT_ROW = 1
AT_HASH = 2
NEXT_KEY = 3
IS_OPEN = 4
STATE = 5

MORE_UNITS = 0
MORE_RECORDS = 1
DISLIKED = 2

UNIT = 20
_AT_OFFSET = 4
_AT_TIME = 12
_AT_PREVIOUS = 16
_AHEAD = 64
_BYTES = Array(np.uint8)
_BYTES_OUT = Array(np.uint8, out=True)
_STATE = Array(np.int64, out=True)
_NOT_INDEXED = BIT_GHOST | BIT_FILLER | BIT_MARKER


@kernel(
    units=_BYTES, count=INT, number=INT, begin=INT, records=Array(RECORD), hashes=Array(np.int32),
    found=_BYTES_OUT, tag_states=_BYTES_OUT, heads=Array(np.int32, out=True, some=True), state=_STATE, returns=INT,
)
def follow_units(
    units: Any, count: int, number: int, begin: int, records: Any, hashes: Any, found: Any,
    tag_states: Any, heads: Any, state: Any,
) -> int:
    """Take the units of a block while each is the next key of a record, right in every field and in its chain.

    `units` (uint8) holds `count` of them, the first with that `number`; `begin` is the time (ms) that differences
    count from. Records (RECORD) and hashes are those of one split. `heads` (int32, one a slot, zero at first) are the
    chains so far. Sets bits of `found` (one a hash) and `tag_states` (uint8 a record). `state` (int64[STATE], zero at
    first) is carried along: set AT_UNIT to 0 for another block, and the others for another split. Returns MORE_UNITS,
    MORE_RECORDS, or DISLIKED.
    """
    raw = pointer_to(units)
    at, row, first = state[AT_UNIT], state[AT_ROW], state[AT_HASH]
    key, is_open = state[NEXT_KEY], state[IS_OPEN]
    status = MORE_UNITS
    divisor = divisor_of(heads.size)
    phy_offset, keys, difference = 0, 0, 0
    if is_open != 0:
        phy_offset, keys = records[row].phy_offset, int(records[row].hashes)
        difference = time_diff(begin, records[row].store_timestamp)
    while at < count:
        place = at * UNIT
        if at + _AHEAD < count:
            # the chains of all slots are more than the caches near the core hold
            prefetch(heads, slot_of(i32(raw, place + _AHEAD * UNIT), divisor))
        offset = i64(raw, place + _AT_OFFSET)
        if is_open == 0 or phy_offset != offset:
            left, left_hash, passed = row, first, False
            if is_open != 0:
                first += keys
                row += 1
            while row < records.size and records[row].phy_offset < offset:
                plain = records[row].hashes - (records[row].bits & BIT_HAS_TAGS)
                passed = passed or (plain > 0 and records[row].bits & _NOT_INDEXED == 0)
                first += records[row].hashes
                row += 1
            if is_open != 0:
                tag_states[left] = _tag_state(records[left].hashes, records[left].bits, left_hash, found, passed)
            is_open = 0
            if row >= records.size:
                status = MORE_RECORDS
                break
            if records[row].phy_offset != offset or records[row].bits & _NOT_INDEXED != 0:
                status = DISLIKED
                break
            key, is_open = 0, 1
            phy_offset, keys = offset, int(records[row].hashes)
            difference = time_diff(begin, records[row].store_timestamp)
        value = i32(raw, place)
        key = _find_key(value, hashes, first, keys, key, found)
        if key < 0:
            status = DISLIKED
            break
        if number + at > 1 and i32(raw, place + _AT_TIME) != difference:
            status = DISLIKED
            break
        slot = slot_of(value, divisor)
        if i32(raw, place + _AT_PREVIOUS) != heads[slot]:
            status = DISLIKED
            break
        heads[slot] = number + at
        at += 1
    state[AT_UNIT], state[AT_ROW], state[AT_HASH] = at, row, first
    state[NEXT_KEY], state[IS_OPEN] = key, is_open
    return status


@part
def _find_key(value: int, hashes: Any, first: int, keys: int, start: int, found: Any) -> int:
    """The key behind the first one with that hash that was not found yet, looked for from `start`; -1 for none."""
    for step in range(keys):
        key = start + step
        if key >= keys:
            key -= keys
        if hashes[first + key] == value and not is_set(found, first + key):
            set_bit(found, first + key)
            return key + 1
    return -1


@part
def _tag_state(keys: int, bits: int, first: int, found: Any, passed: bool) -> int:
    """Whether a record, of which no unit follows, has its tag unit; `passed`: nor has a record that should be next."""
    if bits & BIT_HAS_TAGS == 0 or keys == 0:
        return TAG_UNKNOWN
    if is_set(found, first + keys - 1):
        return TAG_PRESENT
    for key in range(keys - 1):
        if not is_set(found, first + key):
            return TAG_UNKNOWN
    return TAG_UNKNOWN if passed else TAG_ABSENT


@kernel(records=Array(RECORD), found=_BYTES, tag_states=_BYTES_OUT, state=_STATE, returns=None)
def end_units(records: Any, found: Any, tag_states: Any, state: Any) -> None:
    """No unit follows: nobody can tell of the last record whether its tag unit was still to come."""
    if state[IS_OPEN] != 0:
        row = state[AT_ROW]
        kind = _tag_state(records[row].hashes, records[row].bits, state[AT_HASH], found, True)
        tag_states[row] = TAG_PRESENT if kind == TAG_PRESENT else TAG_UNKNOWN


@kernel(raw=_BYTES, first=INT, count=INT, heads=Array(np.int32), returns=INT)
def slots_in_use(raw: Any, first: int, count: int, heads: Any) -> int:
    """How many of the slots [first, first + count) are in use; -1 if one is not the head of its chain.

    `raw` (uint8) are the slots as the file has them.
    """
    data = pointer_to(raw)
    used = 0
    for number in range(count):
        head = heads[first + number]
        if i32(data, number * 4) != head:
            return -1
        if head > 0:
            used += 1
    return used
