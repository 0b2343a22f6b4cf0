"""Record layouts, written once as data.

A layout is a `NamedTuple` whose fields are annotated with a wire type. The struct, the
field offsets, the numpy dtype, the Arrow schema and the table in the docs all derive from
it, so no other module states an offset.

>>> from typing import Annotated
>>> class Unit(NamedTuple):
...     phy_offset: Annotated[int, I64, "position of the record in the commitlog"]
...     size: Annotated[int, I32, "record size in bytes"]
>>> UNIT = Layout.of(Unit)
>>> UNIT.size, UNIT.offset("size")
(12, 8)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, get_type_hints

from msgspec import Struct

from formats.errors import FormatError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Buffer = bytes | bytearray | memoryview


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
    """A field of `length` opaque bytes."""
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
        """The layout with other wire types of some fields."""
        return Layout(self.record, ((field.name, wires.get(field.name, field.wire), field.note)
                                    for field in self.fields))

    def field(self, name: str) -> LayoutField:
        """The field of that name; `KeyError` without one."""
        return self._by_name[name]

    def offset(self, name: str) -> int:
        """Byte offset of a field from the start of the layout."""
        return self._by_name[name].offset

    def decode(self, buffer: Buffer, offset: int = 0) -> T:
        """Read one record at `offset`; `FormatError("short")` when the buffer ends before it does."""
        if offset < 0 or offset + self.size > len(buffer):
            raise FormatError(
                "short", offset, f"{self.record.__name__} needs {self.size} bytes",
                needed=self.size, available=max(0, len(buffer) - offset),
            )
        return self.record(*self.struct.unpack_from(buffer, offset))

    def encode(self, record: T) -> bytes:
        """The bytes of one record; `struct.error` when a value does not fit its field."""
        return self.struct.pack(*record)

    def decode_all(self, buffer: Buffer) -> Iterator[T]:
        """Every whole record of the buffer, in order; a remainder is left out."""
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
