"""ConsumeQueue: units of one queue, in files whose names are byte positions of that queue.

Unit `i` of a queue lies at byte `i * CQ_UNIT.size` of the queue, so a file named F holds the
units from index F / CQ_UNIT.size on. Sources: broker classes ConsumeQueue, ConsumeQueueExt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from formats.errors import FormatError
from formats.layout import I32, I64, Layout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class CqUnit(NamedTuple):
    """One unit: where the record is, how long it is, and what a consumer filters on."""

    phy_offset: Annotated[int, I64, "where the record starts in the commitlog; never negative"]
    size: Annotated[int, I32, "bytes of the record; above 0, 0x7FFFFFFF in a pre-blank"]
    tags_code: Annotated[int, I64, "hash of TAGS, or deliver time in ms (delay topic), or address in consumequeue_ext"]


CQ_UNIT = Layout.of(CqUnit)

PRE_BLANK = CqUnit(0, 0x7FFFFFFF, 0)
"""Filler before the first unit of a queue whose first index is not 0; never a position."""

MAX_EXT_ADDRESS = -(2**31) - 1
"""The largest address; every hash of TAGS (an i32) is above it, so the two never collide."""

_EXT_BASE = -(2**63)


def is_valid(unit: CqUnit) -> bool:
    """The test at which ConsumeQueue.recover stops: a pre-blank passes, a zero unit does not."""
    return unit.phy_offset >= 0 and unit.size > 0


def is_pre_blank(unit: CqUnit) -> bool:
    """True for the filler that ConsumeQueue.fillPreBlank writes."""
    return unit == PRE_BLANK


def is_ext_address(tags_code: int) -> bool:
    """True when the tags code is an address in consumequeue_ext (ConsumeQueueExt.isExtAddr)."""
    return tags_code <= MAX_EXT_ADDRESS


def ext_offset(address: int) -> int:
    """Byte position in consumequeue_ext of an address; `FormatError("bad-ext-address")` if it is none."""
    if not _EXT_BASE <= address <= MAX_EXT_ADDRESS:
        raise FormatError("bad-ext-address", 0, f"{address} is no address of an ext unit", address=address)
    return address - _EXT_BASE


def ext_address(offset: int) -> int:
    """The tags code that stands for byte `offset` of consumequeue_ext (ConsumeQueueExt.decorate)."""
    address = offset + _EXT_BASE
    if offset < 0 or not is_ext_address(address):
        raise FormatError("bad-ext-address", 0, f"ext position {offset} has no address", position=offset)
    return address


def file_size_for(configured: int) -> int:
    """The file length that the broker uses for a configured one: rounded up to whole units."""
    return -(-configured // CQ_UNIT.size) * CQ_UNIT.size


def valid_mask(units: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """`is_valid` of every unit (`CQ_UNIT.dtype`)."""
    mask: npt.NDArray[np.bool_] = (units["phy_offset"] >= 0) & (units["size"] > 0)
    return mask
