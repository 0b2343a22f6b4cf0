"""Java's `String` seen from bytes, how it decodes UTF-8 and what its `hashCode` is; and how its `long` adds up."""

from __future__ import annotations

import re
import struct

_I32_SPAN = 1 << 32
_I32_SIGN = 1 << 31
_I32_MASK = _I32_SPAN - 1
_HASH_FACTOR = 31

# UTF-8 encoded surrogates: Java replaces the whole sequence by one U+FFFD, Python byte by byte.
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_string(content: bytes) -> str:
    """`new String(content, UTF_8)`: malformed sequences become U+FFFD, never an error."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xff", content).decode("utf-8", "replace")


def hash32(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit value.

    >>> hash32("TagA"), hash32("polygenelubricants")
    (2598919, -2147483648)
    """
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(units) // 2}H", units):
        value = (value * _HASH_FACTOR + unit) & _I32_MASK
    return value - _I32_SPAN if value & _I32_SIGN else value


def index_key_hash(text: str) -> int:
    """The key hash of an index entry (`IndexFile.indexKeyHashMethod`), 0..2^31-1.

    Java's `Math.abs` leaves the smallest i32 negative, and the broker then takes 0.
    """
    value = abs(hash32(text))
    return 0 if value == _I32_SIGN else value


def tags_code(tags: str | None) -> int:
    """The tags code of a consume queue unit: the hash of the whole text, 0 without tags."""
    return hash32(tags) if tags else 0


def java_long(value: int) -> int:
    """The number that the arithmetic of a Java `long` leaves of it: its low 64 bits, with sign."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
