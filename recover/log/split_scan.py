"""One split of one mapped file, scanned without knowing what stands before it.

A split owns the records that begin in it. It finds its first record by itself, by the same search that goes on
after damage; whether the log really comes to that place is for `recover.log.split_scan` to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from msgspec import Struct, field, structs

from formats.record import BLANK_SIZE
from formats.record.rows import RECORD
from recover.log.file_scan import EARLY_END_MARK, WHOLE, WINDOW, FileScan, FileScanner, Hole, ProgressCallback, Window
from recover.log.tally import Counter, QueueTable, joined, number_rows
from recover.store.columns import ColumnStore, Rows, Split
from recover.store.mapped_files import MappedFile
from recover.store.reader import FileReader, ReadFailure

SPLIT_SIZE = 128 << 20


class SplitRange(Struct, frozen=True):
    """Bytes [start, stop) of a mapped file of `file_size` bytes; the last split of a file ends where the file does."""

    mapped_file: MappedFile
    file_size: int
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """True when no split of the same file follows."""
        return self.stop >= min(self.mapped_file.length, self.file_size)


class SplitScan(Struct):
    """What one split holds, from `entry` on: a position in the file; None when nothing intact begins in it.

    `enters_at` says what stands there: "record", "blank", or "chain" when the position was given.
    `crossed` is the position, at or after the split's end, where the walk goes on; `open_hole` a hole that
    reaches the split's end. With neither the file ended here. `last_data` is the physical offset
    after the last byte seen that is not zero, where `entry` is None.
    """

    part: SplitRange
    scan: FileScan
    entry: int | None
    enters_at: str
    crossed: int | None = None
    open_hole: Hole | None = None
    last_data: int = 0


def splits_of(mapped_file: MappedFile, file_size: int, split_size: int = SPLIT_SIZE) -> list[SplitRange]:
    """The file cut into splits of `split_size` bytes; one, possibly empty, for a file without bytes."""
    length = min(mapped_file.length, file_size)
    starts = range(0, max(length, 1), split_size)
    return [SplitRange(mapped_file, file_size, start, min(start + split_size, length)) for start in starts]


class _SplitScanner(FileScanner):
    def __init__(self, part: SplitRange, columns: ColumnStore, progress: ProgressCallback | None, **kept: Any) -> None:
        super().__init__(part.mapped_file, part.file_size, columns, progress, **kept)
        self.part = part
        self.stop = WHOLE if part.is_last else part.stop
        self.open_hole: Hole | None = None
        self._reported = 0

    def run_split(self, reader: FileReader, window_size: int, entry: int | None) -> SplitScan:
        window = Window(reader, self.length, window_size, self.stop)
        enters_at, last_data = "chain", 0
        position = entry
        if entry is None:
            found, last_data = self._search(window, self.part.start, self.part.start, 0)
            if found is not None:
                enters_at, entry = found
                position = entry if enters_at == "record" else None
                if enters_at == "blank":
                    self._end_at_blank(window, entry)
        while position is not None:
            position = self._walk(window, position)
            if position is not None and position >= self.stop:
                break
        window.close()
        self._end()
        # a record that begins here may reach into the next split, and not all of a hole was told of
        self._report(self.part.stop - self.part.start - self._reported, 0)
        result = SplitScan(self.part, self.result, entry, enters_at, open_hole=self.open_hole, last_data=last_data)
        result.crossed = self._crossed() if entry is not None else None
        self.result.unreadable = window.failures
        return result

    def _crossed(self) -> int | None:
        """Where the walk goes on in the next split."""
        if self.open_hole is not None or self.result.blank is not None or self.result.end < self.base + self.stop:
            return None
        return self.result.end - self.base

    def _report(self, size: int, records: int) -> None:
        self._reported += size
        super()._report(size, records)

    def _end_in_hole(self, hole: Hole, position: int) -> None:
        if self.part.is_last:
            super()._end_in_hole(hole, position)
        else:
            self.open_hole = hole


def scan_split(
    part: SplitRange, entry: int | None = None, window: int = WINDOW, *, reader: FileReader | None = None,
    columns: ColumnStore | None = None, progress: ProgressCallback | None = None, with_keys: bool = True,
    counter: Counter | None = None, known: QueueTable | None = None,
) -> SplitScan:
    """Scan one split, from position `entry` of the file, or from the first thing intact when that is None.

    The first split of a file is entered at 0. `OSError` when the file cannot be opened, unless `reader` has it open.
    Queues that are `known` have their numbers; all else is as `scan_file` has it, but that nothing is counted without
    a `counter`.
    """
    if entry is None and part.start == 0:
        entry = 0
    scanner = _SplitScanner(part, columns or ColumnStore(WHOLE), progress, with_keys=with_keys)
    scanner.result.counter = counter
    if known is not None:
        scanner.queues.begin_with(known)
    with FileReader(part.mapped_file.path) if reader is None else nullcontext(reader) as opened:
        return scanner.run_split(opened, window, entry)


def queues_of(part: SplitRange, reader: FileReader, window: int = WINDOW) -> QueueTable:
    """The queues of the records that begin in the first split of a file, as they come."""
    scanner = _SplitScanner(part, ColumnStore(0), None, with_keys=False)
    scanner.run_split(reader, window, 0)
    return scanner.queues


def one_split(splits: Iterable[Split]) -> Split:
    """The rows of several splits as those of one."""
    parts = [*splits] or [Split(np.empty(0, dtype=RECORD), np.empty(0, dtype=np.int32))]
    if len(parts) == 1:
        return parts[0]
    return Split(np.concatenate([part.records for part in parts]), np.concatenate([part.hashes for part in parts]))


Again = tuple[SplitRange, int | None]
"""A split, and the position in its file to enter it at; None for what stands after a doubtful end mark."""


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
            self.past = past_mark(self.found) if take_past_mark(self.found, scan) else None
        else:
            assert scan.entry is not None
            self.again[scan.part.start, scan.entry] = scan

    def join(self) -> FileScan | list[Again]:
        """The whole file; or which splits to scan again, and from where, before there can be an answer.

        After a split that is still to be scanned again, the walk is guessed to go on as the first scan of that
        split said. So one round of further scans is nearly always enough.
        """
        if self.found is not None:
            return self.found if self.past is None else [(self.past, None)]
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


_MOST_MARKS = 100
"""So many end marks of a file are doubted at most: each takes one more look at what stands after it."""


def past_mark(found: FileScan) -> SplitRange | None:
    """What stands after the end mark of a file, if that was written over a record that names this place."""
    if found.blank is None or not found.over_record or len(found.doubted) == _MOST_MARKS:
        return None
    start = found.blank - found.mapped_file.file_from_offset + BLANK_SIZE
    part = SplitRange(found.mapped_file, found.file_size, start, min(found.mapped_file.length, found.file_size))
    return part if start < part.stop else None


def take_past_mark(found: FileScan, behind: SplitScan) -> bool:
    """Let the file go on after its end mark, if the scan of what stands there found a record or one more such mark.

    What was counted of the file holds no more then. Whether the file goes on.
    """
    mark = found.blank
    if mark is None or behind.entry is None or (behind.enters_at != "record" and not behind.scan.over_record):
        return False
    numbers = {key: number for number, key in enumerate(found.queues)}
    own = [numbers.setdefault(key, len(numbers)) for key in behind.scan.queues]
    number_rows(behind.scan.splits, np.array(own, dtype=np.int32))
    stop = found.mapped_file.file_from_offset + behind.entry
    found.doubted = [*found.doubted, (mark, len(found.splits))]
    found.splits = [*found.splits, *behind.scan.splits]
    found.holes = [*found.holes, Hole(mark, stop, EARLY_END_MARK, behind.enters_at, True, stop), *behind.scan.holes]
    found.queues, found.counter = list(numbers), None
    found.blank, found.blank_size, found.end = behind.scan.blank, behind.scan.blank_size, behind.scan.end
    found.over_record = behind.scan.over_record
    found.unreadable = [*found.unreadable, *behind.scan.unreadable]
    return True


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
