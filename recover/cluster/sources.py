"""The parts of a store as Spark data sources: rocketmq-commitlog, rocketmq-consumequeue, rocketmq-index.

>>> from recover.cluster.sources import register            # doctest: +SKIP
>>> register(spark)                                       # doctest: +SKIP
>>> spark.read.format("rocketmq-commitlog").load("/data/store").createOrReplaceTempView("log")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from recover.cluster import source_rows
from recover.cluster.jobs import enter
from recover.findings.refusal import UsageRefusal
from recover.store.store import Store, StoreOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TYPES = {
    pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.bool_(): "boolean", pa.binary(): "binary",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
}

_TRUE = ("true", "1", "yes")


def spark_type(kind: pa.DataType) -> str:
    """How Spark writes the type of a column."""
    return _TYPES[kind]


@dataclass
class _Part(InputPartition):
    """One task's share."""

    value: Any


class _Source(DataSource):
    rows: pa.Schema

    @property
    def columns(self) -> list[str]:
        """The columns asked for by the option `columns`, else all, bodies only with the option `body`."""
        named = [name.strip() for name in self.options.get("columns", "").split(",") if name.strip()]
        unknown = [name for name in named if name not in self.rows.names]
        if unknown:
            raise UsageRefusal(f"{self.name()} has no column {unknown[0]}", f"It has {', '.join(self.rows.names)}.")
        wants_body = self.options.get("body", "").lower() in _TRUE
        return named or [name for name in self.rows.names if name != "body" or wants_body]

    def schema(self) -> str:
        """The columns as Spark writes them."""
        return ", ".join(f"`{name}` {spark_type(self.rows.field(name).type)}" for name in self.columns)

    def store(self) -> Store:
        """The store at `path`; the option `commitlog` names folders of a log kept elsewhere, between commas."""
        path = self.options.get("path")
        if not path:
            raise UsageRefusal(f"{self.name()} needs a store", ".load('/data/store')")
        folders = [Path(name) for name in self.options.get("commitlog", "").split(",") if name]
        return Store.open(Path(path).absolute(), StoreOptions(commitlog=tuple(folders)))


class CommitlogSource(_Source):
    """One row a message."""

    rows = source_rows.COMMITLOG

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "rocketmq-commitlog"

    def reader(self, schema: Any) -> DataSourceReader:
        """A task a mapped file."""
        return _CommitlogReader(self.store(), self.columns)


class ConsumeQueueSource(_Source):
    """One row a unit of a consume queue."""

    rows = source_rows.CONSUMEQUEUE

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "rocketmq-consumequeue"

    def reader(self, schema: Any) -> DataSourceReader:
        """A task a queue."""
        return _ConsumeQueueReader(self.store(), self.columns)


class IndexSource(_Source):
    """One row a unit of an index file."""

    rows = source_rows.INDEX

    @classmethod
    def name(cls) -> str:
        """What `format` is called with."""
        return "rocketmq-index"

    def reader(self, schema: Any) -> DataSourceReader:
        """A task an index file."""
        return _IndexReader(self.store(), self.columns)


class _Reader(DataSourceReader):
    def __init__(self, store: Store, columns: list[str]) -> None:
        self.store = store
        self.columns = columns

    def parts(self) -> list[Any]:
        raise NotImplementedError

    def batches(self, part: Any) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def partitions(self) -> list[InputPartition]:
        """The shares of the tasks."""
        return [_Part(part) for part in self.parts()]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one share; Spark asks for None where there is none."""
        enter()
        for batch in self.batches(partition.value) if isinstance(partition, _Part) else ():
            yield batch.select(self.columns)


class _CommitlogReader(_Reader):
    def parts(self) -> list[Any]:
        return list(source_rows.log_parts(self.store))

    def batches(self, part: Any) -> Iterator[pa.RecordBatch]:
        return source_rows.commitlog_batches(part, self.columns)


class _ConsumeQueueReader(_Reader):
    def parts(self) -> list[Any]:
        return list(source_rows.queue_parts(self.store))

    def batches(self, part: Any) -> Iterator[pa.RecordBatch]:
        return source_rows.consumequeue_batches(part)


class _IndexReader(_Reader):
    def parts(self) -> list[Any]:
        return list(source_rows.index_parts(self.store))

    def batches(self, part: Any) -> Iterator[pa.RecordBatch]:
        return source_rows.index_batches(part)


SOURCES = (CommitlogSource, ConsumeQueueSource, IndexSource)


def register(spark: SparkSession) -> None:
    """Make the three formats known to a session."""
    for source in SOURCES:
        spark.dataSource.register(source)
