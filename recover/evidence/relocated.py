"""The log with contradicted records at the places that are really theirs: what derives from it is judged by that."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from msgspec import structs

from formats.record.rows import BIT_STRAY, BIT_SUPERSEDED, row_of
from recover.evidence.contradictions import Contradiction
from recover.log.file_scan import FileScan
from recover.log.scan import LogView, in_order
from recover.store.columns import ColumnStore, Split


def relocated(log: LogView, denied: Collection[Contradiction], *, memory: int) -> LogView:
    """The log as if each contradicted record said what all else says of it; `written` has these records.

    Its rows are copies, of which at most `memory` bytes are in memory.
    """
    columns = ColumnStore(memory)
    queues = list(log.queues)
    numbers = {key: number for number, key in enumerate(queues)}
    for item in denied:
        key = item.right.topic, item.right.queue_id
        if numbers.setdefault(key, len(queues)) == len(queues):
            queues.append(key)
    right = {item.phy_offset: row_of(item.right, numbers[item.right.topic, item.right.queue_id]) for item in denied}
    places = np.array(sorted(right), dtype=np.int64)
    scans = []
    for scan in log.files:
        copy = FileScan(scan.mapped_file, scan.file_size)
        copy.queues, copy.holes, copy.blank, copy.blank_size = scan.queues, scan.holes, scan.blank, scan.blank_size
        copy.end, copy.unreadable = scan.end, scan.unreadable
        copy.splits = [*_splits(scan, places, right, columns)]
        scans.append(copy)
    changed = structs.replace(
        log, files=scans, queues=queues, damaged=[*log.damaged],
        written={item.phy_offset: item.right for item in denied},
    )
    changed.superseded, changed.tally = in_order(scans, len(queues))
    return changed


def _splits(
    scan: FileScan, places: np.ndarray, right: dict[int, tuple[np.ndarray, np.ndarray]], columns: ColumnStore
) -> Iterator[Split]:
    for split in scan.splits:
        rows, hashes = np.array(split.records), np.array(split.hashes)
        rows["bits"] &= np.uint16(~(BIT_STRAY | BIT_SUPERSEDED) & 0xFFFF)
        ends = None
        for at in np.flatnonzero(np.isin(rows["phy_offset"], places)).tolist():
            row, keys = right[int(rows["phy_offset"][at])]
            if ends is None:
                ends = np.cumsum(rows["hashes"].astype(np.int64))
            count = int(rows["hashes"][at])
            if keys.size == count:
                hashes[ends[at] - count : ends[at]] = keys
            row["hashes"] = count
            rows[at] = row[0]
        yield columns.keep(rows, hashes)
