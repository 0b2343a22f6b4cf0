"""Compiled searches for where a damaged log goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.commitlog import layout
from formats.compiled import INT, Array, kernel
from formats.kernels.byte_reads import i32, i64, u32

_BYTES = Array(np.uint8)
_MAGIC_V1 = layout.MAGIC_V1 & 0xFFFFFFFF
_MAGIC_V2 = layout.MAGIC_V2 & 0xFFFFFFFF
_MAGIC_BLANK = layout.MAGIC_BLANK & 0xFFFFFFFF
_AT_MAGIC = layout.OFFSET_MAGIC
_AT_PHY_OFFSET = layout.OFFSET_PHY_OFFSET
_BLANK_SIZE = layout.BLANK_SIZE


@kernel(data=_BYTES, position=INT, available=INT, window_offset=INT, returns=INT)
def find_record_head(data: Any, position: int, available: int, window_offset: int) -> int:
    """First place at or after `position` with a message magic and its own physical offset, or -1."""
    limit = min(available, data.size) - _AT_PHY_OFFSET - 8
    i = position
    while i <= limit:
        if data[i + _AT_MAGIC] == 0xDA:
            magic = u32(data, i + _AT_MAGIC)
            if magic in (_MAGIC_V1, _MAGIC_V2) and i64(data, i + _AT_PHY_OFFSET) == window_offset + i:
                return i
        i += 1
    return -1


@kernel(data=_BYTES, position=INT, available=INT, window_offset=INT, file_end=INT, returns=INT)
def find_blank(data: Any, position: int, available: int, window_offset: int, file_end: int) -> int:
    """First place at or after `position` with a blank that reaches exactly to `file_end`, or -1."""
    limit = min(available, data.size) - _BLANK_SIZE
    i = position
    while i <= limit:
        if (
            data[i + _AT_MAGIC] == 0xCB and u32(data, i + _AT_MAGIC) == _MAGIC_BLANK
            and i32(data, i) == file_end - window_offset - i
        ):
            return i
        i += 1
    return -1


@kernel(data=_BYTES, start=INT, stop=INT, returns=INT)
def last_nonzero(data: Any, start: int, stop: int) -> int:
    """Position of the last byte that is not zero in data[start:stop], or -1."""
    i = min(stop, data.size) - 1
    while i - 7 >= start and i64(data, i - 7) == 0:
        i -= 8
    while i >= start:
        if data[i] != 0:
            return i
        i -= 1
    return -1
