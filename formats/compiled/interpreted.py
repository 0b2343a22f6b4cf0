"""Kernels as the Python that they are written in, for a machine that runs no compiled code: right, and slow.

Numbers are Python's own here, so arrays are wrapped: what is read of one is such a number, and what does not fit its
element is cut to it, as in compiled code.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from formats.compiled.closure import called, references
from formats.compiled.declare import INT, Array, Intrinsic, Kernel

_OTHER_ORDER = ">" if sys.byteorder == "little" else "<"


def runner_of(kernel: Kernel) -> Callable[[list[Any]], Any]:
    """What interprets the kernel with arguments that fit."""
    function = _Copies().of(kernel.function)
    are_arrays = [isinstance(kind, Array) for kind in kernel.kinds]
    returns = kernel.returns

    def run(arguments: list[Any]) -> Any:
        given = (_wrapped(it) if is_array else it for it, is_array in zip(arguments, are_arrays, strict=True))
        found = function(*given)
        if returns is None or isinstance(returns, tuple):
            return found
        return _cut(int(found), 64, True) if returns is INT else bool(found)

    return run


class _Copies:
    """Functions each before a module where what it calls is interpreted as well."""

    def __init__(self) -> None:
        self._known: dict[FunctionType, Callable[..., Any]] = {}

    def of(self, function: FunctionType) -> Callable[..., Any]:
        """The function as it is interpreted."""
        if function.__name__ in _INSTEAD:
            return _INSTEAD[function.__name__]
        if function not in self._known:
            names = dict(function.__globals__)
            copy = FunctionType(function.__code__, names, function.__name__)
            self._known[function] = copy
            names.update((name, self._resolved(value)) for name, value in references(function))
        return self._known[function]

    def _resolved(self, value: Any) -> Any:
        if value is np:
            return _NUMPY
        if isinstance(value, Intrinsic):
            return _INTRINSICS[value.name]
        if isinstance(value, np.ndarray):
            return _wrapped(value)
        function = called(value)
        return value if function is None else self.of(function)


class _Numbers:
    """An array of numbers; of two dimensions, rows come out as arrays of their own."""

    __slots__ = ("_bits", "_flat", "_signed", "array", "shape", "size")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.size, self.shape = array.size, array.shape
        self._flat = memoryview(array.reshape(-1).data)
        self._bits, self._signed = 8 * array.itemsize, array.dtype.kind == "i"

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, tuple):
            return self._flat[at[0] * self.shape[1] + at[1]]
        return self._flat[at] if len(self.shape) == 1 else _Numbers(self.array[at])

    def __setitem__(self, at: Any, value: Any) -> None:
        place = at[0] * self.shape[1] + at[1] if isinstance(at, tuple) else at
        if self.array.dtype.kind == "b":
            self._flat[place] = bool(value)
        else:
            self._flat[place] = _cut(value, self._bits, self._signed)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._flat)

    @property
    def raw(self) -> memoryview:
        """Its bytes."""
        return self._flat.cast("B")


class _Rows:
    """An array of records."""

    __slots__ = ("array", "columns", "size")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.size = array.size
        self.columns = {name: array[name] for name in array.dtype.names or ()}

    def __getitem__(self, at: int) -> _Row:
        return _Row(self, at)

    def __setitem__(self, at: int, row: _Row) -> None:
        self.array[at] = row.rows.array[row.at]


class _Row:
    """One record of such an array; its fields can be set."""

    __slots__ = ("at", "rows")
    rows: _Rows
    at: int

    def __init__(self, rows: _Rows, at: int) -> None:
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "at", at)

    def __getattr__(self, name: str) -> Any:
        return self.rows.columns[name].item(self.at)

    def __setattr__(self, name: str, value: Any) -> None:
        column = self.rows.columns[name]
        column[self.at] = _cut(value, 8 * column.itemsize, column.dtype.kind == "i")


def _wrapped(array: np.ndarray[Any, Any]) -> _Numbers | _Rows:
    return _Numbers(array) if array.dtype.names is None else _Rows(array)


def _cut(value: int, bits: int, signed: bool) -> int:
    """The low bits of a number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> bits - 1 else value


def _number(bits: int, signed: bool) -> Callable[[int], int]:
    return lambda value: _cut(int(value), bits, signed)


_NUMPY = SimpleNamespace(
    int8=_number(8, True), int16=_number(16, True), int32=_number(32, True), int64=_number(64, True),
    uint32=_number(32, False), uint64=_number(64, False), uint8=_number(8, False),
)


def _pointer_to(array: Any) -> _Numbers:
    content = array.array
    return _Numbers((content if content.dtype.kind in "iu" else content.view(np.uint8)).reshape(-1))


def _load(code: str) -> Callable[[Any, int], int]:
    form = struct.Struct(code)
    return lambda data, at: int(form.unpack_from(data.raw, at)[0])


def _store(code: str, bits: int) -> Callable[[Any, int, int], None]:
    form = struct.Struct(code)
    return lambda data, at, value: form.pack_into(data.raw, at, _cut(value, bits, True))


def _mask(test: Callable[[int, int], bool]) -> Callable[[Any, int, int], int]:
    return lambda data, at, value: sum(1 << k for k, byte in enumerate(data.raw[at : at + 64]) if test(byte, value))


def _weighted_sum(data: Any, at: int, weights: Any, first: int) -> int:
    factors = weights.array[first : first + 32].tolist()
    total: int = sum(byte * factor for byte, factor in zip(data.raw[at : at + 32], factors, strict=True))
    return total & 0xFFFFFFFF


def _crc(data: Any, start: int, length: int) -> int:
    return zlib.crc32(data.raw[start : start + length])


def _last_nonzero(data: Any, start: int, stop: int) -> int:
    stop = min(stop, data.size)
    for end in range(stop, start, -65536):
        kept = bytes(data.raw[max(start, end - 65536) : end]).rstrip(b"\0")
        if kept:
            return max(start, end - 65536) + len(kept) - 1
    return -1


_INTRINSICS: dict[str, Callable[..., Any]] = {
    "pointer_to": _pointer_to,
    "byte": _load("B"), "u16": _load(">H"), "u32": _load(">I"), "u64": _load(">Q"), "word": _load("<Q"),
    "put_u16": lambda data, at, value: struct.pack_into("<H", data.raw, at, value & 0xFFFF),
    "put_i32": _store("<i", 32), "put_i64": _store("<q", 64),
    "put_file_i32": _store(">i", 32), "put_file_i64": _store(">q", 64),
    "trailing_zeros": lambda bits: (bits & -bits).bit_length() - 1 if bits else 64,
    "swapped_i32": lambda value: int(struct.unpack("=i", struct.pack(_OTHER_ORDER + "i", value))[0])
    if sys.byteorder == "little" else value,
    "prefetch_to_write": lambda array, at: None,
    "mask_below": _mask(lambda byte, value: byte < value), "mask_equal": _mask(lambda byte, value: byte == value),
    "weighted_sum": _weighted_sum,
    "call_crc": lambda address, data, start, length: _crc(data, start, length),
    # the buffer is left for the interpreter to fill
    "call_preadv2": lambda *arguments: -1,
    "address_of": lambda data, at: 0,
}
_INSTEAD: dict[str, Callable[..., Any]] = {
    "crc32_portable": lambda tables, data, start, length: _crc(data, start, length),
    "last_nonzero": _last_nonzero,
}
"""What would take too long byte by byte."""
