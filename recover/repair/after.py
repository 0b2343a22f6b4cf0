"""The log as it will be: what a survey of the store would see once a plan has changed it.

Derived files are judged against this view, so what the plan rebuilds is exactly what the changed
log asks for, and the proof afterwards is an ordinary verify.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import Struct, structs

from formats.record import Record
from formats.record.rows import BIT_STALE, row_of
from recover.broker.settings import DelayTable
from recover.check.config import ConfigReport, check_config
from recover.check.report import VerifyReport
from recover.check.survey import Survey
from recover.derived.checkpoint import CheckpointReport, check_checkpoint
from recover.derived.expected import expect
from recover.derived.index_check import IndexReport, check_index
from recover.derived.queue_check import check_consumequeue
from recover.log.file_scan import FileScan, Gap
from recover.log.scan import LogView, assemble, kept_rows
from recover.store.columns import DEFAULT_MEMORY, ColumnStore, Rows, Split, within
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.store import Store

Within = Callable[[Rows], Rows]
"""Which of some physical offsets lie in the ranges of a file that are replaced (bool array)."""


class Replaced(Struct, frozen=True):
    """A dead range [start, stop) of one file that will hold `records`; `blank` is where its end mark will stand."""

    mapped_file: MappedFile
    start: int
    stop: int
    records: tuple[Record, ...]
    blank: int | None = None


def after_replacing(
    log: LogView, changes: Sequence[Replaced], *, cut_from: int, drop_files: Iterable[str] = (),
    memory: int = DEFAULT_MEMORY,
) -> LogView:
    """The log with dead ranges replaced, everything from `cut_from` on zeroed, and some files gone or new.

    Files in `drop_files` (paths) vanish; every other file has its full length. At most `memory` bytes of its columns
    are in memory.
    """
    columns = ColumnStore(memory)
    dropped = set(drop_files)
    queues = list(log.queues)
    numbers = {key: number for number, key in enumerate(queues)}
    scans = []
    known = {scan.mapped_file for scan in log.files}
    new = {change.mapped_file for change in changes} - known
    all_scans = [*log.files, *(FileScan(mapped_file, log.queue.file_size) for mapped_file in new)]
    for scan in sorted(all_scans, key=lambda item: item.mapped_file.file_from_offset):
        if str(scan.mapped_file.path) in dropped:
            continue
        own = [change for change in changes if change.mapped_file == scan.mapped_file]
        ranges = sorted((change.start, change.stop) for change in own)
        starts, stops = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
        replaced = partial(within, starts=starts, stops=np.maximum.accumulate(stops))
        new_rows = [_rows(change, numbers, queues) for change in own if change.records]
        splits = list(_cut(_insert(_live(scan.splits, own, replaced, columns), new_rows), cut_from))
        scans.append(_changed_scan(scan, own, replaced, splits, cut_from))
    for scan in scans:
        scan.queues = queues
    files = [scan.mapped_file for scan in scans]
    view = assemble(MappedFileQueue(log.queue.directories, log.queue.file_size, files), scans)
    view.written = log.written | {record.phy_offset: record for change in changes for record in change.records}
    return view


def _changed_scan(
    scan: FileScan, changes: list[Replaced], replaced: Within, splits: list[Split], cut_from: int
) -> FileScan:
    filled = replaced(np.array([gap.start for gap in scan.gaps], dtype=np.int64)).tolist()
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
    # of several that begin at one place the first
    distinct = {gap.start: gap for gap in reversed(gaps)}
    changed.splits, changed.queues, changed.gaps = splits, scan.queues, [distinct[start] for start in sorted(distinct)]
    changed.blank, changed.blank_size = blank, 0 if blank is None else scan.file_end - blank
    changed.end = end
    return changed


def _rows(change: Replaced, numbers: dict[tuple[bytes, int], int], queues: list[tuple[bytes, int]]) -> Split:
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


def _live(
    splits: Iterable[Split], changes: list[Replaced], replaced: Within, columns: ColumnStore
) -> Iterator[Split]:
    """Copies without stale and replaced records, and without marks that are found again in what is left."""
    for split in splits:
        end = 0 if split.summary is None else split.summary.end
        if end and not any(change.start < end and change.stop > split.first for change in changes):
            yield split.again()
            continue
        stale = (split.records["bits"] & BIT_STALE) != 0
        yield kept_rows(split, stale | replaced(split.records["phy_offset"]), columns)


def _insert(splits: Iterable[Split], new: list[Split]) -> Iterator[Split]:
    """Splits in log order with new ones put where they belong; nothing else stands between the rows of one of them."""
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


def _cut(splits: Iterable[Split], cut_from: int) -> Iterator[Split]:
    for split in splits:
        if split.summary is not None and split.summary.end <= cut_from:
            yield split
            continue
        ends = split.records["phy_offset"] + split.records["size"]
        keep = int(np.searchsorted(ends, cut_from, side="right"))
        if keep == split.records.size:
            yield split
        else:
            yield _divide(split, keep)[0]


def judge_against(
    store: Store, before: VerifyReport, after: LogView, *, rewritten: bool
) -> tuple[Survey, IndexReport, CheckpointReport, ConfigReport]:
    """The survey with the log `after` and its queues, and index, checkpoint and config judged against that log.

    `rewritten`: records changed. What `before` says of the files holds as long as the log asks the same.
    """
    look = before.survey
    same = not rewritten and _says_the_same(look.log, after)
    if same and before.index and before.checkpoint and before.config:
        return structs.replace(look, log=after), before.index, before.checkpoint, before.config
    delays = DelayTable(look.delays.levels)
    delays.observed = dict(look.delays.observed)
    expectation = expect(after, look.topics, include_deleted=look.options.include_deleted)
    queues = None if look.queues is None else check_consumequeue(
        store, after, expectation, delays, tick=look.options.tick
    )
    then = structs.replace(look, log=after, expectation=expectation, delays=delays, queues=queues)
    return then, check_index(store, after), check_checkpoint(store, after), check_config(store, then)


def _says_the_same(before: LogView, after: LogView) -> bool:
    """True if everything in the log is the same that derived files are judged by."""
    if before.stale:
        return False
    same = ("min_offset", "log_end", "messages", "superseded", "fillers", "markers", "newest_timestamp")
    return all(getattr(before, name) == getattr(after, name) for name in same) and _damage(before) == _damage(after)


def _damage(log: LogView) -> list[tuple[int, int]]:
    return [(damage.start, damage.stop) for damage in log.damaged]
