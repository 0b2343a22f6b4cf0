"""Scan the mapped files of a log in splits on several threads, and join these to the result of one walk.

One thread a file would leave cores idle if a log has few files, or if the last one takes longer. Splits become smaller
towards the end of the log, so that all threads finish at nearly the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from msgspec import Struct, field, structs

from formats.record import BLANK_SIZE, HEAD, HEAD_SIZE, MIN_RECORD_SIZE
from recover.findings.code import Refusal
from recover.log.file_scan import (
    EARLY_END_MARK,
    WHOLE,
    WINDOW,
    FileScan,
    Gap,
    ProgressCallback,
    SplitRange,
    SplitScan,
    end_mark,
    field_at,
    own_heads,
    scan_split,
)
from recover.store.columns import Split, joined
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reader import FileReader
from recover.store.source import open_file

SPLIT_SIZE = 256 << 20


def splits_of(mapped_file: MappedFile, file_size: int, split_size: int = SPLIT_SIZE) -> list[SplitRange]:
    """Return the file in splits of `split_size` bytes; one, possibly empty, for a file without bytes."""
    length = min(mapped_file.length, file_size)
    starts = range(0, max(length, 1), split_size)
    return [SplitRange(mapped_file, file_size, start, min(start + split_size, length)) for start in starts]


def merge_queues(scans: Iterable[FileScan]) -> list[tuple[bytes, int]]:
    """Number the queues of these scans jointly, in the rows of all; return the queues in the order of their numbers."""
    numbers: dict[tuple[bytes, int], int] = {}
    for scan in scans:
        own = np.array([numbers.setdefault(key, len(numbers)) for key in scan.queues], dtype=np.int32)
        for split in scan.splits:
            split.renumber(own)
    return list(numbers)


def one_split(splits: Iterable[Split]) -> Split:
    """Return the rows of several splits as one split."""
    parts = [*splits]
    if len(parts) == 1:
        return parts[0]
    hashes = np.concatenate([np.empty(0, dtype=np.int32), *(part.hashes for part in parts)])
    return Split(joined([part.records for part in parts]), hashes)


Again = tuple[SplitRange, int | None]
"""A split to rescan, and the position in its file to start at; None for the part after a doubtful end mark."""


class FileJoin(Struct):
    """Joins the split scans of one file, ascending, as they arrive."""

    scans: Sequence[SplitScan]
    again: dict[tuple[int, int], SplitScan] = field(default_factory=dict)
    found: FileScan | None = None
    past: SplitRange | None = None

    def add(self, scan: SplitScan) -> None:
        """Add the rescan of a split."""
        if scan.part == self.past:
            assert self.found is not None
            self.past = past_mark(self.found) if take_past_mark(self.found, scan) else None
        else:
            assert scan.entry is not None
            self.again[scan.part.start, scan.entry] = scan

    def join(self) -> FileScan | list[Again]:
        """Return the whole file, or the splits to rescan first, with their entry positions.

        After a split that awaits its rescan, the walk is assumed to go on as in the split's first scan, so one round of
        rescans is nearly always enough.
        """
        if self.found is not None:
            return self.found if self.past is None else [(self.past, None)]
        walk = _Walk(self.scans[0].part)
        for first in self.scans:
            if walk.is_over:
                break
            if walk.gap is not None:
                walk.continue_gap(first)
                continue
            assert walk.position is not None
            if walk.position >= first.part.stop and not first.part.is_last:
                continue  # inside a record that is longer than the split
            scan = first if first.entry == walk.position else self.again.get((first.part.start, walk.position))
            if scan is None:
                walk.needed.append((first.part, walk.position))
                scan = first
            walk.take(scan)
        if walk.needed:
            return walk.needed
        self.found = walk.whole()
        self.past = past_mark(self.found)
        return self.found if self.past is None else [(self.past, None)]


_MOST_MARKS = 100
"""Limit of doubted end marks of a file: each one requires another scan of what follows it."""


def past_mark(found: FileScan) -> SplitRange | None:
    """Return the part after the end mark of a file if the mark may be written over a record or before others; else
    None."""
    if found.blank is None or not (found.over_record or found.before_record) or len(found.doubted) == _MOST_MARKS:
        return None
    start = found.blank - found.mapped_file.file_from_offset + BLANK_SIZE
    part = SplitRange(found.mapped_file, found.file_size, start, min(found.mapped_file.length, found.file_size))
    return part if start < part.stop else None


def take_past_mark(found: FileScan, behind: SplitScan) -> bool:
    """Extend the file past its end mark if the scan of what follows found a record or another such mark.

    Returns whether the file goes on. Anything counted for the file before becomes invalid.
    """
    mark = found.blank
    if mark is None or behind.entry is None or (behind.enters_at != "record" and not behind.scan.over_record):
        return False
    found.queues = merge_queues([found, behind.scan])
    stop = found.mapped_file.file_from_offset + behind.entry
    found.doubted = [*found.doubted, (mark, len(found.splits), found.over_record)]
    found.splits = [*found.splits, *behind.scan.splits]
    found.gaps = [*found.gaps, Gap(mark, stop, EARLY_END_MARK, behind.enters_at, True, stop), *behind.scan.gaps]
    found.blank, found.end = behind.scan.blank, behind.scan.end
    found.over_record, found.before_record = behind.scan.over_record, behind.scan.before_record
    found.unreadable = [*found.unreadable, *behind.scan.unreadable]
    return True


REACH = 64 << 20


def scan_alone(part: SplitRange, reader: FileReader, reach: int = REACH) -> FileScan:
    """Return the part of a whole file's scan that falls in one split: rows, without keys, and gaps that begin in it.

    The scan starts at the last place before the split that no record or end mark can span, from which every walk goes
    on in the same way. Records of up to `reach` bytes are considered. `Refusal` (8) in a split that has a longer one,
    since the splits after it may be wrong. `ReadFailure` if a required range cannot be read.
    """
    first = scan_split(SplitRange(part.mapped_file, part.file_size, _last_unspanned(part, reader, reach), part.stop),
                       reader=reader, with_keys=False)
    found = first.scan
    if first.open_gap is not None:
        found.gaps.append(first.open_gap)
    while (past := past_mark(found)) is not None and past.start < part.stop:
        past = structs.replace(past, stop=min(past.stop, part.stop))
        if not take_past_mark(found, scan_split(past, reader=reader, with_keys=False)):
            break
    if found.unreadable:
        raise found.unreadable[0]
    low, high = (part.mapped_file.file_from_offset + place for place in (part.start, part.stop))
    found.splits = [
        Split(split.records[slice(*np.searchsorted(split.records["phy_offset"], (low, high)))], split.hashes)
        for split in found.splits
    ]
    found.gaps = [gap for gap in found.gaps if low <= gap.start < high]
    longest = max([0 if found.blank is None else found.file_end - found.blank,
                   *(int(split.records["size"].max(initial=0)) for split in found.splits)])
    if longest > reach and not part.is_last:
        raise Refusal(f"{part.mapped_file.path} has a message or an end mark of {longest} bytes, too long for splits",
                      "Give the size of a log file as the size of a split.")
    return found


_CHUNK = 1 << 20


def _last_unspanned(part: SplitRange, reader: FileReader, reach: int) -> int:
    """Return the last position before a split that no record or end mark of up to `reach` bytes spans; 0 without one.

    Only records that state their own offset count. If the last `reach` bytes do not settle it, all before are read.
    """
    first = part.start - reach - reach // 4
    found = _unspanned_from(first, part, reader) if first > 0 else 0
    return found if first > 0 and found >= first + reach else _unspanned_from(0, part, reader)


def _unspanned_from(first: int, part: SplitRange, reader: FileReader) -> int:
    """Return the last position before a split that nothing which begins between `first` and the split spans."""
    base, room = part.mapped_file.file_from_offset, min(part.mapped_file.length, part.file_size)
    begin, end = [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=np.int64)]
    for start in range(first, part.start, _CHUNK):
        reader.announce(start, part.stop)
        stop = min(_CHUNK, part.start - start)
        data = np.frombuffer(reader.read(start, stop + HEAD_SIZE), dtype=np.uint8)
        mark = end_mark(data, 0, base + start, base + part.file_size)
        heads = own_heads(data, 0, base + start)
        heads = heads[heads < (mark if 0 <= mark < stop else stop)]
        sizes = field_at(data, heads, HEAD, "total_size")
        whole = (sizes >= MIN_RECORD_SIZE) & (sizes <= room - start - heads)
        begin.append(start + heads[whole])
        end.append(begin[-1] + sizes[whole])
        if 0 <= mark < stop:
            begin.append(np.array([start + mark]))
            end.append(np.array([part.file_size]))
            break  # the walk may end there, so the mark counts as spanning the rest of the file
    begins, ends = np.concatenate(begin), np.concatenate(end)
    reach = np.maximum.accumulate(ends)
    if reach[-1] < part.start:
        return max(0, part.start - 1)
    return int(begins[1:][reach[:-1] <= begins[1:]].max(initial=first))


class _Walk:
    """The walk through a file's splits: at a position, in a gap, or over."""

    def __init__(self, part: SplitRange) -> None:
        self.result = FileScan(part.mapped_file, part.file_size)
        self.base = part.mapped_file.file_from_offset
        self.position: int | None = 0
        self.gap: Gap | None = None
        self.needed: list[Again] = []
        self._taken: list[FileScan] = []

    @property
    def is_over(self) -> bool:
        return self.position is None and self.gap is None

    def take(self, scan: SplitScan) -> None:
        """Add a split that the walk enters where the split's own scan began."""
        found = scan.scan
        self.position, self.gap = scan.crossed, None if scan.open_gap is None else structs.replace(scan.open_gap)
        if scan.entry is None:
            # only assumed, as the split is to be rescanned: nothing intact begins in it
            self.gap = Gap(0, 0, "", "file-end", False, 0)
            return
        self._taken.append(found)
        self.result.gaps += found.gaps
        self.result.unreadable += found.unreadable
        self.result.blank, self.result.end = found.blank, found.end
        self.result.over_record, self.result.before_record = found.over_record, found.before_record

    def continue_gap(self, scan: SplitScan) -> None:
        """Continue a gap into this split: it ends at the split's first record, or goes on."""
        assert self.gap is not None
        if scan.entry is None:
            self.gap.last_data = max(self.gap.last_data, scan.last_data)
            self.result.unreadable += scan.scan.unreadable
            return
        stop = self.base + scan.entry
        self.result.gaps.append(structs.replace(self.gap, stop=stop, ended_by=scan.enters_at, last_data=stop))
        self.take(scan)

    def whole(self) -> FileScan:
        """Return the file; a gap that is still open extends to its end."""
        result = self.result
        result.queues = merge_queues(self._taken)
        result.splits = [split for found in self._taken for split in found.splits]
        if self.gap is not None:
            result.gaps.append(structs.replace(self.gap, stop=result.file_end))
            result.end = self.gap.start
        result.unreadable = list({(each.offset, each.wanted): each for each in result.unreadable}.values())
        return result


OpenError = Callable[[MappedFile, OSError], None]
_LEAST = 32 << 20


def parts_of(queue: MappedFileQueue, threads: int) -> list[list[SplitRange]]:
    """Split each file: a split is two thirds of a thread's share of the remaining bytes, so sizes fall towards the end.

    Except near the end, files of a large log stay whole; with a single thread, all do.
    """
    left = sum(min(mapped_file.length, queue.file_size) for mapped_file in queue.files)
    parts = []
    for mapped_file in queue.files:
        whole = splits_of(mapped_file, queue.file_size, WHOLE)
        at, stop = 0, whole[0].stop
        if threads < 2 or stop < 2 * _LEAST:
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


class _AbandonedError(Exception):
    """Raised to stop the scan of a split that is no longer needed."""


def scan_files(
    parts: Sequence[Sequence[SplitRange]], threads: int, *, progress: ProgressCallback | None = None,
    open_error: OpenError | None = None, **how: Any,
) -> list[FileScan]:
    """Return the scans of files given as splits, `threads` splits at a time; files that cannot be opened are left out.

    `progress` is called with the increments since the last call, from any thread; `open_error` with a file that cannot
    be opened; without it the `OSError` is raised. `how`: as for `scan_split`. On an interrupt, running scans are
    abandoned.
    """
    is_over = False

    def report(size: int, records: int) -> None:
        if is_over:
            raise _AbandonedError
        if progress is not None:
            progress(size, records)

    def scan(part: SplitRange) -> SplitScan | OSError | None:
        if is_over:
            return None
        try:
            reader = open_file(part.mapped_file.path)
        except OSError as error:
            return error
        try:
            with reader:
                return scan_split(part, reader=reader, progress=report, **how)
        except _AbandonedError:
            return None

    tasks = [part for each in parts for part in each]
    if min(threads, len(tasks)) < 2:
        found = [*map(scan, tasks)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            try:
                found = [*pool.map(scan, tasks)]
            except BaseException:
                is_over = True
                raise
    scans = iter(found)
    whole = []
    for each in parts:
        own = [next(scans) for _ in each]
        errors = [one for one in own if isinstance(one, OSError)]
        if errors:
            if open_error is None:
                raise errors[0]
            open_error(each[0].mapped_file, errors[0])
            continue
        join = FileJoin([one for one in own if isinstance(one, SplitScan)])
        while isinstance(file := join.join(), list):
            for part, entry in file:
                join.add(scan_split(part, entry, **how))
        whole.append(file)
    return whole
