"""Intact records that name another queue than the one that lacks them, where no unit is left to say so.

A queue lacks a number although nothing between its neighbours is damaged, and a record that stands between
them has this number, but in a queue where it does not fit in: then its topic or queue id was damaged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from recover.columns import Rows
from recover.expected import Expectation, QueueKey
from recover.log import LogView
from recover.lost import Lack
from recover.stray_places import StrayPlace, Unit, strays_of
from recover.topics import LMQ_PREFIX

_Named = tuple[QueueKey, Unit]
"""A record, and the queue that it names."""
_MOST = 100
"""More numbers in a row than these were not lost by single records."""
_NO_END = 1 << 63


def misplaced(
    log: LogView, expectation: Expectation, lacking: Collection[Lack], placed: Collection[int]
) -> list[StrayPlace]:
    """Each record that alone fits one lacking number, which it alone fits; it is none of `placed` (phy offsets).

    A record may also go on where another queue of its topic ends.
    """
    strays = [(key, unit) for key, units in strays_of(log).items() for unit in units if unit[1] not in placed]
    alone = list(_alone(log, expectation)) if lacking else []
    # a queue does not begin in its middle, as long as the log has its beginning
    headless = {lack.key for lack in lacking if lack.before < 0}
    odd = [*strays, *((key, unit) for key, unit in alone if key in headless)]
    lacks = [lack for lack in lacking if lack.last - lack.first < _MOST and not lack.key.topic.startswith(LMQ_PREFIX)]
    ends = list(_ends(expectation, {key.topic for key, _ in odd}))
    found = _fitting(lacks, [*strays, *alone]) + _fitting(ends, odd)
    matched = {(item.key, item.queue_offset) for item in found}
    # of two with the same number in one queue the other one may be wrong there
    twins = list(_twins(expectation, strays))
    found += (item for item in _fitting([*lacks, *ends], twins) if (item.key, item.queue_offset) not in matched)
    of_place = Counter((item.key, item.queue_offset) for item in found)
    of_record = Counter(item.phy_offset for item in found)
    return [item for item in found if of_place[item.key, item.queue_offset] == 1 == of_record[item.phy_offset]]


def _fitting(lacks: Iterable[Lack], records: Iterable[_Named]) -> list[StrayPlace]:
    """Every pair of a number that a queue lacks, and of a record with this number that stands where it is lacking."""
    numbered: dict[int, list[_Named]] = defaultdict(list)
    for named in records:
        numbered[named[1][0]].append(named)
    return [
        StrayPlace(phy_offset, lack.key, number, size)
        for lack in lacks
        for number in range(lack.first, lack.last + 1)
        for key, (_, phy_offset, size) in numbered.get(number, ())
        if lack.before < phy_offset < lack.behind and _differ_in_one_field(key, lack.key)
    ]


def _alone(log: LogView, expectation: Expectation) -> Iterator[_Named]:
    """Records that are alone in the queue that they name."""
    numbers = np.flatnonzero(log.tally.positions == 1).tolist()
    for key, rows in expectation.of(number for number in numbers if expectation.counts[number] == 1):
        yield key, _unit(rows, 0)


def _twins(expectation: Expectation, strays: list[_Named]) -> Iterator[_Named]:
    """The records that have the place in the queue that strays name."""
    numbers: dict[QueueKey, list[int]] = defaultdict(list)
    for key, unit in strays:
        numbers[key].append(unit[0])
    for key, rows in expectation.grouped(set(numbers)):
        for number in numbers[key]:
            at = int(np.searchsorted(rows["queue_offset"], number))
            if at < rows.size and rows["queue_offset"][at] == number:
                yield key, _unit(rows, at)


def _ends(expectation: Expectation, topics: Collection[str]) -> Iterator[Lack]:
    """The next place of each queue of these topics."""
    for key, rows in expectation.grouped({key for key in expectation.keys if key.topic in topics}):
        number = int(rows["queue_offset"][-1]) + 1
        yield Lack(key, number, number, int(rows["phy_offset"][-1]), _NO_END)


def _unit(rows: Rows, at: int) -> Unit:
    return int(rows["queue_offset"][at]), int(rows["phy_offset"][at]), int(rows["size"][at])


def _differ_in_one_field(one: QueueKey, other: QueueKey) -> bool:
    if one.queue_id == other.queue_id:
        return one.topic != other.topic and len(one.topic.encode()) == len(other.topic.encode())
    return one.topic == other.topic
