"""The mapped files of a log cut into splits, scanned on several threads, and put together to what one walk finds.

A thread a file leaves a core idle where a log has one file or three, and where the last one takes longer. Splits
become smaller towards the end of the log, so that all threads end at nearly the same time.
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

SPLIT_SIZE = 128 << 20


def splits_of(mapped_file: MappedFile, file_size: int, split_size: int = SPLIT_SIZE) -> list[SplitRange]:
    """The file cut into splits of `split_size` bytes; one, possibly empty, for a file without bytes."""
    length = min(mapped_file.length, file_size)
    starts = range(0, max(length, 1), split_size)
    return [SplitRange(mapped_file, file_size, start, min(start + split_size, length)) for start in starts]


def merge_queues(scans: Iterable[FileScan]) -> list[tuple[bytes, int]]:
    """Number the queues of these scans together, in the rows of all; the queues, in the order of their numbers."""
    numbers: dict[tuple[bytes, int], int] = {}
    for scan in scans:
        own = np.array([numbers.setdefault(key, len(numbers)) for key in scan.queues], dtype=np.int32)
        for split in scan.splits:
            split.renumber(own)
    return list(numbers)


def one_split(splits: Iterable[Split]) -> Split:
    """The rows of several splits as those of one."""
    parts = [*splits]
    if len(parts) == 1:
        return parts[0]
    hashes = np.concatenate([np.empty(0, dtype=np.int32), *(part.hashes for part in parts)])
    return Split(joined([part.records for part in parts]), hashes)


Again = tuple[SplitRange, int | None]
"""A split, and the position in its file to enter it at; None for what stands after a doubtful end mark."""


class FileJoin(Struct):
    """The splits of one file, ascending, as they come in."""

    scans: Sequence[SplitScan]
    again: dict[tuple[int, int], SplitScan] = field(default_factory=dict)
    found: FileScan | None = None
    past: SplitRange | None = None

    def add(self, scan: SplitScan) -> None:
        """Take a split that was scanned once more."""
        if scan.part == self.past:
            assert self.found is not None
            self.past = past_mark(self.found) if take_past_mark(self.found, scan) else None
        else:
            assert scan.entry is not None
            self.again[scan.part.start, scan.entry] = scan

    def join(self) -> FileScan | list[Again]:
        """The whole file; or which splits to scan again, and from where, before there can be an answer.

        After a split that is still to be scanned again, the walk is guessed to go on as the first scan of that
        split said. So one round of further scans is nearly always enough.
        """
        if self.found is not None:
            return self.found if self.past is None else [(self.past, None)]
        walk = _Walk(self.scans[0].part)
        for first in self.scans:
            if walk.is_over:
                break
            if walk.gap is not None:
                walk.go_on_in_gap(first)
                continue
            assert walk.position is not None
            if walk.position >= first.part.stop and not first.part.is_last:
                continue  # a record longer than the split
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
"""So many end marks of a file are doubted at most: each takes one more look at what stands after it."""


def past_mark(found: FileScan) -> SplitRange | None:
    """What stands after the end mark of a file, if that may have been written over a record or before others."""
    if found.blank is None or not (found.over_record or found.before_record) or len(found.doubted) == _MOST_MARKS:
        return None
    start = found.blank - found.mapped_file.file_from_offset + BLANK_SIZE
    part = SplitRange(found.mapped_file, found.file_size, start, min(found.mapped_file.length, found.file_size))
    return part if start < part.stop else None


def take_past_mark(found: FileScan, behind: SplitScan) -> bool:
    """Let the file go on after its end mark, if the scan of what stands there found a record or one more such mark.

    What was counted of the file holds no more then. Whether the file goes on.
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
    """What a scan of the whole file finds in one split: rows, without keys, and gaps that begin in it.

    It begins at the last place before the split that no record can reach over: whatever the walk met before, it goes on
    from there in the same way. Records of up to `reach` bytes are thought of. `Refusal` (8) in the split that has a
    longer one: those after it may be wrong. `ReadFailure` where what is looked at cannot be read.
    """
    first = scan_split(SplitRange(part.mapped_file, part.file_size, _last_free(part, reader, reach), part.stop),
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


_LOOK = 1 << 20


def _last_free(part: SplitRange, reader: FileReader, reach: int) -> int:
    """The last position before a split that no record or end mark of up to `reach` bytes reaches over; 0 without one.

    Only what stands in its own place counts. All before the split is looked at where the last bytes do not tell.
    """
    first = part.start - reach - reach // 4
    found = _free_from(first, part, reader) if first > 0 else 0
    return found if first > 0 and found >= first + reach else _free_from(0, part, reader)


def _free_from(first: int, part: SplitRange, reader: FileReader) -> int:
    """The last position before a split that nothing which begins between `first` and it reaches over."""
    base, room = part.mapped_file.file_from_offset, min(part.mapped_file.length, part.file_size)
    begin, end = [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=np.int64)]
    for start in range(first, part.start, _LOOK):
        reader.come_to(start, part.stop)
        stop = min(_LOOK, part.start - start)
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
            break  # the walk may end there: whatever follows is reached over
    begins, ends = np.concatenate(begin), np.concatenate(end)
    reach = np.maximum.accumulate(ends)
    if reach[-1] < part.start:
        return max(0, part.start - 1)
    return int(begins[1:][reach[:-1] <= begins[1:]].max(initial=first))


class _Walk:
    """The walk through a file's splits: at a position, or in a gap, or over."""

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
        """Go through a split that the walk enters where the split's own scan began."""
        found = scan.scan
        self.position, self.gap = scan.crossed, None if scan.open_gap is None else structs.replace(scan.open_gap)
        if scan.entry is None:
            # only a guess of a split that is scanned again comes here: nothing intact begins in it
            self.gap = Gap(0, 0, "", "file-end", False, 0)
            return
        self._taken.append(found)
        self.result.gaps += found.gaps
        self.result.unreadable += found.unreadable
        self.result.blank, self.result.end = found.blank, found.end
        self.result.over_record, self.result.before_record = found.over_record, found.before_record

    def go_on_in_gap(self, scan: SplitScan) -> None:
        """A gap reaches into this split: it ends where the split's first record is, or goes on."""
        assert self.gap is not None
        if scan.entry is None:
            self.gap.last_data = max(self.gap.last_data, scan.last_data)
            self.result.unreadable += scan.scan.unreadable
            return
        stop = self.base + scan.entry
        self.result.gaps.append(structs.replace(self.gap, stop=stop, ended_by=scan.enters_at, last_data=stop))
        self.take(scan)

    def whole(self) -> FileScan:
        """The file; a gap that is still open reaches to its end."""
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
    """Each file in splits: two thirds of what a thread's share of the rest would be, so that they become small.

    Files of a large log are whole but for those at its end, and all where there is no other thread.
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


class _GivenUpError(Exception):
    """Of a split that nobody wants to know any more."""


def scan_files(
    parts: Sequence[Sequence[SplitRange]], threads: int, *, progress: ProgressCallback | None = None,
    open_error: OpenError | None = None, **how: Any,
) -> list[FileScan]:
    """The scans of the files whose splits these are, but of those that cannot be opened; `threads` splits at a time.

    `progress` is called with what was done since the last call, by whoever did it; `open_error` with a file that
    cannot be opened. Without that the `OSError` rises. `how` as for `scan_split`. Whoever is interrupted does not wait
    for what is being scanned.
    """
    is_over = False

    def report(size: int, records: int) -> None:
        if is_over:
            raise _GivenUpError
        if progress is not None:
            progress(size, records)

    def look(part: SplitRange) -> SplitScan | OSError | None:
        if is_over:
            return None
        try:
            reader = FileReader(part.mapped_file.path)
        except OSError as error:
            return error
        try:
            with reader:
                return scan_split(part, reader=reader, progress=report, **how)
        except _GivenUpError:
            return None

    tasks = [part for each in parts for part in each]
    if min(threads, len(tasks)) < 2:
        found = [*map(look, tasks)]
    else:
        with ThreadPoolExecutor(threads) as pool:
            try:
                found = [*pool.map(look, tasks)]
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
