from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from formats import batchconsumequeue as bcq

I64, I32, I16 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (64, 32, 16))
UNITS = st.builds(bcq.BatchCqUnit, I64, I32, I64, I64, I64, I16, I32, I32)
UNIT = bcq.BatchCqUnit(1000, 200, 2598919, 1700000000000, 40, 3, -1, 0)


def test_a_unit_has_46_bytes_and_the_fields_in_the_order_of_the_broker() -> None:
    encoded = bcq.BATCH_CQ_UNIT.encode(UNIT)
    assert len(encoded) == bcq.BATCH_CQ_UNIT.size == 46
    assert encoded.hex() == ("00000000000003e8" "000000c8" "000000000027a807" "0000018bcfe56800"
                             "0000000000000028" "0003" "ffffffff" "00000000")
    assert bcq.DEFAULT_FILE_SIZE == 13_800_000


@given(st.lists(UNITS, max_size=10))
def test_units_round_trip_and_the_mask_agrees_with_the_single_test(units: list[bcq.BatchCqUnit]) -> None:
    content = b"".join(map(bcq.BATCH_CQ_UNIT.encode, units))
    assert list(bcq.BATCH_CQ_UNIT.decode_all(content)) == units
    assert bcq.as_array(content).tobytes() == content
    assert bcq.valid_mask(bcq.as_array(content)).tolist() == [bcq.is_valid(unit) for unit in units]


def test_recovery_stops_at_the_first_unit_with_one_impossible_field() -> None:
    assert bcq.is_valid(UNIT)
    for bad in ({"phy_offset": -1}, {"size": 0}, {"base_offset": -1}, {"batch_size": 0}):
        broken = UNIT._replace(**bad)
        assert not bcq.is_valid(broken)
        assert bcq.valid_units(b"".join(map(bcq.BATCH_CQ_UNIT.encode, (UNIT, broken, UNIT)))) == 1


def test_the_end_mark_of_a_compaction_queue_is_known_and_no_unit() -> None:
    encoded = bcq.BATCH_CQ_UNIT.encode(bcq.SPARSE_END)
    assert encoded.hex() == "ffffffffffffffff" + "00" * 30 + "ffffffff" + "00" * 4
    assert not bcq.is_valid(bcq.SPARSE_END)
