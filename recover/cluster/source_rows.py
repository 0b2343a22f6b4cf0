"""Records, queue units and index units as Arrow batches: what the data sources hand to Spark. No pyspark here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from formats.consumequeue import PRE_BLANK
from formats.errors import FormatError
from formats.index import IndexGeometry
from formats.record import HEAD, Record, decode, host_text
from recover.derived.index_files import index_geometry, list_index_files, load_words
from recover.log.file_scan import FileScan, scan_file
from recover.log.files import live_copies, rightly_placed
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.derived_files import QueueFiles
from recover.store.mapped_files import MappedFile
from recover.store.reader import FileReader, ReadFailure
from recover.store.store import Store

_ROWS = 1 << 13
_BATCH_BYTES = 16 << 20
_UNITS = 1 << 16

_TEXT = {name: pa.string() for name in ("topic", "store_host", "born_host", "tags", "keys", "uniq_key", "file")}
_OTHERS = {
    **_TEXT, "properties": pa.map_(pa.string(), pa.string()), "body": pa.binary(), "body_size": pa.int32(),
    "crc_ok": pa.bool_(), "version": pa.int32(), "size": HEAD.arrow_schema.field("total_size").type,
}
COMMITLOG = pa.schema([
    (name, _OTHERS[name] if name in _OTHERS else HEAD.arrow_schema.field(name).type)
    for name in (
        "topic", "queue_id", "queue_offset", "phy_offset", "size", "store_timestamp", "born_timestamp", "store_host",
        "born_host", "tags", "keys", "uniq_key", "properties", "sys_flag", "flag", "reconsume_times",
        "prepared_transaction_offset", "body_size", "body_crc", "crc_ok", "version", "file", "body",
    )
])
"""One row a message. Times in ms since 1970, sizes and offsets in bytes; `body` as stored, compressed if it was."""

CONSUMEQUEUE = pa.schema([
    ("topic", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()), ("phy_offset", pa.int64()),
    ("size", pa.int32()), ("tags_code", pa.int64()), ("file", pa.string()),
])
"""One row a unit. `tags_code` as stored: a hash of the tags, a deliver time (ms), or the address of an ext unit."""

INDEX = pa.schema([
    ("file", pa.string()), ("number", pa.int32()), ("key_hash", pa.int32()), ("phy_offset", pa.int64()),
    ("store_timestamp", pa.int64()), ("previous", pa.int32()),
])
"""One row a unit. `store_timestamp` (ms) is the begin time of its file and the whole seconds that it counts from it."""

_DECODED: dict[str, Callable[[Record], Any]] = {
    "born_timestamp": lambda record: record.born_timestamp,
    "store_host": lambda record: host_text(record.store_host),
    "born_host": lambda record: host_text(record.born_host),
    "tags": lambda record: record.tags,
    "keys": lambda record: record.keys,
    "uniq_key": lambda record: record.uniq_key,
    "properties": lambda record: list(record.property_map().items()),
    "flag": lambda record: record.flag,
    "reconsume_times": lambda record: record.reconsume_times,
    "prepared_transaction_offset": lambda record: record.prepared_transaction_offset,
    "body_size": lambda record: len(record.body),
    "body_crc": lambda record: record.body_crc,
    "version": lambda record: record.version,
    "body": lambda record: bytes(record.body),
}


class LogPart(Struct, frozen=True):
    """One mapped file of the commitlog."""

    mapped_file: MappedFile
    file_size: int


class QueuePart(Struct, frozen=True):
    """One consume queue of a store."""

    store: Store
    topic: str
    queue_id: int


class IndexPart(Struct, frozen=True):
    """One index file."""

    path: Path
    geometry: IndexGeometry


def log_parts(store: Store) -> list[LogPart]:
    """A part for each mapped file."""
    queue, _ = rightly_placed(live_copies(store.commitlog))
    return [LogPart(file, queue.file_size) for file in queue.files]


def queue_parts(store: Store) -> list[QueuePart]:
    """A part for each queue folder."""
    return [QueuePart(store, folder.topic, folder.queue_id) for folder in store.queue_folders]


def index_parts(store: Store) -> list[IndexPart]:
    """A part for each index file; none when nothing tells their geometry."""
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    return [] if geometry is None else [IndexPart(file.path, geometry) for file in listing.files]


def commitlog_batches(part: LogPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The intact records of a file, and whole ones whose checksum fails, with `crc_ok` false.

    `ReadFailure` when a range cannot be read: an answer that leaves it out would look complete.
    """
    scan = scan_file(part.mapped_file, part.file_size)
    _raise_first(scan.unreadable)
    schema = pa.schema([COMMITLOG.field(name) for name in columns])
    decoded = [name for name in columns if name in _DECODED]
    with FileReader(part.mapped_file.path) as reader:
        for split in scan.splits:
            for rows in _slices(split.records, decoded):
                records = _read(reader, part.mapped_file, rows) if decoded else []
                yield pa.record_batch([_column(name, scan, rows, records) for name in columns], schema=schema)
        broken = list(_broken(reader, scan))
    if broken:
        values = [[_plain(name, record, scan) for record in broken] for name in columns]
        yield pa.record_batch(
            [pa.array(column, schema.field(i).type) for i, column in enumerate(values)], schema=schema
        )


def consumequeue_batches(part: QueuePart) -> Iterator[pa.RecordBatch]:
    """The units of a queue, up to the first cell without one; pre-blanks are left out."""
    files = QueueFiles(part.store, part.topic, part.queue_id)
    for stretch in files.stretches():
        _raise_first(files.failures)
        invalid = np.flatnonzero(stretch.size <= 0)
        used = int(invalid[0]) if invalid.size else stretch.cells
        cells = np.flatnonzero(stretch.size[:used] != PRE_BLANK.size)
        for at in range(0, cells.size, _UNITS):
            chosen = cells[at : at + _UNITS]
            names = [stretch.place(int(cell))[0].name for cell in (chosen[0], chosen[-1])]
            if names[0] == names[1]:
                file = _repeat(names[0], chosen.size)
            else:
                file = pa.array([stretch.place(cell)[0].name for cell in chosen.tolist()], pa.string())
            yield pa.record_batch([
                _repeat(part.topic, chosen.size), pa.array(np.full(chosen.size, part.queue_id, np.int32)),
                pa.array(stretch.first_index + chosen), pa.array(stretch.phy_offset[chosen]),
                pa.array(stretch.size[chosen]), pa.array(stretch.tags_code[chosen]), file,
            ], schema=CONSUMEQUEUE)
        if used < stretch.cells:
            return


def index_batches(part: IndexPart) -> Iterator[pa.RecordBatch]:
    """The units of an index file, as many as its header counts."""
    image = load_words(part.path, part.geometry)
    _raise_first(image.failures)
    count = min(max(image.header.index_count, 1), part.geometry.entries)
    for first in range(1, count, _UNITS):
        units = image.units[first : min(first + _UNITS, count)].astype(np.int64)
        offsets = (units[:, 1] << 32) | (units[:, 2] & 0xFFFFFFFF)
        yield pa.record_batch([
            _repeat(part.path.name, len(units)), pa.array(np.arange(first, first + len(units), dtype=np.int32)),
            pa.array(units[:, 0].astype(np.int32)), pa.array(offsets),
            pa.array(image.header.begin_timestamp + 1000 * units[:, 3]), pa.array(units[:, 4].astype(np.int32)),
        ], schema=INDEX)


def _raise_first(failures: Sequence[ReadFailure]) -> None:
    if failures:
        raise failures[0]


def _slices(records: Rows, decoded: Sequence[str]) -> Iterator[Rows]:
    """Rows of one batch at a time; where records are decoded, of no more bytes of log than a batch may hold."""
    if not decoded:
        for at in range(0, records.size, _UNITS):
            yield records[at : at + _UNITS]
        return
    ends = np.cumsum(records["size"].astype(np.int64))
    at = 0
    while at < records.size:
        base = int(ends[at - 1]) if at else 0
        stop = max(at + 1, int(np.searchsorted(ends, base + _BATCH_BYTES, side="right")))
        stop = min(stop, at + _ROWS)
        yield records[at:stop]
        at = stop


def _read(reader: FileReader, mapped_file: MappedFile, rows: Rows) -> list[Record]:
    start = int(rows["phy_offset"][0])
    stop = int(rows["phy_offset"][-1]) + int(rows["size"][-1])
    whole = stop - start <= 2 * _BATCH_BYTES  # else a hole lies between
    content = reader.read(start - mapped_file.file_from_offset, stop - start) if whole else b""
    records = []
    for offset, size in zip(rows["phy_offset"].tolist(), rows["size"].tolist(), strict=True):
        piece = content[offset - start : offset - start + size] if whole else (
            reader.read(offset - mapped_file.file_from_offset, size)
        )
        records.append(decode(piece, check_crc=False))
    return records


def _column(name: str, scan: FileScan, rows: Rows, records: Sequence[Record]) -> pa.Array:
    if name in _DECODED:
        return pa.array([_DECODED[name](record) for record in records], COMMITLOG.field(name).type)
    if name == "topic":
        topics = np.array([topic_text(topic) for topic, _ in scan.queues], dtype=object)
        return pa.array(topics[rows["queue"]], pa.string())
    if name == "queue_id":
        return pa.array(np.array([queue_id for _, queue_id in scan.queues], dtype=np.int32)[rows["queue"]])
    if name == "crc_ok":
        return pa.array(np.ones(rows.size, dtype=bool))
    if name == "file":
        return _repeat(scan.mapped_file.name, rows.size)
    return pa.array(np.ascontiguousarray(rows[name]))


def _broken(reader: FileReader, scan: FileScan) -> Iterator[Record]:
    """Records that are whole but for a checksum or a field."""
    for hole in scan.holes:
        if hole.envelope:
            content = reader.read(hole.start - scan.mapped_file.file_from_offset, hole.facts["size"])
            try:
                yield decode(content, check_crc=False)
            except FormatError:
                continue


def _plain(name: str, record: Record, scan: FileScan) -> Any:
    if name in _DECODED:
        return _DECODED[name](record)
    fixed = {"topic": record.topic_name, "size": record.total_size, "crc_ok": False, "file": scan.mapped_file.name}
    return fixed[name] if name in fixed else getattr(record, name)


def _repeat(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)
