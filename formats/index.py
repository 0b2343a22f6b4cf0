"""Index file: a header, a slot table, and units chained by hash slot.

Unit numbers count from 1; number 0 means "none", so the place of unit 0 stays zero, and a file with room for `entries`
numbers holds `entries - 1` units. Sources: broker classes IndexFile, IndexHeader, IndexService.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Struct

from formats.basics import I32, I64, Layout


class IndexHeader(NamedTuple):
    """What the file covers. All zero until the first put, except for values copied from the previous file."""

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

    key_hash: Annotated[int, I32, "absolute value of the Java hash of `topic#key`; 0 if that is negative"]
    phy_offset: Annotated[int, I64, "start of the message in the commitlog"]
    time_diff: Annotated[int, I32, "seconds from the header's begin_timestamp to the store timestamp, at least 0"]
    previous: Annotated[int, I32, "number of the unit before it in this slot's chain; 0 ends the chain"]


INDEX_HEADER = Layout.of(IndexHeader)
INDEX_SLOT = Layout.of(IndexSlot)
INDEX_UNIT = Layout.of(IndexUnit)

MAX_TIME_DIFF = 0x7FFFFFFF


class IndexGeometry(Struct, frozen=True):
    """The layout of an index file with `slots` hash slots and room for `entries` unit numbers (0 included)."""

    slots: int
    entries: int

    @property
    def slots_offset(self) -> int:
        return INDEX_HEADER.size

    @property
    def units_offset(self) -> int:
        """Byte position of the (never used) unit 0."""
        return self.slots_offset + self.slots * INDEX_SLOT.size

    @property
    def size(self) -> int:
        return self.units_offset + self.entries * INDEX_UNIT.size

    @property
    def capacity(self) -> int:
        return self.entries - 1

    def slot_of(self, key_hash: int) -> int:
        return key_hash % self.slots

    def slot_offset(self, slot: int) -> int:
        return self.slots_offset + slot * INDEX_SLOT.size

    def unit_offset(self, number: int) -> int:
        return self.units_offset + number * INDEX_UNIT.size


DEFAULT_GEOMETRY = IndexGeometry(5_000_000, 20_000_000)


def time_diff(begin_timestamp: int, store_timestamp: int) -> int:
    """Return the unit field as IndexFile.putKey computes it (seconds, cut to [0, MAX_TIME_DIFF]); 0 without a begin."""
    if begin_timestamp <= 0:
        return 0
    # Java rounds towards zero; negative results are cut to 0 anyway
    return max(0, min((store_timestamp - begin_timestamp) // 1000, MAX_TIME_DIFF))
