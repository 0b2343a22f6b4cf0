"""Which steps share records and syncs, and the arithmetic that lets zeros be counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from recover.change.carry_out import apply_plan, undo
from recover.change.model import Install, Plan, Retire, Step, WriteFile, WriteRange, ZeroRange
from recover.change.preconditions import seal
from recover.change.steps import batches
from recover.store.reading import crc_with_zeros, data_extents, file_crc
from tests.support.plans import INDEX, LOG, QUEUE, hole_map, small_store
from tests.support.trees import assert_same_tree, tree_digest


def test_parts_of_the_store_keep_their_order(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    steps: list[Step] = [
        Retire(INDEX), Retire("index/2"), ZeroRange(LOG, 0, 9), WriteRange(LOG, 20, b"x"), Install(QUEUE, b"q"),
        Install("consumequeue/T/0/0", b"q"), WriteFile("checkpoint", b"c"), Retire("abort"),
    ]
    assert list(batches(store, steps)) == [[0, 1], [2, 3], [4, 5], [6], [7]]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_file_that_grows_in_any_order_of_steps(order: tuple[int, ...], tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    steps = [WriteRange(QUEUE, 2000, b"g" * 3000), ZeroRange(QUEUE, 5000, 9000), WriteRange(QUEUE, 15_000, b"h" * 5000)]
    old, before, holes = (store / QUEUE).read_bytes(), tree_digest(store), hole_map(store)
    apply_plan(store, seal(Plan("recover", [steps[number] for number in order]), store))
    assert (store / QUEUE).read_bytes() == old[:2000] + b"g" * 3000 + bytes(10_000) + b"h" * 5000
    undo(store)
    assert_same_tree(before, tree_digest(store))
    assert hole_map(store) == holes


def test_many_steps_on_one_block_come_back_one_by_one(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    before, holes = tree_digest(store), hole_map(store)
    steps = [WriteRange("commitlog/00000000000000131072", 40_000 + 10 * n, bytes([n + 1]) * 7) for n in range(200)]
    apply_plan(store, seal(Plan("recover", steps), store))
    undo(store)
    assert_same_tree(before, tree_digest(store))
    assert hole_map(store) == holes


@given(st.binary(max_size=40), st.integers(0, 5000))
def test_zeros_are_counted_as_if_they_were_read(data: bytes, count: int) -> None:
    assert crc_with_zeros(crc32c(data), count) == crc32c(data + bytes(count))


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, None), (0, 0), (5, 70_000), (30_000, 200_000), (65_000, 65_900), (199_999, 999_999)],
)
def test_a_checksum_over_holes_is_that_of_the_bytes(
    start: int, stop: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"a" * 9000)
        file.seek(65_536)
        file.write(b"b" * 300)
        file.truncate(200_000)
    data = path.read_bytes()[start:stop]
    assert file_crc(path, start, stop) == (len(data), crc32c(data))
    with path.open("rb") as file:
        assert all(start <= a < b <= 200_000 for a, b in data_extents(file.fileno(), start, 200_000))
