"""Asks the system for what a scan reads next, and gives back what only the scan brought into the page cache.

A broker lives from the page cache. What was there before the scan stays there; what was not is dropped
behind it, or a check of a large store would push out all that the broker has.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

BLOCK = 1 << 20
AHEAD = 8 * BLOCK
_FAR = 1 << 62


@cache
def preadv2_address() -> int:
    """Address of the system's `preadv2`, which reads what is in the page cache and nothing else if told so; or 0."""
    try:
        function = ctypes.CDLL(None).preadv2
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if hasattr(os, "RWF_NOWAIT") else 0


def is_cached(descriptor: int, at: int) -> bool:
    """Whether the page cache holds a byte of an open file, as far as its file system can tell.

    To ask may bring its page there: who asks again hears that it does.
    """
    return ReadAhead(descriptor, 0).holds(at)


class ReadAhead:
    """For one pass over an open file, from its beginning or any other place, to `length` in bytes.

    A little of what is `behind` that (bytes) may be read, too, although it is another's. Does nothing where the file
    system cannot tell what is in the cache. Errors of advice are no errors of the scan.
    """

    def __init__(self, descriptor: int, length: int, behind: int = 0) -> None:
        self._descriptor = descriptor
        self._length = length
        self._behind = behind
        self._drops_behind: bool | None = None
        self._asked = -1  # the end of what was looked at
        self._cold: list[int] = []
        self._works = descriptor >= 0 and hasattr(os, "RWF_NOWAIT")
        if self._works:
            # the system's own reading ahead would make everything look as if it had been there before
            self._advise(0, os.POSIX_FADV_RANDOM, 0)

    def warm_bytes(self, position: int) -> int:
        """So many bytes from there on are not known to lack in the cache; 0 where there is no file to ask."""
        if self._descriptor < 0:
            return 0
        return max(0, next((at for at in self._cold if at + BLOCK > position), _FAR) - position)

    @property
    def flags(self) -> int:
        """With which `preadv2` reads what is in the cache; 0 where the file system cannot tell."""
        return os.RWF_NOWAIT if self._works else 0

    def come_to(self, position: int, size: int) -> None:
        """The bytes [position, position + size) are read next; nothing in front of them is needed any more."""
        if not self._works:
            return
        self._drop(position)
        start = max(self._asked, position // BLOCK * BLOCK)
        stop = min(self._length, position + size + AHEAD)
        # half the distance at a time: each piece of advice costs a system call
        if stop < self._length and stop - start < AHEAD // 2 and self._asked >= position + size:
            return
        at = start
        while at < stop and self._works:
            self._look_at(at)
            at += BLOCK
        self._asked = max(self._asked, at)
        if self._behind and at >= self._length and self._drops_behind is None:
            # not its first byte, which whoever reads on from there will ask about
            self._drops_behind = not self.holds(self._length + self._behind - 1)

    def close(self) -> None:
        """The pass is over."""
        self._drop(self._asked + BLOCK)
        if self._works and self._drops_behind:
            self._advise(self._length, os.POSIX_FADV_DONTNEED, self._behind)

    def _look_at(self, at: int) -> None:
        if not self.holds(at):
            self._cold.append(at)
            self._advise(at, os.POSIX_FADV_WILLNEED)

    def holds(self, at: int) -> bool:
        """Whether the page cache holds the byte there, as far as the file system can tell."""
        if not self._works:
            return True
        try:
            os.preadv(self._descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # this file system cannot tell: let it read as it thinks best
            self._advise(0, os.POSIX_FADV_NORMAL, 0)
            self._works = False
        return True

    def _drop(self, position: int) -> None:
        while self._cold and self._cold[0] + BLOCK <= position:
            self._advise(self._cold.pop(0), os.POSIX_FADV_DONTNEED)

    def _advise(self, at: int, advice: int, size: int = BLOCK) -> None:
        try:
            os.posix_fadvise(self._descriptor, at, size, advice)
        except OSError:
            self._works = False
