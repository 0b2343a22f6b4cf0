"""Files that are tables of equal units: queues, index, timer, transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from formats import dledger, legacy_transaction, timer
from formats.batchconsumequeue import BATCH_CQ_UNIT
from formats.batchconsumequeue import is_valid as is_valid_batch
from formats.consumequeue import CQ_UNIT, is_pre_blank, is_valid
from formats.consumequeue_ext import CQ_EXT_HEAD
from formats.consumequeue_ext import decode as decode_ext
from formats.errors import FormatError
from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry
from formats.layout import Layout
from formats.native.walk import find_record_head
from formats.record import BLANK, BLANK_SIZE, MAGIC_BLANK
from formats.record.layout import I64_STRUCT, OFFSET_PHY_OFFSET
from recover.log.judge import ReadAt, judge, reason_of
from recover.look.record import Check, Field, Item, blank_item, layout_fields, record_item
from recover.store.memo import RangeSums
from recover.store.reader import FileReader

_WINDOW = 4 << 20


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
    """Position of the first intact record at or after `position`, or `length`."""
    return _next_record(reader, position, base, length, RangeSums(reader, length))


def _next_record(reader: FileReader, position: int, base: int, length: int, sums: RangeSums) -> int:
    overlap = OFFSET_PHY_OFFSET + I64_STRUCT.size
    for first, last in reader.data_ranges(position, length):
        for at in range(max(position, first - overlap), last, _WINDOW):
            content = np.frombuffer(reader.read(at, _WINDOW + overlap), np.uint8)
            spot = -1
            while (spot := find_record_head(content, spot + 1, content.size, base + at)) >= 0:
                if _intact(reader, at + spot, base, length, sums):
                    return at + spot
    return length


def _intact(reader: FileReader, position: int, base: int, length: int, sums: RangeSums) -> bool:
    try:
        judge(reader.read, position, base, base + length, sums)
    except FormatError:
        return False
    return True


class Table(NamedTuple):
    """How a table file is read: its unit, the broker's test of one, whether the file's name counts units."""

    layout: Layout[Any]
    valid: Callable[[Any], bool]
    numbered: bool = False


def _timer_valid(unit: timer.TimerLogUnit) -> bool:
    return unit.size == timer.TIMER_LOG_UNIT.size


TABLES: dict[str, Table] = {
    "consumequeue": Table(CQ_UNIT, is_valid, True),
    "redolog": Table(CQ_UNIT, is_valid, True),
    "batchconsumequeue": Table(BATCH_CQ_UNIT, is_valid_batch),
    "compaction-queue": Table(BATCH_CQ_UNIT, is_valid_batch),
    "statetable": Table(legacy_transaction.STATE_UNIT, legacy_transaction.is_valid, True),
    "timerlog": Table(timer.TIMER_LOG_UNIT, _timer_valid),
    "dledger-index": Table(dledger.DLEDGER_INDEX_UNIT, lambda unit: unit.magic == dledger.MAGIC_ENTRY, True),
    "timerwheel": Table(timer.TIMER_WHEEL_SLOT, lambda unit: unit.instant > 0, True),
}


def table_items(kind: str, reader: FileReader, base: int, start: int) -> Iterator[Item]:
    """Units from byte `start` on; a stretch of zeros is one item."""
    layout, valid, numbered = TABLES[kind]
    size = layout.size
    position = start - start % size
    length = reader.length
    while position < length:
        content = reader.read(position, size)
        if not any(content):
            stop = next_data(reader, position, length)
            stop = length if stop == length else max(position + size, stop - stop % size)
            yield Item("zeros", position, stop - position, (base + position) // size if numbered else None)
            position = stop
            continue
        if len(content) < size:
            yield Item("rest", position, len(content), raw=content)
            return
        unit = layout.decode(content)
        number = (base + position) // size if numbered else None
        yield _unit(layout, content, position, number, unit, valid(unit), kind)
        position += size


def _unit(
    layout: Layout[Any], content: bytes, position: int, number: int | None, unit: Any, ok: bool, kind: str
) -> Item:
    fields = layout_fields(layout, content, position)
    if kind in ("consumequeue", "redolog") and is_pre_blank(unit):
        return Item("pre-blank", position, layout.size, number, fields, (), "", content)
    check = Check("valid to a broker", ok, "" if ok else "recovery stops here")
    return Item("unit", position, layout.size, number, fields, (check,), "" if ok else "invalid-unit", content)


def ext_items(reader: FileReader, start: int) -> Iterator[Item]:
    """Units of consumequeue_ext, of different lengths; they can only be walked from a unit's start."""
    position = start
    while position < reader.length:
        head = reader.read(position, CQ_EXT_HEAD.size + 2**15)
        try:
            unit, size = decode_ext(head)
        except FormatError as error:
            kind = {"end": "end", "unwritten": "zeros"}.get(error.reason, "damage")
            reason = error.reason if kind == "damage" else ""
            yield Item(kind, position, reader.length - position, reason=reason, raw=head[: CQ_EXT_HEAD.size])
            return
        fields = layout_fields(CQ_EXT_HEAD, head, position)
        bits = Field("bit_map", position + CQ_EXT_HEAD.size, len(unit.bit_map), unit.bit_map)
        yield Item("unit", position, size, None, (*fields, bits), (), "", head[:size])
        position += size


def dledger_items(reader: FileReader, base: int, start: int) -> Iterator[Item]:
    """Entry heads of a DLedger data file; the record inside begins after each."""
    layout = dledger.DLEDGER_ENTRY_HEAD
    position = start
    while position + layout.size <= reader.length:
        head = reader.read(position, layout.size)
        size = layout.decode(head).size
        content = reader.read(position, size) if layout.size <= size <= reader.length - position else head
        try:
            dledger.decode(content, 0, base + position)
        except FormatError as error:
            kind = {"end": "blank", "unwritten": "zeros"}.get(error.reason, "damage")
            yield Item(kind, position, reader.length - position, base + position,
                       layout_fields(layout, head, position) if kind == "damage" else (),
                       reason=error.reason if kind == "damage" else "", raw=head)
            return
        yield Item("entry", position, size, base + position, layout_fields(layout, head, position), raw=content[:256])
        position += size


def index_items(reader: FileReader, geometry: IndexGeometry, start: int) -> Iterator[Item]:
    """The header, then entries from number 1 (or from the one at byte `start`) to the newest."""
    content = reader.read(0, INDEX_HEADER.size)
    header = INDEX_HEADER.decode(content)
    if start < geometry.unit_offset(1):
        yield Item("header", 0, INDEX_HEADER.size, None, layout_fields(INDEX_HEADER, content, 0), raw=content)
        start = geometry.unit_offset(1)
    first = (start - geometry.units_offset) // INDEX_UNIT.size
    last = max(1, min(header.index_count, geometry.entries))
    for number in range(first, last):
        position = geometry.unit_offset(number)
        raw = reader.read(position, INDEX_UNIT.size)
        unit = INDEX_UNIT.decode(raw)
        checks = (
            Check("hash", unit.key_hash >= 0, f"{unit.key_hash}, slot {geometry.slot_of(unit.key_hash)}"),
            Check("previous", 0 <= unit.previous < number, f"{unit.previous}, below {number}"),
        )
        yield Item("entry", position, INDEX_UNIT.size, number, layout_fields(INDEX_UNIT, raw, position), checks,
                   raw=raw)
