"""Start files, scans and truncation of the log, release by release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from formats.checkpoint import EMPTY
from formats.record.rows import RECORD
from recover.broker.record_check import Checked, CheckRules
from recover.broker.recovery import Mode, Runs, ScanEnd, end_of, scan, start_file, unlinked
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.log.scan import LocalEngine
from recover.predict.dispatch import BrokerLog, reput
from recover.store.columns import Rows
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

    def checked(self, message: Checked) -> None:
        self.offsets.append(message.phy_offset)
        self.slow += 1


def run(log: BrokerLog, first: int, version: str, **given: str) -> tuple[ScanEnd, Collector]:
    seen = Collector()
    return scan(log, first, CheckRules.of(settings(version, **given)), seen), seen


def first_times(log: BrokerLog) -> list[int]:
    return [int(log.rows(index)["store_timestamp"][0]) for index in range(4)]


# --- the start file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "mode", "max_of_queues", "index"),
    [
        ("4.5.1", "normal", LOG_END, 2), ("4.9.7", "normal", LOG_END, 2), ("5.3.1", "normal", -1, 2),
        ("5.3.3", "normal", LOG_END, 3), ("5.3.3", "normal", MIB, 1), ("5.3.3", "normal", MIB - 1, 0),
        ("5.3.3", "normal", -1, 0), ("5.5.0", "normal", LOG_END, 3), ("5.5.0", "normal", -1, 0),
    ],
)
def test_normal_start_file(
    store: Callable[[str], Path], version: str, mode: Mode, max_of_queues: int, index: int
) -> None:
    log = log_of(store(V2_STORE))
    assert start_file(log, mode, settings(version), EMPTY, max_of_queues).index == index


def test_pre_allocated_file_is_a_file_to_start_in_for_5_3_3_and_none_for_5_4_0(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    assert len(log.files) == 5
    assert start_file(log, "normal", settings("5.3.3"), EMPTY, 4 * MIB).index == 4
    assert start_file(log, "normal", settings("5.4.0"), EMPTY, 4 * MIB).index == 3


def test_abnormal_start_file_is_the_newest_that_the_checkpoint_covers(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    times = first_times(log)
    covered = EMPTY._replace(physic_msg_timestamp=times[2] + 3000, logics_msg_timestamp=times[3] + 9000)
    for version in ("5.1.0", "5.3.3", "5.4.0"):
        assert start_file(log, "abnormal", settings(version), covered, -1).index == 2
    short = covered._replace(physic_msg_timestamp=times[2] + 2999)
    assert start_file(log, "abnormal", settings("5.3.3"), short, -1).index == 1


def test_the_smallest_time_of_a_checkpoint_is_later_than_every_record(store: Callable[[str], Path]) -> None:
    """The margin is subtracted from a long, which wraps: 4.5.1, 4.9.7 and 5.3.3 begin at the newest file."""
    log = log_of(store(V2_STORE))
    least = EMPTY._replace(physic_msg_timestamp=-1 << 63)
    for version in ("4.5.1", "4.9.7", "5.3.3"):
        assert start_file(log, "abnormal", settings(version), least, -1).index == 3
    assert start_file(log, "abnormal", settings("5.5.0"), least, -1).index == 0


@pytest.mark.parametrize("setting", ["indexRocksDBEnable", "transRocksDBEnable"])
def test_a_database_that_has_seen_no_message_matches_the_first_record_alone(
    store: Callable[[str], Path], setting: str
) -> None:
    log = log_of(store(V2_STORE))
    assert start_file(log, "normal", settings("5.5.0"), EMPTY, LOG_END).index == 3
    assert start_file(log, "normal", settings("5.5.0", **{setting: "true"}), EMPTY, LOG_END).index == 0
    assert start_file(log, "normal", settings("5.3.3", **{setting: "true"}), EMPTY, LOG_END).index == 3
    # what one with messages has seen is not read
    assert start_file(log, "normal", settings("5.5.0", **{setting: "true"}), EMPTY, LOG_END, fresh=False).index == 3


def test_transactions_in_a_database_alone_choose_the_start_file_of_5_4_0(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    both = settings("5.4.0", transRocksDBEnable="true")
    assert start_file(log, "normal", both, EMPTY, LOG_END).index == 3
    alone = settings("5.4.0", transRocksDBEnable="true", transWriteOriginTransHalfEnable="false")
    assert start_file(log, "normal", alone, EMPTY, LOG_END).index == 0


def test_index_time_joins_with_message_index_safe(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    times = first_times(log)
    late = times[3] + 9000
    checkpoint = EMPTY._replace(physic_msg_timestamp=late, logics_msg_timestamp=late, index_msg_timestamp=times[1])
    assert start_file(log, "abnormal", settings("5.3.3"), checkpoint, -1).index == 3
    for version in ("5.3.3", "5.4.0"):
        safe = settings(version, messageIndexSafe="true")
        assert start_file(log, "abnormal", safe, checkpoint, -1).index == 1


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


def test_5_5_0_goes_by_the_queue_offset_else_by_the_queue_time_without_margin(store: Callable[[str], Path]) -> None:
    log = log_of(store(V2_STORE))
    times = first_times(log)
    checkpoint = EMPTY._replace(logics_msg_timestamp=times[1])
    assert start_file(log, "abnormal", settings("5.5.0"), checkpoint, -1).index == 1
    checkpoint = checkpoint._replace(logics_physical_offset=2 * MIB)
    assert start_file(log, "abnormal", settings("5.5.0"), checkpoint, -1).index == 2
    assert start_file(log, "abnormal", settings("5.4.0"), checkpoint, -1).index == 0


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
    offsets = log.rows(0)["phy_offset"]
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
    victim = int(log.rows(0)["phy_offset"][100])
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
    victim = int(log.rows(0)["phy_offset"][50])
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
    runs, parts = Runs(rows, CheckRules.of(settings("4.9.7"))), []
    while not parts or parts[-1].size:
        parts.append(runs.at(end_of(parts[-1]) if parts else 0, 100 * rows.size))
    assert len(parts) > 3 and np.array_equal(np.concatenate(parts), rows)
