"""Compiled puts of a broker into an index file: slots and chains made of records and their hashes.

Units and slots are as in `formats.index_kernels`. Source: broker class IndexFile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import INT, Array, kernel
from formats.index_kernels import time_diff, wanted_keys
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

_LOW = 0xFFFFFFFF
_RECORDS = Array(RECORD)
_HASHES = Array(np.int32)
_BYTES = Array(np.uint8)


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
    units=Array(np.int32, 2, out=True), base=INT, slots=Array(np.int32, out=True, some=True), records=_RECORDS,
    hashes=_HASHES, take=_BYTES, limit=INT, state=Array(np.int64, out=True), returns=None,
)
def put_keys(units: Any, base: int, slots: Any, records: Any, hashes: Any, take: Any, limit: int, state: Any) -> None:
    """Put the keys of a split, from the record and key in `state` on, until `limit` numbers are in use.

    `units` begins with number `base`. `state` (int64[STATE_SIZE]) begins with number 1 and the end time of the file
    before in STATE_BEGIN, and carries the header's values along. Ends with STATE_RECORD at the split's size when all
    was put.
    """
    row = state[STATE_RECORD]
    key = state[STATE_KEY]
    at = state[STATE_HASH]
    number = state[STATE_NUMBER]
    while row < records.size:
        record = records[row]
        wanted = wanted_keys(record.hashes, record.bits, take[row])
        while key < wanted and number < limit:
            value = hashes[at + key]
            slot = value % slots.size
            phy = record.phy_offset
            units[number - base, 0] = value
            units[number - base, 1] = phy >> 32
            units[number - base, 2] = phy & _LOW
            units[number - base, 3] = time_diff(state[STATE_BEGIN], record.store_timestamp)
            units[number - base, 4] = slots[slot]
            if slots[slot] == 0:
                state[STATE_USED_SLOTS] += 1
            slots[slot] = number
            if number == 1:
                state[STATE_BEGIN] = record.store_timestamp
                state[STATE_BEGIN_OFFSET] = phy
            state[STATE_END] = record.store_timestamp
            state[STATE_END_OFFSET] = phy
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


@kernel(
    slots=Array(np.int32, out=True, some=True), records=_RECORDS, hashes=_HASHES, take=_BYTES, limit=INT,
    state=Array(np.int64, out=True), returns=None,
)
def head_keys(slots: Any, records: Any, hashes: Any, take: Any, limit: int, state: Any) -> None:
    """What `put_keys` does to slots and `state`, but for STATE_USED_SLOTS, without making a unit."""
    row = state[STATE_RECORD]
    key = state[STATE_KEY]
    at = state[STATE_HASH]
    number = state[STATE_NUMBER]
    while row < records.size:
        record = records[row]
        wanted = wanted_keys(record.hashes, record.bits, take[row])
        if key < wanted and number < limit:
            if number == 1:
                state[STATE_BEGIN] = record.store_timestamp
                state[STATE_BEGIN_OFFSET] = record.phy_offset
            state[STATE_END] = record.store_timestamp
            state[STATE_END_OFFSET] = record.phy_offset
        while key < wanted and number < limit:
            slots[hashes[at + key] % slots.size] = number
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
