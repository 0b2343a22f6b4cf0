"""Passes over rows in log order: queues renumbered, where each stands, what the whole log has; in C in
`rows.c`."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.native.library import BOOL, INT, Array, kernel
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


@kernel(records=Array(RECORD, out=True), numbers=Array(np.int32), returns=None)
def renumber(records: Any, numbers: Any) -> None:
    """Call the queue of each row (RECORD) what `numbers` (int32, one a queue) says that it is called."""
    queues = records["queue"]
    known = (queues >= 0) & (queues < numbers.size)
    records["queue"][known] = numbers[queues[known]]


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
    records=_RECORDS, first=INT, wanted=Array(np.bool_), next_place=_NUMBERS_OUT, stops=_NUMBERS, order=_NUMBERS_OUT,
    returns=BOOL,
)
def order_rows(records: Any, first: int, wanted: Any, next_place: Any, stops: Any, order: Any) -> bool:
    """Note where the live rows are that have a position in a wanted queue (bool, one a queue), queue by queue.

    Rows are numbered in log order, the first of `records` is `first`. `next_place` (int64, one a queue) says where in
    `order` (int64) the number of a queue's next row goes, and is updated; `stops` where its room ends. False when that
    is too small.
    """
    placed = numbered(records) & (records["bits"] & NOT_IN_QUEUE == 0)
    for number in np.flatnonzero(placed).tolist():
        queue = int(records["queue"][number])
        if 0 <= queue < min(wanted.size, next_place.size, stops.size) and wanted[queue]:
            place = int(next_place[queue])
            if not 0 <= place < min(int(stops[queue]), order.size):
                return False
            order[place] = first + number
            next_place[queue] = place + 1
    return True


@kernel(
    records=_RECORDS, first=INT, queues=_NUMBERS, next_place=_NUMBERS_OUT, stops=_NUMBERS, order=_NUMBERS, start=INT,
    out=Array(EXPECTED, out=True), returns=None,
)
def take_rows(
    records: Any, first: int, queues: Any, next_place: Any, stops: Any, order: Any, start: int, out: Any
) -> None:
    """Copy the rows of `records` that some queues have next in `order`, as `order_rows` has left it.

    What is noted at `start` of `order` goes to the beginning of `out`. `next_place` (int64, one a queue) is updated,
    `stops` is where the queue's rows end. Rows come split by split, `first` is the number of the first one here.
    """
    for queue in queues.tolist():
        if not 0 <= queue < min(next_place.size, stops.size):
            continue
        place = int(next_place[queue])
        stop = min(int(stops[queue]), order.size, start + out.size)
        while start <= place < stop and 0 <= order[place] - first < records.size:
            for name in EXPECTED.names or ():
                out[name][place - start] = records[name][order[place] - first]
            place += 1
        next_place[queue] = place


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
