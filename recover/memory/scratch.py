"""Scratch space outside every store: an unnamed file that vanishes with the process.

The store itself is written by `recover.disk` alone; this file has no name, so nothing can
mistake it for a part of a store.
"""

from __future__ import annotations

import mmap
import os
from typing import IO, Any

import numpy as np

_LARGEST = 64 << 20


def scratch_file() -> IO[bytes]:
    """An open, empty, unnamed temporary file in the system's temporary folder (`TMPDIR`)."""
    import tempfile

    return tempfile.TemporaryFile(prefix="mqtool-")


def mapped(file: IO[bytes], start: int, size: int) -> np.ndarray[Any, Any]:
    """`size` bytes (uint8) of a scratch file from `start` on, a multiple of the page size; zeros, as nobody wrote them.

    `OSError` on a full disk; later, when a page finds no place, that would be the end of the process.
    """
    os.posix_fallocate(file.fileno(), start, size)
    return np.frombuffer(mmap.mmap(file.fileno(), size, offset=start), dtype=np.uint8)


def roomy(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An array of `count` values, not set; one of more than 64 MiB lies in a scratch file, not in memory."""
    size = count * np.dtype(dtype).itemsize
    if size <= _LARGEST:
        return np.empty(count, dtype=dtype)
    with scratch_file() as file:
        return mapped(file, 0, size).view(dtype)
