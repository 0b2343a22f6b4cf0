"""Where a store's log ends, and how far its queues, its index and its checkpoint have come."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from msgspec import structs

from formats.consumequeue import CQ_UNIT, CqUnit, is_pre_blank, is_valid
from formats.index import IndexHeader
from formats.names import is_index_name
from recover.derived.index_files import list_index_files
from recover.evidence.lost import file_named_elsewhere
from recover.log.file_scan import FileScan
from recover.log.files import live_copies, rightly_placed
from recover.log.scan import LogView, assemble, open_before
from recover.log.split_scan import parts_of, scan_files
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reader import FileReader
from recover.store.store import Store


class Pointers:
    """Offsets in bytes of the log, times in ms, out of the end of the log, the last file of each queue and the heads of
    all others; not of all of them. `dispatched_to`: the largest end of a unit; None without one.

    `log` has misnamed files where their records belong, and `misnamed` their right offsets. `missing_ranges`: those
    without a file; `far`: empty files far after the log's end, each with where the room before it begins. `unread`: why
    files that would tell more could not be read.
    """

    def __init__(self, store: Store) -> None:
        self.log, self.misnamed = rightly_placed(live_copies(store.commitlog))
        end = _end_of_log(self.log)
        self.min_offset, self.max_offset = self.log.min_offset, self.log.max_offset
        self.log_end, self.last_timestamp = end.log_end, end.tally.last_timestamp
        self.checkpoint = store.checkpoint()
        self.unread: list[OSError] = []
        self.index_files = list(_index_headers(store, self.unread))
        ends = _ends(self.index_files)
        # where the last message begins that a header of an index file names
        self.indexed_to = max((phy_offset for phy_offset, _ in ends), default=None)
        self._find_missing(end, ends)
        self._find_queues(store)

    def _find_missing(self, end: LogView, index_ends: list[tuple[int, int]]) -> None:
        """Sort the gaps between names as verify does; `end`: the log from its last file with a record on."""
        self.missing_ranges: list[tuple[int, int]] = []
        self.far: list[tuple[MappedFile, int]] = []
        for start, stop in self.log.missing_ranges():
            far = next((scan for scan in end.files if scan.mapped_file.file_from_offset == stop), None)
            if far is not None and open_before(end.files, far, end.log_end):
                self.far.append((far.mapped_file, start))
            else:
                self.missing_ranges.append((start, stop))
        gone = file_named_elsewhere(end.files, end.tally.newest_timestamp, index_ends, self.checkpoint)
        if gone is not None:
            self.missing_ranges.append((gone.start, gone.stop))

    def _find_queues(self, store: Store) -> None:
        self.queues: dict[str, dict[int, int]] = {}
        self.dispatched_to: int | None = None
        for folder in store.queue_folders:
            files = MappedFileQueue.load((folder.path,), store.queue_file_size).files
            end, unit = last_unit(files, self.unread)
            self.queues.setdefault(folder.topic, {})[folder.queue_id] = end
            if unit is not None and not is_pre_blank(unit):
                self.dispatched_to = max(self.dispatched_to or 0, unit.phy_offset + unit.size)

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


def _end_of_log(queue: MappedFileQueue) -> LogView:
    """The log from its last file with a record on, scanned as verify scans all of it."""
    scans: list[FileScan] = []
    for mapped_file in reversed(queue.files):
        scans[:0] = scan_files(parts_of(structs.replace(queue, files=[mapped_file]), 1), 1, with_keys=False)
        if scans[0].record_count:
            break
    return assemble(structs.replace(queue, files=[scan.mapped_file for scan in scans]), scans)


def last_unit(files: list[MappedFile], unread: list[OSError]) -> tuple[int, CqUnit | None]:
    """(queue offset after it, the last valid unit); units are written without gaps, so bisection finds it. What cannot
    be read goes to `unread`."""
    for mapped_file in reversed(files):
        first = mapped_file.file_from_offset // CQ_UNIT.size
        try:
            with FileReader(mapped_file.path) as reader:
                units = range(mapped_file.length // CQ_UNIT.size)
                count = bisect_left(units, True, key=lambda number: not is_valid(_unit(reader, number)))
                if count:
                    return first + count, _unit(reader, count - 1)
        except OSError as error:
            unread.append(error)
    return (files[0].file_from_offset // CQ_UNIT.size if files else 0), None


def _unit(reader: FileReader, number: int) -> CqUnit:
    return CQ_UNIT.decode(reader.read(number * CQ_UNIT.size, CQ_UNIT.size))


def index_ends(store: Store) -> list[tuple[int, int]]:
    """Start in the log and store timestamp (ms) of the last message of each index file, as its header says."""
    return _ends(_index_headers(store, []))


def _ends(headers: Iterable[tuple[str, IndexHeader]]) -> list[tuple[int, int]]:
    return [(header.end_phy_offset, header.end_timestamp) for _, header in headers if header.index_count > 1]


def _index_headers(store: Store, unread: list[OSError]) -> Iterator[tuple[str, IndexHeader]]:
    for file in list_index_files(store.index_dir).files:
        header = file.header(unread)
        if header is not None and is_index_name(file.name):
            yield file.name, header
