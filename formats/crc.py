"""The checksum of bodies and records: CRC-32 with the top bit cleared."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formats.layout import Buffer

CRC31_MASK = 0x7FFFFFFF


def crc31(content: Buffer) -> int:
    """CRC-32 (zlib polynomial) of `content` as a non-negative i32, the broker's `UtilAll.crc32`."""
    return zlib.crc32(content) & CRC31_MASK
