"""Intact records that name another queue than the one that lacks them, where no unit is left to say so.

A queue lacks a number although nothing between its neighbours is damaged, and a record that stands between
them has this number, but in a queue where it does not fit in: then its topic or queue id was damaged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby, islice, pairwise

import numpy as np
from msgspec import Struct

from formats.record.rows import BIT_STRAY, BIT_SUPERSEDED
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.evidence.lost import Lack
from recover.log.generations import with_place
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX

Unit = tuple[int, int, int]
"""Queue offset, phy_offset and size."""
NO_END = (1 << 63) - 1
"""After all queue offsets, and all of the log."""


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
    """Every stray record for which its queue has a place between the records around it, after its last one,
    or, in a log that has its beginning, before its first one.

    A unit there that names the record says which. Else they are in their order, after the record before as long as
    no damage comes between, before the one after if there is none there.
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


_Named = tuple[QueueKey, Unit]
"""A record, and the queue that it names."""
_MOST = 100
"""More numbers in a row than these were not lost by single records."""


def misplaced(
    log: LogView, expectation: Expectation, lacking: Collection[Lack], placed: Collection[int]
) -> list[StrayPlace]:
    """Each record that alone fits one lacking number, which it alone fits; it is none of `placed` (phy offsets).

    A record that fits nowhere else may also go on where a queue ends.
    """
    named = strays_of(log, expectation)
    strays = [(key, unit) for key, units in named.items() for unit in units if unit[1] not in placed]
    # as long as the log has its beginning no queue begins in its middle; a queue with a message 0 has just begun
    headless = log.min_offset == 0
    alone = list(_alone(log, expectation)) if lacking or headless else []
    odd = [*strays, *(alone if headless else ())]
    lacks = [lack for lack in lacking if lack.last - lack.first < _MOST and not lack.key.topic.startswith(LMQ_PREFIX)]
    ends = list(_ends(expectation, [key for key, _ in odd]))
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
    of_number: dict[int, list[_Named]] = defaultdict(list)
    for named in records:
        of_number[named[1][0]].append(named)
    return [
        StrayPlace(phy_offset, lack.key, number, size)
        for lack in lacks
        for number in range(lack.first, lack.last + 1)
        for key, (_, phy_offset, size) in of_number.get(number, ())
        if lack.before < phy_offset < lack.behind and _differ_in_one_field(key, lack.key)
    ]


def _alone(log: LogView, expectation: Expectation) -> Iterator[_Named]:
    """Records alone in the queue that they name, be it of a topic that nobody knows; not the first of a queue.

    So are those that alone would be all that is left of an older queue of that name; not those whose place a record
    before them in the log holds: that is an old record after the log's end.
    """
    alone = np.flatnonzero((log.tally.positions == 1) & (log.tally.least > 0))
    older = np.zeros(len(log.queues), dtype=np.int64)
    for split in log.splits() if log.superseded else ():
        older += np.bincount(split.records["queue"][_is_older(split.records)], minlength=older.size)
    alone_once = np.flatnonzero(older == 1)
    left: list[_Named] = []
    for split in log.splits() if alone.size or alone_once.size else ():
        rows, queues = split.records, split.records["queue"]
        found = np.isin(queues, alone) & with_place(rows)
        found |= np.isin(queues, alone_once) & _is_older(rows) & (rows["queue_offset"] > 0)
        for at in np.flatnonzero(found).tolist():
            named = expectation.keys[int(queues[at])], unit_of(rows[at])
            if _is_older(rows[at : at + 1])[0]:
                left.append(named)
            else:
                yield named
    before = {(key, number): phy_offset for key, (number, phy_offset, _) in _twins(expectation, left)}
    yield from ((key, unit) for key, unit in left if before.get((key, unit[0]), unit[1]) >= unit[1])


def _is_older(rows: Rows) -> Rows:
    return np.asarray((rows["bits"] & BIT_SUPERSEDED) != 0)


def _twins(expectation: Expectation, strays: list[_Named]) -> Iterator[_Named]:
    """The records that have the place in the queue that strays name."""
    numbers: dict[QueueKey, list[int]] = defaultdict(list)
    for key, unit in strays:
        numbers[key].append(unit[0])
    for key, rows in expectation.grouped(set(numbers)):
        for number in numbers[key]:
            at = int(np.searchsorted(rows["queue_offset"], number))
            if at < rows.size and rows["queue_offset"][at] == number:
                yield key, unit_of(rows[at])


def _ends(expectation: Expectation, named: Collection[QueueKey]) -> Iterator[Lack]:
    """The next place of each queue that differs from one of these in one field."""
    topics, others = {key.topic for key in named}, {_but_for_topic(key) for key in named}
    wanted = {key for key in expectation.keys if key.topic in topics or _but_for_topic(key) in others}
    for key, rows in expectation.grouped(wanted):
        number = int(rows["queue_offset"][-1]) + 1
        yield Lack(key, number, number, int(rows["phy_offset"][-1]), NO_END)


def _but_for_topic(key: QueueKey) -> tuple[int, int]:
    return key.queue_id, len(key.topic.encode())


def _differ_in_one_field(one: QueueKey, other: QueueKey) -> bool:
    return (one.topic == other.topic) != (_but_for_topic(one) == _but_for_topic(other))
