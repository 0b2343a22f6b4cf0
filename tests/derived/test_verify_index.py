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
from recover.derived.index_check import check_index
from recover.derived.index_keys import TagHistory
from tests.cli.runner import mqtool
from tests.support.indexes import checked, opened, rebuilt, warnings, write
from tests.support.stores import unpacked
from tests.torture.hunt import older_records_at_the_end

StoreCopy = Callable[[str], Path]
UNITS = 40 + 4 * 500


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


def test_units_of_a_message_that_lost_its_keys_are_not_right(store: StoreCopy) -> None:
    root = store("clean-5.3.3")
    before = checked(root)
    damage("properties-destroyed", root, 1)
    after = checked(root)
    assert after.total("right") < before.total("right") and after.total("right") + after.missing <= before.expected


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


def test_expired_units_are_counted_and_left_alone() -> None:
    report = checked(unpacked("clean-expired-5.5.0"))
    assert (report.total("units"), report.expected, report.total("expired")) == (3300, 1746, 1554)
    assert warnings(report) == []


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

    monkeypatch.setattr("recover.store.columns._LARGEST", 1)
    if full:
        monkeypatch.setattr("recover.store.columns.os.posix_fallocate", place)
    from_disk = checked(root)
    assert from_disk.json() == in_memory.json() and from_disk.findings == in_memory.findings != []
    assert bool(asked) == full


def test_an_index_file_that_begins_with_expired_entries_may_end_with_an_older_message(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    older_records_at_the_end(root, random.Random(1), back=3_600_000)
    min((root / "commitlog").iterdir()).unlink()
    done = mqtool("recover", root, "--yes", "--json").document
    assert done["applied"] and not {code for code in done["finding_counts"] if code.startswith("index-")}
    assert not mqtool("recover", root, "--yes", "--json").document["applied"]
