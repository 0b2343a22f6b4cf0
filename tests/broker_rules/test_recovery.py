"""Start files, scans and truncation of the log, release by release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formats.checkpoint import EMPTY, Checkpoint
from formats.record.rows import RECORD
from recover.broker.record_check import Checked, CheckRules
from recover.broker.recovery import Mode, Runs, ScanEnd, end_of, scan, start_file, unlinked
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.log.scan import LocalEngine
from recover.predict.dispatch import BrokerLog, reput
from recover.store.columns import Rows, Split, joined
from recover.store.mapped_files import MappedFile
from recover.store.store import Store
from tests.support.stores import flip, log_place

MIB = 1 << 20
V2_STORE = "killed-v2-ipv6-5.3.3"
LOG_END = 3278978


def settings(version: str, **given: str) -> BrokerSettings:
    return BrokerSettings(BrokerVersion.parse(version), given)


def log_of(root: Path) -> BrokerLog:
    store = Store.open(root)
    return BrokerLog(store.commitlog.files, store.commitlog.file_size, LocalEngine().scan_log(store.commitlog))


class Collector:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.slow = 0

    def rows(self, rows: Rows) -> None:
        self.offsets += rows["phy_offset"].tolist()

    def passes(self, split: Split) -> bool:
        return False

    def checked(self, message: Checked) -> None:
        self.offsets.append(message.phy_offset)
        self.slow += 1


def run(log: BrokerLog, first: int, version: str, **given: str) -> tuple[ScanEnd, Collector]:
    seen = Collector()
    return scan(log, first, CheckRules.of(settings(version, **given)), seen), seen


def rows_of(log: BrokerLog, index: int) -> Rows:
    return joined([split.records for split in log.splits(index)])


def first_times(log: BrokerLog) -> list[int]:
    return [int(rows_of(log, index)["store_timestamp"][0]) for index in range(4)]


# --- the start file -------------------------------------------------------------------------------------------------


def seen_until(times: list[int], **fields: Any) -> Checkpoint:
    """A checkpoint with times so long (ms) after the first record of a file, `queue=(1, 9000)`, and other fields."""
    names = {"log": "physic_msg_timestamp", "queue": "logics_msg_timestamp", "index": "index_msg_timestamp"}
    return EMPTY._replace(**{
        names.get(name, name): times[value[0]] + value[1] if isinstance(value, tuple) else value
        for name, value in fields.items()
    })


ALONE = {"transRocksDBEnable": "true", "transWriteOriginTransHalfEnable": "false"}
LATE = {"log": (3, 9000), "queue": (3, 9000), "index": (1, 0)}
STARTS: dict[str, list[tuple[Mode, dict[str, str], dict[str, Any], int, dict[str, int]]]] = {
    "normal: the third file from the end up to 5.3.1": [
        ("normal", {}, {}, LOG_END, {"4.5.1": 2, "4.9.7": 2}), ("normal", {}, {}, -1, {"5.3.1": 2})],
    "normal: the file where queues end from 5.3.2 on": [
        ("normal", {}, {}, LOG_END, {"5.3.3": 3, "5.5.0": 3}), ("normal", {}, {}, MIB, {"5.3.3": 1}),
        ("normal", {}, {}, MIB - 1, {"5.3.3": 0}), ("normal", {}, {}, -1, {"5.3.3": 0, "5.5.0": 0})],
    "a file made ahead is one to start in for 5.3.3 and none for 5.4.0": [
        ("normal", {}, {}, 4 * MIB, {"5.3.3": 4, "5.4.0": 3})],
    "abnormal: the newest file that the checkpoint covers": [
        ("abnormal", {}, {"log": (2, 3000), "queue": (3, 9000)}, -1, {"5.1.0": 2, "5.3.3": 2, "5.4.0": 2}),
        ("abnormal", {}, {"log": (2, 2999), "queue": (3, 9000)}, -1, {"5.3.3": 1})],
    # the margin is subtracted from a long, which wraps: seen with 4.5.1, 4.9.7 and 5.3.3
    "the smallest time of a checkpoint is later than every record": [
        ("abnormal", {}, {"log": -1 << 63}, -1, {"4.5.1": 3, "4.9.7": 3, "5.3.3": 3, "5.5.0": 0})],
    "a database that has seen no message matches the first record alone": [
        ("normal", {setting: "true"}, {}, LOG_END, {"5.5.0": 0, "5.3.3": 3})
        for setting in ("indexRocksDBEnable", "transRocksDBEnable")],
    "transactions in a database alone choose the start file of 5.4.0": [
        ("normal", {"transRocksDBEnable": "true"}, {}, LOG_END, {"5.4.0": 3}),
        ("normal", ALONE, {}, LOG_END, {"5.4.0": 0})],
    "the time of the index joins with messageIndexSafe": [
        ("abnormal", {}, LATE, -1, {"5.3.3": 3}),
        ("abnormal", {"messageIndexSafe": "true"}, LATE, -1, {"5.3.3": 1, "5.4.0": 1})],
    "5.5.0 goes by the queue offset, else by the queue time without a margin": [
        ("abnormal", {}, {"queue": (1, 0)}, -1, {"5.5.0": 1}),
        ("abnormal", {}, {"queue": (1, 0), "logics_physical_offset": 2 * MIB}, -1, {"5.5.0": 2, "5.4.0": 0})],
}


@pytest.mark.parametrize("clause", STARTS)
def test_start_file(clause: str, store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    assert len(log.files) == 5
    for mode, given, fields, max_of_queues, expected in STARTS[clause]:
        checkpoint = seen_until(first_times(log), **fields)
        for version, index in expected.items():
            assert start_file(log, mode, settings(version, **given), checkpoint, max_of_queues).index == index, version


def test_what_a_database_with_messages_has_seen_is_not_read(store: Callable[[str], Path]) -> None:
    log, told = log_of(store(V2_STORE)), settings("5.5.0", transRocksDBEnable="true", indexRocksDBEnable="true")
    assert start_file(log, "normal", told, EMPTY, LOG_END, fresh=False).index == 3


def test_without_a_checkpoint_the_search_ends_at_the_first_file(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    for version in ("4.9.7", "5.3.3", "5.4.0", "5.5.0"):
        chosen = start_file(log, "abnormal", settings(version), EMPTY, LOG_END)
        assert (chosen.index, chosen.matched) == (0, False)


def test_search_is_limited_from_5_4_0(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    for mode in ("normal", "abnormal"):
        limited = settings("5.4.0", commitLogRecoverMaxNum="2")
        chosen = start_file(log, mode, limited, EMPTY, -1)
        # the pre-allocated file counts as one of the two
        assert (chosen.index, chosen.matched) == (3, False)
    none = settings("5.4.0", commitLogRecoverMaxNum="0")
    assert start_file(log, "abnormal", none, EMPTY, -1).index == 0


def test_damaged_first_record_is_no_start_from_5_4_0_and_not_noticed_before(store: Callable[[str], Path]) -> None:
    root = store(V2_STORE)
    # a byte of the topic's end and of the body of the first record of file 3
    flip(*log_place(root, 3 * MIB + 130))
    late = EMPTY._replace(physic_msg_timestamp=1 << 50, logics_msg_timestamp=1 << 50)
    log = log_of(root)
    assert start_file(log, "abnormal", settings("5.3.3"), late, -1).index == 3
    assert start_file(log, "abnormal", settings("5.4.0"), late, -1).index == 2


# --- the scan -------------------------------------------------------------------------------------------------------


def test_scan_passes_over_all_files_up_to_the_zero_one(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    end, seen = run(log, 0, "5.3.3")
    assert end.process_offset == LOG_END and len(seen.offsets) == 5000 and seen.slow == 0
    assert [f.file_from_offset for f in unlinked(log.files, end.process_offset)] == [4 * MIB]


def test_scan_ends_before_v2_records_up_to_5_0(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    end, seen = run(log, 0, "5.0.0")
    assert (end.process_offset, end.reason, seen.offsets) == (0, "bad-magic", [])


def test_scan_ends_at_a_damaged_body_unless_told_not_to_look(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    log = log_of(root)
    offsets = rows_of(log, 0)["phy_offset"]
    victim = int(offsets[len(offsets) // 2])
    flip(*log_place(root, victim + 88))
    log = log_of(root)
    end, seen = run(log, 0, "5.3.3")
    assert (end.process_offset, end.reason) == (victim, "bad-body-crc") and seen.offsets[-1] < victim
    end, seen = run(log, 0, "5.3.3", checkCRCOnRecover="false")
    assert end.process_offset == 1738684 and seen.slow == 1 and len(seen.offsets) == 2765


def test_scan_believes_a_wrong_own_offset_but_for_the_check_of_5_5_0(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    log = log_of(root)
    victim = int(rows_of(log, 0)["phy_offset"][100])
    flip(*log_place(root, victim + 28 + 4))
    log = log_of(root)
    _, seen = run(log, 0, "5.3.3")
    assert victim ^ 1 << 24 in seen.offsets and len(seen.offsets) == 2765
    rules = CheckRules.of(settings("5.5.0"))
    assert scan(log, 0, rules, Collector(), own_file_only=True).process_offset == victim


def test_scan_passes_over_a_missing_file(store: Callable[[str], Path]) -> None:
    root = store(V2_STORE)
    (root / "commitlog" / f"{MIB:020d}").unlink()
    log = log_of(root)
    end, seen = run(log, 0, "5.3.3")
    assert end.process_offset == LOG_END
    assert not any(MIB <= offset < 2 * MIB for offset in seen.offsets)


def test_blank_of_the_last_file_is_where_the_log_goes_on(store: Callable[[str], Path]) -> None:
    root = store(V2_STORE)
    for index in (3, 4):
        (root / "commitlog" / f"{index * MIB:020d}").unlink()
    log = log_of(root)
    end, seen = run(log, 2, "5.3.3")
    assert end.reason == "end-of-files" and seen.offsets[-1] < end.process_offset < 3 * MIB
    assert not unlinked(log.files, end.process_offset)


def test_file_that_begins_at_the_end_is_kept() -> None:
    files = [MappedFile(Path(str(start)), start, 100) for start in (0, 100, 200, 300)]
    assert [f.file_from_offset for f in unlinked(files, 200)] == [300]
    assert [f.file_from_offset for f in unlinked(files, 199)] == [200, 300]


# --- dispatch after recovery ---------------------------------------------------------------------------------------


def reputted(root: Path, start: int, end: int) -> tuple[int | None, Collector]:
    log = log_of(root)
    seen = Collector()
    return reput(log, start, end, CheckRules.of(settings("4.9.7"), recovering=False), seen), seen


def reputted_over(root: Path, at: int) -> tuple[int | None, list[int], int]:
    """The same, the offsets alone, of a log with a flipped bit in byte `at` of its 51st record; and where that is."""
    log = log_of(root)
    victim = int(rows_of(log, 0)["phy_offset"][50])
    flip(*log_place(root, victim + at))
    stuck, seen = reputted(root, 0, 1305932)
    return stuck, seen.offsets, victim


def test_reput_takes_damaged_bodies(store: Callable[[str], Path]) -> None:
    stuck, seen, victim = reputted_over(store("clean-4.5.1"), 88)
    assert stuck is None and len(seen) == 2171 and victim in seen


def test_reput_jumps_to_the_next_file_at_a_broken_record(store: Callable[[str], Path]) -> None:
    stuck, seen, victim = reputted_over(store("clean-4.5.1"), 4)
    assert stuck is None and seen[49] < victim and seen[50] == MIB


def test_reput_goes_on_behind_a_wrong_size(store: Callable[[str], Path]) -> None:
    _, seen, victim = reputted_over(store("clean-4.5.1"), 3)
    assert victim not in seen and len(seen) == 2170


def test_reput_waits_for_ever_at_a_gap(store: Callable[[str], Path]) -> None:
    root = store("killed-5.5.0")
    (root / "commitlog" / f"{MIB:020d}").unlink()
    stuck, seen = reputted(root, 0, 2 * MIB)
    assert stuck == MIB and seen.offsets[-1] < MIB


def test_a_long_run_comes_in_parts_that_adjoin() -> None:
    rows = np.zeros(600_000, dtype=RECORD)
    rows["size"], rows["phy_offset"] = 100, 100 * np.arange(rows.size)
    runs, parts = Runs([Split(rows, np.empty(0, dtype=np.int32))], CheckRules.of(settings("4.9.7"))), []
    while not parts or parts[-1].size:
        parts.append(runs.at(end_of(parts[-1]) if parts else 0, 100 * rows.size))
    assert len(parts) > 3 and np.array_equal(np.concatenate(parts), rows)


@pytest.mark.parametrize("before", [0, 1, 8190, 8191, 8192, 8193, 16_383, 16_384, 19_998])
def test_a_run_ends_before_the_record_that_does_not_adjoin_wherever_that_is(before: int) -> None:
    rows = np.zeros(20_000, dtype=RECORD)
    rows["size"], rows["phy_offset"] = 100, 100 * np.arange(rows.size)
    rows["phy_offset"][before + 1 :] += 8
    runs, end = Runs([Split(rows, np.empty(0, dtype=np.int32))], CheckRules.of(settings("4.9.7"))), 100 * (before + 1)
    assert np.array_equal(runs.at(0, 100 * rows.size), rows[: before + 1])
    assert runs.at(end, 200 * rows.size).size == 0
    assert np.array_equal(runs.at(end + 8, 200 * rows.size), rows[before + 1 :])
