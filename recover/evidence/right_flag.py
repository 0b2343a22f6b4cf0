"""The sysFlag that a body agrees with, where it contradicts the one that is stored."""

from __future__ import annotations

from collections import Counter

from formats import sysflag
from formats.commitlog import Record
from formats.compression import MissingCodecError, decompress
from formats.errors import FormatError

COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE
TYPES = {
    sysflag.COMPRESSION_LEGACY_ZLIB: "zlib", sysflag.COMPRESSION_ZLIB: "zlib", sysflag.COMPRESSION_LZ4: "LZ4",
    sysflag.COMPRESSION_ZSTD: "Zstandard",
}
_BITS = tuple(1 << number for number in range(32) if COMPRESSION >> number & 1)
_LARGEST_BODY = 16 << 20


def right_flag(record: Record, usual: Counter[int]) -> int | None:
    """The sysFlag one bit away that the body agrees with; `usual` is how often others are compressed, by their bits.

    Of several that do, the one that other messages have most; where none has, that which clients of every version read,
    or None if the body may be a stream of the producer's own, or one of a type that is more than a bit away.
    """
    found = [flag for flag in (record.sys_flag ^ bit for bit in _BITS) if _agrees(flag, record.body)]
    compressed = [flag for flag in found if flag & sysflag.COMPRESSED]
    known = [flag for flag in compressed if usual[flag & COMPRESSION]]
    if known:
        return max(known, key=lambda flag: usual[flag & COMPRESSION])
    if len(compressed) < len(found) and any(_agrees(sysflag.COMPRESSED | kind, record.body) for kind in TYPES):
        return None
    return min(found, default=None)


def _agrees(sys_flag: int, body: bytes) -> bool:
    """Whether a producer's client may have stored the body with this sysFlag."""
    if not sys_flag & sysflag.COMPRESSED:
        return not sys_flag & sysflag.COMPRESSION_TYPE
    if sys_flag & sysflag.COMPRESSION_TYPE not in sysflag.streams(body):
        return False
    try:
        decompress(body, sys_flag, _LARGEST_BODY)
    except MissingCodecError:
        return True
    except FormatError as error:
        return error.reason == "body-too-large"
    return True
