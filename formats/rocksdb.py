"""RocksDB files, as far as mqtool reads them: manifest, write-ahead logs, and the blocks of tables.

A manifest is a log of edits in blocks of 32 KiB with a masked CRC-32C each; the edits name the live tables with their
lengths, and the write-ahead log that continues from them, which has the same form. A table ends with a footer that
leads to its blocks; each block has a checksum, and its content is not read. Sources: RocksDB's log_format.h,
version_edit.h, version_edit.cc, table/format.h and block_based/block.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from formats.basics import FormatError

Read = Callable[[int, int], bytes]
"""(offset, length) -> that many bytes of a table."""

_BLOCK, _RECORD_HEAD, _RECYCLED_HEAD = 32 << 10, 7, 11
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
_MASK = 0xA282EAD8
_TABLE_MAGICS = (0x88E241B785F4CFF7, 0xDB4775248B80FB57, 0x8242229663BF9564, 0x4F3418EB7A8F13B8)
_MAGIC_SIZE, _FOOTER, _TRAILER = 8, 53, 5
_CRC32C, _FORMS = 1, (4, 5)
"""Checksum type and format versions of the tables that brokers write (ConfigHelper, RocksDBOptionsFactory)."""

# fields of each edit after its tag: v a varint, s a string; an open requires log, next file and last sequence
_EDITS = {
    1: "s", 2: "v", 3: "v", 4: "v", 5: "vs", 6: "vv", 7: "vvvss", 9: "v", 10: "v", 100: "vvvssvv", 102: "vvvvssvv",
    103: "vvvssvv", 200: "v", 201: "s", 202: "", 203: "v", 300: "v",
}
_NEEDED = {2, 3, 4}
_LOG, _DELETED, _NEW, _NEW_2, _NEW_3, _NEW_4, _FAMILY, _DROPPED = 2, 6, 7, 100, 102, 103, 200, 202
_SIZE_AT = {_NEW: 2, _NEW_2: 2, _NEW_3: 3, _NEW_4: 2}
_SKIPPED_FROM = 1 << 13
_LAST_OF_NEW_4 = 1


def live_tables(manifest: bytes) -> tuple[dict[int, int], set[int], int]:
    """Return file number -> length of the tables live after all edits of a manifest; deleted tables; the write-ahead
    log.

    `FormatError`: "no-start" if it is cut before it can be opened, "cut" after that, "bad-crc", "bad-record",
    "unknown-edit", "bad-edit".
    """
    tables: dict[tuple[int, int], int] = {}
    tags: set[int] = set()
    deleted: set[int] = set()
    log = 0
    left = records(manifest)
    while True:
        try:
            offset, record = next(left)
        except StopIteration:
            break
        except FormatError as error:
            if error.reason == "cut" and not tags >= _NEEDED:
                raise FormatError("no-start", error.offset, f"{error}, before all that an open needs") from None
            raise
        fields = list(_edits(record, offset))
        family = next((values[0] for tag, values in fields if tag == _FAMILY), 0)
        tags |= {tag for tag, _ in fields}
        for tag, values in fields:
            if tag == _DELETED:
                tables.pop((family, values[1]), None)
                deleted.add(values[1])
            elif tag == _LOG:
                log = max(log, values[0])
            elif tag in _SIZE_AT:
                tables[family, values[1]] = values[_SIZE_AT[tag]]
            elif tag == _DROPPED:
                tables = {key: size for key, size in tables.items() if key[0] != family}
    if not tags >= _NEEDED:
        raise FormatError("no-start", len(manifest), "it ends before all that an open needs")
    return {number: size for (_, number), size in tables.items()}, deleted, log


def records(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each whole record with its offset. Zeros at the end are not a record: the file may be preallocated."""
    parts: list[bytes] = []
    at = start = 0
    while at + _RECORD_HEAD <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _RECORD_HEAD:
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6]
        if kind == 0 and not any(content[at:]):
            break
        head = _RECORD_HEAD if kind <= _LAST else _RECYCLED_HEAD
        end = at + head + length
        if kind == 0 or kind > 2 * _LAST or head + length > left:
            raise FormatError("bad-record", at, f"no record starts at byte {at}")
        if end > len(content):
            raise FormatError("cut", at, f"it ends within the record at byte {at}")
        if _masked(crc32c(content[at + 6 : end])) != int.from_bytes(content[at : at + 4], "little"):
            raise FormatError("bad-crc", at, f"the checksum of the record at byte {at} is wrong")
        part, payload = (kind - 1) % _LAST + 1, content[at + head : end]
        if part in (_FULL, _FIRST):
            parts, start = [], at
        parts.append(payload)
        if part in (_FULL, _LAST):
            yield start, b"".join(parts)
            parts = []
        at = end
    if parts or any(content[at:]):
        raise FormatError("cut", at, f"it ends within the record at byte {start if parts else at}")


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _edits(record: bytes, offset: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (tag, its numbers) of each edit in a record; a string is represented by its length."""
    at = 0
    try:
        while at < len(record):
            tag, at = _varint(record, at)
            shape = _EDITS.get(tag, "s" if tag >= _SKIPPED_FROM else None)
            if shape is None:
                raise FormatError("unknown-edit", offset, f"the edit {tag} in the record at byte {offset} is not known")
            values: list[int] = []
            for kind in shape:
                value, at = _varint(record, at)
                values.append(value)
                at += value if kind == "s" else 0
            if tag == _NEW_4:
                at = _custom_end(record, at)
            if at > len(record):
                raise IndexError
            yield tag, values
    except IndexError:
        raise FormatError("bad-edit", offset, f"an edit in the record at byte {offset} ends too late") from None


def _custom_end(record: bytes, at: int) -> int:
    while True:
        tag, at = _varint(record, at)
        if tag == _LAST_OF_NEW_4:
            return at
        length, at = _varint(record, at)
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


class WrongBlock(NamedTuple):
    """A block with a wrong checksum. `opens`: the database opens nevertheless."""

    offset: int
    opens: bool
    holds_entries: bool


def wrong_blocks(read: Read, length: int) -> Iterator[WrongBlock]:
    """Yield the blocks with a wrong checksum of a table of this length.

    Opening the table reads index and properties, but works without a filter. Yields nothing for other table formats,
    and no blocks with entries if the index is compressed or partitioned. `IndexError` if the footer leads nowhere.
    """
    footer = read(length - _FOOTER, _FOOTER)
    if footer[0] != _CRC32C or int.from_bytes(footer[41:45], "little") not in _FORMS:
        return
    listed, at = _handle(footer, 1)
    index, _ = _handle(footer, at)
    meta = {_handle(value, 0)[0]: b"filter" in name for name, value in _entries(_block(read, length, listed) or b"")}
    for block, opens in {listed: False, index: False, **meta}.items():
        if _block(read, length, block) is None:
            yield WrongBlock(block[0], opens, False)
    content = _block(read, length, index)
    blocks = [*_named_by(content)] if content else []
    # blocks are contiguous: any other layout was not understood
    if [offset for offset, _ in blocks] == [0, *(sum(block) + _TRAILER for block in blocks[:-1])]:
        yield from (WrongBlock(block[0], True, True) for block in blocks if _block(read, length, block) is None)


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return (offset, size) of a block, and the position after it."""
    offset, at = _varint(content, at)
    size, at = _varint(content, at)
    return (offset, size), at


def _block(read: Read, length: int, block: tuple[int, int]) -> bytes | None:
    """Return a block, b"" if it is compressed; None if its checksum, which covers the compression type, is wrong."""
    offset, size = block
    if sum(block) + _TRAILER > length:
        return None
    content = read(offset, size + _TRAILER)
    if _masked(crc32c(content[: size + 1])) != int.from_bytes(content[size + 1 :], "little"):
        return None
    return b"" if content[size] else content[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of a block's entries: sizes of shared key prefix, key rest and value; key rest; value."""
    key = b""
    at, end = 0, len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest + size
        yield key, block[at - size : at]


def _named_by(index: bytes) -> Iterator[tuple[int, int]]:
    """Yield the blocks that an index names: each entry is a restart point, and its value is a handle without a
    length."""
    count = int.from_bytes(index[-4:], "little")
    for number in range(min(count, len(index) // 4)):
        at = len(index) - 4 * (count - number + 1)
        at = int.from_bytes(index[at : at + 4], "little")
        _, at = _varint(index, at)
        rest, at = _varint(index, at)
        yield _handle(index, at + rest)[0]


def has_table_magic(read: Read, length: int) -> bool:
    """Whether a file has the magic of a table at its end: it was finished."""
    end = read(max(0, length - _MAGIC_SIZE), _MAGIC_SIZE)
    return int.from_bytes(end, "little") in _TABLE_MAGICS
