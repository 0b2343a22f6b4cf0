"""One mapped commitlog file turned into columns of intact records and the holes between them.

The compiled walk takes what is certainly intact; where it stops, the reference codec judges;
where that says no, the scan looks for the next place with a message magic and its own physical
offset and goes on behind the damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from formats.commitlog import BLANK_SIZE, HEAD, MIN_RECORD_SIZE, decode_blank
from formats.errors import FormatError
from formats.native.walk import AT_BLANK, NEED_MORE, NOT_RESIDENT, OUTPUT_FULL, walk_records
from formats.record_columns import BIT_DELAY
from formats.record_row import row_of
from recover.files.mapped_files import MappedFile
from recover.files.reader import FileReader, ReadFailure
from recover.memory.columns import ColumnStore, Rows, Split
from recover.scan.hole_search import Found, HoleSearch
from recover.scan.judge import envelope_size, judge, reason_of
from recover.scan.queue_table import QueueTable
from recover.scan.row_room import RowRoom
from recover.scan.tally import Counter
from recover.scan.window import Window

WINDOW = 1 << 20  # what is read stays in the processor's cache until it is checked
WHOLE = 1 << 62
EARLY_END_MARK = "blank"

ProgressCallback = Callable[[int, int], None]


class Hole(Struct):
    """Bytes [start, stop) of the log that hold no intact record; physical offsets.

    `ended_by` says what stands at `stop`: "record", "blank", or "file-end". `envelope` is true when
    the bytes at `start` are a whole record of which only a checksum or a field fails.
    `last_data` is the end of the last non-zero byte, `start` when all is zero.
    """

    start: int
    stop: int
    reason: str
    ended_by: str
    envelope: bool
    last_data: int
    facts: dict[str, Any] = {}  # each has its own: msgspec copies it


class FileScan:
    """What one mapped file holds. `blank` is the physical offset of its end mark, `blank_size` what it says.

    `counter` counted its rows as they came, where that is the whole file. `doubted` is the end mark that an intact
    record stands behind, and how many of the splits are before it; `over_record`: what stands behind the eight bytes
    of the end mark is the rest of a record's head, with the own offset of this place.
    """

    def __init__(self, mapped_file: MappedFile, file_size: int) -> None:
        self.mapped_file = mapped_file
        self.file_size = file_size
        self.splits: list[Split] = []
        self.queues: list[tuple[bytes, int]] = []
        self.holes: list[Hole] = []
        self.blank: int | None = None
        self.blank_size = 0
        self.end = 0
        self.unreadable: list[ReadFailure] = []
        self.counter: Counter | None = None
        self.doubted: tuple[int, int] | None = None
        self.over_record = False

    @property
    def file_end(self) -> int:
        """Physical offset of the end of the file at its full size."""
        return self.mapped_file.file_from_offset + self.file_size

    @property
    def record_count(self) -> int:
        return sum(split.records.size for split in self.splits)


class FileScanner:
    """The state of one scan; `stop` is where in the file it ends, a split's when another begins there."""

    def __init__(
        self, mapped_file: MappedFile, file_size: int, columns: ColumnStore, progress: ProgressCallback | None,
        *, with_keys: bool = True,
    ) -> None:
        self.base = mapped_file.file_from_offset
        self.length = min(mapped_file.length, file_size)
        self.stop = WHOLE
        self.result = FileScan(mapped_file, file_size)
        self.progress = progress
        self.with_keys = with_keys
        self.state = np.zeros(4, dtype=np.int64)
        self.queues = QueueTable(self.state)
        self.room = RowRoom(columns, with_hashes=with_keys)
        self.result.splits = self.room.splits

    def run(self, reader: FileReader, window_size: int) -> FileScan:
        window = Window(reader, self.length, window_size)
        position: int | None = 0
        while position is not None:
            position = self._walk(window, position)
        window.close()
        self._end()
        self.result.unreadable = window.failures
        return self.result

    def _end(self) -> None:
        """All rows were found."""
        self._flush()
        self.room.end()
        self.result.queues = self.queues.keys()

    def _walk(self, window: Window, position: int) -> int | None:
        """Walk from `position` in the file to the end or to the next damage; where to go on, or None."""
        if not window.holds(position):
            window.load(position)
        inside = position - window.start
        while True:
            taken = int(self.state[0])
            inside, status = self._kernel(window, inside)
            self._report(window.start + inside - position, int(self.state[0]) - taken)
            position = window.start + inside
            self.result.end = self.base + position
            if position >= self.stop:
                return None
            if status == OUTPUT_FULL:
                self._make_room()
            elif status == AT_BLANK:
                return self._at_blank(window, position)
            elif status == NOT_RESIDENT:
                window.reload(position)
                inside = 0
            elif status == NEED_MORE and window.advance(position):
                inside = 0
            else:
                step = self._judge(window, position)
                if step is None:
                    return self._resynchronise(window, position)
                position += step
                if position - window.start > window.filled - BLANK_SIZE or window.start > position:
                    window.load(position)
                inside = position - window.start

    def _kernel(self, window: Window, inside: int) -> tuple[int, int]:
        with window.lent() as refill:
            inside, status = walk_records(
                window.data, inside, window.filled, self.base + window.start, self.result.file_end,
                self.room.rows.records, self.room.rows.hashes, self.queues.slots,
                self.queues.names, self.queues.table, self.state, self.with_keys, refill,
            )
        return inside, status

    def _judge(self, window: Window, position: int) -> int | None:
        """Size of the record at `position` if the reference codec takes it, and its row is kept; else None."""
        try:
            record = judge(window.bytes_at, position, self.base, self.result.file_end, window.sums)
        except FormatError:
            return None
        self._flush()
        row, hashes = row_of(record, self.queues.number(record.topic, record.queue_id))
        if not self.with_keys:
            row["hashes"], hashes = 0, np.empty(0, dtype=np.int32)
            row["tags_code"] *= (row["bits"] & BIT_DELAY) != 0
        self._count(row)
        self.room.keep(row, hashes)
        self._report(record.total_size, 1)
        return record.total_size

    def _at_blank(self, window: Window, position: int) -> int | None:
        blank = decode_blank(window.bytes_at(position, BLANK_SIZE))
        room = self.result.file_end - self.base - position
        if blank.size == room:
            head = window.bytes_at(position, HEAD.size) if room >= MIN_RECORD_SIZE else b""
            own = HEAD.decode(head).phy_offset if len(head) >= HEAD.size else -1
            self.result.over_record = own == self.base + position
            self._end_at_blank(position, blank.size)
            return None
        return self._resynchronise(window, position)

    def _end_at_blank(self, position: int, size: int) -> None:
        self.result.blank = self.base + position
        self.result.blank_size = size
        self.result.end = self.base + position
        self._report(self.length - position, 0)

    def _resynchronise(self, window: Window, position: int) -> int | None:
        """Note the hole at `position` and find the first intact record or the end mark behind it."""
        hole = self._hole_at(window, position)
        found, hole.last_data = self._search(window, position, position + 1, hole.start)
        if found is not None:
            kind, where = found
            return self._close_hole(hole, position, where, kind)
        self._end_in_hole(hole, position)
        return None

    def _search(self, window: Window, position: int, first: int, last_data: int) -> tuple[Found | None, int]:
        search = HoleSearch(window, self.base, self.length, self.stop, self.result.file_end)
        return search.first_intact(position, first, last_data)

    def _end_in_hole(self, hole: Hole, position: int) -> None:
        """Nothing intact follows `position`: note the hole up to where the file ends at its full size."""
        if self.length > position:
            hole.stop = self.result.file_end
            self.result.holes.append(hole)
            self.result.end = hole.start
        elif self.result.file_size > self.length:
            hole.reason, hole.stop = "short-file", self.result.file_end
            self.result.holes.append(hole)
        self._report(self.length - position, 0)

    def _close_hole(self, hole: Hole, position: int, where: int, kind: str) -> int | None:
        hole.stop, hole.ended_by = self.base + where, kind
        hole.last_data = min(hole.last_data, hole.stop)
        self.result.holes.append(hole)
        self._report(where - position, 0)
        if kind == "record":
            return where
        self._end_at_blank(where, self.result.file_end - self.base - where)
        return None

    def _hole_at(self, window: Window, position: int) -> Hole:
        offset = self.base + position
        reason, facts = reason_of(window.bytes_at, position, self.base, self.result.file_end, window.sums)
        size = envelope_size(window.bytes_at, position, self.base, self.result.file_end, window.sums)
        return Hole(offset, offset, reason, "file-end", size > 0, offset, facts | ({"size": size} if size else {}))

    def _make_room(self) -> None:
        """Flush the rows; grow whatever was too small for a single record."""
        rows = int(self.state[0])
        self._flush()
        if self.queues.is_nearly_full:
            self.queues.grow()
        elif not rows:
            self.room.widen()

    def _flush(self) -> None:
        rows, hashes = int(self.state[0]), int(self.state[1])
        self.state[0] = self.state[1] = 0
        if rows:
            self._count(self.room.rows.records[:rows])
            self.room.take(rows, hashes)

    def _count(self, rows: Rows) -> None:
        if self.result.counter is not None:
            self.result.counter.add(rows, len(self.queues))

    def _report(self, size: int, records: int) -> None:
        if self.progress is not None and (size or records):
            self.progress(size, records)


def scan_file(
    mapped_file: MappedFile, file_size: int, columns: ColumnStore, *, progress: ProgressCallback | None = None,
    window: int = WINDOW, with_keys: bool = True, counter: Counter | None = None,
) -> FileScan:
    """Scan one mapped commitlog file of `file_size` bytes. `OSError` when it cannot be opened at all.

    Rows have neither key hashes nor tags codes unless `with_keys`; delay levels they have.
    `progress(bytes, records)` is called with what was done since the last call, from the calling thread.
    Rows are given to the `counter`, or a new one, in their order, some at a time.
    """
    scanner = FileScanner(mapped_file, file_size, columns, progress, with_keys=with_keys)
    scanner.result.counter = counter or Counter()
    with FileReader(mapped_file.path) as reader:
        return scanner.run(reader, window)
