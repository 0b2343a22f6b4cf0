"""CRC-32 from compiled code: ISA-L where the wheel exports it, a portable table walk otherwise.

Both give the zlib polynomial. `crc_address()` is 0 when ISA-L's `crc32_gzip_refl` cannot be
found; `crc32_kernel(0, ...)` then takes the portable path. The address is an argument and not a
constant, so the compiled code can be cached on disk and used by another process.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Any

import numpy as np

from formats.compiled import INT, Array, intrinsic, kernel, part
from formats.kernels.byte_reads import pointer_to

_POLYNOMIAL = 0xEDB88320
_SLICES = 16


@cache
def crc_address() -> int:
    """Address of ISA-L's `crc32_gzip_refl(init, buffer, length)` in this process, or 0."""
    try:
        function = ctypes.CDLL(_isal_library()).crc32_gzip_refl
    except (ImportError, ValueError, OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _isal_library() -> str:
    """The wheel's shared library, found without the package around it, which takes 2 ms to import."""
    spec = find_spec("isal")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for suffix in EXTENSION_SUFFIXES:
            path = os.path.join(folder, f"isal_zlib{suffix}")
            if os.path.exists(path):
                return path
    raise ImportError("no isal")


def crc_name() -> str:
    """Which CRC runs in this process: `isal` or `portable`."""
    return "isal" if crc_address() else "portable"


@cache
def crc_tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The slicing-by-16 tables, shape (16, 256)."""
    tables = np.zeros((_SLICES, 256), dtype=np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, _SLICES):
        previous = tables[row - 1]
        tables[row] = (previous >> np.uint32(8)) ^ tables[0][previous & np.uint32(0xFF)]
    return tables


_call_crc = intrinsic("formats.kernels.byte_intrinsics", "call_crc")


@part
def crc32_portable(tables: Any, data: Any, start: int, length: int) -> int:
    """CRC-32 of data[start:start+length] by tables, both pointers; the caller has checked the range."""
    crc = np.uint32(0xFFFFFFFF)
    i = start
    end = start + length
    while end - i >= _SLICES:
        word = np.uint32(crc)
        crc = np.uint32(0)
        for k in range(_SLICES):
            byte = np.uint32(data[i + k])
            if k < 4:
                byte ^= (word >> np.uint32(8 * k)) & np.uint32(0xFF)
            crc ^= tables[(_SLICES - 1 - k) * 256 + np.int64(byte)]
        i += _SLICES
    while i < end:
        crc = tables[np.int64((crc ^ np.uint32(data[i])) & np.uint32(0xFF))] ^ (crc >> np.uint32(8))
        i += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@part
def crc32_inside(address: int, tables: Any, data: Any, start: int, length: int) -> int:
    """CRC-32 of bytes that the caller knows to be there; `tables` and `data` are pointers (`pointer_to`)."""
    if address != 0:
        return _call_crc(np.uint64(address), data, np.int64(start), np.int64(length))
    return crc32_portable(tables, data, start, length)


@kernel(address=INT, tables=Array(np.uint32, 2), data=Array(np.uint8), start=INT, length=INT, returns=INT)
def crc32_kernel(address: int, tables: Any, data: Any, start: int, length: int) -> int:
    """CRC-32 of data[start:start+length] (uint8 array); 0 for a range outside the array."""
    if start < 0 or length < 0 or start > data.size or length > data.size - start:
        return np.uint32(0)
    return crc32_inside(address, pointer_to(tables), pointer_to(data), start, length)
