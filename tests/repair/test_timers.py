"""Recover makes the files of the timer again from the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from formats import timer
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.sampling import sampled
from tests.support.timer_harm import HARMS
from tests.support.trees import tree_digest

STORES = ("kinds/clean-timers-5.3.3", "kinds/clean-timers-5.5.0")
BROKER_HEALS = {"wheel-gone", "wheel-wrong"}


def waiting(root: Path) -> dict[int, tuple[int, int]]:
    """Offset of each timer message that no topic holds yet -> its size and due time."""
    records = plain.records(root)
    delivered = {record.properties.get("UNIQ_KEY") for record in records if record.topic == "Timed"}
    return {record.phy_offset: (record.size, int(record.properties["TIMER_OUT_MS"])) for record in records
            if record.topic == "rmq_sys_wheel_timer" and record.properties["UNIQ_KEY"] not in delivered}


@pytest.mark.parametrize(("harm", "name"), sampled(HARMS, STORES, quick=9))
def test_each_waiting_timer_has_one_unit_after_recover(name: str, harm: str, store: Callable[[str], Path]) -> None:
    root = store(name)
    HARMS[harm](root)
    before = tree_digest(root)
    done = mqtool("recover", root, "--yes", "--json")
    assert done.code & 0x58 == 0
    assert not {code for code in mqtool("verify", root, "--json").notable if code.startswith(("timer-", "part-"))}
    units, _ = timer.units_of((root / "timerlog" / f"{0:020}").read_bytes())
    named = {int(unit["phy_offset"]): (int(unit["record_size"]), int(unit["write_timestamp"]) + int(unit["delay"]))
             for unit in units}
    assert len(units) == len(named) == 40
    assert named == waiting(root)
    check = timer.TIMER_CHECK.decode((root / "config/timercheck").read_bytes())
    assert check.last_timer_queue_offset == check.master_timer_queue_offset == 40
    assert all(due >= check.last_read_timestamp for _, due in named.values())
    assert mqtool("recover", root, "--dry-run", "--json").document["plan"]["steps"] == []
    if harm in BROKER_HEALS:
        assert not done.document["applied"]
        return
    assert mqtool("undo", root, "--yes").code == 0
    after = tree_digest(root)
    assert {path: node for path, node in after.items() if not path.startswith(".mqtool") and path != "."} == {
        path: node for path, node in before.items() if path != "."}


def test_length_of_a_timerlog_that_nothing_tells_is_an_assumption(store: Callable[[str], Path]) -> None:
    root = store(STORES[0])
    HARMS["timerlog-gone"](root)
    told = mqtool("recover", root, "--dry-run", "--json").document["assumptions"]
    assert [text for text in told if text.startswith(f"mappedFileSizeTimerLog={100 << 20}:")]
    said = mqtool("recover", root, "--yes", "--set", "mappedFileSizeTimerLog=1048576", "--json").document
    assert not any("mappedFileSizeTimerLog" in text for text in said["assumptions"])
    assert (root / "timerlog" / f"{0:020}").stat().st_size == 1 << 20


def test_units_of_many_files_are_chained_and_end_with_a_mark() -> None:
    size = 10 * timer.TIMER_LOG_UNIT.size + timer.TIMER_LOG_BLANK.size
    made = [timer.TimerLogUnit(52, -1, 1, 1000, number, number, 100, 0, 0) for number in range(25)]
    files = timer.encode_log(made, size)
    assert [len(content) for content in files] == [size, size, 5 * 52]
    read = [timer.units_of(content) for content in files]
    assert [ended for _, ended in read] == [True, True, False]
    assert [int(unit["phy_offset"]) for units, _ in read for unit in units] == [*range(25)]
    assert timer.position_of(12, size) == size + 2 * 52


def test_wheel_holds_each_slot_at_its_place() -> None:
    slots = [timer.TimerWheelSlot(instant, 52, 104, 2, 0) for instant in (1, timer.WHEEL_SLOTS + 7)]
    content = timer.encode_wheel(slots)
    assert len(content) == timer.WHEEL_FILE_SIZE
    assert [timer.TIMER_WHEEL_SLOT.decode(content, at * 32) for at in (1, 7)] == slots
