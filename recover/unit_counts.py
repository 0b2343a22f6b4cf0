"""How many units an index of a log should have, counted as its rows come."""

from __future__ import annotations

import numpy as np

from formats.index_wanted_kernels import SPAN_FIRST, SPAN_LAST, SPAN_RECORDS, TAKE_ALL, TAKE_KEYS, add_wanted
from recover.columns import Rows

_RULES = (TAKE_KEYS, TAKE_ALL)


class UnitCounts:
    """What rows call for if the same of TAKE_KEYS and TAKE_ALL is right for all of them."""

    def __init__(self) -> None:
        self._spans = {rule: np.array([0, 0, -1, -1], dtype=np.int64) for rule in _RULES}
        self._take = {rule: np.array([rule], dtype=np.uint8) for rule in _RULES}

    def add(self, records: Rows) -> None:
        """Count these rows, in log order."""
        for rule in _RULES:
            add_wanted(np.asarray(records), self._take[rule], self._spans[rule])

    def join(self, behind: UnitCounts) -> None:
        """Take over what was counted of rows behind."""
        for rule in _RULES:
            mine, more = self._spans[rule], behind._spans[rule]
            mine[:SPAN_FIRST] += more[:SPAN_FIRST]
            if more[SPAN_RECORDS]:
                mine[SPAN_LAST] = more[SPAN_LAST]
                if mine[SPAN_FIRST] < 0:
                    mine[SPAN_FIRST] = more[SPAN_FIRST]

    def wanted(self, rule: int) -> tuple[int, int, int, int]:
        """Units, records that have any, phy offsets of the first and the last of these (-1 for none)."""
        units, records, first, last = self._spans[rule].tolist()
        return units, records, first, last
