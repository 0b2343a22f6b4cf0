"""consumequeue_ext files that fit a rebuilt queue: what is intact stays, the rest is put like ConsumeQueueExt.put."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct

from formats.consumequeue_ext import CQ_EXT_END, END, END_ROOM, CqExtUnit, encode
from formats.names import offset_to_name
from recover.change.content import Spool
from recover.change.model import Install, Retire, Step, patches
from recover.store.columns import Rows
from recover.store.derived_files import ExtFiles, is_address, positions_of

_NOWHERE = -1


class ExtRows(Struct, frozen=True):
    """What ext units are wanted for, in queue order: `tags_code` and `store_timestamp` of each row's message, and
    `position` (bytes) where its unit should be already, -1 where nothing tells. int64 each."""

    tags_code: Rows
    store_timestamp: Rows
    position: Rows

    @property
    def size(self) -> int:
        return int(self.position.size)


class ExtImage(Struct, frozen=True):
    """Where the unit of each row is (`positions`, bytes, int64), and what has to be written for that.

    `writes` are (position, bytes) in ascending order, none across files. From `zero_from` on nothing is left that
    could be taken for a unit; None where what stands after the last unit does no harm.
    """

    file_size: int
    positions: Rows
    writes: tuple[tuple[int, bytes], ...] = ()
    zero_from: int | None = None

    def files(self) -> Iterator[tuple[int, bytes]]:
        """(file_from_offset, content up to its last unit) of each file, for an image that was made from nothing."""
        for base in sorted({self._base(position) for position, _ in self.writes}):
            yield base, self.patched(base, b"")

    def touched(self) -> list[int]:
        """file_from_offset of each file that something is written to."""
        places = [position for position, _ in self.writes]
        if self.zero_from is not None:
            places.append(self.zero_from)
        return sorted({self._base(position) for position in places})

    def patched(self, base: int, old: bytes) -> bytes:
        """The file at `base` with these writes over `old`; zeros may follow it."""
        content = bytearray(old)
        for position, data in self.writes:
            if self._base(position) == base:
                content[len(content) :] = bytes(max(0, position - base - len(content)))
                content[position - base : position - base + len(data)] = data
        if self.zero_from is not None and self._base(self.zero_from) == base:
            del content[self.zero_from - base :]
        return bytes(content)

    def _base(self, position: int) -> int:
        return position // self.file_size * self.file_size


def wants_ext(rows: Rows, found: Rows, tags_codes: Rows, *, by_default: bool) -> Rows:
    """Which rows of a queue have an ext unit (bool array).

    `found` says for which rows the queue on disk has the right unit, `tags_codes` what that carries. The switch
    can have been turned in between, so a row without a unit does as the one before it, or else after it.
    """
    if not found.any():
        return np.full(rows.size, by_default)
    numbers = np.arange(rows.size)
    before = np.maximum.accumulate(np.where(found, numbers, -1))
    source = np.where(before >= 0, before, int(np.flatnonzero(found)[0]))
    return np.asarray(is_address(tags_codes)[source])


def fresh_ext(rows: ExtRows, files: ExtFiles) -> ExtImage:
    """All units anew from position 0 on; those that are intact on disk keep their filter bit map."""
    size = files.store.ext_file_size
    writer = _Writer(size, 0)
    positions = [writer.put(_intact(rows, number, files)) for number in range(rows.size)]
    return ExtImage(size, np.array(positions, dtype=np.int64), writer.result())


def repaired_ext(rows: ExtRows, files: ExtFiles, floor: int | None) -> ExtImage:
    """The units on disk up to the first that is not right, then all others put in order after it, with their bit maps.

    A broker that starts cuts the ext files after the unit of the queue's last cell, so a unit must not stand after
    those of later messages. `floor`: no live unit stands before this position (None: of the first file).
    """
    size = files.store.ext_file_size
    start = files.mapped_files.min_offset if floor is None else floor
    known = files.units
    rows = ExtRows(rows.tags_code, rows.store_timestamp, _found(rows, files, start))
    kept = _kept(rows, files, start)
    if kept == rows.size:
        return ExtImage(size, rows.position)
    if kept:
        last = int(known.find(rows.position[kept - 1 : kept])[0])
        start = int(known.position[last] + known.size[last])
    writer = _Writer(size, start)
    fresh = [writer.put(_intact(rows, number, files)) for number in range(kept, rows.size)]
    return ExtImage(size, np.r_[rows.position[:kept], fresh], writer.result(), writer.position)


def end_of(files: ExtFiles, addresses: Rows) -> int | None:
    """Position after the last unit that one of `addresses` leads to; None without one."""
    known = files.units
    found = known.find(positions_of(addresses))
    found = found[found >= 0]
    return int(known.position[found.max()] + known.size[found.max()]) if found.size else None


def _found(rows: ExtRows, files: ExtFiles, start: int) -> Rows:
    """`position` of each row; of one that no queue tells, the next unit of its tags code and time from `start` on."""
    known, positions = files.units, rows.position.copy()
    times, tags_codes = known.store_timestamp.tolist(), known.tags_code.tolist()
    passed, taken = int(np.searchsorted(known.position, start)), set(positions.tolist())
    for number in np.flatnonzero(positions == _NOWHERE).tolist():
        tags_code, timestamp = int(rows.tags_code[number]), int(rows.store_timestamp[number])
        while passed < len(times) and times[passed] < timestamp:
            passed += 1
        at = passed
        while at < len(times) and times[at] == timestamp:
            if tags_codes[at] == tags_code and int(known.position[at]) not in taken:
                positions[number] = int(known.position[at])
                taken.add(int(known.position[at]))
                break
            at += 1
    return positions


def _kept(rows: ExtRows, files: ExtFiles, start: int) -> int:
    """How many rows from the first on have their unit where they say, in order."""
    known = files.units
    at = known.find(rows.position)
    right = at >= 0
    right &= (known.tags_code[at] == rows.tags_code) if known.position.size else False
    right &= (known.store_timestamp[at] == rows.store_timestamp) if known.position.size else False
    right &= np.diff(rows.position, prepend=start - 1) > 0
    return rows.size if right.all() else int(right.argmin())


def _intact(rows: ExtRows, number: int, files: ExtFiles) -> bytes:
    """The unit of a row: the one on disk if it is right, else one without a bit map."""
    tags_code, timestamp = int(rows.tags_code[number]), int(rows.store_timestamp[number])
    position = int(rows.position[number])
    unit = files.unit(position) if position != _NOWHERE else None
    if unit is None or (unit.tags_code, unit.store_timestamp) != (tags_code, timestamp):
        unit = CqExtUnit(tags_code, timestamp, b"")
    return encode(unit)


class _Writer:
    """Puts units one after the other, files as ConsumeQueueExt.put fills them."""

    def __init__(self, file_size: int, position: int) -> None:
        self.file_size = file_size
        self.position = position
        self._writes: list[tuple[int, bytearray]] = []

    def put(self, unit: bytes) -> int:
        """Add a unit; the position that it got."""
        left = self.file_size - self.position % self.file_size
        if len(unit) > left - END_ROOM:
            self._write(CQ_EXT_END.encode(END)[:left])
            self.position += left - min(left, CQ_EXT_END.size)
        place = self.position
        self._write(unit)
        return place

    def _write(self, data: bytes) -> None:
        last = self._writes[-1] if self._writes else None
        if last is not None and last[0] + len(last[1]) == self.position and self.position % self.file_size:
            last[1].extend(data)
        else:
            self._writes.append((self.position, bytearray(data)))
        self.position += len(data)

    def result(self) -> tuple[tuple[int, bytes], ...]:
        """What was written, by position."""
        return tuple((position, bytes(data)) for position, data in self._writes)


def ext_steps(files: ExtFiles, image: ExtImage, spool: Spool) -> Iterator[Step]:
    """Steps that make the ext files of a queue fit an image; nothing for a file that does."""
    store, size = files.store, image.file_size
    folder = store.consumequeue_ext_dir / files.topic / str(files.queue_id)
    on_disk = {mapped_file.file_from_offset: mapped_file for mapped_file in files.mapped_files.files}
    wrong = {mapped_file.file_from_offset for mapped_file in files.mapped_files.wrong_lengths()}
    for base in sorted({*image.touched(), *wrong}):
        mapped_file = on_disk.get(base)
        old = files.content(mapped_file) if mapped_file is not None else b""
        new = image.patched(base, old)
        if mapped_file is not None and base not in wrong:
            yield from patches(store.relative(mapped_file.path), old, new)
        elif new or mapped_file is None:
            yield Install(store.relative(folder / offset_to_name(base)), spool.padded(new, size))
        else:
            yield from _empty(store.relative(folder / offset_to_name(base)), base, image, size, spool)
    for odd in files.mapped_files.odd:
        if odd.is_file:
            yield Retire(store.relative(odd.path))


def _empty(file: str, base: int, image: ExtImage, size: int, spool: Spool) -> Iterable[Step]:
    """A file of a wrong length with nothing in it: removed if no file before needs it to be there."""
    needed = bool(image.positions.size) and base < int(image.positions.max()) // size * size
    return [Install(file, spool.padded(b"", size))] if needed else [Retire(file)]
