"""Where messages come from: a store, a commitlog folder, single log files; and the scan that finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from formats.commitlog import HEAD, HEAD_SIZE, MAGIC_V1, MAGIC_V2
from formats.errors import FormatError
from formats.names import offset_in_name
from recover.errors import NotAStore, UsageRefusal
from recover.evidence.last_numbers import as_units_say
from recover.files.mapped_files import MappedFile, MappedFileQueue, infer_file_size
from recover.files.reader import FileReader
from recover.files.store import Store, StoreOptions
from recover.query import not_looked_at
from recover.scan.engine import Engine
from recover.scan.file_scan import ProgressCallback
from recover.scan.judge import judge
from recover.scan.log import LogView
from recover.scan.log_files import live_copies, rightly_placed

_LOOK = 4 << 20
"""How many bytes of a file whose name tells nothing are searched for a record that names its own place."""


class Source(NamedTuple):
    """One place that messages come from. `store` is None for log files without anything around them."""

    name: str
    queue: MappedFileQueue
    store: Store | None

    @property
    def size(self) -> int:
        """Bytes of log."""
        return sum(mapped_file.length for mapped_file in self.queue.files)


class Scanned(NamedTuple):
    """The log of a source, and what of it could not be read (one line each)."""

    source: Source
    log: LogView
    unread: tuple[str, ...]


def open_sources(places: Sequence[Path], options: StoreOptions | None = None) -> list[Source]:
    """Each store or commitlog folder is a source; single log files together are one.

    `NotAStore` (16) for a place that is none of these, `UsageRefusal` (16) for a file that holds no record.
    `options` say where the parts of a store are, as for every command.
    """
    sources: list[Source] = []
    files: list[Path] = []
    for place in places:
        if place.is_file():
            files.append(place)
        elif place.is_dir() and any(offset_in_name(path.name) is not None for path in place.iterdir()):
            queue = MappedFileQueue.load((place,), (options or StoreOptions()).mapped_file_size or 0)
            sources.append(Source(str(place), queue, None))
        elif place.exists() and not place.is_dir():
            raise NotAStore(f"{place} is no regular file", "Give a store, a commitlog folder, or log files.")
        else:
            store = Store.open(place, options)
            sources.append(Source(str(place), store.commitlog, store))
    if files:
        sources.append(_of_files(files))
    return sources


def _of_files(paths: Sequence[Path]) -> Source:
    """Single log files as one log, each at the place that its records name; its name decides where none does."""
    by_offset: dict[int, MappedFile] = {}
    for path in paths:
        length = path.stat().st_size
        offset = _own_place(path, length)
        offset = offset_in_name(path.name) if offset is None else offset
        if offset is None:
            raise UsageRefusal(f"{path} holds no record that names its place in a log",
                               "Give log files under the names that they had, or ones with an intact record.")
        if offset in by_offset:
            raise UsageRefusal(f"{path} and {by_offset[offset].path} are the same part of a log",
                               "Export them one after the other.")
        by_offset[offset] = MappedFile(path, offset, length)
    files = [by_offset[offset] for offset in sorted(by_offset)]
    folders = tuple(dict.fromkeys(file.path.parent for file in files))
    return Source(", ".join(map(str, paths)), MappedFileQueue(folders, infer_file_size(files), files), None)


def _own_place(path: Path, length: int) -> int | None:
    """The offset of a file's first byte as its first intact record has it; None without one in its first MiBs."""
    magics = [magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2)]
    with FileReader(path) as reader:
        content = bytes(reader.read(0, min(_LOOK, length)))
        at = -1
        while True:
            hits = [content.find(magic, at + 5) for magic in magics]
            at = min((hit - 4 for hit in hits if hit >= 4), default=-1)
            if at < 0:
                return None
            if at + HEAD_SIZE > len(content):
                return None
            base = HEAD.decode(content, at).phy_offset - at
            try:
                if base >= 0:
                    judge(reader.read, at, base, base + length)
                    return base
            except FormatError:
                continue


def scan_source(
    source: Source, engine: Engine, *, memory: int, progress: ProgressCallback | None = None,
    counted: Callable[[LogView], None] | None = None,
) -> Scanned:
    """Scan the log of a source, judging old and superseded records as verify does where its queues are there.

    A file that cannot be opened, a range that cannot be read and a part that is not read are noted and passed over.
    """
    unread: list[str] = []

    def cannot_open(mapped_file: MappedFile, error: OSError) -> None:
        unread.append(f"{mapped_file.path} could not be opened: {error.strerror}")

    queue, _ = rightly_placed(live_copies(source.queue))
    log = engine.scan_log(queue, memory=memory, progress=progress, open_error=cannot_open)
    if source.store is not None:
        log = as_units_say(log, source.store)
        unread += not_looked_at(source.store)
    for scan in log.files:
        unread += [f"{failure.path} could not be read at {failure.offset}: {failure.strerror}"
                   for failure in scan.unreadable]
    return Scanned(source, log, tuple(unread))
