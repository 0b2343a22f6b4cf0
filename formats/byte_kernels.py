"""Compiled reads of big-endian numbers, text and Java hashes out of bytes; the caller has checked the range.

`data` is a uint8 array or what `pointer_to` makes of one (`formats.byte_intrinsics`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import intrinsic, part


def text_bytes(value: str | bytes) -> Any:
    raw = value.encode() if isinstance(value, str) else value
    return np.frombuffer(raw, dtype=np.uint8).copy()


_INTRINSICS = "formats.byte_intrinsics"
_byte = intrinsic(_INTRINSICS, "byte")
_u16 = intrinsic(_INTRINSICS, "u16")
_u32 = intrinsic(_INTRINSICS, "u32")
_u64 = intrinsic(_INTRINSICS, "u64")
_word = intrinsic(_INTRINSICS, "word")
_trailing_zeros = intrinsic(_INTRINSICS, "trailing_zeros")
pointer_to = intrinsic(_INTRINSICS, "pointer_to")
prefetch = intrinsic(_INTRINSICS, "prefetch_to_write")
put_u16 = intrinsic(_INTRINSICS, "put_u16")
put_i32 = intrinsic(_INTRINSICS, "put_i32")
put_i64 = intrinsic(_INTRINSICS, "put_i64")
put_file_i32 = intrinsic(_INTRINSICS, "put_file_i32")
put_file_i64 = intrinsic(_INTRINSICS, "put_file_i64")
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_TOPS_4 = 0x80808080


@part
def byte_at(data: Any, i: int) -> int:
    return np.int64(_byte(data, i))


@part
def i16(data: Any, i: int) -> int:
    return np.int64(np.int16(_u16(data, i)))


@part
def u32(data: Any, i: int) -> int:
    return np.int64(_u32(data, i))


@part
def i32(data: Any, i: int) -> int:
    return np.int64(np.int32(_u32(data, i)))


@part
def i64(data: Any, i: int) -> int:
    return np.int64(_u64(data, i))


@part
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


@part
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


@part
def same_bytes(data: Any, start: int, length: int, text: Any) -> bool:
    return length == text.size and equal_bytes(data, start, text, 0, length)


@part
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


@part
def signed(h: int) -> int:
    return h - 4294967296 if h >= 2147483648 else h


@part
def key_hash(h: int) -> int:
    value = signed(h)
    if value == -2147483648:
        return 0
    return -value if value < 0 else value
