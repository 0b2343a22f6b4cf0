"""Memory for rows, asked of the system while the process still starts: one core has nothing else to do then.

The system hands memory out when it is written to first, page by page and zeroed; for rows that takes as long as to
make them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections import deque

BLOCK = 32 << 20
HUGE_PAGE = 2 << 20
POPULATE_WRITE = 23

_ready: deque[mmap.mmap] = deque()


def ask(size: int) -> None:
    """Have blocks made ready on a thread of its own, at most `size` bytes in all."""
    if size >= BLOCK:
        threading.Thread(target=_fill, args=(size // BLOCK,), daemon=True).start()


def take() -> mmap.mmap | None:
    """A block of BLOCK bytes of zeros that nobody else has; None where none is ready."""
    try:
        return _ready.popleft()
    except IndexError:
        return None


def private(size: int) -> mmap.mmap:
    """Memory of this process alone, zeros, in huge pages where the system has them."""
    # what can be shared counts as another kind of memory, and comes in small pages
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _fill(count: int) -> None:
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for _ in range(count):
        block = private(BLOCK)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        # in steps: whoever else maps memory waits for one of them
        for at in range(0, BLOCK, HUGE_PAGE):
            if madvise(address + at, HUGE_PAGE, POPULATE_WRITE):
                return
        _ready.append(block)
