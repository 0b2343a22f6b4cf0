"""Index files: chains against hashes, and put; in C in `index.c`.

A file is an int32 array of shape (units, 5) in native byte order (key hash, two halves of the offset, time difference,
previous) and an int32 array of slots. Records are RECORD rows with their hashes in record order. Source: broker classes
IndexFile and IndexService.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.index import time_diff
from formats.native.library import INT, Array, kernel
from formats.native.rows import place_hashes
from formats.record.rows import BIT_HAS_TAGS, BIT_STALE, RECORD, STAND_IN

NO_RECORD, RIGHT, DUPLICATE, OTHER_KEY, EXPIRED, LOST, BEYOND_LOG, CLASS = range(8)
"""Classes of a unit, and their mask; further bits are flaws."""
WRONG_TIME = 8
WRONG_CHAIN = 16
CHAIN_LOOP = 32

SLOT_OUT_OF_RANGE, SLOT_WRONG = 1, 2

TAKE_KEYS, TAKE_ALL = 1, 2
"""The hashes of a record that are put: those of its keys without the one of its tags, or all."""

UNINDEXED = BIT_STALE | STAND_IN
"""Records with any of these have no units."""

(STATE_NUMBER, STATE_RECORD, STATE_KEY, STATE_HASH, STATE_USED_SLOTS, STATE_BEGIN, STATE_END, STATE_BEGIN_OFFSET,
 STATE_END_OFFSET) = range(9)
STATE_SIZE = 9
"""Places in the state of `put_keys` and `sum_keys`."""
STATE_TAGGED, STATE_FIRST_TAGGED, STATE_LAST_TAGGED = range(STATE_SIZE, STATE_SIZE + 3)
SUM_STATE_SIZE = 12
"""Further places in that of `sum_keys`."""

_WORDS = 5
_UNITS = Array(np.int32, _WORDS)
_RECORDS = Array(RECORD)
_HASHES = Array(np.int32)
_BYTES_OUT = Array(np.uint8, out=True)
_TAKE = Array(np.uint8, least=1)
"""The rule of each record of a split, or one for all."""
_HEADS = Array(np.int32, out=True, least=1)


@kernel(records=_RECORDS, take=_TAKE, wanted=Array(np.int64, out=True), returns=INT)
def count_wanted(records: Any, take: Any, wanted: Any) -> int:
    """Return how many units the rows should have, by their rules or by one for all; `wanted` gets those of each row."""
    hashes, bits = records["hashes"].astype(np.int64), records["bits"]
    tags = np.equal(take, TAKE_KEYS) & (bits & BIT_HAS_TAGS != 0) & (hashes > 0)
    counts = np.where(bits & UNINDEXED != 0, 0, hashes - tags)
    wanted[: counts.size] = counts[: wanted.size]
    return int(counts.sum())


def wanted_of(records: Any, take: Any) -> Any:
    """Return how many units each row should have by its rule, or by one for all (int64)."""
    wanted = np.zeros(records.size, dtype=np.int64)
    count_wanted(records, take, wanted)
    return wanted


def key_counts(records: Any) -> tuple[int, int]:
    """Return how many units the rows should have without those of tags, and with them."""
    keys, every = (count_wanted(records, np.array([rule], dtype=np.uint8), np.zeros(0, dtype=np.int64))
                   for rule in (TAKE_KEYS, TAKE_ALL))
    return keys, every


def phy_offsets(units: Any) -> Any:
    """Return the phy offsets of units (int64)."""
    offsets = units[:, 1].astype(np.int64)
    offsets <<= 32
    offsets |= units[:, 2].view(np.uint32)
    return offsets


@kernel(
    units=_UNITS, count=INT, slots=Array(np.int32, least=1), classes=_BYTES_OUT, heads=_HEADS, slot_flags=_BYTES_OUT,
    returns=INT,
)
def check_chains(units: Any, count: int, slots: Any, classes: Any, heads: Any, slot_flags: Any) -> int:
    """Compare chains and slots with the hashes; return the number of slots in use.

    `heads` is int32 scratch space, zero, one a slot. Flags units in `classes` and slots in `slot_flags` (uint8). A unit
    that no record confirms may have any hash, so it may be anywhere in a chain.
    """
    def trusted(number: int) -> bool:
        return bool(classes[number] & CLASS in (RIGHT, DUPLICATE))

    def stands_between(low: int, number: int, high: int) -> bool:
        return low < number < high and not trusted(number)

    for number, (value, _, _, _, previous) in enumerate(units[:count].tolist()):
        if not number:
            continue
        slot = value % slots.size if value >= 0 else 0
        head = int(heads[slot])
        if previous >= number:
            classes[number] |= CHAIN_LOOP
            if not trusted(number):
                continue
        elif trusted(number) or (value >= 0 and previous == head):
            if previous != head and not stands_between(head, previous, number):
                classes[number] |= WRONG_CHAIN
        else:
            if classes[number] & CLASS in (EXPIRED, LOST):
                classes[number] |= WRONG_CHAIN
            continue
        heads[slot] = number
    for slot in np.flatnonzero(slots != heads).tolist():
        value = int(slots[slot])
        if not stands_between(int(heads[slot]), value, count):
            slot_flags[slot] = SLOT_WRONG if 0 <= value < count else SLOT_OUT_OF_RANGE
    return int(np.count_nonzero(heads > 0))


@kernel(
    units=Array(np.int32, _WORDS, out=True, least=1), base=INT, slots=_HEADS, records=_RECORDS,
    hashes=_HASHES, take=_TAKE, limit=INT, state=Array(np.int64, out=True, least=STATE_SIZE), returns=None,
)
def put_keys(
    units: Any, base: int, slots: Any, records: Any, hashes: Any, take: Any, limit: int, state: Any
) -> None:
    """Put the keys of a split, from the record and key in `state` on, until `limit` numbers are in use.

    `units` begins with number `base`; its words are in file order, the slots native. `state` (int64[STATE_SIZE]) begins
    with number 1 and the end time of the previous file in STATE_BEGIN, and accumulates the header's values. When all
    keys were put, STATE_RECORD is the split's size. `take` (uint8): TAKE_KEYS or TAKE_ALL of each record, or one for
    all.
    """
    limit = min(limit, base + units.shape[0])
    words = units.view(">i4")
    row, key, number, at = (int(state[it]) for it in (STATE_RECORD, STATE_KEY, STATE_NUMBER, STATE_HASH))
    wanted = wanted_of(records, take).tolist()
    while row < records.size:
        phy, _, stored, _, _, _, _, _, keys = records[row].tolist()
        if key < wanted[row] and number < limit:
            # the time difference of the file's first unit counts from the end of the previous file
            seconds = time_diff(int(state[STATE_BEGIN]), stored)
            if number == 1:
                state[STATE_BEGIN], state[STATE_BEGIN_OFFSET] = stored, phy
            state[STATE_END], state[STATE_END_OFFSET] = stored, phy
            while key < wanted[row] and number < limit:
                value = int(hashes[at + key])
                slot = (value & 0x7FFFFFFF) % slots.size
                low = np.array(phy & 0xFFFFFFFF, dtype=np.uint32).astype(np.int32)
                words[number - base] = value, phy >> 32, low, seconds, slots[slot]
                state[STATE_USED_SLOTS] += int(slots[slot] == 0)
                slots[slot] = number
                if number == 1:
                    seconds = 0
                number += 1
                key += 1
        if key < wanted[row]:
            break
        at += keys
        key = 0
        row += 1
    state[STATE_RECORD], state[STATE_KEY], state[STATE_HASH], state[STATE_NUMBER] = row, key, at, number


@kernel(
    records=_RECORDS, hashes=_HASHES, take=_TAKE, limit=INT, seconds=INT, seed=INT,
    state=Array(np.int64, out=True, least=SUM_STATE_SIZE), returns=(INT, INT),
)
def sum_keys(
    records: Any, hashes: Any, take: Any, limit: int, seconds: int, seed: int, state: Any
) -> tuple[int, int]:
    """Return what `follow_units` adds up of the units that `put_keys` would put, without putting them.

    Times count from STATE_BEGIN, except for the first unit if its time difference is given (`seconds`, -1 if not). Also
    counts the records with tags that end here, and keeps the phy offsets of the first and the last of them.
    """
    row, key, number, at = (int(state[it]) for it in (STATE_RECORD, STATE_KEY, STATE_NUMBER, STATE_HASH))
    wanted = wanted_of(records, take).tolist()
    found: list[tuple[int, int, int]] = []
    while row < records.size:
        phy, _, stored, _, _, _, _, bits, keys = records[row].tolist()
        if key < wanted[row] and number + len(found) < limit:
            passed = time_diff(int(state[STATE_BEGIN]), stored)
            state[STATE_END], state[STATE_END_OFFSET] = stored, phy
            while key < wanted[row] and number + len(found) < limit:
                found.append((phy, int(hashes[at + key]), passed if seconds < 0 else seconds))
                key, seconds = key + 1, -1
        if key < wanted[row]:
            break
        at += keys
        key = 0
        row += 1
        if bits & BIT_HAS_TAGS and not bits & UNINDEXED and keys > 0:
            state[STATE_FIRST_TAGGED] = state[STATE_FIRST_TAGGED] if state[STATE_TAGGED] else phy
            state[STATE_LAST_TAGGED] = phy
            state[STATE_TAGGED] += 1
    state[STATE_RECORD], state[STATE_KEY], state[STATE_HASH] = row, key, at
    state[STATE_NUMBER] = number + len(found)
    return _added_up(seed, number, *np.array(found, dtype=np.int64).reshape(-1, 3).T)


def _added_up(seed: int, number: int, *columns: Any) -> tuple[int, int]:
    """Return the hashes of units added up, as they are and each times its number; both modulo 2 ** 64 and signed."""
    hashes = place_hashes(seed, *columns)
    numbers = (np.arange(hashes.size, dtype=np.int64) + number).view(np.uint64)
    totals = (int(np.add.reduce(each, dtype=np.uint64)) for each in (hashes, hashes * numbers))
    plain, by_number = (total - (1 << 64) if total >> 63 else total for total in totals)
    return plain, by_number


@kernel(units=_UNITS, number=INT, seed=INT, slots=Array(np.int32, out=True), returns=(INT, INT, INT))
def follow_units(units: Any, number: int, seed: int, slots: Any) -> tuple[int, int, int]:
    """Return two sums, modulo 2 ** 64 and signed, of a hash of each unit without its number and chain link: of the
    hashes, and of each times its number. So a sum is made before the first number is known, and exchanged units differ.

    `units` begin with `number`; their words are in file order. With `slots` (int32), the third result is the number of
    units not linked to the previous one in their slot; the slots are updated.
    """
    words = units.view(">i4").astype(np.int64)
    offsets = words[:, 1] << 32 | words[:, 2] & 0xFFFFFFFF
    plain, by_number = _added_up(seed, number, offsets, words[:, 0], words[:, 3])
    wrong = 0
    for at, (value, *_, previous) in enumerate(words.tolist() if slots.size else ()):
        slot = (value & 0x7FFFFFFF) % slots.size
        wrong += previous != slots[slot]
        slots[slot] = np.array(number + at).astype(np.int32)
    return plain, by_number, wrong
