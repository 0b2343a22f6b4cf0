"""A store that a broker writes to, as it was when the look at it began.

A scan takes a while, and what is written meanwhile would look like damage: zeros that were read before the records that
are there now, units that name messages after the end of the log. So the log ends for the whole look where it ended at
first; files that were not there yet are left out; units of queues that name what came later read as unwritten; config
files and the checkpoint are those of the beginning. Index and timer are not judged: their newest parts change in
several places at once.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from formats.consumequeue import CQ_UNIT
from recover.change.lock import probe
from recover.log.files import live_copies, rightly_placed
from recover.look.store import end_of_log
from recover.store.reader import read_small
from recover.store.source import Entry, LocalFile, LocalTree, Source, StorePath
from recover.store.store import Store

_LARGEST_TEXT = 64 << 20


def settled(store: Store) -> Store:
    """The store as it is now, for as long as it is looked at, if a process holds its lock; else as it is."""
    if isinstance(store.root, StorePath) or probe(store.root) is None:
        return store
    tree = _AsItWas(store)
    found, _ = store.seen_through(tree)
    found.settled_at = tree.end
    return found


class _AsItWas(LocalTree):
    def __init__(self, store: Store) -> None:
        # offsets of consumers name nothing that comes after the end of the log, if they are read before it
        self._texts: dict[Path, bytes] = {}
        for path in (store.checkpoint_path, *(store.config_dir.iterdir() if store.config_dir.is_dir() else ())):
            with suppress(OSError):
                self._texts[path.absolute()] = read_small(path, _LARGEST_TEXT)
        files = store.commitlog
        self._folders = {folder.absolute() for folder in store.commitlog_dirs}
        named = [file.path for file in (*files.files, *files.duplicates)] + [item.path for item in files.odd]
        self._there = {path.absolute() for path in named}
        log, _ = rightly_placed(live_copies(files))
        self.end = end_of_log(log).log_end
        self._log = {file.path.absolute(): max(0, self.end - file.file_from_offset) for file in log.files}
        self._queues = store.consumequeue_dir.absolute()

    def entries(self, name: str) -> list[Entry]:
        folder, found = self.behind(name), super().entries(name)
        if folder in self._folders:
            return [entry for entry in found if folder / entry.name in self._there]
        if folder.is_relative_to(self._queues):
            while found and found[-1].is_file and self._is_later(folder / found[-1].name):
                found.pop()
        return found

    def _is_later(self, path: Path) -> bool:
        """Whether a file of a queue begins with a unit that came later."""
        with suppress(OSError), closing(LocalFile(path)) as file:
            unit = file.read(0, CQ_UNIT.size)
            return len(unit) == CQ_UNIT.size and CQ_UNIT.decode(unit).phy_offset >= self.end
        return False

    def open(self, name: str) -> Source:
        path = self.behind(name)
        if path in self._texts:
            return _Text(self._texts[path])
        if path in self._log:
            return _Ended(path, self._log[path])
        return _Unwritten(path, self.end) if path.is_relative_to(self._queues) else LocalFile(path)


class _Text(Source):
    """Bytes that were read before."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def length(self) -> int:
        return len(self._content)

    def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]


class _Ended(LocalFile):
    """A file of the log, with zeros from `end` of it on."""

    def __init__(self, path: Path, end: int) -> None:
        super().__init__(path)
        self._end = end

    def read(self, offset: int, length: int) -> bytes:
        content = super().read(offset, length)
        return content[: max(0, self._end - offset)].ljust(len(content), b"\0")

    def read_into(self, buffer: memoryview, offset: int) -> int:
        size = super().read_into(buffer, offset)
        kept = min(size, max(0, self._end - offset))
        buffer[kept:size] = bytes(size - kept)
        return size

    def stored(self, start: int, stop: int) -> list[tuple[int, int]]:
        return super().stored(start, min(stop, self._end)) if start < self._end else []


class _Unwritten(LocalFile):
    """A file of a queue, where units that name something from `end` of the log on read as zeros."""

    def __init__(self, path: Path, end: int) -> None:
        super().__init__(path)
        self._end = end

    def read(self, offset: int, length: int) -> bytes:
        start = offset - offset % CQ_UNIT.size
        content = bytearray(super().read(start, -(-(offset + length - start) // CQ_UNIT.size) * CQ_UNIT.size))
        units = np.frombuffer(content, dtype=CQ_UNIT.dtype, count=len(content) // CQ_UNIT.size)
        units[units["phy_offset"] >= self._end] = 0
        return bytes(content[offset - start : offset - start + length])

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return Source.read_into(self, buffer, offset)
