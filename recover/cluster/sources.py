"""The parts of stores as Spark data sources: rocketmq-commitlog, -consumequeue, -index and -findings.

If mqtool is installed in Spark's Python, Spark finds them by itself: the modules `pyspark_rocketmq_*` next to this
package export them. `register` does the same for a session that runs from a checkout.

>>> from recover.cluster.sources import register            # doctest: +SKIP
>>> register(spark)                                       # doctest: +SKIP
>>> spark.read.format("rocketmq-commitlog").load("/data/store").createOrReplaceTempView("log")  # doctest: +SKIP
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
except ModuleNotFoundError as missing:
    raise ImportError("the data sources need pyspark 4 or later: earlier ones know none in Python") from missing

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ModuleNotFoundError:  # before 4.2
    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing: such a Spark reads all that there is as one batch."""

from recover.cluster import source_rows
from recover.cluster.fleet import named_stores
from recover.cluster.jobs import TaskReads, Views, enter, pack_code
from recover.cluster.source_rows import Filters
from recover.findings.code import Refusal, UsageRefusal
from recover.log.file_scan import SplitRange
from recover.log.files import live_copies
from recover.log.split_scan import SPLIT_SIZE
from recover.look.query import nearest
from recover.store.derived_files import QueueFiles
from recover.store.reading import FileReads, recorded
from recover.store.source import is_remote, open_file, remote_root
from recover.store.store import Store, StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TYPES = {
    pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary",
    pa.map_(pa.string(), pa.string()): "map<string,string>", source_rows.TIME: "timestamp",
}

_TRUE = ("true", "1", "yes")
_OPTIONS = ("path", "stores", "columns", "where", "body", "splitSize", "commitlog")
_OF_TABLES = ("provider", "owner", "location")
"""Options with which Spark asks for the schema of a table that it is about to create."""
_SAMPLE = 64 << 10
_ALIGNED = 1 << 20


def spark_type(kind: pa.DataType) -> str:
    """Return Spark's name for the type of a column."""
    return _TYPES[kind]


@dataclass
class _Part(InputPartition):
    """The partition of one task."""

    value: Any

    def __repr__(self) -> str:
        """Return the store and the part of it, as Spark logs them."""
        store, part, *_ = self.value
        return f"{store} {part}"


def sample_of(store: Store, part: Any) -> dict[str, FileReads]:
    """Return what this machine reads of the first file of a part; empty if it cannot be read."""
    if isinstance(part, SplitRange):
        path, start = part.mapped_file.path, part.start
    elif isinstance(part, source_rows.IndexPart):
        path, start = part.path, 0
    else:
        files = (QueueFiles(store, *part.queues[0]).mapped_files if isinstance(part, source_rows.QueuesPart)
                 else live_copies(store.commitlog)).files
        if not files:
            return {}
        path, start = files[0].path, 0
    # if it cannot be read here, the task fails on it, too, with a better message
    with recorded() as read, suppress(OSError), open_file(path) as reader:
        reader.read(start, _SAMPLE)
    return read


Parts = Callable[[Store, Filters, int], Iterable[Any]]
Batches = Callable[[Any, "list[str]", Filters], Iterator[pa.RecordBatch]]


class _Source(DataSource):
    """`title`: the name for `format`. `rows`: all columns. `parts` returns the parts of a store (a log's are splits of
    so many bytes), `batches` the rows of a part. `asked`: the columns that the option `where` may test. `known_options`
    in Spark's spelling; Spark ignores their case.

    Spark's filter pushdown is not implemented: Spark keeps the filters of one scan with the table, for all scans of it,
    and a query without a filter would get the rows of the one before (seen with 4.3.0).
    """

    title: ClassVar[str]
    rows: ClassVar[pa.Schema]
    asked: ClassVar[Collection[str]]
    known_options: ClassVar[tuple[str, ...]] = _OPTIONS
    parts: ClassVar[Parts]
    batches: ClassVar[Batches]

    @classmethod
    def name(cls) -> str:
        """See `DataSource`."""
        return cls.title

    @property
    def columns(self) -> list[str]:
        """The columns named by the option `columns`, else all; bodies only with the option `body`."""
        named = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        wants_body = self.options.get("body", "").lower() in _TRUE
        return self.known(named) or [name for name in self.rows.names if name != "body" or wants_body]

    def known(self, names: list[str]) -> list[str]:
        """Return the names; `UsageRefusal` (16) if there is no such column."""
        unknown = [name for name in names if name not in self.rows.names]
        if unknown:
            raise UsageRefusal(f"{self.name()} has no column {unknown[0]}", f"It has {', '.join(self.rows.names)}.")
        return names

    def schema(self) -> str:
        """Return the columns in Spark's notation."""
        self.check_options()
        return ", ".join(f"`{name}` {spark_type(self.rows.field(name).type)}" for name in self.columns)

    def check_options(self) -> None:
        """Raise `UsageRefusal` (16) for an option that there is not, and for a table, which Spark keeps without its
        options."""
        known = {name.lower(): name for name in self.known_options}
        if any(name in self.options for name in _OF_TABLES):
            raise UsageRefusal(f"CREATE TABLE: Spark keeps no options of a table of {self.name()}, which could not be "
                               f"read; use {self.view}", "A view names the files in place; it ends with the session.")
        for name in self.options:
            if name.lower() not in known:
                near = nearest(name, self.known_options)
                raise UsageRefusal(f"{self.name()} has no option {name}{near}",
                                   f"It has {', '.join(self.known_options)}.")

    @property
    def view(self) -> str:
        """The SQL that makes a store readable by name."""
        return f"CREATE TEMPORARY VIEW v USING `{self.name()}` OPTIONS (path '/data/store')"

    def stores(self) -> list[str]:
        """Return the stores at `path` (a place, a pattern, several between commas) and in the file of the option
        `stores`."""
        path, file = self.options.get("path") or "", self.options.get("stores")
        if not path and not file:
            raise UsageRefusal(f"{self.name()} needs a store: .load('/data/store'), or in SQL {self.view}",
                               "A table that CREATE TABLE made has lost its path.")
        words = [path] if os.path.exists(path) else [word.strip() for word in path.split(",") if word.strip()]
        return named_stores(words, Path(file) if file else None)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return a reader of the columns of `schema`, in its types."""
        return _Reader(**self.task(schema))

    def task(self, schema: Any) -> dict[str, Any]:
        """Return the arguments of a reader."""
        self.check_options()
        self.known(list(schema.names))
        kinds = {name: kind for kind, name in _TYPES.items()}
        wanted = []
        for column in schema.fields:
            own, given = self.rows.field(column.name).type, column.dataType.simpleString()
            kind = kinds.get(given)
            if kind is None or (kind != own and not (pa.types.is_integer(kind) and pa.types.is_integer(own))):
                raise UsageRefusal(f"{self.name()}: the column {column.name} is {spark_type(own)}, not {given}",
                                   "Cast it in the query; store_time and born_time are timestamps.")
            wanted.append((column.name, kind))
        folders = tuple(Path(name) for name in self.options.get("commitlog", "").split(",") if name)
        size = self.options.get("splitSize", str(SPLIT_SIZE))
        if not size.isdecimal() or not int(size):
            raise UsageRefusal(f"splitSize is a number of bytes, not {size}", f"{SPLIT_SIZE} if it is not given.")
        return {"source": type(self), "stores": self.stores(), "options": StoreOptions(commitlog=folders),
                "wanted": pa.schema(wanted), "split_size": int(size),
                "filters": Filters.of(self.options.get("where", ""), self.rows, self.asked)}


@dataclass
class _Rows:
    """Base of the readers: which rows of which stores, the columns that are `wanted`, and the split size of a log."""

    source: type[_Source]
    stores: list[str]
    options: StoreOptions
    wanted: pa.Schema
    split_size: int
    filters: Filters

    def open(self, place: str) -> Store:
        """Open one of the stores."""
        return Store.open(remote_root(place) if is_remote(place) else Path(place), self.options)

    def shares(self, store: Store, place: str, parts: Iterable[Any], filters: Filters) -> list[InputPartition]:
        """Return the partitions of some parts of one store."""
        began, compares = time.time(), not is_remote(place)
        return [_Part((place, part, filters, began, sample_of(store, part) if compares else {})) for part in parts]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition; Spark passes None if there is none. `Refusal` (8) on a host with other
        files."""
        enter()
        if not isinstance(partition, _Part):
            return
        place, part, filters, began, of_driver = partition.value
        Views(began).take(TaskReads(of_driver))
        names = [name for name in self.wanted.names if name != "store"]
        for batch in self.source.batches(part, names, filters):
            columns = {name: batch.column(name) for name in names}
            columns["store"] = pa.repeat(pa.scalar(place, pa.string()), batch.num_rows)
            arrays = [columns[field.name] for field in self.wanted]
            yield pa.record_batch([
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(arrays, self.wanted, strict=True)
            ], schema=self.wanted)


class _Reader(_Rows, DataSourceReader):
    """Reader of a batch query."""

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of all stores."""
        found = []
        for place in self.stores:
            if self.filters.allow(store=place):
                store = self.open(place)
                parts = self.source.parts(store, self.filters, self.split_size)
                found += self.shares(store, place, parts, self.filters)
        return found


@dataclass
class _StreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query; its offset is the physical offset up to which each store was read.

    1. The end of a log is followed from the last proven border of a record, so an idle poll reads a MiB.
    2. A batch of `most` bytes ends at a multiple of `_ALIGNED`, any other at the end of a record: so a task that begins
       elsewhere than at such a multiple begins at a border, and reads nothing before it.
    """

    begin: str = "earliest"
    most: int | None = None
    logs: dict[str, source_rows.GrowingLog] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] | None = None
    is_bounded: bool = False

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where the option `startingOffsets` lets each log begin. `Refusal` (8) if that has expired."""
        return {place: self._begin(place) for place in self.stores}

    def _begin(self, place: str) -> int:
        store = self.open(place)
        first = source_rows.log_start(store)
        if self.begin == "earliest":
            return first
        end = self.logs.setdefault(place, source_rows.GrowingLog()).end(store)
        if self.begin == "latest":
            return end
        since, at = (None, int(self.begin)) if self.begin.isdecimal() else (_milliseconds(self.begin), 0)
        if since is None and not first <= at <= end:
            raise Refusal(f"{place}: the log goes from {first} to {end}, and startingOffsets is {at}",
                          "Files before the first offset have expired.")
        found = source_rows.first_record(store, since=since, at=at)
        return end if found is None else found

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return where the next batch ends; Spark 4.0 and 4.1 pass neither start nor limit."""
        if not self.is_bounded:
            self._look()
        begun = start or self.last or self.initialOffset()
        if self.most is None or (limit is not None and not hasattr(limit, "max_bytes")):
            self.last = dict(self.ends)
        else:
            self.last = {place: _within(begun.get(place, end), end, self.most // len(self.ends))
                         for place, end in self.ends.items()}
        return self.last

    def _look(self) -> None:
        self.ends = {place: self.logs.setdefault(place, source_rows.GrowingLog()).end(self.open(place))
                     for place in self.stores}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return the option `maxBytesPerTrigger`."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

        return ReadAllAvailable() if self.most is None else ReadMaxBytes(self.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read up to the present end of each log, in batches."""
        self._look()
        self.is_bounded = True

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """Return the end of each log as last seen: `latestOffset` of the query's progress."""
        return self.ends or None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the partitions between two offsets. `Refusal` (8) if a log lost what was not read yet."""
        shares: list[InputPartition] = []
        for place, stop in end.items():
            store = self.open(place)
            first, least = start.get(place, 0), source_rows.log_start(store)
            if stop < first or (least > first < stop and place in start):
                raise Refusal(f"{place} was read up to {first}, and its log now goes from {least} to {stop}",
                              "Messages are gone, or numbered anew: begin with another checkpoint.")
            if first < stop and self.filters.allow(store=place):
                tests = [*self.filters.tests, ("phy_offset", ">=", first), ("phy_offset", "<", stop)]
                parts = source_rows.new_parts(store, first, stop, self.split_size, at_border=first % _ALIGNED != 0)
                shares += self.shares(store, place, parts, Filters(tests))
        return shares


def _within(first: int, end: int, most: int) -> int:
    """Return the end of a batch of at most some bytes, but at least one multiple of `_ALIGNED`."""
    stop = max((first + most) // _ALIGNED, first // _ALIGNED + 1) * _ALIGNED
    return min(stop, end)


def _milliseconds(text: str) -> int:
    time = datetime.fromisoformat(text)
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


class CommitlogSource(_Source):
    """One row a message, a task a split of a mapped file."""

    title = "rocketmq-commitlog"
    rows, parts, batches = source_rows.COMMITLOG, source_rows.log_parts, source_rows.commitlog_batches
    asked = frozenset(("store", *source_rows.SCANNED))
    known_options = (*_OPTIONS, "startingOffsets", "startingOffset", "maxBytesPerTrigger")

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of what is appended, in the columns of `schema`."""
        begin = self.options.get("startingOffsets", self.options.get("startingOffset", "earliest"))
        if begin not in ("earliest", "latest") and not begin.isdecimal():
            try:
                _milliseconds(begin)
            except ValueError:
                raise UsageRefusal(f"startingOffsets is earliest, latest, a physical offset or a time, not {begin}",
                                   "Times are ISO 8601: 2026-11-21T02:00:00, in UTC without a zone.") from None
        most = self.options.get("maxBytesPerTrigger")
        if most is not None and not (most.isdecimal() and int(most)):
            raise UsageRefusal(f"maxBytesPerTrigger is a number of bytes, not {most}", "All there is if not given.")
        return _StreamReader(**self.task(schema), begin=begin, most=None if most is None else int(most))


class ConsumeQueueSource(_Source):
    """One row a unit of a consume queue, a task some hundred queues."""

    title = "rocketmq-consumequeue"
    rows, parts, batches = source_rows.CONSUMEQUEUE, source_rows.queue_parts, source_rows.consumequeue_batches
    asked = frozenset(source_rows.CONSUMEQUEUE.names)


class IndexSource(_Source):
    """One row a unit of an index file, a task a file."""

    title = "rocketmq-index"
    rows, parts, batches = source_rows.INDEX, source_rows.index_parts, source_rows.index_batches
    asked = frozenset(source_rows.INDEX.names)


class FindingsSource(_Source):
    """One row a finding of `mqtool verify`, a task a store."""

    title = "rocketmq-findings"
    rows, parts, batches = source_rows.FINDINGS, source_rows.store_parts, source_rows.findings_batches
    asked = frozenset(source_rows.FINDINGS.names)


SOURCES = (CommitlogSource, ConsumeQueueSource, IndexSource, FindingsSource)


def register(spark: SparkSession) -> None:
    """Register the four formats with a session that did not find them by itself.

    To a session of Spark Connect our code is sent, as its server may not have it.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import is_remote

    if is_remote():
        with TemporaryDirectory() as folder:
            spark.addArtifacts(pack_code(Path(folder)), pyfile=True)

    for source in SOURCES:
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
