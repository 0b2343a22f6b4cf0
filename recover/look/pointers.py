"""Where a store's log ends, and how far its queues, its index and its checkpoint have come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from formats.checkpoint import Checkpoint
from formats.consumequeue import CQ_UNIT, CqUnit, is_pre_blank, is_valid
from formats.errors import FormatError
from formats.index import INDEX_HEADER, IndexHeader
from formats.names import is_index_name
from recover.log.file_scan import scan_file
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reader import FileReader, read_small
from recover.store.store import Store


class Pointers(Struct):
    """Offsets in bytes of the log, times in ms. `dispatched_to`: the largest end of a unit; None without one."""

    min_offset: int = 0
    max_offset: int = 0
    log_end: int = 0
    last_timestamp: int = 0
    dispatched_to: int | None = None
    indexed_to: int | None = None
    index_files: list[tuple[str, IndexHeader]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    queues: dict[str, dict[int, int]] = field(default_factory=dict)

    @property
    def undispatched(self) -> int:
        """Bytes of the log after the last unit of any queue."""
        return max(0, self.log_end - (self.dispatched_to or self.min_offset))

    def json(self) -> dict[str, object]:
        checkpoint = None if self.checkpoint is None else self.checkpoint._asdict()
        return {
            "min_offset": self.min_offset, "max_offset": self.max_offset, "log_end": self.log_end,
            "last_store_timestamp": self.last_timestamp, "dispatched_to": self.dispatched_to,
            "undispatched_bytes": self.undispatched, "indexed_to": self.indexed_to, "checkpoint": checkpoint,
        }


def find_pointers(store: Store) -> Pointers:
    """Looks at the end of the log, the last file of each queue and the headers of the index; not at all of them."""
    log = store.commitlog
    pointers = Pointers(log.min_offset, log.max_offset, log.min_offset)
    for mapped_file in reversed(log.files):
        scan = scan_file(mapped_file, log.file_size)
        if scan.record_count:
            last = next(split.records[-1] for split in reversed(scan.splits) if split.size)
            pointers.log_end = int(last["phy_offset"]) + int(last["size"])
            pointers.last_timestamp = int(last["store_timestamp"])
            break
    pointers.checkpoint = store.checkpoint()
    _queues(store, pointers)
    pointers.index_files = list(_index_headers(store))
    pointers.indexed_to = _last_indexed(pointers.index_files)
    return pointers


def _queues(store: Store, pointers: Pointers) -> None:
    queues: dict[str, dict[int, int]] = defaultdict(dict)
    for folder in store.queue_folders:
        files = MappedFileQueue.load((folder.path,), store.queue_file_size).files
        end, unit = _last_unit(files)
        queues[folder.topic][folder.queue_id] = end
        if unit is not None and not is_pre_blank(unit):
            pointers.dispatched_to = max(pointers.dispatched_to or 0, unit.phy_offset + unit.size)
    pointers.queues = dict(queues)


def queue_end(files: list[MappedFile]) -> int:
    """The queue offset after the last unit of a queue's files."""
    return _last_unit(files)[0]


def _last_unit(files: list[MappedFile]) -> tuple[int, CqUnit | None]:
    """(queue offset after it, the last valid unit); units are written without gaps, so bisection finds it."""
    for mapped_file in reversed(files):
        first = mapped_file.file_from_offset // CQ_UNIT.size
        try:
            with FileReader(mapped_file.path) as reader:
                count = _valid_cells(reader, mapped_file.length // CQ_UNIT.size)
                if count:
                    return first + count, _cell(reader, count - 1)
        except OSError:
            continue
    return (files[0].file_from_offset // CQ_UNIT.size if files else 0), None


def _valid_cells(reader: FileReader, cells: int) -> int:
    low, high = 0, cells
    while low < high:
        middle = (low + high) // 2
        if is_valid(_cell(reader, middle)):
            low = middle + 1
        else:
            high = middle
    return low


def _cell(reader: FileReader, number: int) -> CqUnit:
    return CQ_UNIT.decode(reader.read(number * CQ_UNIT.size, CQ_UNIT.size))


def indexed_to(store: Store) -> int | None:
    """Start in the log of the last message that a header of an index file names; None without one."""
    return _last_indexed(_index_headers(store))


def index_ends(store: Store) -> list[tuple[int, int]]:
    """Start in the log and store timestamp (ms) of the last message of each index file, as its header says."""
    return [
        (header.end_phy_offset, header.end_timestamp) for _, header in _index_headers(store) if header.index_count > 1
    ]


def _last_indexed(headers: Iterable[tuple[str, IndexHeader]]) -> int | None:
    return max((header.end_phy_offset for _, header in headers if header.index_count > 1), default=None)


def _index_headers(store: Store) -> Iterator[tuple[str, IndexHeader]]:
    for path in sorted(store.index_dir.iterdir()) if store.index_dir.is_dir() else ():
        if not is_index_name(path.name):
            continue
        try:
            yield path.name, INDEX_HEADER.decode(read_small(path, INDEX_HEADER.size))
        except (OSError, FormatError):
            continue
