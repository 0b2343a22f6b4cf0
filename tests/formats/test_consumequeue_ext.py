from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import consumequeue as cq
from formats import consumequeue_ext as ext
from formats.errors import FormatError
from tests.support.stores import unpacked

BEGINNING = 64 * 1024
"""Enough of each real ext file, which is 48 MiB of zeros after a few units."""

UNITS = st.builds(ext.CqExtUnit, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.binary(max_size=40))


def test_every_real_ext_unit_is_reproduced_and_is_what_a_queue_unit_points_at() -> None:
    root = unpacked("clean-5.3.3")
    total = 0
    for path in (root / "consumequeue_ext").glob("*/*/*"):
        with path.open("rb") as file:
            content = file.read(BEGINNING)
        found = dict(ext.units(content))
        written = b"".join(map(ext.encode, found.values()))
        assert content.startswith(written)
        assert not any(content[len(written):])
        queue = root / "consumequeue" / path.relative_to(root / "consumequeue_ext")
        addresses = [u.tags_code for u in cq.CQ_UNIT.decode_all(queue.read_bytes()) if cq.is_valid(u)]
        assert [cq.ext_offset(address) for address in addresses] == list(found)
        total += len(found)
    assert total == 2765


@given(st.lists(UNITS, max_size=8))
def test_units_round_trip_up_to_the_end_mark(units: list[ext.CqExtUnit]) -> None:
    content = b"".join(map(ext.encode, units)) + ext.CQ_EXT_END.encode(ext.END) + b"\7" * 50
    assert [unit for _, unit in ext.units(content)] == units


def test_a_unit_without_bit_map_has_20_bytes_and_one_with_the_usual_map_28() -> None:
    assert len(ext.encode(ext.CqExtUnit(1, 2, b""))) == 20
    assert len(ext.encode(ext.CqExtUnit(1, 2, bytes(8)))) == 28


@pytest.mark.parametrize(("content", "reason"), [
    (b"\xff\xff", "end"), (bytes(20), "unwritten"), (b"\0\x14" + bytes(16) + b"\0\1", "bad-size"),
    (b"\0\x15" + bytes(18), "bad-size"), (b"\0\x15" + bytes(16) + b"\0\1", "short"), (b"\0", "short"),
    (b"\0\x14", "short"),
    (b"\xff\xfe" + bytes(18), "bad-size"),
])
def test_each_kind_of_bad_unit_has_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        ext.decode(content)
    assert caught.value.reason == reason


def test_a_bit_map_too_long_for_an_i16_is_refused() -> None:
    with pytest.raises(FormatError):
        ext.encode(ext.CqExtUnit(0, 0, bytes(ext.MAX_UNIT_SIZE)))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_units_or_a_format_error(content: bytes) -> None:
    try:
        list(ext.units(content))
    except FormatError as error:
        assert 0 <= error.offset <= len(content)
