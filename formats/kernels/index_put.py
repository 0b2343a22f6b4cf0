"""Compiled puts of a broker into an index file: slots and chains made of records and their hashes.

Units and slots are as in `formats.kernels.index`. Source: broker class IndexFile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import BOOL, INT, Array, intrinsic, kernel, part
from formats.kernels.byte_reads import prefetch
from formats.kernels.index import divisor_of, slot_of, time_diff
from formats.kernels.index_wanted import TAKE, wanted_keys
from formats.record_columns import RECORD

STATE_NUMBER = 0
STATE_RECORD = 1
STATE_KEY = 2
STATE_HASH = 3
STATE_USED_SLOTS = 4
STATE_BEGIN = 5
STATE_END = 6
STATE_BEGIN_OFFSET = 7
STATE_END_OFFSET = 8
STATE_SIZE = 9

_AHEAD = 96
_LOW = 0xFFFFFFFF
_RECORDS = Array(RECORD)
_HASHES = Array(np.int32)

_swapped = intrinsic("formats.kernels.byte_intrinsics", "swapped_i32")


@part
def _fetch(slots: Any, hashes: Any, at: int, divisor: tuple[int, int, int]) -> None:
    """Have the slot of a key fetched that comes soon: 5,000,000 slots are more than the caches near the core hold."""
    if at < hashes.size:
        prefetch(slots, slot_of(hashes[at], divisor))


@part
def _word(value: int, file_order: bool) -> Any:
    """A word as the file has it, or in native byte order."""
    return _swapped(np.int32(value)) if file_order else np.int32(value)


@kernel(
    units=Array(np.int32, 2, out=True), count=INT, slots=Array(np.int32, out=True, some=True), returns=INT,
)
def link_units(units: Any, count: int, slots: Any) -> int:
    """Chain units [1, count) that stand there without their slots; the number of slots in use."""
    used = 0
    for number in range(1, count):
        slot = max(0, units[number, 0]) % slots.size
        if slots[slot] == 0:
            used += 1
        units[number, 4] = slots[slot]
        slots[slot] = number
    return used


@kernel(
    units=Array(np.int32, 2, out=True, some=True), base=INT, file_order=BOOL,
    slots=Array(np.int32, out=True, some=True), records=_RECORDS, hashes=_HASHES, take=TAKE, limit=INT,
    state=Array(np.int64, out=True), returns=None,
)
def put_keys(
    units: Any, base: int, file_order: bool, slots: Any, records: Any, hashes: Any, take: Any, limit: int, state: Any
) -> None:
    """Put the keys of a split, from the record and key in `state` on, until `limit` numbers are in use.

    `units` begins with number `base`; their words are as the file has them, or native without `file_order`. `state`
    (int64[STATE_SIZE]) begins with number 1 and the end time of the file before in STATE_BEGIN, and carries the
    header's values along. Ends with STATE_RECORD at the split's size when all was put.
    """
    row = state[STATE_RECORD]
    key = state[STATE_KEY]
    at = state[STATE_HASH]
    number = state[STATE_NUMBER]
    used = state[STATE_USED_SLOTS]
    divisor = divisor_of(slots.size)
    while row < records.size:
        record = records[row]
        wanted = wanted_keys(record.hashes, record.bits, row, take)
        if key < wanted and number < limit:
            phy = record.phy_offset
            high = _word(phy >> 32, file_order)
            low = _word(phy & _LOW, file_order)
            # that of the file's first unit counts from the end of the file before
            seconds = _word(time_diff(state[STATE_BEGIN], record.store_timestamp), file_order)
            if number == 1:
                state[STATE_BEGIN] = record.store_timestamp
                state[STATE_BEGIN_OFFSET] = phy
            state[STATE_END] = record.store_timestamp
            state[STATE_END_OFFSET] = phy
            while key < wanted and number < limit:
                _fetch(slots, hashes, at + key + _AHEAD, divisor)
                slot = slot_of(hashes[at + key], divisor)
                previous = slots[slot]
                units[number - base, 0] = _word(hashes[at + key], file_order)
                units[number - base, 1] = high
                units[number - base, 2] = low
                units[number - base, 3] = seconds
                units[number - base, 4] = _word(previous, file_order)
                # a branch would be guessed wrong every second time, and have to wait for the slot
                used += previous == 0
                slots[slot] = number
                if number == 1:
                    seconds = _word(time_diff(record.store_timestamp, record.store_timestamp), file_order)
                number += 1
                key += 1
        if key < wanted:
            break
        at += record.hashes
        key = 0
        row += 1
    state[STATE_RECORD] = row
    state[STATE_KEY] = key
    state[STATE_HASH] = at
    state[STATE_NUMBER] = number
    state[STATE_USED_SLOTS] = used
