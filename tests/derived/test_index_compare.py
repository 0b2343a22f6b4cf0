"""An index file that is byte for byte what the log calls for gets the verdict that judging each unit gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry
from recover.derived import index_check, index_image
from recover.derived.index_check import IndexFileVerdict, check_index, compare_file
from recover.derived.index_keys import IndexStream
from recover.log.scan import LogView
from recover.store.reader import FileReader, ReadFailure
from tests.support.indexes import checked, opened
from tests.support.stores import STORES, unpacked

StoreCopy = Callable[[str], Path]


@pytest.mark.parametrize("name", STORES)
def test_file_that_is_as_the_log_has_it_gets_the_verdict_of_judging_its_units(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    compare = index_check.compare_file

    def noting(*arguments: Any) -> Any:
        compared.append(compare(*arguments))
        return compared[-1]

    monkeypatch.setattr(index_check, "compare_file", noting)
    one = checked(unpacked(name))
    monkeypatch.setattr(index_check, "compare_file", lambda *arguments: None)
    other = checked(unpacked(name))
    assert [structs.replace(it, tag_runs=[]) for it in one.verdicts] == [
        structs.replace(it, tag_runs=[]) for it in other.verdicts
    ]
    assert one.findings == other.findings
    assert (one.json(), one.stream.tags.changes) == (other.json(), other.stream.tags.changes)
    for number in range(len(one.stream.splits)):
        assert one.stream.found(number).tolist() == other.stream.found(number).tolist()
    if name.startswith("clean") and "expired" not in name and one.total("units"):
        assert any(verdict is not None for verdict in compared)


def first_of_a_sound_index(store: StoreCopy) -> tuple[LogView, IndexFileVerdict, IndexGeometry]:
    """The log, and the first index file of a store in which nothing is amiss."""
    opened_store, log = opened(store("clean-5.3.3"))
    clean = check_index(opened_store, log)
    assert clean.geometry is not None
    return log, clean.verdicts[0], clean.geometry


@pytest.mark.parametrize("field", range(5))
def test_a_change_in_any_field_of_any_unit_is_a_difference(field: int, store: StoreCopy) -> None:
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
                followed = compare_file(verdict.file, reader, geometry, stream, None)
            if number == 1 and field == 3 and 0 <= word <= 0x7FFFFFFF:
                continue  # the first unit counts from the end of the file before it, which is not there
            assert followed is None
            assert not any(stream.found(split).any() for split in range(len(stream.splits)))


@pytest.mark.parametrize("place", ["slot", "header", "behind", "short"])
def test_a_change_anywhere_else_is_a_difference(place: str, store: StoreCopy) -> None:
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
            followed = compare_file(file, reader, geometry, stream, None)
        # one slot more or less can be true: brokers up to 4.7.0 count otherwise
        assert followed is None or at == INDEX_HEADER.offset("hash_slot_count") + 3
        assert followed or not any(stream.found(split).any() for split in range(len(stream.splits)))


@pytest.mark.parametrize("name", STORES)
def test_small_blocks_give_the_same_verdicts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = checked(unpacked(name))
    monkeypatch.setattr(index_image, "_UNITS", 7)
    other = check_index(*opened(unpacked(name)))
    assert one.verdicts == other.verdicts
    assert one.findings == other.findings
    assert (one.json(), one.stream.tags.changes) == (other.json(), other.stream.tags.changes)


@pytest.mark.parametrize("block", [1, 2, -1])
def test_block_that_cannot_be_read_is_a_part_that_cannot_be_read(
    block: int, store: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, verdict, geometry = first_of_a_sound_index(store)
    monkeypatch.setattr(index_image, "_UNITS", 7)
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
