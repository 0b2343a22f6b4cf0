"""Index files: every real one, its chains, and files that lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import index
from formats.errors import FormatError
from formats.javahash import index_key_hash
from tests.support.stores import EXPECTED, STORES, unpacked

LAB = index.IndexGeometry(500, 2000)
SMALL = index.IndexGeometry(100, 400)


def index_files(name: str) -> list[Path]:
    return sorted((unpacked(name) / "index").iterdir())


def small_file(*units: tuple[int, index.IndexUnit], header: index.IndexHeader, slots: dict[int, int]) -> bytes:
    content = bytearray(SMALL.size)
    content[:index.INDEX_HEADER.size] = index.INDEX_HEADER.encode(header)
    for slot, number in slots.items():
        at = SMALL.slot_offset(slot)
        content[at:at + index.INDEX_SLOT.size] = index.INDEX_SLOT.encode(index.IndexSlot(number))
    for number, unit in units:
        at = SMALL.unit_offset(number)
        content[at:at + index.INDEX_UNIT.size] = index.INDEX_UNIT.encode(unit)
    return bytes(content)


@pytest.mark.parametrize("name", STORES)
def test_every_real_index_file_is_reproduced_and_its_chains_hold_every_unit(name: str) -> None:
    total = 0
    for path in index_files(name):
        content = path.read_bytes()
        image = index.decode(content, LAB)
        assert index.encode(image) == content
        chained = 0
        for slot in range(LAB.slots):
            for _, unit in image.chain(slot):
                assert LAB.slot_of(unit.key_hash) == slot
                chained += 1
        assert chained == image.used - 1
        total += chained
    assert total == EXPECTED[name]["index_entries"]


@pytest.mark.parametrize("name", STORES)
def test_the_geometry_of_a_real_file_is_inferred_from_its_bytes(name: str) -> None:
    for path in index_files(name):
        assert index.infer_geometry(path.read_bytes()) == LAB


def test_an_odd_geometry_is_found_by_trying_every_split() -> None:
    content = (index_files("clean-4.5.1")[0]).read_bytes()
    image = index.decode(content, LAB)
    odd = index.IndexGeometry(7, 2100)
    # the same units under another geometry: new slots, new chains
    slots = [0] * odd.slots
    rows = []
    for number in range(1, image.used):
        unit = index.IndexUnit._make(image.units[number].item())
        slot = odd.slot_of(unit.key_hash)
        rows.append(index.INDEX_UNIT.encode(unit._replace(previous=slots[slot])))
        slots[slot] = number
    body = b"".join(index.INDEX_SLOT.encode(index.IndexSlot(s)) for s in slots) + bytes(index.INDEX_UNIT.size)
    rebuilt = (index.INDEX_HEADER.encode(image.header) + body + b"".join(rows)).ljust(odd.size, b"\0")
    assert index.infer_geometry(rebuilt) == odd


def test_a_file_without_units_fits_what_was_preferred_or_nothing() -> None:
    assert index.infer_geometry(bytes(SMALL.size), [SMALL]) == SMALL
    assert index.infer_geometry(bytes(SMALL.size)) == SMALL  # one slot for four units
    assert index.infer_geometry(bytes(SMALL.size + 4)) is None
    assert index.infer_geometry(bytes(10)) is None


@given(st.binary(max_size=400))
def test_inferring_from_any_bytes_raises_nothing(content: bytes) -> None:
    index.infer_geometry(content)


def test_sizes_and_places_of_the_small_and_the_default_geometry() -> None:
    assert SMALL.size == 8440
    assert SMALL.capacity == 399
    assert index.DEFAULT_GEOMETRY.size == 420_000_040
    assert SMALL.slot_of(index_key_hash("A#K0")) == 23


def test_five_messages_with_two_equal_keys_each_lie_as_a_real_broker_put_them() -> None:
    key_hash = index_key_hash("A#K0")
    assert key_hash == 1972423
    image = index.decode(small_file(
        (1, index.IndexUnit(key_hash, 0, 0, 0)), (2, index.IndexUnit(key_hash, 0, 0, 1)),
        header=index.IndexHeader(1, 2, 0, 472, 5, 11), slots={23: 2}), SMALL)
    assert [number for number, _ in image.chain(23)] == [2, 1]
    assert image.header.index_count == 11


def test_a_chain_that_loops_is_named_and_left() -> None:
    image = index.decode(small_file(
        (1, index.IndexUnit(23, 0, 0, 2)), (2, index.IndexUnit(23, 0, 0, 1)),
        header=index.IndexHeader(1, 2, 0, 0, 1, 3), slots={23: 2}), SMALL)
    walked = []
    with pytest.raises(FormatError) as caught:
        walked.extend(image.chain(23))
    assert caught.value.reason == "chain-loop"
    assert caught.value.offset == SMALL.slot_offset(23)


@pytest.mark.parametrize("head", [0, -1, 3, 2**31 - 1])
def test_a_slot_that_names_no_unit_is_an_empty_chain(head: int) -> None:
    content = small_file(header=index.IndexHeader(1, 2, 0, 0, 1, 3), slots={5: head})
    assert list(index.decode(content, SMALL).chain(5)) == []


@pytest.mark.parametrize(("count", "used"), [(-5, 1), (0, 1), (1, 1), (2, 2), (400, 400), (2**31 - 1, 400)])
def test_a_lying_count_never_leads_out_of_the_file(count: int, used: int) -> None:
    content = small_file(header=index.IndexHeader(0, 0, 0, 0, 0, count), slots={})
    assert index.decode(content, SMALL).used == used


def test_a_file_of_another_length_is_refused() -> None:
    with pytest.raises(FormatError) as caught:
        index.decode(bytes(8441), SMALL)
    assert caught.value.reason == "bad-length"


def test_time_differences_are_whole_seconds_and_never_negative() -> None:
    assert index.time_diff(1000, 4999) == 3
    assert index.time_diff(5000, 4999) == 0
    assert index.time_diff(0, 10**15) == 0
    assert index.time_diff(1, 2**62) == index.MAX_TIME_DIFF
