"""A log from another: what an accepted explanation makes of rows and ranges.

Rows of a log never change once it is assembled: every other belief about the same bytes is another log, made here and
nowhere else. What stays as it is shares its rows with the log before.

1. Displaced records are laid over their place, and the files concerned are scanned again (`recover.reading.placed`).
2. Ranges that hold something else than the log's records become gaps, and the records in them are set aside; or the log
   goes on over a gap. Or a plan fills gaps, drops files, and cuts. Then damage, end and order of the whole log are
   found again (`assemble`).
3. Records that an edit corrects take the place of the stored ones, and the queues' order is found again.
4. Rows are labelled: superseded, misnumbered, or neither.
5. Ranges after the end are noted as damage, or what lies after an old end is none.

A plan that is judged by the brokers' own rules alone gets no new judgement here: `Rewritten` only leaves rows out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct, structs

from formats.record import Record
from formats.record.rows import BIT_MISNUMBERED, BIT_STALE, BIT_SUPERSEDED, row_of
from recover.log.file_scan import FileScan, Gap
from recover.log.scan import Damage, LogView, Tail, assemble, in_order, kept_rows, tally
from recover.reading.edits import Edit
from recover.reading.placed import Placed, with_placed
from recover.store.columns import ColumnStore, Rows, Split, within
from recover.store.mapped_files import MappedFile, MappedFileQueue


class Relabel(Struct, frozen=True, eq=False):
    """The rows of the records at these physical offsets (int64) gain some bits and lose others."""

    starts: Rows
    gains: int = 0
    loses: int = 0


class Struck(Struct, frozen=True):
    """A gap takes the place of intact records; `whole`: of all of a file, so that its end mark does not count."""

    gap: Gap
    whole: bool = False


class GoesOn(Struct, frozen=True):
    """The log goes on over this gap: what follows it is not older."""

    gap: Gap


class Noted(Struct, frozen=True):
    """A range after the end of the log is damage."""

    damage: Damage


class OldEnd(Struct, frozen=True):
    """From this physical offset on the log holds old records only, and nothing there is damage."""

    start: int


class Replaced(Struct, frozen=True):
    """A dead range [start, stop) of one file will hold `records`; `blank` is where its end mark will stand."""

    mapped_file: MappedFile
    start: int
    stop: int
    records: tuple[Record, ...]
    blank: int | None = None


class Dropped(Struct, frozen=True):
    """A file will be removed."""

    path: str


class Cut(Struct, frozen=True):
    """All that a plan leaves: from this physical offset on everything is zero, all files have full length, and nothing
    is older than what precedes it."""

    start: int


class Rewritten(Struct, frozen=True):
    """A file will have other bytes in these `ranges` (physical offsets, ascending), and is found at `now`. Records that
    touch them are unknown, and nothing is judged again: so a broker's own check finds them."""

    mapped_file: MappedFile
    now: MappedFile
    ranges: tuple[tuple[int, int], ...]


Becomes = Placed | Relabel | Struck | GoesOn | Edit | Noted | OldEnd | Replaced | Dropped | Cut | Rewritten
Kind = TypeVar("Kind", bound=Becomes)


def accepting(log: LogView, found: Sequence[Becomes], *, memory: int) -> LogView:
    """Return the log as it is with what was found; the given one stays as it is.

    Copied rows take at most `memory` bytes of memory.
    """
    made = _Next(structs.replace(log), found, ColumnStore(memory))
    made.place()
    made.strike()
    made.plan()
    made.rewrite()
    made.edit()
    made.label()
    made.note()
    return made.log


class _Next:
    """The log that is made, step by step; each step does nothing if nothing of its kind was found."""

    def __init__(self, log: LogView, found: Sequence[Becomes], columns: ColumnStore) -> None:
        self.log, self._found, self._columns = log, found, columns

    def _of(self, kind: type[Kind]) -> list[Kind]:
        return [one for one in self._found if isinstance(one, kind)]

    def place(self) -> None:
        """Lay displaced records over their place."""
        if runs := self._of(Placed):
            self.log = with_placed(self.log, runs, self._columns)

    def strike(self) -> None:
        """Let gaps take the place of records, or the log go on over gaps."""
        log, struck, over = self.log, self._of(Struck), [one.gap for one in self._of(GoesOn)]
        if struck or over:
            # without these records an end mark may no longer be believed
            scans = [_struck(scan.unweighed or scan, struck, over, self._columns) for scan in log.files]
            for scan in scans:
                scan.queues = log.queues
            self.log = structs.replace(assemble(log.queue, scans), written=log.written, has_keys=log.has_keys)

    def plan(self) -> None:
        """Fill ranges, drop files, and cut: the log that a plan leaves."""
        for cut in self._of(Cut):
            dropped, by_file = {one.path for one in self._of(Dropped)}, defaultdict[MappedFile, list[Replaced]](list)
            for change in self._of(Replaced):
                by_file[change.mapped_file].append(change)
            log, queues = self.log, [*self.log.queues]
            numbers = {key: number for number, key in enumerate(queues)}
            new = by_file.keys() - {scan.mapped_file for scan in log.files}
            all_scans = [*log.files, *(FileScan(mapped_file, log.queue.file_size) for mapped_file in new)]
            scans = [
                _planned(scan, by_file[scan.mapped_file], cut.start, numbers, queues, self._columns)
                for scan in sorted(all_scans, key=lambda item: item.mapped_file.file_from_offset)
                if str(scan.mapped_file.path) not in dropped
            ]
            for scan in scans:
                scan.queues = queues
            files = [scan.mapped_file for scan in scans]
            self.log = assemble(MappedFileQueue(log.queue.directories, log.queue.file_size, files), scans)
            self.log.written = log.written | {
                record.phy_offset: record for own in by_file.values() for change in own for record in change.records}
            self.log.has_keys = log.has_keys

    def rewrite(self) -> None:
        """Leave out records that will be written over, or whose file goes."""
        changed = {one.mapped_file: one for one in self._of(Rewritten)}
        gone = {one.path for one in self._of(Dropped)}
        if (changed or gone) and not self._of(Cut):
            self.log.files = [
                _rewritten(scan, changed[scan.mapped_file]) if scan.mapped_file in changed else scan
                for scan in self.log.files if str(scan.mapped_file.path) not in gone
            ]

    def edit(self) -> None:
        """Put corrected records in place of the stored ones."""
        log, edits = self.log, self._of(Edit)
        if edits:
            log.queues, right = _numbered(log.queues, edits)
            log.files = [scan.copied(_edited(scan.splits, right, self._columns)) for scan in log.files]
            log.written = log.written | {edit.start: edit.record for edit in edits}
            log.superseded, log.tally = in_order(log.files, len(log.queues))

    def label(self) -> None:
        """Label rows."""
        log, labels = self.log, self._of(Relabel)
        if labels:
            log.files = [
                structs.replace(scan, splits=[_labelled(split, labels, self._columns) for split in scan.splits])
                for scan in log.files
            ]
            log.tally = tally(log.files, len(log.queues))
            log.superseded = sum(int(((split.records["bits"] & BIT_SUPERSEDED) != 0).sum())
                                 for split in log.splits(BIT_SUPERSEDED))

    def note(self) -> None:
        """Note damage after the end, and none after an old end."""
        log = self.log
        for noted in self._of(Noted):
            log.tail = _left_of(log.tail, noted.damage)
            log.damaged = sorted([*log.damaged, noted.damage], key=lambda damage: damage.start)
        for end in self._of(OldEnd):
            log.damaged = [damage for damage in log.damaged if damage.start < end.start]


def _rewritten(scan: FileScan, change: Rewritten) -> FileScan:
    """Return the scan with the records alone that lie between the ranges."""
    kept = FileScan(change.now, scan.file_size)
    starts, stops = np.array([*change.ranges, (scan.file_end, scan.file_end)], dtype=np.int64).T
    for split in scan.splits:
        rows = split.records
        # the first range that ends after a record begins must not begin before the record ends
        following = np.minimum(np.searchsorted(stops, rows["phy_offset"], side="right"), stops.size - 1)
        kept.splits.append(Split(rows[rows["phy_offset"] + rows["size"] <= starts[following]], split.hashes[:0]))
    kept.queues = scan.queues
    return kept


def _struck(scan: FileScan, struck: Iterable[Struck], over: Collection[Gap], columns: ColumnStore) -> FileScan:
    """Return a copy of the scan with these gaps; marks of its rows that depend on the rest of the log are cleared."""
    base = scan.mapped_file.file_from_offset
    own = sorted((one for one in struck if base <= one.gap.start < scan.file_end), key=lambda one: one.gap.start)
    whole = [one for one in own if one.whole]
    own = whole or own
    begins, ends = np.array([(one.gap.start, one.gap.stop) for one in own], dtype=np.int64).reshape(-1, 2).T
    kept, aside = [], []
    for split in scan.splits:
        if split.is_unaffected(begins, ends):
            kept.append(split.again())
            continue
        inside = within(split.records["phy_offset"], begins, ends)
        kept.append(kept_rows(split, inside, columns))
        aside.append(Split(split.records[inside], split.hashes[:0]))
    copy = scan.copied(kept)
    if whole:
        copy.blank, copy.end, copy.doubted = None, base, []
    left = [structs.replace(gap, bridged_by_units=gap.bridged_by_units or gap in over)
            for gap in scan.gaps if not whole]
    copy.gaps = sorted([*left, *(one.gap for one in own)], key=lambda gap: gap.start)
    copy.set_aside = [*scan.set_aside, *(aside if own else ())]
    return copy


_Right = dict[int, tuple[Rows, Rows]]
"""Row and key hashes of each corrected record, by its physical offset."""


def _numbered(queues: list[tuple[bytes, int]], edits: Iterable[Edit]) -> tuple[list[tuple[bytes, int]], _Right]:
    """Return the queues with those that only corrected records name, and the rows of these records."""
    queues = [*queues]
    numbers = {key: number for number, key in enumerate(queues)}
    right = {}
    for edit in edits:
        key = edit.record.topic, edit.record.queue_id
        if numbers.setdefault(key, len(queues)) == len(queues):
            queues.append(key)
        right[edit.start] = row_of(edit.record, numbers[key])
    return queues, right


def _edited(splits: Iterable[Split], right: _Right, columns: ColumnStore) -> list[Split]:
    starts = np.array([*right], dtype=np.int64)
    return [split.again() if split.is_unaffected(starts, starts + 1) else _with_rows(split, right, columns)
            for split in splits]


def _with_rows(split: Split, right: _Right, columns: ColumnStore) -> Split:
    rows, hashes = np.array(split.records), np.array(split.hashes)
    rows["bits"] &= np.uint16(~(BIT_MISNUMBERED | BIT_SUPERSEDED) & 0xFFFF)
    ends = np.cumsum(rows["hashes"].astype(np.int64))
    for at in np.flatnonzero(np.isin(rows["phy_offset"], [*right])).tolist():
        row, keys = right[int(rows["phy_offset"][at])]
        count = int(rows["hashes"][at])
        if keys.size == count:
            hashes[ends[at] - count : ends[at]] = keys
        row["hashes"] = count
        rows[at] = row[0]
    return columns.keep(rows, hashes)


def _labelled(split: Split, labels: Iterable[Relabel], columns: ColumnStore) -> Split:
    """Return the split with these labels on a copy of its rows; itself if it has none of them."""
    first, last = (split.first, split.last) if split.size else (0, -1)
    own = [(label, part) for label in labels
           if (part := label.starts[(label.starts >= first) & (label.starts <= last)]).size]
    if not own:
        return split
    source = split.again()
    copy = columns.keep(source.records, source.hashes)
    for label, part in own:
        at, bits = np.searchsorted(copy.records["phy_offset"], part), copy.records["bits"]
        bits[at] = (bits[at] & np.uint16(~label.loses & 0xFFFF)) | np.uint16(label.gains)
    return copy


def _left_of(tail: Tail | None, damage: Damage) -> Tail | None:
    """Return what is left of the tail after a damage."""
    if tail is None or tail.mapped_file != damage.mapped_file or not damage.start <= tail.start < damage.stop:
        return tail
    rest = Tail(damage.stop, tail.stop, tail.reason, tail.mapped_file)
    return rest if damage.stop < tail.stop else None


# --- The log that a plan leaves.


def _planned(
    scan: FileScan, own: list[Replaced], cut_from: int, numbers: dict[tuple[bytes, int], int],
    queues: list[tuple[bytes, int]], columns: ColumnStore,
) -> FileScan:
    """Return the scan of a file after a plan; queues that only new records name are added to `numbers` and `queues`."""
    ranges = sorted((change.start, change.stop) for change in own)
    starts, stops = np.maximum.accumulate(np.array(ranges, dtype=np.int64).reshape(-1, 2)).T
    new_rows = [_rows_of(change, numbers, queues) for change in own if change.records]
    splits = list(_insert(_left(scan.splits, starts, stops, cut_from, columns), new_rows))
    filled = within(np.array([gap.start for gap in scan.gaps], dtype=np.int64), starts, stops).tolist()
    return _changed_scan(scan, own, filled, splits, cut_from)


def _changed_scan(
    scan: FileScan, changes: list[Replaced], filled: list[bool], splits: list[Split], cut_from: int
) -> FileScan:
    """Return the scan of a file after a plan; `filled`: which of its gaps are."""
    gaps = [
        gap for gap, is_filled in zip(scan.gaps, filled, strict=True) if gap.start < cut_from and not is_filled
    ]
    blank = scan.blank
    for change in changes:
        if change.blank is not None:
            blank = change.blank
    base = scan.mapped_file.file_from_offset
    if blank is not None and blank >= cut_from:
        blank = None
    end = blank if blank is not None else min(max(cut_from, base), scan.file_end)
    if blank is None and end < scan.file_end:
        gaps.append(Gap(end, scan.file_end, "zeroed", "file-end", False, end))
    changed = FileScan(structs.replace(scan.mapped_file, length=scan.file_size), scan.file_size)
    # of several gaps with the same start, keep the first
    distinct = {gap.start: gap for gap in reversed(gaps)}
    changed.splits, changed.queues, changed.gaps = splits, scan.queues, [distinct[start] for start in sorted(distinct)]
    changed.blank, changed.end = blank, end
    return changed


def _rows_of(change: Replaced, numbers: dict[tuple[bytes, int], int], queues: list[tuple[bytes, int]]) -> Split:
    rows, hashes = [], []
    for record in sorted(change.records, key=lambda record: record.phy_offset):
        key = (record.topic, record.queue_id)
        number = numbers.setdefault(key, len(numbers))
        if number == len(queues):
            queues.append(key)
        row, keys = row_of(record, number)
        rows.append(row)
        hashes.append(keys)
    return Split(np.concatenate(rows), np.concatenate(hashes))


def _left(
    splits: Iterable[Split], starts: Rows, stops: Rows, cut_from: int, columns: ColumnStore
) -> Iterator[Split]:
    """Copies of the splits without stale and replaced records and those that end after the cut, and without marks that
    `kept_rows` recomputes."""
    for split in splits:
        if split.is_unaffected(starts, stops) and split.end <= cut_from:
            yield split.again()
            continue
        rows = split.records
        goes = ((rows["bits"] & BIT_STALE) != 0) | (rows["phy_offset"] + rows["size"] > cut_from)
        yield kept_rows(split, goes | within(rows["phy_offset"], starts, stops), columns)


def _insert(splits: Iterable[Split], new: list[Split]) -> Iterator[Split]:
    """Splits in log order with the new ones inserted; the rows of a new one are adjacent in the log."""
    waiting = deque(sorted(new, key=lambda split: split.first))
    for split in splits:
        while waiting and split.size and waiting[0].first <= split.last:
            if waiting[0].first > split.first:
                at = int(np.searchsorted(split.records["phy_offset"], waiting[0].first))
                head, split = _divide(split, at)
                yield head
            yield waiting.popleft()
        yield split
    yield from waiting


def _divide(split: Split, at: int) -> tuple[Split, Split]:
    hashes = int(split.records["hashes"][:at].astype(np.int64).sum())
    return Split(split.records[:at], split.hashes[:hashes]), Split(split.records[at:], split.hashes[hashes:])
