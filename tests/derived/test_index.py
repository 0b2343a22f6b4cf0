"""The index: its files, its verdicts, and files built from the log."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from fixtures.synth import synth_store
from formats.index import DEFAULT_GEOMETRY, IndexGeometry
from recover.change.model import Retire
from recover.derived import index_check as verify_index
from recover.derived.index_check import IndexReport, check_index
from recover.derived.index_files import file_geometry, index_geometry, list_index_files, proven_geometry
from recover.derived.index_keys import TagHistory
from recover.derived.index_rebuild import IndexRebuild, rebuild_index
from recover.findings.code import UsageRefusal
from recover.log.scan import LocalEngine, LogView
from recover.store.store import Store, StoreOptions
from tests.cli.runner import mqtool
from tests.support.stores import STORES, unpacked, write_at
from tests.torture.hunt import older_records_at_the_end


def opened(root: Path, **options: Any) -> tuple[Store, LogView]:
    """The store, and its log scanned."""
    store = Store.open(root, StoreOptions(**options))
    return store, LocalEngine().scan_log(store.commitlog)


def checked(root: Path, **options: Any) -> IndexReport:
    """What a check of the store's index says."""
    return check_index(*opened(root, **options))


def rebuilt(root: Path, **arguments: Any) -> IndexRebuild:
    """The plan of a rebuild."""
    return rebuild_index(*opened(root), **arguments)


def warnings(report: IndexReport) -> list[str]:
    """Codes of all findings but infos, in the order found."""
    return [item.code for item in report.findings if item.severity != "info"]


def write(plan: IndexRebuild, folder: Path) -> None:
    """Do what the plan says, in a folder of index files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in plan.retired:
        (folder / name).unlink()
    for file in plan.files:
        (folder / file.name).write_bytes(b"".join(file.content.chunks()))


def index_bytes(root: Path) -> dict[str, bytes]:
    """Name and content of each index file of a store."""
    return {path.name: path.read_bytes() for path in sorted((root / "index").iterdir())}


# --- Index files are listed as a broker loads them, and their geometry is found whatever their length allows.


GEOMETRY = IndexGeometry(500, 2000)
StoreCopy = Callable[[str], Path]


def geometry(root: Path, **options: object) -> IndexGeometry | None:
    return index_geometry(Store.open(root, StoreOptions(**options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STORES)
def test_geometry_of_each_file_alone_is_proven_by_its_units(name: str) -> None:
    for path in (unpacked(name) / "index").iterdir():
        assert proven_geometry(path, path.stat().st_size) == file_geometry(path, path.stat().st_size) == GEOMETRY


@pytest.mark.parametrize(("slots", "entries"), [(77, 1233), (2005, 1599), (1, 2399)])
def test_odd_split_is_told_apart_from_others_of_the_same_length(slots: int, entries: int, tmp_path: Path) -> None:
    source, log = opened(unpacked("killed-5.5.0"))
    (tmp_path / "none").mkdir()
    options = StoreOptions(index=tmp_path / "none", index_slots=slots, index_entries=entries, broker="5.5.0")
    bare = Store.open(source.root, options)
    plan = rebuild_index(bare, log, fresh=True)
    write(plan, tmp_path / "index")
    (tmp_path / "commitlog").mkdir()
    assert geometry(tmp_path) == IndexGeometry(slots, entries)


def test_most_files_decide_when_one_is_damaged(store: StoreCopy) -> None:
    root = store("killed-5.5.0")
    paths = sorted((root / "index").iterdir())
    paths[0].write_bytes(random.Random(1).randbytes(42040))
    paths[-1].write_bytes(b"\0" * 42040)
    assert geometry(root) == GEOMETRY


@pytest.mark.parametrize("length", [0, 21020, 21022, 30001, 42039])
def test_file_that_was_cut_does_not_mislead(store: StoreCopy, length: int) -> None:
    root = store("clean-4.5.1")
    for path in sorted((root / "index").iterdir())[1:]:
        path.unlink()
    only = next((root / "index").iterdir())
    only.write_bytes(only.read_bytes()[:length])
    assert geometry(root) == (GEOMETRY if length else DEFAULT_GEOMETRY)


def test_default_without_files_unless_settings_say_otherwise(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert geometry(tmp_path) == DEFAULT_GEOMETRY
    assert geometry(tmp_path, settings={"maxHashSlotNum": "50", "maxIndexNum": "200"}) == IndexGeometry(50, 200)


@pytest.mark.parametrize("options", [
    {"index_slots": 500}, {"index_entries": 2000}, {"index_slots": 500, "index_entries": 2000},
])
def test_true_override_is_taken(options: dict[str, int]) -> None:
    assert geometry(unpacked("clean-4.5.1"), **options) == GEOMETRY


@pytest.mark.parametrize("options", [
    {"index_slots": 505, "index_entries": 1999}, {"index_slots": 501}, {"index_entries": 3000}, {"index_slots": 0},
    {"index_slots": 505}, {"index_entries": 1}, {"index_slots": 5_000_000, "index_entries": 20_000_000},
])
def test_override_that_cannot_be_true_is_refused_with_the_reason(options: dict[str, int]) -> None:
    with pytest.raises(UsageRefusal, match="is impossible"):
        geometry(unpacked("clean-4.5.1"), **options)


def test_listing_tells_index_files_from_the_rest(tmp_path: Path) -> None:
    plain = ("20261121015608112", "7", "notes.txt", "20261121015608112.bak", "99999999999999999999")
    for name in (*plain, "٢٠٢٦١١٢١٠١٥٦١٠٠٤٥"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "20261121015610045").mkdir()
    (tmp_path / "20261121015610046").symlink_to(tmp_path / "gone")
    listing = list_index_files(tmp_path)
    assert [(file.name, file.is_time) for file in listing.files] == [
        ("20261121015608112", True), ("7", False), ("٢٠٢٦١١٢١٠١٥٦١٠٠٤٥", True),
    ]
    assert {odd.path.name: odd.is_directory for odd in listing.odd} == {
        "20261121015608112.bak": False, "20261121015610045": True, "20261121015610046": False,
        "99999999999999999999": False, "notes.txt": False,
    }
    assert list_index_files(tmp_path / "missing").files == ()


# --- The index is judged against the log: nothing wrong in what brokers wrote, and each kind of damage found.


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
    write_at(root / "checkpoint", 16, bytes(8))
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
    write_at(path, UNITS + 20 * 77 + 12, struct.pack(">i", 4000))
    report = checked(root)
    assert warnings(report) == ["index-wrong-time"]
    assert (report.total("wrong"), report.missing) == (1, 0)


def test_files_made_at_the_end_of_summer_time_are_right(tmp_path: Path) -> None:
    start = datetime(2025, 10, 26, 0, 20, tzinfo=UTC)
    root = tmp_path / "store"
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    synth_store(root, messages=1500, start=int(start.timestamp() * 1000), step_ms=5000, zone=berlin)
    begins = [struct.unpack(">q", path.read_bytes()[:8])[0] for path in sorted((root / "index").iterdir())]
    assert begins != sorted(begins), "the clock was put back between two files"
    assert warnings(checked(root)) == []


def test_first_unit_may_count_from_the_end_of_a_file_that_is_gone(store: StoreCopy) -> None:
    root = store("clean-5.3.3")
    paths = sorted((root / "index").iterdir())
    at = UNITS + 20 + 12
    (skew,) = struct.unpack_from(">i", paths[-1].read_bytes(), at)
    for path in paths[:-1]:
        path.unlink()
    write_at(paths[-1], at, struct.pack(">i", skew + 500))
    assert warnings(checked(root)) == ["index-missing-units"]
    write_at(paths[-1], at, struct.pack(">i", -1))
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


# --- Index files built from the log are the broker's own, and in place nothing sound is touched.


OTHERS = (
    "clean-manyfiles-5.3.3", "clean-plain-4.9.7", "clean-propcrc-5.3.3", "clean-restarts-4.9.7", "clean-restarts-5.5.0",
    "clean-v2-5.5.0", "killed-compressed-5.3.3", "killed-ext-4.5.1", "killed-ext-5.5.0", "killed-manyfiles-5.5.0",
)


@pytest.mark.parametrize("name", [*STORES, *OTHERS])
def test_files_built_from_the_log_alone_are_the_brokers_own(name: str) -> None:
    plan = rebuilt(unpacked(name), fresh=True)
    own = index_bytes(unpacked(name))
    assert [b"".join(file.content.chunks()) for file in plan.files] == list(own.values())
    for file, name_of_broker in zip(plan.files, own, strict=True):
        # a broker takes the clock when it dispatches the message, a moment after it stored it
        assert 0 <= int(name_of_broker) - int(file.name) < 100


@pytest.mark.parametrize("name", [*STORES, "clean-expired-5.5.0", "killed-expired-4.9.7"])
def test_nothing_is_rebuilt_in_a_sound_store(name: str) -> None:
    plan = rebuilt(unpacked(name))
    assert (plan.files, plan.retired) == ((), ())
    assert sorted(plan.kept) == sorted(index_bytes(unpacked(name)))


def test_several_damages_are_repaired_in_one_go(store: StoreCopy) -> None:
    root = store("killed-v2-ipv6-5.3.3")
    paths = sorted((root / "index").iterdir())
    paths[0].write_bytes(bytes(42040))
    paths[1].unlink()
    paths[2].write_bytes(b"garbage")
    paths[4].unlink()
    paths[5].write_bytes(paths[5].read_bytes()[:3000])
    write(rebuilt(root), root / "index")
    assert warnings(checked(root)) == []
    assert list(index_bytes(root).values()) == list(index_bytes(unpacked("killed-v2-ipv6-5.3.3")).values())


def test_units_of_expired_messages_stay_in_a_file_that_is_built_anew(store: StoreCopy) -> None:
    root = store("clean-expired-5.5.0")
    damage("index-slot-zeroed", root, 1)
    before = index_bytes(unpacked("clean-expired-5.5.0"))
    write(rebuilt(root), root / "index")
    assert index_bytes(root) == before


def test_file_without_any_message_left_is_retired(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    (root / "index" / "20261121015611000").write_bytes(b"\1" * 42040)
    plan = rebuilt(root)
    assert (plan.files, plan.retired) == ((), ("20261121015611000",))
    (step,) = plan.steps(Store.open(root))
    assert isinstance(step, Retire) and step.file == "index/20261121015611000"


def test_names_follow_the_zone_and_never_meet(store: StoreCopy) -> None:
    tokyo = rebuilt(unpacked("clean-4.5.1"), fresh=True, zone=zoneinfo.ZoneInfo("Asia/Tokyo"))
    assert [file.name[:10] for file in tokyo.files] == ["2026112110"] * 3
    names = [file.name for file in rebuilt(unpacked("killed-v2-ipv6-5.3.3"), fresh=True).files]
    assert names == sorted(set(names)) and len(names) == 6
