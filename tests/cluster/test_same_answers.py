"""Local engine and Spark: the same findings, files and exit codes, byte for byte, and how little comes to the
driver."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet
import pytest

from fixtures.damage import RECIPES
from fixtures.damage.displaced import shift
from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT
from mqtool import exits
from tests.cli.runner import mqtool
from tests.cluster.twice import SPARK, from_now_on, needs_spark, same_answers, same_changes
from tests.scenarios.drill import all_stores
from tests.support.sampling import few, sampled
from tests.support.stores import real_store, strike, struck_store
from tests.support.trees import assert_same_tree, contents, tree_digest

# --- Local engine and Spark: the same findings, files and exit codes, byte for byte.


pytestmark = needs_spark

UNDAMAGED = "nothing"
SAMPLE = [
    ("killed-lmq-4.9.7", "crash-torn-tail"), ("clean-manyfiles-5.3.3", "bit-in-size"),
    ("killed-expired-4.9.7", "record-older-whole"),  # whose record is another queue's after the repair
]


def compare(name: str, recipe: str, folder: Path) -> None:
    """Both engines say the same of a damaged store, and make the same of it."""
    root = real_store(name, folder)
    if recipe != UNDAMAGED:
        strike(recipe, root)
    same_answers(root, "verify")
    same_changes(root, "recover")


@pytest.mark.slow
def test_spark_says_and_does_what_the_local_engine_does(folder: Path) -> None:
    # one test, so that one Spark serves all of it
    for number, (name, recipe) in enumerate(SAMPLE):
        compare(name, recipe, folder / str(number))
    root = real_store("clean-5.3.3", folder)
    same_answers(root, "predict", "--broker", "5.3.3")
    same_answers(root, "query", "--topic", "TopicTest", "--key", "nowhere", "--scan")
    same_answers(root, "rebuild", "--dry-run")
    same_changes(root, "rebuild-index")
    for path in (root / "commitlog").iterdir():
        path.unlink()
    same_answers(root, "verify")


@pytest.mark.slow
@few("filters", [
    (), ("--include", "stale,superseded,system"), pytest.param(("--tag", "Tag4"), marks=pytest.mark.long),
], ids=" ".join, quick=1)
def test_executors_write_parquet_by_topic_and_day_with_the_rows_of_the_local_engine(
    filters: tuple[str, ...], folder: Path,
) -> None:
    root, _ = struck_store("clean-manyfiles-5.3.3" if not filters else "clean-5.3.3", folder, "bit-in-body")
    if not filters:
        shift(root, random.Random(1), 3, keep_length=True)  # the driver alone sees displaced records in their place
    files = folder / "local.parquet", folder / "spark"
    found = [
        mqtool("export", root, "-o", out, "--format", "parquet", "--json", *filters, *options)
        for out, options in zip(files, ((), SPARK), strict=True)
    ]
    assert [result.code for result in found] == [0, 0], found[1].stdout
    for key in ("messages", "bytes", "topics", "complete", "damaged_ranges"):
        assert found[0].document[key] == found[1].document[key]
    local = pyarrow.parquet.read_table(files[0]).to_pylist()
    rows = pyarrow.dataset.dataset(files[1], format="parquet", partitioning="hive").to_table().to_pylist()
    days = [str(row.pop("day")) for row in rows]
    assert days == [str(datetime.fromtimestamp(row["store_time"] // 1000, UTC).date()) for row in rows]
    assert sorted(rows, key=lambda row: row["phy_offset"]) == local
    assert len(rows) > 0
    assert {path.name.partition("=")[0] for path in files[1].iterdir()} == {"topic"}
    again = mqtool("export", root, "-o", files[1], "--format", "parquet", *SPARK)
    assert again.code == 8


@pytest.mark.slow
def test_a_plan_that_delivers_less_than_the_broker_alone_is_refused_by_both(folder: Path) -> None:
    # a broker alone makes all queues, a rebuild of one topic makes its own
    root, _ = struck_store("clean-manyfiles-5.3.3", folder, "all-queues-missing")
    before = tree_digest(root)
    refused = same_changes(root, "rebuild-consumequeue", "--topic", "Orders")
    assert refused.code & exits.OPERATIONAL
    (found,) = refused.found("plan-loses-delivered")
    assert found["facts"]["count"] == sum(row["messages"] for row in found["facts"]["lost"]) > 0
    assert_same_tree(before, tree_digest(root))


@pytest.mark.parametrize(("name", "recipe"), sampled(all_stores(), [UNDAMAGED, *sorted(RECIPES)], one_in=900))
def test_every_kind_of_damage_on_every_store_is_the_same_to_both(name: str, recipe: str, folder: Path) -> None:
    compare(name, recipe, folder)


# --- Of a sound store sums come to the driver, and no row: what Spark itself counts of the results of tasks.


WHOLE = ("--engine", "spark", "--master", "local[2]", "--conf", "spark.driver.memory=512m")
A_MESSAGE, A_QUEUE = 0.5, 200


def sent(root: Path, *arguments: str) -> int:
    """Bytes that a verify sends home which finds nothing wrong."""
    ran = from_now_on()
    assert mqtool("verify", root, *arguments, *WHOLE).code == 0
    return sum(stage.resultSize() for stage in ran())


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "queues"), [pytest.param(2, 2, marks=pytest.mark.long), (40, 10)])
def test_a_sound_store_sends_half_a_byte_a_message_and_200_bytes_a_queue(
    topics: int, queues: int, tmp_path: Path,
) -> None:
    messages = 24_000
    synth_store(tmp_path / "s", messages=messages, topics=topics, queues=queues, mapped_file_size=16 << 20,
                queue_file_size=6_000 * CQ_UNIT.size, index_slots=5_000, index_entries=50_000)
    mqtool("verify", tmp_path / "s", "--only", "commitlog", *WHOLE)  # the session runs
    for part in ("--only", "commitlog"), ("--only", "consumequeue"), ():
        home = sent(tmp_path / "s", *part)
        assert 0 < home <= A_MESSAGE * messages + A_QUEUE * topics * queues, part
    # what it took is told after it ran, as --estimate tells before
    done = mqtool("verify", tmp_path / "s", "--only", "commitlog", "--json", "--price", "1", *WHOLE)
    assert done.document["engine"]["core_seconds"] > 0 < done.document["engine"]["all_tasks"]
    assert re.search(r"Spark took [\d,]+ tasks and .* of a core, at the given price \d", done.stderr)
    ran, out = from_now_on(), tmp_path / "out"
    assert mqtool("export", tmp_path / "s", "-o", out, "--format", "parquet", *WHOLE).code == 0
    assert 0 < sum(stage.resultSize() for stage in ran()) <= A_MESSAGE * messages + A_QUEUE * topics * queues
    # a start after a kill reads the log from its first file on, and has nothing to add to the queues
    (tmp_path / "s" / "abort").touch()
    ran = from_now_on()
    small = "--conf", "mqtool.splitSize=1000000"
    start = mqtool("predict", tmp_path / "s", "--broker", "5.3.3", "--json", *small, *WHOLE)
    assert start.document["mode"] == "abnormal" and start.document["lost_messages"] == 0
    assert start.document["start_reads"]["dispatched_records"] == messages
    # less than half of what their rows take
    assert 0 < sum(stage.resultSize() for stage in ran()) <= 8 * messages


@pytest.mark.slow
@pytest.mark.parametrize(("queues", "split", "messages"), [
    pytest.param(40, 83_003, 16_000, id="8 rows"),
    pytest.param(1, 16 << 20, 44_000, id="44,000 rows", marks=pytest.mark.long),
])
def test_a_rebuild_shuffles_20_bytes_a_message_whatever_a_split_has_for_a_task(
    queues: int, split: int, messages: int, tmp_path: Path,
) -> None:
    synth_store(tmp_path / "s", messages=messages, topics=1, queues=queues, keys=1, mapped_file_size=270 * messages,
                queue_file_size=messages * CQ_UNIT.size, index_slots=5_000, index_entries=50_000)
    ran = from_now_on()
    small = "--conf", f"mqtool.splitSize={split}"
    assert mqtool("rebuild", tmp_path / "s", "--output", tmp_path / "o", *WHOLE, *small).code == 0
    assert 0 < sum(stage.shuffleWriteBytes() for stage in ran()) <= 20 * messages
    assert queues in {stage.numTasks() for stage in ran() if stage.shuffleReadBytes()}


@pytest.mark.long
def test_20_000_queues_need_a_driver_of_512_mb(spark: Any, tmp_path: Path) -> None:
    root, topics, queues = tmp_path / "s", 200, 100
    synth_store(root, messages=2 * topics * queues, topics=topics, queues=queues, queue_file_size=50 * CQ_UNIT.size)
    assert mqtool("verify", root, *WHOLE).code == 0
    assert mqtool("rebuild", root, "--output", tmp_path / "o", *WHOLE).code == 0
    assert contents(tmp_path / "o" / "consumequeue") == contents(root / "consumequeue")
    units = spark.read.format("rocketmq-consumequeue").load(str(root))
    assert units.select("topic", "queue_id").distinct().count() == topics * queues
