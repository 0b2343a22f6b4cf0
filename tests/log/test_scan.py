"""The scan of the log: records, damage, heads inside bodies, holes of sparse files, and splits that are put
together."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fixtures.damage import damage, of_area
from fixtures.lab.packed import WHOLE_BROKER, made
from fixtures.nested_heads import ENDS, message, nested_heads
from fixtures.synth import synth_store
from formats.basics import FormatError
from formats.record import HEAD, HEAD_SIZE, decode, encode, layout
from formats.record.message import make_record
from formats.record.rows import row_of
from recover.log import split_scan
from recover.log.file_scan import FileScan, SplitRange, SplitScan, scan_file, scan_split
from recover.log.judge import frame_size, judge, reason_of
from recover.log.scan import LocalEngine, LogView, assemble
from recover.log.split_scan import one_split
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.memo import RangeSums
from recover.store.source import open_file
from tests.cli.runner import mqtool
from tests.cluster.twice import plain
from tests.support.analysed import opened
from tests.support.commitlog import placed_records
from tests.support.sampling import few, sampled
from tests.support.stores import STORES, copy_store, flip, real_store, strike, unpacked, write_at

# --- The scan of one mapped file: what is intact, where it stops, where it goes on.


Copies = Callable[[str], Path]
scan_log = LocalEngine().scan_log


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
        assert all(gap.start < gap.stop for gap in scan.gaps)


def test_the_gap_before_an_intact_end_mark_ends_at_it(store: Copies) -> None:
    root = store("clean-5.3.3")
    last = [p for p in placed_records("clean-5.3.3") if p.file_from_offset == 0][-1]
    path = root / "commitlog" / "00000000000000000000"
    flip(path, last.offset + 90)
    (gap,) = _scans(root)[0].gaps
    assert (gap.start, gap.stop, gap.ended_by) == (last.offset, last.offset + last.record.total_size, "blank")


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


# --- Heads of records within each other's bodies, right but for a checksum: judging them costs what their file costs.


@few(("step", "window"), [(24, 64 << 10), (128, 8 << 10)], quick=(1,))
def test_intact_records_among_nested_heads_are_found(tmp_path: Path, step: int, window: int) -> None:
    size = 96 << 10
    content = bytearray(nested_heads(size, max(step, HEAD_SIZE + ENDS)))
    for at in range(0, size - 400, step if step < HEAD_SIZE else size):
        # heads that overlap have little more than magic and own offset
        content[at + 4 : at + 8], content[at + 28 : at + 36] = encode(message(at, b""))[4:8], struct.pack(">q", at)
    for number in range(40):
        at = 1000 + 2311 * number
        whole = bytearray(encode(message(at, random.Random(number).randbytes(50 * (number % 9)), number % 2 == 0)))
        content[at : at + len(whole)] = whole
        if number % 5 == 4:
            content[at + 90] ^= 1
    path = tmp_path / "00000000000000000000"
    path.write_bytes(content)
    expected, at = [], 0
    while at < size - HEAD_SIZE:
        try:
            expected.append((at, judge(lambda begin, length: bytes(content[begin : begin + length]), at, 0, size)))
            at += expected[-1][1].total_size
        except FormatError:
            at += 1
    found = scan_file(MappedFile(path, 0, size), size, window=window)
    rows = [(int(row["phy_offset"]), int(row["size"])) for split in found.splits for row in split.records]
    assert rows == [(at, record.total_size) for at, record in expected]
    assert len(rows) >= 30


CONTENT = random.Random(2).randbytes(40_000)


@given(
    st.sampled_from([0, 5000, 9000]), st.integers(-200, 200),
    st.lists(st.tuples(st.integers(0, 9300), st.integers(0, 255)), max_size=3), st.sampled_from([0, 0x10, 0x30]),
)
def test_the_verdict_on_ends_is_that_on_the_whole(
    tmp_path_factory: pytest.TempPathFactory, body: int, cut: int, damage: list[tuple[int, int]], hosts: int
) -> None:
    record = message(64, CONTENT[:body], property_crc=True)
    content = bytearray(bytes(64) + encode(record) + bytes(100))
    for at, value in damage:
        # half of them near the ends
        content[min(at if at % 2 else 64 + at % 90, len(content) - 1)] = value
    content[64 + 36 + 3] |= hosts
    content = content[: len(content) - max(0, cut)]
    path = tmp_path_factory.getbasetemp() / "judged"
    path.write_bytes(content)
    verdicts = []
    with open_file(path) as reader:
        for sums in (None, RangeSums(reader, len(content))):
            try:
                verdicts.append((judge(reader.read, 64, 0, 20_000, sums), reason_of(reader.read, 64, 0, 20_000, sums)))
            except FormatError as error:
                verdicts.append((error.reason, error.facts, reason_of(reader.read, 64, 0, 20_000, sums)))
        assert frame_size(reader.read, 64, 0, 20_000, sums) in (0, record.total_size)
    assert verdicts[0] == verdicts[1]


# --- A hole of a sparse file is nothing but zeros: stores of equal bytes get the same documents and plans.


_BLOCK = 4096
Keep = Callable[[Path, int], bool]


def _with_holes(source: Path, target: Path, keep: Keep) -> Path:
    """A copy in which blocks of zeros are holes, but those of log, queues and index that are to be kept."""
    copy_store(source, target)
    for part in ("commitlog", "consumequeue", "index"):
        for path in (source / part).rglob("*"):
            if path.is_file():
                _copy(path, target / path.relative_to(source), keep)
    return target


def _copy(source: Path, target: Path, keep: Keep) -> None:
    content = source.read_bytes()
    with open(target, "wb") as file:
        for at in range(0, len(content), _BLOCK):
            block = content[at : at + _BLOCK]
            if any(block) or keep(source, at):
                file.seek(at)
                file.write(block)
        file.truncate(len(content))
    shutil.copystat(source, target)


def _documents(root: Path) -> list[Any]:
    found = []
    for command in (["verify"], ["recover", "--dry-run"], ["predict"]):
        document = plain(mqtool(command[0], root, *command[1:], "--json").document, root)
        found.append({key: value for key, value in document.items() if key != "summary"})
    return found


def _strike(root: Path, seed: int) -> None:
    """Flip bits in the log and have pages of all files be zeros, as pages are that never reached the disk."""
    rng = random.Random(seed)
    logs = sorted((root / "commitlog").iterdir())
    files = [path for part in ("consumequeue", "index") for path in sorted((root / part).rglob("*")) if path.is_file()]
    for path in [*logs, rng.choice(files)]:
        content = bytearray(path.read_bytes())
        end = len(bytes(content).rstrip(b"\0"))
        for _ in range(3):
            at = rng.randrange(max(1, end))
            content[at] ^= 0x40
            page = min(at + rng.choice([100, 5000, 20_000]), end) // _BLOCK * _BLOCK
            size = min(rng.choice([1, 3]) * _BLOCK, len(content) - page)
            content[page : page + size] = bytes(size)
        path.write_bytes(content)


def test_equal_stores_get_equal_verdicts_and_plans(tmp_path: Path) -> None:
    _strike(struck := real_store("clean-5.3.3", tmp_path), seed=1)
    rng = random.Random(1)
    wanted = _documents(_with_holes(struck, tmp_path / "dense", lambda path, at: True))
    assert _documents(_with_holes(struck, tmp_path / "sparse", lambda path, at: False)) == wanted
    in_the_log = _with_holes(
        struck, tmp_path / "some", lambda path, at: path.parent.name == "commitlog" and rng.random() < 0.5)
    assert _documents(in_the_log) == wanted


def test_records_are_found_behind_a_hole_behind_damage(tmp_path: Path) -> None:
    """In the last MiB of a file the search took the end of its buffer for that of the file."""
    synth_store(tmp_path / "s", messages=2000, mapped_file_size=1 << 20)
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[0]
    flip(path, 10_000)
    write_at(path, 3 * _BLOCK, bytes(_BLOCK))
    (dense, *_) = _scans(tmp_path / "s")
    (sparse, *_) = _scans(_with_holes(tmp_path / "s", tmp_path / "sparse", lambda path, at: False))
    assert sparse.gaps == dense.gaps and sparse.record_count == dense.record_count > 1000
    assert dense.end == sparse.end


@pytest.mark.parametrize("shift", range(5))
def test_a_record_is_found_whose_size_begins_in_a_hole(tmp_path: Path, shift: int) -> None:
    """The first bytes of a size are zeros, and may be the last ones of a hole."""
    size, at = 64 * _BLOCK, 8 * _BLOCK - shift
    content = bytearray(size)
    content[0:4] = b"\1\1\1\1"
    record = encode(make_record(b"T", b"x" * 50, phy_offset=at, store_timestamp=1, born_timestamp=1))
    content[at : at + len(record)] = record
    folder = tmp_path / "s" / "commitlog"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000").write_bytes(content)
    sparse = _with_holes(tmp_path / "s", tmp_path / "sparse", lambda path, at: False)
    for root in (tmp_path / "s", sparse):
        (scan,) = _scans(root)
        assert scan.gaps[0].stop == at and scan.record_count == 1


# --- Splits of a file, each scanned by itself, are put together to exactly what one walk finds.


EVERY_STORE = (*WHOLE_BROKER, *made())


def told(log: LogView) -> dict[str, Any]:
    """All that a log says of itself, whatever its rows are cut into."""
    rows = one_split(log.splits())
    tally = {name: getattr(log.tally, name) for name in type(log.tally).__slots__}  # type: ignore[attr-defined]
    return {
        "rows": rows.records.tolist(), "hashes": rows.hashes.tolist(), "queues": log.queues, "has_keys": log.has_keys,
        "places": (log.min_offset, log.valid_to, log.log_end, log.damaged, log.tail, log.stale, log.superseded),
        "tally": {name: value.tolist() if name == "queues" else value for name, value in tally.items()},
        "files": [
            (scan.mapped_file, scan.queues, scan.gaps, scan.blank, scan.end, scan.record_count)
            for scan in log.files
        ],
    }


def scan_cut(queue: MappedFileQueue, split_size: int, **how: Any) -> LogView:
    """The log, scanned in splits of so many bytes by two threads."""
    parts = [split_scan.splits_of(file, queue.file_size, split_size) for file in queue.files]
    return assemble(queue, split_scan.scan_files(parts, 2, **how))


def assert_same(queue: MappedFileQueue, split_size: int) -> None:
    """The log says the same however it is cut."""
    assert told(scan_cut(queue, split_size)) == told(scan_log(queue))


@pytest.mark.parametrize("name", sampled(EVERY_STORE, quick=4))
def test_a_sound_log_is_the_same_however_it_is_cut(name: str) -> None:
    assert_same(opened(unpacked(name)).commitlog, 1_500)


@pytest.mark.parametrize(("recipe", "name"), sampled(
    sorted(of_area("log", "crash", "files")), ("killed-5.5.0", "synth"), quick=6,
))
def test_a_damaged_log_is_the_same_however_it_is_cut(store: Copies, tmp_path: Path, recipe: str, name: str) -> None:
    root = store(name) if name != "synth" else synth_store(
        tmp_path / "s", messages=600, mapped_file_size=32 * 1024).root
    strike(recipe, root, 4)
    assert_same(opened(root).commitlog, 7_001)


def test_a_new_generation_behind_a_break_is_told_the_same_however_its_rows_are_cut(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=400, mapped_file_size=64 * 1024, topics=1, queues=2)
    paths = sorted((tmp_path / "s" / "commitlog").iterdir())
    content = bytearray(paths[1].read_bytes())
    rows = one_split(scan_file(MappedFile(paths[1], int(paths[1].name), len(content)), 64 * 1024).splits).records
    base = int(paths[1].name)
    content[rows["phy_offset"][5] - base + 4] ^= 1
    for number, row in enumerate(rows[40:].tolist()):  # two queues that number their messages from 0 again
        at = row[0] - base + HEAD.offset("queue_offset")
        content[at : at + 8] = struct.pack(">q", number // 2)
    paths[1].write_bytes(content)
    queue = opened(tmp_path / "s").commitlog
    log = scan_log(queue)
    assert log.superseded > 0 and not log.stale
    assert_same(queue, 3000)


def test_noise_anywhere_is_the_same_in_splits_of_every_size(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=400, mapped_file_size=32 * 1024)
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[1]
    content = path.read_bytes()
    rng = random.Random(11)
    for _ in range(12):
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
        stored = at + HEAD.offset("body_crc")
        content[stored : stored + 4] = crc.to_bytes(4, "big")
    path.write_bytes(content)
    entries: list[int | None] = []

    def noted(part: SplitRange, entry: int | None = None, **how: Any) -> SplitScan:
        entries.append(entry)
        return scan_split(part, entry, **how)

    monkeypatch.setattr(split_scan, "scan_split", noted)
    queue = opened(tmp_path / "s").commitlog
    whole = scan_log(queue)
    assert whole.tally.messages == 60 and not whole.damaged and not whole.stale
    assert_same(queue, 9_999)
    assert sum(entry is not None for entry in entries) > 5, "splits began in bodies, and were scanned again"


@pytest.mark.parametrize("recipe", [None, "bit-in-body", "torn-tail"])
def test_progress_comes_to_all_bytes_and_messages(tmp_path: Path, recipe: str | None) -> None:
    synth_store(tmp_path / "s", messages=900, mapped_file_size=64 * 1024)
    if recipe is not None:
        damage(recipe, tmp_path / "s", 1)
    queue = opened(tmp_path / "s").commitlog
    reports: list[tuple[int, int]] = []
    log = scan_cut(queue, 7_001, progress=lambda *it: reports.append(it), with_keys=False)
    assert sum(size for size, _ in reports) == sum(file.length for file in queue.files)
    assert sum(records for _, records in reports) == log.tally.messages


# --- Queues that a hostile producer chose take no longer to number than others.


def _log_of_topics(path: Path, names: list[str], properties: bytes = b"") -> tuple[MappedFile, int]:
    content = bytearray()
    for name in names:
        content += encode(make_record(name, b"", properties, store_timestamp=1 << 40, phy_offset=len(content)))
    size = len(content) + 4096
    path.write_bytes(content + bytes(4096))
    return MappedFile(path, 0, size), size


def _seconds(*log: Any) -> float:
    best = float("inf")
    for _ in range(3):
        begun = time.process_time()
        scanned = scan_file(*log)
        best = min(best, time.process_time() - begun)
        assert scanned.record_count == len(scanned.queues)
    return best


def test_topics_of_one_java_hash_are_scanned_like_any_others(tmp_path: Path) -> None:
    # "Aa" and "BB" have one String.hashCode, and so has any sequence of them
    same = ["".join(pair) for pair in itertools.product(("Aa", "BB"), repeat=14)]
    other = [f"{number:028d}" for number in range(len(same))]
    logs = [_log_of_topics(tmp_path / name, names) for name, names in (("same", same), ("other", other))]
    rows = scan_file(*logs[0])
    assert [topic.decode() for topic, _ in rows.queues] == same
    assert _seconds(*logs[0]) < 2 * _seconds(*logs[1])


def test_queues_of_records_that_only_the_reference_codec_accepts_are_numbered_in_linear_time(tmp_path: Path) -> None:
    few, many = ([f"Topic{number}" for number in range(size)] for size in (250, 1000))
    # a key that is no UTF-8
    logs = [_log_of_topics(tmp_path / str(len(names)), names, b"KEYS\x01\xff\x02") for names in (few, many)]
    assert [topic.decode() for topic, _ in scan_file(*logs[1]).queues] == many
    assert _seconds(*logs[1]) < 6 * _seconds(*logs[0])
