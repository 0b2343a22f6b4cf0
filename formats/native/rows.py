"""Passes over rows in log order: last queue offsets, grouping by queue, tallies of the whole log; in C in `rows.c`."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.consumequeue import CQ_UNIT
from formats.native.library import BOOL, INT, Array, kernel
from formats.record.rows import (
    BIT_FILLER,
    BIT_MARKER,
    BIT_MISNUMBERED,
    BIT_STALE,
    BIT_SUPERSEDED,
    EXPECTED,
    NO_MESSAGE,
    NOT_IN_QUEUE,
    QUEUE_TALLY,
    RECORD,
)
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT

MESSAGES, FILLERS, MARKERS, LAST_TIME, NEWEST_TIME, BITS, FLAGS = range(7)
TOTALS = 7

CQ_UNIT_SIZE, CQ_UNIT_SIZE_AT, CQ_UNIT_TAGS_AT = CQ_UNIT.size, CQ_UNIT.offset("size"), CQ_UNIT.offset("tags_code")

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

    `reached` (the same) is the offset that the queue has certainly reached: an offset that jumps ahead may be wrong,
    and counts only once the next row follows it.
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

    `next_place` (int64, one a queue): place in `out` of the queue's next row, updated; `stops`: end of its room. False
    if the room is too small.
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


def new_tally(queues: int) -> Any:
    """Return QUEUE_TALLY of so many queues without a row."""
    found = np.zeros(queues, dtype=QUEUE_TALLY)
    found["first"] = found["last"] = found["most"] = -1
    found["least"] = np.iinfo(np.int64).max
    return found


@kernel(
    records=_RECORDS, seed=INT, queues=Array(QUEUE_TALLY, out=True), totals=Array(np.int64, out=True, least=TOTALS),
    returns=None,
)
def tally_rows(records: Any, seed: int, queues: Any, totals: Any) -> None:
    """Add the rows of one split (RECORD, in log order) to the counts of earlier calls.

    For each of `queues`: `first` and `last` are the queue offsets of its first and last numbered row that is not stale,
    -1 without one; `fallen` is set if one does not exceed the one before; `positions` counts the rows with a position,
    `least` and `most` are their queue offsets, `bits` theirs ORed, and `sum` the `unit_sum` of their units. `totals`
    (int64[TOTALS]): messages, fillers, markers, last and newest store timestamp (ms), and all bits and all system flags
    of live rows, ORed.
    """
    rows = records[(records["bits"] & BIT_STALE == 0) & (records["queue"] >= 0) & (records["queue"] < queues.size)]
    bits = rows["bits"]
    live = bits & BIT_SUPERSEDED == 0
    placed = live & (bits & BIT_MISNUMBERED == 0)
    in_queue = numbered(rows)
    hashes = place_hashes(seed, rows["queue_offset"], rows["phy_offset"], rows["tags_code"], rows["size"])
    for number in np.flatnonzero(in_queue).tolist():
        queue, offset = queues[rows["queue"][number]], rows["queue_offset"][number]
        queue["fallen"] |= offset <= queue["last"]
        queue["first"] = offset if queue["last"] == -1 else queue["first"]
        queue["last"] = offset
        if placed[number]:
            queue["least"], queue["most"] = min(queue["least"], offset), max(queue["most"], offset)
            queue["positions"] += 1
            queue["sum"] = int(queue["sum"]) + int(hashes[number]) & _WORD
            queue["bits"] |= bits[number]
    totals[MESSAGES] += np.count_nonzero(bits & NO_MESSAGE == 0)
    totals[FILLERS] += np.count_nonzero(bits & BIT_FILLER)
    totals[MARKERS] += np.count_nonzero(bits & BIT_MARKER)
    if rows.size:
        totals[LAST_TIME] = rows["store_timestamp"][-1]
        totals[NEWEST_TIME] = max(totals[NEWEST_TIME], rows["store_timestamp"].max())
    totals[BITS] |= int(np.bitwise_or.reduce(bits[live]))
    totals[FLAGS] |= int(np.bitwise_or.reduce(rows["sys_flag"][live]))


@kernel(units=Array(np.uint8), first=INT, seed=INT, returns=INT)
def unit_sum(units: Any, first: int, seed: int) -> int:
    """Return the sum, modulo 2 ** 64 and signed, of a hash of each unit and its queue offset, which start at `first`.

    `units` are their bytes. Without knowledge of the seed, nobody can construct two different sets of units with one
    sum.
    """
    found = units[: units.size // CQ_UNIT.size * CQ_UNIT.size].view(CQ_UNIT.dtype)
    places = np.arange(found.size, dtype=np.int64) + first
    hashes = place_hashes(seed, places, found["phy_offset"], found["tags_code"], found["size"])
    total = int(np.add.reduce(hashes, dtype=np.uint64))
    return total - (1 << 64) if total >> 63 else total


_WORD = (1 << 64) - 1
_FACTORS = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93


def place_hashes(seed: int, *columns: Any) -> Any:
    """Return a hash (uint64) of each row of some integer columns."""
    found = np.full(columns[0].size, seed & _WORD, dtype=np.uint64)
    for column in columns:
        found ^= column.astype(np.int64).view(np.uint64)
        for factor in _FACTORS:
            found = (found ^ (found >> np.uint64(32))) * np.uint64(factor)
    return found ^ (found >> np.uint64(32))


# --- Messages as lines of JSON or rows of CSV; in C in `lines.c`.


@kernel(
    data=Array(np.uint8), starts=Array(np.int64), sizes=Array(np.int64), first=INT, csv=BOOL, file=Array(np.uint8),
    at=INT, lines=Array(np.uint8, out=True), returns=(INT, INT),
)
def write_lines(
    data: Any, starts: Any, sizes: Any, first: int, csv: bool, file: Any, at: int, lines: Any
) -> tuple[int, int]:
    """Write lines of records; return (number of the first record without a line, bytes of `lines` used).

    Records are data[starts[i]:starts[i] + sizes[i]], from number `first` on. The call ends at a record with size 0, at
    one that is in doubt, or that might not fit into `lines`. In `csv` rows text is quoted, null is empty, and
    properties are one JSON text. `file` is the encoded beginning of each record's `place`, and `at` the position of
    `data` in that file. It may only say yes; the Python version writes none.
    """
    return first, 0
