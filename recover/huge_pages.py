"""Memory that is touched at random, in huge pages: with small ones most touches wait for the tables of pages."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np

HUGE_PAGE = 2 << 20


def scattered(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """`count` zeros; they are given back to the system with the array. Small pages where it has no others."""
    size = count * np.dtype(dtype).itemsize
    if size < HUGE_PAGE:
        return np.zeros(count, dtype=dtype)
    block = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        block.madvise(mmap.MADV_HUGEPAGE)
    room = np.frombuffer(block, dtype=np.uint8)
    start = -room.ctypes.data % HUGE_PAGE
    return room[start : start + size].view(dtype)
