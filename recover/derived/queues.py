"""Consume queues computed from the log: cells, files, and the steps that write what differs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from formats.basics import Buffer, offset_to_name
from formats.consumequeue import (
    CQ_EXT_END,
    CQ_UNIT,
    EXT_END,
    EXT_END_ROOM,
    MAX_EXT_ADDRESS,
    PRE_BLANK,
    CqExtUnit,
    encode_ext,
)
from formats.record import SERVICE_TOPICS
from formats.record.rows import EXPECTED
from recover.broker.settings import DelayTable
from recover.change.content import BytesContent, Spool
from recover.change.model import Install, Retire, Step, patches
from recover.derived.expected import ConsumeQueueReport, Expectation, Producer, QueueKey, is_lost
from recover.log.scan import LogView
from recover.store.columns import Rows, within
from recover.store.derived_files import (
    UNIT_SIZE,
    ExtFiles,
    QueueFiles,
    Stretch,
    addresses_of,
    cut_off,
    has_ext,
    positions_of,
)
from recover.store.mapped_files import MappedFileQueue
from recover.store.source import read_small
from recover.store.store import CONSUMEQUEUE, CONSUMEQUEUE_EXT, Store

# --- consumequeue_ext files for a rebuilt queue: intact units stay, others are appended as ConsumeQueueExt.put does. --


_NOWHERE = -1


class ExtRows(Struct, frozen=True):
    """Messages that need ext units, in queue order (int64 arrays): `tags_code` and `store_timestamp` (ms) of each, and
    `position` (bytes) of its unit on disk, -1 if unknown."""

    tags_code: Rows
    store_timestamp: Rows
    position: Rows

    @property
    def size(self) -> int:
        return int(self.position.size)


class ExtImage(Struct, frozen=True):
    """The position of each row's unit (`positions`, bytes, int64), and what to write to put the units there.

    `writes`: by file_from_offset, a position in the file and the bytes from there on. From `zero_from` on the content
    is to be zero, so that nothing there can be taken for a unit; None if what follows the last unit is harmless.
    """

    file_size: int
    positions: Rows
    writes: dict[int, tuple[int, bytearray]] = {}
    zero_from: int | None = None

    def touched(self) -> list[int]:
        """Return file_from_offset of each file that is written to."""
        ends = [] if self.zero_from is None else [self.zero_from // self.file_size * self.file_size]
        return sorted({*self.writes, *ends})

    def patched(self, base: int, old: bytes) -> bytes:
        """Return the file at `base` with these writes applied over `old`; the rest of the file is zeros."""
        at, data = self.writes.get(base, (0, b""))
        content = old[:at].ljust(at, b"\0") + data + old[at + len(data) :]
        if self.zero_from is not None and base <= self.zero_from < base + self.file_size:
            return content[: self.zero_from - base]
        return content


def wants_ext(rows: Rows, found: Rows, tags_codes: Rows, *, by_default: bool) -> Rows:
    """Which rows of a queue have an ext unit (bool array).

    `found`: the rows for which the queue on disk has the right unit; `tags_codes`: the codes of these units. The
    setting may have changed over time, so a row without a unit follows the nearest one before it, else after it.
    """
    if not found.any():
        return np.full(rows.size, by_default)
    numbers = np.arange(rows.size)
    before = np.maximum.accumulate(np.where(found, numbers, -1))
    source = np.where(before >= 0, before, int(np.flatnonzero(found)[0]))
    return np.asarray(tags_codes[source] <= MAX_EXT_ADDRESS)


def lay_out_ext(rows: ExtRows, files: ExtFiles, floor: int | None, *, from_nothing: bool) -> ExtImage:
    """Keep the units on disk up to the first wrong one, none if `from_nothing`, and lay out all others in order after
    them, with their bit maps.

    At start a broker cuts the ext files after the unit of the queue's last cell, so no unit may follow those of later
    messages. `floor`: no live unit is before this position (None: the start of the first file).
    """
    size, known, kept, start = files.store.ext_file_size, files.units, 0, 0
    if not from_nothing:
        start = files.mapped_files.min_offset if floor is None else floor
        rows = ExtRows(rows.tags_code, rows.store_timestamp, _located(rows, files, start))
        kept = _intact_rows(rows, files, start)
        if kept == rows.size:
            return ExtImage(size, rows.position)
    if kept:
        last = int(known.find(rows.position[kept - 1 : kept])[0])
        start = int(known.position[last] + known.size[last])
    writer = _Writer(size, start)
    fresh = [writer.put(_intact(rows, number, files)) for number in range(kept, rows.size)]
    return ExtImage(size, np.r_[rows.position[:kept], fresh], writer.files, writer.position)


def end_of(files: ExtFiles, addresses: Rows) -> int | None:
    """Return the position after the last unit that one of `addresses` points to; None if none does."""
    known = files.units
    found = known.find(positions_of(addresses))
    found = found[found >= 0]
    return int(known.position[found.max()] + known.size[found.max()]) if found.size else None


def _located(rows: ExtRows, files: ExtFiles, start: int) -> Rows:
    """Return the `position` of each row; if unknown, that of the next unused unit from `start` with its code and
    time."""
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


def _intact_rows(rows: ExtRows, files: ExtFiles, start: int) -> int:
    """Return how many rows, from the first, have their unit at `position`, in ascending order."""
    right = files.units.holds(rows.position, rows.tags_code, rows.store_timestamp)
    right &= np.diff(rows.position, prepend=start - 1) > 0
    return rows.size if right.all() else int(right.argmin())


def _intact(rows: ExtRows, number: int, files: ExtFiles) -> bytes:
    """Return the unit of a row: the one on disk if it is right, else one without a bit map."""
    tags_code, timestamp = int(rows.tags_code[number]), int(rows.store_timestamp[number])
    position = int(rows.position[number])
    unit = files.unit(position) if position != _NOWHERE else None
    if unit is None or (unit.tags_code, unit.store_timestamp) != (tags_code, timestamp):
        unit = CqExtUnit(tags_code, timestamp, b"")
    return encode_ext(unit)


class _Writer:
    """Appends units and fills files as ConsumeQueueExt.put does. `files`: see `ExtImage.writes`."""

    def __init__(self, file_size: int, position: int) -> None:
        self.file_size = file_size
        self.position = position
        self.files: dict[int, tuple[int, bytearray]] = {}

    def put(self, unit: bytes) -> int:
        left = self.file_size - self.position % self.file_size
        if len(unit) > left - EXT_END_ROOM:
            self._write(CQ_EXT_END.encode(EXT_END)[:left])
            self.position += left - min(left, CQ_EXT_END.size)
        place = self.position
        self._write(unit)
        return place

    def _write(self, data: bytes) -> None:
        at = self.position % self.file_size
        self.files.setdefault(self.position - at, (at, bytearray()))[1].extend(data)
        self.position += len(data)


def ext_steps(files: ExtFiles, image: ExtImage, spool: Spool) -> Iterator[Step]:
    """Yield the steps that turn the ext files of a queue into an image; none for a file that already matches."""
    store, size = files.store, image.file_size
    folder = store.consumequeue_ext_dir / files.topic / str(files.queue_id)
    on_disk = {mapped_file.file_from_offset: mapped_file for mapped_file in files.mapped_files.files}
    wrong = {mapped_file.file_from_offset for mapped_file in files.mapped_files.wrong_lengths()}
    last = int(image.positions.max()) // size * size if image.positions.size else 0
    for base in sorted({*image.touched(), *wrong}):
        name, mapped_file = store.relative(folder / offset_to_name(base)), on_disk.get(base)
        old = files.content(mapped_file) if mapped_file is not None else b""
        new = image.patched(base, old)
        if mapped_file is not None and base not in wrong:
            yield from patches(name, old, new)
        elif mapped_file is not None and not new and base >= last:  # no later file depends on it
            yield Retire(name)
        else:
            yield Install(name, spool.padded(new, size))
    yield from _odd_steps(store, files.mapped_files)


def _odd_steps(store: Store, files: MappedFileQueue) -> Iterator[Step]:
    return (Retire(store.relative(odd.path)) for odd in files.odd if odd.is_file)


class QueueCells(Struct, frozen=True):
    """All cells of a queue (CQ_UNIT.dtype) from queue offset `first_index`, the start of a file.

    `ext` is the image of its ext files; None for a queue without.
    """

    key: QueueKey
    first_index: int
    cells: Rows
    ext: ExtImage | None = None

    def files(self, file_size: int) -> Iterator[tuple[int, memoryview]]:
        """Yield (file_from_offset, content) of each queue file of `file_size` bytes; the last is padded with zeros."""
        content = self.cells.view(np.uint8).data
        for start in range(0, max(len(content), 1), file_size):
            yield self.first_index * UNIT_SIZE + start, content[start : start + file_size]


def fresh_steps(store: Store, queue: QueueCells) -> Iterator[Step]:
    """Yield the steps that install the files of a queue built from the log alone, with names below an output folder."""

    def install(part: str, offset: int, content: Buffer, size: int) -> Install:
        name = f"{part}/{queue.key.topic}/{queue.key.queue_id}/{offset_to_name(offset)}"
        return Install(name, BytesContent(content, size - len(content)))

    for offset, content in queue.files(store.queue_file_size):
        yield install(CONSUMEQUEUE, offset, content, store.queue_file_size)
    if queue.ext is not None:
        for offset in queue.ext.touched():
            yield install(CONSUMEQUEUE_EXT, offset, queue.ext.patched(offset, b""), store.ext_file_size)


def queue_steps(files: QueueFiles, queue: QueueCells, spool: Spool) -> Iterator[Step]:
    """Yield the steps that make the files of a queue on disk hold exactly these cells; none for a file that does.

    A queue without cells is removed, as a broker's own truncation does: brokers read a unit from a file of zeros, or
    fail to start.
    """
    store, size = files.store, files.store.queue_file_size
    folder = store.relative(store.consumequeue_dir / queue.key.topic / str(queue.key.queue_id))
    if queue.ext is not None:
        yield from ext_steps(ExtFiles(store, queue.key.topic, queue.key.queue_id), queue.ext, spool)
    contents = dict(queue.files(size)) if queue.cells.size else {}
    on_disk = {mapped_file.file_from_offset: mapped_file for mapped_file in files.mapped_files.files}
    for offset, content in contents.items():
        mapped_file = on_disk.get(offset)
        if mapped_file is None or mapped_file.length != size:
            yield Install(f"{folder}/{offset_to_name(offset)}", spool.padded(content, size))
        else:
            before = read_small(mapped_file.path, size)
            yield from patches(store.relative(mapped_file.path), before, bytes(content))
    for offset, mapped_file in on_disk.items():
        if offset not in contents:
            yield Retire(store.relative(mapped_file.path))
    yield from _odd_steps(store, files.mapped_files)


class Evidence(Struct, frozen=True):
    """Selects units that name messages in the damaged ranges [starts, stops): they stay until the log is repaired."""

    starts: Rows
    stops: Rows

    def of(self, units: Rows) -> Rows:
        """Which units of a queue on disk name messages in damage (bool array)."""
        found = within(units["phy_offset"].astype(np.int64), self.starts, self.stops)
        return np.asarray(found & (units["size"] > 0) & (units["size"] != PRE_BLANK.size))


NO_EVIDENCE = Evidence(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


Beside = tuple[Rows, Rows]
"""Neighbours of a part of a queue: the row (EXPECTED, one or none) whose unit fills in for lost positions from the
place before the part, and the one from the place after it."""


class QueueBuilder:
    """Builds the cells of queues for one store.

    `min_offset` and `log_end` are those of the log that the queues must fit. `visible`: the unit of a lost position
    names its marker instead of repeating the message before it. Units on disk that are `evidence` stay. `bridge`: (phy
    offset, size) of a filler or marker in the log, None if there is none; with it, places after a queue's last record
    may be lost positions, those before its first one are if the log begins at 0, and the units of a queue with nothing
    else left name it.
    """

    def __init__(
        self, store: Store, delays: DelayTable, min_offset: int, log_end: int, *, visible: bool = False,
        evidence: Evidence = NO_EVIDENCE, bridge: tuple[int, int] | None = None,
    ) -> None:
        self.store = store
        self.delays = delays
        self.min_offset = min_offset
        self.log_end = log_end
        self.visible = visible
        self.evidence = evidence
        self.bridge = bridge
        self.file_cells = store.queue_file_size // UNIT_SIZE
        self.has_ext = store.consumequeue_ext_dir.is_dir()

    def first_in_file(self, queue_offset: int) -> int:
        """Return the queue offset at which the file that holds this one begins."""
        return queue_offset // self.file_cells * self.file_cells

    def fresh(
        self, key: QueueKey, rows: Rows, *, from_nothing: bool = True, beside: Beside | None = None
    ) -> QueueCells:
        """Return the queue as a broker would build it from the log alone: pre-blanks up to the first live position.

        `from_nothing`: build its ext files from scratch, too; else keep those on disk where possible. `beside`: build
        only a part of the queue, which has no ext unit: whole files, except after the queue's last position.
        """
        before, after = beside or (rows[:0], rows[:0])
        rows = np.concatenate([before, rows, after]) if before.size or after.size else rows
        first = int(rows["queue_offset"][0])
        first = first if before.size else self.first_in_file(first)
        count = int(rows["queue_offset"][-1]) + 1 - first
        queue = self._fill(key, first, count, rows, None, from_nothing=from_nothing and beside is None)
        own = queue.cells[before.size : count - after.size]
        return QueueCells(key, first + before.size, own, queue.ext)

    def ends(self, key: QueueKey, rows: Rows) -> Rows:
        """Return the first and last row of a part that can fill in for others; markers if it has nothing else."""
        own = rows[~self.stood_for(key, rows)]
        return np.asarray((own if own.size else rows)[[0, -1]])

    def beside(self, key: QueueKey, places: int, parts: dict[int, Rows]) -> dict[int, Beside]:
        """Return the neighbours of each part of a queue; part n has the queue offsets from n * `places`, and these
        `ends`.

        A part without rows is built with the one before.
        """
        order = sorted(parts)
        ends = np.stack([parts[part] for part in order])
        good = ~self.stood_for(key, ends)
        found = {}
        for at, (part, following) in enumerate(zip(order, [*order[1:], 0], strict=True)):
            before = _nearest(ends[:at, 1][::-1], good[:at, 1][::-1], part * places - 1)
            found[part] = before, _nearest(ends[at + 1 :, 0], good[at + 1 :, 0], following * places)
        return found

    def stood_for(self, key: QueueKey, rows: Rows) -> Rows:
        """Which rows get a copy of another's unit: their message is lost, and their marker is to stay hidden (bool
        array)."""
        return np.asarray(is_lost(rows) & (not (self.visible or SERVICE_TOPICS.get(key.topic) == "half")))

    def wants_ext(self, key: QueueKey, rows: Rows) -> bool:
        """Whether one of these rows has an ext unit, judged by them and the queue on disk."""
        return bool(_wanted(ExtFiles(self.store, key.topic, key.queue_id), rows)[0].any())

    def repaired(self, files: QueueFiles, rows: Rows, beside: Beside | None = None) -> QueueCells | None:
        """Return the queue on disk with its live positions repaired; expired units stay, units past the log go.

        None if neither the disk nor the log has any of it. `beside`: see `fresh`; only for a queue without a file.
        """
        key, stretches = QueueKey(files.topic, files.queue_id), list(files.stretches())
        if not stretches:
            return self.fresh(key, rows, from_nothing=False, beside=beside) if rows.size else None
        named = [stretch for stretch in stretches if self._inside(stretch, self.log_end).any()] or stretches
        # without a message left, only the queue's end has to be preserved
        old = named[0] if rows.size else named[-1]
        if not rows.size:
            inside = self._inside(old, self.log_end if self.bridge else self.min_offset)
            kept = np.flatnonzero(inside)
            queue = self._fill(key, old.first_index, int(kept[-1]) + 1 if kept.size else 0, rows, old)
            self._stand_in(queue.cells, inside[: queue.cells.size] & _is_pre_blank(queue.cells))
            return queue
        first_live, last_live = int(rows["queue_offset"][0]), int(rows["queue_offset"][-1])
        first = self.first_in_file(first_live)
        # earlier files with nothing to keep are dropped: there could be millions of places up to the first message
        if old.first_index < first and self._inside(old, self.min_offset)[: first - old.first_index].any():
            first = old.first_index
        return self._fill(key, first, max(last_live + 1, self._kept_end(old, rows)) - first, rows, old)

    def _inside(self, old: Stretch, end: int) -> Rows:
        """Which cells in use name an expired message, one that ends by `end` of the log, or evidence (bool array)."""
        offset, size = old.phy_offset, old.size.astype(np.int64)
        invalid = np.flatnonzero(size <= 0)
        used = cut_off(offset, size, int(invalid[0]) if invalid.size else size.size, self.min_offset)
        offset, size = offset[:used], size[:used]
        inside = (offset >= 0) & ((offset < self.min_offset) | (offset + size <= end))
        inside &= (size > 0) & (size != PRE_BLANK.size)
        return np.asarray(inside | self.evidence.of(old.units[:used]))

    def _kept_end(self, old: Stretch, rows: Rows) -> int:
        """Return the queue offset after the last cell that stays after the queue's own records; 0 if none does.

        Evidence stays; so do, in a log with a bridge, the lost positions that follow the last record without a break.
        If every record of the log is known, a later unit names no message: kept, it would deliver one twice.
        """
        kept = self.evidence.of(old.units)
        if self.bridge:
            inside = self._inside(old, self.log_end)
            offset, size = old.phy_offset[: inside.size], old.size[: inside.size]
            repeats = np.r_[False, (offset[1:] == offset[:-1]) & (size[1:] == size[:-1])][: inside.size]
            # a unit that names a record of this queue at another place is from a shifted queue
            stays = inside & (offset >= self.min_offset) & (repeats | ~np.isin(offset, rows["phy_offset"]))
            start = int(rows["queue_offset"][-1]) + 1 - old.first_index
            if 0 <= start < stays.size:
                ended = np.flatnonzero(~stays[start:])
                kept[start : start + (int(ended[0]) if ended.size else stays.size - start)] = True
        places = np.flatnonzero(kept)
        return old.first_index + int(places[-1]) + 1 if places.size else 0

    def _fill(
        self, key: QueueKey, first: int, count: int, rows: Rows, old: Stretch | None, *, from_nothing: bool = False
    ) -> QueueCells:
        cells = np.repeat(np.array([PRE_BLANK], dtype=CQ_UNIT.dtype), count)
        evidence, held = np.zeros((2, count), dtype=bool)
        if old is not None:
            self._keep_old(cells, evidence, held, first, old, rows)
        at: Any = rows["queue_offset"] - first
        if rows.size and int(at[-1]) - int(at[0]) == rows.size - 1:
            at = slice(int(at[0]), int(at[-1]) + 1)
        tags_codes = self.delays.tags_codes(rows)
        for name, values in (("phy_offset", rows["phy_offset"]), ("size", rows["size"]), ("tags_code", tags_codes)):
            cells[name][at] = values
        ext = None
        had_ext = old is not None and has_ext(old)
        ext_folder = self.store.consumequeue_ext_dir / key.topic / str(key.queue_id)
        if from_nothing or had_ext or (self.has_ext and ext_folder.is_dir()):
            ext = self._ext(key, cells, rows["queue_offset"] - first, rows, tags_codes, from_nothing)
        first_live = int(rows["queue_offset"][0]) if rows.size else first + cells.size
        lost = np.zeros(cells.size, dtype=bool)
        lost[at] = self.stood_for(key, rows)
        claimed = np.zeros(cells.size, dtype=bool)
        claimed[at] = True
        # a consumer that meets a pre-blank skips the rest of the file, so only places that held no message keep theirs
        unclaimed = ~claimed & ~evidence
        begin = 0 if self.bridge and not self.min_offset else max(0, first_live - first)
        unclaimed[:begin] &= held[:begin]
        self._stand_in(cells, lost | unclaimed)
        return QueueCells(key, first, cells, ext)

    def _keep_old(self, cells: Rows, evidence: Rows, held: Rows, first: int, old: Stretch, rows: Rows) -> None:
        """Copy evidence (marked in `evidence`) and the expired units, which precede all others, from the queue on disk.
        Units of other messages are marked in `held`."""
        start = max(first, old.first_index)
        kept = old.units[start - old.first_index :][: max(0, first + cells.size - start)]
        place = slice(start - first, start - first + kept.size)
        offsets = kept["phy_offset"].astype(np.int64)
        expired = (kept["size"] > 0) & (offsets >= 0) & (offsets < self.min_offset)
        expired[max(0, int(rows["queue_offset"][0]) - start) if rows.size else kept.size :] = False
        evidence[place] = self.evidence.of(kept)
        ends = offsets + kept["size"].astype(np.int64)
        held[place] = (kept["size"] > 0) & ~_is_pre_blank(kept) & (offsets >= self.min_offset) & (ends <= self.log_end)
        stays = expired | evidence[place]
        cells[place][stays] = kept[stays]

    def _ext(
        self, key: QueueKey, cells: Rows, at: Rows, rows: Rows, tags_codes: Rows, from_nothing: bool
    ) -> ExtImage | None:
        """Replace the tags codes of the `rows` that have an ext unit (their cells are `at`) by ext addresses."""
        files = ExtFiles(self.store, key.topic, key.queue_id)
        wanted, found, codes = _wanted(files, rows)
        wanted &= ~is_lost(rows)
        old = cells[(cells["tags_code"] <= MAX_EXT_ADDRESS) & (cells["phy_offset"].astype(np.int64) < self.min_offset)]
        expired = old["tags_code"].astype(np.int64)
        if not wanted.any():
            return ExtImage(self.store.ext_file_size, np.empty(0, dtype=np.int64))
        positions = np.where(found & (codes <= MAX_EXT_ADDRESS), positions_of(codes), -1)[wanted]
        ext_rows = ExtRows(tags_codes[wanted], rows["store_timestamp"][wanted], positions)
        image = lay_out_ext(ext_rows, files, end_of(files, expired), from_nothing=from_nothing)
        cells["tags_code"][at[wanted]] = addresses_of(image.positions)
        return image

    def _stand_in(self, cells: Rows, missing: Rows) -> None:
        """Fill each missing place with the unit before it; at the queue's beginning, with the one after it.

        A queue with no message left gets its markers, else a piece of a bridge: a pre-blank at the end of a queue stops
        dispatch in 4.x and moves the end of the log in 5.3.
        """
        if not missing.any():
            return
        _repeat_neighbours(cells, missing, ~missing & ~_is_pre_blank(cells))
        still = missing & _is_pre_blank(cells)
        if still.any():
            _repeat_neighbours(cells, still, ~_is_pre_blank(cells))
            still &= _is_pre_blank(cells)
            if self.bridge:
                cells[still] = (*self.bridge, 0)


def _is_pre_blank(cells: Rows) -> Rows:
    return np.asarray(cells["size"] == PRE_BLANK.size)


def _repeat_neighbours(cells: Rows, missing: Rows, good: Rows) -> None:
    """Fill missing cells from the nearest good one before, else after."""
    at = np.where(good, np.arange(cells.size), -1)
    before = np.maximum.accumulate(at) if at.size else at
    after = np.where(at < 0, cells.size, at)
    after = np.minimum.accumulate(after[::-1])[::-1] if at.size else after
    source = np.where(before >= 0, before, np.where(after < cells.size, after, -1))
    usable = missing & (source >= 0)
    cells[usable] = cells[source[usable]]


def _nearest(rows: Rows, good: Rows, place: int) -> Rows:
    """Return the first good row, else the first, with its queue offset set to `place`; empty if there are no rows."""
    found = np.asarray(rows[[int(good.argmax())]] if rows.size else rows)
    found["queue_offset"] = place
    return found


def _wanted(files: ExtFiles, rows: Rows) -> tuple[Rows, Rows, Rows]:
    """Return which rows of a queue have an ext unit (bool array), and their `_on_disk`."""
    found, codes = _on_disk(QueueFiles(files.store, files.topic, files.queue_id), rows)
    by_default = bool(files.mapped_files.files and files.units.position.size)
    return wants_ext(rows, found, codes, by_default=by_default), found, codes


def _on_disk(files: QueueFiles, rows: Rows) -> tuple[Rows, Rows]:
    """Return which rows the units of the queue on disk name (bool array), and the tags codes of these units (int64)."""
    found = np.zeros(rows.size, dtype=bool)
    codes = np.zeros(rows.size, dtype=np.int64)
    ends = rows["queue_offset"][[0, -1]].tolist() if rows.size else ()
    for stretch in files.stretches(*ends) if ends else ():
        at, cells = stretch.named(rows)
        found[at], codes[at] = True, stretch.tags_code[cells]
    return found, codes


def repaired_steps(
    builder: QueueBuilder, key: QueueKey, rows: Rows, spool: Spool, beside: Beside | None = None
) -> Iterator[Step]:
    """Yield the steps that repair a queue on disk; `rows` (EXPECTED) are its positions, in order.

    `beside`: repair a part of a queue that has no file, see `QueueBuilder.fresh`.
    """
    files = QueueFiles(builder.store, key.topic, key.queue_id)
    queue = builder.repaired(files, rows, beside)
    if queue is not None:
        yield from queue_steps(files, queue, spool)
    else:
        yield from _odd_steps(builder.store, files.mapped_files)


def consumequeue_steps(
    store: Store, log: LogView, expectation: Expectation, queues: ConsumeQueueReport, spool: Spool,
    *, visible: bool = False, wanted: set[QueueKey] | None = None, bridged: Collection[QueueKey] = (),
    evidence: Evidence = NO_EVIDENCE, producer: Producer | None = None,
) -> Iterator[Step]:
    """Yield the steps that repair every unsound queue (of `wanted`, if given); units that are `evidence` stay.

    Queues with a position in a new bridge are `bridged`: a marker that is as long as the lost record has the unit of
    that record, which does not show whether it is to be hidden.

    `producer`, if given, builds the queues that the log fills.
    """
    unsound = {key for key, verdict in queues.verdicts.items() if not verdict.sound or key in bridged}
    if wanted is not None:
        unsound &= wanted
    builder = QueueBuilder(
        store, queues.delays, log.min_offset, log.log_end, visible=visible, evidence=evidence,
        bridge=log.first_bridge_record(),
    )
    if producer is not None:
        for key, steps in producer.queues(builder, expectation, unsound.copy(), fresh=False):
            unsound.discard(key)
            yield from steps
    else:
        for key, rows in expectation.grouped(unsound.copy()):
            unsound.discard(key)
            yield from repaired_steps(builder, key, rows, spool)
    for key in sorted(unsound):
        yield from repaired_steps(builder, key, np.empty(0, dtype=EXPECTED), spool)
