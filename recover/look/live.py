"""The store of a running broker, as it was when the command began.

A scan takes time, and what is written meanwhile would look like damage: zeros read before the records that are there
now, units that name messages after the end of the log. So the end of the log is fixed at the beginning; files created
later are left out; units of later messages read as unwritten, and the header and slots of an index file as they were
before them; config files and the checkpoint are read at the beginning. The broker gets some time to fill queues and
index up to that end. Timers are not checked: they change in several places at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from formats.consumequeue import CQ_UNIT
from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry
from recover.change.lock import holder_of
from recover.derived.index_files import index_geometry
from recover.log.files import live_copies, place_misnamed_files
from recover.log.judge import LogReader
from recover.look.store import end_of_log, queue_ends
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFileQueue
from recover.store.reader import FileReader, LocalFile
from recover.store.source import Entry, LocalTree, StorePath, read_small
from recover.store.store import Store

_LARGEST_TEXT = 64 << 20
_AT_ONCE = 100_000
_PATIENCE = 10.0


def settled(store: Store) -> Store:
    """Return the store as it is now if a process holds its lock, for the whole command; else the store itself."""
    if isinstance(store.root, StorePath) or holder_of(store) is None:
        return store
    tree = _AsItWas(store)
    _await_dispatch(store, tree.end)
    found, _ = store.with_tree(tree)
    found.settled_at, found.lock_holder = tree.end, store.lock_holder
    return found


def _await_dispatch(store: Store, end: int) -> None:
    """Wait until units name all messages before `end` of the log, as long as new units keep coming."""
    stop, before = time.monotonic() + _PATIENCE, -1
    while (now := _dispatched_to(store)) < end and now != before and time.monotonic() < stop:
        before = now
        time.sleep(0.1)
    time.sleep(0.01)  # for the rest of that message's units, and its index entries


def _dispatched_to(store: Store) -> int:
    """The end in the log of the last message that a unit names; 0 if queues cannot be listed."""
    with suppress(OSError):
        # listed anew: the broker may have created a file, or a queue
        now = Store(store.root, store.options)
        return max((reached or 0 for _, _, reached in queue_ends(now, [])), default=0)
    return 0


class _AsItWas(LocalTree):
    def __init__(self, store: Store) -> None:
        # read before the end of the log is found, consumer offsets name nothing after it
        self._texts: dict[Path, bytes] = {}
        for path in (store.checkpoint_path, *(store.config_dir.iterdir() if store.config_dir.is_dir() else ())):
            with suppress(OSError):
                self._texts[path.absolute()] = read_small(path, _LARGEST_TEXT)
        files = store.commitlog
        self._folders = {folder.absolute() for folder in store.commitlog_dirs}
        named = [file.path for file in (*files.files, *files.duplicates)] + [item.path for item in files.odd]
        self._there = {path.absolute() for path in named}
        log, _ = place_misnamed_files(live_copies(files))
        self.end = end_of_log(log).log_end
        self._log = {file.path.absolute(): max(0, self.end - file.file_from_offset) for file in log.files}
        self._queues, self._index = store.consumequeue_dir.absolute(), store.index_dir.absolute()
        self._geometry = index_geometry(store)
        self._indexed = _Then(self.end, log)

    def entries(self, name: str) -> list[Entry]:
        folder, found = self.behind(name), super().entries(name)
        if folder in self._folders:
            return [entry for entry in found if folder / entry.name in self._there]
        if folder == self._index or folder.is_relative_to(self._queues):
            while found and found[-1].is_file and self._is_later(folder / found[-1].name):
                found.pop()
        return found

    def _is_later(self, path: Path) -> bool:
        """Whether a file of a queue or of the index begins with a later message."""
        with suppress(OSError), closing(LocalFile(path)) as file:
            if path.parent != self._index:
                unit = file.read(0, CQ_UNIT.size)
                return len(unit) == CQ_UNIT.size and CQ_UNIT.decode(unit).phy_offset >= self.end
            head = file.read(0, INDEX_HEADER.size)
            # a file exists for a moment before its first unit
            return len(head) < INDEX_HEADER.size or INDEX_HEADER.decode(head).begin_phy_offset >= self.end
        return False

    def open(self, name: str) -> FileReader:
        path = self.behind(name)
        if path in self._texts:
            return _Text(self._texts[path])
        if path in self._log:
            return _Ended(path, self._log[path])
        if path.parent == self._index and self._geometry is not None and path.stat().st_size == self._geometry.size:
            return _Indexed(path, self._geometry, self._indexed)
        return _Unwritten(path, self.end) if path.is_relative_to(self._queues) else LocalFile(path)


class _Text(FileReader):
    """A file with the content that was read before."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def length(self) -> int:
        return len(self._content)

    def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]


class _Shown(LocalFile):
    """A file whose `read` differs from the bytes on the disk."""

    read_into = FileReader.read_into


class _Ended(_Shown):
    """A log file, with zeros from position `end` on."""

    def __init__(self, path: Path, end: int) -> None:
        super().__init__(path)
        self._end = end

    def read(self, offset: int, length: int) -> bytes:
        content = super().read(offset, length)
        return content[: max(0, self._end - offset)].ljust(len(content), b"\0")

    def data_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        return super().data_ranges(start, min(stop, self._end))


class _Unwritten(_Shown):
    """A queue file in which units that name a position from `end` of the log on read as zeros."""

    def __init__(self, path: Path, end: int) -> None:
        super().__init__(path)
        self._end = end

    def read(self, offset: int, length: int) -> bytes:
        start = offset - offset % CQ_UNIT.size
        content = bytearray(super().read(start, -(-(offset + length - start) // CQ_UNIT.size) * CQ_UNIT.size))
        units = np.frombuffer(content, dtype=CQ_UNIT.dtype, count=len(content) // CQ_UNIT.size)
        units[units["phy_offset"] >= self._end] = 0
        return bytes(content[offset - start : offset - start + length])



class _Then(Struct):
    """Where the log ended, and for each index file opened so far its header and the number after its last unit at that
    time. What the broker indexes later than the first read does not count either."""

    end: int
    log: MappedFileQueue
    files: dict[Path, tuple[bytes, int]] = field(default_factory=dict)


class _Indexed(_Shown):
    """An index file with only those units that name positions before the end of the log.

    Units are written in the order of the log, each before the slot and the header that refer to it.
    """

    def __init__(self, path: Path, geometry: IndexGeometry, then: _Then) -> None:
        super().__init__(path)
        self._geometry, self._previous = geometry, np.empty(0, dtype=np.int32)
        if path not in then.files:
            then.files[path] = self._ends(then)
        self._head, self._number = then.files[path]

    def _ends(self, then: _Then) -> tuple[bytes, int]:
        """The header as it was then, and the number after its last unit."""
        head = super().read(0, INDEX_HEADER.size)
        header = INDEX_HEADER.decode(head)
        number = stop = max(1, min(header.index_count, self._geometry.entries))
        while number > 1:
            first = max(1, number - _AT_ONCE)
            phy_offsets = self._units(first, number)["phy_offset"]
            before = np.flatnonzero(phy_offsets < then.end)
            if before.size:
                number, last = first + int(before[-1]) + 1, int(phy_offsets[before[-1]])
                break
            number = first
        if number in (1, stop):
            return head, number
        with LogReader(then.log) as reader:
            record = reader.find(last)
        # up to 4.7.0 the header counts units, later slots
        gone = stop - number if header.hash_slot_count >= stop - 1 else int(
            (self._units(number, stop)["previous"] == 0).sum())
        return INDEX_HEADER.encode(header._replace(
            index_count=number, end_phy_offset=last, hash_slot_count=header.hash_slot_count - gone,
            end_timestamp=header.end_timestamp if record is None else record.store_timestamp)), number

    def _units(self, first: int, stop: int) -> Rows:
        content = super().read(self._geometry.unit_offset(first), max(0, stop - first) * INDEX_UNIT.size)
        return np.frombuffer(content, dtype=INDEX_UNIT.dtype, count=len(content) // INDEX_UNIT.size)

    def _then(self, slots: Rows) -> None:
        """Restore in `slots` (int32) the numbers that they held before the later units."""
        count = INDEX_HEADER.decode(super().read(0, INDEX_HEADER.size)).index_count
        # the unit being written has its slot before the header counts it
        fresh = self._units(self._number + self._previous.size, min(count + 1, self._geometry.entries))["previous"]
        previous = np.concatenate([self._previous, fresh.astype(np.int32)])
        self._previous = previous[: max(0, count - self._number)]
        while (later := (slots >= self._number) & (slots < self._number + previous.size)).any():
            before = previous[slots[later] - self._number]
            if (before >= slots[later]).any():
                return  # not a chain that a broker wrote
            slots[later] = before

    def read(self, offset: int, length: int) -> bytes:
        start = offset - offset % INDEX_SLOT.size
        content = bytearray(super().read(start, -(-(offset + length - start) // INDEX_SLOT.size) * INDEX_SLOT.size))
        first, stop = (max(0, place - start) // INDEX_SLOT.size
                       for place in (self._geometry.slots_offset, self._geometry.units_offset))
        slots = np.frombuffer(content, dtype=">i4", count=len(content) // INDEX_SLOT.size)[first:stop]
        if (slots >= self._number).any():
            held = slots.astype(np.int32)
            self._then(held)
            slots[:] = held
        content[: max(0, INDEX_HEADER.size - start)] = self._head[start : start + len(content)]
        unwritten = max(0, self._geometry.unit_offset(self._number) - start)
        content[unwritten:] = bytes(max(0, len(content) - unwritten))
        return bytes(content[offset - start : offset - start + length])

