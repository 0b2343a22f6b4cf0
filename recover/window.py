"""A buffer that moves over a file while it is scanned."""

from __future__ import annotations

import numpy as np

from recover.reader import FileReader, ReadFailure


class Window:
    """A buffer over a part of the file; data[0] lies at `start` in the file."""

    def __init__(self, reader: FileReader, length: int, size: int) -> None:
        self.reader = reader
        self.length = length
        self.data = np.zeros(min(size, max(length, 1)), dtype=np.uint8)
        self.start = 0
        self.filled = 0
        self.failures: list[ReadFailure] = []

    def load(self, position: int, needed: int = 0) -> None:
        """Make data start at `position`; grow to hold `needed` bytes if that is more than the buffer."""
        if needed > self.data.size:
            self.data = np.zeros(needed, dtype=np.uint8)
        wanted = min(self.data.size, self.length - position)
        self.start = position
        self.filled = self._read(position, wanted)

    def _read(self, position: int, wanted: int) -> int:
        view = memoryview(self.data.data)[:wanted]
        try:
            return self.reader.read_into(view, position)
        except ReadFailure as failure:
            # what cannot be read counts as zeros: a hole of the log, not the end of the scan
            self.data[failure.got : wanted] = 0
            self.failures.append(failure)
            return wanted

    def bytes_at(self, position: int, length: int) -> memoryview:
        """`length` bytes of the file at `position`, fewer at its end; loads them if need be."""
        inside = position - self.start
        if inside < 0 or inside + length > self.filled:
            self.load(position, min(length, self.length - position))
            inside = 0
        return memoryview(self.data.data)[inside : min(inside + length, self.filled)]
