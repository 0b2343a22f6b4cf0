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

from formats.record.rows import BIT_GHOST, BIT_MISNUMBERED, BIT_SUPERSEDED
from recover.log.generations import numbered
from recover.log.scan import LogView, tally
from recover.store.config_files import is_folder_name, topic_text
from recover.store.derived_files import QueueFiles, unit_at
from recover.store.store import Store


def correct_generations_by_units(log: LogView, store: Store) -> LogView:
    """The log with such last records as misnumbered or not, and the ones before them as live; maybe `log` itself.

    The bits of its rows are changed in place.
    """
    if log.superseded and _without_false_restarts(log, store):
        superseded = sum(int(((split.records["bits"] & BIT_SUPERSEDED) != 0).sum()) for split in log.splits())
        log = structs.replace(log, tally=tally(log.files, len(log.queues)), superseded=superseded)
    if log.tally.bits & BIT_MISNUMBERED and _with_true_jumps(log, store):
        log = structs.replace(log, tally=tally(log.files, len(log.queues)))
    return log


def _without_false_restarts(log: LogView, store: Store) -> bool:
    """Whether any record that alone begins a queue anew at 0 is named by the unit of the place after the one before."""
    alone = np.flatnonzero((log.tally.positions == 1) & (log.tally.most == 0))
    older: dict[int, np.void] = {}
    newer: dict[int, np.void] = {}
    for split in log.splits() if alone.size else ():
        wanted = np.isin(split.records["queue"], alone) & ((split.records["bits"] & (BIT_GHOST | BIT_MISNUMBERED)) == 0)
        records = split.records[wanted & numbered(split.records)]
        stale = (records["bits"] & BIT_SUPERSEDED) != 0
        for rows, last in ((records[stale], older), (records[~stale], newer)):
            # of each queue the last row of the split
            queues, from_end = np.unique(rows["queue"][::-1], return_index=True)
            last.update(zip(queues.tolist(), rows[::-1][from_end], strict=True))
    false = {
        queue: int(row["phy_offset"]) for queue, row in newer.items()
        if queue in older and _is_named(log, store, row, int(older[queue]["queue_offset"]) + 1)
    }
    for split in log.splits() if false else ():
        bits, offsets = split.records["bits"], split.records["phy_offset"]
        bits[np.isin(split.records["queue"], [*false])] &= np.uint16(~BIT_SUPERSEDED & 0xFFFF)
        bits[np.isin(offsets, [*false.values()])] |= BIT_MISNUMBERED
    return bool(false)


def _with_true_jumps(log: LogView, store: Store) -> bool:
    """Whether the unit of the place that it names for itself bears any misnumbered last record out."""
    cleared = False
    for split in log.splits():
        for at in np.flatnonzero((split.records["bits"] & BIT_MISNUMBERED) != 0).tolist():
            row = split.records[at]
            place = int(row["queue_offset"])
            if place > int(log.tally.most[int(row["queue"])]) and _is_named(log, store, row, place):
                split.records["bits"][at] &= np.uint16(~BIT_MISNUMBERED & 0xFFFF)
                cleared = True
    return cleared


def _is_named(log: LogView, store: Store, row: np.void, place: int) -> bool:
    """Whether the unit at a place of a record's queue names this record; not where none can be read."""
    topic, queue_id = log.queues[int(row["queue"])]
    name = topic_text(topic)
    try:
        unit = unit_at(QueueFiles(store, name, queue_id).mapped_files, place) if is_folder_name(name) else None
    except OSError:
        return False
    return unit is not None and (unit.phy_offset, unit.size) == (int(row["phy_offset"]), int(row["size"]))
