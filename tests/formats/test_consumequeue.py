"""Queue units, on all units of all real stores and on the vectors of the broker's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import consumequeue as cq
from formats.errors import FormatError
from tests.support.stores import EXPECTED, STORES, unpacked

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
UNITS = st.builds(cq.CqUnit, I64, I32, I64)


def queue_files(name: str) -> list[Path]:
    return sorted((unpacked(name) / "consumequeue").glob("*/*/*"))


@pytest.mark.parametrize("name", STORES)
def test_every_real_queue_file_is_reproduced_byte_for_byte(name: str) -> None:
    units = 0
    for path in queue_files(name):
        content = path.read_bytes()
        assert b"".join(map(cq.CQ_UNIT.encode, cq.CQ_UNIT.decode_all(content))) == content
        assert cq.as_array(content).tobytes() == content
        units += cq.valid_units(content)
    assert units == EXPECTED[name]["units"]


def test_known_bytes_of_a_unit_and_of_a_pre_blank() -> None:
    unit = cq.CqUnit(0, 118, 2598919)
    assert cq.CQ_UNIT.encode(unit).hex() == "0000000000000000" "00000076" "000000000027a807"
    assert cq.CQ_UNIT.encode(cq.PRE_BLANK).hex() == "0000000000000000" "7fffffff" "0000000000000000"
    assert cq.CQ_UNIT.size == 20


def test_recovery_takes_pre_blanks_for_units_and_stops_at_zeros() -> None:
    assert cq.is_valid(cq.PRE_BLANK)
    assert cq.is_pre_blank(cq.PRE_BLANK)
    assert not cq.is_valid(cq.CqUnit(0, 0, 0))
    assert not cq.is_valid(cq.CqUnit(-1, 10, 0))
    behind = cq.CqUnit(500, 100, 0)
    content = b"".join(map(cq.CQ_UNIT.encode, (cq.PRE_BLANK, cq.CqUnit(0, 9, 0), cq.CqUnit(0, 0, 0), behind)))
    assert cq.valid_units(content) == 2
    assert cq.valid_units(content[:40]) == 2
    assert cq.valid_units(b"") == 0


@given(st.lists(UNITS, max_size=20))
def test_array_masks_agree_with_the_single_unit_tests(units: list[cq.CqUnit]) -> None:
    array = cq.as_array(b"".join(map(cq.CQ_UNIT.encode, units)))
    assert cq.valid_mask(array).tolist() == [cq.is_valid(unit) for unit in units]


@given(UNITS)
def test_units_round_trip(unit: cq.CqUnit) -> None:
    assert cq.CQ_UNIT.decode(b"\1" + cq.CQ_UNIT.encode(unit), 1) == unit


def test_a_unit_cut_short_is_short() -> None:
    with pytest.raises(FormatError) as caught:
        cq.CQ_UNIT.decode(bytes(39), 20)
    assert caught.value.reason == "short"
    assert caught.value.offset == 20


def test_ext_addresses_start_at_the_lowest_i64_and_never_meet_a_hash() -> None:
    assert cq.ext_address(0) == -9223372036854775808
    assert cq.ext_offset(-9223372036854775808) == 0
    assert cq.ext_offset(cq.MAX_EXT_ADDRESS) == 9223372034707292159
    assert not cq.is_ext_address(-(2**31))
    assert cq.is_ext_address(-(2**31) - 1)


@given(st.integers(0, 9223372034707292159))
def test_ext_addresses_round_trip(offset: int) -> None:
    assert cq.ext_offset(cq.ext_address(offset)) == offset


@pytest.mark.parametrize("value", [0, -1, -(2**31), -(2**63) - 1])
def test_what_is_no_ext_address_is_refused(value: int) -> None:
    with pytest.raises(FormatError, match="no address"):
        cq.ext_offset(value)


@pytest.mark.parametrize("offset", [-1, 9223372034707292160])
def test_what_has_no_ext_address_is_refused(offset: int) -> None:
    with pytest.raises(FormatError, match="no address"):
        cq.ext_address(offset)


def test_the_file_size_is_rounded_up_to_whole_units() -> None:
    assert cq.DEFAULT_FILE_SIZE == 6_000_000
    assert cq.file_size_for(1_048_576) == 1_048_580
    assert cq.file_size_for(20_000) == 20_000


@given(st.integers(0, 2**50), st.integers(1, 400_000))
def test_a_queue_offset_has_one_place(queue_offset: int, units_a_file: int) -> None:
    file_from_offset, position = cq.place(queue_offset, units_a_file * cq.CQ_UNIT.size)
    assert 0 <= position < units_a_file * cq.CQ_UNIT.size
    assert (file_from_offset + position) // cq.CQ_UNIT.size == queue_offset
