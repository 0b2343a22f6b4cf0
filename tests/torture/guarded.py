"""Memory that ends at a page nobody may touch: a kernel that reads one byte too far dies at once."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

_PAGE = mmap.PAGESIZE
_NONE = 0


def guarded_bytes(size: int) -> np.ndarray[Any, Any]:
    """`size` bytes of zeros, uint8, right before a page without any right, and one page after another."""
    pages = -(-size // _PAGE)
    area = mmap.mmap(-1, (pages + 2) * _PAGE)
    view = np.frombuffer(area, dtype=np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    start = view.ctypes.data
    for page in (start, start + (pages + 1) * _PAGE):
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), _NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    end = (pages + 1) * _PAGE
    return view[end - size : end]


class GuardedNumpy:
    """Stands for numpy in a module whose byte buffers shall be guarded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: Any = float) -> np.ndarray[Any, Any]:
        """Guarded for plain bytes."""
        if isinstance(shape, int) and dtype is np.uint8 and shape:
            return guarded_bytes(shape)
        return np.zeros(shape, dtype=dtype)
