"""The notebook of ten questions, run cell by cell on a store with a lost page and a flipped bit, and on its backup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from recover.cluster.session import session_for, spark_settings
from tests.cluster.twice import needs_spark
from tests.support import plain_reader as plain
from tests.support.command_docs import DOCS
from tests.support.stores import real_store, unpacked
from tests.support.trees import tree_digest

pytestmark = [pytest.mark.slow, *needs_spark]
NOTEBOOK = DOCS / "notebooks" / "ten-questions.ipynb"


def records(root: Path) -> dict[int, tuple[str, int]]:
    """Topic and size of every intact record by its physical offset, as the independent reader has them."""
    return {record.phy_offset: (record.topic, len(record.content)) for base, file in plain.log_files(root).items()
            for record in plain.all_records(file, base)}


def test_the_ten_questions_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, backup = real_store("clean-5.3.3", tmp_path), unpacked("clean-5.3.3")
    for recipe in ("page-zeroed", "bit-in-body"):
        damage(recipe, root, 3)
    monkeypatch.setenv("MQTOOL_STORE", str(root))
    monkeypatch.setenv("MQTOOL_BACKUP", str(backup))
    before = tree_digest(root), tree_digest(backup)
    # the session that the notebook gets: with this Python for the workers, as PYSPARK_PYTHON says elsewhere
    session_for(spark_settings("local[2]", ["spark.driver.memory=512m"]))
    from pyspark.sql.classic.dataframe import DataFrame

    shown: dict[int, list[Any]] = {}
    # what a cell shows is asked for once, and looked at below
    monkeypatch.setattr(DataFrame, "show", lambda frame, *_, **__: shown.update({id(frame): frame.collect()}))
    found: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), found)
    here, there = records(root), records(backup)
    lost = there.keys() - here.keys()
    assert len(lost) > 2

    def rows(name: str) -> list[Any]:
        return shown[id(found[name])]

    counts: dict[str, list[int]] = {}
    for topic, size in here.values():
        counts.setdefault(topic, []).append(size)
    assert {row.topic: (row.messages, row.bytes) for row in rows("topics")} == {
        topic: (len(sizes), sum(sizes)) for topic, sizes in counts.items()}
    assert sum(row.messages for row in rows("producers")) > 0
    assert {"commitlog-damaged-range", "commitlog-damaged-record"} <= {row.code for row in rows("problems")}
    assert {row.phy_offset for row in rows("damaged")} <= lost and rows("damaged")
    assert {row.phy_offset for row in rows("dead_units")} <= lost and rows("dead_units")
    assert rows("unnamed") == []
    assert sum(row.missing for row in rows("holes")) == len({row.phy_offset for row in rows("dead_units")})
    assert {row.phy_offset for row in rows("to_fetch")} == lost
    assert all(row.times > 1 for row in rows("twice"))
    assert all(abs(row.seconds) > 1 for row in rows("times"))
    assert (tree_digest(root), tree_digest(backup)) == before
