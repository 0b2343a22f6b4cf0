"""Items of one file: records, blanks and units, with every field and every single check."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field, structs

from formats import dledger
from formats.basics import FormatError, Layout
from formats.consumequeue import CQ_EXT_HEAD, CQ_UNIT, decode_ext as decode_ext, is_pre_blank
from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry
from formats.record import BLANK, BLANK_SIZE, HEAD_SIZE, MAGIC_BLANK, MIN_RECORD_SIZE
from formats.record.grammar import Candidate, results
from formats.record.layout import TOPIC_LENGTHS
from recover.findings.phrase import Phrase
from recover.log.file_scan import own_heads
from recover.log.judge import ReadAt, is_intact, judge, reason_of
from recover.store.memo import RangeSums
from recover.store.reader import FileReader

# --- Description of one file: its kind, and its items with their fields and checks.


class Field(Struct, frozen=True):
    """One field of an item: its position in the file (bytes), its value and its purpose."""

    name: str
    offset: int
    size: int
    value: Any
    note: str = ""

    def json(self) -> dict[str, Any]:
        value = self.value.hex() if isinstance(self.value, bytes) else self.value
        return {"name": self.name, "offset": self.offset, "size": self.size, "value": value}


class Check(NamedTuple):
    """One check: `ok` is None if it does not apply, or could not be made."""

    name: str
    ok: bool | None
    detail: str = ""


class Item(Struct, frozen=True):
    """A range of the file: a record, a blank, a unit, zeros, or damage.

    `number`: physical offset, queue offset or entry number; `raw`: its first bytes; `reason`: what is wrong, or "".
    """

    kind: str
    offset: int
    size: int
    number: int | None = None
    fields: tuple[Field, ...] = ()
    checks: tuple[Check, ...] = ()
    reason: str = ""
    raw: bytes = b""

    @property
    def ok(self) -> bool:
        return not self.reason and all(check.ok is not False for check in self.checks)

    def value(self, name: str, default: Any = None) -> Any:
        return next((item.value for item in self.fields if item.name == name), default)

    def json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "offset": self.offset, "size": self.size, "number": self.number, "ok": self.ok,
            "reason": self.reason, "fields": [item.json() for item in self.fields],
            "checks": [check._asdict() for check in self.checks],
        }


class FileReport(Struct):
    """One file: kind (kebab-case), title, why it was recognised as that, length in bytes, further facts, items.
    `complete` is False if the limit ended the list; `next_offset` is where it continues. `geometry`: of an index
    file."""

    path: str
    kind: str
    title: str
    why: str
    length: int
    base: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    complete: bool = True
    next_offset: int | None = None
    geometry: IndexGeometry | None = None

    def json(self) -> dict[str, Any]:
        return {
            "path": self.path, "kind": self.kind, "title": self.title, "why": self.why, "length": self.length,
            "file_from_offset": self.base, "facts": self.facts, "items": [item.json() for item in self.items],
            "complete": self.complete, "next_offset": self.next_offset,
        }


def layout_fields(layout: Layout[Any], content: bytes, at: int) -> tuple[Field, ...]:
    """The declared fields of `content`, which is at position `at` of the file, as far as the bytes reach."""
    fields = []
    for item in layout.fields:
        piece = content[item.offset : item.offset + item.size]
        if len(piece) < item.size:
            break
        (value,) = struct.unpack(">" + item.wire.code, piece)
        fields.append(Field(item.name, at + item.offset, item.size, value, item.note))
    return tuple(fields)


_SEEN = 256
_LARGEST_READ = 64 << 20


def record_item(read: ReadAt, position: int, base: int, file_end: int, reason: str) -> Item:
    """Show the bytes at `position` of a file that begins at physical offset `base` as a record; `reason` is the verdict
    of the judge ("" for an intact one)."""
    room = file_end - base - position
    content = _content(read, position, room)
    candidate = Candidate(content, 0, room, base + position, available=room)
    fields = layout_fields(candidate.layout, content, position)
    parts = tuple(
        Field(name, position + start, stop - start, candidate.at(start, stop)
              if name in ("body", "topic", "properties") else int.from_bytes(content[start:stop], "big"))
        for name, (start, stop) in candidate.places.items()
    )
    checks = [Check(rule.name, found.ok, found.detail) for rule, found in results(candidate)]
    if reason and all(check.ok is not False for check in checks):
        checks.append(Check("verdict", False, reason))
    if reason:
        checks += _flipped_bit(content, position, base + position)
    size = candidate.size if not reason else 0
    return Item("damage" if reason else "record", position, size, base + position, (*fields, *parts), tuple(checks),
                reason, content[:_SEEN])


def _content(read: ReadAt, position: int, room: int) -> bytes:
    """The record's bytes, as many as its size says if that is plausible, else the first few."""
    start = bytes(read(position, BLANK_SIZE))
    if len(start) == BLANK_SIZE:
        size, magic = BLANK.decode(start)
        if magic in TOPIC_LENGTHS and MIN_RECORD_SIZE <= size <= min(room, _LARGEST_READ):
            return bytes(read(position, size))
    return bytes(read(position, min(room, _SEEN)))


def _flipped_bit(content: bytes, at: int, phy_offset: int) -> Iterator[Check]:
    """Report the one bit of a damaged record whose flip makes all checksums right, if there is one."""
    from recover.reading.restore import flipped_back

    restored = flipped_back(content, phy_offset, [])
    if restored is not None:
        (stored,), (right,) = restored.stored, restored.content
        told = Phrase(
            "bit {bit} at {at} ({field}) flipped back, {stored} to {right}, makes every checksum right: recover "
            "--mend-bits", bit=restored.bit, at=at + restored.position, field=restored.field, stored=stored,
            right=right)
        yield Check("one flipped bit", None, told)


def blank_item(read: ReadAt, position: int, base: int, file_end: int) -> Item:
    """The end mark of a mapped file."""
    content = bytes(read(position, BLANK_SIZE))
    size, _ = BLANK.decode(content)
    room = file_end - base - position
    check = Check("size", size == room, Phrase("says {size}, {room} bytes are left", size=size, room=room))
    return Item("blank", position, room, base + position, layout_fields(BLANK, content, position), (check,),
                "" if size == room else "bad-blank-size", content)


# --- The items of each kind of file.


_WINDOW = 4 << 20


def log_items(report: FileReport, reader: FileReader, start: int) -> Iterator[Item]:
    """Items from `start` (bytes in the file) to the end."""
    base, length = report.base or 0, reader.length
    position = start
    sums = RangeSums(reader, length)
    while position < length:
        item = _item(reader, position, base, length, sums)
        if item.kind in ("damage", "zeros"):
            stop = next_record(reader, position + 1, base, length, sums)
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


def next_record(reader: FileReader, position: int, base: int, length: int, sums: RangeSums | None = None) -> int:
    """Position of the first intact record at or after `position`, or `length`."""
    sums = sums or RangeSums(reader, length)
    for first, last in reader.data_ranges(position, length):
        for at in range(max(position, first - HEAD_SIZE), last, _WINDOW):
            content = np.frombuffer(reader.read(at, _WINDOW + HEAD_SIZE), np.uint8)
            for spot in own_heads(content, 0, base + at).tolist():
                if is_intact(reader.read, at + spot, base, base + length, sums):
                    return at + int(spot)
    return length


def table_of(
    layout: Layout[Any], valid: Callable[[Any], bool], *, numbered: bool = False
) -> Callable[[FileReport, FileReader, int], Iterator[Item]]:
    """A reader of files of units, with the broker's test of one; `numbered`: the file's name counts them."""

    def items(report: FileReport, reader: FileReader, start: int) -> Iterator[Item]:
        """Units from byte `start` on; a stretch of zeros is one item."""
        size, length = layout.size, reader.length
        position = start - start % size
        while position < length:
            content = reader.read(position, size)
            number = ((report.base or 0) + position) // size if numbered else None
            if not any(content):
                stop = next_data(reader, position, length)
                stop = length if stop == length else max(position + size, stop - stop % size)
                yield Item("zeros", position, stop - position, number)
                position = stop
                continue
            if len(content) < size:
                yield Item("rest", position, len(content), raw=content)
                return
            unit = layout.decode(content)
            item = Item("unit", position, size, number, layout_fields(layout, content, position), raw=content)
            if layout is CQ_UNIT and is_pre_blank(unit):
                yield structs.replace(item, kind="pre-blank")
            elif valid(unit):
                yield structs.replace(item, checks=(Check("valid to a broker", True),))
            else:
                yield structs.replace(item, reason="invalid-unit",
                                      checks=(Check("valid to a broker", False, "recovery stops here"),))
            position += size

    return items


def ext_items(report: FileReport, reader: FileReader, start: int) -> Iterator[Item]:
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


def dledger_items(report: FileReport, reader: FileReader, start: int) -> Iterator[Item]:
    """Entry heads of a DLedger data file; the record inside begins after each."""
    layout, base = dledger.DLEDGER_ENTRY_HEAD, report.base or 0
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
