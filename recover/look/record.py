"""One commitlog record taken apart: every field, and every check on its own, whatever the others say."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from formats import properties as props
from formats import sysflag
from formats.crc import crc31
from formats.layout import Layout
from formats.record import (
    BLANK,
    BLANK_SIZE,
    HEAD_SIZE,
    HEADS,
    IPV6_EXTRA,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    OFFSET_SYS_FLAG,
    PROPERTIES_LENGTH,
    PROPERTY_CRC_SIZE,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    make_record,
    property_crc_digits,
    valid_topic,
)
from formats.record.layout import I32_STRUCT, LARGEST_PORT
from formats.record.strict import NEEDED, NUMBERS_IN_PROPERTIES, PLAUSIBLE, unserved
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


_SEEN = 256
_LARGEST_READ = 64 << 20
_KNOWN_FLAGS = 0x7FF


def record_item(read: ReadAt, position: int, base: int, file_end: int, reason: str) -> Item:
    """The bytes at `position` of a file that begins at physical offset `base`, read as a record.

    `reason` is the verdict of the judge ("" for an intact record); the fields are shown either way.
    """
    head = bytes(read(position, HEAD_SIZE + 2 * IPV6_EXTRA))
    fields = layout_fields(_head_layout(head), head, position)
    values = {item.name: item.value for item in fields}
    room = file_end - base - position
    content = _content(read, position, values, room)
    parts = _variable(content, position, values)
    checks = [*_envelope_checks(values, room, base + position), *_plausible_checks(values)]
    checks += _content_checks(content, position, values, parts)
    if reason and all(check.ok is not False for check in checks):
        checks.append(Check("verdict", False, reason))
    if reason:
        checks += _flipped_bit(content, position, base + position)
    size = values.get("total_size", 0) if not reason else 0
    return Item("damage" if reason else "record", position, size, base + position, (*fields, *parts.values()),
                tuple(checks), reason, content[:_SEEN] or head[:_SEEN])


def _head_layout(head: bytes) -> Any:
    if len(head) < OFFSET_SYS_FLAG + I32_STRUCT.size:
        return HEADS[0]
    (sys_flag,) = I32_STRUCT.unpack_from(head, OFFSET_SYS_FLAG)
    return HEADS[sys_flag & sysflag.HOSTS_V6]


def _content(read: ReadAt, position: int, values: dict[str, Any], room: int) -> bytes:
    """The record's bytes as far as its size can be believed."""
    size = values.get("total_size", 0)
    known = values.get("magic") in (MAGIC_V1, MAGIC_V2)
    if not known or not MIN_RECORD_SIZE <= size <= min(room, _LARGEST_READ):
        size = min(room, _SEEN)
    return bytes(read(position, size))


def _variable(content: bytes, at: int, values: dict[str, Any]) -> dict[str, Field]:
    """Body, topic and properties, as far as their lengths lead into the bytes."""
    layout = HEADS[values.get("sys_flag", 0) & sysflag.HOSTS_V6]
    found: dict[str, Field] = {}
    position = layout.size
    length = values.get("body_length", -1)
    if values.get("magic") not in (MAGIC_V1, MAGIC_V2) or not 0 <= length <= len(content) - position:
        return found
    found["body"] = Field("body", at + position, length, content[position : position + length], "as stored")
    position += length
    topic_length = TOPIC_LENGTH_V2 if values["magic"] == MAGIC_V2 else TOPIC_LENGTH_V1
    for name, prefix in (("topic", topic_length), ("properties", PROPERTIES_LENGTH)):
        if position + prefix.size > len(content):
            return found
        (length,) = prefix.struct.unpack_from(content, position)
        found[f"{name}_length"] = Field(f"{name}_length", at + position, prefix.size, length)
        position += prefix.size
        if not 0 <= length <= len(content) - position:
            return found
        found[name] = Field(name, at + position, length, content[position : position + length])
        position += length
    return found


def _envelope_checks(values: dict[str, Any], room: int, offset: int) -> list[Check]:
    size, magic = values.get("total_size"), values.get("magic")
    if size is None or magic is None:
        return [Check("magic", False, f"only {room} bytes left, a record takes at least {MIN_RECORD_SIZE}")]
    fits = MIN_RECORD_SIZE <= size <= room - BLANK_SIZE
    detail = f"{size}, at least {MIN_RECORD_SIZE}, and {room} bytes are left of which a blank takes {BLANK_SIZE}"
    own = values.get("phy_offset")
    return [
        Check("magic", magic in (MAGIC_V1, MAGIC_V2), magic_text(magic)),
        Check("size", fits, detail),
        Check("own offset", own == offset if own is not None else None, f"says {own}, stands at {offset}"),
    ]


def magic_text(magic: int) -> str:
    """What a magic is; text that was taken for one is shown, since it tells where the reader stands."""
    names = {MAGIC_V1: "V1", MAGIC_V2: "V2", MAGIC_BLANK: "blank"}
    word = f"{magic & 0xFFFFFFFF:08X}"
    if magic in names:
        return f"{word} ({names[magic]})"
    text = (magic & 0xFFFFFFFF).to_bytes(4, "big")
    if all(0x20 <= byte < 0x7F for byte in text):
        return f'{word} is the text "{text.decode("ascii")}": these bytes are the inside of a message'
    return f"{word} is no magic"


def _plausible_checks(values: dict[str, Any]) -> list[Check]:
    checks = []
    for name, possible in PLAUSIBLE:
        value = values.get(name)
        least, most = possible.start, possible.stop - 1
        bounds = f"{least} to {most}" if most == LARGEST_PORT else f"at least {least}"
        checks.append(Check(name.replace("_", " "), None if value is None else value in possible, "" if value is None
                            else f"{value}, {bounds}"))
    flags = values.get("sys_flag")
    if flags is not None and flags & ~_KNOWN_FLAGS:
        checks.append(Check("sys flag", None, f"{flags:#x} has bits that no known release sets"))
    return checks


def _content_checks(content: bytes, at: int, values: dict[str, Any], parts: dict[str, Field]) -> list[Check]:
    body, topic, properties = (parts.get(name) for name in ("body", "topic", "properties"))
    checks = [_length_sum(values.get("total_size"), at, properties)]
    if body is not None:
        stored, computed = values["body_crc"], crc31(body.value)
        detail = f"stored {stored:08X}, computed {computed:08X}" if body.value else "empty body: not checked"
        checks.append(Check("body CRC", stored == computed if body.value else None, detail))
    if topic is not None:
        checks.append(Check("topic", valid_topic(topic.value), "" if valid_topic(topic.value) else "no topic name"))
    if properties is not None:
        problem = props.structure_problem(properties.value)
        checks.append(Check("properties", problem is None, problem or ""))
        checks.append(_property_crc(content, properties.value))
        if body is not None and topic is not None and not problem:
            checks += _numbers(topic.value, properties.value)
            checks += _readable(values["sys_flag"], body.value, topic.value, properties.value)
    return checks


def _length_sum(size: int | None, at: int, properties: Field | None) -> Check:
    if properties is None or size is None:
        return Check("length sum", False, "the lengths lead out of the record")
    counted = properties.offset + properties.size - at
    return Check("length sum", counted == size, f"size {size}, fields take {counted}")


def _property_crc(content: bytes, properties: bytes) -> Check:
    probe = make_record("t", b"", properties, store_timestamp=1)
    digits = probe.property_crc
    if digits is None:
        return Check("property CRC", None, "none stored (written from 5.2.0 on, if switched on)")
    computed = property_crc_digits(memoryview(content)[: len(content) - PROPERTY_CRC_SIZE])
    return Check("property CRC", digits == computed, f"stored {digits.decode('latin-1')}, computed {computed.decode()}")


def _flipped_bit(content: bytes, at: int, phy_offset: int) -> Iterator[Check]:
    """What one bit of a damaged record would have to be turned back for all checksums to be right."""
    from recover.evidence.restore import turned_back

    restored = turned_back(content, phy_offset, [])
    if restored is not None:
        (stored,), (right,) = restored.stored, restored.content
        where = f"bit {restored.bit} at {at + restored.position} ({restored.field})"
        told = f"{where} turned back, {stored} to {right}, makes every checksum right: recover --mend-bits"
        yield Check("one flipped bit", None, told)


def _readable(sys_flag: int, body: bytes, topic: bytes, properties: bytes) -> Iterator[Check]:
    """Whether clients, and services of brokers, can read it; where a property CRC covers that, it was stored so."""
    record = make_record(topic, b"", properties, store_timestamp=1)
    if sys_flag & (sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE):
        detail = f"sysFlag {sys_flag:#x}, body begins {body[:4].hex(' ')}"
        right = not sysflag.contradicted_by(sys_flag, body)
        yield Check("body as flagged", right if record.property_crc is None else None, detail)
    if record.topic_name in NEEDED:
        wrong = unserved(record)
        yield Check("can be delivered", not wrong, ", ".join(wrong or NEEDED[record.topic_name]))


def _numbers(topic: bytes, properties: bytes) -> Iterator[Check]:
    """The properties that brokers read as numbers."""
    record = make_record(topic, b"", properties, store_timestamp=1)
    for name, read in NUMBERS_IN_PROPERTIES:
        try:
            value = read(record)
        except ValueError as error:
            yield Check(name, False, str(error))
            continue
        if value is not None:
            yield Check(name, True, str(value))


def blank_item(read: ReadAt, position: int, base: int, file_end: int) -> Item:
    """The end mark of a mapped file."""
    content = bytes(read(position, BLANK_SIZE))
    size, _ = BLANK.decode(content)
    room = file_end - base - position
    check = Check("size", size == room, f"says {size}, {room} bytes are left")
    return Item("blank", position, room, base + position, layout_fields(BLANK, content, position), (check,),
                "" if size == room else "bad-blank-size", content)
