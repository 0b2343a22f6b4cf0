"""Sources of messages: a store, a commitlog folder, log files alone, a disk image; and the scan of each.

Log files form one source if their names and lengths fit one file size. Anything else, a piece of a log file or a range
of an image, is a source by itself: none of its records depends on bytes elsewhere.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import stat_result
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from formats.basics import offset_in_name
from formats.record import BLANK_SIZE, HEAD, HEAD_SIZE
from recover.findings.code import NotAStore, UsageRefusal
from recover.findings.model import Phrase
from recover.log.file_scan import ProgressCallback, field_at, heads_in, own_heads
from recover.log.files import live_copies, place_misnamed_files
from recover.log.judge import is_intact
from recover.log.scan import Engine, LogView
from recover.look.live import settled
from recover.look.query import unread_notes
from recover.reading.doubts import ORDER, OWNERS, displaced, resolved
from recover.reading.facts import Facts, ScanOptions
from recover.reading.reading import Reading
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFile, MappedFileQueue, infer_file_size
from recover.store.memo import RangeSums
from recover.store.reader import FileReader, LocalFile, ReadFailure
from recover.store.source import Tree, mount, open_file, origin_of, status_of
from recover.store.store import Store, StoreOptions

_LOOK = 8 << 20
"""Bytes searched at a time for records that name their own place."""


class Source(NamedTuple):
    """One log with messages. `store` is None for a log without other parts.

    `unread`: what could not be searched, one line each. `in_pieces`: the lengths or starts of its log files are
    unknown.
    """

    name: str
    queue: MappedFileQueue
    store: Store | None
    unread: tuple[str, ...] = ()
    in_pieces: bool = False

    @property
    def size(self) -> int:
        """Bytes of log."""
        return sum(mapped_file.length for mapped_file in self.queue.files)

    @property
    def told_file_size(self) -> int:
        """How long the broker's log files are (bytes), if a setting or whole files tell it; else 0."""
        if self.store is not None:
            return self.queue.file_size if self.store.log_file_size_is_told else 0
        told = not self.in_pieces and len(self.queue.files) > 1 and self.queue.file_size in self.queue.lengths
        return self.queue.file_size if told else 0


def source_of(store: Store) -> Source:
    """The log of a store as a source."""
    return Source(str(store.root), store.commitlog, store)


class Scanned(NamedTuple):
    """The log of a source, and what could not be read of it (one line each). `by_names`: as brokers find it.
    `doubted`: the fields that other evidence contradicts, by the physical offset of their record. `earlier`: the
    identities (uint64, ascending) of the records that each earlier source has."""

    source: Source
    log: LogView
    unread: tuple[str, ...]
    by_names: LogView
    doubted: Mapping[int, list[str]] = MappingProxyType({})
    earlier: tuple[Rows, ...] = ()


def open_sources(
    places: Sequence[Path], options: StoreOptions | None = None, *, live: bool = True
) -> list[Source]:
    """Open stores, commitlog folders and images, each as one source or several; single log files are one if they fit.

    `NotAStore` (16) for a place that is none of these, `UsageRefusal` (16) for a file without a record.
    `options` say where the parts of a store are, as in every command; `live`: freeze a store that a broker writes to.
    """
    size = options.mapped_file_size or 0 if options is not None else 0
    sources: list[Source] = []
    files: list[Path] = []
    for place in places:
        if place.is_file():
            files.append(place)
        elif place.is_dir() and any(offset_in_name(path.name) is not None for path in place.iterdir()):
            queue = live_copies(MappedFileQueue.load((place,), size))
            placed, _ = place_misnamed_files(queue)
            files += [item.path for item in placed.odd if item not in queue.odd]
            placed.odd = queue.odd
            sources += _logs(str(place), placed)
        elif place.exists() and not place.is_dir():
            raise NotAStore(Phrase("{place} is not a regular file", place=place),
                            "Give a store, a commitlog folder, or log files.")
        else:
            store = settled(Store.open(place, options)) if live else Store.open(place, options)
            sources.append(Source(str(place), store.commitlog, store))
    return sources + (_of_files(files, size) if files else [])


def _of_files(paths: Sequence[Path], size: int) -> list[Source]:
    """Sources of log files, each at the offset in its records or, without one, in its name; and of disk images."""
    images: list[Source] = []
    by_offset: dict[int, MappedFile] = {}
    for path in paths:
        base = offset_in_name(path.name)
        if base is not None:
            own = _own_place(path)
            base = base if own is None else own
        else:
            unread: list[str] = []
            found = [*_stretches(path, unread)]
            if not found:
                raise UsageRefusal(Phrase("{path} holds no record with its own log offset", path=path),
                                   "Give log files with their original names, or with an intact record.")
            if len(found) > 1 or found[0].start:
                images += _of_image(path, found, tuple(unread))
                continue
            base = found[0].base
        if base in by_offset:
            raise UsageRefusal(Phrase("{path} and {other} are the same part of a log", path=path,
                                      other=by_offset[base].path), "Export them one after the other.")
        by_offset[base] = MappedFile(path, base, path.stat().st_size)
    files = [by_offset[offset] for offset in sorted(by_offset)]
    folders = tuple(dict.fromkeys(file.path.parent for file in files))
    name = ", ".join(str(file.path) for file in files)
    return images + _logs(name, MappedFileQueue(folders, size or infer_file_size(files), files))


def _logs(name: str, queue: MappedFileQueue) -> list[Source]:
    """One log if a file size fits all names and lengths, else one log per file."""
    unread, size = tuple(_beside(queue)), queue.file_size or 1
    if all(file.length <= size and file.file_from_offset % size == 0 for file in queue.files):
        size = max((_with_room(file, size) for file in queue.files[-1:]), default=size)
        is_cut, queue.file_size = size > queue.file_size, size
        return [Source(name, queue, None, unread, is_cut)] if queue.files or unread else []
    return [
        Source(str(file.path), MappedFileQueue((), _with_room(file, file.length), [file]), None, unread, True)
        for file in queue.files
    ]


def _with_room(mapped_file: MappedFile, size: int) -> int:
    """The file size, plus the eight bytes that a broker leaves free if the last record of a cut file needs them:
    otherwise that record would count as impossible."""
    if mapped_file.length < size:
        return size
    with open_file(mapped_file.path) as reader:
        start = max(0, mapped_file.length - _LOOK)
        content = np.frombuffer(reader.read(start, _LOOK), dtype=np.uint8)
        own = own_heads(content, 0, mapped_file.file_from_offset + start)[-1:]
        ends = int((own + field_at(content, own, HEAD, "total_size")).sum()) + start
    return size + BLANK_SIZE if mapped_file.length - BLANK_SIZE < ends <= mapped_file.length else size


def _beside(queue: MappedFileQueue) -> Iterator[str]:
    """Yield a line for each file of a log folder that holds records but whose name is not their offset; none for a copy
    of the log file at that offset."""
    for item in queue.odd:
        base = _own_place(item.path) if item.is_file and item.length else None
        if base is not None and not any(
                file.file_from_offset == base and _is_copy(item.path, file.path) for file in queue.files):
            yield Phrase("{path} holds messages, but its name is not a log offset: export it separately",
                         path=item.path)


def _is_copy(one: Path, other: Path) -> bool:
    with suppress(OSError), open_file(one) as left, open_file(other) as right:
        return left.length <= right.length and all(
            left.read(at, _LOOK) == right.read(at, min(_LOOK, left.length - at)) for at in range(0, left.length, _LOOK))
    return False


def _own_place(path: Path) -> int | None:
    """The offset of a file's first byte according to its first intact record; None without such a record."""
    try:
        first = next(_stretches(path, []), None)
    except OSError:
        return None
    return None if first is None or first.base < 0 else first.base


# --- Ranges of log in a file that is more than one log file: a disk image, concatenated pieces of log files.


class Stretch(Struct):
    """Bytes [start, stop) of a file, from an intact record to the end of the last one with the same `base`: the
    physical offset of the file's first byte if the whole file were log (may be negative)."""

    start: int
    stop: int
    base: int


def _stretches(path: Path, unread: list[str]) -> Iterator[Stretch]:
    """Yield the ranges of a file in order; the last one grows until the next is requested.

    A record inside an intact one does not start a range. Unreadable bytes go to `unread`, and count as zeros.
    `OSError` if the file cannot be opened.
    """
    last: Stretch | None = None
    at = end = 0
    with open_file(path) as reader:
        length = reader.length
        sums = RangeSums(reader, length)

        def fits(position: int, base: int) -> bool:
            return is_intact(sums.read, position, base, base + length + BLANK_SIZE, sums)

        for start, content in _windows(reader, length, unread):
            heads = heads_in(content)
            places = heads + start
            bases = field_at(content, heads, HEAD, "phy_offset") - places
            ends = places + np.maximum(field_at(content, heads, HEAD, "total_size"), HEAD_SIZE)
            turns = np.flatnonzero(np.diff(bases)) + 1
            for run in np.split(np.arange(heads.size), turns) if heads.size else ():
                base = int(bases[run[0]])
                if last is None or base != last.base:
                    free = end if last is not None and fits(at, last.base) else 0
                    begins = next((spot for spot in places[run].tolist() if spot >= free and fits(spot, base)), None)
                    if begins is None:
                        continue
                    if last is not None:
                        last.stop = min(last.stop, begins)
                    last = Stretch(begins, begins, base)
                    yield last
                at, end = int(places[run[-1]]), int(ends[run[-1]])
                last.stop = min(length, max(last.stop, end))


def _unread(path: Path | str, failure: ReadFailure) -> str:
    return Phrase("{path} could not be read at {start}: {error}", path=path, start=failure.offset,
                  error=failure.strerror)


def _windows(reader: FileReader, length: int, unread: list[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the allocated parts of a file, some MiB at a time (uint8), with their positions; a head lies within one."""
    for first, last in reader.data_ranges(0, length):
        for start in range(max(0, first - HEAD_SIZE), last, _LOOK):
            content = bytearray(min(_LOOK + HEAD_SIZE - 1, length - start))
            filled, failures = reader.salvage_into(memoryview(content), start)
            unread += [_unread(reader.path, failure) for failure in failures]
            yield start, np.frombuffer(content, dtype=np.uint8)[:filled]


def _of_image(path: Path, found: Sequence[Stretch], unread: tuple[str, ...]) -> list[Source]:
    """Each range as a log of one file."""
    image = _Image(path, found)
    root = mount(image)
    return [
        Source(f"{path} from {part.start:,}",
               MappedFileQueue((), part.stop - part.start + BLANK_SIZE,
                               [MappedFile(root / name, part.base + part.start, part.stop - part.start)]),
               None, unread if number == 0 else (), True)
        for number, (name, part) in enumerate(image.parts.items())
    ]


class _Image(Tree):
    """Ranges of a file as a tree, named by the position of their first byte."""

    def __init__(self, path: Path, found: Sequence[Stretch]) -> None:
        self.path, self.parts = path, {str(part.start): part for part in found}

    def origin(self, name: str, position: int) -> tuple[Path, int]:
        return origin_of(self.path, self.parts[name].start + position)

    def status(self, name: str) -> stat_result:
        part = self.parts[name]
        return status_of(stat.S_IFREG, part.stop - part.start, self.path.stat().st_mtime_ns)

    def open(self, name: str) -> FileReader:
        return _Part(self.path, self.parts[name])


class _Part(FileReader):
    """A range of a file as a file. Read failures report the file itself and the position in it."""

    def __init__(self, path: Path, part: Stretch) -> None:
        self._file, self._part = LocalFile(path), part

    @property
    def length(self) -> int:
        return max(0, min(self._part.stop, self._file.length) - self._part.start)

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(self._part.start + offset, max(0, min(length, self.length - offset)))

    def data_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        at = self._part.start
        for first, last in self._file.data_ranges(at + start, at + min(stop, self.length)):
            yield first - at, last - at

    def close(self) -> None:
        self._file.close()


# --- The scan of a source.


_COLUMNS = {
    "topic": ("topic", "stored_topic"), "queue_id": ("queue", "stored_queue"), "queue_offset": ("queue_offset",),
    "sys_flag": ("sys_flag",),
}
"""The columns of a message that hold a field of its record."""


def scan_source(
    source: Source, engine: Engine, *, memory: int, progress: ProgressCallback | None = None
) -> Scanned:
    """Scan the log of a source; its records are judged as by verify if its queues exist: those of another log are
    damage, displaced ones count. Files that cannot be opened or read, and unread
    parts, are noted and skipped."""
    unread, doubted = [*source.unread], dict[int, list[str]]()

    def cannot_open(mapped_file: MappedFile, error: OSError) -> None:
        unread.append(Phrase("{path} could not be opened: {error}", path=mapped_file.path, error=error.strerror))

    queue = source.queue
    if source.store is not None:
        queue, _ = place_misnamed_files(live_copies(queue))
        unread += _beside(queue)
    log = by_names = engine.scan_log(queue, memory=memory, progress=progress, open_error=cannot_open)
    if source.store is not None:
        with suppress(OSError):
            options = ScanOptions(memory, engine=engine)
            reading = resolved(Reading.first(Facts.of(source.store, options), log), ORDER)
            log = by_names = reading.log
            reading = resolved(reading, (*ORDER, displaced, *OWNERS))
            log = reading.log
            for edit in resolved(reading).contradictions:
                doubted.setdefault(edit.start, []).extend(_COLUMNS.get(edit.field, ("properties",)))
        unread += unread_notes(source.store)
    for scan in log.files:
        unread += [_unread(failure.path, failure) for failure in scan.unreadable]
    return Scanned(source, log, tuple(unread), by_names, doubted)
