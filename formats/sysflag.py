"""The bits of a record's sysFlag (`MessageSysFlag`, `CompressionType`)."""

from __future__ import annotations

from formats.basics import Buffer

COMPRESSED = 0x001
MULTI_TAGS = 0x002
TRANSACTION = 0x00C
TRANSACTION_NOT = 0x000
TRANSACTION_PREPARED = 0x004
TRANSACTION_COMMIT = 0x008
TRANSACTION_ROLLBACK = 0x00C
BORNHOST_V6 = 0x010
STOREHOST_V6 = 0x020
NEED_UNWRAP = 0x040
INNER_BATCH = 0x080
COMPRESSION_TYPE = 0x700
COMPRESSION_LEGACY_ZLIB = 0x000
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

HOSTS_V6 = BORNHOST_V6 | STOREHOST_V6
BATCH = NEED_UNWRAP | INNER_BATCH
"""Both bits of a message whose body is a batch: clients unpack no other one (`PullAPIWrapper.processPullResult`)."""
KNOWN = 0x7FF
"""All bits that any release sets."""

ZLIB_METHOD = 8
ZLIB_CHECK = 31
LZ4_MAGIC = 0x04224D18
ZSTD_MAGIC = 0x28B52FFD
SKIPPABLE_MAGIC = 0x502A4D18
"""Start of a frame that decoders of LZ4 and Zstandard skip; the lower half of the first byte is arbitrary."""
SKIPPABLE_MASK = 0xF0FFFFFF


def streams(body: Buffer) -> tuple[int, ...]:
    """Return the compression types (bits of COMPRESSION_TYPE) that the start of a body (bytes, as stored) matches.

    zlib's two bytes of RFC 1950, the magic of an LZ4 or Zstandard frame (RFC 8878), or of a frame that both skip.
    """
    head, magic = int.from_bytes(body[:2], "big"), int.from_bytes(body[:4], "big")
    if len(body) >= 4 and magic & SKIPPABLE_MASK == SKIPPABLE_MAGIC:
        return COMPRESSION_LZ4, COMPRESSION_ZSTD
    if len(body) >= 4 and magic in (LZ4_MAGIC, ZSTD_MAGIC):
        return (COMPRESSION_LZ4 if magic == LZ4_MAGIC else COMPRESSION_ZSTD,)
    is_zlib = len(body) >= 2 and head >> 8 & 0x8F == ZLIB_METHOD and head % ZLIB_CHECK == 0
    return (COMPRESSION_LEGACY_ZLIB, COMPRESSION_ZLIB) if is_zlib else ()


def contradicted_by(sys_flag: int, body: Buffer) -> bool:
    """Whether a body (bytes, as stored) clearly contradicts the sysFlag.

    Either the flag says compressed, but the body does not start like a stream of the type named: clients throw
    (`MessageDecoder.decode`). Or it names a type, as producers do when they compress, without saying compressed, and
    the body is a stream.
    """
    kind = sys_flag & COMPRESSION_TYPE
    if sys_flag & COMPRESSED:
        return len(body) > 0 and kind not in streams(body)
    return kind != 0 and bool(streams(body))
