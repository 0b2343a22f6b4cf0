"""Old generations of records: ghosts behind a break, and queue offsets that were given out twice.

Truncation zeroes nothing, so records of an earlier life of the log can stand behind its end.
A queue that lost its units can number its messages again from a lower offset.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_SUPERSEDED
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT
from recover.columns import Rows
from recover.scan import FileScan


def numbered(records: Rows) -> Rows:
    """Rows whose queue offset counts in a queue (bool array): ordinary and committed messages, no filler."""
    kind = records["sys_flag"] & TRANSACTION
    counts = (kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT)
    return np.asarray(counts & ((records["bits"] & BIT_FILLER) == 0))


def mark_ghosts(scans: list[FileScan], queues: int) -> int:
    """Set BIT_GHOST on records behind a break that are older than the log in front of it; how many.

    A record behind a break is a ghost when its queue offset does not continue its queue, or its
    store timestamp lies before that of the last record in front of the break. A file whose first
    record is no ghost takes the chain up again.
    """
    last_offset = np.full(queues, -1, dtype=np.int64)
    last_timestamp = 0
    broken = False
    total = 0
    for scan in scans:
        breaks = [hole.start for hole in scan.holes]
        for index, (records, behind_break) in enumerate(_runs(scan, breaks)):
            if behind_break or (broken and index == 0):
                ghosts = (records["store_timestamp"] < last_timestamp) | (
                    numbered(records) & (records["queue_offset"] <= last_offset[records["queue"]])
                )
                records["bits"] |= np.where(ghosts, BIT_GHOST, 0).astype(np.uint16)
                total += int(ghosts.sum())
                broken = bool(ghosts[0])
                live = records[~ghosts]
            else:
                live = records
            counted = live[numbered(live)]
            last_offset[counted["queue"]] = counted["queue_offset"]
            if live.size:
                last_timestamp = int(live["store_timestamp"][-1])
        if scan.blank is None or (breaks and not scan.splits):
            broken = True
    return total


def _runs(scan: FileScan, breaks: list[int]) -> Iterator[tuple[Rows, bool]]:
    """Rows of each split, cut where a hole lies between two records, with whether a hole is in front in this file."""
    for split in scan.splits:
        offsets = split.records["phy_offset"]
        cuts = sorted({0, *np.searchsorted(offsets, breaks).tolist(), len(offsets)})
        for start, stop in zip(cuts, cuts[1:], strict=False):
            first = int(offsets[start])
            yield split.records[start:stop], any(hole < first for hole in breaks)


def mark_superseded(scans: list[FileScan], queues: int) -> int:
    """Set BIT_SUPERSEDED on records whose queue offset a later record of their queue took again; how many."""
    falls = _falls(scans, queues)
    if not falls:
        return 0
    total = 0
    for scan in scans:
        for split in scan.splits:
            records = split.records
            usable = numbered(records) & ((records["bits"] & BIT_GHOST) == 0)
            old = np.zeros(len(records), dtype=bool)
            for queue, phy_offset, queue_offset in falls:
                old |= (
                    (records["queue"] == queue) & (records["phy_offset"] < phy_offset)
                    & (records["queue_offset"] >= queue_offset)
                )
            old &= usable
            records["bits"] |= np.where(old, BIT_SUPERSEDED, 0).astype(np.uint16)
            total += int(old.sum())
    return total


def _falls(scans: list[FileScan], queues: int) -> list[tuple[int, int, int]]:
    """Where a queue's offsets fall back: (queue number, phy offset of the record, its queue offset)."""
    last = np.full(queues, -1, dtype=np.int64)
    falls: list[tuple[int, int, int]] = []
    for scan in scans:
        for split in scan.splits:
            records = split.records
            rows = records[numbered(records) & ((records["bits"] & BIT_GHOST) == 0)]
            if not rows.size:
                continue
            order = np.argsort(rows["queue"], kind="stable")
            queue, offset = rows["queue"][order], rows["queue_offset"][order]
            before = np.empty_like(offset)
            before[1:] = offset[:-1]
            first = np.r_[True, queue[1:] != queue[:-1]]
            before[first] = last[queue[first]]
            for at in np.flatnonzero(offset <= before):
                falls.append((int(queue[at]), int(rows["phy_offset"][order[at]]), int(offset[at])))
            last[rows["queue"]] = rows["queue_offset"]
    return falls
