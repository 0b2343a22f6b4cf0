"""The log as rows: order, damage, tail, generations, and the scan that is not made twice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fixtures.synth import StoreWriter, synth_store
from formats.record import Record, encode, make_record
from formats.record.rows import BIT_FILLER, BIT_MARKER, BIT_MISNUMBERED, BIT_PROP_CRC, BIT_STALE, BIT_SUPERSEDED, RECORD
from recover.broker.versions import BrokerVersion
from recover.log import generations
from recover.log.file_scan import FileScan
from recover.log.scan import KnownLog, LocalEngine, LogView, stamps_of, tally
from recover.look.store import Generation, default_broker
from recover.reading.doubts import read
from recover.reading.facts import Facts, ScanOptions
from recover.store.columns import Rows, Split
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.store import Store
from tests.support.analysed import opened
from tests.support.stores import EXPECTED, STORES, flip, log_place, write_at

# --- The log as a whole: damage, end, stale records, old generations, strays, misplaced files.


Copies = Callable[[str], Path]


def _log(root: Path) -> LogView:
    return LocalEngine().scan_log(opened(root).commitlog)


def test_the_first_record_bad_leaves_valid_to_at_the_start(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=50, mapped_file_size=64 * 1024, first_phy_offset=65536 * 3)
    write_at(*log_place(tmp_path / "s", 65536 * 3), b"\xff" * 8)
    log = _log(tmp_path / "s")
    assert log.min_offset == log.valid_to == 65536 * 3
    assert log.tally.messages == 49


def _old_record(record: Record, position: int, **changes: int) -> bytes:
    fields = {"queue_offset": record.queue_offset, "store_timestamp": record.store_timestamp} | changes
    return encode(make_record(record.topic, b"old", phy_offset=position, queue_id=record.queue_id, **fields))


@pytest.mark.parametrize("older", ["queue_offset", "store_timestamp"])
def test_records_behind_the_end_are_stale_by_offset_or_by_time(tmp_path: Path, older: str) -> None:
    writer = StoreWriter(tmp_path, mapped_file_size=65536)
    records = [writer.put("T", b"x" * 20, queue_id=0) for _ in range(30)]
    written = writer.close()
    last = records[-1]
    changes = {"queue_offset": 3} if older == "queue_offset" else {
        "queue_offset": last.queue_offset + 5, "store_timestamp": records[3].store_timestamp,
    }
    write_at(*log_place(tmp_path, written.log_end), b"\x01torn")
    write_at(*log_place(tmp_path, written.log_end + 40), _old_record(last, written.log_end + 40, **changes))
    log = _log(tmp_path)
    assert (log.stale, log.tally.messages, log.log_end) == (1, 30, written.log_end)
    assert log.tail is not None and log.tail.start == written.log_end


def test_messages_of_a_topic_that_was_made_anew_after_damage_are_not_stale(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, mapped_file_size=65536)
    records = [writer.put("T", b"x" * 20) for _ in range(30)]
    writer.put("U", b"x" * 20)
    anew = [writer.put("T", b"y" * 20, queue_offset=number) for number in range(20)]
    writer.close()
    write_at(*log_place(tmp_path, records[10].phy_offset + 90), b"!")
    write_at(*log_place(tmp_path, anew[0].phy_offset), bytes(5 * anew[0].total_size))
    log = _log(tmp_path)
    assert (log.stale, log.tally.messages, len(log.damaged)) == (0, 5 + 15 + 1, 2)


def test_messages_after_the_clock_went_back_are_not_stale_because_of_earlier_damage(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, mapped_file_size=65536)
    records = [writer.put("T", b"x" * 20) for _ in range(30)]
    for record in records:
        writer.put("T", b"y" * 20, store_timestamp=record.store_timestamp - 3_600_000)
    writer.close()
    write_at(*log_place(tmp_path, records[10].phy_offset + 90), b"!")
    log = _log(tmp_path)
    assert (log.stale, log.tally.messages, len(log.damaged)) == (0, 59, 1)


# --- Which release is taken for the one that wrote a store.


def generation(root: Path) -> Generation:
    store = Store.open(root)
    return Generation(store, store.checkpoint())


@pytest.mark.parametrize("name", STORES)
def test_the_writer_lies_within_the_limits(store: Callable[[str], Path], name: str) -> None:
    writer = BrokerVersion.parse(EXPECTED[name]["broker"])
    found = generation(store(name))
    assert found.at_least <= writer and (found.before is None or writer < found.before)
    # and the range is narrow enough to tell 4.x, 5.x up to 5.3 and later ones apart
    if writer < BrokerVersion(5, 4):
        assert found.before is not None


def test_crowded_index_file_tells_releases_up_to_4_7_0(store: Callable[[str], Path]) -> None:
    root = store("clean-4.5.1")
    assert generation(root).before == BrokerVersion(4, 7, 1)
    shutil.rmtree(root / "index")
    assert generation(root).before == BrokerVersion(5, 0)


def test_what_is_missing_counts_less_than_what_is_there(store: Callable[[str], Path]) -> None:
    root = store("killed-5.5.0")
    shutil.rmtree(root / "rocksdbstore")
    found = generation(root)
    assert found.before is None or found.before > found.at_least
    assert found.json()["at_least"] == str(found.at_least)


def test_earliest_recovery_decides_between_generations_that_fit(store: Callable[[str], Path]) -> None:
    version, why = default_broker(Store.open(store("clean-5.3.3")))
    # those up to 5.3.1 begin three files before the end, later ones in the last file
    assert version == BrokerVersion(5, 2) and "earliest" in why and "before 5.4.0" in why


def test_newest_of_equal_generations_is_taken(store: Callable[[str], Path]) -> None:
    version, why = default_broker(Store.open(store("killed-5.5.0")))
    assert version == BrokerVersion(5, 5) and "fits all" in why


# --- A log that did not change is not read twice; one that did, or that needs its queues to be understood, is.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return synth_store(tmp_path / "s", messages=60, mapped_file_size=8192).root


def _known(root: Path) -> tuple[KnownLog, MappedFileQueue]:
    queue = Store.open(root).commitlog
    stamps = stamps_of(queue)
    return KnownLog(LocalEngine().scan_log(queue), stamps), queue


@pytest.mark.parametrize("change", ["changed", "removed", "replaced", "other names"])
def test_a_log_that_is_not_what_it_was_is_scanned_again(root: Path, change: str) -> None:
    (root / "commitlog" / "lost+found").mkdir()
    known, queue = _known(root)
    path = queue.files[1 if change == "changed" else -1].path
    status, content = path.stat(), path.read_bytes()
    if change == "changed":
        flip(path, 88)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "removed":
        path.unlink()
    elif change == "replaced":
        path.rename(root / "aside")
        path.write_bytes(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        (root / "commitlog" / "lost+found").rmdir()
    assert not known.holds(queue if change == "changed" else Store.open(root).commitlog)


def test_a_log_with_damage_is_scanned_again_for_its_meaning_depends_on_the_queues(root: Path) -> None:
    path = Store.open(root).commitlog.files[0].path
    flip(path, 88)
    known, queue = _known(root)
    assert not known.holds(queue)


def test_a_log_without_keys_is_scanned_again_for_those_who_need_them(root: Path) -> None:
    queue = Store.open(root).commitlog
    known = KnownLog(LocalEngine().scan_log(queue, with_keys=False), stamps_of(queue))
    assert known.holds(queue, with_keys=False) and not known.holds(queue)
    assert read(Facts.of(Store.open(root), ScanOptions(known=known))).log.has_keys


# --- Much damage: what is found out in one pass over the rows is what each damage by itself would be told, and work
# that damage makes grows with it, not with its square.


FILE = 1000
ROWS = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(0, 6), st.integers(0, 2),
        st.sampled_from([0, 0, 0, 0, BIT_STALE, BIT_FILLER, BIT_MARKER, BIT_PROP_CRC]),
        st.sampled_from([0, 0, 0, 8, 12]),
    ), max_size=60,
)
CUTS = st.sets(st.integers(0, 60), max_size=8)
def scans_of(rows: list[tuple[int, int, int, int, int]], cuts: set[int]) -> tuple[Rows, list[FileScan]]:
    """All rows, and scans of files of 1,000 bytes over them, cut into splits; each row a step after the one before."""
    records = np.zeros(len(rows), dtype=RECORD)
    for number, (step, queue_offset, queue, bits, sys_flag) in enumerate(rows):
        records[number]["phy_offset"] = step + (records[number - 1]["phy_offset"] if number else 0)
        records[number]["store_timestamp"] = 1000 + number
        for name, value in (("queue_offset", queue_offset), ("queue", queue), ("bits", bits), ("sys_flag", sys_flag)):
            records[number][name] = value
    scans = []
    for base in range(0, 3 * FILE, FILE):
        scan = FileScan(MappedFile(Path(f"{base:020d}"), base, FILE), FILE)
        inside = np.flatnonzero(records["phy_offset"] // FILE == base // FILE)
        borders = sorted({*inside[:1].tolist(), *(inside[-1:] + 1).tolist(), *(cuts & {*inside.tolist()})})
        scan.splits = [Split(records[start:stop], np.empty(0, dtype=np.int32)) for start, stop in pairwise(borders)]
        scans.append(scan)
    return records, scans


@given(ROWS, CUTS, st.sampled_from([1, 7, 1 << 21]))
def test_old_generations_are_those_of_each_queue_by_itself(
    rows: list[tuple[int, int, int, int, int]], cuts: set[int], at_once: int
) -> None:
    records, scans = scans_of(rows, cuts)
    expected = records["bits"].copy()
    counted = generations.counted(records)
    for queue in range(3):
        own = np.flatnonzero(counted & (records["queue"] == queue))
        stray = generations.misnumbered_among(records["queue_offset"][own], records["store_timestamp"][own])
        expected[own[stray]] |= BIT_MISNUMBERED
        own = own[~stray]
        offsets = records["queue_offset"][own].tolist()
        for at, offset in enumerate(offsets):
            restarts = [i for i in range(at + 1, len(offsets)) if offsets[i] <= offsets[i - 1]]
            if any(offsets[i] <= offset for i in restarts):
                expected[own[at]] |= BIT_SUPERSEDED
    queues = tally(scans, 3).queues
    queues["fallen"] = 1
    with mock.patch.object(generations, "_AT_ONCE", at_once):
        marked = generations.mark_superseded(scans, queues)
    assert records["bits"].tolist() == expected.tolist()
    assert marked == int(((expected & BIT_SUPERSEDED) != 0).sum())
