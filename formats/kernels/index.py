"""Compiled loops over index files: units against records, chains against hashes.

A file is an int32 array of shape (units, 5) in native byte order (key hash, two halves of the
offset, time difference, previous) and an int32 array of slots. Records are RECORD rows with their
hashes in record order. Source: broker class IndexFile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import BOOL, INT, Array, kernel, part
from formats.kernels.index_wanted import STAND_IN, UNINDEXED, is_set, set_bit
from formats.record_columns import BIT_GHOST, BIT_HAS_TAGS, RECORD

NO_RECORD = 0
RIGHT = 1
DUPLICATE = 2
OTHER_KEY = 3
EXPIRED = 4
LOST = 5
BEYOND_LOG = 6
CLASS = 7
WRONG_TIME = 8
WRONG_CHAIN = 16
CHAIN_LOOP = 32

TAG_UNKNOWN = 0
TAG_ABSENT = 1
TAG_PRESENT = 2

SLOT_OUT_OF_RANGE = 1
SLOT_WRONG = 2

_MAX_TIME_DIFF = 0x7FFFFFFF
_LOW = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF
_UNITS = Array(np.int32, 2)
_RECORDS = Array(RECORD)
_HASHES = Array(np.int32)
_BYTES_OUT = Array(np.uint8, out=True)


@part
def unit_phy_offset(units: Any, number: int) -> int:
    """The phy offset of one unit."""
    return int((units[number, 1] << 32) | (units[number, 2] & _LOW))


@kernel(units=_UNITS, returns=INT)
def last_written(units: Any) -> int:
    """The highest number whose unit is not all zero; 0 when there is none."""
    for number in range(units.shape[0] - 1, 0, -1):
        if units[number, 2] | units[number, 0] | units[number, 1] | units[number, 3] | units[number, 4]:
            return number
    return 0


@kernel(units=_UNITS, count=INT, returns=BOOL)
def is_ascending(units: Any, count: int) -> bool:
    """True when the phy offsets of units [1, count) never fall."""
    before = unit_phy_offset(units, 1) if count > 1 else 0
    for number in range(2, count):
        offset = unit_phy_offset(units, number)
        if offset < before:
            return False
        before = offset
    return True


@kernel(units=_UNITS, count=INT, out=Array(np.int64, out=True), returns=None)
def phy_offsets(units: Any, count: int, out: Any) -> None:
    """The phy offsets of units [1, count) into `out` (int64)."""
    for number in range(1, count):
        out[number - 1] = unit_phy_offset(units, number)


@part
def time_diff(begin: int, timestamp: int) -> int:
    """Seconds from `begin` to `timestamp` (both ms) as IndexFile.putKey stores them."""
    if begin <= 0 or timestamp <= begin:
        return 0
    return min((timestamp - begin) // 1000, _MAX_TIME_DIFF)


@part
def divisor_of(slots: int) -> tuple[int, int, int]:
    """A number of slots with what divides by it: a factor, and by how many bits the product is too long.

    Divisions take longer than all else that is done for a key, but for the wait for its slot.
    """
    size = min(slots, _POSITIVE + 1)
    bits = 0
    while 1 << bits < size:
        bits += 1
    return size, ((1 << 31 + bits) + size - 1) // size, 31 + bits


@part
def slot_of(value: int, divisor: tuple[int, int, int]) -> int:
    """`value` modulo the number of slots; hashes are never negative."""
    value = int(value) & _POSITIVE
    size, factor, bits = divisor
    return value - (value * factor >> bits) * size


@part
def _match_group(
    units: Any, order: Any, ordered: bool, start: int, stop: int, hashes: Any, first: int, keys: int, found: Any,
    classes: Any, expected_time: int,
) -> int:
    """Give each unit of one record its class; the highest number of a unit that is right, 0 for none."""
    cursor = 0
    newest = 0
    for at in range(start, stop):
        number = at if ordered else order[at - 1]
        value = units[number, 0]
        kind = OTHER_KEY
        for step in range(keys):
            key = cursor + step
            if key >= keys:
                key -= keys
            if hashes[first + key] == value:
                if is_set(found, first + key):
                    kind = DUPLICATE
                    continue
                set_bit(found, first + key)
                cursor = key + 1
                kind = RIGHT
                break
        if kind != OTHER_KEY:
            newest = max(newest, number)
            if number > 1 and units[number, 3] != expected_time:
                kind |= WRONG_TIME
        classes[number] = kind
    return newest


@part
def _tag_state(units: Any, count: int, newest: int, records: Any, row: int, first: int, found: Any) -> int:
    """Whether the record has its tag unit. Unknown when the place where it would be holds something broken."""
    keys = records[row].hashes
    if is_set(found, first + keys - 1):
        return TAG_PRESENT
    if newest == 0 or newest + 1 >= count:
        return TAG_UNKNOWN
    for key in range(keys - 1):
        if not is_set(found, first + key):
            return TAG_UNKNOWN
    following = unit_phy_offset(units, newest + 1)
    for later in range(row + 1, records.size):
        if records[later].phy_offset == following:
            return TAG_ABSENT
        plain = records[later].hashes - (records[later].bits & BIT_HAS_TAGS)
        if plain > 0 and records[later].bits & UNINDEXED == 0:
            return TAG_UNKNOWN
    return TAG_ABSENT if following > records[row].phy_offset else TAG_UNKNOWN


@kernel(
    units=_UNITS, count=INT, order=Array(np.int64), ordered=BOOL, state=Array(np.int64, out=True), records=_RECORDS,
    hashes=_HASHES, found=_BYTES_OUT, classes=_BYTES_OUT, begin=INT, tag_states=_BYTES_OUT, returns=None,
)
def match_records(
    units: Any, count: int, order: Any, ordered: bool, state: Any, records: Any, hashes: Any, found: Any,
    classes: Any, begin: int, tag_states: Any,
) -> None:
    """Judge the units that name records of one split.

    `state` is int64 [place, end of the last stand-in record]; places [1, count) are unit numbers
    when `ordered`, else `order` (int64, from 0) lists the numbers by phy offset. Sets bits of
    `found` (one a hash), `classes` (uint8 a number) and `tag_states` (uint8 a record). Units in
    front of the split that no record took stay NO_RECORD.
    """
    place = state[0]
    first = 0
    for row in range(records.size):
        if place >= count:
            return
        record = records[row]
        phy = record.phy_offset
        keys = record.hashes
        while place < count:
            number = place if ordered else order[place - 1]
            offset = unit_phy_offset(units, number)
            if offset >= phy:
                break
            if offset < state[1]:
                classes[number] = LOST
            place += 1
        start = place
        while place < count and unit_phy_offset(units, place if ordered else order[place - 1]) == phy:
            place += 1
        if record.bits & STAND_IN:
            state[1] = phy + record.size
            for at in range(start, place):
                classes[at if ordered else order[at - 1]] = LOST
        elif place > start and record.bits & BIT_GHOST == 0:
            newest = _match_group(
                units, order, ordered, start, place, hashes, first, keys, found, classes,
                time_diff(begin, record.store_timestamp),
            )
            if record.bits & BIT_HAS_TAGS and keys > 0:
                tag_states[row] = _tag_state(units, count, newest, records, row, first, found)
        first += keys
    state[0] = place


@kernel(
    units=_UNITS, count=INT, slots=Array(np.int32, some=True), classes=_BYTES_OUT, heads=Array(np.int32, out=True),
    slot_flags=_BYTES_OUT, returns=INT,
)
def check_chains(units: Any, count: int, slots: Any, classes: Any, heads: Any, slot_flags: Any) -> int:
    """Compare chains and slots with what the hashes say; the number of slots in use.

    `heads` is int32 scratch, zero, one a slot. Flags units in `classes` and slots in `slot_flags`
    (uint8). A unit that no record vouches for may have any hash, so it may stand anywhere in a chain.
    """
    for number in range(1, count):
        kind = classes[number] & CLASS
        trusted = kind in (RIGHT, DUPLICATE)
        previous = units[number, 4]
        value = units[number, 0]
        slot = value % slots.size if value >= 0 else 0
        if previous >= number:
            classes[number] |= CHAIN_LOOP
            if not trusted:
                continue
        elif trusted or (value >= 0 and previous == heads[slot]):
            if previous != heads[slot] and not _stands_between(classes, heads[slot], previous, number):
                classes[number] |= WRONG_CHAIN
        else:
            if kind in (EXPIRED, LOST):
                classes[number] |= WRONG_CHAIN
            continue
        heads[slot] = number
    used = 0
    for slot in range(slots.size):
        value = slots[slot]
        if heads[slot] > 0:
            used += 1
        if value == heads[slot] or _stands_between(classes, heads[slot], value, count):
            continue
        slot_flags[slot] = SLOT_OUT_OF_RANGE if value < 0 or value >= count else SLOT_WRONG
    return used


@part
def _stands_between(classes: Any, low: int, number: int, high: int) -> bool:
    if not low < number < high:
        return False
    kind = classes[number] & CLASS
    return bool(kind not in (RIGHT, DUPLICATE))
