"""Which places of their queues records hold whose own number steps out of its queue's order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby, pairwise

import numpy as np
from msgspec import Struct

from formats.record_columns import BIT_STRAY
from recover.columns import Rows
from recover.expected import Expectation, QueueKey
from recover.log import LogView
from recover.topics import topic_text
from recover.verify.queue_verdict import ConsumeQueueReport

Unit = tuple[int, int, int]
"""Queue offset, phy_offset and size."""


class StrayPlace(Struct, frozen=True):
    """A stray record and the only place of its queue that is left for it; `size` is the unit's where one names it."""

    phy_offset: int
    key: QueueKey
    queue_offset: int
    size: int


def places_of_strays(log: LogView, expectation: Expectation, queues: ConsumeQueueReport) -> Iterator[StrayPlace]:
    """Every stray record between two others of its queue, if that leaves one place for it.

    A unit between those of the two that names the record says which. Where no unit names anything, strays are at the
    places in their order if there are as many.
    """
    if not log.tally.bits & BIT_STRAY:
        return
    strays: dict[QueueKey, list[Unit]] = {}
    for split in log.splits():
        for row in split.records[(split.records["bits"] & BIT_STRAY) != 0]:
            topic, queue_id = log.queues[int(row["queue"])]
            key = QueueKey(topic_text(topic), queue_id)
            strays.setdefault(key, []).append((-1, int(row["phy_offset"]), int(row["size"])))
    for key, rows in expectation.grouped(set(strays)):
        verdict = queues.verdicts.get(key)
        units = sorted([*verdict.wrong, *verdict.lost]) if verdict is not None else []
        for front, group in groupby(strays[key], key=lambda stray: _in_front(rows, stray)):
            if 0 < front < rows.size:
                first, stop = int(rows["queue_offset"][front - 1]) + 1, int(rows["queue_offset"][front])
                own = units[bisect_left(units, (first,)) : bisect_left(units, (stop,))]
                for queue_offset, phy_offset, size in _placed([*group], range(first, stop), own):
                    yield StrayPlace(phy_offset, key, queue_offset, size)


def _in_front(rows: Rows, stray: Unit) -> int:
    return int(np.searchsorted(rows["phy_offset"], stray[1]))


def _placed(strays: list[Unit], places: range, units: list[Unit]) -> list[Unit]:
    """The strays at their places, of which `units` name some; none if that is not in the order of the log."""
    own = {phy_offset for _, phy_offset, _ in strays}
    placed = [unit for unit in units if unit[1] in own]
    named = {phy_offset for _, phy_offset, _ in placed}
    left = [stray for stray in strays if stray[1] not in named]
    if left and len(left) == len(places) - len(units):
        taken = {queue_offset for queue_offset, _, _ in units}
        free = (place for place in places if place not in taken)
        placed += [(place, phy_offset, size) for place, (_, phy_offset, size) in zip(free, left, strict=True)]
    placed.sort()
    return placed if all(one[1] < other[1] for one, other in pairwise(placed)) else []
