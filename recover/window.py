"""A buffer that moves over a file while it is scanned."""

from __future__ import annotations

import numpy as np

from recover.pace import spend
from recover.read_ahead import ReadAhead
from recover.reader import FileReader, ReadFailure

_BEHIND = 64 << 10


class Window:
    """A buffer over a part of the file; data[0] lies at `start` in the file.

    What lies far behind `stop` is read only when a record that begins in front of it needs it.
    """

    def __init__(self, reader: FileReader, length: int, size: int, stop: int | None = None) -> None:
        self.reader = reader
        self.length = length
        self.stop = length if stop is None else min(stop, length)
        self.data = np.zeros(min(size, max(length, 1)), dtype=np.uint8)
        self.start = 0
        self.filled = 0
        self._wanted = 0
        self.failures: list[ReadFailure] = []
        self._ahead = ReadAhead(reader.descriptor, self.stop)

    def close(self) -> None:
        """No more is read."""
        self._ahead.close()

    def load(self, position: int, needed: int = 0) -> None:
        """Make data start at `position`; grow to hold `needed` bytes if that is more than the buffer."""
        if needed > self.data.size:
            self.data = np.zeros(needed, dtype=np.uint8)
        most = min(self.data.size, self.length - position)
        self._wanted = min(most, max(needed, self.stop + _BEHIND - position, _BEHIND))
        self.start = position
        self.filled = self._read(position, self._wanted)

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
