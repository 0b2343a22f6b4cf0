"""Compiled comparison of a consume queue's units with the records that they should name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

NOTHING = 0
HOLE = 1
EXPIRED = 2
BEYOND_LOG = 3
LOST = 4
RIGHT = 5
WRONG = 6

_PRE_BLANK_SIZE = 0x7FFFFFFF


@njit(cache=True, nogil=True)
def _in_ranges(offset: int, starts: Any, stops: Any) -> bool:
    low, high = 0, starts.size
    while low < high:
        middle = (low + high) // 2
        if starts[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low > 0 and offset < stops[low - 1]


@njit(cache=True, nogil=True)
def classify_units(
    phy_offsets: Any, sizes: Any, tags_codes: Any, first_index: int, min_offset: int, log_end: int,
    damage_starts: Any, damage_stops: Any,
    row_index: Any, row_offset: Any, row_size: Any, row_tags: Any, row_lost: Any,
    classes: Any, missing: Any,
) -> int:
    """Class of every cell of a stretch of one queue; how many cells are in use.

    The cells start at queue offset `first_index`. Rows are the positions that should be held, ascending
    by `row_index`, all inside or behind the stretch; `row_lost` marks those that stand for a lost
    message. Fills `classes` (uint8 a cell) and `missing` (bool a row). The first cell with size <= 0
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
        elif offset < min_offset:
            classes[cell] = EXPIRED
        elif expected and row_lost[row]:
            classes[cell] = LOST
        elif offset + size > log_end:
            classes[cell] = BEYOND_LOG
        elif not expected and _in_ranges(offset, damage_starts, damage_stops):
            classes[cell] = LOST
        elif (
            expected and offset == row_offset[row] and size == row_size[row] and tags_codes[cell] == row_tags[row]
        ):
            classes[cell] = RIGHT
        else:
            classes[cell] = WRONG
        if expected:
            row += 1
    while row < rows:
        missing[row] = not row_lost[row]
        row += 1
    return used
