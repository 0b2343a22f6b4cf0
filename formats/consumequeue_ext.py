"""consumequeue_ext: what did not fit into a queue unit, one variable-length unit a message.

Source: broker class ConsumeQueueExt. A unit is found by its byte position, which the tags code of
the queue unit carries (`formats.consumequeue.ext_offset`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

from formats.errors import FormatError
from formats.layout import I16, I64, Buffer, Layout


class CqExtHead(NamedTuple):
    """The fixed part of a unit."""

    size: Annotated[int, I16, "bytes of the whole unit: this part and the bit map; -1 ends the file, 0 is unwritten"]
    tags_code: Annotated[int, I64, "hash of TAGS"]
    store_timestamp: Annotated[int, I64, "store timestamp (ms) of the message"]
    bit_map_size: Annotated[int, I16, "bytes of the filter bit map that follows; 0 or less for none"]


class CqExtEnd(NamedTuple):
    """What stands where the next unit did not fit; the rest of the file is not used."""

    size: Annotated[int, I16, "-1"]


class CqExtUnit(NamedTuple):
    """A whole unit."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes


CQ_EXT_HEAD = Layout.of(CqExtHead)
CQ_EXT_END = Layout.of(CqExtEnd)
END = CqExtEnd(-1)
MAX_UNIT_SIZE = 0x7FFF
END_ROOM = 4
"""Bytes at the end of a file that units never use, so that the end mark always fits."""


def decode(buffer: Buffer, offset: int = 0) -> tuple[CqExtUnit, int]:
    """(unit, bytes it takes) at `offset`.

    `FormatError`: "end" at the end mark, "unwritten" at size 0, "bad-size" when the sizes contradict
    each other, "short" when the unit leaves the buffer.
    """
    size = CQ_EXT_END.decode(buffer, offset).size
    if size == END.size:
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


def encode(unit: CqExtUnit) -> bytes:
    """The bytes of one unit; `FormatError("bad-size")` when its bit map is too long for one."""
    size = CQ_EXT_HEAD.size + len(unit.bit_map)
    if size > MAX_UNIT_SIZE:
        raise FormatError("bad-size", 0, f"a unit has at most {MAX_UNIT_SIZE} bytes", size=size)
    return CQ_EXT_HEAD.encode(CqExtHead(size, unit.tags_code, unit.store_timestamp, len(unit.bit_map))) + unit.bit_map


def units(buffer: Buffer) -> Iterator[tuple[int, CqExtUnit]]:
    """(byte position in the file, unit) in order, up to the end mark or the first unwritten place.

    `FormatError` as `decode` at a unit that is neither.
    """
    position = 0
    while position + CQ_EXT_HEAD.size <= len(buffer):
        try:
            unit, size = decode(buffer, position)
        except FormatError as error:
            if error.reason in ("end", "unwritten"):
                return
            raise
        yield position, unit
        position += size
