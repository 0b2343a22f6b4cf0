"""One compiled pass over the rows of a log: what each queue has, what the whole log has, where queues fall back."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import Array, kernel, part
from formats.kernels.generations import is_numbered
from formats.kernels.index_wanted import (
    SPAN_FIRST,
    SPAN_LAST,
    SPAN_RECORDS,
    SPAN_UNITS,
    STAND_IN,
    TAKE_ALL,
    TAKE_KEYS,
    wanted_by,
)
from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_MARKER, BIT_STRAY, BIT_SUPERSEDED, NO_MESSAGE, RECORD

TOTALS = 7
MESSAGES = 0
FILLERS = 1
MARKERS = 2
LAST_TIME = 3
NEWEST_TIME = 4
BITS = 5
FLAGS = 6

_NUMBERS = Array(np.int64, out=True)


@kernel(
    records=Array(RECORD), last_offset=_NUMBERS, fallen=Array(np.bool_, out=True), counts=_NUMBERS, least=_NUMBERS,
    most=_NUMBERS, totals=_NUMBERS, spans=Array(np.int64, 2, out=True), returns=None,
)
def tally_rows(
    records: Any, last_offset: Any, fallen: Any, counts: Any, least: Any, most: Any, totals: Any, spans: Any
) -> None:
    """Add the rows of one split (RECORD, in log order) to what earlier calls counted.

    One a queue: `last_offset` (int64, -1 at first) is the queue offset of its last numbered row that is no ghost, and
    `fallen` (bool) is set where one does not step up from it; `counts` (int64) are rows with a position, `least` and
    `most` (int64) their queue offsets. `totals` (int64[TOTALS]): messages, fillers, markers, last and newest
    store timestamp (ms), and all bits and all system flags that live rows have, or-ed. `spans` (int64[2, SPAN]): what
    an index should have of the rows by TAKE_KEYS, and by TAKE_ALL; without any (int64[0, SPAN]) nobody asks.
    """
    # kept at hand: as far as the compiler knows, any of these arrays may share its memory with any other
    messages, fillers, markers = np.int64(0), np.int64(0), np.int64(0)
    last_time, newest_time, all_bits, all_flags = totals[LAST_TIME], totals[NEWEST_TIME], totals[BITS], totals[FLAGS]
    units, indexed, of_keys, with_keys = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    counts_units = spans.shape[0] > 0
    for row in range(records.size):
        record = records[row]
        bits = record.bits
        if bits & BIT_GHOST:
            continue
        if counts_units:
            wanted = wanted_by(TAKE_KEYS, record.hashes, bits)
            of_keys += wanted
            with_keys += wanted > 0
            wanted = wanted_by(TAKE_ALL, record.hashes, bits)
            units += wanted
            indexed += wanted > 0
        queue = np.uint64(record.queue)
        offset = record.queue_offset
        numbered = is_numbered(record.sys_flag, bits)
        if numbered:
            if offset <= last_offset[queue]:
                fallen[queue] = True
            last_offset[queue] = offset
        last_time = record.store_timestamp
        newest_time = max(newest_time, last_time)
        if bits & STAND_IN:
            fillers += bits & BIT_FILLER != 0
            markers += bits & BIT_MARKER != 0
        if bits & BIT_SUPERSEDED:
            continue
        if bits & NO_MESSAGE == 0:
            messages += 1
        all_bits |= bits
        all_flags |= record.sys_flag
        if numbered and bits & BIT_STRAY == 0:
            if offset < least[queue]:
                least[queue] = offset
            if offset > most[queue]:
                most[queue] = offset
            counts[queue] += 1
    totals[MESSAGES] += messages
    totals[FILLERS] += fillers
    totals[MARKERS] += markers
    totals[LAST_TIME], totals[NEWEST_TIME], totals[BITS], totals[FLAGS] = last_time, newest_time, all_bits, all_flags
    if counts_units:
        _add(spans[0], of_keys, with_keys, records, TAKE_KEYS)
        _add(spans[1], units, indexed, records, TAKE_ALL)


@part
def _add(span: Any, units: Any, indexed: Any, records: Any, rule: int) -> None:
    """Add what rows call for by a rule to a span. The first and the last row that call for any are near the ends."""
    if indexed == 0:
        return
    span[SPAN_UNITS] += units
    span[SPAN_RECORDS] += indexed
    row = records.size - 1
    while row > 0 and not _is_indexed(records[row], rule):
        row -= 1
    span[SPAN_LAST] = records[row].phy_offset
    if span[SPAN_FIRST] >= 0:
        return
    row = 0
    while row < records.size - 1 and not _is_indexed(records[row], rule):
        row += 1
    span[SPAN_FIRST] = records[row].phy_offset


@part
def _is_indexed(record: Any, rule: int) -> bool:
    return bool(wanted_by(rule, record.hashes, record.bits) > 0)
