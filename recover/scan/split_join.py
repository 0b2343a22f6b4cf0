"""Splits of one mapped file put together, exactly as one walk from its beginning would have found it.

Each split looked for its first record by itself. Where the walk through the split in front arrives at that very
place, it was right; where it does not (a record in a body, damage at a border), the split is scanned
again from where the walk arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field, structs

from formats.commitlog import BLANK_SIZE
from recover.files.reader import ReadFailure
from recover.memory.columns import Rows
from recover.scan.file_scan import EARLY_END_MARK, FileScan, Hole
from recover.scan.queue_table import number_rows
from recover.scan.split_scan import SplitRange, SplitScan
from recover.scan.tally import joined

Again = tuple[SplitRange, int | None]
"""A split, and the position in its file to enter it at; None for what stands behind a doubtful end mark."""


class FileJoin(Struct):
    """The splits of one file, ascending, as they come in."""

    scans: Sequence[SplitScan]
    again: dict[tuple[int, int], SplitScan] = field(default_factory=dict)
    found: FileScan | None = None
    past: SplitRange | None = None

    def add(self, scan: SplitScan) -> None:
        """Take a split that was scanned once more."""
        if scan.part == self.past:
            assert self.found is not None
            take_past_mark(self.found, scan)
        else:
            assert scan.entry is not None
            self.again[scan.part.start, scan.entry] = scan

    def join(self) -> FileScan | list[Again]:
        """The whole file; or which splits to scan again, and from where, before there can be an answer.

        Behind a split that is still to be scanned again, the walk is guessed to go on as the first scan of that
        split said. So one round of further scans is nearly always enough.
        """
        if self.found is not None:
            return self.found
        walk = _Walk(self.scans[0].part)
        for first in self.scans:
            if walk.is_over:
                break
            if walk.hole is not None:
                walk.go_on_in_hole(first)
                continue
            assert walk.position is not None
            if walk.position >= first.part.stop and not first.part.is_last:
                continue  # a record longer than the split
            scan = first if _agrees(first, walk.position) else self.again.get((first.part.start, walk.position))
            if scan is None:
                walk.needed.append((first.part, walk.position))
                scan = first
            walk.take(scan)
        if walk.needed:
            return walk.needed
        self.found = walk.whole()
        self.past = past_mark(self.found)
        return self.found if self.past is None else [(self.past, None)]


def past_mark(found: FileScan) -> SplitRange | None:
    """What stands behind the end mark of a file, if that was written over a record that names this place."""
    if found.blank is None or not found.over_record:
        return None
    start = found.blank - found.mapped_file.file_from_offset + BLANK_SIZE
    part = SplitRange(found.mapped_file, found.file_size, start, min(found.mapped_file.length, found.file_size))
    return part if start < part.stop else None


def take_past_mark(found: FileScan, behind: SplitScan) -> None:
    """Let the file go on behind its end mark, if the scan of what stands there found a record.

    What was counted of the file holds no more then.
    """
    mark = found.blank
    if mark is None or behind.entry is None or behind.enters_at != "record":
        return
    numbers = {key: number for number, key in enumerate(found.queues)}
    own = [numbers.setdefault(key, len(numbers)) for key in behind.scan.queues]
    number_rows(behind.scan.splits, np.array(own, dtype=np.int32))
    stop = found.mapped_file.file_from_offset + behind.entry
    found.doubted = mark, len(found.splits)
    found.splits = [*found.splits, *behind.scan.splits]
    found.holes = [*found.holes, Hole(mark, stop, EARLY_END_MARK, "record", True, stop), *behind.scan.holes]
    found.queues, found.counter = list(numbers), None
    found.blank, found.blank_size, found.end = behind.scan.blank, behind.scan.blank_size, behind.scan.end
    found.unreadable = [*found.unreadable, *behind.scan.unreadable]


def _agrees(scan: SplitScan, position: int) -> bool:
    return scan.entry == position


class _Walk:
    """The walk through a file's splits: at a position, or in a hole, or over."""

    def __init__(self, part: SplitRange) -> None:
        self.result = FileScan(part.mapped_file, part.file_size)
        self.base = part.mapped_file.file_from_offset
        self.position: int | None = 0
        self.hole: Hole | None = None
        self.needed: list[Again] = []
        self._queues: dict[tuple[bytes, int], int] = {}
        self._taken: list[FileScan] = []

    @property
    def is_over(self) -> bool:
        return self.position is None and self.hole is None

    def take(self, scan: SplitScan) -> None:
        """Go through a split that the walk enters where the split's own scan began."""
        found = scan.scan
        self.position, self.hole = scan.crossed, None if scan.open_hole is None else structs.replace(scan.open_hole)
        if scan.entry is None:
            # only a guess of a split that is scanned again comes here: nothing intact begins in it
            self.hole = Hole(0, 0, "", "file-end", False, 0)
            return
        self._taken.append(found)
        self.result.holes += found.holes
        self.result.unreadable += found.unreadable
        self.result.blank, self.result.blank_size, self.result.end = found.blank, found.blank_size, found.end
        self.result.over_record = found.over_record

    def go_on_in_hole(self, scan: SplitScan) -> None:
        """A hole reaches into this split: it ends where the split's first record is, or goes on."""
        assert self.hole is not None
        if scan.entry is None:
            self.hole.last_data = max(self.hole.last_data, scan.last_data)
            self.result.unreadable += scan.scan.unreadable
            return
        stop = self.base + scan.entry
        self.result.holes.append(structs.replace(self.hole, stop=stop, ended_by=scan.enters_at, last_data=stop))
        self.take(scan)

    def whole(self) -> FileScan:
        """The file; a hole that is still open reaches to its end. Its rows are counted if those of all splits are."""
        result = self.result
        numbers = [self._numbers_of(found) for found in self._taken]
        for found, own in zip(self._taken, numbers, strict=True):
            number_rows(found.splits, own)
            result.splits += found.splits
        if self.hole is not None:
            result.holes.append(structs.replace(self.hole, stop=result.file_end))
            result.end = self.hole.start
        result.queues = list(self._queues)
        result.unreadable = list(_once(result.unreadable))
        counters = [found.counter for found in self._taken]
        result.counter = joined(counters, numbers, len(self._queues))
        return result

    def _numbers_of(self, found: FileScan) -> Rows:
        """What each queue of a split is called in the file (int32)."""
        return np.array([self._queues.setdefault(key, len(self._queues)) for key in found.queues], dtype=np.int32)


def _once(failures: Iterable[ReadFailure]) -> Iterable[ReadFailure]:
    seen: set[tuple[int, int]] = set()
    for failure in failures:
        if (failure.offset, failure.wanted) not in seen:
            seen.add((failure.offset, failure.wanted))
            yield failure
