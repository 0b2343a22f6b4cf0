"""The files of one consume queue and the units in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from formats.basics import FormatError
from formats.consumequeue import (
    CQ_EXT_HEAD,
    CQ_UNIT,
    MAX_EXT_ADDRESS,
    PRE_BLANK,
    CqExtUnit,
    CqUnit,
    decode_ext,
    ext_address,
    ext_offset,
    is_ext_address,
)
from formats.record import MIN_RECORD_SIZE
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reader import ReadFailure
from recover.store.source import open_file
from recover.store.store import Store

UNIT_SIZE = CQ_UNIT.size
_UNIT = CQ_UNIT.dtype


class Stretch(Struct, dict=True):
    """Units of adjoining files (CQ_UNIT dtype); row i has queue offset `first_index + i`.

    The files have room for `cells` cells: those of `units`, then only zeros.
    """

    first_index: int
    files: list[MappedFile]
    cells: int
    units: Rows

    @property
    def held(self) -> int:
        """The number of units."""
        return int(self.units.size)

    @cached_property
    def phy_offset(self) -> Rows:
        """The column as int64."""
        return self.units["phy_offset"].astype(np.int64)

    @cached_property
    def size(self) -> Rows:
        """The column as int32."""
        return self.units["size"].astype(np.int32)

    @cached_property
    def tags_code(self) -> Rows:
        """The column as int64."""
        return self.units["tags_code"].astype(np.int64)

    def named(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return which of some EXPECTED rows the units at their queue offsets name, and the cells of these units (two
        int64 arrays)."""
        cells = rows["queue_offset"] - self.first_index
        inside = np.flatnonzero((cells >= 0) & (cells < self.held))
        cells = cells[inside]
        same = (self.phy_offset[cells] == rows["phy_offset"][inside]) & (self.size[cells] == rows["size"][inside])
        return inside[same], cells[same]

    def place(self, cell: int) -> tuple[MappedFile, int]:
        """Return the file that holds a cell, and the byte position of the cell in it."""
        position = (self.first_index + cell) * UNIT_SIZE
        for mapped_file in reversed(self.files):
            if position >= mapped_file.file_from_offset:
                return mapped_file, position - mapped_file.file_from_offset
        return self.files[0], 0


class QueueFiles(Struct, dict=True):
    """One consume queue on disk. Units are read on demand and not cached; unreadable ranges count as zeros and are
    added to `failures`, as are those that only a second try could read."""

    store: Store
    topic: str
    queue_id: int
    failures: list[ReadFailure] = field(default_factory=list)

    @cached_property
    def mapped_files(self) -> MappedFileQueue:
        """The queue's files; the file size is that of all consume queues of the store."""
        folder = self.store.consumequeue_dir / self.topic / str(self.queue_id)
        return MappedFileQueue.load((folder,), self.store.queue_file_size, UNIT_SIZE)

    def stretches(self, first: int = 0, last: int | None = None) -> Iterator[Stretch]:
        """Yield the units of the queue, one stretch for each run of adjoining files.

        With `last`, only files that hold one of the queue offsets `first` to `last` are read.
        """
        run: list[MappedFile] = []
        size = self.store.queue_file_size
        for mapped_file in self.mapped_files.files:
            start = mapped_file.file_from_offset
            if last is not None and not first * UNIT_SIZE - size < start <= last * UNIT_SIZE:
                continue
            if run and start != run[-1].file_from_offset + size:
                yield self._load(run)
                run = []
            run.append(mapped_file)
        if run:
            yield self._load(run)

    def _load(self, files: list[MappedFile]) -> Stretch:
        per_file = self.store.queue_file_size // UNIT_SIZE
        parts = [read_units(mapped_file, self.store.queue_file_size, self.failures) for mapped_file in files]
        units = np.zeros((len(files) - 1) * per_file + parts[-1].size, dtype=_UNIT)
        for number, part in enumerate(parts):
            units[number * per_file :][: part.size] = part
        return Stretch(files[0].file_from_offset // UNIT_SIZE, files, len(files) * per_file, units)


def read_units(mapped_file: MappedFile, size: int, failures: list[ReadFailure]) -> Rows:
    """Return the units of a file of at most `size` bytes up to its last stored byte; a new file has almost none.
    Unreadable ranges count as zeros and are added to `failures`."""
    with open_file(mapped_file.path) as reader:
        ranges = list(reader.data_ranges(0, min(size, mapped_file.length)))
        stop = ranges[-1][1] if ranges else 0
        units = np.zeros(-(-stop // UNIT_SIZE), dtype=_UNIT)
        content = memoryview(units.view(np.uint8).data)
        for start, stop in ranges:
            try:
                reader.read_into(content[start:stop], start)
            except ReadFailure as failure:
                failures += reader.salvage_into(content[start:stop], start)[1] or [failure]
    return units


def unit_at(files: MappedFileQueue, queue_offset: int) -> CqUnit | None:
    """Return the unit of one queue offset; None if there is no file, or the file ends before it. `OSError`."""
    position = queue_offset * UNIT_SIZE
    mapped_file = files.find(position)
    if mapped_file is None:
        return None
    with open_file(mapped_file.path) as reader:
        content = reader.read(position - mapped_file.file_from_offset, UNIT_SIZE)
    return CQ_UNIT.decode(content) if len(content) == UNIT_SIZE else None


def unit_of(store: Store, topic: str, queue_id: int, queue_offset: int) -> CqUnit | None:
    """Return the unit of one queue offset of a queue of the store; None if none can be read."""
    try:
        return unit_at(QueueFiles(store, topic, queue_id).mapped_files, queue_offset)
    except OSError:
        return None


def has_ext(stretch: Stretch) -> bool:
    """Whether a unit of the stretch points into consumequeue_ext."""
    return bool(stretch.tags_code.size) and is_ext_address(int(stretch.tags_code.min()))


def cut_off(phy_offset: Rows, size: Rows, used: int, min_offset: int) -> int:
    """Return the cell after the last unit of an expired message that follows `used`, the first cell without a unit.

    `used` if there is none. Brokers leave no gaps, so that cell held a unit, too; a queue whose messages are all
    expired has no other evidence that it was longer. Bytes that do not continue from the unit before are not units.
    """
    before = int(phy_offset[used - 1]) if used else -1
    rest, sizes = phy_offset[used:], size[used:]
    units = (sizes >= MIN_RECORD_SIZE) & (sizes < PRE_BLANK.size) & (rest > before) & (rest + sizes <= min_offset)
    found = np.flatnonzero(units)
    return used + int(found[-1]) + 1 if found.size else used


# --- The consumequeue_ext files of one queue, and the units that a broker finds in them.


_BASE = np.int64(ext_address(0))
_FIRST_RUN, _LONGEST_RUN = 64, 1 << 16


class ExtUnits(Struct, frozen=True):
    """Units by position (bytes from the queue's start); columns int64."""

    position: Rows
    size: Rows
    tags_code: Rows
    store_timestamp: Rows

    def find(self, positions: Rows) -> Rows:
        """Return the index of the unit at each position, -1 where none starts."""
        if not self.position.size:
            return np.full(positions.shape, -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.position, positions), self.position.size - 1)
        return np.asarray(np.where(self.position[at] == positions, at, -1))

    def holds(self, positions: Rows, tags_codes: Rows, store_timestamps: Rows) -> Rows:
        """At which positions a unit with that tags code and store timestamp starts (bool array)."""
        at = self.find(positions)
        found = at >= 0
        at = at[found]
        found[found] = (self.tags_code[at] == tags_codes[found]) & (self.store_timestamp[at] == store_timestamps[found])
        return np.asarray(found)


def positions_of(addresses: Rows) -> Rows:
    """Return the byte positions of addresses."""
    return np.asarray(addresses - _BASE)


def addresses_of(positions: Rows) -> Rows:
    """Return the tags codes that are addresses of byte positions."""
    return np.asarray(positions + _BASE)


class ExtFiles(Struct, dict=True):
    """The ext files of one queue on disk. Unreadable files count as empty and are added to `failures`."""

    store: Store
    topic: str
    queue_id: int
    failures: list[ReadFailure] = field(default_factory=list)
    _open: tuple[int, bytes] = (-1, b"")

    @cached_property
    def mapped_files(self) -> MappedFileQueue:
        """The files; the file size is that of all ext files of the store."""
        folder = self.store.consumequeue_ext_dir / self.topic / str(self.queue_id)
        return MappedFileQueue.load((folder,), self.store.ext_file_size)

    def content(self, mapped_file: MappedFile) -> bytes:
        """Return a file up to its last stored byte; the rest of it is zeros. One file is cached at a time."""
        if self._open[0] != mapped_file.file_from_offset:
            self._open = mapped_file.file_from_offset, self._read(mapped_file)
        return self._open[1]

    def _read(self, mapped_file: MappedFile) -> bytes:
        try:
            with open_file(mapped_file.path) as reader:
                size = min(mapped_file.length, self.store.ext_file_size)
                stop = max((stop for _, stop in reader.data_ranges(0, size)), default=0)
                return reader.read(0, min(stop, size))
        except ReadFailure as failure:
            self.failures.append(failure)
            return b""

    @cached_property
    def units(self) -> ExtUnits:
        """The units that ConsumeQueueExt.recover visits: one after another from the start of each file."""
        columns: list[Rows] = []
        for mapped_file in self.mapped_files.files:
            for start, size, heads in _runs(self.content(mapped_file)):
                places = mapped_file.file_from_offset + start + size * np.arange(heads.size, dtype=np.int64)
                sizes = np.full(heads.size, size, dtype=np.int64)
                columns.append(np.stack([places, sizes, heads["tags_code"], heads["store_timestamp"]]))
        return ExtUnits(*np.concatenate([np.empty((4, 0), dtype=np.int64), *columns], axis=1))

    def tags_codes(self, tags_codes: Rows) -> Rows:
        """Return a copy in which addresses of units in `units` are replaced by the tags codes stored there."""
        plain = tags_codes.copy()
        cells = np.flatnonzero(tags_codes <= MAX_EXT_ADDRESS)
        at = self.units.find(positions_of(tags_codes[cells]))
        plain[cells[at >= 0]] = self.units.tags_code[at[at >= 0]]
        return plain

    def unit(self, position: int) -> CqExtUnit | None:
        """Return the unit at a byte position, even if it is not in `units`; None if there is none."""
        mapped_file = self.mapped_files.find(position)
        if mapped_file is None:
            return None
        try:
            return decode_ext(self.content(mapped_file), position - mapped_file.file_from_offset)[0]
        except FormatError:
            return None

    def place(self, address: int) -> tuple[MappedFile | None, int]:
        """Return the file that an address points to (None if missing) and the byte position in it."""
        position = ext_offset(address)
        mapped_file = self.mapped_files.find(position)
        return mapped_file, position - (mapped_file.file_from_offset if mapped_file is not None else 0)


def _runs(content: bytes) -> Iterator[tuple[int, int, Rows]]:
    """Yield (position, unit size, heads) of each run of units of one size, from the start of a file."""
    position = 0
    longest = _FIRST_RUN
    while True:
        try:
            unit, size = decode_ext(content, position)
        except FormatError:
            return
        count = min((len(content) - position) // size, longest)
        cells = np.frombuffer(content, dtype=np.uint8, count=count * size, offset=position).reshape(count, size)
        heads = np.ascontiguousarray(cells[:, : CQ_EXT_HEAD.size]).view(CQ_EXT_HEAD.dtype).ravel()
        alike = (heads["size"] == size) & (np.maximum(heads["bit_map_size"], 0) == len(unit.bit_map))
        length = count if alike.all() else int(alike.argmin())
        yield position, size, heads[:length]
        position += length * size
        longest = min(longest * 4, _LONGEST_RUN) if length == count else _FIRST_RUN
