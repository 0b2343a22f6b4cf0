"""How many units an index of a log should have, counted as its rows come."""

from __future__ import annotations

import numpy as np

from formats.kernels.index_wanted import SPAN, SPAN_FIRST, SPAN_LAST, SPAN_RECORDS, TAKE_ALL, TAKE_KEYS
from recover.memory.columns import Rows

NO_SPANS = np.empty((0, SPAN), dtype=np.int64)
"""Where nobody counts units."""


class UnitCounts:
    """What rows call for if the same of TAKE_KEYS and TAKE_ALL is right for all of them.

    `spans` has one of each (int64[2, SPAN]), for `tally_rows` to count into.
    """

    def __init__(self) -> None:
        self.spans: Rows = np.array([[0, 0, -1, -1]] * (TAKE_ALL - TAKE_KEYS + 1), dtype=np.int64)

    def join(self, behind: UnitCounts) -> None:
        """Take over what was counted of rows behind."""
        for mine, more in zip(self.spans, behind.spans, strict=True):
            mine[:SPAN_FIRST] += more[:SPAN_FIRST]
            if more[SPAN_RECORDS]:
                mine[SPAN_LAST] = more[SPAN_LAST]
                if mine[SPAN_FIRST] < 0:
                    mine[SPAN_FIRST] = more[SPAN_FIRST]

    def wanted(self, rule: int) -> tuple[int, int, int, int]:
        """Units, records that have any, phy offsets of the first and the last of these (-1 for none)."""
        units, records, first, last = self.spans[rule - TAKE_KEYS].tolist()
        return units, records, first, last
