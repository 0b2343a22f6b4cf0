"""Which log file stands where: files under a wrong name, and two files of one name."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from formats.record import HEAD, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from recover.claims import Claim, believed
from recover.log.file_scan import WHOLE, WINDOW, FileScan, ProgressCallback, scan_file
from recover.log.split_scan import FileJoin, SplitRange, SplitScan, queues_of, splits_of
from recover.log.tally import QueueTable
from recover.store.columns import ColumnStore
from recover.store.mapped_files import MappedFile, MappedFileQueue, OddName
from recover.store.reader import FileReader, is_cached, is_elsewhere

MAGICS = (MAGIC_V1, MAGIC_V2)
_MAGIC_AT = HEAD.offset("magic")
_CHUNK = 4 << 20


def rightly_placed(queue: MappedFileQueue) -> tuple[MappedFileQueue, list[tuple[MappedFile, int]]]:
    """The queue with misnamed files where their records belong, and those files with the offset of their right name.

    What all records of a file say of their own places is weighed against its name and the names around it. A file is
    looked through where its first record does not agree with the name, or where no log file can have the name.
    """
    wrong: list[tuple[MappedFile, int]] = []
    files: list[MappedFile] = []
    odd: list[MappedFile] = []
    size = queue.file_size
    doubted = [mapped_file for mapped_file in queue.files if _is_doubted(mapped_file, size)]
    taken = {mapped_file.file_from_offset for mapped_file in queue.files if mapped_file not in doubted}
    for mapped_file in queue.files:
        right = mapped_file.file_from_offset
        if mapped_file in doubted:
            right = believed([*_claims_of_place(mapped_file, size, taken)], right)
        if right != mapped_file.file_from_offset and right not in taken:
            wrong.append((mapped_file, right))
            mapped_file = structs.replace(mapped_file, file_from_offset=right)
        if mapped_file.file_from_offset % size if size > 0 else 0:
            odd.append(mapped_file)
            continue
        taken.add(mapped_file.file_from_offset)
        files.append(mapped_file)
    if not wrong and not odd:
        return queue, []
    files.sort(key=lambda f: f.file_from_offset)
    names = [*queue.odd, *(OddName(mapped_file.path, False, mapped_file.length) for mapped_file in odd)]
    return MappedFileQueue(queue.directories, size, files, names, queue.duplicates), wrong


def live_copies(queue: MappedFileQueue) -> MappedFileQueue:
    """The queue with, of two files of one name, the one that holds more intact records; the other is the duplicate."""
    if not queue.duplicates:
        return queue
    files = {mapped_file.file_from_offset: mapped_file for mapped_file in queue.files}
    duplicates = []
    for twin in queue.duplicates:
        kept = files[twin.file_from_offset]
        if _records(twin, queue.file_size) > _records(kept, queue.file_size):
            files[twin.file_from_offset], twin = twin, kept
        duplicates.append(twin)
    placed = [files[offset] for offset in sorted(files)]
    return MappedFileQueue(queue.directories, queue.file_size, placed, queue.odd, duplicates)


def _records(mapped_file: MappedFile, file_size: int) -> int:
    try:
        return scan_file(mapped_file, file_size, ColumnStore()).record_count
    except OSError:
        return -1


def _is_doubted(mapped_file: MappedFile, file_size: int) -> bool:
    """Whether a file's first record names another place than its name, or no log file can have that name."""
    if file_size <= 0:
        return False
    if mapped_file.file_from_offset % file_size:
        return True
    try:
        with FileReader(mapped_file.path) as reader:
            content = reader.read(0, HEAD.size)
    except OSError:
        return False
    if len(content) < HEAD.size or not any(content):
        return False
    head = HEAD.decode(content)
    return head.magic not in MAGICS or head.phy_offset != mapped_file.file_from_offset


def _claims_of_place(mapped_file: MappedFile, file_size: int, taken: Collection[int]) -> Iterator[Claim[int]]:
    """What speaks for each place of a file in the log, `taken` being those of files that nobody doubts."""
    name = mapped_file.file_from_offset
    bases = _bases(mapped_file, file_size)
    for base, count in bases.items():
        yield Claim("records", base, count)
    for base in {*bases, name}:
        if base % file_size == 0:
            yield Claim("name", base, base == name)
            beside = {base - file_size, base + file_size}
            yield Claim("sequence", base, base not in taken and not beside.isdisjoint(taken))


def _bases(mapped_file: MappedFile, file_size: int) -> Counter[int]:
    """Where the file begins by its record heads, and how many say so; what stands inside of a record is not asked."""
    found: Counter[int] = Counter()
    try:
        with FileReader(mapped_file.path) as reader:
            asked_to = 0
            for start in range(0, min(mapped_file.length, file_size), _CHUNK):
                content = reader.read(start, _CHUNK + HEAD.size)
                for at in _magics(content):
                    position = start + at - _MAGIC_AT
                    if position < asked_to or at - _MAGIC_AT < 0 or at - _MAGIC_AT + HEAD.size > len(content):
                        continue
                    head = HEAD.decode(content, at - _MAGIC_AT)
                    base = head.phy_offset - position
                    fits = MIN_RECORD_SIZE <= head.total_size <= file_size - position
                    if fits and base >= 0 and base % file_size == 0:
                        found[base] += 1
                        asked_to = position + head.total_size
    except OSError:
        return Counter()
    return found


def _magics(content: bytes) -> list[int]:
    """Where the magic of a record stands in some bytes, ascending."""
    found = []
    for magic in MAGICS:
        wanted = magic.to_bytes(HEAD.field("magic").size, "big", signed=True)
        at = content.find(wanted)
        while at >= 0:
            found.append(at)
            at = content.find(wanted, at + 1)
    return sorted(found)


# --- The mapped files of a log cut into splits, scanned on several threads, and put together again.
#
# A thread a file leaves a core idle where a log has one file or three, and where the last one takes longer. Splits
# become smaller towards the end of the log, so that all threads end at nearly the same time.


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
