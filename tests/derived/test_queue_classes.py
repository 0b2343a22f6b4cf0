"""The class that a cell of a queue gets from the log, clause by clause."""

from __future__ import annotations

import numpy as np
import pytest

from formats.consumequeue import PRE_BLANK
from formats.record.rows import BIT_MARKER, EXPECTED
from recover.derived.expected import BEYOND_LOG, EXPIRED, LOST, NOTHING, PRE_BLANK_UNIT, RIGHT, WRONG
from recover.derived.queue_check import classify_units

Cell = tuple[int, int, int]
GOOD: Cell = (1_100, 100, 7)
BLANK: Cell = (0, 0, 0)


def classes(
    *cells: Cell, rows: tuple[tuple[int, int, int], ...] = (), bridged: bool = False
) -> tuple[list[int], list[bool]]:
    """Of cells from queue offset 5 on, in a log of [1000, 2000) with damage in [1500, 1600)."""
    units = np.array(cells, dtype=np.int64)
    expected = np.zeros(len(rows), dtype=EXPECTED)
    for row, (place, offset, bits) in zip(expected, rows, strict=True):
        row["queue_offset"], row["phy_offset"], row["size"], row["bits"] = place, offset, 100, bits
    tags = np.full(len(rows), 7, dtype=np.int64)
    bounds = 1000, 2000, np.array([1500]), np.array([1600])
    found, missing = classify_units(
        5, units[:, 0], units[:, 1].astype(np.int32), units[:, 2], expected, tags, bounds, bridged=bridged
    )
    return found.tolist(), missing.tolist()


@pytest.mark.parametrize(("cell", "kind", "is_missing"), [
    (GOOD, RIGHT, False),
    ((1_100, 100, 8), WRONG, False),
    ((1_100, 101, 7), WRONG, False),
    ((1_200, 100, 7), WRONG, False),
    ((-1, 100, 7), WRONG, False),
    ((900, 100, 7), WRONG, False),
    ((1_550, 100, 7), WRONG, False),
    ((1_950, 100, 7), BEYOND_LOG, False),
    (PRE_BLANK, PRE_BLANK_UNIT, True),
    (BLANK, NOTHING, True),
])
def test_cell_of_an_expected_message(cell: Cell, kind: int, is_missing: bool) -> None:
    assert classes(cell, rows=((5, 1_100, 0),)) == ([kind], [is_missing])


@pytest.mark.parametrize(("cell", "kind"), [
    (GOOD, WRONG), ((900, 100, 7), EXPIRED), ((1_550, 100, 7), LOST), ((1_901, 100, 7), BEYOND_LOG),
    (PRE_BLANK, PRE_BLANK_UNIT),
])
def test_cell_that_no_message_claims(cell: Cell, kind: int) -> None:
    assert classes(cell) == ([kind], [])


def test_cell_of_a_lost_message_names_its_marker_or_repeats_a_neighbour() -> None:
    rows = (5, 1_100, 0), (6, 1_200, BIT_MARKER)
    for cell, kind in (((1_200, 100, 0), LOST), (GOOD, LOST), ((1_300, 100, 7), WRONG)):
        assert classes(GOOD, cell, rows=rows) == ([RIGHT, kind], [False, False])


def test_repetition_stands_for_a_lost_message_between_live_ones_or_where_the_log_was_bridged() -> None:
    last = (5, 1_100, 0)
    assert classes(GOOD, GOOD, rows=(last,))[0] == [RIGHT, WRONG]
    assert classes(GOOD, GOOD, rows=(last,), bridged=True)[0] == [RIGHT, LOST]
    assert classes(GOOD, GOOD, (1_300, 100, 7), rows=(last, (7, 1_300, 0)))[0] == [RIGHT, LOST, RIGHT]


def test_unit_of_an_expired_message_between_live_ones_is_wrong() -> None:
    rows = (5, 1_100, 0), (7, 1_300, 0)
    assert classes(GOOD, (900, 100, 7), (1_300, 100, 7), rows=rows)[0] == [RIGHT, WRONG, RIGHT]


def test_nothing_counts_after_the_first_cell_without_a_unit() -> None:
    rows = (5, 1_100, 0), (6, 1_200, 0), (9, 1_300, 0)
    assert classes(GOOD, BLANK, (1_200, 100, 7), rows=rows) == ([RIGHT, NOTHING, NOTHING], [False, True, True])
