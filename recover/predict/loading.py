"""What a broker loads before it recovers, and why it may refuse to (MappedFileQueue.load, DefaultMessageStore.load)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from formats.consumequeue import file_size_for
from formats.layout import Buffer
from formats.record.rows import RECORD
from recover.broker.record_check import ReadAt
from recover.broker.settings import BrokerSettings
from recover.broker.versions import (
    DIRECTORIES_SKIPPED,
    EMPTY_LAST_FILE_DELETED,
    INDEX_LOAD_COUNTS,
    WRONG_LENGTH_REFUSED,
)
from recover.check.log import odd_log_name
from recover.derived.index_check import odd_index_name
from recover.derived.index_files import list_index_files
from recover.derived.queue_check import odd_queue_name
from recover.findings.model import Finding
from recover.log.scan import LogView
from recover.predict.queues import QueueFile, QueueState
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFile, MappedFileQueue, OddName
from recover.store.reader import FileReader
from recover.store.reading import FILE, FOLDER
from recover.store.store import Store

OTHER_SETTING = "Give the broker the file lengths that the store was written with: all other files have them, too."


class Stop(Struct, frozen=True):
    """Why a broker does not start, and what to do about it where recover does not repair it."""

    reason: str
    remedy: str | None = None


class Loaded(Struct):
    """What is in the broker's memory after loading: `refusal` is None if it goes on to recover.

    `by_hand`: what stands in the place of a mapped file, and no repair moves; of these and of `odd_index`, links, pipes
    and the like among index files, a broker's answer is known only for mapped files.
    """

    log: list[MappedFile] = field(default_factory=list)
    queues: dict[tuple[str, int], QueueState] = field(default_factory=dict)
    deleted: list[Path] = field(default_factory=list)
    ignored: list[Path] = field(default_factory=list)
    refusal: Stop | None = None
    by_hand: list[Finding] = field(default_factory=list)
    odd_index: list[Finding] = field(default_factory=list)


class _Loader:
    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self.store = store
        self.version = settings.version
        self.sizes = {store.mapped_file_size, store.queue_file_size}
        self.loaded = Loaded()

    def load_files(
        self, directories: Sequence[Path], size: int, odd_name: Callable[[Store, OddName], Finding]
    ) -> list[MappedFile] | None:
        """The mapped files of one queue; None when the broker refuses, with the reason in `loaded`."""
        items = sorted(_items(directories), key=lambda item: item.path.name)
        self.loaded.by_hand += [odd_name(self.store, item) for item in items if item.by_hand]
        last = items[-1:]
        if self.version.has(DIRECTORIES_SKIPPED):
            items = [item for item in items if not item.is_directory]
        files: list[MappedFile] = []
        for item in items:
            if item.length == 0 and item in last and self.version.has(EMPTY_LAST_FILE_DELETED):
                self.loaded.deleted.append(item.path)
                continue
            if item.is_directory or item.length != size:
                if not self.version.has(WRONG_LENGTH_REFUSED):
                    self.loaded.ignored += [other.path for other in items[items.index(item) :]]
                    break
                if item.is_directory:
                    self._refuse(item, "is a folder among mapped files")
                else:
                    self._refuse(item, f"has {item.length} bytes, the broker's setting says {size}",
                                 OTHER_SETTING if item.length in self.sizes else None)
                return None
            number = _java_long(item.path.name)
            if number is None:
                self._refuse(item, "is not a commitlog file (the name is not 20 digits)")
                return None
            files.append(MappedFile(item.path, number, item.length))
        return files

    def _refuse(self, item: OddName, why: str, remedy: str | None = None) -> None:
        self.loaded.refusal = Stop(f"{self.store.relative(item.path)} {why}", remedy)


def load(store: Store, settings: BrokerSettings) -> Loaded:
    """Load log, queues and index as the broker of these settings does; sizes not given are those of the files."""
    loader = _Loader(store, settings)
    loaded = loader.loaded
    log = loader.load_files(store.commitlog_dirs, mapped_file_size(store, settings), odd_log_name)
    if log is None:
        return loaded
    loaded.log = _one_a_name(log)
    size = queue_file_size(store, settings)
    for folder in store.queue_folders:
        files = loader.load_files([folder.path], size, odd_queue_name)
        if files is None:
            return loaded
        state = QueueState(
            folder.topic, folder.queue_id, size, [QueueFile(f.file_from_offset, size, f.path) for f in files], settings
        )
        loaded.queues[folder.topic, folder.queue_id] = state
    for odd in list_index_files(store.index_dir).odd:
        if odd.kind not in (FILE, FOLDER):
            loaded.odd_index.append(odd_index_name(store, odd))
        if odd.is_directory and _java_long(odd.path.name) is not None and settings.version.has(INDEX_LOAD_COUNTS):
            loaded.refusal = Stop(f"{store.relative(odd.path)} is a folder among index files")
    return loaded


def mapped_file_size(store: Store, settings: BrokerSettings) -> int:
    """The size a broker demands of commitlog files: as given, else as the files have it."""
    return settings.stated_number("mappedFileSizeCommitLog") or store.mapped_file_size


def queue_file_size(store: Store, settings: BrokerSettings) -> int:
    """The size a broker demands of consume queue files: as given and rounded up to units, else as the files have it."""
    stated = settings.stated_number("mappedFileSizeConsumeQueue")
    return file_size_for(stated) if stated else store.queue_file_size


def _one_a_name(files: list[MappedFile]) -> list[MappedFile]:
    """Of equal names in several folders the first counts."""
    return [f for index, f in enumerate(files) if index == 0 or f.file_from_offset != files[index - 1].file_from_offset]


def _items(directories: Sequence[Path]) -> Iterator[OddName]:
    for queue in (MappedFileQueue.load([directory], 1) for directory in directories):
        yield from queue.odd
        yield from (OddName(mapped_file.path, FILE, mapped_file.length) for mapped_file in queue.files)


def _java_long(name: str) -> int | None:
    """`Long.parseLong` of a file name, which takes any digits and a sign."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not digits.isdecimal() or not -(1 << 63) <= int(name) < 1 << 63:
        return None
    return int(name)


# --- The commitlog as a broker loads it, over what a strict scan found.


class BrokerLog:
    """Implements `recover.broker.recovery.LogSource`; use it in a with block, it keeps the file last read open."""

    def __init__(self, files: Sequence[MappedFile], file_size: int, view: LogView) -> None:
        self.files = list(files)
        self.file_size = file_size
        self.view = view
        self._scans = {scan.mapped_file.file_from_offset: scan for scan in view.files}
        self._reader: FileReader | None = None

    def __enter__(self) -> BrokerLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self._reader is not None:
            self._reader.__exit__(None, None, None)
            self._reader = None

    @property
    def min_offset(self) -> int:
        """What CommitLog.getMinOffset gives: -1 without files."""
        return self.files[0].file_from_offset if self.files else -1

    def index_of(self, offset: int) -> int | None:
        """The file that holds physical `offset`, None in a gap or outside."""
        starts = [mapped_file.file_from_offset for mapped_file in self.files]
        index = int(np.searchsorted(starts, offset, side="right")) - 1
        return index if index >= 0 and offset < starts[index] + self.file_size else None

    def read_at(self, index: int) -> ReadAt:
        mapped_file = self.files[index]

        def read(position: int, length: int) -> Buffer:
            return self._open(mapped_file).read(position, max(0, length))

        return read

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at physical `offset`, fewer at the end of its file."""
        index = self.index_of(offset)
        if index is None:
            return b""
        return bytes(self.read_at(index)(offset - self.files[index].file_from_offset, length))

    def rows(self, index: int) -> Rows:
        mapped_file = self.files[index]
        scan = self._scans.get(mapped_file.file_from_offset)
        # a scan puts a misnamed file where its records belong; a broker goes by names
        if scan is None or scan.mapped_file.path.name != mapped_file.path.name:
            return np.empty(0, dtype=RECORD)
        parts = [split.records for split in scan.splits]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=RECORD)

    def _open(self, mapped_file: MappedFile) -> FileReader:
        if self._reader is None or self._reader.path != mapped_file.path:
            self.__exit__()
            self._reader = FileReader(mapped_file.path)
        return self._reader
