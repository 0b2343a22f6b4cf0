"""Several wrong fields beside one another and beside damage: each record is repaired, and none pays for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.damage.patch import flip_bit
from formats.record import HEADS
from formats.record.rows import RECORD
from formats.sysflag import HOSTS_V6
from recover.log.generations import misnumbered_among
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.support.commitlog import Placed, placed_records

Fault = tuple[int, str, int]
"""Number of a record in the log, what is wrong with it, and which bit, counted from the lowest."""

PROVEN = ("queue_offset", "queue_id", "magic")
"""What comes back to what it was; nothing tells a damaged body, and other fields matter to nobody."""

CASES: list[tuple[str, list[Fault]]] = [
    # the place of the wrong number was taken for a lost one, and had the only marker that fits
    ("clean-4.5.1", [(339, "queue_offset", 28), (340, "body", 0)]),
    ("clean-4.5.1", [(1847, "body", 0), (1851, "queue_offset", 7), (1853, "body", 0)]),
    # both were said to be the same message
    ("clean-5.3.3", [(2257, "body", 0), (2258, "queue_offset", 32), (2259, "queue_offset", 22)]),
    # one queue has a record too many that leaps ahead, and after it one that falls back: a new generation, it seemed
    ("clean-4.5.1", [(567, "queue_id", 1), (569, "queue_offset", 2), (570, "magic", 30)]),
    ("clean-5.3.3", [(2675, "queue_offset", 30), (2676, "queue_id", 16), (2677, "queue_offset", 4)]),
    # all after the body was older than both records before it
    ("clean-4.5.1", [(594, "store_timestamp", 61), (595, "store_timestamp", 11), (596, "body", 0)]),
    ("clean-4.5.1", [(621, "store_timestamp", 59), (622, "store_timestamp", 4), (623, "body", 0)]),
    ("clean-5.3.3", [(2153, "store_timestamp", 54), (2154, "store_timestamp", 11), (2155, "body", 0)]),
]


def place_of(placed: Placed, fault: Fault) -> tuple[int, int]:
    """Where in its mapped file the bit lies: position and number in the byte."""
    _, what, bit = fault
    layout = HEADS[placed.record.sys_flag & HOSTS_V6]
    if what == "body":
        return placed.offset + layout.size + len(placed.record.body) // 2, bit
    field = layout.field(what)
    return placed.offset + field.offset + field.size - 1 - bit // 8, bit % 8


@pytest.mark.parametrize(("name", "faults"), CASES)
def test_each_of_several_neighbouring_faults_is_put_right(
    store: Callable[[str], Path], name: str, faults: list[Fault]
) -> None:
    root = store(name)
    messages = mqtool("verify", root, "--json").document["commitlog"]["messages"]
    placed = placed_records(name)
    files = {file.file_from_offset: file.path for file in Store.open(root).commitlog.files}
    for fault in faults:
        each = placed[fault[0]]
        flip_bit(root, files[each.file_from_offset], *place_of(each, fault))
    bodies = {number for number, what, _ in faults if what == "body"}
    lost = [
        (record.topic_name, 1, record.queue_offset, record.queue_offset)
        for record in (placed[number].record for number in sorted(bodies))
    ]
    result = mqtool("recover", root, "--yes", "--json")
    stated = result.document["plan"]["loss"]
    assert result.code in (1, 4, 5)
    assert sum(entry["messages"] for entry in stated) == len(lost)
    if len(lost) == 1:
        assert [(e["topic"], e["messages"], e["first_offset"], e["last_offset"]) for e in stated] == lost
    # a field of an intact record is written when asked for
    if result.code & 4:
        assert mqtool("recover", root, "--yes", "--mend-bits", "--json").code in (0, 1)
    after = mqtool("verify", root, "--json")
    assert after.code == 0
    assert after.document["commitlog"]["messages"] == messages - len(lost)
    assert after.document["commitlog"]["superseded"] == after.document["commitlog"]["ghosts"] == 0
    content = {base: path.read_bytes() for base, path in files.items()}
    left = {number: what for number, what, _ in faults if what not in PROVEN}
    for number, each in enumerate(placed):
        if number not in left:
            stored = content[each.file_from_offset][each.offset : each.offset + len(each.raw)]
            assert stored == each.raw


@pytest.mark.parametrize(("offsets", "strays"), [
    ([0, 1, 2, 500, 600, 5, 6, 7], [3, 4]),
    ([0, 1, 2, 500, 1, 5, 6], [3, 4]),
    ([0, 1, 2, 48, 33, 4, 5], [3, 4]),
    ([0, 1, 2, 900, 800, 700, 6, 7], [3, 4, 5]),
    ([0, 1, 2, 600, 3, 4], [3]),
    # numbered anew, with and without a number missing before or a second time
    ([0, 1, 2, 1, 2, 3, 4], []),
    ([0, 1, 2, 3, 1, 2, 3, 4], []),
    ([0, 1, 3, 0, 1, 2, 3, 4], []),
    ([0, 1, 3, 4, 1, 2, 3, 4], []),
    ([0, 2, 0, 1, 2, 3, 4], []),
    ([0, 1, 2, 0, 1, 3, 4, 5, 2, 3, 4, 5], []),
    # so many are lost that the queue may have come that far
    ([0, 1, 2, 600, 700, 701, 702, 1, 2], []),
])
def test_a_few_numbers_out_of_order_are_strays_where_the_order_goes_on(offsets: list[int], strays: list[int]) -> None:
    assert np.flatnonzero(misnumbered_among(np.array(offsets))).tolist() == strays


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(3, 40)), min_size=1, max_size=5))
def test_a_queue_numbered_anew_has_no_stray(generations: list[tuple[int, int]]) -> None:
    offsets: list[int] = []
    for first, length in generations:
        # the same number twice may as well be a wrong one before the right one
        first = min(first, offsets[-1] - 1) if offsets else first
        offsets += range(first, first + length)
    assert not misnumbered_among(np.array(offsets)).any()


def rows(*times: int) -> np.ndarray:
    records = np.zeros(len(times), dtype=RECORD)
    records["store_timestamp"] = times
    records["queue_offset"] = np.arange(len(times)) + 1
    return records
