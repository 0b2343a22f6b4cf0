"""What each byte of a sound store is: fields of records, units, headers and slots, and the bytes that nothing uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures.damage import walk
from formats import sysflag
from formats.checkpoint import CHECKPOINT
from formats.consumequeue import CQ_UNIT
from formats.consumequeue_ext import CQ_EXT_HEAD
from formats.consumequeue_ext import decode as decode_ext
from formats.errors import FormatError
from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry, decode
from formats.layout import Layout
from formats.record import BLANK_SIZE, HEADS, Record, decode_blank
from formats.record.layout import TOPIC_LENGTHS
from recover.derived.index_files import index_geometry, list_index_files
from recover.store.store import Store
from tests.support.looks import COMMITLOG_FOLDERS

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
    geometry: IndexGeometry | None = None
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


def look_at(store: Store) -> Anatomy:
    """The anatomy of a store that is sound."""
    anatomy = Anatomy(store.root)
    folders = [store.root / name for name in ("commitlog", *COMMITLOG_FOLDERS)]
    for folder in folders:
        for file in walk.mapped_files(folder):
            _log_file(anatomy, file)
    starts = [file.file_from_offset for folder in folders for file in walk.mapped_files(folder)]
    anatomy.min_offset = min(starts, default=0)
    for queue in walk.queues(store.root):
        for file in queue.files:
            _queue_file(anatomy, file)
    _index(anatomy, store)
    _small_files(anatomy)
    return anatomy


def _name(anatomy: Anatomy, path: Path) -> str:
    return path.relative_to(anatomy.root).as_posix()


def _fields(anatomy: Anatomy, name: str, start: int, layout: Layout[Any], part: str, owner: Any) -> None:
    for each in layout.fields:
        at = start + each.offset
        anatomy.add(Place(name, at, at + each.size, f"{part}.{each.name}", owner))


def _log_file(anatomy: Anatomy, file: walk.MappedFile) -> None:
    name, end = _name(anatomy, file.path), 0
    for hit in walk.records_of(file):
        _record(anatomy, name, hit)
        end = hit.end
    length = file.path.stat().st_size
    try:
        decode_blank(file.read(), end)
    except FormatError:
        anatomy.add(Place(name, end, length, "log.behind-the-end"))
        return
    anatomy.add(Place(name, end, end + 4, "blank.size"))
    anatomy.add(Place(name, end + 4, end + BLANK_SIZE, "blank.magic"))
    anatomy.add(Place(name, end + BLANK_SIZE, length, "blank.padding"))
    anatomy.wholes.append(Place(name, end, end + BLANK_SIZE, "blank"))


def _record(anatomy: Anatomy, name: str, hit: walk.Located) -> None:
    record = hit.record
    anatomy.records[record.phy_offset] = record
    head = HEADS[record.sys_flag & sysflag.HOSTS_V6]
    _fields(anatomy, name, hit.position, head, "record", record)
    at = hit.position + head.size
    sizes = (
        ("body", len(record.body)), ("topic_length", TOPIC_LENGTHS[record.magic].size), ("topic", len(record.topic)),
        ("properties_length", 2), ("properties", len(record.properties)),
    )
    for part, size in sizes:
        anatomy.add(Place(name, at, at + size, f"record.{part}", record))
        at += size
    anatomy.wholes.append(Place(name, hit.position, hit.end, "record", record))


def _queue_file(anatomy: Anatomy, file: walk.MappedFile) -> None:
    name = _name(anatomy, file.path)
    units = walk.units_of(file)
    for hit in units:
        _fields(anatomy, name, hit.position, CQ_UNIT, "unit", hit.unit)
        anatomy.wholes.append(Place(name, hit.position, hit.position + CQ_UNIT.size, "unit", hit.unit))
    end = len(units) * CQ_UNIT.size
    length = file.path.stat().st_size
    expired = all(hit.unit.phy_offset < anatomy.min_offset for hit in units)
    anatomy.add(Place(name, end, min(end + CQ_UNIT.size, length), "unit.next", "expired" if expired else None))
    anatomy.add(Place(name, min(end + CQ_UNIT.size, length), length, "unit.behind-the-end"))


def _index(anatomy: Anatomy, store: Store) -> None:
    listing = list_index_files(store.index_dir)
    geometry = anatomy.geometry = index_geometry(store, listing)
    for file in listing.files if geometry is not None else ():
        assert geometry is not None
        _index_file(anatomy, file.path, geometry)


def _index_file(anatomy: Anatomy, path: Path, geometry: IndexGeometry) -> None:
    name = _name(anatomy, path)
    image = decode(path.read_bytes(), geometry)
    _fields(anatomy, name, 0, INDEX_HEADER, "index-header", image.header)
    for slot in image.slots.nonzero()[0].tolist():
        at = geometry.slot_offset(slot)
        anatomy.add(Place(name, at, at + INDEX_SLOT.size, "index-slot.used"))
    for slot in (image.slots == 0).nonzero()[0].tolist()[:_UNUSED]:
        at = geometry.slot_offset(slot)
        anatomy.add(Place(name, at, at + INDEX_SLOT.size, "index-slot.free"))
    for number in range(1, image.used):
        at = geometry.unit_offset(number)
        unit = image.units[number].item()
        _fields(anatomy, name, at, INDEX_UNIT, "index-unit", unit)
        anatomy.wholes.append(Place(name, at, at + INDEX_UNIT.size, "index-unit", unit))
    anatomy.add(Place(name, geometry.unit_offset(0), geometry.unit_offset(1), "index-unit.number-0"))
    anatomy.add(Place(name, geometry.unit_offset(image.used), geometry.size, "index-unit.behind-the-end"))


def _small_files(anatomy: Anatomy) -> None:
    for path in sorted(anatomy.root.rglob("*")):
        name = _name(anatomy, path)
        part = name.split("/")[0]
        if not path.is_file() or part in ("commitlog", "consumequeue", "index", *COMMITLOG_FOLDERS):
            continue
        size = path.stat().st_size
        if part == "checkpoint":
            _fields(anatomy, name, 0, CHECKPOINT, "checkpoint", None)
            anatomy.add(Place(name, CHECKPOINT.size, size, "checkpoint.padding"))
        elif part == "consumequeue_ext":
            _ext_file(anatomy, name, path)
        elif part == "config":
            anatomy.add(Place(name, 0, size, "config-backup" if name.endswith(".bak") else "config"))
        else:
            for start, stop in _data(path, size):
                anatomy.add(Place(name, start, stop, f"other.{part}"))


def _ext_file(anatomy: Anatomy, name: str, path: Path) -> None:
    content, at = path.read_bytes(), 0
    while True:
        try:
            _, size = decode_ext(content, at)
        except FormatError:
            anatomy.add(Place(name, at, len(content), "ext-unit.behind-the-end"))
            return
        _fields(anatomy, name, at, CQ_EXT_HEAD, "ext-unit", None)
        anatomy.add(Place(name, at + CQ_EXT_HEAD.size, at + size, "ext-unit.bit_map"))
        anatomy.wholes.append(Place(name, at, at + size, "ext-unit"))
        at += size


def _data(path: Path, size: int) -> Iterator[tuple[int, int]]:
    """The stretches of a file that are not zeros, found block by block."""
    with path.open("rb") as file:
        for start in _blocks(size):
            file.seek(start)
            if any(file.read(4096)):
                yield start, min(start + 4096, size)


def _blocks(size: int) -> Iterable[int]:
    return range(0, min(size, 1 << 20), 4096)
