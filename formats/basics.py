"""Shared by all formats: the error, the checksum, Java's strings, names, and layouts declared once as data."""

from __future__ import annotations

import datetime
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, get_type_hints

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Buffer = bytes | bytearray | memoryview
CRC31_MASK = 0x7FFFFFFF


class FormatError(ValueError):
    """Bytes that violate their format.

    `reason` is a stable kebab-case word, `offset` the position in the buffer (bytes) of the offending field, `facts`
    the values read and expected.
    """

    def __init__(self, reason: str, offset: int, message: str, **facts: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.offset = offset
        self.facts = facts


def crc31(content: Buffer) -> int:
    """Return the CRC-32 (zlib polynomial) of `content` as a non-negative i32, the broker's `UtilAll.crc32`."""
    return zlib.crc32(content) & CRC31_MASK


# --- Java's `String` over bytes (UTF-8 decoding, `hashCode`), and the arithmetic of its `long`.


_I32_SPAN = 1 << 32
_I32_SIGN = 1 << 31
_I32_MASK = _I32_SPAN - 1
_HASH_FACTOR = 31

# UTF-8 encoded surrogates: Java replaces the whole sequence by one U+FFFD, Python each byte.
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def java_string(content: bytes) -> str:
    """Return `new String(content, UTF_8)`: malformed sequences become U+FFFD, never an error."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xff", content).decode("utf-8", "replace")


def hash32(text: str) -> int:
    """Return `String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit value.

    >>> hash32("TagA"), hash32("polygenelubricants")
    (2598919, -2147483648)
    """
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(units) // 2}H", units):
        value = (value * _HASH_FACTOR + unit) & _I32_MASK
    return value - _I32_SPAN if value & _I32_SIGN else value


def index_key_hash(text: str) -> int:
    """Return the key hash of an index unit (`IndexFile.indexKeyHashMethod`), 0..2^31-1.

    Java's `Math.abs` leaves the smallest i32 negative; the broker then uses 0.
    """
    value = abs(hash32(text))
    return 0 if value == _I32_SIGN else value


def tags_code(tags: str | None) -> int:
    """Return the tags code of a consume queue unit: the hash of the whole text, 0 without tags."""
    return hash32(tags) if tags else 0


def java_long(value: int) -> int:
    """Return the number wrapped as by a Java `long`: its low 64 bits, signed."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


# --- File and topic names. Sources: UtilAll.offset2FileName, UtilAll.timeMillisToHumanString, TopicValidator.


OFFSET_DIGITS = 20
INDEX_NAME_DIGITS = 17
MAX_OFFSET = 2**63 - 1

LEGAL_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")
"""A topic that TopicValidator accepts, regardless of its length."""
_DIRECTORY_NAME_MAX_BYTES = 255
_INDEX_SECONDS_DIGITS = INDEX_NAME_DIGITS - 3


def offset_to_name(offset: int) -> str:
    """Return the name of the mapped file that starts at `offset` bytes; `FormatError("bad-offset")` beyond an i64."""
    if not 0 <= offset <= MAX_OFFSET:
        raise FormatError("bad-offset", 0, f"invalid file offset {offset}", value=offset)
    return str(offset).zfill(OFFSET_DIGITS)


def offset_in_name(name: str) -> int | None:
    """Return the start offset (bytes) in a mapped file's name; None for any other name.

    Digits of every script count, as in Java: a broker formats names in its default locale. Names that Java could parse
    but no broker writes (a sign, fewer digits) are refused.
    """
    if len(name) != OFFSET_DIGITS or not name.isdecimal():
        return None
    offset = int(name)
    return offset if offset <= MAX_OFFSET else None


def index_name(timestamp: int, zone: datetime.tzinfo) -> str:
    """Return the name of an index file created at `timestamp` (ms since 1970) by a broker in that time zone."""
    seconds, millis = divmod(timestamp, 1000)
    try:
        local = datetime.datetime.fromtimestamp(seconds, zone)
    except (OverflowError, OSError, ValueError):
        raise FormatError("bad-timestamp", 0, f"invalid timestamp {timestamp} ms", timestamp=timestamp) from None
    # strftime does not pad years below 1000 on every platform
    return f"{local.year:04d}{local:%m%d%H%M%S}{millis:03d}"


def parse_index_name(name: str, zone: datetime.tzinfo) -> int:
    """Return the creation time of an index file (ms since 1970) by its name, in the broker's time zone.

    If clocks went back and two instants have this local time, the first one. `FormatError("bad-file-name")` if the name
    is not 17 digits of a date and time.
    """
    try:
        if len(name) != INDEX_NAME_DIGITS or not (name.isascii() and name.isdecimal()):
            raise ValueError(name)
        local = datetime.datetime.strptime(name[:_INDEX_SECONDS_DIGITS], "%Y%m%d%H%M%S").replace(tzinfo=zone)
        seconds = local.timestamp()
    except (OverflowError, ValueError):
        raise FormatError("bad-file-name", 0, f"{name!r} is not the name of an index file", name=name) from None
    return round(seconds) * 1000 + int(name[_INDEX_SECONDS_DIGITS:])


def is_index_name(name: str) -> bool:
    """Whether a name is 17 digits of a date and time, in any zone."""
    try:
        parse_index_name(name, datetime.UTC)
    except FormatError:
        return False
    return True


def is_legal_topic(topic: str) -> bool:
    """Whether a broker lets a client create the topic, regardless of its length."""
    return LEGAL_TOPIC.fullmatch(topic.encode("utf-8", "surrogatepass")) is not None


def is_safe_directory_name(name: str) -> bool:
    """Whether the name can be a single directory below a queue folder.

    Damaged bytes must never lead outside the store, so check this before building a path from a topic read from a
    record.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name or not name.isprintable():
        return False
    return len(name.encode("utf-8", "replace")) <= _DIRECTORY_NAME_MAX_BYTES


# --- Layouts: a `NamedTuple` whose fields are annotated with a wire type. The struct, the field offsets, the numpy
# dtype, the Arrow schema and the table in the docs all derive from it, so no other module states an offset.


class Wire(NamedTuple):
    """A big-endian wire type: struct code, numpy code, Arrow type name, name in the docs."""

    code: str
    numpy: str
    arrow: str
    label: str


I8 = Wire("b", "i1", "int8", "i8")
I16 = Wire("h", ">i2", "int16", "i16")
I32 = Wire("i", ">i4", "int32", "i32")
I64 = Wire("q", ">i8", "int64", "i64")


def raw(length: int) -> Wire:
    """Return the wire type of `length` opaque bytes."""
    return Wire(f"{length}s", f"V{length}", f"binary[{length}]", f"bytes[{length}]")


class LayoutField(Struct, frozen=True):
    """One field: its name, byte offset from the start of the layout, wire type, and note."""

    name: str
    offset: int
    wire: Wire
    note: str

    @property
    def size(self) -> int:
        return struct.calcsize(">" + self.wire.code)


T = TypeVar("T", bound=tuple[Any, ...])


class Layout(Generic[T]):
    """A fixed-size, big-endian record of declared fields: name, wire type and note of each."""

    def __init__(self, record: type[T], declared: Iterable[tuple[str, Wire, str]]) -> None:
        self.record = record
        fields: list[LayoutField] = []
        for name, wire, note in declared:
            fields.append(LayoutField(name, fields[-1].offset + fields[-1].size if fields else 0, wire, note))
        self.fields = tuple(fields)
        self.struct = struct.Struct(">" + "".join(field.wire.code for field in fields))
        self.size = self.struct.size
        self._by_name = {field.name: field for field in fields}

    @classmethod
    def of(cls, record: type[T]) -> Layout[T]:
        """Derive the layout from a NamedTuple of `Annotated[type, Wire, note]` fields."""
        return cls(record, ((name, *hint.__metadata__) for name, hint in
                            get_type_hints(record, include_extras=True).items()))

    def widened(self, wires: Mapping[str, Wire]) -> Layout[T]:
        """Return the layout with other wire types for some fields."""
        return Layout(self.record, ((field.name, wires.get(field.name, field.wire), field.note)
                                    for field in self.fields))

    def field(self, name: str) -> LayoutField:
        """Return the field of that name; `KeyError` if there is none."""
        return self._by_name[name]

    def offset(self, name: str) -> int:
        """Return the byte offset of a field from the start of the layout."""
        return self._by_name[name].offset

    def decode(self, buffer: Buffer, offset: int = 0) -> T:
        """Return the record at `offset`; `FormatError("short")` if the buffer ends before it does."""
        if offset < 0 or offset + self.size > len(buffer):
            raise FormatError(
                "short", offset, f"{self.record.__name__} needs {self.size} bytes",
                needed=self.size, available=max(0, len(buffer) - offset),
            )
        return self.record(*self.struct.unpack_from(buffer, offset))

    def encode(self, record: T) -> bytes:
        """Return the bytes of one record; `struct.error` if a value does not fit its field."""
        return self.struct.pack(*record)

    def decode_all(self, buffer: Buffer) -> Iterator[T]:
        """Return an iterator over the whole records of the buffer, in order; a remainder is left out."""
        whole = len(buffer) // self.size * self.size
        return map(self.record._make, self.struct.iter_unpack(memoryview(buffer)[:whole]))  # type: ignore[attr-defined]

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The numpy dtype of one record, big-endian and without padding."""
        import numpy as np

        return np.dtype([(field.name, field.wire.numpy) for field in self.fields])

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema: one column a field, none nullable."""
        import pyarrow as pa

        def arrow_type(wire: Wire) -> pa.DataType:
            if wire.arrow.startswith("binary["):
                return pa.binary(int(wire.arrow[7:-1]))
            return getattr(pa, wire.arrow)()

        return pa.schema([pa.field(f.name, arrow_type(f.wire), nullable=False) for f in self.fields])
