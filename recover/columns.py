"""Where a scan keeps its columns: in memory up to a limit, beyond it in an unnamed scratch file.

A store of a terabyte has more rows than memory, so every consumer goes split by split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from formats.record_columns import RECORD
from recover.scratch import scratch_file

Rows = np.ndarray[Any, Any]
DEFAULT_MEMORY = 256 << 20


@dataclass(slots=True)
class Split:
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
    """Takes splits; those beyond `memory` bytes go to a scratch file and come back as read-write maps of it."""

    def __init__(self, memory: int = DEFAULT_MEMORY) -> None:
        self._left = memory
        self._file: Any = None
        self._end = 0

    def keep(self, records: Rows, hashes: Rows) -> Split:
        """A copy of the rows that stays valid when the scan reuses its buffers."""
        needed = records.nbytes + hashes.nbytes
        if needed <= self._left:
            self._left -= needed
            return Split(records.copy(), hashes.copy())
        return Split(self._spill(records, RECORD), self._spill(hashes, np.dtype("<i4")))

    def _spill(self, rows: Rows, dtype: np.dtype[Any]) -> Rows:
        if rows.size == 0:
            return np.empty(0, dtype=dtype)
        if self._file is None:
            self._file = scratch_file()
        start = -(-self._end // 4096) * 4096
        self._end = start + rows.nbytes
        self._file.truncate(self._end)
        kept: Rows = np.memmap(self._file, dtype=dtype, mode="r+", offset=start, shape=rows.shape)
        kept[:] = rows
        return kept
