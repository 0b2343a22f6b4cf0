"""Memory that is touched at random, in huge pages: with small ones most touches wait for the tables of pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from recover.memory.fresh_memory import HUGE_PAGE, private


def scattered(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """`count` zeros; they are given back to the system with the array. Small pages where it has no others."""
    size = count * np.dtype(dtype).itemsize
    if size < HUGE_PAGE:
        return np.zeros(count, dtype=dtype)
    room = np.frombuffer(private(size + HUGE_PAGE), dtype=np.uint8)
    start = -room.ctypes.data % HUGE_PAGE
    return room[start : start + size].view(dtype)
