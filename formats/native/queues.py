"""Consume queues: their units against the records that they should name; in C in `queues.c`.

Source: broker class ConsumeQueue.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from formats.consumequeue import PRE_BLANK
from formats.native.library import BOOL, INT, Array, kernel

NOTHING, HOLE, EXPIRED, BEYOND_LOG, LOST, RIGHT, WRONG = range(7)
"""Classes of a unit."""

_BYTES_OUT = Array(np.uint8, out=True)
_NUMBERS = Array(np.int64)


@kernel(
    phy_offsets=_NUMBERS, sizes=Array(np.int32), tags_codes=_NUMBERS, first_index=INT, min_offset=INT, log_end=INT,
    damage_starts=_NUMBERS, damage_stops=_NUMBERS,
    row_index=_NUMBERS, row_offset=_NUMBERS, row_size=Array(np.int32), row_tags=_NUMBERS, row_lost=Array(np.bool_),
    bridged=BOOL, classes=_BYTES_OUT, missing=Array(np.bool_, out=True), returns=INT,
)
def classify_units(
    phy_offsets: Any, sizes: Any, tags_codes: Any, first_index: int, min_offset: int, log_end: int,
    damage_starts: Any, damage_stops: Any,
    row_index: Any, row_offset: Any, row_size: Any, row_tags: Any, row_lost: Any,
    bridged: bool, classes: Any, missing: Any,
) -> int:
    """Class of every cell of a stretch of one queue; how many cells are in use.

    The cells start at queue offset `first_index`. Rows are the positions that should be held, ascending
    by `row_index`, all inside or after the stretch; `row_lost` marks those of a lost message: its cell may name the
    marker or repeat a neighbour. A unit of an expired message where a live one is
    expected, or between live ones, is wrong. A cell that no record claims may repeat a neighbour too, between live
    ones or, with `bridged`, where the log is damaged or was, anywhere. Fills `classes` (uint8 a cell) and `missing`
    (bool a row). The first cell with size <= 0 ends the queue: it and everything after it is NOTHING.
    """
    cells = list(zip(phy_offsets.tolist(), sizes.tolist(), tags_codes.tolist(), strict=True))
    rows = list(zip(
        row_index.tolist(), row_offset.tolist(), row_size.tolist(), row_tags.tolist(), row_lost.tolist(), strict=True
    ))
    starts, stops = damage_starts.tolist(), damage_stops.tolist()

    def repeats(cell: int) -> bool:
        near = [cells[at][:2] for at in (cell - 1, cell + 1) if 0 <= at < len(cells)]
        return cells[cell][:2] in near

    def is_damaged(offset: int) -> bool:
        at = bisect_right(starts, offset)
        return at > 0 and offset < stops[at - 1]

    row = 0
    used = len(cells)
    for cell, (offset, size, tags_code) in enumerate(cells):
        if size <= 0:
            used = cell
            break
        index = first_index + cell
        while row < len(rows) and rows[row][0] < index:
            missing[row] = not rows[row][4]
            row += 1
        expected = row < len(rows) and rows[row][0] == index
        lost = expected and rows[row][4]
        inside = 0 < row < len(rows)
        if (offset, size, tags_code) == PRE_BLANK:
            kind = HOLE
            if expected:
                missing[row] = not lost
        elif offset < 0:
            # no broker writes one, and ConsumeQueue.recover takes it for the end of the queue
            kind = WRONG
        elif offset < min_offset and not (expected and not lost) and not inside:
            kind = EXPIRED
        elif lost:
            kind = LOST if (offset, size) == rows[row][1:3] or repeats(cell) else WRONG
        elif offset + size > log_end:
            kind = BEYOND_LOG
        elif not expected and is_damaged(offset):
            kind = LOST
        elif expected and (offset, size, tags_code) == rows[row][1:4]:
            kind = RIGHT
        else:
            kind = LOST if not expected and (bridged or inside) and repeats(cell) else WRONG
        classes[cell] = kind
        row += expected
    for left in range(row, len(rows)):
        missing[left] = not rows[left][4]
    return used
