"""Index files are listed as a broker loads them, and their geometry is found whatever their length allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from formats.index import DEFAULT_GEOMETRY, IndexGeometry
from recover.derived.index_files import file_geometry, index_geometry, list_index_files, proven_geometry
from recover.findings.refusal import UsageRefusal
from recover.store.store import Store, StoreOptions
from tests.support.indexes import opened, write
from tests.support.stores import STORES, unpacked

GEOMETRY = IndexGeometry(500, 2000)
StoreCopy = Callable[[str], Path]


def geometry(root: Path, **options: object) -> IndexGeometry | None:
    return index_geometry(Store.open(root, StoreOptions(**options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STORES)
def test_geometry_of_each_file_alone_is_proven_by_its_units(name: str) -> None:
    for path in (unpacked(name) / "index").iterdir():
        assert proven_geometry(path, path.stat().st_size) == file_geometry(path, path.stat().st_size) == GEOMETRY


@pytest.mark.parametrize(("slots", "entries"), [(77, 1233), (1000, 1800), (3, 400), (2005, 1599), (1, 2399)])
def test_odd_split_is_told_apart_from_others_of_the_same_length(
    slots: int, entries: int, tmp_path: Path
) -> None:
    from recover.derived.index_rebuild import rebuild_index

    source, log = opened(unpacked("killed-5.5.0"))
    options = StoreOptions(index=_empty(tmp_path / "none"), index_slots=slots, index_entries=entries,
                           broker="5.5.0")
    bare = Store.open(source.root, options)
    plan = rebuild_index(bare, log, fresh=True)
    write(plan, tmp_path / "index")
    (tmp_path / "commitlog").mkdir()
    assert geometry(tmp_path) == IndexGeometry(slots, entries)


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_most_files_decide_when_one_is_damaged(store: StoreCopy) -> None:
    root = store("killed-5.5.0")
    paths = sorted((root / "index").iterdir())
    paths[0].write_bytes(random.Random(1).randbytes(42040))
    paths[-1].write_bytes(b"\0" * 42040)
    assert geometry(root) == GEOMETRY


@pytest.mark.parametrize("length", [0, 21020, 21022, 30001, 42039])
def test_file_that_was_cut_does_not_mislead(store: StoreCopy, length: int) -> None:
    root = store("clean-4.5.1")
    for path in sorted((root / "index").iterdir())[1:]:
        path.unlink()
    only = next((root / "index").iterdir())
    only.write_bytes(only.read_bytes()[:length])
    assert geometry(root) == (GEOMETRY if length else DEFAULT_GEOMETRY)


def test_default_without_files_unless_settings_say_otherwise(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert geometry(tmp_path) == DEFAULT_GEOMETRY
    assert geometry(tmp_path, settings={"maxHashSlotNum": "50", "maxIndexNum": "200"}) == IndexGeometry(50, 200)


@pytest.mark.parametrize("options", [
    {"index_slots": 500}, {"index_entries": 2000}, {"index_slots": 500, "index_entries": 2000},
])
def test_true_override_is_taken(options: dict[str, int]) -> None:
    assert geometry(unpacked("clean-4.5.1"), **options) == GEOMETRY


@pytest.mark.parametrize("options", [
    {"index_slots": 505, "index_entries": 1999}, {"index_slots": 501}, {"index_entries": 3000}, {"index_slots": 0},
    {"index_slots": 505}, {"index_entries": 1}, {"index_slots": 5_000_000, "index_entries": 20_000_000},
])
def test_override_that_cannot_be_true_is_refused_with_the_reason(options: dict[str, int]) -> None:
    with pytest.raises(UsageRefusal, match="cannot be true"):
        geometry(unpacked("clean-4.5.1"), **options)


def test_listing_tells_index_files_from_the_rest(tmp_path: Path) -> None:
    plain = ("20261121015608112", "7", "notes.txt", "20261121015608112.bak", "99999999999999999999")
    for name in (*plain, "٢٠٢٦١١٢١٠١٥٦١٠٠٤٥"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "20261121015610045").mkdir()
    (tmp_path / "20261121015610046").symlink_to(tmp_path / "gone")
    listing = list_index_files(tmp_path)
    assert [(file.name, file.is_time) for file in listing.files] == [
        ("20261121015608112", True), ("7", False), ("٢٠٢٦١١٢١٠١٥٦١٠٠٤٥", True),
    ]
    assert {odd.path.name: odd.is_directory for odd in listing.odd} == {
        "20261121015608112.bak": False, "20261121015610045": True, "20261121015610046": False,
        "99999999999999999999": False, "notes.txt": False,
    }
    assert list_index_files(tmp_path / "missing").files == ()
