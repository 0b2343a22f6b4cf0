"""Compiled reads of big-endian numbers, text and Java hashes out of a uint8 array; the caller has checked the range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


def text_bytes(value: str | bytes) -> Any:
    raw = value.encode() if isinstance(value, str) else value
    return np.frombuffer(raw, dtype=np.uint8).copy()


@njit(cache=True, nogil=True)
def i16(data: Any, i: int) -> int:
    value = (np.int64(data[i]) << 8) | np.int64(data[i + 1])
    return value - 65536 if value >= 32768 else value


@njit(cache=True, nogil=True)
def u32(data: Any, i: int) -> int:
    return (
        (np.int64(data[i]) << 24) | (np.int64(data[i + 1]) << 16) | (np.int64(data[i + 2]) << 8) | np.int64(data[i + 3])
    )


@njit(cache=True, nogil=True)
def i32(data: Any, i: int) -> int:
    value = u32(data, i)
    return value - 4294967296 if value >= 2147483648 else value


@njit(cache=True, nogil=True)
def i64(data: Any, i: int) -> int:
    return (i32(data, i) << 32) | u32(data, i + 4)


@njit(cache=True, nogil=True)
def same_bytes(data: Any, start: int, length: int, text: Any) -> bool:
    if length != text.size:
        return False
    for i in range(length):  # noqa: SIM110 - compiled code knows no all()
        if data[start + i] != text[i]:
            return False
    return True


@njit(cache=True, nogil=True)
def java_hash(data: Any, start: int, stop: int, seed: int) -> tuple[int, bool]:
    """Java String.hashCode over the UTF-16 units of strict UTF-8 text, continued from `seed`; False if malformed."""
    h = np.int64(seed)
    i = start
    while i < stop:
        b = np.int64(data[i])
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
            c = np.int64(data[i + k])
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
