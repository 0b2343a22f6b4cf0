"""CRC-32 of any range of a file, without reading what lies between its ends a second time.

Whoever judges many heads that claim the same bytes as their bodies would otherwise sum those up for each of them.
"""

from __future__ import annotations

import zlib
from array import array
from functools import lru_cache
from typing import Any

import numpy as np

from recover.files.reader import FileReader, ReadFailure, spend

Numbers = np.ndarray[Any, Any]
"""Positions in the file (int64), or sums (uint32)."""

_BLOCK = 4096
_STEP = 64
_AT_ONCE = 1 << 20
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


class RangeSums:
    """Of the first `length` bytes of a file. It remembers the sums up to each block, from the first one asked for."""

    def __init__(self, reader: FileReader, length: int) -> None:
        self.length = length
        self._reader = reader
        self._origin = 0
        self._sums = array("L", [0])
        self.summed = 0

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the file, fewer at its end; what cannot be read is zeros."""
        length = max(0, min(length, self.length - start))
        try:
            return self._reader.read(start, length)
        except ReadFailure:
            content = bytearray(length)
        filled, _ = self._reader.salvage_into(memoryview(content), start)
        return bytes(content[:filled])

    def crc(self, start: int, stop: int) -> int:
        """CRC-32 of the bytes [start, stop)."""
        self._begin_before(start)
        return self._up_to(stop) ^ _times(self._up_to(start), _power(stop - start))

    def crcs(self, starts: Numbers, stops: Numbers, at: int, content: Numbers) -> Numbers:
        """CRC-32 of many ranges (uint32) that begin within `content`, the bytes from `at` on (uint8)."""
        self._begin_before(at)
        within = stops <= at + content.size
        ends = np.where(within, stops, at)
        sums = _up_to_each(content, np.concatenate([starts, ends]) - at, self._up_to(at))
        before, behind = sums[: starts.size], sums[starts.size :]
        far, which = np.unique(stops[~within], return_inverse=True)
        behind[~within] = np.array([self._up_to(stop) for stop in far.tolist()], dtype=np.uint32)[which]
        return behind ^ _times_each(before, _powers(stops - starts))

    def _begin_before(self, start: int) -> None:
        if start < self._origin or start > self._end + _AT_ONCE:
            # the sum of a whole record may be asked for after that of its body
            self._origin, self._sums = max(0, start // _BLOCK - 1) * _BLOCK, array("L", [0])

    @property
    def _end(self) -> int:
        return self._origin + (len(self._sums) - 1) * _BLOCK

    def _up_to(self, position: int) -> int:
        """The sum of what lies between the origin and `position`."""
        block = position // _BLOCK * _BLOCK
        while self._end < block:
            content = memoryview(self._read_blocks(self._end, min(_AT_ONCE, block - self._end)))
            for at in range(0, len(content), _BLOCK):
                self._sums.append(zlib.crc32(content[at : at + _BLOCK], self._sums[-1]))
        known = self._sums[(block - self._origin) // _BLOCK]
        return zlib.crc32(self.read(block, position - block), known) if position > block else known

    def _read_blocks(self, start: int, length: int) -> bytes:
        spend(length)
        self.summed += length
        return self.read(start, length).ljust(length, b"\0")


def _times(a: int, b: int) -> int:
    """Product of two polynomials modulo that of CRC-32, bits reflected."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _power(count: int) -> int:
    """x to the 8 * count."""
    return _times(_coarse(count // _BLOCK), _fine(count % _BLOCK))


@lru_cache(maxsize=_BLOCK)
def _fine(count: int) -> int:
    """x to the 8 * count, of less than a block."""
    return _product(count, _ONE >> 8)


@lru_cache(maxsize=_BLOCK)
def _coarse(blocks: int) -> int:
    """x to the 8 * blocks * _BLOCK."""
    return _product(blocks, _product(_BLOCK, _ONE >> 8))


def _product(count: int, base: int) -> int:
    """`base` multiplied with itself so many times."""
    result = _ONE
    while count:
        if count & 1:
            result = _times(result, base)
        base = _times(base, base)
        count >>= 1
    return result


def _up_to_each(content: Numbers, positions: Numbers, seed: int) -> Numbers:
    """The sums up to each of some positions in the content, where that up to its begin is `seed`."""
    sums = [seed]
    whole = memoryview(content.data)
    for at in range(0, content.size - _STEP + 1, _STEP):
        sums.append(zlib.crc32(whole[at : at + _STEP], sums[-1]))
    steps = np.minimum(positions // _STEP, len(sums) - 1)
    found: Numbers = ~np.array(sums, dtype=np.uint32)[steps]
    place, left = steps * _STEP, positions - steps * _STEP
    for done in range(int(left.max(initial=0))):
        more = np.flatnonzero(left > done)
        low = (found[more] ^ content[place[more] + done]) & 0xFF
        found[more] = _table()[low] ^ (found[more] >> 8)
    found ^= np.uint32(0xFFFFFFFF)
    return found


def _times_each(a: Numbers, b: Numbers) -> Numbers:
    """`_times` of each pair (uint32)."""
    a, b = a.copy(), b.copy()
    product = np.zeros_like(a)
    for _ in range(32):
        product ^= b * (a >> 31)
        a <<= 1
        b = (b >> 1) ^ (b & 1) * np.uint32(_POLYNOMIAL)
    return product


def _powers(counts: Numbers) -> Numbers:
    """`_power` of each count (uint32)."""
    product: Numbers = _byte_powers(0)[counts & 0xFF]
    for number in range(1, 4):
        digits = (counts >> (8 * number)) & 0xFF
        if digits.any():
            product = _times_each(product, _byte_powers(number)[digits])
    return product


@lru_cache(maxsize=4)
def _byte_powers(number: int) -> Numbers:
    """x to the 8 * count * 256^number, of each count below 256."""
    base, found = _product(256**number, _ONE >> 8), [_ONE]
    for _ in range(255):
        found.append(_times(found[-1], base))
    return np.array(found, dtype=np.uint32)


@lru_cache(maxsize=1)
def _table() -> Numbers:
    """What a byte does to a sum of nothing but zeros."""
    return np.array([zlib.crc32(bytes([low ^ 0xFF])) ^ 0xFF000000 for low in range(256)], dtype=np.uint32)
