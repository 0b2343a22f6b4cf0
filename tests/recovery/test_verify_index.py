"""The index is judged against the log: nothing wrong in what brokers wrote, and each kind of damage found."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fixtures.damage import damage
from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry
from recover.index_stream import IndexStream, TagHistory, TagRun
from recover.log import LogView
from recover.reader import FileReader, ReadFailure
from recover.verify import index as verify_index
from recover.verify import index_pass
from recover.verify.index import check_index
from recover.verify.index_file import IndexFileVerdict
from recover.verify.index_pass import follow_file
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
        assert (report.wrong, report.missing) == (1, 1)
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
    assert report.wrong == report.missing > 4


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
    assert after.entries == after.expected < 9566
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
    assert (report.entries, report.missing, report.wrong) == (5108 + 1999, 0, 0)


def test_units_behind_the_end_of_the_log_are_told_from_lost_ones(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    damage("torn-tail-in-head", root)
    assert warnings(checked(root)) == ["index-beyond-log"]
    root = store("clean-4.5.1")
    lost = damage("bit-in-body", root).lost
    report = checked(root)
    assert warnings(report) == []
    assert len(lost) == 1 and report.lost > 0 and report.wrong == report.missing == 0


def test_wrong_time_is_found(store: StoreCopy) -> None:
    root = store("clean-4.5.1")
    path = sorted((root / "index").iterdir())[1]
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, UNITS + 20 * 77 + 12, 4000)
    path.write_bytes(content)
    report = checked(root)
    assert warnings(report) == ["index-wrong-time"]
    assert (report.wrong, report.missing) == (1, 0)


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
    assert report.files == 123


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
    assert (report.entries, report.expected, report.expired) == (3300, 1746, 1554)
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


@pytest.mark.parametrize("name", STORES)
def test_the_pass_over_a_file_without_a_flaw_says_what_a_look_at_the_whole_file_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = []
    follow = verify_index.follow_file

    def noting(*arguments: Any) -> Any:
        followed.append(follow(*arguments))
        return followed[-1]

    monkeypatch.setattr(verify_index, "follow_file", noting)
    one = checked(unpacked(name))
    monkeypatch.setattr(verify_index, "follow_file", lambda *arguments: None)
    other = checked(unpacked(name))
    assert one.verdicts == other.verdicts
    assert one.findings == other.findings
    assert (one.json(), one.stream.tags.changes) == (other.json(), other.stream.tags.changes)
    for number in range(len(one.stream.splits)):
        assert one.stream.found(number).tolist() == other.stream.found(number).tolist()
    if name.startswith("clean") and "expired" not in name and one.entries:
        assert any(verdict is not None for verdict in followed)


def first_of_a_sound_index(store: StoreCopy) -> tuple[LogView, IndexFileVerdict, IndexGeometry]:
    """The log, and the first index file of a store in which nothing is amiss."""
    opened_store, log = opened(store("clean-5.3.3"))
    clean = check_index(opened_store, log)
    assert clean.geometry is not None
    return log, clean.verdicts[0], clean.geometry


@pytest.mark.parametrize("field", range(5))
def test_the_pass_dislikes_a_change_in_any_field_of_any_unit(field: int, store: StoreCopy) -> None:
    log, verdict, geometry = first_of_a_sound_index(store)
    path = verdict.file.path
    content = path.read_bytes()
    for number in (1, 2, verdict.end // 2, verdict.end - 2, verdict.end - 1):
        place = geometry.unit_offset(number) + 4 * field
        for bit in (0, 12, 31):
            damaged = bytearray(content)
            word = int.from_bytes(damaged[place : place + 4], "big") ^ 1 << bit
            damaged[place : place + 4] = word.to_bytes(4, "big")
            path.write_bytes(damaged)
            stream = IndexStream(log.splits())
            with FileReader(path) as reader:
                followed = follow_file(verdict.file, reader, geometry, stream, None)
            if number == 1 and field == 3 and 0 <= word <= 0x7FFFFFFF:
                continue  # the first unit counts from the end of the file before it, which is not there
            assert followed is None
            assert not any(stream.found(split).any() for split in range(len(stream.splits)))


@pytest.mark.parametrize("place", ["slot", "header", "behind", "short"])
def test_the_pass_dislikes_what_does_not_belong_to_the_units(place: str, store: StoreCopy) -> None:
    log, verdict, geometry = first_of_a_sound_index(store)
    path = verdict.file.path
    content = bytearray(path.read_bytes())
    ranges = {
        "slot": range(geometry.slots_offset + 3, geometry.units_offset, 4), "header": range(INDEX_HEADER.size),
        "behind": range(geometry.unit_offset(verdict.end), geometry.size, 997), "short": range(1),
    }
    for at in ranges[place]:
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.write_bytes(damaged if place != "short" else content[:-1])
        stream = IndexStream(log.splits())
        with FileReader(path) as reader:
            file = structs.replace(verdict.file, length=path.stat().st_size)
            followed = follow_file(file, reader, geometry, stream, None)
        # one slot more or less can be true: brokers up to 4.7.0 count otherwise
        assert followed is None or at == INDEX_HEADER.offset("hash_slot_count") + 3
        assert followed or not any(stream.found(split).any() for split in range(len(stream.splits)))


@pytest.mark.parametrize("name", STORES)
def test_small_blocks_give_the_same_verdicts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = checked(unpacked(name))
    monkeypatch.setattr(index_pass, "_BLOCK", 7 * INDEX_UNIT.size)
    other = check_index(*opened(unpacked(name)))
    assert one.verdicts == other.verdicts
    assert one.findings == other.findings
    assert (one.json(), one.stream.tags.changes) == (other.json(), other.stream.tags.changes)


@pytest.mark.parametrize("block", [1, 2, -1])
def test_block_that_cannot_be_read_is_a_part_that_cannot_be_read(
    block: int, store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, verdict, geometry = first_of_a_sound_index(store)
    monkeypatch.setattr(index_pass, "_BLOCK", 7 * INDEX_UNIT.size)
    place = [*range(geometry.unit_offset(1), geometry.unit_offset(verdict.end), 7 * INDEX_UNIT.size)][block]
    root = verdict.file.path.parent.parent
    failed = []
    read = FileReader.read_into

    def fails_once(self: FileReader, buffer: memoryview, offset: int) -> int:
        if self.path == verdict.file.path and offset == place and not failed:
            failed.append(offset)
            raise ReadFailure(self.path, offset, len(buffer), 0)
        return read(self, buffer, offset)

    monkeypatch.setattr(FileReader, "read_into", fails_once)
    report = check_index(*opened(root))
    assert failed
    assert [item.file for item in report.findings if item.code == "index-unreadable"] == [f"index/{verdict.file.name}"]


@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("name", ["clean-4.5.1", "killed-5.5.0", "killed-v2-ipv6-5.3.3", "killed-lmq-4.9.7"])
def test_what_a_log_without_index_files_lacks_is_counted_as_record_by_record(
    name: str, tags: bool, store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store(name)
    shutil.rmtree(root / "index")
    (root / "checkpoint").unlink()
    opened_store, log = opened(root)
    at_once = check_index(opened_store, log, tags=tags)
    monkeypatch.setattr(IndexStream, "all_wanted", lambda _: None)
    one_by_one = check_index(opened_store, log, tags=tags, threads=3)
    assert [item.json() for item in at_once.findings] == [item.json() for item in one_by_one.findings]
    assert at_once.json() == one_by_one.json() and at_once.missing > 0
