"""pending: what a store keeps for later, message by message."""

from __future__ import annotations

import csv
import json
import os
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


@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"])
@pytest.mark.parametrize(("after_ms", "outcome"), [(-60_000, "pending"), (1000, "now"), (8 * 24 * 3600_000, "skipped")])
def test_what_becomes_of_a_timer_is_what_predict_foretells(
    after_ms: int, outcome: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    root = unpacked("kinds/clean-timers-5.3.3")
    due = max(timers("kinds/clean-timers-5.3.3").values())
    given = (root, "--at", due + after_ms, "--broker", release, "--json")
    found, foretold = (mqtool(command, *given).document for command in ("pending", "predict"))
    listed = Counter(row["outcome"] for row in found["messages"] if row["kind"] == "timer")
    if release == "4.9.7":  # has no timer: they wait for a release that has one
        assert listed == {"pending": 40}
        return
    assert listed == {outcome: 40}
    assert [[row for row in said if row["kind"] == "timer"] for said in (found["waits"], foretold["delivers"])] == [
        [row for row in found["waits"] if row["kind"] == "timer" and row[outcome] == 40]] * 2
    shown = mqtool("pending", root, "--at", due + after_ms, "--broker", release).stdout
    words = {"pending": "later", "now": "at once", "skipped": "never"}
    assert sum(f"  {words[outcome]}  " in line for line in shown.splitlines() if line.startswith("timer   Timed")) == 40


def test_start_that_files_of_another_owner_refuse_is_said(store: Callable[[str], Path]) -> None:
    if os.geteuid():
        pytest.skip("NOT RUN: another owner needs root")
    root = store("killed-5.5.0")
    for path in (root, *root.rglob("*")):
        os.chown(path, 12345, 12345)
    given = ("--broker", "5.3.3", "--at", CRASH, "--json")
    sound = mqtool("pending", root, *given).document
    assert (sound["starts"], sound["reason"]) == (True, None)
    file = next((root / "commitlog").iterdir())
    os.chown(file, 0, 0)
    file.chmod(0o600)
    found = mqtool("pending", root, *given)
    assert found.document["starts"] is False
    assert "would not start" in mqtool("pending", root, *given[:-1]).stderr
    assert found.document["reason"] == mqtool("predict", root, *given).document["reason"]
    # what waits in it is the same
    assert found.document["messages"] == sound["messages"]


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
