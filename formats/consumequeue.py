"""Queue files: ConsumeQueue, its extension (consumequeue_ext), BatchConsumeQueue, and the files of compaction.

Unit `i` of a consume queue is at byte `i * CQ_UNIT.size` of the queue, so the file named F starts with unit
F / CQ_UNIT.size. Sources: broker classes ConsumeQueue, ConsumeQueueExt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

from formats.basics import I16, I32, I64, Buffer, FormatError, Layout
from formats.config.json import Json, loads

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class CqUnit(NamedTuple):
    """One unit: place and size of the record, and the code that consumers filter on."""

    phy_offset: Annotated[int, I64, "start of the record in the commitlog; never negative"]
    size: Annotated[int, I32, "bytes of the record; above 0, 0x7FFFFFFF in a pre-blank"]
    tags_code: Annotated[int, I64, "hash of TAGS, or deliver time in ms (delay topic), or address in consumequeue_ext"]


CQ_UNIT = Layout.of(CqUnit)

PRE_BLANK = CqUnit(0, 0x7FFFFFFF, 0)
"""Padding before the first unit of a queue whose first queue offset is not 0; never a position."""

MAX_EXT_ADDRESS = -(2**31) - 1
"""The largest ext address; every hash of TAGS (an i32) is larger, so the two never collide."""

_EXT_BASE = -(2**63)


def is_valid(unit: CqUnit) -> bool:
    """Whether ConsumeQueue.recover goes on after the unit: a pre-blank passes, a zero unit does not."""
    return unit.phy_offset >= 0 and unit.size > 0


def is_pre_blank(unit: CqUnit) -> bool:
    """Whether it is the padding that ConsumeQueue.fillPreBlank writes."""
    return unit == PRE_BLANK


def is_ext_address(tags_code: int) -> bool:
    """Whether the tags code is an address in consumequeue_ext (ConsumeQueueExt.isExtAddr)."""
    return tags_code <= MAX_EXT_ADDRESS


def ext_offset(address: int) -> int:
    """Return the byte position in consumequeue_ext of an address; `FormatError("bad-ext-address")` if it is not one."""
    if not _EXT_BASE <= address <= MAX_EXT_ADDRESS:
        raise FormatError("bad-ext-address", 0, f"{address} is not the address of an ext unit", address=address)
    return address - _EXT_BASE


def ext_address(offset: int) -> int:
    """Return the tags code that addresses byte `offset` of consumequeue_ext (ConsumeQueueExt.decorate)."""
    address = offset + _EXT_BASE
    if offset < 0 or not is_ext_address(address):
        raise FormatError("bad-ext-address", 0, f"ext position {offset} has no address", position=offset)
    return address


def file_size_for(configured: int) -> int:
    """Return the file length that the broker uses for a configured one: rounded up to whole units."""
    return -(-configured // CQ_UNIT.size) * CQ_UNIT.size


def valid_mask(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return `is_valid` of every unit (`CQ_UNIT.dtype`)."""
    mask: npt.NDArray[np.bool_] = (units["phy_offset"] >= 0) & (units["size"] > 0)
    return mask


# --- consumequeue_ext: one unit of variable length a message. Source: broker class ConsumeQueueExt.
#
# The tags code of the queue unit holds the byte position of its ext unit (`ext_offset`).


class CqExtHead(NamedTuple):
    """The fixed part of a unit."""

    size: Annotated[int, I16, "bytes of the whole unit: this part and the bit map; -1 ends the file, 0 is unwritten"]
    tags_code: Annotated[int, I64, "hash of TAGS"]
    store_timestamp: Annotated[int, I64, "store timestamp (ms) of the message"]
    bit_map_size: Annotated[int, I16, "bytes of the filter bit map that follows; 0 or less for none"]


class CqExtEnd(NamedTuple):
    """End mark in place of the next unit that did not fit; the rest of the file is unused."""

    size: Annotated[int, I16, "-1"]


class CqExtUnit(NamedTuple):
    """A whole unit."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes


CQ_EXT_HEAD = Layout.of(CqExtHead)
CQ_EXT_END = Layout.of(CqExtEnd)
EXT_END = CqExtEnd(-1)
MAX_EXT_SIZE = 0x7FFF
EXT_END_ROOM = 4
"""Bytes at the end of a file that units never use, so that the end mark always fits."""


def decode_ext(buffer: Buffer, offset: int = 0) -> tuple[CqExtUnit, int]:
    """Return (unit, its size in bytes) at `offset`.

    `FormatError`: "end" at the end mark, "unwritten" at size 0, "bad-size" if the sizes contradict each other, "short"
    if the unit exceeds the buffer.
    """
    size = CQ_EXT_END.decode(buffer, offset).size
    if size == EXT_END.size:
        raise FormatError("end", offset, "the file ends here")
    if size == 0:
        raise FormatError("unwritten", offset, "nothing was written here")
    head = CQ_EXT_HEAD.decode(buffer, offset)
    bits = max(0, head.bit_map_size)
    if size != CQ_EXT_HEAD.size + bits:
        raise FormatError("bad-size", offset, f"a unit of {size} bytes cannot hold {bits} bytes of bit map",
                          size=size, bit_map_size=head.bit_map_size)
    if offset + size > len(buffer):
        raise FormatError("short", offset, f"the unit needs {size} bytes", needed=size, available=len(buffer) - offset)
    start = offset + CQ_EXT_HEAD.size
    return CqExtUnit(head.tags_code, head.store_timestamp, bytes(buffer[start:start + bits])), size


def encode_ext(unit: CqExtUnit) -> bytes:
    """Return the bytes of one unit; `FormatError("bad-size")` if its bit map is too long."""
    size = CQ_EXT_HEAD.size + len(unit.bit_map)
    if size > MAX_EXT_SIZE:
        raise FormatError("bad-size", 0, f"a unit has at most {MAX_EXT_SIZE} bytes", size=size)
    return CQ_EXT_HEAD.encode(CqExtHead(size, unit.tags_code, unit.store_timestamp, len(unit.bit_map))) + unit.bit_map


def ext_units(buffer: Buffer) -> Iterator[tuple[int, CqExtUnit]]:
    """Yield (byte position in the file, unit) in order, up to the end mark or the first unwritten place.

    `FormatError` as in `decode_ext` for any other invalid unit.
    """
    position = 0
    while position + CQ_EXT_HEAD.size <= len(buffer):
        try:
            unit, size = decode_ext(buffer, position)
        except FormatError as error:
            if error.reason in ("end", "unwritten"):
                return
            raise
        yield position, unit
        position += size


# --- BatchConsumeQueue: one unit for a record that holds several messages; also the queues of compaction.
#
# Sources: broker classes BatchConsumeQueue, SparseConsumeQueue. Files are named by byte position, which says nothing
# about queue offsets: those are in the units. The queues of compaction use the same unit, but a file there has the name
# of its compaction log file, and an end mark after the last unit.


class BatchCqUnit(NamedTuple):
    """One record: a batch of messages with consecutive queue offsets."""

    phy_offset: Annotated[int, I64, "start of the record in the commitlog; never negative"]
    size: Annotated[int, I32, "bytes of the record; above 0"]
    tags_code: Annotated[int, I64, "hash of TAGS"]
    store_timestamp: Annotated[int, I64, "store timestamp (ms) of the record"]
    base_offset: Annotated[int, I64, "queue offset of the first message; never negative"]
    batch_size: Annotated[int, I16, "messages in the record; above 0"]
    compacted_offset: Annotated[int, I32, "-1 unless written by compaction"]
    reserved: Annotated[int, I32, "0"]


BATCH_CQ_UNIT = Layout.of(BatchCqUnit)


def is_valid_batch(unit: BatchCqUnit) -> bool:
    """Whether BatchConsumeQueue.recover goes on after the unit."""
    return unit.phy_offset >= 0 and unit.size > 0 and unit.base_offset >= 0 and unit.batch_size > 0


def batch_mask(buffer: Buffer) -> npt.NDArray[np.bool_]:
    """Return `is_valid_batch` of every whole unit of a file."""
    import numpy as np

    units = np.frombuffer(buffer, dtype=BATCH_CQ_UNIT.dtype, count=len(buffer) // BATCH_CQ_UNIT.size)
    mask: npt.NDArray[np.bool_] = (
        (units["phy_offset"] >= 0) & (units["size"] > 0) & (units["base_offset"] >= 0) & (units["batch_size"] > 0)
    )
    return mask


# --- Compaction of topics that keep the newest message of a key. Sources: CompactionLog, CompactionPositionMgr.
#
# compactionLog/<topic>/<queue> holds commitlog records whose physical offset counts from the start of that log,
# compactionCq/<topic>/<queue> batch units for them, a file of the same name each. Since 5.0.0.


POSITION_FILE_NAME = "position-checkpoint"
LOG_DIRECTORY = "compactionLog"
CQ_DIRECTORY = "compactionCq"
WORK_DIRECTORIES = ("compacting", "replicating")
"""Folders below a queue's: output of an unfinished run, deleted at start."""

_TABLE = "queueOffsetMap"
def decode_positions(data: bytes) -> dict[tuple[str, int], int]:
    """Return the content of position-checkpoint: (topic, queue id) -> queue offset compacted up to.

    `FormatError` as in `formats.config.json.loads`, or "bad-positions" for other content.
    """
    value = loads(data)
    table = value.get(_TABLE) if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise FormatError("bad-positions", 0, f"no table {_TABLE}")
    return {_queue(str(key)): _position(str(key), offset) for key, offset in table.items()}


def _queue(key: str) -> tuple[str, int]:
    topic, separator, queue_id = key.rpartition("_")
    if not separator or not (queue_id.isascii() and queue_id.isdecimal()) or len(queue_id) > len(str(2**31)):
        raise FormatError("bad-positions", 0, f"{key!r} is not a topic and a queue", key=key)
    return topic, int(queue_id)


def _position(key: str, value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError("bad-positions", 0, f"the offset of {key!r} is not a number", key=key)
    return value
