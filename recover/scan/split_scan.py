"""One split of one mapped file, scanned without knowing what stands in front of it.

A split owns the records that begin in it. It finds its first record by itself, by the same search that goes on
behind damage; whether the log really comes to that place is for `recover.scan.split_join` to say.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from formats.record_columns import RECORD
from recover.files.mapped_files import MappedFile
from recover.files.reader import FileReader
from recover.memory.columns import ColumnStore, Split
from recover.scan.file_scan import WHOLE, WINDOW, FileScan, FileScanner, Hole
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
    def __init__(self, part: SplitRange) -> None:
        super().__init__(part.mapped_file, part.file_size, ColumnStore(WHOLE), None)
        self.part = part
        self.stop = WHOLE if part.is_last else part.stop
        self.open_hole: Hole | None = None

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
        result = SplitScan(self.part, self.result, entry, enters_at, open_hole=self.open_hole, last_data=last_data)
        result.crossed = self._crossed() if entry is not None else None
        self.result.unreadable = window.failures
        return result

    def _crossed(self) -> int | None:
        """Where the walk goes on in the next split; the rows from there on are left to it."""
        if self.open_hole is not None or self.result.blank is not None or self.result.end < self.base + self.stop:
            return None
        end = self.result.end
        kept: list[Split] = []
        for split in self.result.splits:
            inside = split.records["phy_offset"] < self.base + self.stop
            if not inside.all():
                end = min(end, int(split.records["phy_offset"][~inside][0]))
                hashes = int(split.records["hashes"][inside].astype(np.int64).sum())
                split = Split(split.records[inside], split.hashes[:hashes])
            if split.records.size:
                kept.append(split)
        self.result.splits, self.result.end = kept, end
        return end - self.base

    def _end_in_hole(self, hole: Hole, position: int) -> None:
        if self.part.is_last:
            super()._end_in_hole(hole, position)
        else:
            self.open_hole = hole


def scan_split(part: SplitRange, entry: int | None = None, window: int = WINDOW) -> SplitScan:
    """Scan one split, from position `entry` of the file, or from the first thing intact when that is None.

    The first split of a file is entered at 0. `OSError` when the file cannot be opened.
    """
    if entry is None and part.start == 0:
        entry = 0
    scanner = _SplitScanner(part)
    with FileReader(part.mapped_file.path) as reader:
        return scanner.run_split(reader, window, entry)


def one_split(splits: Iterable[Split]) -> Split:
    """The rows of several splits as those of one."""
    parts = [*splits] or [Split(np.empty(0, dtype=RECORD), np.empty(0, dtype=np.int32))]
    if len(parts) == 1:
        return parts[0]
    return Split(np.concatenate([part.records for part in parts]), np.concatenate([part.hashes for part in parts]))
