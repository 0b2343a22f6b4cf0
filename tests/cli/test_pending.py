"""pending: what a store keeps for later, message by message."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtool import exits
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.stores import unpacked
from tests.support.trees import assert_unchanged

CRASH = "2026-11-21T02:05Z"
TIMERS = "kinds/clean-timers-5.5.0"


def timers(name: str) -> dict[str, int]:
    """Unique key -> due time of each timer message in the log."""
    return {record.properties["UNIQ_KEY"]: int(record.properties["TIMER_OUT_MS"])
            for record in plain.records(unpacked(name)) if record.topic == "rmq_sys_wheel_timer"}


def test_every_timer_is_listed_with_its_due_time() -> None:
    root = unpacked(TIMERS)
    with assert_unchanged(root):
        found = mqtool("pending", root, "--at", 0, "--json")
    assert found.code == exits.CLEAN
    listed = {row["unique_key"]: row["due"] for row in found.document["messages"] if row["kind"] == "timer"}
    assert listed == timers(TIMERS)
    assert {row["outcome"] for row in found.document["messages"] if row["kind"] == "timer"} == {"pending"}


@pytest.mark.parametrize("part", ["timerlog", "timerwheel", "config/timercheck"])
def test_damage_of_the_timer_hides_no_message(part: str, store: Callable[[str], Path]) -> None:
    root = store(TIMERS)
    gone = root / part
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    found = mqtool("pending", root, "--json").document
    assert {row["unique_key"] for row in found["messages"] if row["kind"] == "timer"} == timers(TIMERS).keys()


def test_kinds_are_counted_as_predict_counts_them() -> None:
    root = unpacked("killed-5.5.0")
    found = mqtool("pending", root, "--broker", "5.3.3", "--at", CRASH, "--json").document
    kinds = Counter(row["kind"] for row in found["messages"])
    assert kinds == {"delay": 22, "half": 40, "timer": 10}
    assert sum(row["again"] for row in found["waits"] if row["kind"] == "delay") == 9
    assert all(row["group"] == "PG_tx" for row in found["messages"] if row["kind"] == "half")
    assert any(row["lag"] for row in found["groups"])


def test_filters_and_the_file_of_all(tmp_path: Path) -> None:
    root, due = unpacked(TIMERS), sorted(timers(TIMERS).values())
    until = due[len(due) // 2]
    only = mqtool("pending", root, "--topic", "Tim*", "--until", until, "--json").document
    assert [row["topic"] for row in only["messages"]] == ["Timed"] * sum(each < until for each in due)
    for name in ("all.csv", "all.ndjson"):
        assert mqtool("pending", root, "--topic", "Timed", "--out", tmp_path / name).code == exits.CLEAN
    with (tmp_path / "all.csv").open() as file:
        rows = [*csv.DictReader(file)]
    lines = [json.loads(line) for line in (tmp_path / "all.ndjson").read_text().splitlines()]
    assert [row["unique_key"] for row in rows] == [line["unique_key"] for line in lines]
    assert {line["unique_key"]: line["due"] for line in lines} == timers(TIMERS)
    assert mqtool("pending", root, "--out", tmp_path / "all.csv").code == exits.OPERATIONAL
    assert mqtool("pending", root, "--out", tmp_path / "all.txt").code == exits.USAGE


def test_messages_in_a_database_are_not_checked() -> None:
    found = mqtool("pending", unpacked("kinds/clean-pop-5.5.0"), "--json")
    assert found.code == exits.UNSUPPORTED
    assert not found.document["complete"]
    assert any("kvStore" in note for note in found.document["notes"])
