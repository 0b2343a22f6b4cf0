"""Messages in a table that grows from run to run: what it holds is what the logs hold, whatever became of a run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import synth_store
from recover.cluster.session import session_for, spark_settings
from recover.cluster.tables import Target
from recover.findings.code import Refusal
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
from tests.cluster.twice import needs_spark
from tests.support import plain_reader as plain
from tests.support.command_docs import DOCS
from tests.support.stores import write_at
from tests.support.trees import assert_unchanged

pytestmark = [pytest.mark.slow, *needs_spark]
SPARK = ("--engine", "spark", "--master", "local[2]", "--conf", "spark.driver.memory=512m")
SIZE = 1 << 17


def log_of(root: Path, messages: int) -> Path:
    """A store whose log ends after so many of 2,400 messages, in files of 128 KiB."""
    synth_store(root, messages=2_400, mapped_file_size=SIZE, topics=2, queues=1)
    shutil.copytree(root / "commitlog", root.with_name("whole") / "commitlog")
    for path in (root / "commitlog").iterdir():
        path.unlink()
    grown(root, messages)
    return root


@pytest.fixture(autouse=True)
def old_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file counts as settled at once: nothing sets a ctime, and no test waits for two seconds."""
    monkeypatch.setattr("recover.cluster.tables._SETTLED", 0)


def grown(root: Path, messages: int) -> int:
    """Let the log of a store grow to so many messages; the number of its files that are new or changed."""
    whole, changed = root.with_name("whole"), 0
    end = sorted(records(whole))[messages]
    for base, content in plain.log_files(whole).items():
        own, filled = root / "commitlog" / f"{base:020d}", content[: max(0, end - base)]
        if filled and (not own.exists() or own.read_bytes() != filled.ljust(SIZE, b"\0")):
            own.write_bytes(filled.ljust(SIZE, b"\0"))
            changed += 1
    return changed


def records(root: Path) -> dict[int, tuple[str, int, int]]:
    """Topic, size and place in the queue of each record by its physical offset, as the independent reader has them."""
    return {record.phy_offset: (record.topic, len(record.content), record.queue_offset)
            for base, file in plain.log_files(root).items() for record in plain.all_records(file, base)}


def rows(frame: Any, store: Path) -> dict[int, tuple[str, int, int]]:
    """The same of a table; each record is there once."""
    found = frame.where(frame.store == str(store)).select("phy_offset", "topic", "size", "queue_offset").collect()
    assert len({row.phy_offset for row in found}) == len(found)
    return {row.phy_offset: (row.topic, row.size, row.queue_offset) for row in found}


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"CREATE DATABASE lake LOCATION '{tmp_path / 'lake'}'")
    yield "lake.messages"
    spark.sql("DROP DATABASE lake CASCADE")


@pytest.mark.deep
def test_a_table_of_the_catalog_holds_what_the_logs_hold_whatever_became_of_a_run(
    spark: Any, lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other = log_of(tmp_path / "it's a" / "store", 1_500), log_of(tmp_path / "b" / "store", 300)

    def run(*more: str) -> Any:
        with assert_unchanged(root):
            done = mqtool("export", root, other, "--into", lake, "--json", *SPARK, *more)
        held(done.document, "export")
        return done

    def check(document: Any, read: int) -> None:
        assert [row["files_read"] for row in document["stores"]] == [read, 0]
        assert document["stores"][0]["messages"] == len(records(root))
        table = spark.table(lake)
        assert rows(table, root) == records(root) and rows(table, other) == records(other)

    # the run after the one that fails between its two tables has the whole work to do
    with monkeypatch.context() as patch:
        patch.setattr(Target, "append", lambda *_: (_ for _ in ()).throw(Refusal("the catalog is gone")))
        assert run().code == 8
    first = run().document
    assert sum(row["messages_read"] for row in first["stores"]) == first["messages"] == 1_800
    held_here = [*records(root).values(), *records(other).values()]
    assert first["topics"] == Counter(topic for topic, _, _ in held_here)
    check(run().document, read=0)
    # a file that grew is read again, and so are new ones
    changed = grown(root, 2_200)
    assert 1 < changed < len([*(root / "commitlog").iterdir()])
    check(run().document, read=changed)
    # one whose messages are all gone leaves none of them in the table
    last = max((root / "commitlog").iterdir())
    write_at(last, 0, bytes(SIZE))
    check(run().document, read=1)
    # and one that expired leaves its messages there
    oldest = min((root / "commitlog").iterdir())
    oldest.unlink()
    before = spark.table(lake).count()
    assert [row["files_read"] for row in run().document["stores"]] == [0, 0]
    assert spark.table(lake).count() == before
    # other messages are asked for: all is read, and what is left out goes
    some = run("--topic", "*0").document
    assert some["stores"][0]["files_unchanged"] == 0 and {*some["topics"]} == {"Topic0"}
    refused = run("--raw-body")
    assert refused.code == 8 and "has no column body" in refused.stderr


def test_the_notebook_of_every_night_answers_its_questions(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, lake = log_of(tmp_path / "a" / "store", 1_200), tmp_path / "lake"
    lake.mkdir()
    monkeypatch.setenv("MQTOOL_STORES", f"{tmp_path}/*/store")
    monkeypatch.setenv("MQTOOL_LAKE", str(lake))
    session_for(spark_settings("local[2]", ["spark.driver.memory=512m"]))
    from pyspark.sql.classic.dataframe import DataFrame

    monkeypatch.setattr(DataFrame, "show", lambda *_, **__: None)

    def night() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for cell in json.loads((DOCS / "notebooks" / "every-night.ipynb").read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), found)
        return found

    first, before = night(), records(root)
    assert sum(row.messages for row in first["new"].collect()) == len(before)
    assert first["losers"].collect() == []
    grown(root, 2_000)
    more = len(records(root)) - len(before)
    # a page of an old file is lost
    write_at(min((root / "commitlog").iterdir()), 8192, bytes(4096))
    second, now = night(), records(root)
    new = {offset: topic for offset, (topic, _, _) in now.items() if offset > max(before)}
    assert {row.topic: row.messages for row in second["new"].collect()} == Counter(new.values())
    assert [(row.messages, row.more) for row in second["trend"].collect()] == [
        (len(before), None), (len(now), len(now) - len(before))]
    (loser,) = second["losers"].collect()
    lost = len(before) + more - len(now)
    assert loser.file == min(path.name for path in (root / "commitlog").iterdir())
    assert loser.messages_before - loser.messages == lost > 0


@pytest.mark.parametrize(("words", "said"), [
    (("--into", "t", "-o", "x"), "--output"), (("--into", "t", "--engine", "local"), "--engine local"),
    (("--into", "t", "--queue", "1"), "filter"), (("--into", "t", "--set", "brokerName=x"), "filter"),
    (("--into", "t", "--commitlog", "/x"), "parts kept elsewhere"),
])
def test_a_table_takes_no_filter_that_the_next_run_could_not_know(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = mqtool("export", tmp_path, *words)
    assert done.code == 16 and said in done.stderr
