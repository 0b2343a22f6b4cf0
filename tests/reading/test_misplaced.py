"""Queue files are gone, and a field that no checksum covers is wrong: the log alone shows which, or it is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fixtures.damage.patch import flip_bit, overwrite
from fixtures.synth import StoreWriter, synth_store
from formats.consumequeue import CQ_UNIT, CqUnit
from formats.record import HEADS
from formats.sysflag import HOSTS_V6, TRANSACTION
from mqtool import exits
from recover.log.generations import misnumbered_among
from recover.log.judge import Claim, most_claimed
from tests.cli.runner import Result, mqtool
from tests.support import plain_reader as plain
from tests.support.commitlog import Placed, placed_records
from tests.support.sampling import few, sampled
from tests.support.stores import flip, log_place, strike

# --- Queue files are gone, and a field that no checksum covers is wrong: the log alone shows which, or it is told.


FIRST, LAST, MIDDLE = "first", "last", "middle"
NAMES = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0", "killed-v2-ipv6-5.3.3")


def record_of(name: str, which: str) -> Placed:
    """The first, middle or last message of the queue that has most of them."""
    queues: dict[tuple[bytes, int], list[Placed]] = {}
    for placed in placed_records(name):
        if placed.record.sys_flag & TRANSACTION == 0:
            queues.setdefault((placed.record.topic, placed.record.queue_id), []).append(placed)
    own = max(queues.values(), key=len)
    return {FIRST: own[0], LAST: own[-1], MIDDLE: own[len(own) // 2]}[which]


def change(root: Path, placed: Placed, field: str, bit: int) -> None:
    at = HEADS[placed.record.sys_flag & HOSTS_V6].field(field)
    flip(*log_place(root, placed.phy_offset + at.offset + at.size - 1 - bit // 8), 1 << bit % 8)


def recovered(root: Path) -> Result:
    shutil.rmtree(root / "consumequeue")
    return mqtool("recover", root, "--yes", "--mend-bits", "--json")


def log_bytes(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "commitlog").iterdir())]


BITS = (
    (MIDDLE, "queue_offset", 3), (MIDDLE, "queue_offset", 44), (MIDDLE, "queue_id", 4), (MIDDLE, "queue_id", 30),
    (FIRST, "queue_offset", 38),
    # it was a million messages that the queue seemed to lack, or more than there is memory for
    (LAST, "queue_offset", 20), (LAST, "queue_offset", 44), (LAST, "queue_offset", 61),
    (LAST, "queue_id", 4), (LAST, "queue_id", 30),
)


@pytest.mark.parametrize(("name", "changed"), sampled(NAMES, BITS, quick=3))
def test_the_log_alone_shows_what_number_and_queue_a_record_has(
    store: Callable[[str], Path], name: str, changed: tuple[str, str, int]
) -> None:
    which, field, bit = changed
    root = store(name)
    before = log_bytes(root)
    change(root, record_of(name, which), field, bit)
    result = recovered(root)
    (item,) = result.document["bridged"]
    assert (item["kind"], item["field"]) == ("restored", field)
    assert log_bytes(root) == before
    queues = result.document["verify"]["consumequeue"]
    assert (queues["missing"], queues["wrong"], queues["lost"]) == (0, 0, 0)
    assert queues["right"] == queues["expected"] == queues["units"]


@pytest.mark.parametrize(("name", "which"), [("clean-4.5.1", MIDDLE), ("killed-5.5.0", LAST)])
def test_a_record_whose_topic_nobody_knows_goes_back_to_its_own(
    store: Callable[[str], Path], name: str, which: str
) -> None:
    root = store(name)
    before = log_bytes(root)
    placed = record_of(name, which)
    layout = HEADS[placed.record.sys_flag & HOSTS_V6]
    at = placed.raw.index(placed.record.topic, layout.size + len(placed.record.body))
    flip(*log_place(root, placed.phy_offset + at + 1), 2)
    result = recovered(root)
    assert [item["field"] for item in result.document["bridged"]] == ["topic"]
    assert log_bytes(root) == before


@pytest.mark.parametrize("gone", [False, True])
def test_a_record_in_front_of_a_queue_that_begins_behind_it_is_no_older_topic(
    store: Callable[[str], Path], gone: bool
) -> None:
    root = store("clean-4.5.1")
    before = log_bytes(root)
    delayed = [each for each in placed_records("clean-4.5.1") if each.record.topic == b"SCHEDULE_TOPIC_XXXX"]
    last = [each for each in delayed if each.record.queue_id == 0][-1]
    assert last.phy_offset < min(each.phy_offset for each in delayed if each.record.queue_id == 2)
    change(root, last, "queue_id", 1)
    result = recovered(root) if gone else mqtool("recover", root, "--yes", "--mend-bits", "--json")
    assert [item["field"] for item in result.document["bridged"]] == ["queue_id"]
    assert log_bytes(root) == before
    assert (result.code, mqtool("verify", root).code) == (1, 0)


def test_rebuild_leaves_the_record_to_recover_and_says_so(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    before = log_bytes(root)
    change(root, record_of("clean-5.3.3", MIDDLE), "queue_id", 16)
    shutil.rmtree(root / "consumequeue")
    result = mqtool("rebuild", root, "--yes", "--json")
    assert result.code & 4 and "1 damaged message left" in result.document["summary"]
    result = mqtool("recover", root, "--yes", "--mend-bits", "--json")
    assert (result.code, mqtool("verify", root).code) == (1, 0)
    assert log_bytes(root) == before


def test_what_two_records_may_be_is_told_and_left(tmp_path: Path) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=400, topics=1, queues=2, mapped_file_size=65536)
    one, other = (record.phy_offset for record in plain.records(root) if record.queue_offset == 100)
    for bit, at in enumerate((one, other)):
        flip(*log_place(root, at + HEADS[0].offset("queue_id") + 1), 1 << bit)
    result = recovered(root)
    assert result.code & 4 == 0 and result.document["bridged"] == []
    found = [item["facts"] for item in result.document["findings"] if item["code"] == "commitlog-number-missing"]
    assert sorted((item["queue"], item["first"], item["last"]) for item in found) == [
        (0, 100, 100), (1, 100, 100), (65536, 0, 99), (131073, 0, 99),
    ]
    after = mqtool("verify", root, "--json")
    assert after.document["commitlog"]["messages"] == 400
    # a unit is repeated where the message would be, and nobody calls it wrong
    queues = after.document["consumequeue"]
    assert (after.code & 4, queues["wrong"], queues["lost"]) == (0, 0, 2)


def test_a_record_without_a_place_is_told_of(tmp_path: Path) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=400, topics=1, queues=2, mapped_file_size=65536)
    (at,) = (record.phy_offset for record in plain.records(root) if (record.queue_offset, record.queue_id) == (100, 0))
    # number 36 of queue 1: neither a number nor a queue alone explains it
    flip(*log_place(root, at + HEADS[0].offset("queue_id") + 3))
    flip(*log_place(root, at + HEADS[0].offset("queue_offset") + 7), 1 << 6)
    result = recovered(root)
    found = {item["code"]: item["facts"] for item in result.document["findings"]}
    assert found["commitlog-unplaced-record"]["start"] == at
    assert (found["commitlog-unplaced-record"]["queue"], found["commitlog-unplaced-record"]["queue_offset"]) == (1, 36)
    assert (found["commitlog-number-missing"]["queue"], found["commitlog-number-missing"]["first"]) == (0, 100)


def test_recover_leaves_a_queue_alone_whose_units_bear_out_a_leap(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, mapped_file_size=65536)
    for _ in range(30):
        writer.put("T", b"x" * 20)
    last = writer.put("T", b"x" * 20, queue_offset=90)
    damaged = writer.put("U", b"y" * 20)
    writer.put("U", b"z" * 20)
    writer.close()
    (path,) = (tmp_path / "consumequeue" / "T" / "0").iterdir()
    # a rebuild repeats the unit before where the log has no message
    units = path.read_bytes()[29 * CQ_UNIT.size : 30 * CQ_UNIT.size] * 60
    units += CQ_UNIT.encode(CqUnit(last.phy_offset, last.total_size, 0))
    overwrite(tmp_path, path, 30 * CQ_UNIT.size, units, "the end of the queue")
    flip_bit(tmp_path, tmp_path / "commitlog" / f"{0:020d}", damaged.phy_offset + HEADS[0].size + 5, 3)
    before = path.read_bytes()
    result = mqtool("recover", tmp_path, "--yes", "--json")
    assert (result.code & ~exits.DERIVED, len(result.document["bridged"])) == (exits.CORRECTED | exits.MESSAGES, 1)
    assert path.read_bytes() == before
    assert result.document["verify"]["commitlog"]["messages"] == 32


# --- Several wrong fields beside one another and beside damage: each record is repaired, and none pays for another.


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
]


@few(("name", "faults"), CASES, quick=(0, 3, 5))
def test_each_of_several_neighbouring_faults_is_put_right(
    store: Callable[[str], Path], name: str, faults: list[Fault]
) -> None:
    root = store(name)
    messages = mqtool("verify", root, "--json").document["commitlog"]["messages"]
    placed = placed_records(name)
    for number, what, bit in faults:
        each = placed[number].record
        if what == "body":
            body = HEADS[each.sys_flag & HOSTS_V6].size + len(each.body) // 2
            flip(*log_place(root, each.phy_offset + body), 1 << bit)
        else:
            change(root, placed[number], what, bit)
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
    content = plain.log_files(root)
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
    assert np.flatnonzero(misnumbered_among(np.array(offsets), np.arange(len(offsets)))).tolist() == strays


@pytest.mark.parametrize(("times", "stray"), [
    ([0, 1, 2, 3, 4], 2), ([0, 1, 2, -900, 4], 3), ([0, 1, -900, 3, 4], 2), ([0, 1, 2, 1, 4], 3),
    # the first one's clock is ahead of all others: nothing says that it belongs there
    ([0, 1, 900, 3, 4], 2),
])
def test_of_two_with_one_number_the_one_that_was_stored_in_order_belongs_there(times: list[int], stray: int) -> None:
    assert np.flatnonzero(misnumbered_among(np.array([0, 1, 2, 2, 3]), np.array(times))).tolist() == [stray]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(3, 40)), min_size=1, max_size=5))
def test_a_queue_numbered_anew_has_no_stray(generations: list[tuple[int, int]]) -> None:
    offsets: list[int] = []
    for first, length in generations:
        # the same number twice may as well be a wrong one before the right one
        first = min(first, offsets[-1] - 1) if offsets else first
        offsets += range(first, first + length)
    assert not misnumbered_among(np.array(offsets), np.arange(len(offsets))).any()


def test_a_record_with_two_wrong_fields_makes_no_message_an_old_one(store: Callable[[str], Path]) -> None:
    """All messages after it in its queue have lower queue offsets and earlier times."""
    root = store("clean-5.3.3")
    record = record_of("clean-5.3.3", FIRST)
    change(root, record, "queue_offset", 44)
    change(root, record, "store_timestamp", 41)
    assert mqtool("verify", root, "--json").document["commitlog"]["superseded"] == 0
    before = plain.delivered(root)
    assert not mqtool("recover", root, "--yes").code & exits.OPERATIONAL
    assert before.items() <= plain.delivered(root).items()


def test_a_wrong_unit_of_another_queue_does_not_put_off_the_place_left(store: Callable[[str], Path]) -> None:
    """The first recover removed the unit, and the second one gave the message its place."""
    root = store("killed-ext-4.5.1")
    strike("record-older-whole-at-end", root, 63387)
    assert mqtool("recover", root, "--yes").code & exits.CORRECTED
    assert not mqtool("recover", root, "--yes", "--json").document["applied"]


# --- No claim is believed alone, and none against more than speak for what is stored.


@pytest.mark.parametrize(("claims", "told"), [
    ([], "here"),
    ([Claim("unit", "there")], "here"),
    ([Claim("unit", "there"), Claim("neighbours", "there")], "there"),
    ([Claim("unit", "there"), Claim("neighbours", "there"), Claim("record", "here", 3)], "here"),
    ([Claim("unit", "there", 2), Claim("record", "elsewhere", 2)], "here"),
    ([Claim("unit", "there", 3), Claim("record", "elsewhere", 2), Claim("name", "here")], "there"),
])
def test_two_claims_or_more_than_for_what_is_stored(claims: list[Claim[str]], told: str) -> None:
    assert most_claimed(claims, "here") == told
