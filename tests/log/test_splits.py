"""Splits of a file, each scanned by itself, are put together to exactly what one walk finds."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import NotApplicable, damage, of_area
from fixtures.lab.packed import WHOLE_BROKER, made
from fixtures.synth import synth_store
from formats.record import HEAD, layout
from recover.log import split_scan
from recover.log.file_scan import SplitRange, SplitScan, scan_file, scan_split
from recover.log.scan import LocalEngine, LogView, scan_log
from recover.log.split_scan import one_split
from recover.store.mapped_files import MappedFile, MappedFileQueue
from tests.support.looks import opened
from tests.support.sampling import sampled
from tests.support.stores import unpacked

Copies = Callable[[str], Path]
STORES = (*WHOLE_BROKER, *made())
SIZES = (1_500,)


def told(log: LogView) -> dict[str, Any]:
    """All that a log says of itself, whatever its rows are cut into."""
    rows = one_split(log.splits())
    tally = {name: getattr(log.tally, name) for name in type(log.tally).__slots__}  # type: ignore[attr-defined]
    return {
        "rows": rows.records.tolist(), "hashes": rows.hashes.tolist(), "queues": log.queues, "has_keys": log.has_keys,
        "places": (log.min_offset, log.valid_to, log.log_end, log.damaged, log.tail, log.stale, log.superseded),
        "tally": {name: value.tolist() if name == "queues" else value for name, value in tally.items()},
        "files": [
            (scan.mapped_file, scan.queues, scan.gaps, scan.blank, scan.blank_size, scan.end, scan.record_count)
            for scan in log.files
        ],
    }


def assert_same(queue: MappedFileQueue, split_size: int) -> None:
    """The log says the same however it is cut."""
    assert told(scan_log(queue, threads=2, split_size=split_size)) == told(scan_log(queue))


@pytest.mark.parametrize("split_size", SIZES)
@pytest.mark.parametrize("name", STORES)
def test_a_sound_log_is_the_same_however_it_is_cut(name: str, split_size: int) -> None:
    queue = opened(unpacked(name)).commitlog
    assert_same(queue, split_size)


@pytest.mark.parametrize(("recipe", "name"), sampled(
    sorted(of_area("log", "crash", "files")), ("killed-5.5.0", "synth"), quick=16,
))
def test_a_damaged_log_is_the_same_however_it_is_cut(
    store: Copies, tmp_path: Path, recipe: str, name: str
) -> None:
    root = store(name) if name != "synth" else synth_store(
        tmp_path / "s", messages=600, mapped_file_size=32 * 1024).root
    try:
        damage(recipe, root, 4)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    assert_same(opened(root).commitlog, 7_001)


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
    queue = opened(tmp_path / "s").commitlog
    assert scan_log(queue).stale > 0
    assert_same(queue, 3000)


def test_noise_anywhere_is_the_same_in_splits_of_every_size(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=400, mapped_file_size=32 * 1024)
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[1]
    content = path.read_bytes()
    rng = random.Random(11)
    for _ in range(40):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            at, length = rng.randrange(32_000), rng.choice([1, 4, 8, 300, 4096, 12_000])
            damaged[at : at + length] = rng.choice([bytes, rng.randbytes])(min(length, len(content) - at))
        path.write_bytes(damaged[: rng.choice([len(content), rng.randrange(len(content))])])
        assert_same(opened(tmp_path / "s").commitlog, rng.choice([200, 1000, 5000, 20_000]))


def test_a_file_that_shrank_since_it_was_listed_ends_where_it_ends_now(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=3000, mapped_file_size=4 << 20)
    queue = opened(tmp_path / "s").commitlog
    (mapped_file,) = queue.files
    os.truncate(mapped_file.path, mapped_file.length // 64)  # after it was listed
    scan = scan_file(mapped_file, queue.file_size, window=4096)
    assert 0 < scan.end <= mapped_file.length // 64 and scan.gaps[-1].stop == scan.file_end


def test_a_record_in_the_body_of_another_is_not_taken_for_one_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synth_store(tmp_path / "s", messages=60, mapped_file_size=256 * 1024, body=lambda rng: rng.randbytes(2_000))
    synth_store(tmp_path / "t", messages=1, body=100)
    inner = next((tmp_path / "t" / "commitlog").iterdir()).read_bytes()
    inner = inner[: int.from_bytes(inner[:4], "big")]
    (path,) = (tmp_path / "s" / "commitlog").iterdir()
    content = bytearray(path.read_bytes())
    for at in one_split(scan_log(opened(tmp_path / "s").commitlog).splits()).records["phy_offset"].tolist():
        body = at + HEAD.size
        for place in range(body, body + 2_000 - len(inner), 300):
            own = place.to_bytes(8, "big")
            fits = inner[: layout.OFFSET_PHY_OFFSET] + own + inner[layout.OFFSET_PHY_OFFSET + 8 :]
            content[place : place + len(inner)] = fits
        crc = zlib.crc32(content[body : body + 2_000]) & 0x7FFFFFFF
        content[at + layout.OFFSET_BODY_CRC : at + layout.OFFSET_BODY_CRC + 4] = crc.to_bytes(4, "big")
    path.write_bytes(content)
    entries: list[int | None] = []

    def noted(part: SplitRange, entry: int | None = None, **how: Any) -> SplitScan:
        entries.append(entry)
        return scan_split(part, entry, **how)

    monkeypatch.setattr(split_scan, "scan_split", noted)
    queue = opened(tmp_path / "s").commitlog
    whole = scan_log(queue)
    assert whole.messages == 60 and not whole.damaged and not whole.stale
    assert_same(queue, 9_999)
    assert sum(entry is not None for entry in entries) > 5, "splits began in bodies, and were scanned again"


@pytest.mark.parametrize("recipe", [None, "bit-in-body", "torn-tail"])
def test_progress_comes_to_all_bytes_and_messages(tmp_path: Path, recipe: str | None) -> None:
    synth_store(tmp_path / "s", messages=900, mapped_file_size=64 * 1024)
    if recipe is not None:
        damage(recipe, tmp_path / "s", 1)
    queue = opened(tmp_path / "s").commitlog
    reports: list[tuple[int, int]] = []
    log = LocalEngine(2, 7_001).scan_log(
        queue, progress=lambda *it: reports.append(it), with_keys=False
    )
    assert sum(size for size, _ in reports) == sum(file.length for file in queue.files)
    assert sum(records for _, records in reports) == log.messages
