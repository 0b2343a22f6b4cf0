from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import timer
from formats.errors import FormatError
from formats.javahash import hash32
from tests.support.stores import unpacked

STORES = ("clean-5.3.3", "killed-5.5.0")
UNIT = timer.TimerLogUnit(52, -1, timer.MAGIC_DEFAULT, 1_000_000, 2500, 77, 118, 5, 0)


def timer_log(name: str) -> list[tuple[int, timer.TimerLogUnit]]:
    with (unpacked(name) / "timerlog" / "00000000000000000000").open("rb") as file:
        content = file.read(64 * 1024)
    found = list(timer.units(content))
    assert b"".join(timer.TIMER_LOG_UNIT.encode(unit) for _, unit in found) == content[:1040]
    return found


@pytest.mark.parametrize("name", STORES)
def test_real_timer_logs_are_reproduced_and_hang_in_the_wheel(name: str) -> None:
    found = timer_log(name)
    assert len(found) == 20
    wheel = timer.wheel((unpacked(name) / "timerwheel").read_bytes())
    newest = {timer.due_timestamp(unit) // timer.DEFAULT_PRECISION_MS: position for position, unit in found}
    for instant, position in newest.items():
        slot = wheel[timer.slot_of(instant * timer.DEFAULT_PRECISION_MS)]
        assert (slot["instant"], slot["last_position"]) == (instant, position)
        due = [u for _, u in found if timer.due_timestamp(u) // timer.DEFAULT_PRECISION_MS == instant]
        assert slot["unit_count"] == len(due)
    assert (wheel["instant"] != 0).sum() == len(newest)
    assert {unit.topic_hash for _, unit in found} == {hash32("TopicTimer")}


@pytest.mark.parametrize("name", STORES)
def test_real_timer_checkpoints_are_reproduced(name: str) -> None:
    content = (unpacked(name) / "config" / "timercheck").read_bytes()
    check = timer.TIMER_CHECK.decode(content)
    assert timer.encode_check(check) == content
    assert check.last_timer_log_flush_position == 1040
    assert check.last_timer_queue_offset == 20


def test_a_full_timer_log_file_ends_in_a_blank() -> None:
    units = timer.DEFAULT_FILE_SIZE // timer.TIMER_LOG_UNIT.size
    assert units == 2_016_492
    left = timer.DEFAULT_FILE_SIZE - units * timer.TIMER_LOG_UNIT.size
    assert left == timer.TIMER_LOG_BLANK.size == len(timer.encode_blank(left))
    with pytest.raises(FormatError) as caught:
        timer.decode(timer.encode_blank(left))
    assert caught.value.reason == "end"


@pytest.mark.parametrize(("content", "reason"), [
    (bytes(52), "unwritten"), (timer.TIMER_LOG_UNIT.encode(UNIT._replace(size=51)), "bad-size"),
    (timer.TIMER_LOG_UNIT.encode(UNIT._replace(magic=16)), "bad-magic"),
    (timer.TIMER_LOG_UNIT.encode(UNIT._replace(magic=-1)), "bad-magic"), (bytes(8), "short"),
    (timer.TIMER_LOG_UNIT.encode(UNIT)[:51], "short"),
])
def test_each_kind_of_bad_unit_has_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        timer.decode(content)
    assert caught.value.reason == reason


@given(st.binary(max_size=200))
def test_any_bytes_end_in_units_or_a_format_error(content: bytes) -> None:
    try:
        list(timer.units(content))
    except FormatError as error:
        assert 0 <= error.offset <= len(content)


def test_a_wheel_of_another_length_is_refused() -> None:
    assert timer.WHEEL_FILE_SIZE == 38_707_200
    with pytest.raises(FormatError):
        timer.wheel(bytes(32))
