"""The data sources: every column against the codec, and the questions of docs/spark-sql.md as they stand there."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from formats.record import host_text
from tests.cluster.twice import needs_spark
from tests.support.commitlog import placed_records
from tests.support.source_docs import PAGE, render
from tests.support.stores import EXPECTED, real_store, unpacked

pytestmark = needs_spark
NAME = "killed-v2-ipv6-5.3.3"


@pytest.fixture
def spark() -> Any:
    from pyspark.sql import SparkSession

    from recover.cluster.session import session_for, spark_settings
    from recover.cluster.sources import register

    made = SparkSession(session_for(spark_settings("local[2]", ["spark.driver.memory=512m"])).context)
    register(made)
    return made


def read(spark: Any, kind: str, root: Path, **options: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.format(kind).options(**options).load(str(root)).collect()]


@pytest.mark.slow
def test_rows_are_the_records_and_units_of_the_store(spark: Any, tmp_path: Path) -> None:
    # one test, so that one Spark serves all of it
    root = unpacked(NAME)
    rows = sorted(read(spark, "rocketmq-commitlog", root, body="true"), key=lambda row: row["phy_offset"])
    wanted = [placed.record for placed in placed_records(NAME)]
    assert len(rows) == len(wanted) == EXPECTED[NAME]["records"]
    for row, record in zip(rows, wanted, strict=True):
        expected = {
            "topic": record.topic_name, "queue_id": record.queue_id, "queue_offset": record.queue_offset,
            "phy_offset": record.phy_offset, "size": record.total_size, "store_timestamp": record.store_timestamp,
            "born_timestamp": record.born_timestamp, "store_host": host_text(record.store_host),
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
    for kind in ("rocketmq-commitlog", "rocketmq-consumequeue", "rocketmq-index"):
        assert read(spark, kind, empty) == []
    root = real_store("clean-5.3.3", tmp_path)
    done = damage("bit-in-body", root)
    rows = read(spark, "rocketmq-commitlog", root, columns="phy_offset,crc_ok,keys")
    assert [row["phy_offset"] for row in rows if not row["crc_ok"]] == list(done.lost)
    assert len(rows) == EXPECTED["clean-5.3.3"]["records"]


@pytest.mark.slow
def test_the_questions_of_the_page_have_answers(spark: Any, tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    sorted((root / "index").iterdir())[-1].unlink()
    text = PAGE.read_text()
    setup = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(setup) == 1 and len(questions) == 5
    exec(setup[0], {"STORE": str(root)})
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
