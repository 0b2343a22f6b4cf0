"""Writers of messages: NDJSON, CSV, Parquet, raw records. They stream: messages in, batches out, nothing kept."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from formats.native.rows import write_lines
from formats.record.rows import BIT_INNER_BATCH, NOT_LIVE
from formats.sysflag import BATCH, COMPRESSED
from recover.change.lock import only_run
from recover.change.model import refuse_existing
from recover.export.messages import COLUMNS, Counts, Message, count_key, may_hold_replies, place_text, real_destination
from recover.export.select import Choice, Selected, Wanted, contents
from recover.export.sources import Scanned
from recover.findings.code import N_, Refusal, require
from recover.findings.model import Phrase
from recover.log.file_scan import ProgressCallback
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFile
from recover.store.reader import FileReader, ReadFailure
from recover.store.source import StorePath, open_file

_FLUSH = 1 << 20
_GROUP = 32 << 20
_SAME = N_("Export with the same filters from the same store, or start a new export.")
_INTEGERS = frozenset({
    "queue", "queue_offset", "phy_offset", "size", "store_time", "born_time", "flag", "sys_flag", "reconsume_times",
    "stored_queue", "copy",
})
COLUMNS_THAT_REPEAT = (
    "topic", "state", "born_host", "store_host", "tags", "transaction", "body_encoding", "body_compression", "kind",
    "stored_topic", "body_problem", "damage", "doubtful",
)
"""Columns that Parquet keeps as dictionaries. Searching all columns for repeats costs as much as compressing them."""
PART = ".part"


class Writer:
    """Takes messages in order; `close` writes what is buffered, and leaves the stream open. The base class writes the
    raw format: the records as stored, one after the other."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def line_of(self, item: Selected) -> bytes:
        """A message encoded in this format."""
        return item.content

    def take(self, lines: bytes | memoryview) -> None:
        """Write whole lines."""
        self._stream.write(lines)

    def write(self, item: Selected) -> None:
        self.take(self.line_of(item))

    def close(self) -> None:
        """The base class buffers nothing."""


class Resumed(msgspec.Struct, frozen=True):
    """How many whole lines an interrupted export has, and the last one."""

    lines: int = 0
    last: bytes = b""


class Ndjson(Writer):
    """One message per line; lines that an earlier run has `left` are skipped, and checked against its last one."""

    def __init__(self, stream: IO[bytes], left: Resumed) -> None:
        super().__init__(stream)
        self._skip, self._last = left.lines, left.last

    def line_of(self, item: Selected) -> bytes:
        return msgspec.json.encode(item.message) + b"\n"

    def take(self, lines: bytes | memoryview) -> None:
        """Write whole lines; `Refusal` (8) if they differ from the earlier run."""
        if self._skip:
            split = bytes(lines).splitlines(keepends=True)
            if len(split) >= self._skip and split[self._skip - 1] != self._last:
                raise Refusal("the messages differ from those of the interrupted export", _SAME)
            lines, self._skip = b"".join(split[self._skip :]), max(0, self._skip - len(split))
        self._stream.write(lines)

    def close(self) -> None:
        """`Refusal` (8) if the earlier run had more messages."""
        if self._skip:
            raise Refusal("the interrupted export has more messages than the store", _SAME)


class Csv(Writer):
    """One message per row, after a header row: text in quotes, null as nothing, properties as JSON."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        stream.write(_row(COLUMNS))

    def line_of(self, item: Selected) -> bytes:
        return row_of(item.message)


class Table(Writer):
    """Parquet by pyarrow, with the columns of CSV. Without a stream it builds tables and writes none."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        require("parquet", "Parquet")
        import pyarrow as pa

        self._pa = pa
        self._schema = pa.schema([(name, pa.int64() if name in _INTEGERS else pa.string()) for name in COLUMNS])
        if stream is not None:
            from pyarrow import parquet

            self._sink = parquet.ParquetWriter(
                stream, self._schema, compression="zstd", use_dictionary=[*COLUMNS_THAT_REPEAT]
            )
        self._lines = bytearray()
        self._tables: list[Any] = []

    def line_of(self, item: Selected) -> bytes:
        return row_of(item.message)

    def take(self, lines: bytes | memoryview) -> None:
        self._lines += lines
        if len(self._lines) >= _FLUSH:
            self._take_lines()

    def from_rows(self, rows: bytes | memoryview) -> Any:
        """A table of rows in the format of `row_of`. Thread-safe."""
        from pyarrow import csv

        return csv.read_csv(
            self._pa.BufferReader(self._pa.py_buffer(rows)),
            csv.ReadOptions(use_threads=False, block_size=len(rows) + 1, column_names=self._schema.names),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(column_types=self._schema, null_values=[""], strings_can_be_null=True,
                               quoted_strings_can_be_null=False),
        )

    def _take_lines(self) -> None:
        if self._lines:
            lines = bytes(self._lines)
            self._lines.clear()
            self.take_table(self.from_rows(lines))

    def take_table(self, table: Any) -> None:
        """Write a table after the lines that were taken, batched with others if it is small."""
        self._take_lines()
        self._tables.append(table)
        if sum(item.nbytes for item in self._tables) >= _GROUP:
            self._put_tables()

    def _put_tables(self) -> None:
        if self._tables:
            self._sink.write_table(self._pa.concat_tables(self._tables))
            self._tables.clear()

    def close(self) -> None:
        self._take_lines()
        self._put_tables()
        self._sink.close()


def row_of(message: Message) -> bytes:
    """A row of CSV; properties are a JSON object (null if illegible), doubtful fields one text."""
    texts: dict[str, str | None] = {"properties": None, "doubtful": " ".join(message.doubtful)}
    if message.properties is not None:
        texts["properties"] = msgspec.json.encode(message.properties).decode()
    return _row(texts.get(name, getattr(message, name)) for name in COLUMNS)


def _row(cells: Iterable[Any]) -> bytes:
    return ",".join(_cell(value) for value in cells).encode() + b"\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else str(value)


def writer_for(kind: str, stream: IO[bytes], left: Resumed) -> Writer:
    """The writer of a format: ndjson, csv, raw or parquet."""
    if kind == "ndjson":
        return Ndjson(stream, left)
    if kind == "csv":
        return Csv(stream)
    return Writer(stream) if kind == "raw" else Table(stream)


@contextmanager
def output_file(target: Path, *, resume: bool, keeps: bool = False) -> Iterator[tuple[IO[bytes], Resumed]]:
    """Yield a stream to `target`.part, which is renamed to `target` when the block ends without an error.

    With `resume` it continues after the last whole line there. After an error the part is removed unless it `keeps` it.
    `Refusal` (8) if `target` exists, or another run writes the part.
    """
    refuse_existing(target)
    part = target.with_name(target.name + PART)
    if part.exists() and not resume:
        raise Refusal(Phrase("{part} is left of an interrupted export", part=part),
                      N_("Add --resume to continue it, or remove it.") if keeps else N_("Remove it."), path=str(part))
    with part.open("ab") as held:
        only_run(held, part)
        left = _cut_to_whole_lines(part)
        try:
            with part.open("ab") as stream:
                yield stream, left
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException as error:
            if not keeps:
                part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(part)
            raise
        part.rename(target)


def _cut_to_whole_lines(part: Path) -> Resumed:
    lines, end, last = 0, 0, b""
    with part.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                break
            lines, end, last = lines + 1, end + len(line), line
    os.truncate(part, end)
    return Resumed(lines, last)


# --- Messages in bulk, at the speed of the disk: compiled code encodes ranges of the log, several at a time. Records
# that it is not sure of are encoded by the reference, `recover.export.messages`.


_STRETCH = 4 << 20
_LINES = 16 << 20
_NO_LINE = BIT_INNER_BATCH | NOT_LIVE


class Written(msgspec.Struct):
    """One range: its lines or their table, counts by topic, bytes of its records, read errors."""

    lines: bytes = b""
    table: Any = None
    topics: Counts = msgspec.field(default_factory=Counter)
    size: int = 0
    notes: list[str] = msgspec.field(default_factory=list)


def export_lines(
    scanned: Scanned, wanted: Wanted, writer: Ndjson | Csv | Table, *, threads: int, note: Callable[[str], None],
    progress: ProgressCallback | None = None,
) -> tuple[Counts, int]:
    """Write every wanted message in log order; return (counts, bytes of their records). For filters `by_rows`."""
    topics: Counts = Counter()
    size = 0
    choice = Choice(scanned.log.queues, scanned.log.files, wanted, scanned.doubted, scanned.earlier)
    maker = LineMaker(choice, writer)
    waiting: deque[tuple[Future[Written], Rows]] = deque()
    reached = scanned.log.min_offset

    def take() -> None:
        future, rows = waiting.popleft()
        written = future.result()
        if not isinstance(writer, Table):
            writer.take(written.lines)
        elif written.table is not None:
            writer.take_table(written.table)
        record(written, rows)

    def record(written: Written, rows: Rows) -> None:
        nonlocal size, reached
        topics.update(written.topics)
        size += written.size
        for line in written.notes:
            note(line)
        end = int(rows["phy_offset"][-1]) + int(rows["size"][-1])
        if progress is not None:
            # bytes that filters skipped count as progress too
            progress(max(0, end - reached), rows.size)
        reached = end

    with ThreadPoolExecutor(threads) as pool:
        for scan, found in groupby(choice.rows(), lambda item: item[0]):
            try:
                reader = open_file(scan.mapped_file.path)
            except OSError as error:
                note(Phrase("{path} could not be opened: {error}", path=scan.mapped_file.path, error=error.strerror))
                continue
            with reader:
                for rows in (stretch for *_, some in found for stretch in near(some)):
                    if not wanted.raw_body and (rows["sys_flag"] & COMPRESSED).any():
                        # a little log may be many times as much text, so it is not collected
                        while waiting:
                            take()
                        written = Written()
                        for lines in maker.lines(written, reader, scan.mapped_file, rows):
                            writer.take(lines)
                        record(written, rows)
                        continue
                    waiting.append((pool.submit(maker.make, reader, scan.mapped_file, rows), rows))
                    if len(waiting) > 2 * threads:
                        take()
                while waiting:
                    take()
    return topics, size


def near(rows: Rows, size: int = _STRETCH) -> Iterator[Rows]:
    """Group rows that begin within `size` bytes of log."""
    offsets = rows["phy_offset"]
    first = 0
    while first < rows.size:
        stop = int(np.searchsorted(offsets, offsets[first] + size))
        yield rows[first:stop]
        first = stop


class LineMaker:
    """Encodes ranges as a writer takes them: lines, for a `Table` tables. Thread-safe."""

    def __init__(self, choice: Choice, writer: Ndjson | Csv | Table) -> None:
        self.choice, self.tables = choice, writer if isinstance(writer, Table) else None
        self._line_of = writer.line_of
        self._is_csv = not isinstance(writer, Ndjson)
        self._kept = threading.local()
        self.plain = np.array(
            [choice.wanted.by_rows and not may_hold_replies(name) and real_destination(name, queue_id, {})[2] is None
             for name, queue_id in choice.names], dtype=bool)

    def make(self, reader: FileReader, mapped_file: MappedFile, rows: Rows) -> Written:
        """The lines of the records of some rows, or their table."""
        written = Written()
        pieces = list(self.lines(written, reader, mapped_file, rows))
        lines = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self.tables is None:
            written.lines = bytes(lines)
        elif len(lines):
            written.table = self.tables.from_rows(lines)
        return written

    def _room(self) -> Rows:
        """The kernel's output buffer: one per thread, because fresh memory costs more than encoding the lines."""
        room: Rows | None = getattr(self._kept, "room", None)
        if room is None:
            room = self._kept.room = np.empty(_LINES, dtype=np.uint8)
        return room

    def lines(
        self, written: Written, reader: FileReader, mapped_file: MappedFile, rows: Rows,
    ) -> Iterator[bytes | memoryview]:
        """The lines in pieces, each of at most 16 MiB or one message; the last one may be a view of this thread's
        buffer."""
        first = int(rows["phy_offset"][0]) - mapped_file.file_from_offset
        starts = rows["phy_offset"] - rows["phy_offset"][0]
        try:
            content = reader.read(first, int(starts[-1]) + int(rows["size"][-1]))
        except ReadFailure:
            # what can be read around the bad place is encoded record by record
            for row, record in contents(mapped_file, rows, written.notes.append):
                yield from self._reference(written, row, record, mapped_file)
            return
        data = np.frombuffer(content, dtype=np.uint8)
        plain = self.plain[rows["queue"]] & ((rows["bits"] & _NO_LINE) == 0)
        plain &= (rows["sys_flag"] & BATCH != BATCH) | (not self.choice.wanted.unfold)
        plain &= ~np.isin(rows["phy_offset"], [*self.choice.doubted]) & (self.choice.copies(rows) == 0)
        file, at_file = self._origin(mapped_file, first, plain)
        sizes = np.where(plain, rows["size"], 0).astype(np.int64)
        room = self._room()
        at = 0
        by_kernel = np.zeros(rows.size, dtype=bool)
        while at < rows.size:
            done, used = write_lines(data, starts, sizes, at, self._is_csv, file, at_file, room)
            by_kernel[at:done] = True
            yield room[:used].data if done == rows.size else room[:used].tobytes()
            at = done
            if at < rows.size and not (sizes[at] and used):
                start = int(starts[at])
                yield from self._reference(
                    written, rows[at], content[start : start + int(rows["size"][at])], mapped_file)
                at += 1
        queues, counts = np.unique(rows["queue"][by_kernel], return_counts=True)
        for queue, number in zip(queues.tolist(), counts.tolist(), strict=True):
            written.topics[self.choice.names[queue][0], "ordinary"] += number
        written.size += int(rows["size"][by_kernel].sum())

    def _origin(self, mapped_file: MappedFile, first: int, plain: Rows) -> tuple[Rows, int]:
        """The file that stretches are read from as the kernel writes it, and the position in it. Records of a file laid
        over others are not `plain` any more: each may be read from elsewhere."""
        path = mapped_file.path
        if isinstance(path, StorePath) and path.below is not None:
            plain[:] = False
        file, _, at = place_text(path, first).rpartition(":")
        text = _cell(file + ":").encode() if self._is_csv else msgspec.json.encode(file + ":")
        return np.frombuffer(text[:-1], dtype=np.uint8), int(at)

    def _reference(self, written: Written, row: np.void, record: bytes, mapped_file: MappedFile) -> Iterator[bytes]:
        for item in self.choice.messages(record, row, mapped_file, written.notes.append):
            yield self._line_of(item)
            written.topics[count_key(item.message)] += 1
            written.size += item.message.size or 0
