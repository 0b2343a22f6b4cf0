"""Where a scan keeps its columns: in memory up to a limit, beyond it in an unnamed scratch file.

A store of a terabyte has more rows than memory, so every consumer goes split by split.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import IO, Any

import numpy as np
from msgspec import Struct

from formats.record.rows import RECORD

_LARGEST = 64 << 20


def scratch_file() -> IO[bytes]:
    """An open, empty, unnamed temporary file in the system's temporary folder (`TMPDIR`)."""
    import tempfile

    return tempfile.TemporaryFile(prefix="mqtool-")


def mapped(file: IO[bytes], start: int, size: int) -> np.ndarray[Any, Any]:
    """`size` bytes (uint8) of a scratch file from `start` on, a multiple of the page size; zeros, as nobody wrote them.

    `OSError` on a full disk; later, when a page finds no place, that would be the end of the process.
    """
    os.posix_fallocate(file.fileno(), start, size)
    return np.frombuffer(mmap.mmap(file.fileno(), size, offset=start), dtype=np.uint8)


def roomy(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An array of `count` values, not set; one of more than 64 MiB lies in a scratch file, not in memory."""
    size = count * np.dtype(dtype).itemsize
    if size <= _LARGEST:
        return np.empty(count, dtype=dtype)
    with scratch_file() as file:
        return mapped(file, 0, size).view(dtype)


Rows = np.ndarray[Any, Any]
DEFAULT_MEMORY = 256 << 20
_ALIGNMENT = 64
BLOCK = 32 << 20
_PAGE = mmap.ALLOCATIONGRANULARITY
_LARGE = 1 << 20
_HASH = np.dtype(np.int32)


class Split(Struct):
    """Rows of one stretch of one mapped file, ascending by phy_offset, and the key hashes of their records.

    `records` has dtype RECORD; `hashes` is int32, `records["hashes"].sum()` long, in record order.
    """

    records: Rows
    hashes: Rows

    @property
    def first_hash(self) -> Rows:
        """Index into `hashes` of each record's first hash, int64."""
        counts = self.records["hashes"].astype(np.int64)
        return np.cumsum(counts) - counts


class ColumnStore:
    """Takes splits; those beyond `memory` bytes go to a scratch file and come back as read-write maps of it.

    Several threads may keep rows at once.
    """

    def __init__(self, memory: int = DEFAULT_MEMORY) -> None:
        self._left = memory
        self._file: Any = None
        self._end = 0
        self._rest_of_map = np.empty(0, dtype=np.uint8)
        self._block = np.empty(0, dtype=np.uint8)
        self._next = _LARGE
        self._lock = threading.Lock()

    def keep(self, records: Rows, hashes: Rows) -> Split:
        """A copy of the rows that stays valid when the scan reuses its buffers."""
        with self._lock:
            in_memory = records.nbytes + hashes.nbytes <= self._left
            if not in_memory:
                return Split(self._spill(records, RECORD), self._spill(hashes, _HASH))
            self._left -= records.nbytes + hashes.nbytes
            places = self._take(records.nbytes), self._take(hashes.nbytes)
        for place, rows in zip(places, (records, hashes), strict=True):
            # as bytes: rows would be copied column by column
            place[:] = np.ascontiguousarray(rows).view(np.uint8)
        return Split(places[0].view(RECORD), places[1].view(_HASH))

    def _take(self, size: int) -> Rows:
        """`size` bytes of a block: for large blocks the system hands out large pages, and fewer of them."""
        taken = -(-size // _ALIGNMENT) * _ALIGNMENT
        if taken > self._block.size:
            self._block = np.empty(max(self._next, taken), np.uint8)
            self._next = min(2 * self._next, BLOCK)
        place, self._block = self._block[:size], self._block[taken:]
        return place

    def _spill(self, rows: Rows, dtype: np.dtype[Any]) -> Rows:
        if rows.size == 0:
            return np.empty(0, dtype=dtype)
        place = self._mapped(rows.nbytes)
        place[:] = np.ascontiguousarray(rows).view(np.uint8)
        return place.view(dtype)

    def _mapped(self, size: int) -> Rows:
        """`size` bytes of the scratch file; small pieces share a map, of which a process has some ten thousand at most.

        Splits are small, and many, where there is much damage.
        """
        if size >= _LARGE:
            return self._map(size)[:size]
        taken = -(-size // _ALIGNMENT) * _ALIGNMENT
        if taken > self._rest_of_map.size:
            self._rest_of_map = self._map(max(taken, min(_LARGE, self._end // 4)))
        place, self._rest_of_map = self._rest_of_map[:size], self._rest_of_map[taken:]
        return place

    def _map(self, size: int) -> Rows:
        if self._file is None:
            self._file = scratch_file()
        place = mapped(self._file, self._end, -(-size // _PAGE) * _PAGE)
        self._end += place.size
        return place
