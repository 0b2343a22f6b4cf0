"""Scan the mapped files of a log in splits on several threads, and join these to the result of one walk.

One thread a file would leave cores idle if a log has few files, or if the last one takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from msgspec import structs

from formats.record import BLANK_SIZE, HEAD, HEAD_SIZE, MIN_RECORD_SIZE
from recover.findings.code import Refusal
from recover.findings.model import Phrase
from recover.log.file_scan import (
    EARLY_END_MARK,
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
from recover.store.columns import Split, joined, together
from recover.store.mapped_files import MappedFile
from recover.store.reader import FileReader

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


OpenError = Callable[[MappedFile, OSError], None]
Again = tuple[SplitRange, int | None]
"""A split to rescan, and the position in its file to start at; None for the part after a doubtful end mark."""


def join_file(scans: Sequence[SplitScan | OSError]) -> Generator[Sequence[Again], list[SplitScan | OSError], FileScan]:
    """Return the whole file whose splits were scanned, ascending; yields the splits to rescan, with their entries.

    After a split that awaits its rescan, the walk is assumed to go on as in the split's first scan, so one round of
    rescans is nearly always enough. The first error among the scans is raised.
    """
    firsts = [*map(_opened, scans)]
    rescans: dict[Again, SplitScan] = {}
    while True:
        walk = _Walk(firsts[0].part)
        for first in firsts:
            if walk.is_over:
                break
            if walk.gap is not None:
                walk.continue_gap(first)
                continue
            assert walk.position is not None
            if walk.position >= first.part.stop and not first.part.is_last:
                continue  # inside a record that is longer than the split
            scan = first if first.entry == walk.position else rescans.get((first.part, walk.position))
            if scan is None:
                walk.needed.append((first.part, walk.position))
                scan = first
            walk.take(scan)
        if not walk.needed:
            break
        rescans |= zip(walk.needed, map(_opened, (yield walk.needed)), strict=True)
    found = walk.whole()
    while (past := past_mark(found)) is not None:
        (behind,) = map(_opened, (yield [(past, None)]))
        if not take_past_mark(found, behind):
            break
    return found


def _opened(scan: SplitScan | OSError) -> SplitScan:
    if isinstance(scan, OSError):
        raise scan
    return scan


def join_files(
    parts: Sequence[Sequence[SplitRange]], scans: Iterable[SplitScan | OSError],
    rescan: Callable[[list[Again]], Sequence[SplitScan | OSError]], open_error: OpenError | None,
) -> list[FileScan]:
    """Return the whole files that were given as splits; `scans` are those of the splits, in this order.

    A split that could not be opened has an error instead of a scan: its file is passed to `open_error` and left out;
    without a callback the error is raised.
    """
    each = iter(scans)
    whole = []
    joined = together([join_file([next(each) for _ in own]) for own in parts], rescan)
    for own, found in zip(parts, joined, strict=True):
        if isinstance(found, FileScan):
            whole.append(found)
        elif open_error is None:
            raise found
        else:
            open_error(own[0].mapped_file, found)
    return whole


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
    if longest > reach and not part.is_last and not part.at_border:
        raise Refusal(Phrase("{path} has a message or an end mark of {longest} bytes, too long for splits",
                             path=part.mapped_file.path, longest=longest),
                      "Give the size of a log file as the size of a split.")
    return found


_CHUNK = 1 << 20


def _last_unspanned(part: SplitRange, reader: FileReader, reach: int) -> int:
    """Return the last position before a split that no record or end mark of up to `reach` bytes spans; 0 without one.

    Only records that state their own offset count. If the last `reach` bytes do not settle it, all before are read.
    """
    if part.at_border:
        return part.start
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


class _AbandonedError(Exception):
    """Raised to stop the scan of a split that is no longer needed."""


def scan_files(
    parts: Sequence[Sequence[SplitRange]], threads: int, *, progress: ProgressCallback | None = None,
    open_error: OpenError | None = None, **how: Any,
) -> list[FileScan]:
    """Return the scans of files given as splits, `threads` splits at a time; `open_error` as for `join_files`.

    `progress` is called with the increments since the last call, from any thread. `how`: as for `scan_split`. On an
    interrupt, running scans are abandoned.
    """
    is_over = False

    def report(size: int, records: int) -> None:
        if is_over:
            raise _AbandonedError
        if progress is not None:
            progress(size, records)

    def scan(part: SplitRange) -> SplitScan | OSError:
        try:
            reader = part.mapped_file.open()
        except OSError as error:
            return error
        with reader:
            return scan_split(part, reader=reader, progress=report, **how)

    tasks = [part for own in parts for part in own]
    if min(threads, len(tasks)) < 2:
        found = [*map(scan, tasks)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            try:
                found = [*pool.map(scan, tasks)]
            except BaseException:
                is_over = True
                raise
    return join_files(parts, found, lambda again: [scan_split(part, entry, **how) for part, entry in again], open_error)
