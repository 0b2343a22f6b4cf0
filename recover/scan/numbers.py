"""Numbers of messages in their queues: which rows have one, and which of these are out of their queue's order.

Nothing in a record checks its queue offset, and that of its neighbours is the only witness.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from formats.commitlog import MIN_RECORD_SIZE
from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_STRAY, NO_PLACE
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT
from recover.memory.columns import Rows
from recover.scan.file_scan import FileScan

_RUN = 3
"""So many records of a queue that follow on one another may all have wrong numbers."""


def numbered(records: Rows) -> Rows:
    """Rows whose queue offset counts in a queue (bool array): ordinary and committed messages, no filler."""
    kind = records["sys_flag"] & TRANSACTION
    counts = (kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT)
    return np.asarray(counts & ((records["bits"] & BIT_FILLER) == 0))


def counted(records: Rows) -> Rows:
    """Those of them that are no ghosts."""
    return np.asarray(numbered(records) & ((records["bits"] & BIT_GHOST) == 0))


def with_place(records: Rows) -> Rows:
    """Those that hold a position of their queue (bool array): neither ghosts nor superseded, and no strays."""
    return np.asarray(numbered(records) & ((records["bits"] & NO_PLACE) == 0))


def strays_among(offsets: Rows) -> Rows:
    """Records that step out of the order between two neighbours that do not, or out of a long order at its end."""
    stray = np.zeros(offsets.size, dtype=bool)
    if offsets.size < 3:
        return stray
    values = offsets.tolist()
    before = values[0]
    at = 1
    while at < len(values) - 1:
        run = _run_of_strays(values, at, before)
        stray[at : at + run] = True
        if not run:
            before = values[at]
        at += run or 1
    # at the end nothing follows that could tell; a new generation begins at 0, a damaged offset rarely does
    stray[-1] = 0 < offsets[-1] <= offsets[-2] and not stray[-2]
    stray[0] = offsets[0] >= offsets[1] and offsets[1] + 1 == offsets[2] and offsets[1] != 0
    return stray


def _run_of_strays(values: list[int], at: int, before: int) -> int:
    """How many records from `at` on are out of the order that goes on behind them from `before`; 0 where `at` is not.

    Of several no two follow on one another, as they do in a new generation.
    """
    in_order = before < values[at] < values[at + 1]
    if before < values[at + 1] and not in_order and not _is_repeated(values, at, before):
        return 1
    for run in range(2, min(_RUN, len(values) - 2 - at) + 1) if values[at] != before + 1 else ():
        own, behind = values[at : at + run + 1], values[at + run]
        goes_on = before < behind <= before + 1 + 2 * run and behind < values[at + run + 1]
        numbered_anew = any(a + 1 == b for a, b in pairwise(own)) or all(a < b for a, b in pairwise(own))
        if goes_on and not numbered_anew and not any(before < one < behind for one in own):
            return run
    return 0


def _leaps(places: Rows, offsets: Rows) -> Rows:
    """The last records of a queue, _RUN at most, in front of which more is left out than fits (bool array)."""
    leap = np.zeros(offsets.size, dtype=bool)
    for run in range(min(_RUN, offsets.size - 1), 0, -1):
        room = (places[-run:] - places[-run - 1]) // MIN_RECORD_SIZE
        if (offsets[-run:] - offsets[-run - 1] > room + 1).all() and (np.diff(offsets[-run:]) != 1).all():
            leap[-run:] = True
            break
    return leap


def _is_repeated(values: list[int], at: int, before: int) -> bool:
    """Of two with one number the first is right if it follows on, and a number lacks behind them or none is there."""
    number = values[at]
    return number == before + 1 and values[at + 1 : at + 3] in ([number], [number, number + 2])


def mark_leaps(scans: list[FileScan], gapped: list[int]) -> int:
    """Set BIT_STRAY on the last records of queues that leave out more messages than the log in front can have held.

    `gapped` are the queues that leave out any. How many were marked.
    """
    strays = [places[_leaps(places, offsets)] for places, offsets in _ends(scans, gapped)]
    found = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *strays]))
    mark_strays(scans, found)
    return int(found.size)


def _ends(scans: list[FileScan], queues: list[int]) -> Iterator[tuple[Rows, Rows]]:
    """Phy and queue offsets (int64) of the last _RUN + 1 rows with a place of each of these queues, or of all."""
    left = dict.fromkeys(queues, _RUN + 1)
    ends: dict[int, list[Rows]] = {queue: [] for queue in queues}
    for split in (split for scan in reversed(scans) for split in reversed(scan.splits)):
        if not left:
            break
        own = split.records[np.isin(split.records["queue"], [*left])]
        own = own[with_place(own)]
        own = own[np.argsort(own["queue"], kind="stable")]
        numbers, starts = np.unique(own["queue"], return_index=True)
        for queue, (start, stop) in zip(numbers.tolist(), pairwise([*starts.tolist(), own.size]), strict=True):
            rows = own[max(start, stop - left[queue]) : stop]
            ends[queue].insert(0, rows)
            left[queue] -= rows.size
            if not left[queue]:
                del left[queue]
    for parts in ends.values():
        for rows in [np.concatenate(parts)] if parts else []:
            yield rows["phy_offset"].astype(np.int64), rows["queue_offset"].astype(np.int64)


def mark_strays(scans: list[FileScan], places: Rows) -> None:
    """Set BIT_STRAY on the records at these phy offsets, which ascend."""
    mark_at(scans, places, BIT_STRAY)


def mark_at(scans: list[FileScan], places: Rows, bit: int) -> None:
    """Set a bit of the records at these phy offsets, which ascend."""
    for records in (split.records for scan in scans for split in scan.splits) if places.size else ():
        offsets = records["phy_offset"]
        first, stop = np.searchsorted(places, [offsets[0], offsets[-1] + 1]) if offsets.size else (0, 0)
        records["bits"][np.searchsorted(offsets, places[first:stop])] |= bit
