"""The data sources: every column against the codec, and the questions of docs/spark-sql.md as they stand there."""

from __future__ import annotations

import importlib
import re
import socket
import sys
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from formats.record import host_text
from recover.findings.code import Refusal
from tests.cli.runner import mqtool
from tests.cluster.twice import needs_spark
from tests.support.commitlog import placed_records
from tests.support.source_docs import PAGE, render
from tests.support.stores import EXPECTED, copy_store, flip, real_store, unpacked

pytestmark = needs_spark
NAME = "killed-v2-ipv6-5.3.3"
KINDS = ("rocketmq-commitlog", "rocketmq-consumequeue", "rocketmq-index")


def test_an_older_pyspark_is_told_that_the_sources_need_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "recover.cluster.sources", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)  # as 3.5 has it
    with pytest.raises(ImportError, match="need pyspark 4"):
        importlib.import_module("recover.cluster.sources")


def read(spark: Any, kind: str, root: Path, **options: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.format(kind).options(**options).load(str(root)).collect()]


def test_a_worker_that_finds_another_file_is_named_and_sends_no_row(spark: Any, tmp_path: Path) -> None:
    from recover.cluster.sources import SOURCES

    for number, kind in enumerate(SOURCES):
        root = real_store("clean-5.3.3", tmp_path / str(number))
        other = copy_store(root, tmp_path / f"{number}-other" / root.name)
        for path in other.rglob("[0-9]*"):
            if path.is_file():
                flip(path, 0)
        source = kind({"path": str(root)})
        reader = source.reader(spark.read.format(source.name()).load(str(root)).schema)
        part, *_ = reader.partitions()
        assert next(iter(reader.read(part)))
        files = [path for path in root.rglob("[0-9]*") if path.is_file()]
        for path in files:
            flip(path, 0)
        next(iter(reader.read(part)), None)  # as where a broker has written meanwhile: no other file
        root.rename(tmp_path / f"{number}-own")
        other.rename(root)
        with pytest.raises(Refusal, match=f"host {socket.gethostname()} reads another file as {root}"):
            next(iter(reader.read(part)))


@pytest.mark.slow
def test_rows_are_the_records_and_units_of_the_store(spark: Any, tmp_path: Path) -> None:
    # one test, so that one Spark serves all of it
    root = unpacked(NAME)
    rows = sorted(read(spark, "rocketmq-commitlog", root, body="true"), key=lambda row: row["phy_offset"])
    wanted = [placed.record for placed in placed_records(NAME)]
    assert len(rows) == len(wanted) == EXPECTED[NAME]["records"]
    for row, record in zip(rows, wanted, strict=True):
        expected = {
            "store": str(root), "topic": record.topic_name, "queue_id": record.queue_id,
            "queue_offset": record.queue_offset,
            "phy_offset": record.phy_offset, "size": record.total_size, "store_timestamp": record.store_timestamp,
            "store_time": datetime.fromtimestamp(record.store_timestamp / 1000),
            "born_timestamp": record.born_timestamp, "born_time": datetime.fromtimestamp(record.born_timestamp / 1000),
            "store_host": host_text(record.store_host),
            "born_host": host_text(record.born_host), "tags": record.tags, "keys": record.keys,
            "uniq_key": record.uniq_key, "properties": record.property_map(), "sys_flag": record.sys_flag,
            "flag": record.flag, "reconsume_times": record.reconsume_times,
            "prepared_transaction_offset": record.prepared_transaction_offset, "body_size": len(record.body),
            "body_crc": record.body_crc, "crc_ok": True, "version": record.version, "body": record.body,
        }
        file = row.pop("file")
        assert row == expected
        assert int(file) <= record.phy_offset
    assert len(read(spark, "rocketmq-consumequeue", root)) == EXPECTED[NAME]["units"]
    assert len(read(spark, "rocketmq-index", root)) == EXPECTED[NAME]["index_entries"]
    names = ["queue_offset", "topic"]
    chosen = read(spark, "rocketmq-commitlog", root, columns=" queue_offset, topic")
    assert [list(row) for row in chosen[:1]] == [names]
    assert Counter(row["topic"] for row in chosen) == Counter(record.topic_name for record in wanted)
    with pytest.raises(Exception, match="has no column colour"):
        read(spark, "rocketmq-index", root, columns="colour")
    empty = tmp_path / "empty"
    (empty / "commitlog").mkdir(parents=True)
    for kind in KINDS:
        assert read(spark, kind, empty) == []
    root = real_store("clean-5.3.3", tmp_path)
    done = damage("bit-in-body", root)
    rows = read(spark, "rocketmq-commitlog", root, columns="phy_offset,crc_ok,keys")
    assert [row["phy_offset"] for row in rows if not row["crc_ok"]] == list(done.lost)
    assert len(rows) == EXPECTED["clean-5.3.3"]["records"]


@pytest.mark.slow
def test_where_chooses_the_very_rows_that_it_names(spark: Any) -> None:
    from recover.cluster.sources import SOURCES

    columns = {"rocketmq-commitlog": ("topic", "queue_id", "phy_offset", "store_timestamp", "store_time"),
               "rocketmq-consumequeue": ("topic", "queue_id"), "rocketmq-index": ("phy_offset",)}
    for source in SOURCES[:3]:
        schema = spark.read.format(source.name()).load(str(unpacked(NAME))).schema

        def rows(where: str, source: Any = source, schema: Any = schema) -> list[dict[str, Any]]:
            reader = source({"path": str(unpacked(NAME)), "where": where}).reader(schema)
            return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

        every = rows("")
        for name in columns[source.name()]:
            values = sorted({row[name] for row in every if row[name] is not None})
            low, high = values[len(values) // 3], values[2 * len(values) // 3]
            one, other = (str(value) if isinstance(value, int) else f"'{value}'" for value in (low, high))
            for where, fits in (
                (f"{name} = {one}", lambda value, low=low: value == low),
                (f"{name} in ({one}, {other})", lambda value, both=(low, high): value in both),
                (f"{name} > {one} and {name} <= {other}", lambda value, low=low, high=high: low < value <= high),
                (f"{name}>={one} AND {name}<{other}", lambda value, low=low, high=high: low <= value < high),
            ):
                wanted = [row for row in every if row[name] is not None and fits(row[name])]
                assert rows(where) == wanted != every, (source, where)


@pytest.mark.slow
def test_a_table_has_the_same_rows_whatever_was_asked_of_it_before(spark: Any) -> None:
    records = EXPECTED[NAME]["records"]
    log = spark.read.format("rocketmq-commitlog").option("columns", "topic,phy_offset").load(str(unpacked(NAME)))
    log.createOrReplaceTempView("asked_twice")
    topics = {row.topic: row["count"] for row in log.groupBy("topic").count().collect()}
    (one, first), (other, second) = list(topics.items())[:2]
    assert log.filter(f"topic = '{one}'").count() == first
    assert log.count() == sum(topics.values()) == records
    both = " UNION ALL ".join(f"SELECT * FROM asked_twice WHERE topic = '{topic}'" for topic in (one, other))
    assert spark.sql(both).count() == first + second
    assert log.alias("a").join(log.alias("b"), "phy_offset").filter(
        f"a.topic = '{one}' AND b.topic = '{one}'").count() == first


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_read(spark: Any, tmp_path: Path) -> None:
    root = real_store("clean-manyfiles-5.3.3", tmp_path)
    files = sorted((root / "commitlog").iterdir())
    inside = int(files[1].name) + 1

    def log(where: str, **options: Any) -> Any:
        return spark.read.format("rocketmq-commitlog").options(where=where, **options).load(str(root))

    assert log(f"phy_offset >= {inside} and phy_offset < {int(files[2].name)}").rdd.getNumPartitions() == 1
    quarter = files[1].stat().st_size // 4 + 1
    assert log(f"phy_offset = {inside}", splitSize=quarter).rdd.getNumPartitions() == 1
    assert log(f"phy_offset < {int(files[1].name)}", splitSize=quarter).rdd.getNumPartitions() == 4
    assert log("phy_offset < 0").collect() == []
    from recover.cluster.sources import CommitlogSource

    source = CommitlogSource({"path": str(root), "where": f"phy_offset >= {inside} and phy_offset < {inside + 9}"})
    parts = source.reader(log("").schema).partitions()
    assert [repr(part) for part in parts] == [f"{root} {files[1].name} [{int(files[1].name)}, {int(files[2].name)})"]
    for size in ("0", "-1", "1m"):
        with pytest.raises(Exception, match="splitSize is a number of bytes"):
            log("", splitSize=size).collect()
    queues = spark.read.format("rocketmq-consumequeue")
    assert queues.option("where", "topic = 'nowhere'").load(str(root)).collect() == []
    units = queues.option("where", "topic = 'Orders' and queue_id = 0").load(str(root)).count()
    assert units == len([row for row in read(spark, "rocketmq-consumequeue", root)
                         if (row["topic"], row["queue_id"]) == ("Orders", 0)]) > 0


@pytest.mark.slow
def test_an_unknown_option_is_refused_with_the_nearest_one(spark: Any) -> None:
    for kind, option, near in (("rocketmq-commitlog", "colums", "columns"), ("rocketmq-findings", "store", "stores"),
                               ("rocketmq-index", "splitsise", "splitSize")):
        with pytest.raises(Exception, match=f"{kind} has no option {option}; the nearest is {near}"):
            spark.read.format(kind).option(option, "topic").load(str(unpacked(NAME)))
    # one of another source, and a schema that is given
    with pytest.raises(Exception, match="has no option startingoffset"):
        given = spark.read.schema("store string").format("rocketmq-index").option("startingOffset", "latest")
        given.load(str(unpacked(NAME))).collect()
    assert read(spark, "rocketmq-index", unpacked(NAME), SPLITSIZE="400009", Columns="file")


@pytest.mark.slow
def test_a_table_is_refused_with_the_view_that_works(spark: Any) -> None:
    root = unpacked(NAME)
    with pytest.raises(Exception, match=r"use CREATE TEMPORARY VIEW v USING `rocketmq-index` OPTIONS \(path"):
        spark.sql(f"CREATE TABLE no_table USING `rocketmq-index` OPTIONS (path '{root}')")
    spark.sql(f"CREATE TABLE typed (file string) USING `rocketmq-index` OPTIONS (path '{root}')")
    with pytest.raises(Exception, match=r"in SQL CREATE TEMPORARY VIEW v USING `rocketmq-index`"):
        spark.sql("SELECT * FROM typed").collect()
    spark.sql("DROP TABLE typed")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING `rocketmq-index` OPTIONS (path '{root}', columns 'file')")
    assert spark.sql("SELECT * FROM v").count() == EXPECTED[NAME]["index_entries"]


@pytest.mark.slow
def test_the_schema_that_a_query_gives_is_that_of_its_rows(spark: Any) -> None:
    root = str(unpacked(NAME))
    frame = spark.read.format("rocketmq-commitlog").schema("size bigint, topic string").load(root)
    assert frame.dtypes == [("size", "bigint"), ("topic", "string")]
    rows = read(spark, "rocketmq-commitlog", unpacked(NAME), columns="topic,size")
    assert Counter((row.topic, row.size) for row in frame.collect()) == Counter((r["topic"], r["size"]) for r in rows)
    for schema in ("colour string", "topic int", "store_timestamp timestamp"):
        with pytest.raises(Exception, match=r"no column colour|is string, not|is bigint, not"):
            spark.read.format("rocketmq-commitlog").schema(schema).load(root).collect()


@pytest.mark.slow
def test_several_stores_are_one_table(spark: Any, tmp_path: Path) -> None:
    names = ("clean-5.3.3", NAME)
    roots = [real_store(name, tmp_path / "all") for name in names]
    damage("bit-in-body", roots[0], 1)
    listing = tmp_path / "stores"
    listing.write_text(f"{tmp_path}/all/*\n")
    wanted = {str(root): EXPECTED[root.name]["units"] for root in roots}
    for path, options in ((f"{tmp_path}/all/*", {}), (f"{roots[0]}, {roots[1]}", {}), ("", {"stores": listing})):
        frame = spark.read.format("rocketmq-consumequeue").options(**options)
        frame = frame.load(path) if path else frame.load()
        assert {row["store"]: row["count"] for row in frame.groupBy("store").count().collect()} == wanted
    one = spark.read.format("rocketmq-index").option("where", f"store = '{roots[1]}'").load(f"{tmp_path}/all/*")
    assert one.count() == EXPECTED[names[1]]["index_entries"]
    findings = spark.read.format("rocketmq-findings").load(f"{tmp_path}/all/*").collect()
    for root in roots:
        alone = mqtool("verify", root, "--json").document["findings"]
        assert [(row.code, row.severity, row.file, row.offset) for row in findings if row.store == str(root)] == [
            (item["code"], item["severity"], item["file"], item["offset"]) for item in alone]
    with pytest.raises(Exception, match=r"no folder matches"):
        spark.read.format("rocketmq-index").load(f"{tmp_path}/none*").collect()


@pytest.mark.slow
def test_spark_finds_the_sources_by_itself(spark: Any) -> None:
    found = spark.newSession()  # in which nothing was registered
    frames = [found.read.format(f"rocketmq-{kind}").load(str(unpacked(NAME)))
              for kind in ("commitlog", "consumequeue", "index", "findings")]
    assert all("store" in frame.columns for frame in frames)
    assert frames[2].count() == EXPECTED[NAME]["index_entries"]


@pytest.mark.slow
def test_the_questions_of_the_page_have_answers(spark: Any, tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    sorted((root / "index").iterdir())[-1].unlink()
    text = PAGE.read_text()
    setup = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(setup) == 3 and len(questions) == 5
    exec(setup[0], {"STORE": str(root)})
    exec(setup[1], {"STORE": str(root), "spark": spark})
    talkers, space, unindexed, gaps, twice = (
        [row.asDict() for row in spark.sql(question).collect()] for question in questions
    )
    records = [placed.record for placed in placed_records("clean-5.3.3")]
    sizes: Counter[str] = Counter()
    for record in records:
        sizes[record.topic_name] += record.total_size
    most = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:10]
    assert [(row["topic"], row["bytes"]) for row in talkers] == most
    assert sum(row["bytes"] for row in space) == sum(sizes.values())
    left = {row["phy_offset"] for row in read(spark, "rocketmq-index", root)}
    with_key = [record.phy_offset for record in records if record.uniq_key or record.keys]
    assert [row["phy_offset"] for row in unindexed] == [offset for offset in with_key if offset not in left] != []
    pauses = [behind.store_timestamp - before.store_timestamp for before, behind in pairwise(records)]
    assert [row["pause_ms"] for row in gaps] == sorted(pauses, reverse=True)[:10]
    times = Counter((record.topic_name, record.uniq_key) for record in records if record.uniq_key)
    assert {(row["topic"], row["uniq_key"]): row["times"] for row in twice} == {
        key: count for key, count in times.items() if count > 1
    }


def test_the_page_shows_the_columns_that_there_are() -> None:
    assert render(PAGE.read_text()) == PAGE.read_text(), "stale: python -m tests.support.source_docs"
