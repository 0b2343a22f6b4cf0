"""What a process read of files, as checksums that are small enough to travel, and whether this process sees the same.

CRC-32C: a record carries the CRC-32 of its body, and a sum of the same polynomial over both would see less of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from formats.layout import Buffer
from recover.store.reading import crc32c, crc_with_zeros

PIECE = 4 << 20
"""Bytes behind one sum: 10 TB of log are 10 MB of sums."""
_FIRST = 64 << 10


class Run(Struct):
    """Bytes [start, stop) of a file that were read, and the sum of each of its pieces.

    A piece ends at each multiple of `PIECE` in the file, and 64 KiB after the run's start: that is compared cheaply.
    """

    start: int
    stop: int
    sums: array[int] = field(default_factory=lambda: array("I"))

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """(start, stop, sum) of each piece, ascending."""
        at = self.start
        for value in self.sums:
            end = min(self._piece_end(at), self.stop)
            yield at, end, value
            at = end

    def extend(self, size: int, data: Buffer | None) -> None:
        """Take the next `size` bytes, zeros where there is no `data`."""
        done = 0
        while done < size:
            if not self.sums or self._piece_end(self.stop - 1) == self.stop:
                self.sums.append(0)
            part = min(self._piece_end(self.stop) - self.stop, size - done)
            if data is None:
                self.sums[-1] = crc_with_zeros(self.sums[-1], part)
            else:
                self.sums[-1] = crc32c(memoryview(data)[done : done + part], self.sums[-1])
            self.stop += part
            done += part

    def _piece_end(self, at: int) -> int:
        """Where the piece ends that holds the byte at `at`."""
        border = (at // PIECE + 1) * PIECE
        return min(border, self.start + _FIRST) if at < self.start + _FIRST else border


class FileReads(Struct):
    """What was read of one file of `size` bytes: runs, ascending, none over another."""

    size: int
    runs: list[Run] = []

    def note(self, offset: int, size: int, data: Buffer | None = None) -> None:
        """`size` bytes were read at `offset`, zeros where there is no `data`. Bytes known by then stay as they were."""
        at, stop = offset, offset + size
        while at < stop:
            number = bisect_right(self.runs, at, key=lambda run: run.start)
            if not number or self.runs[number - 1].stop < at:
                self.runs.insert(number, Run(at, at))
                number += 1
            run = self.runs[number - 1]
            end = min(stop, self.runs[number].start) if number < len(self.runs) else stop
            if run.stop < end:
                fresh = None if data is None else memoryview(data)[run.stop - offset : end - offset]
                run.extend(end - run.stop, fresh)
            at = end

    @property
    def digest(self) -> int:
        """One number for all of it, the same in every process of one release of Python."""
        return hash((self.size, *((run.start, run.stop, *run.sums) for run in self.runs)))


_recorded: dict[str, FileReads] | None = None


@contextmanager
def recorded() -> Iterator[dict[str, FileReads]]:
    """Within the block this process, of one thread, notes what it reads of each file that it opens, by path."""
    global _recorded
    before, _recorded = _recorded, {}
    try:
        yield _recorded
    finally:
        _recorded = before


def reads_of(path: str, size: int) -> FileReads | None:
    """Where reads of a file are noted; None where nobody wants to know."""
    return None if _recorded is None else _recorded.setdefault(path, FileReads(size))
