"""Which places of their queues records hold whose own number steps out of its queue's order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby, islice, pairwise

import numpy as np
from msgspec import Struct

from formats.record_columns import BIT_STRAY
from recover.evidence.expected import Expectation, QueueKey
from recover.evidence.queue_verdict import ConsumeQueueReport
from recover.memory.columns import Rows
from recover.scan.log import LogView

Unit = tuple[int, int, int]
"""Queue offset, phy_offset and size."""
NO_END = (1 << 63) - 1
"""Behind all queue offsets, and all of the log."""


class StrayPlace(Struct, frozen=True):
    """A stray record and the place of its queue that is left for it; `size` is the unit's where one names it there."""

    phy_offset: int
    key: QueueKey
    queue_offset: int
    size: int
    named: bool = False


def strays_of(log: LogView, expectation: Expectation) -> dict[QueueKey, list[Unit]]:
    """The stray records by the queue that they name, in log order: the number they give, phy_offset, size."""
    strays: dict[QueueKey, list[Unit]] = {}
    for split in log.splits() if log.tally.bits & BIT_STRAY else ():
        for row in split.records[(split.records["bits"] & BIT_STRAY) != 0]:
            strays.setdefault(expectation.keys[int(row["queue"])], []).append(unit_of(row))
    return strays


def unit_of(row: np.void) -> Unit:
    """What a unit at the place that a row gives itself would say; rows are RECORD or EXPECTED."""
    return int(row["queue_offset"]), int(row["phy_offset"]), int(row["size"])


def places_of_strays(log: LogView, expectation: Expectation, queues: ConsumeQueueReport) -> Iterator[StrayPlace]:
    """Every stray record for which its queue has a place between the records around it, behind its last one,
    or, in a log that has its beginning, in front of its first one.

    A unit there that names the record says which. Else they are in their order, behind the record in front as long as
    no damage comes between, in front of the one behind if there is none there.
    """
    strays = strays_of(log, expectation)
    damaged = [damage.start for damage in log.damaged]
    for key, rows in expectation.grouped(set(strays)):
        verdict = queues.verdicts.get(key)
        units = sorted([*verdict.wrong, *verdict.lost]) if verdict is not None else []
        for front, group in groupby(strays[key], key=lambda stray: _in_front(rows, stray)):
            if front == 0 and log.min_offset > 0:
                continue
            # a log that has its beginning has that of its queues
            places, first, stop = range(NO_END), -1, NO_END
            if front > 0:
                last = rows[front - 1]
                places, first = range(int(last["queue_offset"]) + 1, NO_END), int(last["phy_offset"])
            if front < rows.size:
                places, stop = range(places.start, int(rows["queue_offset"][front])), int(rows["phy_offset"][front])
            between = damaged[bisect_left(damaged, first) : bisect_left(damaged, stop)]
            own = units[bisect_left(units, (places.start,)) : bisect_left(units, (places.stop,))]
            for unit in placed([*group], places, own, between):
                queue_offset, phy_offset, size = unit
                yield StrayPlace(phy_offset, key, queue_offset, size, unit in own)


def _in_front(rows: Rows, stray: Unit) -> int:
    return int(np.searchsorted(rows["phy_offset"], stray[1]))


def placed(strays: list[Unit], places: range, units: list[Unit], damaged: list[int]) -> list[Unit]:
    """The strays of one gap in a queue at their places there; none if they are not in the order of the log.

    `units` name who is at some of the `places`, in any log; `damaged` are where messages may have been lost, ascending.
    """
    own = {phy_offset for _, phy_offset, _ in strays}
    found = [unit for unit in units if unit[1] in own]
    named = {phy_offset for _, phy_offset, _ in found}
    left = [stray for stray in strays if stray[1] not in named]
    taken = {queue_offset for queue_offset, _, _ in units}
    if len(left) <= len(places) - len(units):
        last = damaged[-1] if damaged and places.stop < NO_END else NO_END
        behind = bisect_right([phy_offset for _, phy_offset, _ in left], last)
        found += _filled(places, taken, left[:behind])
        found += _filled(reversed(places), taken, [*reversed(left[behind:])])
    found.sort()
    return found if all(one[1] < other[1] and one[0] < other[0] for one, other in pairwise(found)) else []


def _filled(places: Iterable[int], taken: set[int], strays: list[Unit]) -> Iterator[Unit]:
    free = islice((place for place in places if place not in taken), len(strays))
    return ((place, phy_offset, size) for place, (_, phy_offset, size) in zip(free, strays, strict=False))
