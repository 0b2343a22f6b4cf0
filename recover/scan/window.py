"""A buffer that moves over a file while it is scanned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from formats.native.walk import CALL, DESCRIPTOR, FILLED, FLAGS, LENGTH, LOADS, REFILL_SIZE, START, STOP
from recover.files.range_sums import RangeSums
from recover.files.reader import FileReader, ReadAhead, ReadFailure, is_limited, preadv2_address, spend

_BEHIND = 64 << 10
_ALONE = 32
"""Times that compiled code fills the buffer until the interpreter looks what lies ahead, and tells how far it is."""


class Window:
    """A buffer over a part of the file; data[0] lies at `start` in the file.

    What lies far behind `stop` is read only when a record that begins before it needs it.
    """

    def __init__(self, reader: FileReader, length: int, size: int, stop: int | None = None) -> None:
        self.reader = reader
        self.length = length
        self.stop = length if stop is None else min(stop, length)
        self.data = np.zeros(min(size, max(length, 1)), dtype=np.uint8)
        self.start = 0
        self.filled = 0
        self._wanted = 0
        self._slow_loads = 0
        self._slow_next = 1
        self.failures: list[ReadFailure] = []
        self.sums = RangeSums(reader, length)
        self._ahead = ReadAhead(reader.descriptor, self.stop, _BEHIND if self.stop < length else 0)
        self._refill = np.zeros(REFILL_SIZE, dtype=np.int64)
        self._refill[[STOP, LENGTH]] = self.stop, min(self.length, self.stop + _BEHIND)
        self._refill[[CALL, DESCRIPTOR]] = preadv2_address(), reader.descriptor

    def close(self) -> None:
        """No more is read."""
        self._ahead.close()

    def load(self, position: int, needed: int = 0) -> None:
        """Make data start at `position`; grow to hold `needed` bytes if that is more than the buffer."""
        if needed > self.data.size:
            self.data = np.zeros(needed, dtype=np.uint8)
        most = min(self.data.size, self.length - position)
        self._wanted = min(most, max(needed, self.stop + _BEHIND - position, _BEHIND))
        self._slow_loads -= 1
        self.start = position
        self.filled = self._read(position, self._wanted)

    def holds(self, position: int) -> bool:
        """Whether the buffer has what stands there in the file."""
        return self.start <= position < self.start + self.filled

    @contextmanager
    def lent(self) -> Iterator[np.ndarray[Any, Any]]:
        """The buffer is compiled code's, which fills it with what the page cache holds (`formats.native.walk`)."""
        refill = self._refill
        alone = 0
        if refill[CALL] and self._slow_loads <= 0 and not is_limited():
            alone = min(_ALONE, self._ahead.warm_bytes(self.start + self.filled) // self.data.size)
        refill[[START, FILLED]] = self.start, self.filled
        refill[[LOADS, FLAGS]] = alone, self._ahead.flags
        yield refill
        self.start, self.filled = int(refill[START]), int(refill[FILLED])
        if alone and not refill[LOADS]:
            self._slow_next = 1

    def reload(self, position: int) -> None:
        """Load what follows `position`, of which a page is not in the page cache; the system drops single ones.

        Where the next ones lack pages, too, compiled code tries only after twice as many loads each time.
        """
        self._slow_loads = self._slow_next
        self._slow_next = min(2 * self._slow_next, _ALONE)
        self.load(position)

    def advance(self, position: int) -> bool:
        """Load more of what follows `position`; False when buffer or file have no more."""
        if self.start + self.filled >= self.length:
            return False
        if position > self.start:
            self.load(position)
            return True
        if self._wanted < min(self.data.size, self.length - position):
            self.load(position, self.data.size)
            return True
        return False

    @property
    def is_last(self) -> bool:
        """Whether nothing of the file follows the buffer, as far as the last load saw."""
        return self.filled < self._wanted or self.start + self.filled >= self.length

    def _read(self, position: int, wanted: int) -> int:
        self._ahead.come_to(position, wanted)
        spend(wanted)
        # what cannot be read counts as zeros: a hole of the log, not the end of the scan
        filled, failures = self.reader.salvage_into(memoryview(self.data.data)[:wanted], position)
        known = {(failure.offset, failure.wanted) for failure in self.failures}
        self.failures += [failure for failure in failures if (failure.offset, failure.wanted) not in known]
        return filled

    def bytes_at(self, position: int, length: int) -> memoryview:
        """`length` bytes of the file at `position`, fewer at its end; loads them if need be."""
        inside = position - self.start
        if inside < 0 or inside + length > self.filled:
            self.load(position, min(length, self.length - position))
            inside = 0
        return memoryview(self.data.data)[inside : min(inside + length, self.filled)]
