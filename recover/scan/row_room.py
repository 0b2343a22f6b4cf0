"""Where a walk over the log puts the rows that it makes, and what becomes of them."""

from __future__ import annotations

import numpy as np

from formats.record_columns import RECORD
from recover.memory.columns import LEAST_HASHES, LEAST_ROWS, ColumnStore, Rows, Split

_ROWS = 1 << 16
_HASHES = 1 << 18


class RowRoom:
    """Rows are put where they stay, or else in scratch room, from where the store of columns takes them.

    `rows` is what the walk may fill, `splits` what it filled so far.
    """

    def __init__(self, columns: ColumnStore, *, with_hashes: bool) -> None:
        self.splits: list[Split] = []
        self.rows = Split(np.empty(0, dtype=RECORD), np.empty(0, dtype=np.int32))
        self._columns = columns
        self._hashes = _HASHES if with_hashes else LEAST_HASHES
        self._in_place = False
        self._new()

    def take(self, rows: int, hashes: int) -> None:
        """The walk filled so many."""
        records, values = self.rows.records, self.rows.hashes
        if not self._in_place:
            self.keep(records[:rows], values[:hashes])
            self._new()
            return
        self.splits.append(Split(records[:rows], values[:hashes]))
        self.rows = Split(records[rows:], values[hashes:])
        if self.rows.records.size < LEAST_ROWS or self.rows.hashes.size < LEAST_HASHES:
            self._new()

    def keep(self, records: Rows, hashes: Rows) -> None:
        """Rows that come from elsewhere."""
        self.splits.append(self._columns.keep(records, hashes))

    def widen(self) -> None:
        """Make room for a single record that has more hashes than there was room for."""
        hashes = np.empty(max(_HASHES, self.rows.hashes.size * 2), dtype=np.int32)
        self._new(Split(np.empty(_ROWS, dtype=RECORD), hashes))

    def end(self) -> None:
        """All rows were found."""
        if self._in_place:
            self._columns.give_back(self.rows)

    def _new(self, scratch: Split | None = None) -> None:
        self.end()
        room = self._columns.room(_ROWS, self._hashes) if scratch is None else None
        self._in_place = room is not None
        self.rows = room or scratch or Split(np.empty(_ROWS, dtype=RECORD), np.empty(self._hashes, dtype=np.int32))
