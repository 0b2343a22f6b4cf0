"""Messages in bulk at the speed of a disk: stretches of the log become lines in compiled code, several at a time.

The lines are NDJSON, or are read into tables at once.

The reference is `recover.export.messages`: it writes every record that compiled code is not sure of.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np

from formats.native.lines import write_lines
from formats.record_columns import BIT_INNER_BATCH, STALE
from recover.export.messages import COLUMNS, real_place
from recover.export.select import Choice, Wanted, contents
from recover.export.source import Scanned
from recover.export.write import Ndjson, Table, cell
from recover.files.mapped_files import MappedFile
from recover.files.reader import FileReader, ReadFailure
from recover.memory.columns import Rows

_STRETCH = 4 << 20
_LINES = 16 << 20
_NO_LINE = BIT_INNER_BATCH | STALE


class Written(msgspec.Struct):
    """Lines of one stretch: bytes in the order of the log, what they hold by topic, and what could not be read."""

    pieces: list[Any] = msgspec.field(default_factory=list)
    table: Any = None
    topics: Counter[str] = msgspec.field(default_factory=Counter)
    size: int = 0
    notes: list[str] = msgspec.field(default_factory=list)


def export_lines(
    scanned: Scanned, wanted: Wanted, writer: Ndjson | Table, *, threads: int, note: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Counter[str], int]:
    """Write every wanted message in log order; (messages by topic, bytes of their records). For filters `by_rows`."""
    topics: Counter[str] = Counter()
    size = 0
    choice = Choice(scanned.log.queues, scanned.log.files, wanted)
    maker = Maker(choice, writer if isinstance(writer, Table) else None, threads + 1)
    waiting: deque[tuple[Future[Written], Rows]] = deque()
    reached = scanned.log.min_offset

    def take() -> None:
        nonlocal size, reached
        future, rows = waiting.popleft()
        written = future.result()
        if isinstance(writer, Table):
            if written.table is not None:
                writer.take(written.table)
        else:
            writer.take(written.pieces, written.topics.total())
        maker.give_back(written)
        topics.update(written.topics)
        size += written.size
        for line in written.notes:
            note(line)
        end = int(rows["phy_offset"][-1]) + int(rows["size"][-1])
        if progress is not None:
            # what filters leave out was passed over, too
            progress(max(0, end - reached), rows.size)
        reached = end

    with ThreadPoolExecutor(threads) as pool:
        for scan, found in groupby(choice.rows(), lambda item: item[0]):
            try:
                reader = FileReader(scan.mapped_file.path)
            except OSError as error:
                note(f"{scan.mapped_file.path} could not be opened: {error.strerror}")
                continue
            with reader:
                for rows in (stretch for *_, some in found for stretch in near(some)):
                    waiting.append((pool.submit(maker.make, reader, scan.mapped_file, rows), rows))
                    if len(waiting) > threads:
                        take()
                while waiting:
                    take()
    return topics, size


def near(rows: Rows, size: int = _STRETCH) -> Iterator[Rows]:
    """Rows that begin within so many bytes of log, together."""
    offsets = rows["phy_offset"]
    first = 0
    while first < rows.size:
        stop = int(np.searchsorted(offsets, offsets[first] + size))
        yield rows[first:stop]
        first = stop


class Maker:
    """Makes the lines of stretches, `rooms` of them at a time at most."""

    def __init__(self, choice: Choice, tables: Table | None, rooms: int) -> None:
        self.choice, self.tables = choice, tables
        self.plain = np.array(
            [choice.wanted.by_rows and real_place(name, queue_id, {})[2] is None for name, queue_id in choice.names],
            dtype=bool)
        self.rooms: SimpleQueue[Rows] = SimpleQueue()
        for _ in range(rooms):
            self.rooms.put(np.empty(_LINES, dtype=np.uint8))

    def give_back(self, written: Written) -> None:
        """The room of these lines may be used again."""
        for piece in written.pieces:
            if isinstance(piece, np.ndarray) and piece.base is not None:
                self.rooms.put(piece.base)

    def make(self, reader: FileReader, mapped_file: MappedFile, rows: Rows) -> Written:
        """The lines of the records of some rows, or the table that they make."""
        written = Written()
        self._make(written, reader, mapped_file, rows)
        if self.tables is not None and written.pieces:
            written.table = self.tables.from_lines(b"".join(written.pieces))
            self.give_back(written)
            written.pieces.clear()
        return written

    def _make(self, written: Written, reader: FileReader, mapped_file: MappedFile, rows: Rows) -> None:
        first = int(rows["phy_offset"][0]) - mapped_file.file_from_offset
        starts = rows["phy_offset"] - rows["phy_offset"][0]
        try:
            content = reader.read(first, int(starts[-1]) + int(rows["size"][-1]))
        except ReadFailure:
            # what can be read around the bad place comes out record by record
            for row, record in contents(mapped_file, rows, written.notes.append):
                self._reference(written, row, record)
            return
        data = np.frombuffer(content, dtype=np.uint8)
        plain = self.plain[rows["queue"]] & ((rows["bits"] & _NO_LINE) == 0)
        sizes = np.where(plain, rows["size"], 0).astype(np.int64)
        lines = self.rooms.get()
        at, used = 0, 0
        by_kernel = np.zeros(rows.size, dtype=bool)
        while at < rows.size:
            done, used = write_lines(data, starts, sizes, at, self.tables is not None, lines)
            by_kernel[at:done] = True
            if used:
                written.pieces.append(lines[:used].tobytes() if done < rows.size else lines[:used])
            at = done
            if at < rows.size and not (sizes[at] and used):
                start = int(starts[at])
                self._reference(written, rows[at], content[start : start + int(rows["size"][at])])
                at += 1
        if not written.pieces or not isinstance(written.pieces[-1], np.ndarray):
            self.rooms.put(lines)
        queues, counts = np.unique(rows["queue"][by_kernel], return_counts=True)
        for queue, number in zip(queues.tolist(), counts.tolist(), strict=True):
            written.topics[self.choice.names[queue][0]] += number
        written.size += int(rows["size"][by_kernel].sum())

    def _reference(self, written: Written, row: Rows, record: bytes) -> None:
        for item in self.choice.messages(record, int(row["bits"]), int(row["phy_offset"]), written.notes.append):
            message = item.message
            value = message if self.tables is None else {name: cell(message, name) for name in COLUMNS}
            written.pieces.append(msgspec.json.encode(value) + b"\n")
            written.topics[item.message.topic] += 1
            written.size += item.message.size or 0
