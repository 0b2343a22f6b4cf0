"""The live records around each damaged range of a log, found for all of them in one pass over its rows."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from formats.record_columns import BIT_GHOST
from recover.memory.columns import Rows
from recover.scan.log import Damage, LogView


class Neighbour(NamedTuple):
    """What matters of a record beside a range: its store timestamp (ms) and its bits."""

    store_timestamp: int
    bits: int


Pair = tuple[Neighbour | None, Neighbour | None]


class Surroundings:
    """Of the damaged ranges of one log, which stand in its order and do not overlap."""

    def __init__(self, log: LogView) -> None:
        self._log = log

    def of(self, damage: Damage) -> Pair:
        """The last live record in front of a range and the first behind it; None where there is none."""
        return self._all[damage.start]

    def times(self, damage: Damage) -> tuple[int, int]:
        """Store timestamps (ms) of these two; where there is but one of them its twice, 0 for none."""
        before, behind = (0 if neighbour is None else neighbour.store_timestamp for neighbour in self.of(damage))
        return before or behind, behind or before

    @cached_property
    def _all(self) -> dict[int, Pair]:
        damaged = self._log.damaged
        starts = np.array([damage.start for damage in damaged], dtype=np.int64)
        stops = np.array([damage.stop for damage in damaged], dtype=np.int64)
        fronts: list[Neighbour | None] = []
        backs: list[Neighbour | None] = []
        last: Neighbour | None = None
        for split in self._log.splits():
            live: Rows = split.records[(split.records["bits"] & BIT_GHOST) == 0]
            if not live.size:
                continue
            offsets = live["phy_offset"]
            end = int(np.searchsorted(starts, offsets[-1], side="right"))
            places = np.searchsorted(offsets, starts[len(fronts) : end]).tolist()
            fronts += [_neighbour(live, at - 1) if at else last for at in places]
            end = int(np.searchsorted(stops, offsets[-1], side="right"))
            backs += [_neighbour(live, at) for at in np.searchsorted(offsets, stops[len(backs) : end]).tolist()]
            last = _neighbour(live, live.size - 1)
        fronts += [last] * (len(damaged) - len(fronts))
        backs += [None] * (len(damaged) - len(backs))
        return dict(zip((damage.start for damage in damaged), zip(fronts, backs, strict=True), strict=True))


def _neighbour(rows: Rows, at: int) -> Neighbour:
    return Neighbour(int(rows["store_timestamp"][at]), int(rows["bits"][at]))
