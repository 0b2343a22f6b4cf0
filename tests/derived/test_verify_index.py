"""The index is judged against the log: nothing wrong in what brokers wrote, and each kind of damage found."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import damage
from recover.derived import index_check as verify_index
from recover.derived import index_files as index_image
from recover.derived.index_check import check_index
from recover.derived.index_keys import TagHistory, TagRun
from recover.store.reader import FileReader
from tests.support.indexes import checked, opened, rebuilt, warnings, write
from tests.support.stores import EXPECTED, STORES, unpacked

StoreCopy = Callable[[str], Path]
UNITS = 40 + 4 * 500


@pytest.mark.parametrize("name", STORES)
def test_brokers_own_index_is_sound(name: str) -> None:
    report = checked(unpacked(name))
    entries = EXPECTED[name]["index_entries"]
    files = len(list((unpacked(name) / "index").iterdir()))
    assert report.json() == {
        "files": files, "entries": entries, "expected": entries, "missing": 0, "wrong": 0, "expired": 0, "lost": 0,
    }
    assert warnings(report) == []


FOUND = {
    "index-torn": {"index-count-wrong", "index-missing-units"},
    "index-page-zeroed": {"index-count-wrong", "index-missing-units"},
    "index-short": {"index-file-length"},
    "index-empty": {"index-file-length", "index-missing-units"},
    "index-count-too-large": {"index-count-wrong"},
    "index-count-too-small": {"index-count-wrong", "index-missing-units"},
    "index-slot-count": {"index-header-wrong"},
    "index-times-swapped": {"index-header-wrong"},
    "index-chain-cycle": {"index-chain-loop"},
    "index-slot-out-of-range": {"index-slot-out-of-range"},
    "index-slot-zeroed": {"index-wrong-slot"},
    "index-unit-elsewhere": {"index-wrong-units", "index-missing-units"},
    "index-unit-hash": {"index-wrong-units", "index-missing-units"},
    "index-last-missing": {"index-missing-units"},
    "index-middle-missing": {"index-missing-units"},
    "index-all-zero": {"index-missing-units"},
    "index-stray": set(),
    "index-newer-than-checkpoint": set(),
}


@pytest.mark.parametrize("recipe", FOUND)
@pytest.mark.parametrize("name", ["clean-4.5.1", "killed-5.5.0"])
def test_damage_is_found_and_named(recipe: str, name: str, store: StoreCopy) -> None:
    root = store(name)
    done = damage(recipe, root, seed=5)
    report = checked(root)
    assert FOUND[recipe] <= set(warnings(report)) <= FOUND[recipe] | {"index-count-wrong", "index-missing-units"}
    assert all(item.bits in (0, 2) for item in report.findings)
    if "slot" in done.facts and recipe != "index-chain-cycle":
        assert [item.facts["first"] for item in report.findings if item.severity == "warning"] == [done.facts["slot"]]
    if "number" in done.facts:
        assert (report.total("wrong"), report.missing) == (1, 1)
        (wrong,) = [item for item in report.findings if item.code == "index-wrong-units"]
        assert (wrong.facts["first"], wrong.offset) == (done.facts["number"], UNITS + 20 * done.facts["number"])


def test_every_key_is_either_found_or_missing(store: StoreCopy) -> None:
    root = store("killed-5.5.0")
    for seed in range(4):
        damage("index-unit-hash", root, seed)
        damage("index-unit-elsewhere", root, seed)
    report = checked(root)
    right = sum(verdict.right for verdict in report.verdicts)
    assert right + report.missing == report.expected == 9566
    assert report.total("wrong") == report.missing > 4


def test_neighbouring_messages_without_units_are_one_finding(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    damage("index-last-missing", root)
    (item,) = checked(root).findings
    assert item.facts == {"first": 1036367, "last": 1305651, "records": 480, "count": 1110}


def test_no_file_and_no_index_time_is_an_index_switched_off(store: StoreCopy) -> None:
    root = store("killed-v2-ipv6-5.3.3")
    shutil.rmtree(root / "index")
    assert warnings(checked(root)) == ["index-missing-units"]
    checkpoint = bytearray((root / "checkpoint").read_bytes())
    checkpoint[16:24] = bytes(8)
    (root / "checkpoint").write_bytes(checkpoint)
    report = checked(root)
    assert [item.code for item in report.findings] == ["index-switched-off"]
    assert (report.expected, report.missing) == (0, 0)


def test_tag_units_are_expected_without_files_only_of_a_broker_that_writes_them(store: StoreCopy) -> None:
    root = store("killed-5.5.0")
    shutil.rmtree(root / "index")
    assert checked(root).missing == 9566
    assert checked(root, broker="5.3.3").missing == 7143


def test_upgrade_in_the_middle_of_a_file_is_seen(store: StoreCopy) -> None:
    root = store("killed-5.5.0")
    log_store, log = opened(root)
    report = check_index(log_store, log)
    report.stream.tags = TagHistory([(0, False), (1_000_000, True)])
    shutil.rmtree(root / "index")
    write(rebuilt(unpacked("killed-5.5.0"), report=report, fresh=True), root / "index")
    after = checked(root)
    assert warnings(after) == []
    assert after.total("units") == after.expected < 9566
    assert [present for _, present in after.stream.tags.changes] == [False, True]


@pytest.mark.parametrize(("runs", "changes"), [
    ([], [False]),
    ([TagRun(0, 9, True)], [True]),
    ([TagRun(0, 9, True), TagRun(50, 3, False), TagRun(90, 5, False)], [True, False]),
    ([TagRun(90, 5, True), TagRun(0, 9, False)], [False, True]),
])
def test_tag_history_has_as_few_changes_as_possible(runs: list[TagRun], changes: list[bool]) -> None:
    assert [present for _, present in TagHistory.infer(runs, False).changes] == changes


def test_units_put_twice_are_not_wrong(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    first = sorted((root / "index").iterdir())[0]
    shutil.copy(first, first.with_name("20261121015608999"))
    report = checked(root)
    assert warnings(report) == []
    assert (report.total("units"), report.missing, report.total("wrong")) == (5108 + 1999, 0, 0)


def test_units_behind_the_end_of_the_log_are_told_from_lost_ones(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    damage("torn-tail-in-head", root)
    assert warnings(checked(root)) == ["index-beyond-log"]
    root = store("clean-4.5.1")
    lost = damage("bit-in-body", root).lost
    report = checked(root)
    assert warnings(report) == []
    assert len(lost) == 1 and report.total("lost") > 0 and report.total("wrong") == report.missing == 0


def test_wrong_time_is_found(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    path = sorted((root / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, UNITS + 20 * 77 + 12, 4000)
    path.write_bytes(content)
    report = checked(root)
    assert warnings(report) == ["index-wrong-time"]
    assert (report.total("wrong"), report.missing) == (1, 0)


def test_first_unit_may_count_from_the_end_of_a_file_that_is_gone(store: StoreCopy) -> None:
    root = store("clean-5.3.3")
    paths = sorted((root / "index").iterdir())
    last = bytearray(paths[-1].read_bytes())
    skew = struct.unpack_from(">i", last, UNITS + 20 + 12)[0]
    for path in paths[:-1]:
        path.unlink()
    struct.pack_into(">i", last, UNITS + 20 + 12, skew + 500)
    paths[-1].write_bytes(last)
    assert warnings(checked(root)) == ["index-missing-units"]
    struct.pack_into(">i", last, UNITS + 20 + 12, -1)
    paths[-1].write_bytes(last)
    assert "index-wrong-time" in warnings(checked(root))


def test_nearly_empty_files_by_the_hundred_are_one_info(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    for number in range(120):
        (root / "index" / f"20261121015609{number:03d}").write_bytes(bytes(42040))
    report = checked(root)
    assert [(item.code, item.facts["count"]) for item in report.findings] == [("index-near-empty-files", 120)]
    assert len(report.listing.files) == 123


def test_unreadable_file_is_not_taken_for_missing_units(store: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store("killed-5.5.0")
    hidden = sorted((root / "index").iterdir())[2]
    reader = verify_index.FileReader

    def failing(path: Path) -> FileReader:
        if path == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return reader(path)

    monkeypatch.setattr(verify_index, "FileReader", failing)
    report = checked(root)
    assert warnings(report) == ["index-unreadable"]
    assert [item.bits for item in report.findings if item.severity == "error"] == [8]
    assert report.missing == 0


def test_expired_units_are_counted_and_left_alone() -> None:
    report = checked(unpacked("clean-expired-5.5.0"))
    assert (report.total("units"), report.expected, report.total("expired")) == (3300, 1746, 1554)
    assert warnings(report) == []


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_are_judged_without_a_crash(seed: int, store: StoreCopy) -> None:
    root = store("killed-5.5.0")
    rng = random.Random(seed)
    for path in sorted((root / "index").iterdir())[:4]:
        content = bytearray(path.read_bytes())
        start = rng.randrange(len(content))
        content[start : start + rng.randrange(20_000)] = rng.randbytes(rng.randrange(20_000))
        path.write_bytes(content)
    report = checked(root, index_slots=500, index_entries=2000)
    assert "index-missing-units" in warnings(report)
    assert sum(verdict.right for verdict in report.verdicts) + report.missing == report.expected


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("name", ["clean-4.5.1", "killed-5.5.0", "killed-v2-ipv6-5.3.3", "killed-lmq-4.9.7"])
def test_what_a_log_without_index_files_lacks_is_one_finding_of_all_of_its_messages(
    name: str, tags: bool, store: StoreCopy
) -> None:
    root = store(name)
    shutil.rmtree(root / "index")
    (root / "checkpoint").unlink()
    opened_store, log = opened(root)
    one, three = (check_index(opened_store, log, tags=tags, threads=threads) for threads in (1, 3))
    assert [item.json() for item in one.findings] == [item.json() for item in three.findings]
    assert one.json() == three.json() and one.missing == one.expected > 0
    (lack,) = [item for item in one.findings if item.code == "index-missing-units"]
    assert (lack.facts["count"], lack.facts["last"] < log.log_end) == (one.missing, True)


def test_a_file_of_noise_is_told_in_so_many_findings(store: StoreCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    root = store("clean-5.3.3")
    path = sorted((root / "index").iterdir())[0]
    content = path.read_bytes()
    path.write_bytes(content[:40] + random.Random(7).randbytes(len(content) - 40))
    every = checked(root)
    monkeypatch.setattr(verify_index, "_MOST_RUNS", 5)
    some = checked(root)
    codes = {item.code for item in every.findings}
    assert {item.code for item in some.findings} == codes and some.json() == every.json()
    for code in codes:
        told, all_of_them = ([item for item in report.findings if item.code == code] for report in (some, every))
        assert len(told) == min(5, len(all_of_them))
        assert told[:4] == all_of_them[:4]
        if "count" in told[0].facts:
            assert sum(item.facts["count"] for item in told) == sum(item.facts["count"] for item in all_of_them)
            assert told[-1].facts["last"] == all_of_them[-1].facts["last"]
    assert len(every.findings) > 5 * len(codes)


@pytest.mark.parametrize("full", [False, True])
def test_a_large_file_with_a_flaw_is_judged_from_disk_as_from_memory(
    full: bool, store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store("clean-5.3.3")
    for seed in range(3):
        damage("index-unit-hash", root, seed)
    in_memory = checked(root)
    asked: list[int] = []

    def place(_file: int, _start: int, size: int) -> None:
        asked.append(size)
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(index_image, "_LARGE", 1)
    if full:
        monkeypatch.setattr("recover.store.columns.os.posix_fallocate", place)
    from_disk = checked(root)
    assert from_disk.json() == in_memory.json() and from_disk.findings == in_memory.findings != []
    assert bool(asked) == full
