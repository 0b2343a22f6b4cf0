"""A log cut into splits for several threads is told exactly as one walk through each of its files tells it."""

from __future__ import annotations

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
from recover.log.engine import LocalEngine
from recover.log.file_scan import WINDOW, SplitRange, SplitScan, scan_split
from recover.log.scan import LogView, scan_log
from recover.log.split_scan import one_split, parts_of
from recover.store.mapped_files import MappedFile, MappedFileQueue
from tests.support.looks import opened
from tests.support.sampling import sampled
from tests.support.stores import unpacked

Copies = Callable[[str], Path]
STORES = (*WHOLE_BROKER, *made())
SIZES = (4_001, 30_011)
NUMBERS = ("positions", "least", "most", "fallen")


def told(log: LogView) -> dict[str, Any]:
    """All that a log says of itself, whatever its rows are cut into."""
    rows = one_split(log.splits())
    tally = {name: getattr(log.tally, name) for name in type(log.tally).__slots__}  # type: ignore[attr-defined]
    return {
        "rows": rows.records.tolist(), "hashes": rows.hashes.tolist(), "queues": log.queues, "has_keys": log.has_keys,
        "places": (log.min_offset, log.valid_to, log.log_end, log.damaged, log.tail, log.ghosts, log.superseded),
        "tally": {name: value.tolist() if name in NUMBERS else value for name, value in tally.items()},
        "files": [
            (scan.mapped_file, scan.queues, scan.holes, scan.blank, scan.blank_size, scan.end, scan.record_count)
            for scan in log.files
        ],
    }


def assert_same(queue: MappedFileQueue, split_size: int) -> None:
    """The log says the same however it is cut."""
    assert told(scan_log(queue, threads=2, split_size=split_size)) == told(scan_log(queue))


@pytest.mark.parametrize("split_size", SIZES)
@pytest.mark.parametrize("name", STORES)
def test_a_sound_log_is_the_same_in_splits_of_every_size(name: str, split_size: int) -> None:
    queue = opened(unpacked(name)).commitlog
    assert_same(queue, split_size)


@pytest.mark.parametrize(("recipe", "name"), sampled(
    sorted(of_area("log", "crash", "files")), ("killed-5.5.0", "synth"), quick=40,
))
def test_a_damaged_log_is_the_same_in_splits_of_every_size(
    store: Copies, tmp_path: Path, recipe: str, name: str
) -> None:
    root = store(name) if name != "synth" else synth_store(
        tmp_path / "s", messages=600, mapped_file_size=32 * 1024).root
    try:
        damage(recipe, root, 4)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    assert_same(opened(root).commitlog, 7_001)


def test_a_queue_that_only_a_later_split_has_gets_its_number_there(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=2_000, mapped_file_size=256 * 1024, topics=60, queues=8)
    queue = opened(tmp_path / "s").commitlog
    assert len(scan_log(queue).queues) > 300
    assert_same(queue, 3_000)


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
    assert whole.messages == 60 and not whole.damaged and not whole.ghosts
    assert_same(queue, 9_999)
    assert sum(entry is not None for entry in entries) > 5, "splits began in bodies, and were scanned again"


def test_a_file_that_cannot_be_opened_is_told_of_once(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=900, mapped_file_size=32 * 1024)
    queue = opened(tmp_path / "s").commitlog
    queue.files[2].path.unlink()
    told_of: list[str] = []
    log = scan_log(
        queue, threads=2, split_size=4096, open_error=lambda file, error: told_of.append(f"{file.name} {error.errno}")
    )
    assert told_of == [f"{queue.files[2].name} 2"] and [damage.reason for damage in log.damaged] == ["missing-file"]
    with pytest.raises(FileNotFoundError):
        scan_log(queue, threads=2, split_size=4096)


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


def test_splits_become_smaller_so_that_threads_end_together(tmp_path: Path) -> None:
    def sizes(threads: int, *lengths: int) -> list[list[int]]:
        bases = range(0, len(lengths) << 30, 1 << 30)
        files = [MappedFile(tmp_path / f"{at:020}", at, size) for at, size in zip(bases, lengths, strict=True)]
        cut = parts_of(MappedFileQueue((tmp_path,), 1 << 30, files), threads)
        for parts, length in zip(cut, lengths, strict=True):
            assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
            assert parts[-1].stop == length and parts[-1].is_last
            assert not any(part.start % WINDOW or part.is_last for part in parts[:-1])
        return [[(part.stop - part.start) >> 20 for part in parts] for parts in cut]

    assert sizes(1, 1 << 30, 1 << 30) == [[1024], [1024]], "one after the other in any case"
    (halves,) = sizes(2, 1 << 30)
    assert 330 < halves[0] < 350 and halves == sorted(halves, reverse=True) and halves[-1] < 33
    # each split has to find its first record, which should not show
    assert sizes(16, 50_000) == [[0]] and sizes(16, 60 << 20) == [[60]] and sizes(2, 0) == [[0]]
    assert max(sizes(16, 1 << 30)[0]) < 43 and len(sizes(16, 1 << 30)[0]) > 25
    large = sizes(2, *[1 << 30] * 100)
    assert all(whole == [1024] for whole in large[:96]) and len(large[-1]) > 5
