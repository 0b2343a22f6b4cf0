"""The mapped files of a log cut into splits, scanned on several threads, and put together again.

A thread a file leaves a core idle where a log has one file or three, and where the last one takes longer. Splits
become smaller towards the end of the log, so that all threads end at nearly the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from recover.files.mapped_files import MappedFile, MappedFileQueue
from recover.files.reader import FileReader, is_cached, is_elsewhere
from recover.scan.file_scan import WHOLE, WINDOW, FileScan, ProgressCallback
from recover.scan.split_scan import FileJoin, SplitRange, SplitScan, queues_of, splits_of
from recover.scan.tally import QueueTable

OpenError = Callable[[MappedFile, OSError], None]
ScanSplit = Callable[..., SplitScan | None]
"""`scan_split`, called with a split and where to enter it, and with `reader`, `window`, `known` and `progress`; or
something that calls it, and gives None where nobody wants to know any more."""

_LEAST = 32 << 20
_FIRST = WINDOW // 2
"""So much is looked at for queues: one load, which goes a little further."""


def parts_of(queue: MappedFileQueue, threads: int) -> list[list[SplitRange]]:
    """Each file in splits: two thirds of what a thread's share of the rest would be, so that they become small.

    Files of a large log are whole but for those at its end, and all where there is no other thread.
    """
    left = sum(min(mapped_file.length, queue.file_size) for mapped_file in queue.files)
    parts = []
    for mapped_file in queue.files:
        whole = splits_of(mapped_file, queue.file_size, WHOLE)
        at, stop = 0, whole[0].stop
        if threads < 2 or stop < 2 * _LEAST or is_elsewhere(mapped_file.path.parent):
            parts.append(whole)
            left -= stop
            continue
        parts.append([])
        while at < stop:
            size = max(_LEAST, 2 * left // (3 * threads) // WINDOW * WINDOW)
            end = stop if stop - at - size < _LEAST // 2 else at + size
            parts[-1].append(SplitRange(mapped_file, queue.file_size, at, end))
            left -= end - at
            at = end
    return parts


class _GivenUpError(Exception):
    """Of a split that nobody wants to know any more."""


class CutFile:
    """One mapped file that several threads look at, opened by the first and closed after the last."""

    def __init__(self, parts: list[SplitRange], window: int) -> None:
        self.mapped_file = parts[0].mapped_file
        self.parts = parts
        self.open_error: OpenError | None = None
        self.window = window
        self._first = structs.replace(parts[0], stop=min(parts[0].stop, _FIRST))
        self._left = len(self.parts)
        self._is_unopened = False
        self._reader: FileReader | None = None
        self._known: QueueTable | None = None
        self._lock = threading.Lock()

    def scan(self, part: SplitRange, entry: int | None, scan: ScanSplit, **how: Any) -> SplitScan | None:
        """One of its splits; None also where the file cannot be opened."""
        with self._opened() as reader:
            if reader is None:
                return None
            return scan(part, entry, reader=reader, window=self.window, known=self._known, **how)

    @contextmanager
    def _opened(self) -> Iterator[FileReader | None]:
        with self._lock:
            if self._reader is None and not self._is_unopened:
                self._open()
        try:
            yield self._reader
        finally:
            with self._lock:
                self._left -= 1
                if self._left <= 0:
                    self.close()

    def _open(self) -> None:
        try:
            self._reader = FileReader(self.mapped_file.path)
        except OSError as error:
            self._is_unopened = True
            if self.open_error is None:
                raise
            self.open_error(self.mapped_file, error)
            return
        # so that nearly always all splits number them as they come in the file; a cold one is not read before its time,
        # for nothing of it is to stay in the page cache
        if len(self.parts) > 1 and self._known is None and is_cached(self._reader.descriptor, self._first.stop - 1):
            self._known = queues_of(self._first, self._reader, self.window)

    def close(self) -> None:
        """Nobody looks at it any more."""
        if self._reader is not None:
            self._reader.__exit__(None, None, None)
            self._reader = None


class CutLog:
    """The files of a log, `threads` splits of them scanned at a time; splits of `split_size` bytes, or as fits them.

    `is_over`: nobody wants to know any more; splits that are being scanned are given up.
    """

    def __init__(self, queue: MappedFileQueue, threads: int, split_size: int | None, window: int) -> None:
        cut = (
            parts_of(queue, threads) if split_size is None
            else [splits_of(mapped_file, queue.file_size, split_size) for mapped_file in queue.files]
        )
        self.files = [CutFile(parts, window) for parts in cut]
        self.is_over = False
        self._threads = threads
        self._progress: ProgressCallback | None = None

    def scan(
        self, scan: ScanSplit, progress: ProgressCallback | None, open_error: OpenError | None
    ) -> list[FileScan | None]:
        """Each file, in the order of their names; None where it could not be opened, or `scan` gave up.

        `progress` is called with what was done since the last call, by whoever did it; `open_error` with a file that
        cannot be opened. Without that the `OSError` rises.
        """
        for file in self.files:
            file.open_error = open_error
        self._progress = progress
        tasks = [(file, part) for file in self.files for part in file.parts]

        def look(task: tuple[CutFile, SplitRange]) -> SplitScan | None:
            file, part = task
            try:
                return None if self.is_over else file.scan(part, None, scan, progress=self._report)
            except _GivenUpError:
                return None

        try:
            if min(self._threads, len(tasks)) < 2:
                found = [look(task) for task in tasks]
            else:
                with ThreadPoolExecutor(self._threads) as pool:
                    try:
                        found = list(pool.map(look, tasks))
                    except BaseException:
                        self.is_over = True  # whoever is stopped does not wait for what is being scanned
                        raise
            scans = iter(found)
            return [self._joined(file, [next(scans) for _ in file.parts], scan) for file in self.files]
        finally:
            for file in self.files:
                file.close()

    def _report(self, size: int, records: int) -> None:
        if self.is_over:
            raise _GivenUpError
        if self._progress is not None:
            self._progress(size, records)

    def _joined(self, file: CutFile, scans: Sequence[SplitScan | None], scan: ScanSplit) -> FileScan | None:
        """The splits of one file as one; those that began at the wrong place are scanned again."""
        whole = [each for each in scans if each is not None]
        if len(whole) < len(scans):
            return None
        join = FileJoin(whole)
        while isinstance(found := join.join(), list):
            for part, entry in found:
                again = file.scan(part, entry, scan, progress=None)
                if again is None:
                    return None
                join.add(again)
        return found
