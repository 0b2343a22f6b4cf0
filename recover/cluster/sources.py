"""The parts of stores as Spark data sources: rocketmq-commitlog, -consumequeue, -index and -findings.

Where mqtool is installed for Spark's Python, Spark finds them by itself: the modules `pyspark_rocketmq_*` beside this
package name them. `register` does the same for a session that runs out of a checkout.

>>> from recover.cluster.sources import register            # doctest: +SKIP
>>> register(spark)                                       # doctest: +SKIP
>>> spark.read.format("rocketmq-commitlog").load("/data/store").createOrReplaceTempView("log")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from recover.cluster import log_rows, source_rows
from recover.cluster.fleet import named_stores
from recover.cluster.jobs import enter
from recover.cluster.source_rows import Filters
from recover.findings.refusal import UsageRefusal
from recover.log.split_scan import SPLIT_SIZE
from recover.store.source import is_remote
from recover.store.store import Store, StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TYPES = {
    pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary",
    pa.map_(pa.string(), pa.string()): "map<string,string>", source_rows.TIME: "timestamp",
}

_TRUE = ("true", "1", "yes")
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def spark_type(kind: pa.DataType) -> str:
    """How Spark writes the type of a column."""
    return _TYPES[kind]


@dataclass
class _Part(InputPartition):
    """One task's share."""

    value: Any


Parts = Callable[[Store, Filters, int], Iterable[Any]]
Batches = Callable[[Any, "list[str]", Filters], Iterator[pa.RecordBatch]]


class _Source(DataSource):
    """`rows`: all columns. `parts` returns the shares of a store, of a log in splits of so many bytes; `batches` the
    rows of a share."""

    rows: ClassVar[pa.Schema]
    parts: ClassVar[Parts]
    batches: ClassVar[Batches]

    @property
    def columns(self) -> list[str]:
        """The columns asked for by the option `columns`, else all, bodies only with the option `body`."""
        named = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        wants_body = self.options.get("body", "").lower() in _TRUE
        return self.known(named) or [name for name in self.rows.names if name != "body" or wants_body]

    def known(self, names: list[str]) -> list[str]:
        """The same names; `UsageRefusal` (16) where one is that of no column."""
        unknown = [name for name in names if name not in self.rows.names]
        if unknown:
            raise UsageRefusal(f"{self.name()} has no column {unknown[0]}", f"It has {', '.join(self.rows.names)}.")
        return names

    def schema(self) -> str:
        """The columns as Spark writes them."""
        return ", ".join(f"`{name}` {spark_type(self.rows.field(name).type)}" for name in self.columns)

    def stores(self) -> list[str]:
        """The stores at `path` (a place, a pattern, several between commas) and in the file of the option `stores`."""
        path, file = self.options.get("path") or "", self.options.get("stores")
        if not path and not file:
            raise UsageRefusal(f"{self.name()} needs a store", ".load('/data/store')")
        words = [path] if os.path.exists(path) else [word.strip() for word in path.split(",") if word.strip()]
        found = named_stores(words, Path(file) if file else None)
        if remote := [place for place in found if is_remote(place)]:
            raise UsageRefusal(f"{self.name()} does not read {remote[0]}", "Copy the store to a disk of all workers.")
        return found

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of the columns of `schema`, in its types."""
        self.known(list(schema.names))
        kinds = {name: kind for kind, name in _TYPES.items()}
        wanted = []
        for field in schema.fields:
            own, given = self.rows.field(field.name).type, field.dataType.simpleString()
            kind = kinds.get(given)
            if kind is None or (kind != own and not (pa.types.is_integer(kind) and pa.types.is_integer(own))):
                raise UsageRefusal(f"{self.name()}: the column {field.name} is {spark_type(own)}, not {given}",
                                   "Cast it in the query; store_time and born_time are timestamps.")
            wanted.append((field.name, kind))
        folders = tuple(Path(name) for name in self.options.get("commitlog", "").split(",") if name)
        size = self.options.get("splitSize", str(SPLIT_SIZE))
        if not size.isdecimal() or not int(size):
            raise UsageRefusal(f"splitSize is a number of bytes, not {size}", f"{SPLIT_SIZE} if it is not given.")
        return _Reader(type(self), self.stores(), StoreOptions(commitlog=folders), pa.schema(wanted), int(size))


class _Reader(DataSourceReader):
    def __init__(
        self, source: type[_Source], stores: list[str], options: StoreOptions, wanted: pa.Schema, split_size: int,
    ) -> None:
        self.source, self.stores, self.options, self.wanted = source, stores, options, wanted
        self.split_size = split_size
        self.filters = Filters()

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Take what can be asked before a record is decoded. Spark asks everything again, so too much may come."""
        self.filters = Filters.of(filters, self.source.rows)
        return filters

    def partitions(self) -> list[InputPartition]:
        """The shares of the tasks."""
        places = [place for place in self.stores if self.filters.allow(store=place)]
        return [_Part((place, part)) for place in places
                for part in self.source.parts(Store.open(Path(place), self.options), self.filters, self.split_size)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one share; Spark asks for None where there is none."""
        enter()
        if not isinstance(partition, _Part):
            return
        place, part = partition.value
        names = [name for name in self.wanted.names if name != "store"]
        for batch in self.source.batches(part, names, self.filters):
            columns = {name: batch.column(name) for name in names}
            columns["store"] = pa.repeat(pa.scalar(place, pa.string()), batch.num_rows)
            arrays = [columns[field.name] for field in self.wanted]
            yield pa.record_batch([
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(arrays, self.wanted, strict=True)
            ], schema=self.wanted)


class CommitlogSource(_Source):
    """One row a message, a task a split of a mapped file."""

    rows, parts, batches = log_rows.COMMITLOG, log_rows.log_parts, log_rows.commitlog_batches

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "rocketmq-commitlog"


class ConsumeQueueSource(_Source):
    """One row a unit of a consume queue, a task some hundred queues."""

    rows, parts, batches = source_rows.CONSUMEQUEUE, source_rows.queue_parts, source_rows.consumequeue_batches

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "rocketmq-consumequeue"


class IndexSource(_Source):
    """One row a unit of an index file, a task a file."""

    rows, parts, batches = source_rows.INDEX, source_rows.index_parts, source_rows.index_batches

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "rocketmq-index"


class FindingsSource(_Source):
    """One row a finding of `mqtool verify`, a task a store."""

    rows, parts, batches = source_rows.FINDINGS, source_rows.store_parts, source_rows.findings_batches

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "rocketmq-findings"


SOURCES = (CommitlogSource, ConsumeQueueSource, IndexSource, FindingsSource)


def register(spark: SparkSession) -> None:
    """Make the four formats known to a session that did not find them by itself, and let it push filters down."""
    from pyspark.errors import AnalysisException

    spark.conf.set(_PUSHDOWN, "true")
    for source in SOURCES:
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
