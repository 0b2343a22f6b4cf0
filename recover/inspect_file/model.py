"""What is known about one file: its kind, and items of it with their fields and the checks on them."""

from __future__ import annotations

import struct
from typing import Any

from msgspec import Struct, field

from formats.layout import Layout


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


class Check(Struct, frozen=True):
    """One check: `ok` None means that it does not apply here, or could not be made."""

    name: str
    ok: bool | None
    detail: str = ""

    def json(self) -> dict[str, Any]:
        """The keys of the document."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


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
            "checks": [check.json() for check in self.checks],
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
