"""Intact records that name another queue than the one that lacks them, where no unit is left to say so.

A queue lacks a number although nothing between its neighbours is damaged, and a record that stands between
them has this number, but in a queue where it does not fit in: then its topic or queue id was damaged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from formats.record_columns import BIT_SUPERSEDED
from recover.evidence.expected import Expectation, QueueKey
from recover.evidence.lost import Lack
from recover.evidence.stray_places import NO_END, StrayPlace, Unit, strays_of, unit_of
from recover.files.topics import LMQ_PREFIX
from recover.memory.columns import Rows
from recover.scan.log import LogView
from recover.scan.numbers import with_place

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
