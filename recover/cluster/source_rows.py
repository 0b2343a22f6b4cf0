"""Messages, units of queues and index, and findings as Arrow batches, for the Spark data sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field, structs
from pyarrow import compute

from formats import properties as props
from formats.basics import I8, I16, FormatError, java_string
from formats.consumequeue import PRE_BLANK
from formats.index import IndexGeometry
from formats.record import HEAD, HEADS, MAGIC_V2, decode, host_text
from formats.record.layout import PROPERTIES_LENGTH_SIZE, TOPIC_LENGTH_V1_SIZE, TOPIC_LENGTH_V2_SIZE
from formats.record.rows import RECORD, row_of
from formats.sysflag import HOSTS_V6
from recover.cluster.fleet import FINDING_COLUMNS, findings_of
from recover.derived.index_files import index_geometry, list_index_files, load_words
from recover.findings.code import UsageRefusal
from recover.log.file_scan import WHOLE, FileScan, SplitRange, scan_split, wire_at
from recover.log.files import live_copies, place_misnamed_files
from recover.log.split_scan import REACH, scan_alone, splits_of
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.derived_files import QueueFiles
from recover.store.mapped_files import MappedFile
from recover.store.memo import Numbers
from recover.store.reader import FileReader, ReadFailure
from recover.store.source import open_file, url_of
from recover.store.store import Store, StoreOptions

_UNITS = 1 << 16
_QUEUES, _QUEUE_PARTS = 512, 64

TIME = pa.timestamp("us", tz="UTC")
CONSUMEQUEUE = pa.schema([
    ("store", pa.string()), ("topic", pa.string()), ("queue_id", pa.int32()), ("queue_offset", pa.int64()),
    ("phy_offset", pa.int64()), ("size", pa.int32()), ("tags_code", pa.int64()), ("file", pa.string()),
])
"""One row a unit. `tags_code` as stored: a hash of the tags, a deliver time (ms), or the address of an ext unit."""

INDEX = pa.schema([
    ("store", pa.string()), ("file", pa.string()), ("number", pa.int32()), ("key_hash", pa.int32()),
    ("phy_offset", pa.int64()), ("store_timestamp", pa.int64()), ("previous", pa.int32()),
])
"""One row a unit. `store_timestamp` (ms): begin time of the file plus the unit's time difference, in whole seconds."""

FINDINGS = pa.schema([(name, pa.int64() if name == "offset" else pa.string()) for name in FINDING_COLUMNS])
"""One row a finding. `facts` is JSON."""

_LEAST, _MOST = -(1 << 63), 1 << 63
_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "=": compute.equal, ">": compute.greater, ">=": compute.greater_equal, "<": compute.less, "<=": compute.less_equal,
    "in": lambda column, value: compute.is_in(column, pa.array(value, column.type)),
}
_SPANS: dict[str, Callable[[Any], tuple[int, int]]] = {
    "=": lambda value: (value, value), "in": lambda value: (min(value), max(value)),
    ">": lambda value: (value + 1, _MOST), ">=": lambda value: (value, _MOST),
    "<": lambda value: (_LEAST, value - 1), "<=": lambda value: (_LEAST, value),
}
_VALUE = r"'(?:[^']|'')*'|[-+]?\w+"
_TEST = re.compile(
    rf"\s*(\w+)\s*(<=|>=|=|<|>|in\b)\s*((?:{_VALUE})|\(\s*(?:{_VALUE})(?:\s*,\s*(?:{_VALUE}))*\s*\))\s*\band\b",
    re.IGNORECASE)


class Filters(Struct, frozen=True):
    """Conditions on rows, all of which must hold: (column, =, <, <=, >, >= or in, value)."""

    tests: list[tuple[str, str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, schema: pa.Schema, columns: Collection[str]) -> Filters:
        """Parse tests: `topic = 'Orders' and phy_offset >= 1000 and queue_id in (1, 2)`.

        `UsageRefusal` (16) for any other text, and for a column that is not among `columns`.
        """
        found, at, whole = [], 0, f"{text} and" if text.strip() else ""
        while at < len(whole):
            test = _TEST.match(whole, at)
            if test is None:
                raise UsageRefusal(f"where: {whole[at:-4].strip() or 'nothing'} is not a test of a column",
                                   "For instance topic = 'Orders' and phy_offset >= 1000 and queue_id in (1, 2).")
            name, kind, given = test[1], test[2].lower(), re.findall(_VALUE, test[3])
            if name not in columns:
                raise UsageRefusal(f"where: {name} cannot be asked for", f"These can: {', '.join(sorted(columns))}.")
            if (kind == "in") != test[3].startswith("("):
                raise UsageRefusal(f"where: {test[0][:-4].strip()} is not a test of a column",
                                   "Write in (1, 2), or = 1.")
            values = [_value(name, one, schema.field(name).type) for one in given]
            found.append((name, kind, values if kind == "in" else values[0]))
            at = test.end()
        return cls(found)

    def allow(self, **values: Any) -> bool:
        """Whether rows with these values can satisfy all tests."""
        return all(_TESTS[kind](pa.array([values[name]]), value)[0].as_py()
                   for name, kind, value in self.tests if name in values)

    def meet(self, name: str, first: int, last: int) -> bool:
        """Whether a value from `first` to `last` can satisfy the tests on an integer column."""
        low, high = self.span(name)
        return max(first, low) <= min(last, high)

    def span(self, name: str) -> tuple[int, int]:
        """Return the lowest and highest value that the tests on an integer column allow."""
        spans = [_SPANS[kind](value) for column, kind, value in self.tests if column == name]
        return max([_LEAST, *(low for low, _ in spans)]), min([_MOST, *(high for _, high in spans)])

    def chosen(self, size: int, column: Callable[[str], Any], names: Iterable[str]) -> Rows | slice:
        """Return which of `size` rows satisfy the tests on the columns `names`, which `column` returns."""
        mask = None
        for name, kind, value in self.tests:
            if name in names:
                one = _TESTS[kind](column(name), value)
                mask = one if mask is None else compute.and_(mask, one)
        return slice(0, size) if mask is None else np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))


def _value(name: str, text: str, kind: pa.DataType) -> Any:
    """Return the value of a literal for a column of that type: text and times in quotes, times as ISO 8601."""
    quoted = text[1:-1].replace("''", "'") if text.startswith("'") else None
    try:
        if quoted is None:
            return {"true": True, "false": False}[text.lower()] if kind == pa.bool_() else int(text)
        if kind == TIME:
            time = datetime.fromisoformat(quoted)
            return time if time.tzinfo else time.replace(tzinfo=UTC)
        if kind == pa.string():
            return quoted
    except (ValueError, KeyError):
        pass
    raise UsageRefusal(f"where: {text} is not a value of {name}, which is {kind}",
                       "Text and times stand between quotes: '2026-11-21T02:00:00'.")


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


def queue_parts(store: Store, filters: Filters, split_size: int) -> list[QueuesPart]:
    """Return parts of up to some hundred queues that match the filters."""
    queues = [(folder.topic, folder.queue_id) for folder in store.queue_folders]
    names = {topic for topic in {topic for topic, _ in queues} if filters.allow(topic=topic)}
    queues = [(topic, number) for topic, number in queues
              if topic in names and filters.meet("queue_id", number, number)]
    each = min(_QUEUES, -(-len(queues) // _QUEUE_PARTS))
    return [QueuesPart(store.root, store.options, store.queue_file_size, queues[first : first + each])
            for first in range(0, len(queues), max(1, each))]


def store_parts(store: Store, filters: Filters, split_size: int) -> list[str]:
    """Return the store as one part."""
    return [url_of(store.root) or str(store.root)]


def index_parts(store: Store, filters: Filters, split_size: int) -> list[IndexPart]:
    """Return a part for each index file; none if their geometry is unknown."""
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    return [] if geometry is None else [IndexPart(file.path, geometry) for file in listing.files]


def consumequeue_batches(part: QueuesPart, columns: Sequence[str], filters: Filters) -> Iterator[pa.RecordBatch]:
    """Yield the units of queues, up to the first cell without one; pre-blanks are left out."""
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
    """Yield the units of an index file, as many as its header counts."""
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
    """Yield the findings of a store. `Refusal` if it cannot be verified."""
    for batch in pa.Table.from_pylist(findings_of(part), FINDINGS).to_batches():
        yield _matching(batch, filters)


def _without_store(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index("store"))


def _matching(batch: pa.RecordBatch, filters: Filters) -> pa.RecordBatch:
    chosen = filters.chosen(batch.num_rows, batch.column, batch.schema.names)
    return batch if isinstance(chosen, slice) else batch.take(pa.array(chosen))


def _raise_first(failures: Sequence[ReadFailure]) -> None:
    if failures:
        raise failures[0]


def _repeat(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


# --- Messages: the rows of a scan, and further columns read from the log's bytes on demand.


_ROWS = 1 << 16
_LEAST_CHUNK = 64 << 10
_BATCH_BYTES = 16 << 20

_FIRST_MS, _LAST_MS = -62_135_510_400_000, 253_402_214_400_000  # years 1 to 9999, except for a day at both ends
_TIMES = {"store_time": "store_timestamp", "born_time": "born_timestamp"}
_TEXTS = {"tags": props.TAGS, "keys": props.KEYS, "uniq_key": props.UNIQ_KEY}
_HOSTS = {"born_host": ("born_ip", "store_timestamp"), "store_host": ("store_ip", "reconsume_times")}
_KINDS = {
    **dict.fromkeys(("store", "topic", "file", *_HOSTS, *_TEXTS), pa.string()), **dict.fromkeys(_TIMES, TIME),
    "properties": pa.map_(pa.string(), pa.string()), "body": pa.binary(), "crc_ok": pa.bool_(),
    "body_size": pa.int32(), "version": pa.int32(), "size": pa.int32(),
}
COMMITLOG = pa.schema([
    (name, _KINDS[name] if name in _KINDS else HEAD.arrow_schema.field(name).type)
    for name in (
        "store", "topic", "queue_id", "queue_offset", "phy_offset", "size", "store_timestamp", "store_time",
        "born_timestamp", "born_time", "store_host", "born_host", "tags", "keys", "uniq_key", "properties", "sys_flag",
        "flag", "reconsume_times", "prepared_transaction_offset", "body_size", "body_crc", "crc_ok", "version", "file",
        "body",
    )
])
"""One row a message. Timestamps in ms since 1970, times the same as Spark's type (null outside the years 1 to 9999),
sizes and offsets in bytes; `body` as stored, compressed if it was."""

SCANNED = frozenset(("topic", "queue_id", "queue_offset", "phy_offset", "size", "store_timestamp", "store_time",
                      "sys_flag", "crc_ok", "file"))
"""Columns available from the rows of a scan; any other requires reading the log."""

_FLAGS = sorted(HEADS)
_OFFSETS = {field.name: np.array([HEADS[flag].offset(field.name) for flag in _FLAGS]) for field in HEAD.fields}
_HEAD_SIZES = np.array([HEADS[flag].size for flag in _FLAGS])


def log_parts(store: Store, filters: Filters, split_size: int) -> list[SplitRange]:
    """Return the splits of the log that may hold a matching record."""
    queue, _ = place_misnamed_files(live_copies(store.commitlog))
    low, high = filters.span("phy_offset")
    found = []
    for file in queue.files:
        base, parts = file.file_from_offset, splits_of(file, queue.file_size, split_size)
        for part in parts:
            start, stop = max(part.start, low - base), min(part.stop, high + 1 - base)
            if start < stop:
                # a file that is one split has no part that a record could reach into from before
                found.append(part if len(parts) == 1 else structs.replace(part, start=start, stop=stop))
    return found


class GrowingLog:
    """The end of a log, found again and again: each time from the last proven record on."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._searched: set[str] = set()

    def end(self, store: Store) -> int:
        """Return the physical offset of the end of the last intact record; of the log's start if there is none."""
        files, size = _log_files(store)
        if self._last is not None:
            # if the known record is gone, the log was truncated or replaced
            self._last = self._grown([file for file in files if file.file_from_offset + size > self._last[0]], size,
                                     *self._last)
        if self._last is None:
            self._last = _last_record(files, size)
            start = -1 if self._last is None else self._last[0]
            self._searched = {file.name for file in files if file.file_from_offset + size > start}
        if self._last is not None:
            return self._last[1]
        return files[0].file_from_offset if files else 0

    def _grown(self, files: Sequence[MappedFile], size: int, start: int, end: int) -> tuple[int, int] | None:
        found: tuple[int, int] | None = None
        for file in files:
            at = max(start - file.file_from_offset, 0)
            if found is None and _end_of_record(file, size, at) != end:
                return None
            found = self._walked(file, size, at, found or (start, end))
        return found

    def _walked(self, file: MappedFile, size: int, begin: int, last: tuple[int, int]) -> tuple[int, int]:
        """Return the last record from a position on, which is the border of one; `last` without one."""
        length, chunk, at = min(file.length, size), _LEAST_CHUNK, begin
        with open_file(file.path) as reader:
            while at < length:
                part = SplitRange(file, size, at, min(at + chunk, length))
                split, chunk = scan_split(part, at, reader=reader, with_keys=False), 4 * chunk
                last = _last_of(split.scan) or last
                if split.scan.gaps or split.open_gap is not None:
                    # zeros, a record that is being written, or damage. Brokers append, so one search of what is behind
                    # the last record of a file is enough
                    if file.name not in self._searched:
                        self._searched.add(file.name)
                        last = max(last, _last_record([file], size) or last)
                    return last
                if split.crossed is None:
                    break
                at = split.crossed
        return last


def _end_of_record(file: MappedFile, size: int, at: int) -> int | None:
    """Return the physical offset of the end of the intact record at a position of a file; None without one."""
    found = _last_of(scan_split(SplitRange(file, size, at, at + 1), at, with_keys=False).scan)
    return found[1] if found and found[0] == file.file_from_offset + at else None


def _last_of(scan: FileScan) -> tuple[int, int] | None:
    rows = next((split.records[-1] for split in reversed(scan.splits) if split.records.size), None)
    return None if rows is None else (int(rows["phy_offset"]), int(rows["phy_offset"] + rows["size"]))


def _last_record(files: Sequence[MappedFile], size: int) -> tuple[int, int] | None:
    """Return start and end of the last intact record of some files, which are searched backwards."""
    for part in reversed([part for file in files for part in splits_of(file, size)]):
        with open_file(part.mapped_file.path) as reader:
            if found := _last_of(scan_alone(part, reader, WHOLE)):
                return found
    return None


def log_start(store: Store) -> int:
    """Return the physical offset of the start of the log's first file."""
    files, _ = _log_files(store)
    return files[0].file_from_offset if files else 0


def first_record(store: Store, *, since: int | None = None, at: int = 0) -> int | None:
    """Return the physical offset of the first intact record that begins at `at` or later and was stored at `since` (ms)
    or later; None without one. Store times of log files ascend; those in a file need not."""
    files, size = _log_files(store)
    if since is not None:
        while len(files) > 1 and _first_time(files[1], size) < since:
            files = files[1:]
    for file in files:
        for part in splits_of(file, size):
            if file.file_from_offset + part.stop > at:
                with open_file(file.path) as reader:
                    for split in scan_alone(part, reader, REACH).splits:
                        fits = split.records["phy_offset"] >= at
                        fits &= since is None or split.records["store_timestamp"] >= since
                        if fits.any():
                            return int(split.records["phy_offset"][np.argmax(fits)])
    return None


def _first_time(file: MappedFile, size: int) -> int:
    scan = scan_split(SplitRange(file, size, 0, 1), with_keys=False).scan
    return min((int(split.records["store_timestamp"][0]) for split in scan.splits), default=_MOST)


def _log_files(store: Store) -> tuple[Sequence[MappedFile], int]:
    queue, _ = place_misnamed_files(live_copies(store.commitlog))
    return queue.files, queue.file_size


def new_parts(store: Store, first: int, stop: int, split_size: int, *, at_border: bool) -> list[SplitRange]:
    """Return the splits of the log between two physical offsets; `at_border`: the first is the border of a record."""
    found = []
    for part in log_parts(store, Filters([("phy_offset", ">=", first), ("phy_offset", "<", stop)]), split_size):
        base = part.mapped_file.file_from_offset
        part = structs.replace(part, stop=min(part.stop, stop - base))
        if at_border and part.start <= first - base:
            part = structs.replace(part, start=first - base, at_border=True)
        found.append(part)
    return found


def commitlog_batches(part: SplitRange, columns: Sequence[str], filters: Filters) -> Iterator[pa.RecordBatch]:
    """Yield the intact records that begin in a split, and whole ones with a failing checksum, with `crc_ok` false.

    `ReadFailure` if a range cannot be read, as a result without it would look complete. `FormatError` if a record is
    overwritten meanwhile.
    """
    schema = pa.schema([COMMITLOG.field(name) for name in columns])
    is_read = not SCANNED.issuperset(columns)
    with open_file(part.mapped_file.path) as reader:
        scan = scan_alone(part, reader, REACH)
        broken = _broken(scan, reader)
        for rows, is_sound in [*((split.records, True) for split in scan.splits), (broken, False)]:
            every = Messages(scan, rows, is_sound)
            for some in _slices(rows[filters.chosen(rows.size, every.column, SCANNED)], is_read):
                messages = Messages(scan, some, is_sound, reader)
                yield pa.record_batch([messages.column(name) for name in columns], schema=schema)


def _broken(scan: FileScan, reader: FileReader) -> Rows:
    """Return records that are whole except for a checksum or a field; their queues are added to those of the scan."""
    rows = [np.empty(0, dtype=RECORD)]
    for gap in scan.gaps:
        if "size" in gap.facts and gap.has_frame:
            content = reader.read(gap.start - scan.mapped_file.file_from_offset, gap.facts["size"])
            with suppress(FormatError):
                record = decode(content, check_crc=False)
                scan.queues.append((record.topic, record.queue_id))
                rows.append(row_of(record, len(scan.queues) - 1)[0])
    return np.concatenate(rows)


def _slices(rows: Rows, is_read: bool) -> Iterator[Rows]:
    """Yield the rows of one batch at a time; if they are read, none overlap, and none is far from the first."""
    starts = rows["phy_offset"]
    stops = starts + rows["size"]
    cuts = np.append(np.flatnonzero(stops[:-1] > starts[1:]) + 1, rows.size)
    at = 0
    while at < rows.size:
        end = at + _ROWS
        if is_read:
            far = max(at + 1, int(np.searchsorted(stops, starts[at] + _BATCH_BYTES, side="right")))
            end = min(end, far, int(cuts[np.searchsorted(cuts, at, side="right")]))
        yield rows[at:end]
        at = end


class Messages:
    """Rows of a scan and their columns; with a `reader`, also the columns that are read from the log."""

    def __init__(self, scan: FileScan, rows: Rows, is_sound: bool, reader: FileReader | None = None) -> None:
        self._scan, self._rows, self._is_sound, self._reader = scan, rows, is_sound, reader

    def column(self, name: str) -> pa.Array:
        """Return one column, in its type in `COMMITLOG`."""
        if name == "topic":
            names = np.array([topic_text(topic) for topic, _ in self._scan.queues], dtype=object)
            return pa.array(names[self._rows["queue"]], pa.string())
        if name == "queue_id":
            return pa.array(np.array([number for _, number in self._scan.queues], dtype=np.int32)[self._rows["queue"]])
        if name == "crc_ok":
            return pa.array(np.full(self._rows.size, self._is_sound))
        if name == "file":
            return pa.repeat(pa.scalar(self._scan.mapped_file.name, pa.string()), self._rows.size)
        if name in _TIMES:
            return _times(self._number(_TIMES[name]))
        if name in _HOSTS:
            return self._host(*_HOSTS[name])
        if name in _TEXTS:
            return self._property(_TEXTS[name].encode())
        if name == "properties":
            return self._map()
        if name == "body":
            return _pieces(self._content, *self._places[:2])
        if name == "version":
            return pa.array(np.where(self._number("magic") == MAGIC_V2, np.int32(2), np.int32(1)))
        return pa.array(self._number({"body_size": "body_length"}.get(name, name)))

    def _number(self, name: str) -> Numbers:
        if name in (RECORD.names or ()):
            return np.ascontiguousarray(self._rows[name])
        return wire_at(self._content, self._at + _OFFSETS[name][self._heads], HEAD.field(name).wire)

    @cached_property
    def _content(self) -> Numbers:
        """The bytes of the log from the first row to the end of the last."""
        assert self._reader is not None
        mapped_file, size = self._scan.mapped_file, int(self._at[-1]) + int(self._rows["size"][-1])
        content = self._reader.read(int(self._rows["phy_offset"][0]) - mapped_file.file_from_offset, size)
        self._check(np.array(len(content) == size))
        return np.frombuffer(content, dtype=np.uint8)

    @cached_property
    def _at(self) -> Numbers:
        return np.asarray(self._rows["phy_offset"] - self._rows["phy_offset"][0])

    @cached_property
    def _heads(self) -> Numbers:
        """The index in `_FLAGS` of each record's head."""
        return np.asarray(np.searchsorted(_FLAGS, self._rows["sys_flag"] & HOSTS_V6))

    @cached_property
    def _places(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Start and end in the content of each body, and of the properties."""
        stop = self._at + self._rows["size"]
        body = self._at + _HEAD_SIZES[self._heads]
        topic = body + self._number("body_length")
        self._check((body <= topic) & (topic <= stop - TOPIC_LENGTH_V1_SIZE - PROPERTIES_LENGTH_SIZE))
        is_long = self._number("magic") == MAGIC_V2
        end = topic + np.where(is_long, TOPIC_LENGTH_V2_SIZE + wire_at(self._content, topic, I16).astype(np.int64),
                               TOPIC_LENGTH_V1_SIZE + wire_at(self._content, topic, I8).astype(np.int64))
        self._check((topic < end) & (end <= stop - PROPERTIES_LENGTH_SIZE))
        self._check(end + PROPERTIES_LENGTH_SIZE + wire_at(self._content, end, I16) == stop)
        return body, topic, end + PROPERTIES_LENGTH_SIZE, stop

    def _check(self, holds: Numbers) -> None:
        if not holds.all():
            raise FormatError("bad-length-sum", 0, f"{self._scan.mapped_file.path} was written to while it was read")

    def _host(self, first: str, behind: str) -> pa.Array:
        begin, end = (self._at + _OFFSETS[name][self._heads] for name in (first, behind))
        hosts = _pieces(self._content, begin, end).dictionary_encode()
        texts = [host_text((host[:-4], int.from_bytes(host[-4:], "big", signed=True)))
                 for host in hosts.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(hosts.indices)

    @cached_property
    def _items(self) -> tuple[Numbers, pa.Array, pa.Array]:
        """Row, name and value of each property that a broker sees (`formats.properties.parse`)."""
        _, _, begin, end = self._places
        # include the byte before and make it a separator, so that one precedes each item
        texts = _pieces(self._content, begin - 1, end)
        bounds = np.frombuffer(texts.buffers()[1], dtype=np.int32)[: len(texts)]
        text = np.frombuffer(texts.buffers()[2], dtype=np.uint8)[: int((end - begin + 1).sum())].copy()
        text[bounds] = ord(props.PROPERTY_SEPARATOR)
        separators = np.flatnonzero(text == ord(props.PROPERTY_SEPARATOR))
        starts, stops = separators + 1, np.append(separators[1:], text.size)
        middles = np.append(np.flatnonzero(text == ord(props.NAME_VALUE_SEPARATOR)), text.size)
        middle = middles[np.searchsorted(middles, starts)]
        kept = np.flatnonzero((starts < middle) & (middle + 1 < stops))
        rows = np.searchsorted(bounds, separators[kept], side="right") - 1
        return (rows, _pieces(text, starts[kept], middle[kept]), _pieces(text, middle[kept] + 1, stops[kept]))

    def _property(self, wanted: bytes) -> pa.Array:
        rows, names, values = self._items
        found = np.flatnonzero(np.asarray(compute.equal(names, wanted)))
        place = np.full(self._rows.size, -1)
        place[rows[found]] = found  # the last one of a name wins
        return _texts(values.take(pa.array(place, mask=place < 0)))

    def _map(self) -> pa.Array:
        rows, names, values = self._items
        names = _texts(names)
        codes = names.dictionary_encode()
        _, last = np.unique((rows * max(1, len(codes.dictionary)) + np.asarray(codes.indices))[::-1], return_index=True)
        kept = np.sort(rows.size - 1 - last)
        bounds = np.searchsorted(rows[kept], np.arange(self._rows.size + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(bounds, names.take(pa.array(kept)), _texts(values).take(pa.array(kept)))


def _pieces(content: Numbers, begin: Numbers, end: Numbers) -> pa.Array:
    """Return the bytes (binary) from each `begin` to its `end`, ascending, without those in between."""
    bounds = np.column_stack((begin, end)).astype(np.int32).ravel()
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(content)]
    every = pa.Array.from_buffers(pa.binary(), max(0, bounds.size - 1), buffers)
    return every.take(pa.array(np.arange(0, bounds.size, 2)))


def _texts(values: pa.Array) -> pa.Array:
    """Return bytes as the strings that Java makes of them."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else java_string(value) for value in values.to_pylist()], pa.string())


def _times(milliseconds: Numbers) -> pa.Array:
    is_no_time = (milliseconds < _FIRST_MS) | (milliseconds > _LAST_MS)
    return pa.array(np.where(is_no_time, 0, milliseconds) * 1000, pa.int64(), mask=is_no_time).cast(TIME)
