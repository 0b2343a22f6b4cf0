"""Which units the records of a split should have in an index, and how many of those were found.

Records are RECORD rows with their hashes in record order. `found` has a bit for each hash. Source: broker classes
IndexService and IndexFile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import INT, Array, kernel, part
from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_HAS_TAGS, BIT_MARKER, RECORD

TAKE_NOTHING = 0
TAKE_KEYS = 1
TAKE_ALL = 2

SPAN = 4
SPAN_UNITS, SPAN_RECORDS, SPAN_FIRST, SPAN_LAST = range(SPAN)

STAND_IN = BIT_FILLER | BIT_MARKER
"""Records that stand in for lost ones."""
UNINDEXED = BIT_GHOST | STAND_IN
"""Records with any of these have no units."""
_RECORDS = Array(RECORD)
TAKE = Array(np.uint8, some=True)
"""TAKE_NOTHING, TAKE_KEYS or TAKE_ALL of each record of a split, or one of them for all; see `wanted_keys`."""


@part
def wanted_by(rule: int, hashes: int, bits: int) -> int:
    """How many of a record's hashes are put by a rule: all, those of its keys without the one of its tags, or none."""
    if rule == TAKE_NOTHING or bits & UNINDEXED:
        return 0
    if rule == TAKE_KEYS and bits & BIT_HAS_TAGS and hashes > 0:
        return hashes - 1
    return hashes


@part
def wanted_keys(hashes: int, bits: int, row: int, take: Any) -> int:
    """The same where `take` has the rule for each row of the split, or one for all."""
    return wanted_by(take[row] if take.size > 1 else take[0], hashes, bits)


@part
def add_to_span(span: Any, wanted: int, phy_offset: int) -> None:
    """Add a record that should have so many units to a span (int64[SPAN])."""
    if wanted:
        span[SPAN_UNITS] += wanted
        span[SPAN_RECORDS] += 1
        span[SPAN_LAST] = phy_offset
        if span[SPAN_FIRST] < 0:
            span[SPAN_FIRST] = phy_offset


@part
def is_set(bits: Any, at: int) -> bool:
    return bool((bits[at >> 3] >> (at & 7)) & 1 != 0)


@part
def set_bit(bits: Any, at: int) -> None:
    bits[at >> 3] |= 1 << (at & 7)


@kernel(records=_RECORDS, take=TAKE, span=Array(np.int64, out=True), returns=None)
def add_wanted(records: Any, take: Any, span: Any) -> None:
    """Add to `span` (int64[SPAN]) what the records of a split should have, `take` (uint8) of each, or of all.

    Units, records that should have any, and phy offset of the first of these (as it was if not below 0) and the last.
    """
    for row in range(records.size):
        record = records[row]
        add_to_span(span, wanted_keys(record.hashes, record.bits, row, take), record.phy_offset)


@kernel(records=_RECORDS, found=Array(np.uint8), take=TAKE, missing=Array(np.int32, out=True), returns=INT)
def count_missing(records: Any, found: Any, take: Any, missing: Any) -> int:
    """How many units each record lacks, into `missing` (int32); how many units the split should have."""
    first = 0
    expected = 0
    for row in range(records.size):
        keys = records[row].hashes
        wanted = wanted_keys(keys, records[row].bits, row, take)
        lacking = 0
        for key in range(wanted):
            if not is_set(found, first + key):
                lacking += 1
        missing[row] = lacking
        expected += wanted
        first += keys
    return expected
