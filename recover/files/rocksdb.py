"""A RocksDB folder looked at from outside: does its manifest read, and are the files that it names there?

CURRENT names the manifest, a log of edits in blocks of 32 KiB with a masked CRC-32C each; the edits name the live
tables with their lengths. Blocks of tables and write-ahead logs are not read. Sources: RocksDB's log_format.h,
version_edit.h and version_edit.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from formats.errors import FormatError
from recover.crc import crc32c
from recover.files.reader import read_small

CURRENT = "CURRENT"
_LARGEST = 256 << 20
_BLOCK, _HEAD, _RECYCLED_HEAD = 32 << 10, 7, 11
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
_MASK = 0xA282EAD8
_TABLE_MAGICS = (0x88E241B785F4CFF7, 0xDB4775248B80FB57, 0x8242229663BF9564, 0x4F3418EB7A8F13B8)
_MAGIC_SIZE = 8

# fields of each edit after its tag: v a varint, s a string; without log, next file and last sequence no open
_EDITS = {
    1: "s", 2: "v", 3: "v", 4: "v", 5: "vs", 6: "vv", 7: "vvvss", 9: "v", 10: "v", 100: "vvvssvv", 102: "vvvvssvv",
    103: "vvvssvv", 200: "v", 201: "s", 202: "", 203: "v", 300: "v",
}
_NEEDED = {2, 3, 4}
_DELETED, _NEW, _NEW_2, _NEW_3, _NEW_4, _FAMILY, _DROPPED = 6, 7, 100, 102, 103, 200, 202
_SIZE_AT = {_NEW: 2, _NEW_2: 2, _NEW_3: 3, _NEW_4: 2}
_SKIPPED_FROM = 1 << 13
_LAST_OF_NEW_4 = 1


class Problem(Struct, frozen=True):
    """What is wrong with a database, and whether RocksDB opens it all the same, in an older state."""

    text: str
    opens: bool = False


def problems(folder: Path) -> Iterator[Problem]:
    """What keeps a database from being opened, or loses entries of it; nothing where nothing was seen. `OSError`."""
    current = folder / CURRENT
    if not current.is_file():
        yield Problem("CURRENT is missing")
        return
    name = read_small(current, 4096).decode("utf-8", "replace").rstrip("\n")
    manifest = folder / name
    if not name.startswith("MANIFEST-") or "/" in name:
        yield Problem(f"CURRENT names {name[:40]!r}, which is not a manifest")
        return
    if not manifest.is_file():
        yield Problem(f"{name} is missing, and CURRENT names it")
        return
    try:
        tables = live_tables(read_small(manifest, _LARGEST))
    except FormatError as error:
        if error.reason != "unknown-edit":
            yield Problem(f"{name}: {error}", error.reason == "cut")
        return
    for number, size in sorted(tables.items()):
        yield from _of_table(folder / f"{number:06}.sst", size)


def _of_table(table: Path, size: int) -> Iterator[Problem]:
    if not table.is_file():
        yield Problem(f"{table.name} is missing, a table of {size} bytes")
        return
    length = table.stat().st_size
    if length != size:
        yield Problem(f"{table.name} has {length} bytes instead of {size}")
        return
    with table.open("rb") as file:
        file.seek(max(0, size - _MAGIC_SIZE))
        if int.from_bytes(file.read(_MAGIC_SIZE), "little") not in _TABLE_MAGICS:
            yield Problem(f"{table.name} does not end like a table")


def live_tables(manifest: bytes) -> dict[int, int]:
    """File number -> length of the tables that the edits of a manifest leave.

    `FormatError`: "no-start" for one that is cut before it can be opened, "cut" after that, "bad-crc", "bad-record",
    "unknown-edit", "bad-edit".
    """
    tables: dict[tuple[int, int], int] = {}
    tags: set[int] = set()
    records = _records(manifest)
    while True:
        try:
            offset, record = next(records)
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
            elif tag in _SIZE_AT:
                tables[family, values[1]] = values[_SIZE_AT[tag]]
            elif tag == _DROPPED:
                tables = {key: size for key, size in tables.items() if key[0] != family}
    if not tags >= _NEEDED:
        raise FormatError("no-start", len(manifest), "it ends before all that an open needs")
    return {number: size for (_, number), size in tables.items()}


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Each whole record with its offset. Blank space at the end is none: the file may have been allocated ahead."""
    parts: list[bytes] = []
    at = start = 0
    while at + _HEAD <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6]
        if kind == 0 and not any(content[at:]):
            break
        head = _HEAD if kind <= _LAST else _RECYCLED_HEAD
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
    """(tag, its numbers) of each edit in a record; strings are left out, each counts as its length."""
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
