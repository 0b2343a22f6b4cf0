"""A sound file of the log counted as it is scanned, and hardly a row of it kept: they are for damage, queues and index.

A row takes 48 bytes for each message. Of a terabyte of log that is a large scratch file; of two gigabytes the memory
for it, fresh from the system, takes as long as the checks.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import numpy as np

from formats.kernels.tally import BITS, FLAGS
from formats.record_columns import BIT_FILLER, BIT_LMQ, BIT_MARKER, BIT_V2, BITS_REJECTED
from formats.sysflag import HOSTS_V6
from recover.errors import Refusal
from recover.files.mapped_files import MappedFile
from recover.memory.columns import ColumnStore, Rows, Split
from recover.scan.chosen import Chosen
from recover.scan.cut_files import CutLog
from recover.scan.file_scan import FileScan, ProgressCallback, scan_file
from recover.scan.queue_table import number_rows
from recover.scan.split_scan import SplitRange, SplitScan, scan_split
from recover.scan.tally import Counter
from recover.scan.unit_counts import UnitCounts

_ASKED_FOR = BIT_LMQ | BIT_V2 | BIT_FILLER | BIT_MARKER | BITS_REJECTED
"""Where there are records with any of these, verify looks at rows."""


class RowsWantedError(Exception):
    """Counts do not say all of this log."""


class CountedScan(FileScan):
    """What one mapped file holds, its rows only counted but for those of `chosen` queues.

    `numbers`: what each of its queues is called in the log.
    """

    counter: Counter
    _rows: list[Split] | None

    def __init__(self, scan: FileScan, counting: Counting) -> None:
        super().__init__(scan.mapped_file, scan.file_size)
        for name in ("queues", "holes", "blank", "blank_size", "end", "unreadable", "counter"):
            setattr(self, name, getattr(scan, name))
        self._counting = counting
        self._kept = scan.splits
        self._passed = frozenset(range(len(scan.queues)))
        self.numbers: Rows = np.arange(len(scan.queues), dtype=np.int32)

    def renumber(self, numbers: Rows) -> None:
        """Call its queues what they are called in the log; not twice."""
        self.numbers = numbers
        number_rows(self._kept, numbers)
        takes = self._counting.chosen.takes_raw
        self._passed = frozenset(
            number for number, queue in zip(numbers.tolist(), self.queues, strict=True) if not takes(*queue)
        )

    @property
    def record_count(self) -> int:
        return self.counter.rows

    def splits_with(self, queues: Collection[int]) -> list[Split]:
        """See `FileScan`; the file is scanned again for queues of which no row was kept."""
        return self._kept if self._passed.isdisjoint(queues) else self.splits

    @property
    def splits(self) -> list[Split]:
        """The rows: the file is scanned again for who asks first. `Refusal` (8) when it holds others by now."""
        if self._rows is None:
            scan = scan_file(
                self.mapped_file, self.file_size, self._counting.columns, with_keys=self._counting.with_keys
            )
            if scan.queues != self.queues or scan.record_count != self.record_count:
                raise Refusal("the log changed while it was read", "Stop the broker, or work on a copy.",
                              file=self.mapped_file.name)
            number_rows(scan.splits, self.numbers)
            self._rows = scan.splits
        return self._rows

    @splits.setter
    def splits(self, value: list[Split]) -> None:
        self._rows = value or None


class _Watched(Counter):
    """Counts until that will not do any more."""

    def add(self, records: Rows, queues: int) -> None:
        super().add(records, queues)
        asked_for = self.totals[BITS] & _ASKED_FOR or self.totals[FLAGS] & HOSTS_V6
        if asked_for or self.fallen.any():
            raise RowsWantedError


def _takes_rows(scan: FileScan) -> bool:
    return scan.counter is None or bool(scan.unreadable) or any(hole.last_data > hole.start for hole in scan.holes)


class Counting:
    """Counts the files of one log, several at once, until one of them shows that counts will not do.

    Rows that are kept go to `columns`: those of `chosen` queues, and all others if somebody asks.
    """

    def __init__(
        self, log: CutLog, columns: ColumnStore, progress: ProgressCallback | None, *, with_keys: bool, chosen: Chosen
    ) -> None:
        self.log = log
        self.columns = columns
        self.with_keys = with_keys
        self.chosen = chosen
        self._progress = progress
        self._told = [0, 0]
        self._lock = threading.Lock()

    def files(self) -> list[CountedScan] | None:
        """All files of the log, or None."""
        scans = self.log.scan(self._split, self._report, self._without)
        counted = [CountedScan(scan, self) for scan in scans if scan is not None and not _takes_rows(scan)]
        return counted if len(counted) == len(scans) else None

    def _split(self, part: SplitRange, entry: int | None, **how: Any) -> SplitScan | None:
        counter = _Watched(units=UnitCounts() if self.with_keys else None)
        try:
            scan = scan_split(
                part, entry, columns=self.columns, with_keys=self.with_keys, counter=counter, chosen=self.chosen, **how
            )
            if _takes_rows(scan.scan):
                raise RowsWantedError
        except RowsWantedError:
            self.log.is_over = True
            return None
        return scan

    def _without(self, mapped_file: MappedFile, error: OSError) -> None:
        """What cannot be opened is for the scan that keeps rows to report."""
        self.log.is_over = True

    def _report(self, size: int, records: int) -> None:
        if self._progress is not None:
            with self._lock:
                self._told[0] += size
                self._told[1] += records
            self._progress(size, records)

    def take_back(self) -> None:
        """All that was reported will be done once more."""
        if self._progress is not None:
            self._progress(-self._told[0], -self._told[1])
