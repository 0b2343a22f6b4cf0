"""One commitlog record taken apart: every field, and every check on its own, whatever the others say."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct, field

from formats.layout import Layout
from formats.record import BLANK, BLANK_SIZE, MIN_RECORD_SIZE
from formats.record.grammar import Candidate, results
from formats.record.layout import TOPIC_LENGTHS
from recover.log.judge import ReadAt

# --- What is known about one file: its kind, and items of it with their fields and the checks on them.


class Field(Struct, frozen=True):
    """One field of an item: where it is in the file (bytes), what it holds, what it is for."""

    name: str
    offset: int
    size: int
    value: Any
    note: str = ""

    def json(self) -> dict[str, Any]:
        """The keys of the document; bytes as hex."""
        value = self.value.hex() if isinstance(self.value, bytes) else self.value
        return {"name": self.name, "offset": self.offset, "size": self.size, "value": value}


class Check(NamedTuple):
    """One check: `ok` None means that it does not apply here, or could not be made."""

    name: str
    ok: bool | None
    detail: str = ""


class Item(Struct, frozen=True):
    """A stretch of the file: a record, a blank, a unit, zeros, damage.

    `number` is what the broker calls it (physical offset, queue offset, entry number), `raw` its
    first bytes. `reason` is "" or the kebab-case word for what is wrong.
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
        """Whether nothing is wrong with it."""
        return not self.reason and all(check.ok is not False for check in self.checks)

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a field by name."""
        return next((item.value for item in self.fields if item.name == name), default)

    def json(self) -> dict[str, Any]:
        """The keys of the document."""
        return {
            "kind": self.kind, "offset": self.offset, "size": self.size, "number": self.number, "ok": self.ok,
            "reason": self.reason, "fields": [item.json() for item in self.fields],
            "checks": [check._asdict() for check in self.checks],
        }


class FileReport(Struct):
    """One file: kind (kebab-case), title, why it is taken for that, length in bytes, further facts, items.

    `complete` is false when the limit ended the list; `next_offset` is where to go on then.
    """

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

    def json(self) -> dict[str, Any]:
        """The keys of the document."""
        return {
            "path": self.path, "kind": self.kind, "title": self.title, "why": self.why, "length": self.length,
            "file_from_offset": self.base, "facts": self.facts, "items": [item.json() for item in self.items],
            "complete": self.complete, "next_offset": self.next_offset,
        }


def layout_fields(layout: Layout[Any], content: bytes, at: int, position: int = 0) -> tuple[Field, ...]:
    """The declared fields of `content[position:]`, which lies at `at` of the file, as far as the bytes go."""
    fields = []
    for item in layout.fields:
        piece = content[position + item.offset : position + item.offset + item.size]
        if len(piece) < item.size:
            break
        (value,) = struct.unpack(">" + item.wire.code, piece)
        fields.append(Field(item.name, at + item.offset, item.size, value, item.note))
    return tuple(fields)


_SEEN = 256
_LARGEST_READ = 64 << 20


def record_item(read: ReadAt, position: int, base: int, file_end: int, reason: str) -> Item:
    """The bytes at `position` of a file that begins at physical offset `base`, read as a record.

    `reason` is the verdict of the judge ("" for an intact record); the fields are shown either way.
    """
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
    """The record's bytes as far as its size can be believed."""
    start = bytes(read(position, BLANK_SIZE))
    if len(start) == BLANK_SIZE:
        size, magic = BLANK.decode(start)
        if magic in TOPIC_LENGTHS and MIN_RECORD_SIZE <= size <= min(room, _LARGEST_READ):
            return bytes(read(position, size))
    return bytes(read(position, min(room, _SEEN)))


def _flipped_bit(content: bytes, at: int, phy_offset: int) -> Iterator[Check]:
    """What one bit of a damaged record would have to be turned back for all checksums to be right."""
    from recover.evidence.restore import turned_back

    restored = turned_back(content, phy_offset, [])
    if restored is not None:
        (stored,), (right,) = restored.stored, restored.content
        where = f"bit {restored.bit} at {at + restored.position} ({restored.field})"
        told = f"{where} turned back, {stored} to {right}, makes every checksum right: recover --mend-bits"
        yield Check("one flipped bit", None, told)


def blank_item(read: ReadAt, position: int, base: int, file_end: int) -> Item:
    """The end mark of a mapped file."""
    content = bytes(read(position, BLANK_SIZE))
    size, _ = BLANK.decode(content)
    room = file_end - base - position
    check = Check("size", size == room, f"says {size}, {room} bytes are left")
    return Item("blank", position, room, base + position, layout_fields(BLANK, content, position), (check,),
                "" if size == room else "bad-blank-size", content)
