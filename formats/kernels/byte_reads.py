"""Compiled reads of big-endian numbers, text and Java hashes out of bytes; the caller has checked the range.

`data` is a uint8 array or what `pointer_to` makes of one (`formats.kernels.byte_intrinsics`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import intrinsic, part


def text_bytes(value: str | bytes) -> Any:
    raw = value.encode() if isinstance(value, str) else value
    return np.frombuffer(raw, dtype=np.uint8).copy()


_INTRINSICS = "formats.kernels.byte_intrinsics"
_byte = intrinsic(_INTRINSICS, "byte")
_u16 = intrinsic(_INTRINSICS, "u16")
_u32 = intrinsic(_INTRINSICS, "u32")
_u64 = intrinsic(_INTRINSICS, "u64")
_word = intrinsic(_INTRINSICS, "word")
_trailing_zeros = intrinsic(_INTRINSICS, "trailing_zeros")
_mask_below = intrinsic(_INTRINSICS, "mask_below")
_mask_equal = intrinsic(_INTRINSICS, "mask_equal")
_weighted_sum = intrinsic(_INTRINSICS, "weighted_sum")
pointer_to = intrinsic(_INTRINSICS, "pointer_to")
prefetch = intrinsic(_INTRINSICS, "prefetch_to_write")
put_u16 = intrinsic(_INTRINSICS, "put_u16")
put_i32 = intrinsic(_INTRINSICS, "put_i32")
put_i64 = intrinsic(_INTRINSICS, "put_i64")
put_file_i32 = intrinsic(_INTRINSICS, "put_file_i32")
put_file_i64 = intrinsic(_INTRINSICS, "put_file_i64")
_TOPS_4 = 0x80808080
_POWERS = np.array([pow(31, k, 1 << 32) for k in range(33)], dtype=np.int64)
_WEIGHTS = np.array([pow(31, k, 1 << 32) for k in range(31, -1, -1)] + [0] * 32, dtype=np.uint32)


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
def below_3(data: Any, start: int, stop: int, readable: int) -> Any:
    """Of the 64 bytes from `start` on, those in front of `stop` that are below 3: a bit each, the lowest is the first.

    Nothing is read at `readable` or behind it, and `stop` is not behind it.
    """
    if start + 64 <= readable:
        found = _mask_below(data, start, 3)
    else:
        found = np.uint64(0)
        for k in range(min(stop - start, 64)):
            if np.int64(_byte(data, start + k)) < 3:
                found |= np.uint64(1) << np.uint64(k)
    if stop - start < 64:
        found &= (np.uint64(1) << np.uint64(stop - start)) - np.uint64(1)
    return found


@part
def first_bit(bits: Any) -> int:
    """Number of the lowest bit that is set."""
    return np.int64(_trailing_zeros(bits))


@part
def next_space(data: Any, start: int, stop: int, readable: int) -> int:
    """First place in data[start:stop] with a space, or `stop`; as `below_3` reads."""
    i = start
    while i < stop and i + 64 <= readable:
        found = _mask_equal(data, i, 32)
        if found != 0:
            return min(stop, i + first_bit(found))
        i += 64
    while i < stop and _byte(data, i) != 32:
        i += 1
    return min(i, stop)


@part
def is_number(data: Any, start: int, length: int, digits: int) -> bool:
    """Whether so many bytes from `start` on are digits, and at most so many of them."""
    right = 0 < length <= digits
    for i in range(start, start + min(length, digits)):
        right &= 48 <= byte_at(data, i) <= 57
    return right


@part
def equal_bytes(data: Any, i: int, other: Any, j: int, length: int) -> bool:
    """data[i:i+length] and other[j:j+length] are the same."""
    k = 0
    if length >= 4:
        # the last word overlaps the one in front of it
        while k + 8 < length:
            if _word(data, i + k) != _word(other, j + k):
                return False
            k += 8
        if length >= 8:
            return _word(data, i + length - 8) == _word(other, j + length - 8)
        return _u32(data, i) == _u32(other, j) and _u32(data, i + length - 4) == _u32(other, j + length - 4)
    while k < length:
        if _byte(data, i + k) != _byte(other, j + k):
            return False
        k += 1
    return True


@part
def same_bytes(data: Any, start: int, length: int, text: Any) -> bool:
    return length == text.size and equal_bytes(data, start, text, 0, length)


@part
def java_hash(data: Any, start: int, stop: int, seed: int, readable: int) -> tuple[int, bool]:
    """Java String.hashCode over the UTF-16 units of strict UTF-8 text, continued from `seed`; False if malformed.

    Nothing is read at `readable` or behind it.
    """
    length = stop - start
    if length <= 32 and start + 64 <= readable:
        plain = _mask_below(data, start, 128)
        if (~plain & ((np.uint64(1) << np.uint64(length)) - np.uint64(1))) == 0:
            h = np.int64(seed) * _POWERS[length] + np.int64(_weighted_sum(data, start, _WEIGHTS, 32 - length))
            return h & 0xFFFFFFFF, True
    return java_hash_of_any(data, start, stop, seed)


@part
def java_hash_of_any(data: Any, start: int, stop: int, seed: int) -> tuple[int, bool]:
    """As `java_hash`, of text of any length and characters."""
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
