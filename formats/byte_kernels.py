"""Compiled reads of big-endian numbers, text and Java hashes out of bytes; the caller has checked the range.

`data` is a uint8 array or, where every nanosecond counts, what `pointer_to` makes of one: numba counts references to
arrays at every call and return, which takes longer than the work on a short record.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


def text_bytes(value: str | bytes) -> Any:
    raw = value.encode() if isinstance(value, str) else value
    return np.frombuffer(raw, dtype=np.uint8).copy()


def _load(bits: int, *, swap: bool = True) -> Any:
    """An intrinsic that reads an unsigned number of so many bits at `data[i]`, aligned or not; turned with `swap`.

    Composed of single bytes it would take many times as long: for all numba knows, each index could be negative.
    """
    result = types.Integer.from_bitwidth(bits, signed=False)

    @intrinsic
    def load(typingctx: Any, data: Any, i: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _place(context, builder, signature.args[0], args[0], args[1], ir.IntType(bits))
            value = builder.load(pointer, align=1)
            return builder.bswap(value) if swap else value

        return result(data, types.int64), codegen

    return load


def _place(context: Any, builder: Any, kind: Any, data: Any, i: Any, content: Any) -> Any:
    """A pointer to `content` at byte `i` of an array or of the bytes of one."""
    if isinstance(kind, types.Array):
        data = context.make_array(kind)(context, builder, data).data
    data = builder.bitcast(data, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(data, [i]), content.as_pointer())


@intrinsic
def _pointer_to(typingctx: Any, array: Any) -> Any:
    """The elements of an array, without counts of references, without checks: of numbers as they are, else the bytes.

    One index, from 0, also where the array has two dimensions. The array has to outlive it.
    """
    element = array.dtype if isinstance(array.dtype, types.Integer) else types.uint8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.bitcast(data, context.get_data_type(element).as_pointer())

    pointer: Any = types.CPointer
    return pointer(element)(array), codegen


pointer_to: Any = _pointer_to


def _store(bits: int) -> Any:
    """An intrinsic that writes the low bits of a number at byte `i`, little-endian, as arrays of RECORD have it."""
    @intrinsic
    def store(typingctx: Any, data: Any, i: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = ir.IntType(bits)
            pointer = _place(context, builder, signature.args[0], args[0], args[1], number)
            value = args[2] if bits == 64 else builder.trunc(args[2], number)
            builder.store(builder.bswap(value) if sys.byteorder == "big" else value, pointer, align=1)

        return types.void(data, types.int64, types.int64), codegen

    return store


put_u16 = _store(16)
put_i32 = _store(32)
put_i64 = _store(64)


@intrinsic
def _trailing_zeros(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


_byte = _load(8, swap=False)
_u16 = _load(16)
_u32 = _load(32)
_u64 = _load(64)
_word = _load(64, swap=sys.byteorder == "big")
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_TOPS_4 = 0x80808080


@njit(cache=True, nogil=True)
def byte_at(data: Any, i: int) -> int:
    return np.int64(_byte(data, i))


@njit(cache=True, nogil=True)
def i16(data: Any, i: int) -> int:
    return np.int64(np.int16(_u16(data, i)))


@njit(cache=True, nogil=True)
def u32(data: Any, i: int) -> int:
    return np.int64(_u32(data, i))


@njit(cache=True, nogil=True)
def i32(data: Any, i: int) -> int:
    return np.int64(np.int32(_u32(data, i)))


@njit(cache=True, nogil=True)
def i64(data: Any, i: int) -> int:
    return np.int64(_u64(data, i))


@njit(cache=True, nogil=True)
def next_below(data: Any, start: int, stop: int, least: int) -> int:
    """First place in data[start:stop] with a byte below `least` (at most 128), or `stop`."""
    lasts = _ONES * np.uint64(least)
    i = start
    while i + 8 <= stop:
        # the top bit of each byte below `least`; a borrow sets more of them, but only behind a true one
        word = _word(data, i)
        below = (word - lasts) & ~word & _TOPS
        if below != 0:
            return i + np.int64(_trailing_zeros(below) >> np.uint64(3))
        i += 8
    while i < stop and np.int64(_byte(data, i)) >= least:
        i += 1
    return i


@njit(cache=True, nogil=True)
def equal_bytes(data: Any, i: int, other: Any, j: int, length: int) -> bool:
    """data[i:i+length] and other[j:j+length] are the same."""
    k = 0
    while k + 8 <= length:
        if _word(data, i + k) != _word(other, j + k):
            return False
        k += 8
    while k < length:
        if _byte(data, i + k) != _byte(other, j + k):
            return False
        k += 1
    return True


@njit(cache=True, nogil=True)
def same_bytes(data: Any, start: int, length: int, text: Any) -> bool:
    return length == text.size and equal_bytes(data, start, text, 0, length)


@njit(cache=True, nogil=True)
def java_hash(data: Any, start: int, stop: int, seed: int) -> tuple[int, bool]:
    """Java String.hashCode over the UTF-16 units of strict UTF-8 text, continued from `seed`; False if malformed."""
    h = np.int64(seed)
    i = start
    while i < stop:
        while i + 4 <= stop:
            word = np.int64(_u32(data, i))
            if word & _TOPS_4:
                break
            # four steps of 31 * h + b as one: each alone would have to wait for the one before
            h = (923521 * h + 29791 * (word >> 24) + 961 * ((word >> 16) & 0x7F) + 31 * ((word >> 8) & 0x7F)
                 + (word & 0x7F)) & 0xFFFFFFFF
            i += 4
        if i >= stop:
            break
        b = byte_at(data, i)
        if b < 0x80:
            h = (31 * h + b) & 0xFFFFFFFF
            i += 1
            continue
        if 0xC2 <= b <= 0xDF:
            extra, point, least = 1, b & 0x1F, np.int64(0x80)
        elif 0xE0 <= b <= 0xEF:
            extra, point, least = 2, b & 0x0F, np.int64(0x800)
        elif 0xF0 <= b <= 0xF4:
            extra, point, least = 3, b & 0x07, np.int64(0x10000)
        else:
            return h, False
        if i + extra >= stop:
            return h, False
        for k in range(1, extra + 1):
            c = byte_at(data, i + k)
            if (c & 0xC0) != 0x80:
                return h, False
            point = (point << 6) | (c & 0x3F)
        if point < least or point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            return h, False
        if point >= 0x10000:
            point -= 0x10000
            h = (31 * h + (0xD800 | (point >> 10))) & 0xFFFFFFFF
            h = (31 * h + (0xDC00 | (point & 0x3FF))) & 0xFFFFFFFF
        else:
            h = (31 * h + point) & 0xFFFFFFFF
        i += extra + 1
    return h, True


@njit(cache=True, nogil=True)
def signed(h: int) -> int:
    return h - 4294967296 if h >= 2147483648 else h


@njit(cache=True, nogil=True)
def key_hash(h: int) -> int:
    value = signed(h)
    if value == -2147483648:
        return 0
    return -value if value < 0 else value
