"""Old generations of records: ghosts behind a break, and queue offsets that were given out twice.

Truncation zeroes nothing, so records of an earlier life of the log can stand behind its end.
A queue that lost its units can number its messages again from a lower offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from formats.commitlog import MIN_RECORD_SIZE
from formats.generation_kernels import note_last
from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_STRAY, BIT_SUPERSEDED
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT
from recover.columns import Rows
from recover.scan import FileScan

_AT_ONCE = 1 << 21
"""Rows of queues that are put in order together."""
_RUN = 3
"""So many records of a queue that follow on one another may all have wrong numbers."""


def numbered(records: Rows) -> Rows:
    """Rows whose queue offset counts in a queue (bool array): ordinary and committed messages, no filler."""
    kind = records["sys_flag"] & TRANSACTION
    counts = (kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT)
    return np.asarray(counts & ((records["bits"] & BIT_FILLER) == 0))


def mark_ghosts(scans: list[FileScan], queues: int) -> int:
    """Set BIT_GHOST on records behind a break that are older than the log in front of it; how many.

    A record behind a break is a ghost when its queue had come further, or its store timestamp lies
    before those of the last two records in front (three, where these two are not in order); before
    that of the last one alone where another one behind the break bears that out, whose number its
    queue had come to. One record proves nothing: a wrong bit in its number or time, which no
    checksum covers, would make ghosts of all that follows. A file whose first record is no ghost
    takes the chain up again.
    """
    if not _is_broken(scans):
        return 0
    last_offset = np.full(queues, -1, dtype=np.int64)
    reached = last_offset.copy()
    last_times = [0, 0, 0]
    broken = False
    total = 0
    for scan in scans:
        breaks = [hole.start for hole in scan.holes]
        # a stretch without a break is held against what stands in front of it, however its rows are cut
        for number, runs in groupby(_runs(scan, breaks), key=itemgetter(0)):
            stretch = [records for _, records in runs]
            if number > 0 or broken:
                ghosts = _ghosts(stretch, reached, last_times)
                broken = bool(ghosts[0][0])
            else:
                ghosts = [np.zeros(len(records), dtype=bool) for records in stretch]
            for records, old in zip(stretch, ghosts, strict=True):
                live = records
                if old.any():
                    records["bits"] |= np.where(old, BIT_GHOST, 0).astype(np.uint16)
                    total += int(old.sum())
                    live = records[~old]
                note_last(np.asarray(live), last_offset, reached)
                last_times = [*last_times, *live["store_timestamp"][-3:].tolist()][-3:]
        if scan.blank is None or (breaks and not scan.splits):
            broken = True
    return total


def _ghosts(stretch: list[Rows], reached: Rows, last_times: list[int]) -> list[Rows]:
    """Which rows of a stretch behind a break are ghosts (bool arrays)."""
    borne_out = any(
        (numbered(records) & (records["queue_offset"] <= reached[records["queue"]])
         & (records["store_timestamp"] < last_times[-1])).any() for records in stretch
    )
    in_order = last_times[-2] <= last_times[-1]
    latest = last_times[-1] if borne_out else min(last_times[-2:] if in_order else last_times)
    return [
        np.asarray((records["store_timestamp"] < latest)
                   | (numbered(records) & (records["queue_offset"] < reached[records["queue"]])))
        for records in stretch
    ]


def _is_broken(scans: list[FileScan]) -> bool:
    """Whether a record stands behind a break: behind a hole, or in a file behind one without its end mark."""
    last = max((int(s.records["phy_offset"][-1]) for scan in scans for s in scan.splits if s.records.size), default=-1)
    broken = [scan for scan in scans if scan.holes or scan.blank is None]
    return any((scan.holes[0].start if scan.holes else scan.file_end) <= last for scan in broken)


def _runs(scan: FileScan, breaks: list[int]) -> Iterator[tuple[int, Rows]]:
    """Rows of each split, cut where a hole lies between two records, with how many holes of the file are in front."""
    for split in scan.splits:
        offsets = split.records["phy_offset"]
        cuts = sorted({0, *np.searchsorted(offsets, breaks).tolist(), len(offsets)})
        for start, stop in pairwise(cuts):
            yield bisect_left(breaks, int(offsets[start])), split.records[start:stop]


def mark_superseded(scans: list[FileScan], uneven: list[int]) -> int:
    """Set BIT_SUPERSEDED on records whose queue offset a later record of their queue took again; how many.

    `uneven` are the queues whose offsets do not go on one by one along the log. A record that steps out of its queue's
    order while its neighbours go on is no new generation: it gets BIT_STRAY, for its own queue offset is what is wrong.
    So does one at the end of its queue that leaves out more messages than the log in front of it can have held.
    """
    restarts: dict[int, _Restarts] = {}
    strays = [np.empty(0, dtype=np.int64)]
    for queue, places, offsets in _sequences(scans, uneven):
        stray = _strays(offsets) if (np.diff(offsets) <= 0).any() else np.zeros(offsets.size, dtype=bool)
        stray |= _leaps(places, offsets)
        strays.append(places[stray])
        places, offsets = places[~stray], offsets[~stray]
        falls = np.flatnonzero(np.diff(offsets) <= 0) + 1
        if falls.size:
            restarts[queue] = _Restarts(places[falls], offsets[falls])
    _mark_strays(scans, np.sort(np.concatenate(strays)))
    return _mark_older(scans, restarts)


class _Restarts:
    """Where a queue began to number its messages again: phy offsets in log order, and the queue offset of each."""

    def __init__(self, places: Rows, offsets: Rows) -> None:
        self._places = places
        # of all restarts behind a record the one from the lowest number takes the most
        self._lowest = np.minimum.accumulate(offsets[::-1])[::-1]

    def left_behind(self, records: Rows) -> Rows:
        """Which rows of the queue a later restart took the number of again (bool array)."""
        following = np.searchsorted(self._places, records["phy_offset"], side="right")
        behind = following < self._places.size
        following[~behind] = 0
        return np.asarray(behind & (self._lowest[following] <= records["queue_offset"]))


def _counted(records: Rows) -> Rows:
    return np.asarray(numbered(records) & ((records["bits"] & BIT_GHOST) == 0))


def _sequences(scans: list[FileScan], queues: list[int]) -> Iterator[tuple[int, Rows, Rows]]:
    """Each of these queues with phy and queue offsets (int64) of its counted rows in log order."""
    sizes = np.zeros(max(queues, default=-1) + 1, dtype=np.int64)
    for records in _rows(scans):
        sizes += np.bincount(records["queue"][records["queue"] < sizes.size], minlength=sizes.size)
    for some in _batches(queues, sizes.tolist()):
        chosen = np.zeros(sizes.size + 1, dtype=bool)
        chosen[some] = True
        parts = [[np.empty(0, dtype=np.int64)] * 3]
        for records in _rows(scans):
            own = records[chosen[np.minimum(records["queue"], sizes.size)]]
            own = own[_counted(own)]
            parts.append([own[name].astype(np.int64) for name in ("queue", "phy_offset", "queue_offset")])
        numbers, places, offsets = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(numbers, kind="stable")
        numbers, places, offsets = numbers[order], places[order], offsets[order]
        for queue in some:
            first, stop = np.searchsorted(numbers, [queue, queue + 1])
            yield queue, places[first:stop], offsets[first:stop]


def _rows(scans: list[FileScan]) -> Iterator[Rows]:
    return (split.records for scan in scans for split in scan.splits)


def _batches(queues: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """So many queues together as have at most _AT_ONCE rows, or one."""
    batch: list[int] = []
    room = 0
    for queue in queues:
        if batch and room + sizes[queue] > _AT_ONCE:
            yield batch
            batch, room = [], 0
        batch.append(queue)
        room += sizes[queue]
    if batch:
        yield batch


def _strays(offsets: Rows) -> Rows:
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


def _mark_strays(scans: list[FileScan], places: Rows) -> None:
    """Set BIT_STRAY on the records at these phy offsets, which ascend."""
    for records in _rows(scans) if places.size else ():
        offsets = records["phy_offset"]
        first, stop = np.searchsorted(places, [offsets[0], offsets[-1] + 1]) if offsets.size else (0, 0)
        records["bits"][np.searchsorted(offsets, places[first:stop])] |= BIT_STRAY


def _mark_older(scans: list[FileScan], restarts: dict[int, _Restarts]) -> int:
    """Mark what the restarts of queues left behind; how many."""
    total = 0
    for records in _rows(scans) if restarts else ():
        old = np.zeros(len(records), dtype=bool)
        for queue in np.unique(records["queue"]).tolist():
            if queue in restarts:
                own = np.flatnonzero(records["queue"] == queue)
                old[own] = restarts[queue].left_behind(records[own])
        old &= _counted(records) & ((records["bits"] & BIT_STRAY) == 0)
        records["bits"] |= np.where(old, BIT_SUPERSEDED, 0).astype(np.uint16)
        total += int(old.sum())
    return total
