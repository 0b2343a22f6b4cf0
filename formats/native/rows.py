"""Passes over rows in log order: queue by queue, where each stands, what the whole log has; in C in `rows.c`."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.native.library import BOOL, Array, kernel
from formats.record.rows import (
    BIT_FILLER,
    BIT_GHOST,
    BIT_MARKER,
    BIT_MISNUMBERED,
    BIT_SUPERSEDED,
    EXPECTED,
    NO_MESSAGE,
    NOT_IN_QUEUE,
    RECORD,
)
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT

MESSAGES, FILLERS, MARKERS, LAST_TIME, NEWEST_TIME, BITS, FLAGS = range(7)
TOTALS = 7

_RECORDS = Array(RECORD)
_NUMBERS = Array(np.int64)
_NUMBERS_OUT = Array(np.int64, out=True)


def numbered(records: Any) -> Any:
    """Whether the queue offset of each row counts in its queue (bool): ordinary and committed messages, no filler."""
    kinds = records["sys_flag"] & TRANSACTION
    ordinary = (kinds == TRANSACTION_NOT) | (kinds == TRANSACTION_COMMIT)
    return ordinary & (records["bits"] & BIT_FILLER == 0)


@kernel(records=_RECORDS, last_offset=_NUMBERS_OUT, reached=_NUMBERS_OUT, returns=None)
def note_last(records: Any, last_offset: Any, reached: Any) -> None:
    """Put the queue offset of each queue's last numbered row into `last_offset` (int64, one a queue).

    `reached` (the same) is how far the queue has come for certain: a row that leaps ahead may have a wrong number, and
    counts once the next one follows it.
    """
    for queue, offset in records[["queue", "queue_offset"]][numbered(records)].tolist():
        if 0 <= queue < min(last_offset.size, reached.size):
            if offset - 1 <= reached[queue] or offset - 1 == last_offset[queue]:
                reached[queue] = offset
            last_offset[queue] = offset


@kernel(
    records=_RECORDS, wanted=Array(np.bool_), next_place=_NUMBERS_OUT, stops=_NUMBERS, out=Array(EXPECTED, out=True),
    returns=BOOL,
)
def group_rows(records: Any, wanted: Any, next_place: Any, stops: Any, out: Any) -> bool:
    """Copy the live rows that have a position in a wanted queue (bool, one a queue), queue by queue.

    `next_place` (int64, one a queue) says where in `out` a queue's next row goes, and is updated; `stops` where its
    room ends. False when that is too small.
    """
    placed = numbered(records) & (records["bits"] & NOT_IN_QUEUE == 0)
    for number in np.flatnonzero(placed).tolist():
        queue = int(records["queue"][number])
        if 0 <= queue < min(wanted.size, next_place.size, stops.size) and wanted[queue]:
            place = int(next_place[queue])
            if not 0 <= place < min(int(stops[queue]), out.size):
                return False
            for name in EXPECTED.names or ():
                out[name][place] = records[name][number]
            next_place[queue] = place + 1
    return True


@kernel(
    records=_RECORDS, last_offset=_NUMBERS_OUT, fallen=Array(np.bool_, out=True), counts=_NUMBERS_OUT,
    lowest=_NUMBERS_OUT, highest=_NUMBERS_OUT, totals=Array(np.int64, out=True, least=TOTALS), returns=None,
)
def tally_rows(
    records: Any, last_offset: Any, fallen: Any, counts: Any, lowest: Any, highest: Any, totals: Any
) -> None:
    """Add the rows of one split (RECORD, in log order) to what earlier calls counted.

    One a queue: `last_offset` (int64, -1 at first) is the queue offset of its last numbered row that is no ghost, and
    `fallen` (bool) is set where one does not step up from it; `counts` (int64) are rows with a position, `lowest` and
    `highest` (int64) their queue offsets. `totals` (int64[TOTALS]): messages, fillers, markers, last and newest
    store timestamp (ms), and all bits and all system flags that live rows have, or-ed.
    """
    queues = min(last_offset.size, fallen.size, counts.size, lowest.size, highest.size)
    rows = records[(records["bits"] & BIT_GHOST == 0) & (records["queue"] >= 0) & (records["queue"] < queues)]
    bits = rows["bits"]
    live = bits & BIT_SUPERSEDED == 0
    placed = live & (bits & BIT_MISNUMBERED == 0)
    in_queue = numbered(rows)
    for queue, offset, has_place in zip(
        rows["queue"][in_queue].tolist(), rows["queue_offset"][in_queue].tolist(), placed[in_queue].tolist(),
        strict=True,
    ):
        fallen[queue] |= offset <= last_offset[queue]
        last_offset[queue] = offset
        if has_place:
            lowest[queue], highest[queue] = min(lowest[queue], offset), max(highest[queue], offset)
            counts[queue] += 1
    totals[MESSAGES] += np.count_nonzero(bits & NO_MESSAGE == 0)
    totals[FILLERS] += np.count_nonzero(bits & BIT_FILLER)
    totals[MARKERS] += np.count_nonzero(bits & BIT_MARKER)
    if rows.size:
        totals[LAST_TIME] = rows["store_timestamp"][-1]
        totals[NEWEST_TIME] = max(totals[NEWEST_TIME], rows["store_timestamp"].max())
    totals[BITS] |= int(np.bitwise_or.reduce(bits[live]))
    totals[FLAGS] |= int(np.bitwise_or.reduce(rows["sys_flag"][live]))
