"""The scan of one mapped file: what is intact, where it stops, where it goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.synth import synth_store
from formats.record import decode
from formats.record.rows import BIT_DELAY, RECORD, row_of
from recover.broker.delays import DelayTable
from recover.derived.expected import expect
from recover.derived.index_check import check_index
from recover.derived.queue_check import check_consumequeue
from recover.log.file_scan import FileScan, scan_file
from recover.log.scan import scan_log
from recover.store.config_files import Topics
from recover.store.mapped_files import MappedFile
from tests.support.commitlog import placed_records
from tests.support.looks import opened
from tests.support.stores import STORES, unpacked

Copies = Callable[[str], Path]


def _scans(root: Path, **options: Any) -> list[FileScan]:
    store = opened(root)
    return [scan_file(f, store.mapped_file_size, **options) for f in store.commitlog.files]


def _rows(scan: FileScan) -> Any:
    return np.concatenate([split.records for split in scan.splits])


@pytest.mark.parametrize("name", STORES)
def test_the_compiled_walk_writes_the_rows_of_the_reference_codec(name: str) -> None:
    scans = _scans(unpacked(name))
    wanted = iter(placed_records(name))
    for scan in scans:
        for split in scan.splits:
            first = 0
            for row in split.records:
                record = next(wanted).record
                expected, hashes = row_of(record, int(row["queue"]))
                assert row.tolist() == expected[0].tolist()
                assert split.hashes[first : first + row["hashes"]].tolist() == hashes.tolist()
                assert scan.queues[row["queue"]] == (record.topic, record.queue_id)
                first += int(row["hashes"])
    assert next(wanted, None) is None


@pytest.mark.parametrize("window", [4096, 5000, 70_000])
def test_windows_of_every_size_give_the_same_rows(store: Copies, window: int) -> None:
    root = store("clean-5.3.3")
    whole, pieces = _scans(root), _scans(root, window=window)
    for one, other in zip(whole, pieces, strict=True):
        assert _rows(one).tolist() == _rows(other).tolist()
        assert (one.blank, one.end, one.holes) == (other.blank, other.end, other.holes)


@pytest.mark.parametrize("window", [4096, 1 << 20])
def test_damage_anywhere_costs_only_the_records_it_touches(tmp_path: Path, window: int) -> None:
    synth_store(tmp_path / "s", messages=400, mapped_file_size=32 * 1024)
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[1]
    before = _rows(_scans(tmp_path / "s")[1])
    rng = random.Random(3)
    content = path.read_bytes()
    for _ in range(40):
        at, length = rng.randrange(32_000), rng.choice([1, 8, 300, 4096])
        damaged = bytearray(content)
        damaged[at : at + length] = bytes(b ^ 0x55 for b in damaged[at : at + length])
        path.write_bytes(damaged)
        scan = scan_file(MappedFile(path, int(path.name), len(content)), 32 * 1024, window=window)
        base = int(path.name)
        # a record is touched when a byte of it changed; its head's port and the like may differ unseen
        untouched = (before["phy_offset"] + before["size"] <= base + at) | (before["phy_offset"] >= base + at + length)
        kept = set(_rows(scan)["phy_offset"].tolist()) if scan.splits else set()
        assert set(before["phy_offset"][untouched].tolist()) <= kept
        assert all(hole.start < hole.stop for hole in scan.holes)


def test_a_size_field_of_two_gigabytes_allocates_nothing(store: Copies) -> None:
    root = store("clean-5.3.3")
    target = placed_records("clean-5.3.3")[100]
    path = root / "commitlog" / "00000000000000000000"
    content = bytearray(path.read_bytes())
    content[target.offset : target.offset + 4] = (0x7FFFFFFF).to_bytes(4, "big")
    path.write_bytes(content)
    scan = _scans(root)[0]
    assert [(hole.start, hole.reason, hole.ended_by) for hole in scan.holes] == [(target.offset, "bad-size", "record")]
    assert scan.holes[0].stop == target.offset + target.record.total_size


def test_the_hole_before_an_intact_end_mark_ends_at_it(store: Copies) -> None:
    root = store("clean-5.3.3")
    last = [p for p in placed_records("clean-5.3.3") if p.file_from_offset == 0][-1]
    path = root / "commitlog" / "00000000000000000000"
    content = bytearray(path.read_bytes())
    content[last.offset + 90] ^= 1
    path.write_bytes(content)
    (hole,) = _scans(root)[0].holes
    assert (hole.start, hole.stop, hole.ended_by) == (last.offset, last.offset + last.record.total_size, "blank")


def test_a_record_longer_than_the_window_is_read_whole(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=20, body=lambda rng: rng.randbytes(9000), mapped_file_size=256 * 1024)
    scans = _scans(tmp_path / "s", window=4096)
    assert sum(scan.record_count for scan in scans) == 20


def test_more_queues_than_the_tables_hold_at_first(tmp_path: Path) -> None:
    written = synth_store(tmp_path / "s", messages=6000, topics=1500, queues=4, body=10, mapped_file_size=4 << 20)
    (scan,) = _scans(tmp_path / "s")
    assert len(set(scan.queues)) == len(scan.queues) == len(written.queues)
    assert scan.record_count == 6000


def test_every_record_keeps_its_queue_when_the_first_one_of_a_queue_is_damaged(tmp_path: Path) -> None:
    """Properties are the last thing looked at: a queue that only a refused record names must leave no trace."""
    synth_store(tmp_path / "s", messages=400, mapped_file_size=32 * 1024)
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[1]
    content, base = path.read_bytes(), int(path.name)
    queues = {row["phy_offset"]: key for row, key in _named_rows(_scans(tmp_path / "s")[1])}
    firsts = {key: offset for offset, key in sorted(queues.items(), reverse=True)}
    for key, first in firsts.items():
        record = decode(content, first - base)
        damaged = bytearray(content)
        end = first - base + record.total_size
        damaged[end - len(record.properties) : end] = bytes(len(record.properties))
        path.write_bytes(damaged)
        scan = scan_file(MappedFile(path, base, len(content)), 32 * 1024)
        found = {row["phy_offset"]: key for row, key in _named_rows(scan)}
        assert found == {offset: name for offset, name in queues.items() if offset != first}, key


def _named_rows(scan: FileScan) -> list[tuple[Any, tuple[bytes, int]]]:
    return [(row, scan.queues[row["queue"]]) for split in scan.splits for row in split.records]


@pytest.mark.parametrize("name", STORES)
def test_without_keys_the_rows_are_the_same_but_for_hashes_and_tags_codes(name: str) -> None:
    queue = opened(unpacked(name)).commitlog
    whole, bare = scan_log(queue), scan_log(queue, with_keys=False)
    assert (whole.queues, whole.damaged, whole.tally) == (bare.queues, bare.damaged, bare.tally)
    rows = np.concatenate([split.records for split in whole.splits()] or [np.empty(0, dtype=RECORD)])
    without = np.concatenate([split.records for split in bare.splits()] or [np.empty(0, dtype=RECORD)])
    rows["hashes"] = 0
    rows["tags_code"][(rows["bits"] & BIT_DELAY) == 0] = 0
    assert np.array_equal(rows, without)
    assert not any(split.hashes.size for split in bare.splits())


def test_queues_and_index_are_never_judged_by_rows_without_keys() -> None:
    store = opened(unpacked("clean-plain-4.9.7"))
    log = scan_log(store.commitlog, with_keys=False)
    with pytest.raises(AssertionError):
        check_index(store, log)
    topics = Topics(store)
    with pytest.raises(AssertionError):
        check_consumequeue(store, log, expect(log, topics), DelayTable({}))
