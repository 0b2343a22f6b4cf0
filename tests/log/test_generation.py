"""Which release is taken for the one that wrote a store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from formats.record import Record
from recover.broker.versions import BrokerVersion
from recover.log.judge import LogReader
from recover.look.generation import Generation, find_generation
from recover.look.pointers import read_checkpoint
from recover.look.store import default_broker
from recover.store.store import Store
from tests.support.stores import EXPECTED, STORES


def generation(root: Path) -> Generation:
    store = Store.open(root)
    return find_generation(store, read_checkpoint(store))


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


def test_a_record_that_goes_after_it_was_scanned_leaves_no_trace(
    store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store("killed-v2-ipv6-5.3.3")
    record, gone = LogReader.record, iter([True, False])

    def cut(reader: LogReader, phy_offset: int, size: int) -> Record:
        return record(reader, phy_offset, size + (1 << 22) * next(gone, False))

    whole = generation(root)
    monkeypatch.setattr(LogReader, "record", cut)
    assert generation(root) == whole
    assert next(gone, None) is None


def test_earliest_recovery_decides_between_generations_that_fit(store: Callable[[str], Path]) -> None:
    version, why = default_broker(Store.open(store("clean-5.3.3")))
    # those up to 5.3.1 begin three files before the end, later ones in the last file
    assert version == BrokerVersion(5, 2) and "earliest" in why and "before 5.4.0" in why


def test_newest_of_equal_generations_is_taken(store: Callable[[str], Path]) -> None:
    version, why = default_broker(Store.open(store("killed-5.5.0")))
    assert version == BrokerVersion(5, 5) and "fits all" in why
