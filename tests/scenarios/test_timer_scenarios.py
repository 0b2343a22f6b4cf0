"""Pending timer messages that a broker would not deliver, or deliver twice: found, and never predicted away.

With the timerlog gone real brokers delivered 0 of 40, with timercheck gone 80, with a timercheck a day ahead 0, with
five rotten units 35.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from formats.timer import MAGIC_ROLL, TIMER_CHECK, TIMER_LOG_UNIT, TimerLogUnit
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.support.stores import CLEAN, KILLED, KINDS, real_store, unpacked
from tests.support.trees import assert_unchanged

TIMERS, PENDING = "kinds/clean-timers-5.5.0", 40
FIRST = "timerlog/" + "0" * 20
SIZE = TIMER_LOG_UNIT.size
UNUSED = 8


def verify(root: Path) -> Result:
    with assert_unchanged(root):
        return mqtool("verify", root, "--json")


def timer_findings(root: Path) -> dict[str, dict[str, object]]:
    found = verify(root).document["findings"]
    return {item["code"]: item for item in found if item["severity"] != "info" and item["code"] != "abort-present"}


def change(root: Path, unit: int, **fields: int) -> None:
    """Another unit in the place of the n-th; fields that are given are XORed."""
    with (root / FIRST).open("r+b") as file:
        file.seek(unit * SIZE)
        stored = TIMER_LOG_UNIT.decode(file.read(SIZE))
        file.seek(unit * SIZE)
        values = {name: getattr(stored, name) ^ value for name, value in fields.items()}
        file.write(TIMER_LOG_UNIT.encode(stored._replace(**values)))


def timerlog_gone(root: Path) -> None:
    shutil.rmtree(root / "timerlog")


def timerlog_empty(root: Path) -> None:
    (root / FIRST).write_bytes(bytes((root / FIRST).stat().st_size))


def timer_gone_but_its_check(root: Path) -> None:
    timerlog_gone(root)
    (root / "timerwheel").unlink()


def check_gone(root: Path) -> None:
    (root / "config" / "timercheck").unlink()


def check_short(root: Path) -> None:
    (root / "config" / "timercheck").write_bytes(b"")


def check_a_day_ahead(root: Path) -> None:
    path = root / "config" / "timercheck"
    content = path.read_bytes()
    check = TIMER_CHECK.decode(content)
    later = check._replace(last_read_timestamp=check.last_read_timestamp + 24 * 3600 * 1000)
    path.write_bytes(TIMER_CHECK.encode(later) + content[TIMER_CHECK.size:])


def five_units_rotten(root: Path) -> None:
    for unit in (3, 9, 17, 30, 39):
        change(root, unit, phy_offset=1 << 9)


@pytest.mark.parametrize("name", [*CLEAN, *KILLED, *(name for name in KINDS if "timer" in name)])
def test_a_healthy_timer_shows_nothing(name: str) -> None:
    assert not {code for code in timer_findings(unpacked(name)) if code.startswith("timer-")}


@pytest.mark.parametrize(("harm", "code", "count"), [
    (timerlog_gone, "timer-units-missing", PENDING), (timerlog_empty, "timer-units-missing", PENDING),
    (timer_gone_but_its_check, "timer-units-missing", PENDING), (check_gone, "timer-check-wrong", None),
    (check_short, "timer-check-wrong", None), (check_a_day_ahead, "timer-check-wrong", None),
    (five_units_rotten, "timer-units-missing", 5),
])
def test_what_is_wrong_with_a_timer_is_found_and_no_start_is_recommended(
    harm: Callable[[Path], None], code: str, count: int | None, folder: Path,
) -> None:
    root = real_store(TIMERS, folder)
    harm(root)
    found = timer_findings(root)
    assert code in found and all(name.startswith("timer-") for name in found)
    assert count is None or found[code]["facts"]["count"] == count  # type: ignore[index]
    assert verify(root).code == exits.DERIVED
    said = mqtool("predict", root, "--broker", "5.5.0", "--json")
    assert said.code & exits.UNSUPPORTED and "timer" in str(said.document["unsupported"])
    assert "lose nothing" not in mqtool("predict", root, "--broker", "5.5.0", "--quiet").stdout
    with assert_unchanged(root):
        assert mqtool("recover", root, "--yes", "--json").code == exits.DERIVED


@pytest.mark.parametrize("name", [name for name in TimerLogUnit._fields if name not in ("topic_hash", "reserved")])
def test_every_bit_of_a_pending_unit_that_matters_is_missed(name: str, folder: Path) -> None:
    """Not those that only statistics read, or nobody, nor a roll: the message comes back to its instant."""
    root = real_store(TIMERS, folder)
    content = (root / FIRST).read_bytes()
    field = TIMER_LOG_UNIT.field(name)
    for bit in range(random.randrange(3), field.size * 8, 3):  # the others another time
        if name == "magic" and 1 << bit in (MAGIC_ROLL, UNUSED):
            continue
        unit = random.choice((0, 7, PENDING - 1))
        changed = bytearray(content)
        changed[unit * SIZE + field.offset + field.size - 1 - bit // 8] ^= 1 << bit % 8
        (root / FIRST).write_bytes(changed)
        found = mqtool("verify", root, "--json").document["findings"]
        assert any(item["code"].startswith("timer-") and item["severity"] != "info" for item in found), (unit, bit)
