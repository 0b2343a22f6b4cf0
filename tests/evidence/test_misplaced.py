"""Queue files are gone, and a field that no checksum covers is wrong: the log alone shows which, or it is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage.patch import flip_bit, overwrite
from fixtures.synth import StoreWriter, synth_store
from formats.consumequeue import CQ_UNIT, CqUnit
from formats.record import HEADS
from formats.record.rows import RECORD
from formats.sysflag import HOSTS_V6, TRANSACTION
from mqtool import exits
from recover.log.scan import scan_log
from tests.cli.runner import Result, mqtool
from tests.support.commitlog import Placed, placed_records
from tests.support.looks import opened
from tests.support.sampling import sampled

FIRST, LAST, MIDDLE = "first", "last", "middle"
RECORD_QUEUE, RECORD_QUEUE_OFFSET = (RECORD.names.index(name) for name in ("queue", "queue_offset"))
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
    path = root / "commitlog" / f"{placed.file_from_offset:020d}"
    flip_bit(root, path, placed.offset + at.offset + at.size - 1 - bit // 8, bit % 8)


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


@pytest.mark.parametrize(("name", "changed"), sampled(NAMES, BITS, quick=len(BITS)))
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


@pytest.mark.parametrize("which", [MIDDLE, LAST])
@pytest.mark.parametrize("name", ["clean-4.5.1", "clean-5.3.3", "killed-5.5.0"])
def test_a_record_whose_topic_nobody_knows_goes_back_to_its_own(
    store: Callable[[str], Path], name: str, which: str
) -> None:
    root = store(name)
    before = log_bytes(root)
    placed = record_of(name, which)
    layout = HEADS[placed.record.sys_flag & HOSTS_V6]
    at = placed.raw.index(placed.record.topic, layout.size + len(placed.record.body))
    flip_bit(root, root / "commitlog" / f"{placed.file_from_offset:020d}", placed.offset + at + 1, 1)
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
    log = scan_log(opened(root).commitlog)
    rows = [row for split in log.splits() for row in split.records.tolist() if row[RECORD_QUEUE_OFFSET] == 100]
    assert len(rows) == 2
    for bit, row in enumerate(rows):
        base = next(f for f in opened(root).commitlog.files if row[0] < f.file_from_offset + 65536)
        at = row[0] - base.file_from_offset + HEADS[0].offset("queue_id") + 1
        flip_bit(root, base.path, at, bit)
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
    log = scan_log(opened(root).commitlog)
    (row,) = [
        row for split in log.splits() for row in split.records.tolist()
        if row[RECORD_QUEUE_OFFSET] == 100 and log.queues[row[RECORD_QUEUE]][1] == 0
    ]
    base = next(f for f in opened(root).commitlog.files if row[0] < f.file_from_offset + 65536)
    at = row[0] - base.file_from_offset
    # number 36 of queue 1: neither a number nor a queue alone explains it
    flip_bit(root, base.path, at + HEADS[0].offset("queue_id") + 3, 0)
    flip_bit(root, base.path, at + HEADS[0].offset("queue_offset") + 7, 6)
    result = recovered(root)
    found = {item["code"]: item["facts"] for item in result.document["findings"]}
    assert found["commitlog-unplaced-record"]["start"] == row[0]
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
