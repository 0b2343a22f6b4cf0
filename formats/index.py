"""Index file: a header, a slot table, and units chained by hash slot.

A unit's number counts from 1; number 0 means "none", so the place of unit 0 stays zero and a
file for `entries` units takes `entries - 1`. Sources: broker classes IndexFile, IndexHeader,
IndexService.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Struct

from formats.errors import FormatError
from formats.layout import I32, I64, Buffer, Layout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class IndexHeader(NamedTuple):
    """What the file covers. All zero until the first put, apart from values taken over from the file before."""

    begin_timestamp: Annotated[int, I64, "store timestamp (ms) of the first message"]
    end_timestamp: Annotated[int, I64, "store timestamp (ms) of the last message"]
    begin_phy_offset: Annotated[int, I64, "start of the first message in the commitlog"]
    end_phy_offset: Annotated[int, I64, "start (not end) of the last message in the commitlog"]
    hash_slot_count: Annotated[int, I32, "slots in use; up to 4.7.0 one per unit instead"]
    index_count: Annotated[int, I32, "number of the next unit; 0 on disk before the first put, then from 2 on"]


class IndexSlot(NamedTuple):
    """Head of one chain."""

    number: Annotated[int, I32, "number of the newest unit of this slot; 0 none"]


class IndexUnit(NamedTuple):
    """One key of one message."""

    key_hash: Annotated[int, I32, "absolute value of the Java hash of `topic#key`; 0 where that is still negative"]
    phy_offset: Annotated[int, I64, "where the message starts in the commitlog"]
    time_diff: Annotated[int, I32, "seconds from the header's begin_timestamp to the store timestamp, at least 0"]
    previous: Annotated[int, I32, "number of the unit before it in this slot's chain; 0 ends the chain"]


INDEX_HEADER = Layout.of(IndexHeader)
INDEX_SLOT = Layout.of(IndexSlot)
INDEX_UNIT = Layout.of(IndexUnit)

MAX_TIME_DIFF = 0x7FFFFFFF


class IndexGeometry(Struct, frozen=True):
    """Where things lie in an index file of `slots` hash slots and room for `entries` unit numbers (0 included)."""

    slots: int
    entries: int

    @property
    def slots_offset(self) -> int:
        """Byte position of slot 0."""
        return INDEX_HEADER.size

    @property
    def units_offset(self) -> int:
        """Byte position of the (never used) unit 0."""
        return self.slots_offset + self.slots * INDEX_SLOT.size

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self.units_offset + self.entries * INDEX_UNIT.size

    @property
    def capacity(self) -> int:
        """How many units fit."""
        return self.entries - 1

    def slot_of(self, key_hash: int) -> int:
        """The hash slot of a key hash."""
        return key_hash % self.slots

    def slot_offset(self, slot: int) -> int:
        """Byte position of a slot."""
        return self.slots_offset + slot * INDEX_SLOT.size

    def unit_offset(self, number: int) -> int:
        """Byte position of a unit."""
        return self.units_offset + number * INDEX_UNIT.size


DEFAULT_GEOMETRY = IndexGeometry(5_000_000, 20_000_000)


class IndexImage(Struct, frozen=True):
    """A whole file: header, slots (int32, big-endian, one a slot) and units (`INDEX_UNIT.dtype`, row = number)."""

    geometry: IndexGeometry
    header: IndexHeader
    slots: npt.NDArray[np.int32]
    units: npt.NDArray[np.void]

    @property
    def used(self) -> int:
        """Numbers in use, unit 0 included: rows [1, used) of `units` hold keys. Never above the geometry."""
        return max(1, min(self.header.index_count, self.geometry.entries))

    def chain(self, slot: int) -> Iterator[tuple[int, IndexUnit]]:
        """(number, unit) from the newest to the oldest of one slot.

        Ends where IndexFile.selectPhyOffset ends; `FormatError("chain-loop")` instead of walking a loop.
        """
        number = int(self.slots[slot])
        for _ in range(self.used):
            if not 0 < number < self.used:
                return
            unit = IndexUnit._make(self.units[number].item())
            yield number, unit
            number = unit.previous
        if 0 < number < self.used:
            raise FormatError("chain-loop", self.geometry.slot_offset(slot), f"the chain of slot {slot} does not end",
                              slot=slot)


def decode(buffer: Buffer, geometry: IndexGeometry) -> IndexImage:
    """Views (nothing copied) of one file; `FormatError("bad-length")` when it has not the geometry's size."""
    import numpy as np

    if len(buffer) != geometry.size:
        raise FormatError("bad-length", 0, f"an index file of this geometry has {geometry.size} bytes",
                          expected=geometry.size, length=len(buffer))
    slots = np.frombuffer(buffer, dtype=">i4", count=geometry.slots, offset=geometry.slots_offset)
    units = np.frombuffer(buffer, dtype=INDEX_UNIT.dtype, count=geometry.entries, offset=geometry.units_offset)
    return IndexImage(geometry, INDEX_HEADER.decode(buffer), slots, units)


def encode(image: IndexImage) -> bytes:
    """The bytes of a whole file."""
    return INDEX_HEADER.encode(image.header) + image.slots.astype(">i4").tobytes() + image.units.tobytes()


def time_diff(begin_timestamp: int, store_timestamp: int) -> int:
    """The unit field as IndexFile.putKey computes it (seconds, cut to [0, MAX_TIME_DIFF]); 0 without a begin."""
    if begin_timestamp <= 0:
        return 0
    # Java divides towards zero; below zero both roundings are cut to 0 anyway.
    return max(0, min((store_timestamp - begin_timestamp) // 1000, MAX_TIME_DIFF))


def infer_geometry(buffer: Buffer, preferred: Iterable[IndexGeometry] = ()) -> IndexGeometry | None:
    """The geometry under which a file makes sense, or None; the broker itself stores it nowhere.

    Tries `preferred`, the default, one slot for four entries, then every split of the length
    (small files only). A file without a unit fits only what was preferred, or the default.
    """
    if len(buffer) < INDEX_HEADER.size:
        return None
    room = len(buffer) - INDEX_HEADER.size
    quarter = room // (INDEX_SLOT.size + 4 * INDEX_UNIT.size)
    first = (*preferred, DEFAULT_GEOMETRY, IndexGeometry(quarter, 4 * quarter))
    header = INDEX_HEADER.decode(buffer)
    if header.index_count < 2:
        return next((g for g in first if g.size == len(buffer)), None)
    rest = _splits(room) if room < _SEARCHABLE else ()
    return next((g for group in (first, rest) for g in group if _fits(buffer, g, header.index_count)), None)


_SEARCHABLE = 8 * 1024 * 1024


def _splits(room: int) -> Iterator[IndexGeometry]:
    for entries in range(room // INDEX_UNIT.size, 1, -1):
        slot_bytes = room - entries * INDEX_UNIT.size
        if slot_bytes and slot_bytes % INDEX_SLOT.size == 0:
            yield IndexGeometry(slot_bytes // INDEX_SLOT.size, entries)


def _fits(buffer: Buffer, geometry: IndexGeometry, index_count: int) -> bool:
    """The newest unit heads its slot, unit 0 is blank, and the eldest units hang below their slots' heads."""
    if geometry.size != len(buffer) or geometry.slots < 1 or not 1 < index_count <= geometry.entries:
        return False
    if INDEX_UNIT.decode(buffer, geometry.unit_offset(0)) != IndexUnit(0, 0, 0, 0):
        return False
    newest = index_count - 1
    for number in {newest, *range(1, min(index_count, 64))}:
        unit = INDEX_UNIT.decode(buffer, geometry.unit_offset(number))
        head = INDEX_SLOT.decode(buffer, geometry.slot_offset(geometry.slot_of(unit.key_hash))).number
        if unit.key_hash < 0 or not number <= head <= newest or not 0 <= unit.previous < number:
            return False
    return True
