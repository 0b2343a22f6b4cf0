"""What the benchmarks are made of, apart from time."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import contest
from benchmarks.contest import in_turn
from benchmarks.ours import anonymous_bytes, mqtool
from benchmarks.rebuilding import differing_files
from benchmarks.shapes import plain
from benchmarks.stage import Stage, first_files
from benchmarks.table import at_least, at_most, markdown, times_table


def test_parties_run_in_turn_back_and_forth_and_the_first_turn_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(contest, "_warm_memory", lambda: ran.append("-"))
    seconds = iter([9.0, 9.0, 4.0, 1.0, 3.0, 2.0])

    def party(name: str) -> float:
        ran.append(name)
        return next(seconds)

    times = in_turn({"a": lambda: party("a"), "b": lambda: party("b")}, runs=2)
    assert "".join(ran) == "-a-b-b-a-a-b"
    assert (times["a"].least, times["a"].median, times["b"].least) == (1.0, 2.0, 2.0)
    assert "| b |  2.00 |     3.00 |  2.00 |" in times_table(times, "a")


def test_memory_that_was_warmed_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "_MEMORY", 64 << 20)
    before = anonymous_bytes(Path("/proc/self/status"))
    contest._warm_memory()
    assert anonymous_bytes(Path("/proc/self/status")) - before < 32 << 20


def test_goals_say_whether_they_are_met() -> None:
    assert at_least("faster", 2.5, 2.6).row() == ("faster", ">= 2.5 x", "2.60 x", "yes")
    assert at_least("faster", 2.5, 2.4).met is False
    assert at_most("memory", 600, 601, "MB").row() == ("memory", "<= 600 MB", "601 MB", "no")
    assert markdown(("", "ms"), [("a", "1")]).splitlines() == ["|   | ms |", "| - | -: |", "| a |  1 |"]


def test_a_process_is_timed_and_its_anonymous_memory_seen() -> None:
    assert mqtool("--help").anonymous == 0
    ran = mqtool("--help", watched=True)
    assert ran.code == 0
    assert ran.seconds > 0
    assert 1e6 < ran.anonymous < 1e9
    with pytest.raises(RuntimeError, match="ended with 16"):
        mqtool("no-such-command")


def test_rebuilt_files_are_compared_both_ways(tmp_path: Path) -> None:
    for side, files in {"a": {"x": b"1", "y": b"2"}, "b": {"x": b"1", "y": b"3", "z": b""}}.items():
        for name, content in files.items():
            (tmp_path / side / "d").mkdir(parents=True, exist_ok=True)
            (tmp_path / side / "d" / name).write_bytes(content)
    assert differing_files(tmp_path / "a", tmp_path / "b") == ["d/y", "d/z"]


def test_a_stage_of_the_first_files_shares_them_and_goes_without_them(tmp_path: Path) -> None:
    stage = Stage(plain(500), tmp_path / "store", 3)
    stage.commitlog.mkdir(parents=True)
    for number in range(3):
        (stage.commitlog / f"{number:020}").write_bytes(b"x" * 10)
    part = first_files(stage, 2)
    assert [path.name for path in part.log_files] == [f"{number:020}" for number in range(2)]
    assert part.log_bytes == 20
    assert part.bare("broker").joinpath("abort").exists()
    stage.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_party_begins_anew_and_what_it_left_goes_with_the_stage(tmp_path: Path) -> None:
    stage = Stage(plain(500), tmp_path / "store", 3)
    stage.commitlog.mkdir(parents=True)
    (stage.root / "config").mkdir()
    left = stage.bare("broker") / "queue"
    left.write_bytes(b"x" * 5000)
    inode = left.stat().st_ino
    assert sorted(path.name for path in stage.bare("broker").iterdir()) == ["abort", "config"]
    [aside] = [path for path in tmp_path.rglob("queue")]
    assert (aside.stat().st_ino, aside.stat().st_size) == (inode, 0)
    stage.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_benchmarks_say_what_they_can_measure() -> None:
    assert "start,check,rebuild" in mqtool("--help", module="benchmarks").output
