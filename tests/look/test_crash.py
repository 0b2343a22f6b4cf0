"""How far a broker had got, and what a crash of the machine may cost (real brokers: tests/broker/test_crash.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.stores import unpacked

KILLED = "killed-5.5.0"


def document(root: Path, *more: str, command: str = "predict") -> dict[str, Any]:
    given = [word for text in more for word in ("--set", text)] if command == "predict" else []
    found: dict[str, Any] = mqtool(command, root, *given, "--json").document
    return found


def since(offset: int, name: str = KILLED) -> list[plain.Record]:
    return [record for record in plain.records(unpacked(name)) if record.phy_offset >= offset]


def test_pointers_count_bytes_and_messages_behind() -> None:
    at = document(unpacked(KILLED))["pointers"]
    end = max(record.phy_offset + record.size for record in since(0))
    assert at["wrote"] == at["committed"] == at["dispatched"] == {
        "offset": end, "behind_bytes": 0, "behind_messages": 0}
    flushed = at["flushed"]
    behind = since(flushed["offset"])
    assert (flushed["behind_bytes"], flushed["behind_messages"]) == (end - behind[0].phy_offset, len(behind))


def test_window_holds_what_is_young_and_all_of_it_is_counted() -> None:
    window = document(unpacked(KILLED))["crash_window"]
    there = since(window["start"])
    assert (window["messages"], window["bytes"]) == (len(there), sum(record.size for record in there))
    assert sum(window["topics"].values()) == len(there)
    newest = max(record.store_time for record in there)
    assert all(newest - record.store_time <= 10_500 for record in there)
    assert all(record.phy_offset >= window["start"] for record in since(0) if record.store_time >= newest - 500)


@pytest.mark.parametrize(("given", "seconds"), [
    ((), 10.5), (("flushDiskType=SYNC_FLUSH",), 0), (("flushIntervalCommitLog=100",), 10.1),
    (("flushCommitLogThoroughInterval=1000",), 1.5), (("transientStorePoolEnable=true",), 11.1),
])
def test_settings_decide_the_window_and_none_is_without_effect(given: tuple[str, ...], seconds: float) -> None:
    found = document(unpacked(KILLED), *given)
    assert found["crash_window"]["seconds"] == seconds
    assert set(given) <= set(found["crash_window"]["basis"])
    assert not any("no effect" in text for text in found["assumptions"])
    assert (found["crash_window"]["messages"] == 0) is (seconds == 0)
    assert found["crash_window"]["process_seconds"] == (0.4 if "transientStorePoolEnable=true" in given else 0)


def test_clean_stop_leaves_no_window_and_everything_flushed() -> None:
    for command in ("predict", "inspect"):
        found = document(unpacked("clean-plain-4.9.7"), command=command)
        assert found["crash_window"] is None
        assert len({pointer["offset"] for pointer in found["pointers"].values()}) == 1


def test_inspect_has_the_same_pointers_and_says_when_the_window_begins_before_what_it_read() -> None:
    whole, last = document(unpacked(KILLED)), document(unpacked(KILLED), command="inspect")
    assert last["pointers"] == whole["pointers"] and last["crash_window"] == whole["crash_window"]
    short = document(unpacked("killed-plain-4.5.1"), command="inspect")["crash_window"]
    assert not short["whole"]
    assert "at least" in mqtool("inspect", unpacked("killed-plain-4.5.1")).stdout


def test_messages_that_only_queues_name_are_after_the_end_of_what_is_there(store: Callable[[str], Path]) -> None:
    root = store(KILLED)
    damage("log-last-missing", root, 1)
    found = document(root)
    at, window = found["pointers"], found["crash_window"]
    assert at["wrote"]["offset"] == at["dispatched"]["offset"] > found["max_phy"]
    assert window["named_beyond"] == at["wrote"]["offset"] - max(
        record.phy_offset + record.size for record in plain.records(root))
