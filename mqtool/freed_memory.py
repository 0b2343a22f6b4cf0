"""Memory that was freed is kept for what is allocated next: pages that go back to the system must be zeroed again."""

from __future__ import annotations

import contextlib
import ctypes

# malloc.h of glibc
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGE = 32 << 20
_KEPT = 128 << 20


def keep() -> None:
    """Tell glibc so, for this process; another C library goes on as it likes.

    Blocks below 32 MiB come from one heap for all threads, of which up to 128 MiB stay ours when nobody uses them.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEPT)):
            library.mallopt(option, value)
