"""Compiled comparison of a consume queue's units with the records that they should name."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import BOOL, INT, Array, kernel, part

NOTHING = 0
HOLE = 1
EXPIRED = 2
BEYOND_LOG = 3
LOST = 4
RIGHT = 5
WRONG = 6

_NUMBERS = Array(np.int64)
_PRE_BLANK_SIZE = 0x7FFFFFFF


@part
def _in_ranges(offset: int, starts: Any, stops: Any) -> bool:
    low, high = 0, starts.size
    while low < high:
        middle = (low + high) // 2
        if starts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low > 0 and offset < stops[low - 1]


@part
def _repeats(phy_offsets: Any, sizes: Any, cell: int) -> bool:
    """The cell names the same record as the cell in front of it or behind it."""
    if cell > 0 and phy_offsets[cell - 1] == phy_offsets[cell] and sizes[cell - 1] == sizes[cell]:
        return True
    behind = cell + 1
    return behind < sizes.size and phy_offsets[behind] == phy_offsets[cell] and sizes[behind] == sizes[cell]


@kernel(
    phy_offsets=_NUMBERS, sizes=Array(np.int32), tags_codes=_NUMBERS, first_index=INT, min_offset=INT, log_end=INT,
    damage_starts=_NUMBERS, damage_stops=_NUMBERS,
    row_index=_NUMBERS, row_offset=_NUMBERS, row_size=Array(np.int32), row_tags=_NUMBERS, row_lost=Array(np.bool_),
    bridged=BOOL, classes=Array(np.uint8, out=True), missing=Array(np.bool_, out=True), returns=INT,
)
def classify_units(
    phy_offsets: Any, sizes: Any, tags_codes: Any, first_index: int, min_offset: int, log_end: int,
    damage_starts: Any, damage_stops: Any,
    row_index: Any, row_offset: Any, row_size: Any, row_tags: Any, row_lost: Any,
    bridged: bool, classes: Any, missing: Any,
) -> int:
    """Class of every cell of a stretch of one queue; how many cells are in use.

    The cells start at queue offset `first_index`. Rows are the positions that should be held, ascending
    by `row_index`, all inside or behind the stretch; `row_lost` marks those that stand for a lost
    message: its cell may name the marker or repeat a neighbour. A unit of an expired message where a live one is
    expected, or between live ones, is wrong. A cell that no record claims may repeat a neighbour too, between live
    ones or, with `bridged`, where the log is damaged or was, anywhere. Fills `classes` (uint8 a cell) and `missing`
    (bool a row). The first cell with size <= 0
    ends the queue: it and everything behind it is NOTHING.
    """
    cells = phy_offsets.size
    rows = row_index.size
    row = 0
    used = cells
    for cell in range(cells):
        if sizes[cell] <= 0:
            used = cell
            break
        index = first_index + cell
        while row < rows and row_index[row] < index:
            missing[row] = not row_lost[row]
            row += 1
        expected = row < rows and row_index[row] == index
        offset = phy_offsets[cell]
        size = np.int64(sizes[cell])
        if offset == 0 and size == _PRE_BLANK_SIZE and tags_codes[cell] == 0:
            classes[cell] = HOLE
            if expected:
                missing[row] = not row_lost[row]
        elif offset < 0:
            # no broker writes one, and ConsumeQueue.recover takes it for the end of the queue
            classes[cell] = WRONG
        elif offset < min_offset and not (expected and not row_lost[row]) and not 0 < row < rows:
            classes[cell] = EXPIRED
        elif expected and row_lost[row]:
            stands_in = offset == row_offset[row] and size == row_size[row]
            classes[cell] = LOST if stands_in or _repeats(phy_offsets, sizes, cell) else WRONG
        elif offset + size > log_end:
            classes[cell] = BEYOND_LOG
        elif not expected and _in_ranges(offset, damage_starts, damage_stops):
            classes[cell] = LOST
        elif (
            expected and offset == row_offset[row] and size == row_size[row] and tags_codes[cell] == row_tags[row]
        ):
            classes[cell] = RIGHT
        elif not expected and (bridged or 0 < row < rows) and _repeats(phy_offsets, sizes, cell):
            classes[cell] = LOST
        else:
            classes[cell] = WRONG
        if expected:
            row += 1
    while row < rows:
        missing[row] = not row_lost[row]
        row += 1
    return used
