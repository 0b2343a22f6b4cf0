"""A commitlog file as a list of records, blanks, zeros and damage, from any position on."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from formats.commitlog import BLANK, BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, OFFSET_MAGIC, OFFSET_PHY_OFFSET
from formats.commitlog.layout import I32_STRUCT, I64_STRUCT
from formats.errors import FormatError
from recover.files.range_sums import RangeSums
from recover.files.reader import FileReader
from recover.inspect_file.model import Item
from recover.inspect_file.record import blank_item, record_item
from recover.scan.judge import ReadAt, judge, reason_of

_WINDOW = 4 << 20
_MAGICS = (I32_STRUCT.pack(MAGIC_V1), I32_STRUCT.pack(MAGIC_V2))


def log_items(reader: FileReader, base: int, start: int) -> Iterator[Item]:
    """Items from `start` (bytes in the file) to the end; the file begins at physical offset `base`."""
    length = reader.length
    position = start
    sums = RangeSums(reader, length)
    while position < length:
        item = _item(reader, position, base, length, sums)
        if item.kind in ("damage", "zeros"):
            stop = _next_record(reader, position + 1, base, length, sums)
            item = structs.replace(item, size=stop - position)
        yield item
        position += item.size


def _item(reader: FileReader, position: int, base: int, length: int, sums: RangeSums) -> Item:
    read: ReadAt = reader.read
    file_end = base + length
    try:
        judge(read, position, base, file_end, sums)
        return record_item(read, position, base, file_end, "")
    except FormatError as error:
        reason = error.reason
    head = bytes(read(position, BLANK_SIZE))
    if len(head) == BLANK_SIZE and BLANK.decode(head).magic == MAGIC_BLANK:
        return blank_item(read, position, base, file_end)
    if not any(head) and next_data(reader, position, length) == length:
        return Item("zeros", position, length - position, base + position)
    reason = reason_of(read, position, base, file_end, sums)[0] or reason
    return record_item(read, position, base, file_end, reason)


def next_data(reader: FileReader, position: int, stop: int) -> int:
    """Position of the first byte that is not zero, or `stop`."""
    for first, last in reader.data_ranges(position, stop):
        for at in range(first, last, _WINDOW):
            piece = reader.read(at, min(_WINDOW, last - at))
            rest = piece.lstrip(b"\0")
            if rest:
                return at + len(piece) - len(rest)
    return stop


def next_record(reader: FileReader, position: int, base: int, length: int) -> int:
    """Position of the first intact record at or behind `position`, or `length`."""
    return _next_record(reader, position, base, length, RangeSums(reader, length))


def _next_record(reader: FileReader, position: int, base: int, length: int, sums: RangeSums) -> int:
    overlap = OFFSET_PHY_OFFSET + I64_STRUCT.size
    for first, last in reader.data_ranges(position, length):
        at = max(position, first - overlap)
        while at < last:
            content = reader.read(at, _WINDOW + overlap)
            found = _first_head(reader, content, at, base, length, sums)
            if found is not None:
                return found
            at += _WINDOW
    return length


def _first_head(
    reader: FileReader, content: bytes, at: int, base: int, length: int, sums: RangeSums
) -> int | None:
    spots = sorted(spot for magic in _MAGICS for spot in _spots(content, magic))
    for spot in spots:
        head = spot - OFFSET_MAGIC
        own = head + OFFSET_PHY_OFFSET
        if head < 0 or own + I64_STRUCT.size > len(content):
            continue
        says = I64_STRUCT.unpack_from(content, own)[0]
        if says == base + at + head and _intact(reader, at + head, base, length, sums):
            return at + head
    return None


def _spots(content: bytes, magic: bytes) -> Iterator[int]:
    spot = content.find(magic)
    while spot >= 0:
        yield spot
        spot = content.find(magic, spot + 1)


def _intact(reader: FileReader, position: int, base: int, length: int, sums: RangeSums) -> bool:
    try:
        judge(reader.read, position, base, base + length, sums)
    except FormatError:
        return False
    return True
