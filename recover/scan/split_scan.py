"""One split of one mapped file, scanned without knowing what stands in front of it.

A split owns the records that begin in it. It finds its first record by itself, by the same search that goes on
behind damage; whether the log really comes to that place is for `recover.scan.split_join` to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
from msgspec import Struct

from formats.record_columns import RECORD
from recover.files.mapped_files import MappedFile
from recover.files.reader import FileReader
from recover.memory.columns import ColumnStore, Split
from recover.scan.file_scan import WHOLE, WINDOW, FileScan, FileScanner, Hole, ProgressCallback
from recover.scan.queue_table import QueueTable
from recover.scan.tally import Counter
from recover.scan.window import Window

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
    `crossed` is the position, at or behind the split's end, where the walk goes on; `open_hole` a hole that
    reaches the split's end. With neither the file ended here. `last_data` is the physical offset
    behind the last byte seen that is not zero, where `entry` is None.
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
                    self._end_at_blank(entry, self.result.file_end - self.base - entry)
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
