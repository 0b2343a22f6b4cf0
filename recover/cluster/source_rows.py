"""Records, queue units and index units as Arrow batches: what the data sources hand to Spark. No pyspark here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from pyarrow import compute

from formats.consumequeue import PRE_BLANK
from formats.errors import FormatError
from formats.index import IndexGeometry
from formats.record import HEAD, Record, decode, host_text
from recover.cluster.fleet import FINDING_COLUMNS, findings_of
from recover.derived.index_files import index_geometry, list_index_files, load_words
from recover.log.file_scan import FileScan, scan_file
from recover.log.files import live_copies, rightly_placed
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.derived_files import QueueFiles
from recover.store.mapped_files import MappedFile
from recover.store.reader import FileReader, ReadFailure
from recover.store.store import Store, StoreOptions

_ROWS = 1 << 13
_BATCH_BYTES = 16 << 20
_UNITS = 1 << 16
_QUEUES, _QUEUE_PARTS = 512, 64

_TEXT = dict.fromkeys(
    ("store", "topic", "store_host", "born_host", "tags", "keys", "uniq_key", "file"), pa.string())
_OTHERS = {
    **_TEXT, "properties": pa.map_(pa.string(), pa.string()), "body": pa.binary(), "body_size": pa.int32(),
    "crc_ok": pa.bool_(), "version": pa.int32(), "size": HEAD.arrow_schema.field("total_size").type,
}
COMMITLOG = pa.schema([
    (name, _OTHERS[name] if name in _OTHERS else HEAD.arrow_schema.field(name).type)
    for name in (
        "store", "topic", "queue_id", "queue_offset", "phy_offset", "size", "store_timestamp", "born_timestamp",
        "store_host", "born_host", "tags", "keys", "uniq_key", "properties", "sys_flag", "flag", "reconsume_times",
        "prepared_transaction_offset", "body_size", "body_crc", "crc_ok", "version", "file", "body",
    )
])
"""One row a message. Times in ms since 1970, sizes and offsets in bytes; `body` as stored, compressed if it was."""

CONSUMEQUEUE = pa.schema([
    ("store", pa.string()), ("topic", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()),
    ("phy_offset", pa.int64()), ("size", pa.int32()), ("tags_code", pa.int64()), ("file", pa.string()),
])
"""One row a unit. `tags_code` as stored: a hash of the tags, a deliver time (ms), or the address of an ext unit."""

INDEX = pa.schema([
    ("store", pa.string()), ("file", pa.string()), ("number", pa.int32()), ("key_hash", pa.int32()),
    ("phy_offset", pa.int64()), ("store_timestamp", pa.int64()), ("previous", pa.int32()),
])
"""One row a unit. `store_timestamp` (ms) is the begin time of its file and the whole seconds that it counts from it."""

FINDINGS = pa.schema([(name, pa.int64() if name == "offset" else pa.string()) for name in FINDING_COLUMNS])
"""One row a finding. `facts` is JSON."""

_LEAST, _MOST = -(1 << 63), 1 << 63
_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": compute.equal, "GreaterThan": compute.greater, "GreaterThanOrEqual": compute.greater_equal,
    "LessThan": compute.less, "LessThanOrEqual": compute.less_equal,
    "In": lambda column, value: compute.is_in(column, pa.array(value)),
}
_SPANS: dict[str, Callable[[Any], tuple[int, int]]] = {
    "EqualTo": lambda value: (value, value), "In": lambda value: (min(value), max(value)),
    "GreaterThan": lambda value: (value + 1, _MOST), "GreaterThanOrEqual": lambda value: (value, _MOST),
    "LessThan": lambda value: (_LEAST, value - 1), "LessThanOrEqual": lambda value: (_LEAST, value),
}


class Filters(Struct, frozen=True):
    """What every row has to satisfy: (column, name of Spark's filter, value), all of them."""

    tests: list[tuple[str, str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, filters: Iterable[Any], schema: pa.Schema) -> Filters:
        """Those of Spark's filters that compare a column of text or integers with values of its kind."""
        found = []
        for item in filters:
            kind, path = type(item).__name__, list(getattr(item, "attribute", ()))
            if kind not in _TESTS or len(path) != 1 or path[0] not in schema.names:
                continue
            column = schema.field(path[0]).type
            wanted = str if column == pa.string() else int if pa.types.is_integer(column) else None
            values = item.value if kind == "In" else (item.value,)
            if wanted is not None and values and all(type(value) is wanted for value in values):
                found.append((path[0], kind, list(values) if kind == "In" else item.value))
        return cls(found)

    def allow(self, **values: Any) -> bool:
        """Whether rows with these values may satisfy all tests."""
        return all(_TESTS[kind](pa.array([values[name]]), value)[0].as_py()
                   for name, kind, value in self.tests if name in values)

    def meet(self, name: str, first: int, last: int) -> bool:
        """Whether a value from `first` to `last` may satisfy the tests of an integer column."""
        spans = [_SPANS[kind](value) for column, kind, value in self.tests if column == name]
        return max([first, *(low for low, _ in spans)]) <= min([last, *(high for _, high in spans)])

    def chosen(self, size: int, column: Callable[[str], Any], names: Iterable[str]) -> Rows | slice:
        """Which of `size` rows satisfy the tests of the columns `names`, which `column` returns."""
        mask = None
        for name, kind, value in self.tests:
            if name in names:
                one = _TESTS[kind](column(name), value)
                mask = one if mask is None else compute.and_(mask, one)
        return slice(0, size) if mask is None else np.flatnonzero(mask.to_numpy(zero_copy_only=False))


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


class QueuesPart(Struct, frozen=True):
    """Some consume queues, (topic, queue id), below a folder; `file_size` in bytes."""

    root: Path
    options: StoreOptions
    file_size: int
    queues: list[tuple[str, int]]


class IndexPart(Struct, frozen=True):
    """One index file."""

    path: Path
    geometry: IndexGeometry


def log_parts(store: Store, filters: Filters) -> list[LogPart]:
    """A part for each mapped file that may hold a record that is asked for."""
    queue, _ = rightly_placed(live_copies(store.commitlog))
    return [LogPart(file, queue.file_size) for file in queue.files
            if filters.meet("phy_offset", file.file_from_offset, file.file_from_offset + queue.file_size - 1)]


def queue_parts(store: Store, filters: Filters) -> list[QueuesPart]:
    """Parts of up to some hundred queues that are asked for."""
    queues = [(folder.topic, folder.queue_id) for folder in store.queue_folders]
    names = {topic for topic in {topic for topic, _ in queues} if filters.allow(topic=topic)}
    queues = [(topic, number) for topic, number in queues
              if topic in names and filters.meet("queue_id", number, number)]
    each = min(_QUEUES, -(-len(queues) // _QUEUE_PARTS))
    return [QueuesPart(store.root, store.options, store.queue_file_size, queues[first : first + each])
            for first in range(0, len(queues), max(1, each))]


def store_parts(store: Store, filters: Filters) -> list[str]:
    """The store as one part."""
    return [str(store.root)]


def index_parts(store: Store, filters: Filters) -> list[IndexPart]:
    """A part for each index file; none when nothing tells their geometry."""
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    return [] if geometry is None else [IndexPart(file.path, geometry) for file in listing.files]


def commitlog_batches(part: LogPart, columns: Sequence[str], filters: Filters) -> Iterator[pa.RecordBatch]:
    """The intact records of a file, and whole ones whose checksum fails, with `crc_ok` false.

    `ReadFailure` when a range cannot be read: an answer that leaves it out would look complete.
    """
    scan = scan_file(part.mapped_file, part.file_size)
    _raise_first(scan.unreadable)
    schema = pa.schema([COMMITLOG.field(name) for name in columns])
    decoded = [name for name in columns if name in _DECODED]
    with FileReader(part.mapped_file.path) as reader:
        for split in scan.splits:
            for rows in _slices(_asked(scan, split.records, filters), decoded):
                records = _read(reader, part.mapped_file, rows) if decoded else []
                yield pa.record_batch([_column(name, scan, rows, records) for name in columns], schema=schema)
        broken = list(_broken(reader, scan))
    if broken:
        values = [[_plain(name, record, scan) for record in broken] for name in columns]
        yield pa.record_batch(
            [pa.array(column, schema.field(i).type) for i, column in enumerate(values)], schema=schema
        )


def _asked(scan: FileScan, rows: Rows, filters: Filters) -> Rows:
    """The rows that satisfy what can be asked without their records."""
    known = [name for name in COMMITLOG.names if name not in _DECODED and name != "store"]
    return rows[filters.chosen(rows.size, lambda name: _column(name, scan, rows, ()), known)]


def consumequeue_batches(part: QueuesPart, columns: Sequence[str], filters: Filters) -> Iterator[pa.RecordBatch]:
    """The units of queues, up to the first cell without one; pre-blanks are left out."""
    store = Store(part.root, part.options)
    store.queue_file_size = part.file_size
    for topic, queue_id in part.queues:
        yield from _units(QueueFiles(store, topic, queue_id), filters)


def _units(files: QueueFiles, filters: Filters) -> Iterator[pa.RecordBatch]:
    for stretch in files.stretches():
        _raise_first(files.failures)
        invalid = np.flatnonzero(stretch.size <= 0)
        used = int(invalid[0]) if invalid.size else stretch.held
        cells = np.flatnonzero(stretch.size[:used] != PRE_BLANK.size)
        for at in range(0, cells.size, _UNITS):
            chosen = cells[at : at + _UNITS]
            names = [stretch.place(int(cell))[0].name for cell in (chosen[0], chosen[-1])]
            if names[0] == names[1]:
                file = _repeat(names[0], chosen.size)
            else:
                file = pa.array([stretch.place(cell)[0].name for cell in chosen.tolist()], pa.string())
            yield _matching(pa.record_batch([
                _repeat(files.topic, chosen.size), pa.array(np.full(chosen.size, files.queue_id, np.int32)),
                pa.array(stretch.first_index + chosen), pa.array(stretch.phy_offset[chosen]),
                pa.array(stretch.size[chosen]), pa.array(stretch.tags_code[chosen]), file,
            ], schema=_without_store(CONSUMEQUEUE)), filters)
        if used < stretch.cells:
            return


def index_batches(part: IndexPart, columns: Sequence[str], filters: Filters) -> Iterator[pa.RecordBatch]:
    """The units of an index file, as many as its header counts."""
    image = load_words(part.path, part.geometry)
    _raise_first(image.failures)
    count = min(max(image.header.index_count, 1), part.geometry.entries)
    for first in range(1, count, _UNITS):
        units = image.units[first : min(first + _UNITS, count)].astype(np.int64)
        offsets = (units[:, 1] << 32) | (units[:, 2] & 0xFFFFFFFF)
        yield _matching(pa.record_batch([
            _repeat(part.path.name, len(units)), pa.array(np.arange(first, first + len(units), dtype=np.int32)),
            pa.array(units[:, 0].astype(np.int32)), pa.array(offsets),
            pa.array(image.header.begin_timestamp + 1000 * units[:, 3]), pa.array(units[:, 4].astype(np.int32)),
        ], schema=_without_store(INDEX)), filters)


def findings_batches(part: str, columns: Sequence[str], filters: Filters) -> Iterator[pa.RecordBatch]:
    """The findings of a store. `Refusal` where it cannot be verified."""
    yield from pa.Table.from_pylist(findings_of(part), FINDINGS).to_batches()


def _without_store(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index("store"))


def _matching(batch: pa.RecordBatch, filters: Filters) -> pa.RecordBatch:
    chosen = filters.chosen(batch.num_rows, batch.column, batch.schema.names)
    return batch if isinstance(chosen, slice) else batch.take(pa.array(chosen))


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
