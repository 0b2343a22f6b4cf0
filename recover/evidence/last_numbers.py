"""Last records of queues whose numbers say one thing, and whose units another.

A topic that is deleted and made again begins at 0, so a last record with the number 0 makes all before it those of the
older topic. A damaged number can be 0 as well. Then the unit of its right place names the record, and that
place follows on the one before; a queue that was really made anew has no such unit.

A number that leaves out more messages than the log has room for is damaged, unless a unit stands at that very place:
then a broker went on from it, and the record is right.
"""

from __future__ import annotations

import numpy as np
from msgspec import structs

from formats.record.rows import BIT_GHOST, BIT_STRAY, BIT_SUPERSEDED
from recover.log.generations import numbered
from recover.log.scan import LogView, tally
from recover.store.config_files import is_folder_name, topic_text
from recover.store.derived_files import QueueFiles, unit_at
from recover.store.store import Store


def as_units_say(log: LogView, store: Store) -> LogView:
    """The log with such last records as strays or none, and the ones before them as live; maybe `log` itself.

    The bits of its rows are changed in place.
    """
    return _with_true_leaps(_without_false_restarts(log, store), store)


def _without_false_restarts(log: LogView, store: Store) -> LogView:
    if not log.superseded:
        return log
    false = {
        queue: phy_offset
        for queue, phy_offset, size, place in _lone_restarts(log)
        if _unit(store, *log.queues[queue], place) == (phy_offset, size)
    }
    if not false:
        return log
    for split in log.splits():
        for queue, phy_offset in false.items():
            bits, mine = split.records["bits"], split.records["queue"] == queue
            last = mine & (split.records["phy_offset"] == phy_offset)
            bits &= np.where(mine, np.uint16(~BIT_SUPERSEDED & 0xFFFF), np.uint16(0xFFFF))
            bits |= np.where(last, BIT_STRAY, 0).astype(np.uint16)
    counts = tally(log.files, len(log.queues))
    superseded = sum(int(((split.records["bits"] & BIT_SUPERSEDED) != 0).sum()) for split in log.splits())
    return structs.replace(log, tally=counts, superseded=superseded)


def _with_true_leaps(log: LogView, store: Store) -> LogView:
    if not log.tally.bits & BIT_STRAY:
        return log
    cleared = 0
    for split in log.splits():
        for at in np.flatnonzero((split.records["bits"] & BIT_STRAY) != 0).tolist():
            row = split.records[at]
            queue, place = int(row["queue"]), int(row["queue_offset"])
            leaps = place > int(log.tally.most[queue])
            if leaps and _unit(store, *log.queues[queue], place) == (int(row["phy_offset"]), int(row["size"])):
                split.records["bits"][at] &= np.uint16(~BIT_STRAY & 0xFFFF)
                cleared += 1
    return structs.replace(log, tally=tally(log.files, len(log.queues))) if cleared else log


def _lone_restarts(log: LogView) -> list[tuple[int, int, int, int]]:
    """(queue, physical offset, size, place after the one before) of records that alone begin a queue anew at 0."""
    alone = np.flatnonzero((log.tally.positions == 1) & (log.tally.most == 0))
    older: dict[int, np.void] = {}
    newer: dict[int, np.void] = {}
    for split in log.splits() if alone.size else ():
        wanted = np.isin(split.records["queue"], alone) & ((split.records["bits"] & (BIT_GHOST | BIT_STRAY)) == 0)
        records = split.records[wanted & numbered(split.records)]
        stale = (records["bits"] & BIT_SUPERSEDED) != 0
        for rows, last in ((records[stale], older), (records[~stale], newer)):
            # of each queue the last row of the split
            queues, from_end = np.unique(rows["queue"][::-1], return_index=True)
            last.update(zip(queues.tolist(), rows[::-1][from_end], strict=True))
    return [
        (queue, int(row["phy_offset"]), int(row["size"]), int(older[queue]["queue_offset"]) + 1)
        for queue, row in newer.items() if queue in older
    ]


def _unit(store: Store, topic: bytes, queue_id: int, place: int) -> tuple[int, int] | None:
    """Physical offset and size in the unit at a place of a queue, None where none can be read."""
    name = topic_text(topic)
    if not is_folder_name(name):
        return None
    try:
        unit = unit_at(QueueFiles(store, name, queue_id).mapped_files, place)
    except OSError:
        return None
    return None if unit is None else (unit.phy_offset, unit.size)
