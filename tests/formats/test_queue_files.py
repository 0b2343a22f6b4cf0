"""Files of consume queues: units, units of the extension, and those of batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from formats import consumequeue as cq
from formats.basics import FormatError
from tests.support.stores import EXPECTED, STORES, unpacked

# --- Queue units, on all units of all real stores and on the vectors of the broker's own tests.


I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
UNITS = st.builds(cq.CqUnit, I64, I32, I64)


def valid_units(content: bytes) -> int:
    """How many units stand before the first one that is not valid."""
    whole = content[: len(content) // cq.CQ_UNIT.size * cq.CQ_UNIT.size]
    return int(np.argmin(np.r_[cq.valid_mask(np.frombuffer(whole, dtype=cq.CQ_UNIT.dtype)), False]))


def queue_files(name: str) -> list[Path]:
    return sorted((unpacked(name) / "consumequeue").glob("*/*/*"))


@pytest.mark.parametrize("name", STORES)
def test_every_real_queue_file_is_reproduced_byte_for_byte(name: str) -> None:
    units = 0
    for path in queue_files(name):
        content = path.read_bytes()
        assert b"".join(map(cq.CQ_UNIT.encode, cq.CQ_UNIT.decode_all(content))) == content
        units += valid_units(content)
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
    assert valid_units(content) == 2
    assert valid_units(content[:40]) == 2
    assert valid_units(b"") == 0


@given(st.lists(UNITS, max_size=20))
def test_array_masks_agree_with_the_single_unit_tests(units: list[cq.CqUnit]) -> None:
    array = np.frombuffer(b"".join(map(cq.CQ_UNIT.encode, units)), dtype=cq.CQ_UNIT.dtype)
    assert cq.valid_mask(array).tolist() == [cq.is_valid(unit) for unit in units]


def test_ext_addresses_start_at_the_lowest_i64_and_never_meet_a_hash() -> None:
    assert cq.ext_address(0) == -9223372036854775808
    assert cq.ext_offset(-9223372036854775808) == 0
    assert cq.ext_offset(cq.MAX_EXT_ADDRESS) == 9223372034707292159
    assert not cq.is_ext_address(-(2**31))
    assert cq.is_ext_address(-(2**31) - 1)


@pytest.mark.parametrize("value", [0, -1, -(2**31), -(2**63) - 1])
def test_what_is_no_ext_address_is_refused(value: int) -> None:
    with pytest.raises(FormatError, match="is not the address"):
        cq.ext_offset(value)


def test_the_file_size_is_rounded_up_to_whole_units() -> None:
    assert cq.file_size_for(1_048_576) == 1_048_580
    assert cq.file_size_for(20_000) == 20_000


# --- formats/test_consumequeue_ext.py


BEGINNING = 64 * 1024
"""Enough of each real ext file, which is 48 MiB of zeros after a few units."""

EXT_UNITS = st.builds(
    cq.CqExtUnit, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.binary(max_size=40)
)


def test_every_real_ext_unit_is_reproduced_and_is_what_a_queue_unit_points_at() -> None:
    root = unpacked("clean-5.3.3")
    total = 0
    for path in (root / "consumequeue_ext").glob("*/*/*"):
        with path.open("rb") as file:
            content = file.read(BEGINNING)
        found = dict(cq.ext_units(content))
        written = b"".join(map(cq.encode_ext, found.values()))
        assert content.startswith(written)
        assert not any(content[len(written):])
        queue = root / "consumequeue" / path.relative_to(root / "consumequeue_ext")
        addresses = [u.tags_code for u in cq.CQ_UNIT.decode_all(queue.read_bytes()) if cq.is_valid(u)]
        assert [cq.ext_offset(address) for address in addresses] == list(found)
        total += len(found)
    assert total == 2765


@given(st.lists(EXT_UNITS, max_size=8))
def test_units_round_trip_up_to_the_end_mark(units: list[cq.CqExtUnit]) -> None:
    content = b"".join(map(cq.encode_ext, units)) + cq.CQ_EXT_END.encode(cq.EXT_END) + b"\7" * 50
    assert [unit for _, unit in cq.ext_units(content)] == units


# --- formats/test_batchconsumequeue.py


INT64, INT32, I16 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (64, 32, 16))
BATCH_UNITS = st.builds(cq.BatchCqUnit, INT64, INT32, INT64, INT64, INT64, I16, INT32, INT32)
UNIT = cq.BatchCqUnit(1000, 200, 2598919, 1700000000000, 40, 3, -1, 0)


@given(st.lists(BATCH_UNITS, max_size=10))
def test_units_round_trip_and_the_mask_agrees_with_the_single_test(units: list[cq.BatchCqUnit]) -> None:
    content = b"".join(map(cq.BATCH_CQ_UNIT.encode, units))
    assert list(cq.BATCH_CQ_UNIT.decode_all(content)) == units
    assert cq.batch_mask(content).tolist() == [cq.is_valid_batch(unit) for unit in units]


def test_recovery_stops_at_the_first_unit_with_one_impossible_field() -> None:
    assert cq.is_valid_batch(UNIT)
    for bad in ({"phy_offset": -1}, {"size": 0}, {"base_offset": -1}, {"batch_size": 0}):
        broken = UNIT._replace(**bad)
        assert not cq.is_valid_batch(broken)
        assert cq.batch_mask(b"".join(map(cq.BATCH_CQ_UNIT.encode, (UNIT, broken)))).tolist() == [True, False]


def test_the_end_mark_of_a_compaction_queue_is_no_unit() -> None:
    end = cq.BATCH_CQ_UNIT.decode(bytes.fromhex("ffffffffffffffff" + "00" * 30 + "ffffffff" + "00" * 4))
    assert not cq.is_valid_batch(end)
