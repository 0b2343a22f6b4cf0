"""CRC-32 from compiled code: ISA-L where the wheel exports it, a portable table walk otherwise.

Both give the zlib polynomial. `crc_address()` is 0 when ISA-L's `crc32_gzip_refl` cannot be
found; `crc32_kernel(0, ...)` then takes the portable path. The address is an argument and not a
constant, so the compiled code can be cached on disk and used by another process.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_POLYNOMIAL = 0xEDB88320
_SLICES = 16


@cache
def crc_address() -> int:
    """Address of ISA-L's `crc32_gzip_refl(init, buffer, length)` in this process, or 0."""
    try:
        from isal import isal_zlib

        library = ctypes.CDLL(isal_zlib.__file__)
        function = library.crc32_gzip_refl
    except (ImportError, OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


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


@intrinsic
def _call_crc(typingctx: Any, address: Any, data: Any, start: Any, length: Any) -> Any:
    """`crc32_gzip_refl(0, &data[start], length)` through an address known at run time."""
    signature = types.uint32(types.uint64, data, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, data, start, length = args
        array = context.make_array(signature.args[1])(context, builder, data)
        pointer = builder.gep(array.data, [start])
        function_type = ir.FunctionType(
            ir.IntType(32), [ir.IntType(32), ir.IntType(8).as_pointer(), ir.IntType(64)]
        )
        function = builder.inttoptr(address, function_type.as_pointer())
        return builder.call(function, [ir.Constant(ir.IntType(32), 0), pointer, length])

    return signature, codegen


@njit(cache=True, nogil=True, inline="never")
def crc32_portable(tables: Any, data: Any, start: int, length: int) -> int:
    """CRC-32 of data[start:start+length] by tables; the caller has checked the range."""
    crc = np.uint32(0xFFFFFFFF)
    i = start
    end = start + length
    while end - i >= 16:
        a = crc ^ (
            np.uint32(data[i]) | np.uint32(data[i + 1]) << np.uint32(8)
            | np.uint32(data[i + 2]) << np.uint32(16) | np.uint32(data[i + 3]) << np.uint32(24)
        )
        crc = (
            tables[15, a & np.uint32(0xFF)] ^ tables[14, (a >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[13, (a >> np.uint32(16)) & np.uint32(0xFF)] ^ tables[12, a >> np.uint32(24)]
            ^ tables[11, data[i + 4]] ^ tables[10, data[i + 5]] ^ tables[9, data[i + 6]] ^ tables[8, data[i + 7]]
            ^ tables[7, data[i + 8]] ^ tables[6, data[i + 9]] ^ tables[5, data[i + 10]] ^ tables[4, data[i + 11]]
            ^ tables[3, data[i + 12]] ^ tables[2, data[i + 13]] ^ tables[1, data[i + 14]] ^ tables[0, data[i + 15]]
        )
        i += 16
    while i < end:
        crc = tables[0, (crc ^ np.uint32(data[i])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        i += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def crc32_kernel(address: int, tables: Any, data: Any, start: int, length: int) -> int:
    """CRC-32 of data[start:start+length] (uint8 array); 0 for a range outside the array."""
    if start < 0 or length < 0 or start > data.size or length > data.size - start:
        return np.uint32(0)
    if address != 0:
        return _call_crc(np.uint64(address), data, np.int64(start), np.int64(length))
    return crc32_portable(tables, data, start, length)
