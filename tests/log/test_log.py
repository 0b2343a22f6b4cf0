"""The log as rows: order, damage, tail, generations, and the scan that is not made twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.synth import StoreWriter, synth_store
from formats.record import Record, encode, make_record
from recover.broker.versions import BrokerVersion
from recover.log.scan import LogView, scan_log
from recover.look.store import Generation, default_broker, find_generation
from recover.store.store import Store
from tests.support.looks import opened
from tests.support.stores import EXPECTED, STORES, write_at

# --- The log as a whole: damage, end, stale records, old generations, strays, misplaced files.


Copies = Callable[[str], Path]


def _log(root: Path) -> LogView:
    return scan_log(opened(root).commitlog)


def _put(root: Path, phy_offset: int, content: bytes, file_size: int) -> None:
    path = root / "commitlog" / f"{phy_offset // file_size * file_size:020d}"
    write_at(path, phy_offset % file_size, content)


def test_the_first_record_bad_leaves_valid_to_at_the_start(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=50, mapped_file_size=64 * 1024, first_phy_offset=65536 * 3)
    _put(tmp_path / "s", 65536 * 3, b"\xff" * 8, 65536)
    log = _log(tmp_path / "s")
    assert log.min_offset == log.valid_to == 65536 * 3
    assert log.messages == 49


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
    _put(tmp_path, written.log_end, b"\x01torn", 65536)
    _put(tmp_path, written.log_end + 40, _old_record(last, written.log_end + 40, **changes), 65536)
    log = _log(tmp_path)
    assert (log.stale, log.messages, log.log_end) == (1, 30, written.log_end)
    assert log.tail is not None and log.tail.start == written.log_end


def test_a_record_that_continues_its_queue_behind_damage_is_not_stale(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, mapped_file_size=65536)
    records = [writer.put("T", b"x" * 20) for _ in range(30)]
    writer.close()
    _put(tmp_path, records[10].phy_offset + 90, b"!", 65536)
    log = _log(tmp_path)
    assert (log.stale, log.messages, len(log.damaged)) == (0, 29, 1)


def test_a_queue_that_numbers_again_keeps_only_its_newest_generation(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, mapped_file_size=65536)
    for _ in range(20):
        writer.put("T", b"first life")
    writer._units[("T", 0)].clear()  # the queue was lost, and the broker began again at 0
    for _ in range(5):
        writer.put("T", b"second life")
    writer.close()
    log = _log(tmp_path)
    assert (log.superseded, log.messages) == (20, 5)


# --- Which release is taken for the one that wrote a store.


def generation(root: Path) -> Generation:
    store = Store.open(root)
    return find_generation(store, store.checkpoint())


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
