"""Mapped files and queues of them: names, missing files, odd names, wrong lengths, lookup of a file by offset."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct, field

from formats.basics import offset_in_name
from recover.store.reader import ClosedFile, FileReader
from recover.store.reading import DANGLING, FILE, FOLDER
from recover.store.source import existing_entries, open_file


class MappedFile(Struct, frozen=True):
    """One file of a queue: its first byte is `file_from_offset` of the queue; `length` is its size by stat (bytes)."""

    path: Path
    file_from_offset: int
    length: int

    def open(self) -> FileReader:
        """Open the file; if the system does not open it, each read of it fails. `FileNotFoundError` if it is gone."""
        try:
            return open_file(self.path)
        except FileNotFoundError:
            raise
        except OSError as error:
            return ClosedFile(self.path, self.length, error)

    @property
    def end(self) -> int:
        return self.file_from_offset + self.length

    @property
    def name(self) -> str:
        return self.path.name


class OddName(Struct, frozen=True):
    """An entry of a data folder that does not belong there. `kind` is "a file", "a folder", "a pipe" and so on."""

    path: Path
    kind: str
    length: int

    @property
    def is_directory(self) -> bool:
        return self.kind == FOLDER

    @property
    def counts_as_file(self) -> bool:
        """Whether its name is that of a mapped file: a folder, a pipe or a dangling link is in the place of one."""
        return offset_in_name(self.path.name) is not None

    @property
    def by_hand(self) -> bool:
        """Whether no plan moves it: a pipe, a socket, a device, or a folder in the place of a mapped file."""
        return self.counts_as_file if self.is_directory else not self.is_file

    @property
    def is_file(self) -> bool:
        """Whether it is a file or a dangling link, which a plan moves aside."""
        return self.kind in (FILE, DANGLING)


class MappedFileQueue(Struct):
    """Mapped files in name order, in one folder or several (multi-path commitlog).

    `duplicates` are files whose name exists in another folder, too (MultiPathMappedFileQueue loads both); `files` has
    one file a name. No file begins within one of the units of `unit` bytes that the files hold.
    """

    directories: tuple[Path, ...]
    file_size: int = 0
    files: list[MappedFile] = field(default_factory=list)
    odd: list[OddName] = field(default_factory=list)
    duplicates: list[MappedFile] = field(default_factory=list)
    unit: int = 1

    @classmethod
    def load(cls, directories: Sequence[Path], file_size: int = 0, unit: int = 1) -> MappedFileQueue:
        """List the folders without opening a file; a missing folder counts as empty. `OSError` if listing fails."""
        queue = cls(tuple(directories), unit=unit)
        by_name: dict[int, MappedFile] = {}
        for directory in directories:
            for mapped_file in queue._list(directory):
                twin = by_name.get(mapped_file.file_from_offset)
                if twin is None:
                    by_name[mapped_file.file_from_offset] = mapped_file
                else:
                    queue.duplicates.append(mapped_file)
        queue.files = sorted(by_name.values(), key=lambda f: f.file_from_offset)
        queue.file_size = file_size or infer_file_size(queue.files)
        return queue

    def _list(self, directory: Path) -> Iterable[MappedFile]:
        for entry in existing_entries(directory):
            offset = offset_in_name(entry.name)
            if offset is None or offset % self.unit or not entry.is_file:
                self.odd.append(OddName(directory / entry.name, entry.kind, entry.length))
            else:
                yield MappedFile(directory / entry.name, offset, entry.length)

    @property
    def min_offset(self) -> int:
        """The offset at which the first file begins; 0 without files."""
        return self.files[0].file_from_offset if self.files else 0

    @property
    def max_offset(self) -> int:
        """The offset at which the last file ends at its full size; 0 without files."""
        return self.files[-1].file_from_offset + self.file_size if self.files else 0

    @property
    def lengths(self) -> list[int]:
        """The length (bytes) of every file in the folders, whatever its name."""
        odd = [item.length for item in self.odd if item.kind == FILE]
        return [file.length for file in (*self.files, *self.duplicates)] + odd

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds `offset`; None if that file is missing or `offset` is outside."""
        index = bisect_right(self.files, offset, key=lambda f: f.file_from_offset) - 1
        if index < 0 or offset >= self.files[index].file_from_offset + self.file_size:
            return None
        return self.files[index]

    def missing_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges [start, stop) between the first and the last file that no file covers."""
        found = []
        for before, after in pairwise(self.files):
            expected = before.file_from_offset + self.file_size
            if after.file_from_offset > expected:
                found.append((expected, after.file_from_offset))
        return found

    def lacks(self, offset: int) -> bool:
        """Whether a file begins at `offset` that is missing between others, or would be the next one."""
        ends = [*self.missing_ranges(), (self.max_offset, self.max_offset + 1)]
        return any(start <= offset < stop for start, stop in ends)

    def wrong_lengths(self) -> list[MappedFile]:
        """Return the files that a broker would refuse: their length is not the file size."""
        return [f for f in self.files if f.length != self.file_size]


def infer_file_size(files: Sequence[MappedFile]) -> int:
    """Return the configured file size (bytes) on which most lengths and name differences agree; 0 without evidence."""
    votes: Counter[int] = Counter(f.length for f in files if f.length > 0)
    for before, after in pairwise(files):
        votes[after.file_from_offset - before.file_from_offset] += 1
    if not votes:
        return 0
    size, count = votes.most_common(1)[0]
    if 2 * count > votes.total():
        return size  # a wrong name makes at most two differences wrong
    fitting = {size: count for size, count in votes.items() if _names_fit(files, size)}
    best = fitting or dict(votes)
    return max(best, key=lambda size: (best[size], size))


def _names_fit(files: Sequence[MappedFile], size: int) -> bool:
    """Whether all neighbours are a positive multiple of the size apart."""
    if size <= 0:
        return False
    differences = [b.file_from_offset - a.file_from_offset for a, b in pairwise(files)]
    return all(d >= size and d % size == 0 for d in differences)
