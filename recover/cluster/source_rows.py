"""Queue units, index units and findings as Arrow batches: what data sources hand to Spark. No pyspark here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from pyarrow import compute

from formats.consumequeue import PRE_BLANK
from formats.index import IndexGeometry
from recover.cluster.fleet import FINDING_COLUMNS, findings_of
from recover.derived.index_files import index_geometry, list_index_files, load_words
from recover.findings.refusal import UsageRefusal
from recover.store.columns import Rows
from recover.store.derived_files import QueueFiles
from recover.store.reader import ReadFailure
from recover.store.source import url_of
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
"""One row a unit. `store_timestamp` (ms) is the begin time of its file and the whole seconds that it counts from it."""

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
    """What every row has to satisfy: (column, =, <, <=, >, >= or in, value), all of them."""

    tests: list[tuple[str, str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, schema: pa.Schema, columns: Collection[str]) -> Filters:
        """The tests that a text names: `topic = 'Orders' and phy_offset >= 1000 and queue_id in (1, 2)`.

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

    def asks(self, name: str) -> bool:
        """Whether a test is of this column."""
        return any(column == name for column, _, _ in self.tests)

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
        return slice(0, size) if mask is None else np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))


def _value(name: str, text: str, kind: pa.DataType) -> Any:
    """A value as a text writes it, for a column of that type: text and times between quotes, times as ISO 8601."""
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
    """Parts of up to some hundred queues that are asked for."""
    queues = [(folder.topic, folder.queue_id) for folder in store.queue_folders]
    names = {topic for topic in {topic for topic, _ in queues} if filters.allow(topic=topic)}
    queues = [(topic, number) for topic, number in queues
              if topic in names and filters.meet("queue_id", number, number)]
    each = min(_QUEUES, -(-len(queues) // _QUEUE_PARTS))
    return [QueuesPart(store.root, store.options, store.queue_file_size, queues[first : first + each])
            for first in range(0, len(queues), max(1, each))]


def store_parts(store: Store, filters: Filters, split_size: int) -> list[str]:
    """The store as one part."""
    return [url_of(store.root) or str(store.root)]


def index_parts(store: Store, filters: Filters, split_size: int) -> list[IndexPart]:
    """A part for each index file; none when nothing tells their geometry."""
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    return [] if geometry is None else [IndexPart(file.path, geometry) for file in listing.files]


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
