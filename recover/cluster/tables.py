"""Messages of many stores in one table that grows from run to run, in Parquet, Iceberg or Delta.

1. A table has the columns of the source `rocketmq-commitlog` and the run that wrote a row, and is partitioned by store
   and log file.
2. `TABLE_files` has a row a log file and run, with the file's stamp and sums. A run reads the log files whose stamp is
   not that of their last row: of a store that grew, the new files and the last one.
3. What it reads of a file replaces what the table had of it, so no message is there twice, by whatever it was changed.
   A MERGE by store and offset would keep those that the file no longer has, and compare every row to add the new ones.
   Files that expired stay in the table.
4. The rows of `TABLE_files` come last. A run that fails before has none, and the next one reads its files again.

Not protected: the content. A disk that returns other bytes under an unchanged stamp is not noticed.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from msgspec import Struct, structs

from recover.change.lock import probe
from recover.cluster.jobs import check_executors, watch
from recover.cluster.session import Session, SparkSettings, running_session, session_for, spark_settings
from recover.findings.code import Refusal, UsageRefusal
from recover.log.files import live_copies, place_misnamed_files
from recover.store.mapped_files import MappedFile
from recover.store.source import is_remote, remote_root
from recover.store.store import Store

_FORM = "1"
"""Of what the rows depend on, apart from the file: a change has every file read again."""
_SETTLED = 2_000_000_000
"""Nanoseconds after which a write certainly gets another time than the last one."""
_KEY = ("store", "file")
_DYNAMIC = "spark.sql.sources.partitionOverwriteMode"


class FileRow(Struct, frozen=True):
    """A row of `TABLE_files`. `stamp`: digest of size, times and inode, and of what was asked for; empty if the next
    run has to read the file. `read`: False if the sums are those of an earlier run. `bad_crc`: messages among
    `messages` whose checksum fails. `last_offset`: the physical offset of the last one. Sizes in bytes, times in ms."""

    run: str
    store: str
    file: str
    stamp: str = ""
    messages: int = 0
    bytes: int = 0
    bad_crc: int = 0
    first_time: int | None = None
    last_time: int | None = None
    last_offset: int | None = None
    read: bool = True


class Exported(Struct):
    """What a run did: its ID, a row for each log file that is there now, and messages by topic of those it read."""

    run: str
    files: list[FileRow]
    topics: Counter[str]

    @property
    def read(self) -> list[FileRow]:
        """The files that this run read."""
        return [row for row in self.files if row.read]


class Target(Struct, frozen=True):
    """A table: a name of the session's catalog, or a folder, named with a slash, of the format that
    `spark.sql.sources.default` sets."""

    name: str

    @property
    def is_folder(self) -> bool:
        return "/" in self.name

    @property
    def files(self) -> Target:
        """The table of log files beside it."""
        return Target(f"{self.name.rstrip('/')}_files")

    def rows(self, spark: Any, schema: str | None = None) -> Any:
        """Return the table as a DataFrame, None if it does not exist."""
        if self.is_folder:
            reader = spark.read if schema is None else spark.read.schema(schema)
            return reader.load(self.name) if any(Path(self.name).glob("[!_.]*")) else None
        return spark.table(self.name) if spark.catalog.tableExists(self.name) else None

    def replace(self, spark: Any, frame: Any) -> None:
        """Replace the partitions that a frame has rows of; its last columns are those of `_KEY`."""
        if self.is_folder:
            frame.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(*_KEY).save(self.name)
            return
        if not spark.catalog.tableExists(self.name):
            frame.limit(0).write.partitionBy(*_KEY).saveAsTable(self.name)
        with _set(spark, _DYNAMIC, "dynamic"):
            frame.write.mode("overwrite").insertInto(self.name)

    def drop(self, spark: Any, store: str, file: str) -> None:
        """Drop the partition of a log file."""
        if self.is_folder:
            for path in Path(self.name).glob(f"store=*/file={file}"):
                if unquote(path.parent.name.removeprefix("store=")) == store:
                    shutil.rmtree(path)
            return
        from pyspark.errors import AnalysisException

        spec = [f"{name} = '" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
                for name, value in zip(_KEY, (store, file), strict=True)]
        try:
            spark.sql(f"DELETE FROM {self.name} WHERE {' AND '.join(spec)}")
        except AnalysisException:  # a table of plain files has partitions, and no rows that could be deleted
            spark.sql(f"ALTER TABLE {self.name} DROP PARTITION ({', '.join(spec)})")

    def append(self, frame: Any) -> None:
        """Append rows; the table is created if it is missing."""
        writer = frame.write.mode("append")
        writer.save(self.name) if self.is_folder else writer.saveAsTable(self.name)


@contextmanager
def _set(spark: Any, key: str, value: str) -> Iterator[None]:
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


def export_into(
    places: Sequence[str], table: str, *, settings: SparkSettings | None = None, topic: str | None = None,
    with_body: bool = False, note: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Bring a table up to date with the logs of some stores; return what was read.

    `settings`: of the Spark to use, by default the one that runs in this process. `topic`: a pattern of topics;
    `with_body`: bodies as stored, too. Other ones than at the last run have every file read again. `Refusal` (8) if a
    log cannot be read or the table cannot be written: then the run is not in `TABLE_files`, and the next one repeats
    it. `UsageRefusal` (16) without Spark 4.
    """
    try:
        from recover.cluster.sources import register
    except ImportError as error:
        raise UsageRefusal(f"--into: {error}", "pip install 'pyspark>=4'") from error

    run, target = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"), Target(table)
    session = (running_session() if settings is None else None) or session_for(settings or spark_settings(None, ()))
    asked = f"{_FORM} {topic} {with_body}"
    logs = [_Log(place, asked) for place in places]
    check_executors(session, [path for log in logs for path in log.ends])

    def work() -> Exported:
        spark = session.sql()
        register(spark)
        _refuse_strange(spark, target, with_body=with_body)
        before, topics = _last_rows(spark, target), Counter[str]()
        found = [row for log in logs for row in log.rows(run, before)]
        if files := {(row.store, row.file) for row in found if row.read}:
            note(f"reading {len(files):,} of {len(found):,} log files")
            target.replace(spark, _messages(session, logs, files, run, topic, with_body=with_body))
            sums, topics, gone = _sums(target.rows(spark, _schema(with_body)), files, run)
            for store, file in gone:
                target.drop(spark, store, file)
            found = [structs.replace(row, **sums.get((row.store, row.file), {})) for row in found]
        target.files.append(_frame(spark, found))
        return Exported(run, found, topics)

    made: Exported = watch(session, work, "export into a table")
    return made


class _Log:
    """The log files of a store, and a stamp for each: empty if the file may change under an unchanged one."""

    def __init__(self, place: str, asked: str) -> None:
        self.place = place
        self.store = Store.open(remote_root(place) if is_remote(place) else Path(place))
        queue, _ = place_misnamed_files(live_copies(self.store.commitlog))
        self.files, self.size = queue.files, queue.file_size
        now = time.time_ns()
        # a broker writes to the last file through a memory map, and times follow later
        held = not is_remote(place) and probe(self.store.root) is not None
        self.stamps = {file.name: "" if held and file is self.files[-1] else _stamp(file, asked, now)
                       for file in self.files}

    def rows(self, run: str, before: Mapping[tuple[str, str], FileRow]) -> list[FileRow]:
        """Return a row for each log file; one that has the stamp of its row `before` has the sums of that, too."""
        found = []
        for name, stamp in self.stamps.items():
            old = before.get((self.place, name))
            if old is not None and stamp and old.stamp == stamp:
                found.append(structs.replace(old, run=run, read=False))
            else:
                found.append(FileRow(run, self.place, name, stamp))
        return found

    @property
    def ends(self) -> list[Path]:
        """The first and last file, which executors must see."""
        return [self.files[0].path, self.files[-1].path] if self.files else []


def _stamp(file: MappedFile, asked: str, now: int) -> str:
    status = file.path.stat()
    if now - max(status.st_mtime_ns, status.st_ctime_ns) < _SETTLED:
        return ""
    own = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
    return hashlib.sha256(f"{asked} {file.file_from_offset} {own}".encode()).hexdigest()


def _schema(with_body: bool) -> str:
    """Return the columns of the source in Spark's notation, those of the partitions last."""
    from recover.cluster.source_rows import COMMITLOG
    from recover.cluster.sources import spark_type

    names = [name for name in COMMITLOG.names if name not in _KEY and (with_body or name != "body")]
    return ", ".join(f"`{name}` " + ("string" if name == "run" else spark_type(COMMITLOG.field(name).type))
                     for name in (*names, "run", *_KEY))


def _messages(
    session: Session, logs: Iterable[_Log], files: Collection[tuple[str, str]], run: str, topic: str | None, *,
    with_body: bool,
) -> Any:
    """Return the messages of some files as a DataFrame: one job for all stores, a task a split."""
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    from recover.cluster.source_rows import Filters, log_parts
    from recover.cluster.sources import CommitlogSource

    spark = session.sql()
    schema: Any = StructType.fromDDL(_schema(with_body))
    own = StructType([field for field in schema.fields if field.name != "run"])
    shares: list[Any] = []
    options = {"path": "/", "body": str(with_body).lower(), "splitSize": str(session.settings.split_size)}
    reader: Any = CommitlogSource(options).reader(own)
    for log in logs:
        parts = [part for part in log_parts(log.store, Filters(), session.settings.split_size)
                 if (log.place, part.mapped_file.name) in files]
        shares += reader.shares(log.store, log.place, parts, Filters())

    def read(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from reader.read(shares[number])

    frame = spark.range(0, len(shares), 1, len(shares)).mapInArrow(read, own).withColumn("run", functions.lit(run))
    frame = frame if topic is None else frame.where(functions.col("topic").rlike(_pattern(topic)))
    return frame.select(*schema.names)


def _pattern(glob: str) -> str:
    """Return a pattern of topics as a regular expression of Java."""
    import re
    from fnmatch import translate

    inner = re.fullmatch(r"\(\?s:(.*)\)\\Z", translate(glob), re.DOTALL)
    return f"^(?s:{inner[1] if inner else re.escape(glob)})$"


def _sums(
    rows: Any, files: set[tuple[str, str]], run: str
) -> tuple[dict[tuple[str, str], dict[str, Any]], Counter[str], set[tuple[str, str]]]:
    """Return the sums of some files in a table, messages by topic, and the files that have rows of an earlier run,
    because this one found none in them."""
    from pyspark.sql import functions as of

    mine = rows.where(of.col("store").isin([*{store for store, _ in files}])
                      & of.col("file").isin([*{file for _, file in files}]))
    every = mine.groupBy(*_KEY, "topic", "run").agg(
        of.count("*").alias("messages"), of.sum("size").alias("bytes"), of.count_if(~of.col("crc_ok")).alias("bad_crc"),
        of.min("store_timestamp").alias("first_time"), of.max("store_timestamp").alias("last_time"),
        of.max("phy_offset").alias("last_offset")).collect()
    of_file: dict[tuple[str, str], list[Any]] = {}
    topics, gone = Counter[str](), set[tuple[str, str]]()
    for row in every:
        key = row.store, row.file
        if key in files and row.run == run:
            of_file.setdefault(key, []).append(row)
            topics[row.topic] += row.messages
        elif key in files:
            gone.add(key)
    return {key: {name: how(row[name] for row in own) for name, how in _HOW.items()} for key, own in of_file.items()}, \
        topics, gone


_HOW: dict[str, Callable[[Iterable[Any]], Any]] = {
    "messages": sum, "bytes": sum, "bad_crc": sum, "first_time": min, "last_time": max, "last_offset": max}
_FILES = ("run string, store string, file string, stamp string, messages bigint, bytes bigint, bad_crc bigint, "
          "first_time bigint, last_time bigint, last_offset bigint, read boolean")


def _frame(spark: Any, rows: Sequence[FileRow]) -> Any:
    return spark.createDataFrame([structs.astuple(row) for row in rows], _FILES).coalesce(1)


def _last_rows(spark: Any, target: Target) -> dict[tuple[str, str], FileRow]:
    """Return the rows of each store's last run; none of a table whose messages are not there."""
    from pyspark.sql import functions as of

    rows = target.files.rows(spark, _FILES)
    if rows is None or target.rows(spark) is None:
        return {}
    last = rows.groupBy("store").agg(of.max("run").alias("run"))
    found = rows.join(last, ["store", "run"]).select(*FileRow.__struct_fields__).collect()
    return {(row.store, row.file): FileRow(*row) for row in found}


def _refuse_strange(spark: Any, target: Target, *, with_body: bool) -> None:
    """`Refusal` (8) for something else than a table of an earlier run, or one that has other columns."""
    rows = target.rows(spark)
    if rows is None:
        return
    if not {"run", "phy_offset", *_KEY} <= {*rows.columns}:
        raise Refusal(f"{target.name} is no table of messages: its columns are {', '.join(rows.columns[:4])} …",
                      "Name another table.")
    if ("body" in rows.columns) != with_body:
        what, remedy = ("no", "leave --raw-body out") if with_body else ("a", "add --raw-body")
        raise Refusal(f"{target.name} has {what} column body", f"Name another table, or {remedy}.")
