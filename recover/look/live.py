"""The store of a running broker, as it was when the command began.

A scan takes time, and what is written meanwhile would look like damage: zeros read before the records that are there
now, units that name messages after the end of the log. So the end of the log is fixed at the beginning; files created
later are left out; units of later messages read as unwritten, and the header and slots of an index file as they were
before them; config files and the checkpoint are read at the beginning. The broker gets some time to fill queues and
index up to that end. Timers are not checked: they change in several places at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np

from formats.consumequeue import CQ_UNIT
from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry
from recover.change.lock import holder_of
from recover.derived.index_files import index_geometry
from recover.log.files import live_copies, place_misnamed_files
from recover.log.judge import LogReader
from recover.look.store import end_of_log
from recover.store.columns import Rows
from recover.store.reader import FileReader, LocalFile
from recover.store.source import Entry, LocalTree, StorePath, read_small
from recover.store.store import Store, queue_ends

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
        self._heads: dict[Path, tuple[bytes, int]] = {}
        self._found = log

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
            return _Shown(path, partial(_zero_from, self._log[path]))
        if path.parent == self._index and self._geometry is not None and path.stat().st_size == self._geometry.size:
            if path not in self._heads:
                self._heads[path] = self._index_head(path, self._geometry)
            return _Shown(path, partial(_with_head, *self._heads[path]))
        if path.is_relative_to(self._queues):
            return _Shown(path, partial(_without_later, self.end), CQ_UNIT.size)
        return LocalFile(path)

    def _index_head(self, path: Path, geometry: IndexGeometry) -> tuple[bytes, int]:
        """Header and slots of an index file as they were at the end of the log, and the position after the file's last
        unit then. What the broker indexes later does not count either.

        Units are written in the order of the log, each before the slot and the header that refer to it.
        """
        with closing(LocalFile(path)) as file:
            def units(first: int, stop: int) -> Rows:
                content = file.read(geometry.unit_offset(first), max(0, stop - first) * INDEX_UNIT.size)
                return np.frombuffer(content, dtype=INDEX_UNIT.dtype, count=len(content) // INDEX_UNIT.size)

            head = bytearray(file.read(0, geometry.units_offset))
            header, slots = INDEX_HEADER.decode(head), np.frombuffer(head, dtype=">i4", offset=INDEX_HEADER.size)
            number = stop = max(1, min(header.index_count, geometry.entries))
            while number > 1:
                first = max(1, number - _AT_ONCE)
                phy_offsets = units(first, number)["phy_offset"]
                before = np.flatnonzero(phy_offsets < self.end)
                if before.size:
                    number, last = first + int(before[-1]) + 1, int(phy_offsets[before[-1]])
                    break
                number = first
            # the unit being written has its slot before the header counts it
            written = INDEX_HEADER.decode(file.read(0, INDEX_HEADER.size)).index_count + 1
            previous = units(number, min(written, geometry.entries))["previous"]
        _unchain(slots, number, previous.astype(np.int32))
        if number not in (1, stop):
            with LogReader(self._found) as reader:
                record = reader.find(last)
            # up to 4.7.0 the header counts units, later slots
            each = header.hash_slot_count >= stop - 1
            gone = stop - number if each else int((previous[: stop - number] == 0).sum())
            head[: INDEX_HEADER.size] = INDEX_HEADER.encode(header._replace(
                index_count=number, end_phy_offset=last, hash_slot_count=header.hash_slot_count - gone,
                end_timestamp=header.end_timestamp if record is None else record.store_timestamp))
        return bytes(head), geometry.unit_offset(number)


def _unchain(slots: Rows, number: int, previous: Rows) -> None:
    """Set slots to the numbers that they held before the units from `number` on, whose `previous` are given."""
    held = slots.astype(np.int32)
    while (later := (held >= number) & (held < number + previous.size)).any():
        before = previous[held[later] - number]
        if (before >= held[later]).any():
            break  # not a chain that a broker wrote
        held[later] = before
    slots[:] = held


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
    """A file whose bytes `change` makes what they were: it gets them with their position, in whole units."""

    read_into = FileReader.read_into

    def __init__(self, path: Path, change: Callable[[bytearray, int], None], unit: int = 1) -> None:
        super().__init__(path)
        self._change, self._unit = change, unit

    def read(self, offset: int, length: int) -> bytes:
        start = offset - offset % self._unit
        content = bytearray(super().read(start, -(-(offset + length - start) // self._unit) * self._unit))
        self._change(content, start)
        return bytes(content[offset - start : offset - start + length])


def _zero_from(end: int, content: bytearray, start: int) -> None:
    after = max(0, end - start)
    content[after:] = bytes(max(0, len(content) - after))


def _without_later(end: int, content: bytearray, start: int) -> None:
    """Zero the units that name a position from `end` of the log on."""
    units = np.frombuffer(content, dtype=CQ_UNIT.dtype, count=len(content) // CQ_UNIT.size)
    units[units["phy_offset"] >= end] = 0


def _with_head(head: bytes, end: int, content: bytearray, start: int) -> None:
    content[: max(0, len(head) - start)] = head[start : start + len(content)]
    _zero_from(end, content, start)
