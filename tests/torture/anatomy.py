"""What each byte of a sound store is: fields of records, units, headers and slots, and the bytes that nothing uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import plain_reader as plain
from tests.support.plain_reader import Geometry, IndexFile, Record, Unit

LOG_FOLDERS = ("commitlog", "commitlog-a", "commitlog-b")
_UNIT = (("phy_offset", 8), ("size", 4), ("tags_code", 8))
_HEADER = (("begin_timestamp", 8), ("end_timestamp", 8), ("begin_phy_offset", 8), ("end_phy_offset", 8),
           ("hash_slot_count", 4), ("index_count", 4))
_ENTRY = (("key_hash", 4), ("phy_offset", 8), ("time_diff", 4), ("previous", 4))
_EXT_HEAD = (("size", 2), ("tags_code", 8), ("store_timestamp", 8), ("bit_map_size", 2))
_EXT_HEAD_SIZE = 20
_BLANK_SIZE = 8
_UNUSED = 40
"""Bytes after the end of a part, or cells nobody uses, that are worth a look: some of them."""


@dataclass(frozen=True)
class Place:
    """Bytes [start, stop) of one file that mean one thing. `kind` is `part.field`; `owner` says what they belong to."""

    file: str
    start: int
    stop: int
    kind: str
    owner: Any = None


@dataclass
class Anatomy:
    """All places of a store by kind, its records by phy offset and the whole things (units, records, files) in it."""

    root: Path
    places: dict[str, list[Place]] = field(default_factory=dict)
    wholes: list[Place] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    min_offset: int = 0
    geometry: Geometry | None = None
    _by_file: dict[str, list[Place]] = field(default_factory=dict)

    def of_file(self, name: str) -> list[Place]:
        """The places of one file, in order."""
        if not self._by_file:
            for places in self.places.values():
                for place in places:
                    self._by_file.setdefault(place.file, []).append(place)
            for found in self._by_file.values():
                found.sort(key=lambda place: (place.start, place.stop))
        return self._by_file.get(name, [])

    def add(self, place: Place) -> None:
        """Take one in; an empty one counts for nothing."""
        if place.stop > place.start:
            self.places.setdefault(place.kind, []).append(place)


def look_at(root: Path) -> Anatomy:
    """The anatomy of a store that is sound."""
    anatomy = Anatomy(root)
    paths = [path for folder in LOG_FOLDERS for path in _numbered(root / folder)]
    for path in paths:
        _log_file(anatomy, path)
    anatomy.min_offset = min((int(path.name) for path in paths), default=0)
    for folder in sorted(root.glob("consumequeue/*/*")):
        for path in _numbered(folder):
            _queue_file(anatomy, path)
    _index(anatomy)
    _small_files(anatomy)
    return anatomy


def _numbered(folder: Path) -> list[Path]:
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if path.name.isdecimal() and path.is_file()]


def _name(anatomy: Anatomy, path: Path) -> str:
    return path.relative_to(anatomy.root).as_posix()


def _fields(anatomy: Anatomy, name: str, at: int, sizes: Iterable[tuple[str, int]], part: str, owner: Any) -> None:
    for field_name, size in sizes:
        anatomy.add(Place(name, at, at + size, f"{part}.{field_name}", owner))
        at += size


def _log_file(anatomy: Anatomy, path: Path) -> None:
    name, content, end = _name(anatomy, path), path.read_bytes(), 0
    for record in plain.chain(content, int(path.name)):
        anatomy.records[record.phy_offset] = record
        sizes = ((each, stop - start) for each, (start, stop) in record.fields().items())
        _fields(anatomy, name, end, sizes, "record", record)
        anatomy.wholes.append(Place(name, end, end + record.size, "record", record))
        end += record.size
    if not plain.has_blank(content, end):
        anatomy.add(Place(name, end, len(content), "log.behind-the-end"))
        return
    _fields(anatomy, name, end, (("size", 4), ("magic", 4)), "blank", None)
    anatomy.add(Place(name, end + _BLANK_SIZE, len(content), "blank.padding"))
    anatomy.wholes.append(Place(name, end, end + _BLANK_SIZE, "blank"))


def _queue_file(anatomy: Anatomy, path: Path) -> None:
    name, content, end, expired = _name(anatomy, path), path.read_bytes(), 0, True
    size, length = plain.UNIT.size, len(content)
    for at in range(0, length - size + 1, size):
        unit = Unit(*plain.UNIT.unpack_from(content, at))
        if unit.size <= 0:
            break
        _fields(anatomy, name, at, _UNIT, "unit", unit)
        anatomy.wholes.append(Place(name, at, at + size, "unit", unit))
        end, expired = at + size, expired and unit.phy_offset < anatomy.min_offset
    anatomy.add(Place(name, end, min(end + size, length), "unit.next", "expired" if expired else None))
    anatomy.add(Place(name, min(end + size, length), length, "unit.behind-the-end"))


def _index(anatomy: Anatomy) -> None:
    paths = _numbered(anatomy.root / "index")
    found = (plain.geometry_of(path.read_bytes()) for path in paths)
    geometry = anatomy.geometry = next((each for each in found if each is not None), None)
    for path in paths if geometry is not None else ():
        assert geometry is not None
        _index_file(anatomy, _name(anatomy, path), plain.index_file(path.read_bytes(), geometry))


def _index_file(anatomy: Anatomy, name: str, file: IndexFile) -> None:
    geometry, used = file.geometry, len(file.entries) + 1
    _fields(anatomy, name, 0, _HEADER, "index-header", None)
    free = [slot for slot, number in enumerate(file.slots) if not number][:_UNUSED]
    for slot in (slot for slot, number in enumerate(file.slots) if number):
        anatomy.add(Place(name, geometry.slot_at(slot), geometry.slot_at(slot + 1), "index-slot.used"))
    for slot in free:
        anatomy.add(Place(name, geometry.slot_at(slot), geometry.slot_at(slot + 1), "index-slot.free"))
    for number, entry in enumerate(file.entries, start=1):
        at = geometry.entry_at(number)
        _fields(anatomy, name, at, _ENTRY, "index-unit", entry)
        anatomy.wholes.append(Place(name, at, geometry.entry_at(number + 1), "index-unit", entry))
    anatomy.add(Place(name, geometry.entry_at(0), geometry.entry_at(1), "index-unit.number-0"))
    end = geometry.entry_at(geometry.entries)
    anatomy.add(Place(name, geometry.entry_at(used), end, "index-unit.behind-the-end"))


def _small_files(anatomy: Anatomy) -> None:
    for path in sorted(anatomy.root.rglob("*")):
        name = _name(anatomy, path)
        part = name.split("/")[0]
        if not path.is_file() or part in ("consumequeue", "index", *LOG_FOLDERS):
            continue
        size = path.stat().st_size
        if part == "checkpoint":
            _fields(anatomy, name, 0, ((each, 8) for each in plain.CHECKPOINT), "checkpoint", None)
            anatomy.add(Place(name, 8 * len(plain.CHECKPOINT), size, "checkpoint.padding"))
        elif part == "consumequeue_ext":
            _ext_file(anatomy, name, path)
        elif part == "config":
            anatomy.add(Place(name, 0, size, "config-backup" if name.endswith(".bak") else "config"))
        else:
            for start, stop in _data(path, size):
                anatomy.add(Place(name, start, stop, f"other.{part}"))


def _ext_file(anatomy: Anatomy, name: str, path: Path) -> None:
    content, at = path.read_bytes(), 0
    while (size := int.from_bytes(content[at:at + 2], "big", signed=True)) >= _EXT_HEAD_SIZE:
        _fields(anatomy, name, at, _EXT_HEAD, "ext-unit", None)
        anatomy.add(Place(name, at + _EXT_HEAD_SIZE, at + size, "ext-unit.bit_map"))
        anatomy.wholes.append(Place(name, at, at + size, "ext-unit"))
        at += size
    anatomy.add(Place(name, at, len(content), "ext-unit.behind-the-end"))


def _data(path: Path, size: int) -> Iterator[tuple[int, int]]:
    """The stretches of a file that are not zeros, found block by block."""
    with path.open("rb") as file:
        for start in _blocks(size):
            file.seek(start)
            if any(file.read(4096)):
                yield start, min(start + 4096, size)


def _blocks(size: int) -> Iterable[int]:
    return range(0, min(size, 1 << 20), 4096)
