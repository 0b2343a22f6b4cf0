"""One compiled pass over the rows of a log: what each queue has, what the whole log has, where queues fall back."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import Array, kernel
from formats.kernels.generations import is_numbered
from formats.kernels.index_wanted import TAKE_KEYS, add_to_span, wanted_by
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
    store timestamp (ms), and all bits and all system flags that live rows have, or-ed. `spans` (int64[:, SPAN]): what
    an index should have of the rows by TAKE_KEYS, and by the rule behind it; none are counted into none.
    """
    for row in range(records.size):
        record = records[row]
        bits = record.bits
        if bits & BIT_GHOST:
            continue
        for rule in range(spans.shape[0]):
            add_to_span(spans[rule], wanted_by(TAKE_KEYS + rule, record.hashes, bits), record.phy_offset)
        queue = record.queue
        offset = record.queue_offset
        numbered = is_numbered(record.sys_flag, bits)
        if numbered:
            if offset <= last_offset[queue]:
                fallen[queue] = True
            last_offset[queue] = offset
        totals[LAST_TIME] = record.store_timestamp
        totals[NEWEST_TIME] = max(totals[NEWEST_TIME], record.store_timestamp)
        if bits & BIT_FILLER:
            totals[FILLERS] += 1
        if bits & BIT_MARKER:
            totals[MARKERS] += 1
        if bits & BIT_SUPERSEDED:
            continue
        if bits & NO_MESSAGE == 0:
            totals[MESSAGES] += 1
        totals[BITS] |= bits
        totals[FLAGS] |= record.sys_flag
        if numbered and bits & BIT_STRAY == 0:
            least[queue] = min(least[queue], offset)
            most[queue] = max(most[queue], offset)
            counts[queue] += 1
