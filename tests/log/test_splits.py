"""Splits of a file, each scanned by itself, are put together to exactly what one walk finds."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fixtures.damage import NotApplicable, damage, of_area
from fixtures.synth import synth_store
from formats.record import HEAD, layout
from recover.log.file_scan import FileScan, scan_file, scan_split
from recover.log.scan import assemble
from recover.log.split_scan import FileJoin, one_split, splits_of
from recover.store.mapped_files import MappedFile
from tests.support.looks import opened
from tests.support.sampling import sampled
from tests.support.stores import STORES, unpacked

Copies = Callable[[str], Path]
SIZES = (1500, 30_011)


def by_splits(mapped_file: MappedFile, file_size: int, split_size: int, window: int = 1 << 16) -> tuple[FileScan, int]:
    """The file scanned by splits, and how many of them had to be scanned again."""
    join = FileJoin([scan_split(part, window=window) for part in splits_of(mapped_file, file_size, split_size)])
    again = 0
    while isinstance(found := join.join(), list):
        for part, entry in found:
            join.add(scan_split(part, entry, window=window))
            again += 1
    return found, again


def told(scan: FileScan) -> tuple[object, ...]:
    """All that a scan says, whatever its rows are cut into."""
    rows = one_split(scan.splits)
    return (
        rows.records.tolist(), rows.hashes.tolist(), scan.queues, scan.holes, scan.blank, scan.blank_size, scan.end,
        [(failure.offset, failure.wanted) for failure in scan.unreadable],
    )


def assert_same(mapped_file: MappedFile, file_size: int, split_size: int) -> int:
    whole = scan_file(mapped_file, file_size)
    found, again = by_splits(mapped_file, file_size, split_size)
    assert told(found) == told(whole)
    return again


@pytest.mark.parametrize("split_size", SIZES)
@pytest.mark.parametrize("name", STORES)
def test_a_sound_log_is_the_same_in_splits_of_every_size(name: str, split_size: int) -> None:
    store = opened(unpacked(name))
    for mapped_file in store.commitlog.files:
        # only a header's bytes inside a body could make a split begin at the wrong place
        assert assert_same(mapped_file, store.mapped_file_size, split_size) <= 1


@pytest.mark.parametrize("recipe", sampled(sorted(of_area("log", "crash", "files")), quick=20))
def test_a_damaged_log_is_the_same_in_splits_of_every_size(store: Copies, recipe: str) -> None:
    root = store("killed-5.5.0")
    try:
        damage(recipe, root, 3)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    found = opened(root)
    queue, size = found.commitlog, found.mapped_file_size
    whole = [scan_file(mapped_file, size) for mapped_file in queue.files]
    joined = [by_splits(mapped_file, size, 7_001)[0] for mapped_file in queue.files]
    assert [told(scan) for scan in joined] == [told(scan) for scan in whole]
    # ghosts and generations are told by what stands before, which is not where the rows happen to be cut
    one, other = assemble(queue, whole), assemble(queue, joined)
    assert one_split(one.splits()).records.tolist() == one_split(other.splits()).records.tolist()
    assert structs.replace(one, files=[]) == structs.replace(other, files=[])
    for name in ("positions", "least", "most"):
        assert getattr(one.tally, name).tolist() == getattr(other.tally, name).tolist()


def test_a_new_generation_behind_a_break_is_told_the_same_however_its_rows_are_cut(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=400, mapped_file_size=64 * 1024, topics=1, queues=2)
    paths = sorted((tmp_path / "s" / "commitlog").iterdir())
    content = bytearray(paths[1].read_bytes())
    rows = one_split(
        scan_file(MappedFile(paths[1], int(paths[1].name), len(content)), 64 * 1024).splits
    ).records
    base = int(paths[1].name)
    content[rows["phy_offset"][5] - base + 4] ^= 1
    for number, row in enumerate(rows[40:].tolist()):  # two queues that number their messages from 0 again
        at = row[0] - base + layout.OFFSET_QUEUE_OFFSET
        content[at : at + 8] = struct.pack(">q", number // 2)
    paths[1].write_bytes(content)
    store = opened(tmp_path / "s")
    size = store.mapped_file_size
    whole = assemble(store.commitlog, [scan_file(f, size) for f in store.commitlog.files])
    joined = assemble(store.commitlog, [by_splits(f, size, 3000)[0] for f in store.commitlog.files])
    assert whole.ghosts > 0
    assert one_split(whole.splits()).records.tolist() == one_split(joined.splits()).records.tolist()


def test_noise_anywhere_is_the_same_in_splits_of_every_size(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=400, mapped_file_size=32 * 1024)
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[1]
    content = path.read_bytes()
    rng = random.Random(11)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            at, length = rng.randrange(32_000), rng.choice([1, 4, 8, 300, 4096, 12_000])
            damaged[at : at + length] = rng.choice([bytes, rng.randbytes])(min(length, len(content) - at))
        path.write_bytes(damaged[: rng.choice([len(content), rng.randrange(len(content))])])
        mapped_file = MappedFile(path, int(path.name), path.stat().st_size)
        assert_same(mapped_file, 32 * 1024, rng.choice([200, 1000, 5000, 20_000]))


def test_records_in_bodies_that_look_like_those_of_the_log_cost_a_second_scan_and_nothing_else(tmp_path: Path) -> None:
    synth_store(
        tmp_path / "s", messages=300, mapped_file_size=64 * 1024,
        body=lambda rng: rng.randbytes(rng.randrange(100, 1500)),
    )
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[0]
    mapped_file = MappedFile(path, int(path.name), path.stat().st_size)
    rows = one_split(scan_file(mapped_file, 64 * 1024).splits).records
    content = bytearray(path.read_bytes())
    smallest = rows[np.argmin(rows["size"])]
    start, size = int(smallest["phy_offset"]), int(smallest["size"])
    inner = bytes(content[start : start + size])
    hosts = [row for row in rows if row["size"] > size + 200]
    assert hosts
    for row in hosts:
        at = int(row["phy_offset"]) + HEAD.size
        own = struct.pack(">q", mapped_file.file_from_offset + at)
        body = inner[: layout.OFFSET_PHY_OFFSET] + own + inner[layout.OFFSET_PHY_OFFSET + 8 :]
        content[at : at + size] = body
    path.write_bytes(content)
    assert sum(assert_same(mapped_file, 64 * 1024, split_size) for split_size in (700, 1000, 1900)) > 0


def test_a_record_longer_than_several_splits_is_found_once(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=30, mapped_file_size=128 * 1024, body=10_000)
    for path in sorted((tmp_path / "s" / "commitlog").iterdir()):
        mapped_file = MappedFile(path, int(path.name), path.stat().st_size)
        for split_size in (700, 4096, 9_999):
            assert_same(mapped_file, 128 * 1024, split_size)


@pytest.mark.parametrize("length", [0, 1, 4096, 4097])
def test_short_and_empty_files_are_the_same(tmp_path: Path, length: int) -> None:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(bytes(length))
    for split_size in (100, 4096, 8192):
        assert_same(MappedFile(path, 0, length), 8192, split_size)


def test_a_split_that_begins_before_the_end_mark_and_after_the_last_record_ends_there(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=300, mapped_file_size=16 * 1024, body=900)
    queue = opened(tmp_path / "s").commitlog
    scans = [scan_file(mapped_file, queue.file_size) for mapped_file in queue.files]
    mapped_file, blank = next(
        (scan.mapped_file, scan.blank - scan.mapped_file.file_from_offset)
        for scan in scans if scan.blank is not None and scan.file_end - scan.blank > 100
    )
    for split_size in (blank - 1, blank):
        assert_same(mapped_file, queue.file_size, split_size)
        last = scan_split(splits_of(mapped_file, queue.file_size, split_size)[1])
        assert (last.entry, last.enters_at, last.scan.blank) == (blank, "blank", mapped_file.file_from_offset + blank)


def test_a_file_that_shrank_since_it_was_listed_ends_where_it_ends_now(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=3000, mapped_file_size=4 << 20)
    queue = opened(tmp_path / "s").commitlog
    (mapped_file,) = queue.files
    os.truncate(mapped_file.path, mapped_file.length // 64)  # after it was listed
    scan = scan_file(mapped_file, queue.file_size, window=4096)
    assert 0 < scan.end <= mapped_file.length // 64 and scan.holes[-1].stop == scan.file_end
