"""Join the scans of a log's files: queue numbers, damage, tail, stale and superseded records; the engines that scan."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field, structs

from formats.native.rows import BITS, FILLERS, FLAGS, LAST_TIME, MARKERS, MESSAGES, NEWEST_TIME, TOTALS, new_tally
from formats.native.walk import crc_name
from formats.record import Record
from formats.record.rows import (
    BIT_FILLER,
    BIT_INNER_BATCH,
    BIT_MARKER,
    BIT_STALE,
    NO_MESSAGE,
    NOT_IN_QUEUE,
    NOT_LIVE,
    STAND_IN,
)
from recover.log.file_scan import FileScan, Gap, ProgressCallback
from recover.log.generations import mark_jumps, mark_stale, mark_superseded
from recover.log.judge import Claim, most_claimed
from recover.log.split_scan import SPLIT_SIZE, OpenError, merge_queues, scan_files, splits_of
from recover.store.columns import DEFAULT_MEMORY, ColumnStore, Foresight, Item, Result, Rows, Split, ask, spread, within
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.memo import Stamp, stamp_of
from recover.store.store import Store

# --- The commitlog as a whole: its files in order, its damage, its end, its stale bytes.


MISSING_FILE = "missing-file"
STALE_RECORDS = "ghosts"
OVERWRITTEN = "overwritten"
"""A whole record of an earlier generation is at a place where units name another message."""
OTHER_LOG = "other-log"
"""A whole file of another log is where units name messages of this one."""
DENIED = frozenset({OVERWRITTEN, OTHER_LOG})
"""Reasons that come from queues: a scan alone finds nothing wrong there."""


class Damage(Struct):
    """Bytes [start, stop) of the log without an intact record although the log goes on after them, or a damaged last
    message. `file` is None for a missing file; `ended_by` is as in `Gap`, or "next-file"."""

    start: int
    stop: int
    reason: str
    intact_after: int
    ended_by: str
    has_frame: bool
    mapped_file: MappedFile | None
    facts: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return {"start": self.start, "stop": self.stop, "reason": self.reason, "intact_after": self.intact_after}


class Tail(Struct):
    """Bytes [start, stop) after the last record of the log that are not all zero, but not a whole message either."""

    start: int
    stop: int
    reason: str
    mapped_file: MappedFile
    facts: dict[str, Any] = field(default_factory=dict)


SEED = int.from_bytes(os.urandom(8)) >> 1
"""Random seed of this process's unit sums, so that no content on disk can be crafted to match a sum."""


class Tally(Struct, frozen=True):
    """Counts over the live rows of a log; stale and superseded records are left out.

    `queues`: one QUEUE_TALLY each (`formats.native.rows.tally_rows`). `bits` and `flags`: those of all rows, ORed.
    Fillers, markers, and the store times (ms) of the last record and the newest also include superseded records.
    """

    queues: Rows
    messages: int
    fillers: int
    markers: int
    last_timestamp: int
    newest_timestamp: int
    bits: int
    flags: int

    @property
    def has_bridge(self) -> bool:
        """Whether the log has records that stand for damage."""
        return self.fillers + self.markers > 0

    @property
    def positions(self) -> Rows:
        """The number of positions of each queue (int64)."""
        return np.asarray(self.queues["positions"])

    @property
    def least(self) -> Rows:
        """The lowest queue offset of each queue (int64)."""
        return np.asarray(self.queues["least"])

    @property
    def most(self) -> Rows:
        """The highest queue offset of each queue (int64), -1 where it has none."""
        return np.asarray(self.queues["most"])

    @property
    def gapped(self) -> Rows:
        """Which queues have fewer positions than their offsets span (bool array); none if the log has records that take
        several.
        """
        if self.bits & BIT_INNER_BATCH:
            return np.zeros(self.positions.size, dtype=np.bool_)
        return np.asarray((self.most >= 0) & (self.most - self.least >= self.positions))


class LogView(Struct):
    """The result of a scan of the whole commitlog. Offsets are physical, in bytes.

    `queues[i]` is the (topic, queue id) that rows name as `queue` i. `valid_to` and `log_end` are as defined in
    docs/commands/verify.md. `tail` is None if only zeros follow the last record. `written`: records of a planned log
    that are not on disk yet, by phy offset. Without `has_keys`, rows have no hashes and tags codes, so queues and index
    cannot be checked.
    """

    queue: MappedFileQueue
    files: list[FileScan]
    queues: list[tuple[bytes, int]]
    min_offset: int
    valid_to: int
    log_end: int
    damaged: list[Damage]
    tail: Tail | None
    stale: int
    superseded: int
    tally: Tally
    written: dict[int, Record] = field(default_factory=dict)
    has_keys: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the log needs no other part to be interpreted: no damage, tail, stale, superseded or planned
        records."""
        return not (self.damaged or self.tail is not None or self.stale or self.superseded or self.written)

    @property
    def blanks(self) -> int:
        """The number of mapped files with a valid end mark."""
        return sum(1 for scan in self.files if scan.blank is not None)

    def splits(self, bits: int = 0) -> Iterator[Split]:
        """Yield all rows in log order, including stale and superseded ones; with `bits`, only the splits in which a row
        may have one of these."""
        for scan in self.files:
            yield from (split for split in scan.splits if not bits or split.has(bits))

    def splits_of(self, numbers: Collection[int]) -> Iterator[Split]:
        """Yield the splits that may have rows of these queues."""
        wanted = np.zeros(len(self.queues), dtype=bool)
        wanted[[*numbers]] = True
        return (split for split in self.splits() if not split.lacks(wanted))

    def rows_of(self, numbers: Collection[int], since: int = 0) -> Iterator[Rows]:
        """Yield the rows of these queues, split by split, that are neither stale nor stand-ins and were stored at
        `since` (ms) or later. No other row comes from elsewhere."""
        for is_here, splits in groupby(self.splits_of(numbers), lambda split: split.is_here):
            while some := [*islice(splits, 1 if is_here else _ASKED_AT_ONCE)]:
                own = [split.numbering(len(self.queues)) for split in some]
                asked = [(split, partial(_rows_of, np.flatnonzero(np.isin(each, [*numbers])), since))
                         for split, each in zip(some, own, strict=True)]
                for numbering, rows in zip(own, ask(asked), strict=True):
                    rows["queue"] = numbering[rows["queue"]]
                    yield rows

    def holds(self, offsets: Rows, sizes: Rows) -> Rows:
        """For each place, whether a record of this size that is not stale starts there, or a stand-in covers it (bool
        array)."""
        found, order = np.zeros(offsets.size, dtype=bool), np.argsort(offsets, kind="stable")
        splits = [split for split in self.splits() if split.size]
        edges = np.searchsorted(offsets[order], [(split.first, split.end) for split in splits]).reshape(-1, 2)
        asked = [(split, order[first:stop]) for split, (first, stop) in zip(splits, edges.tolist(), strict=True)
                 if first < stop]
        answers = ask([(split, partial(_holds, offsets[own], sizes[own])) for split, own in asked])
        for (_, own), answer in zip(asked, answers, strict=True):
            found[own] |= answer
        return found

    def spread(
        self, function: Callable[[Item], Result], items: Sequence[Item], sizes: Sequence[int]
    ) -> list[Result | None] | None:
        """Return what a function says of files, asked where the rows of this log are kept (see `spread`)."""
        return spread(self.splits(), function, items, sizes)

    def live(self) -> Iterator[Split]:
        """Yield the rows in log order without stale and superseded records."""
        if not self.stale and not self.superseded:
            yield from self.splits()
            return
        for split in self.splits():
            if not split.has(NOT_LIVE):
                yield split
                continue
            dead = (split.records["bits"] & NOT_LIVE) != 0
            yield without_rows(split, dead) if dead.any() else split

    def first_bridge_record(self) -> tuple[int, int] | None:
        """Return (phy offset, size) of the log's first bridge marker, else of its first filler, else None."""
        for bit, count in ((BIT_MARKER, self.tally.markers), (BIT_FILLER, self.tally.fillers)):
            for split in (split for split in self.live() if count and split.has(bit)):
                found = split.records[(split.records["bits"] & bit) != 0]
                if found.size:
                    return int(found["phy_offset"][0]), int(found["size"][0])
        return None

    def in_damage(self, offsets: Rows) -> Rows:
        """Which physical offsets are in a damaged range (bool array)."""
        ranges = np.array([(d.start, d.stop) for d in self.damaged], dtype=np.int64).reshape(-1, 2)
        return within(offsets, *ranges.T)


def without_rows(split: Split, drop: Rows) -> Split:
    """Return a split without some of its rows (bool array) and their hashes."""
    keep_hashes = np.repeat(~drop, split.records["hashes"].astype(np.int64))
    return Split(split.records[~drop], split.hashes[keep_hashes] if split.hashes.size else split.hashes)


def kept_rows(split: Split, drop: Rows, columns: ColumnStore) -> Split:
    """Return a copy without some rows (bool array); marks that depend on the others are cleared."""
    left = without_rows(split, drop) if drop.any() else split
    kept = columns.keep(left.records, left.hashes)
    kept.records["bits"] &= np.uint16(~NOT_IN_QUEUE & 0xFFFF)
    return kept


def tally(scans: Iterable[FileScan], queues: int) -> Tally:
    """Count the live rows of these scans, whose rows number `queues` queues."""
    found, counts = new_tally(queues), np.zeros(TOTALS, dtype=np.int64)
    for scan in scans:
        for split in scan.splits:
            split.tally(SEED, found, counts)
    totals = counts.tolist()
    return Tally(
        found, totals[MESSAGES], totals[FILLERS], totals[MARKERS], totals[LAST_TIME], totals[NEWEST_TIME], totals[BITS],
        totals[FLAGS],
    )


def assemble(queue: MappedFileQueue, scans: list[FileScan]) -> LogView:
    """Join the scans of all files, in name order, into the whole log."""
    queues = merge_queues(scans)
    stale = mark_stale(scans, len(queues))
    stale -= sum(map(_weigh_marks, scans))
    superseded, counts = in_order(scans, len(queues))
    min_offset = scans[0].mapped_file.file_from_offset if scans else 0
    last = last_live([split for scan in scans for split in scan.splits])
    log_end = min_offset if last is None else last[1]
    damaged, tail = _damage(scans, log_end, stale > 0)
    behind = _intact_after(scans, [damage.stop for damage in damaged])
    for damage, intact in zip(damaged, behind, strict=True):
        damage.intact_after = intact
    return LogView(
        queue, scans, queues, min_offset, _valid_to(scans, min_offset), log_end, damaged, tail, stale, superseded,
        counts,
    )


def _weigh_marks(scan: FileScan) -> int:
    """Believe the first end mark followed only by stale records, and drop these; return their number."""
    for number, (mark, splits, over_record) in enumerate(scan.doubted):
        behind = [split.records for split in scan.splits[splits:]]
        stale = sum(int(((records["bits"] & BIT_STALE) != 0).sum()) for records in behind)
        claims = [
            Claim("mark", "ends"), Claim("own offset of the record under it", "goes on", over_record),
            Claim("records after it", "goes on", sum(records.size for records in behind) - stale),
        ]
        if most_claimed(claims, "ends") == "ends":
            scan.unweighed = scan.copied(scan.splits)
            scan.splits, scan.doubted = scan.splits[:splits], scan.doubted[:number]
            scan.gaps = [gap for gap in scan.gaps if gap.start < mark]
            scan.blank = scan.end = mark
            return stale
    return 0


def in_order(scans: list[FileScan], queues: int) -> tuple[int, Tally]:
    """Mark rows out of their queues' order; return the number of superseded rows, and the tally."""
    counts = tally(scans, queues)
    superseded = 0
    if counts.queues["fallen"].any():
        superseded = mark_superseded(scans, counts.queues)
        counts = tally(scans, queues)
    if mark_jumps(scans, counts.gapped):
        counts = tally(scans, queues)
    return superseded, counts


def last_live(splits: Sequence[Split]) -> tuple[int, int] | None:
    """Return start and end (phy offsets) of the last record that is not stale; None without one."""
    for split in reversed(splits):
        if not split.is_here:
            return split.last, split.end
        live = np.flatnonzero((split.records["bits"] & BIT_STALE) == 0)
        if live.size:
            last = split.records[live[-1]]
            return int(last["phy_offset"]), int(last["phy_offset"]) + int(last["size"])
    return None


def _intact_after(scans: list[FileScan], places: list[int]) -> list[int]:
    """Return the number of intact messages after each of these ascending offsets, in one pass from the log's end."""
    counts = [0] * len(places)
    total, left = 0, len(places)
    for scan in reversed(scans):
        if not left or scan.file_end <= places[0]:
            break
        for split in reversed(scan.splits):
            inside = bisect_right(places, split.first) if split.size else left
            if not split.is_here and inside >= left:
                total += split.messages
                continue
            offsets = split.records["phy_offset"][(split.records["bits"] & NO_MESSAGE) == 0]
            if inside < left:
                before = np.searchsorted(offsets, places[inside:left])
                counts[inside:left] = (total + offsets.size - before).tolist()
                left = inside
            total += offsets.size
    counts[:left] = [total] * left
    return counts


def _valid_to(scans: list[FileScan], min_offset: int) -> int:
    """Return where the next record would start, walking from the first file without a break."""
    position = before = min_offset
    for scan in scans:
        if scan.mapped_file.file_from_offset != position:
            return before
        first_gap = scan.gaps[0].start if scan.gaps else scan.file_end
        if scan.blank is None or first_gap < scan.blank:
            return first_gap if scan.gaps else scan.end
        before, position = scan.blank, scan.file_end
    return before


def _damage(scans: list[FileScan], log_end: int, stale: bool) -> tuple[list[Damage], Tail | None]:
    """Return the damage, dead ranges before `log_end`, and the tail, what follows it; a whole message is damage there,
    too."""
    damaged: list[Damage] = []
    tail: Tail | None = None
    position = scans[0].mapped_file.file_from_offset if scans else 0
    for scan in scans:
        start = scan.mapped_file.file_from_offset
        if start > position and not open_before(scans, scan, log_end):
            damaged.append(Damage(position, start, MISSING_FILE, 0, "next-file", False, None))
        for dead in dead_ranges(scan, stale=stale):
            if dead.start < log_end:
                damaged.append(_damage_of(scan, dead, dead.stop))
            elif dead.has_frame:
                # the last message is complete but damaged: more than a torn tail
                damaged.append(_damage_of(scan, dead, min(dead.start + dead.facts["size"], dead.stop)))
                tail = tail or _tail_of(scan, dead, dead.start + dead.facts["size"])
            else:
                tail = tail or _tail_of(scan, dead, dead.start)
        position = scan.file_end
    return damaged, tail


def open_before(scans: list[FileScan], far: FileScan, log_end: int) -> bool:
    """Whether the log ends in a file with room left before `far`: then no broker began a file after that one.

    A file that was preallocated and then renamed holds nothing. If the file is full, or damaged after the log's end,
    files may be missing.
    """
    last = next((scan for scan in scans if scan.mapped_file.file_from_offset <= log_end < scan.file_end), None)
    behind = scans if last is None else scans[scans.index(last) + 1:]
    if last is None or far not in behind or last.doubted:
        return False
    return not any(scan.written for scan in behind) and last.blank is None and not any(
        gap.last_data > log_end for gap in last.gaps)


def dead_ranges(scan: FileScan, *, stale: bool = True) -> list[Gap]:
    """Return the gaps of a file merged with adjacent stale records, ascending; only a range of those alone has their
    reason.

    `stale=False`: there are known to be none.
    """
    parts = [*scan.gaps]
    for split in (split for split in scan.splits if stale and split.has(BIT_STALE)):
        for row in split.records[(split.records["bits"] & BIT_STALE) != 0]:
            start, stop = int(row["phy_offset"]), int(row["phy_offset"] + row["size"])
            parts.append(Gap(start, stop, STALE_RECORDS, "record", False, stop))
    merged: list[Gap] = []
    for part in sorted(parts, key=lambda p: p.start):
        if merged and merged[-1].stop >= part.start:
            last = merged[-1]
            merged[-1] = structs.replace(
                last, stop=max(last.stop, part.stop), ended_by=part.ended_by,
                last_data=max(last.last_data, part.last_data),
            )
        else:
            merged.append(part)
    return merged


_ASKED_AT_ONCE = 512


def _rows_of(numbers: Rows, since: int, split: Split) -> Rows:
    rows = split.records
    return rows[np.isin(rows["queue"], numbers) & (rows["store_timestamp"] >= since)
                & ((rows["bits"] & (BIT_STALE | STAND_IN)) == 0)]


def _holds(offsets: Rows, sizes: Rows, split: Split) -> Rows:
    rows = split.records[(split.records["bits"] & BIT_STALE) == 0]
    if not rows.size:
        return np.zeros(offsets.size, dtype=bool)
    at = np.searchsorted(rows["phy_offset"], offsets, side="right") - 1
    before = rows[np.maximum(at, 0)]
    same = (before["phy_offset"] == offsets) & (before["size"] == sizes)
    stands_in = ((before["bits"] & STAND_IN) != 0) & (offsets < before["phy_offset"] + before["size"])
    return np.asarray((at >= 0) & (same | stands_in))


def _damage_of(scan: FileScan, gap: Gap, stop: int) -> Damage:
    at = gap.start - scan.mapped_file.file_from_offset
    unread = any(failure.offset <= at < failure.offset + failure.wanted for failure in scan.unreadable)
    # what is not read counts as zeros, and nobody knows what it is
    reason = "unreadable" if unread else gap.reason
    return Damage(gap.start, stop, reason, 0, gap.ended_by, gap.has_frame, scan.mapped_file, dict(gap.facts))


def _tail_of(scan: FileScan, gap: Gap, start: int) -> Tail | None:
    if gap.last_data <= start:
        return None
    return Tail(start, gap.last_data, gap.reason, scan.mapped_file, dict(gap.facts))


# --- Engines that scan the log: local threads or a cluster. They answer the same questions, byte for byte. -----------


class Engine(Protocol):
    """An implementation that scans a whole commitlog."""

    def scan_log(
        self, queue: MappedFileQueue, *, memory: int = DEFAULT_MEMORY, progress: ProgressCallback | None = None,
        open_error: OpenError | None = None, with_keys: bool = True,
        foresight: Callable[[], Foresight] | None = None,
    ) -> LogView:
        """Scan every file; at most `memory` bytes of columns stay in memory.

        A file that cannot be opened is passed to `open_error` and counts as missing; without a callback the `OSError`
        is raised. `progress(bytes, records)` is called with the increments since the last call. `with_keys=False`:
        hashes and tags codes may be left out, as only the log is checked; the log's `has_keys` tells. `foresight` is
        called for what to ask of splits whose rows will not be here.
        """

    def producer(self, store: Store, log: LogView) -> Any:
        """Return the `recover.derived.expected.Producer` of the files derived from a log that this engine scanned; None
        if this process builds them."""

    def confirm(self) -> None:
        """Raise `Refusal` (8) if this process sees other bytes of the log than its scans were made of."""

    def json(self) -> dict[str, Any]:
        """Return the `engine` object of the documents."""


_LEAST_SPLIT = 32 << 20
_SPLITS_A_THREAD = 4
"""With fewer, a thread that takes the last split would leave the others idle for long."""


class LocalEngine(Struct, frozen=True):
    """Threads of this process, each scanning one split at a time."""

    threads: int = 1

    def scan_log(
        self, queue: MappedFileQueue, *, memory: int = DEFAULT_MEMORY, with_keys: bool = True, foresight: object = None,
        **how: Any,
    ) -> LogView:
        """See `Engine`; `how` as for `scan_files`."""
        share = sum(mapped_file.length for mapped_file in queue.files) // (_SPLITS_A_THREAD * self.threads)
        size = min(max(share, _LEAST_SPLIT), SPLIT_SIZE)
        parts = [splits_of(mapped_file, queue.file_size, size) for mapped_file in queue.files]
        log = assemble(queue, scan_files(parts, self.threads, columns=ColumnStore(memory), with_keys=with_keys, **how))
        log.has_keys = with_keys
        return log

    def producer(self, store: Store, log: LogView) -> None:
        """Build nothing elsewhere."""

    def confirm(self) -> None:
        """Do nothing: this process did the scan."""

    def json(self) -> dict[str, Any]:
        return {"name": "local", "threads": self.threads, "crc": crc_name()}


Stamps = dict[Path, Stamp | None]


def stamps_of(queue: MappedFileQueue) -> Stamps:
    """Return the stamps of a log's files by path, None for files that are gone."""
    return {mapped_file.path.absolute(): stamp_of(mapped_file.path) for mapped_file in queue.files}


class KnownLog(Struct, frozen=True):
    """An earlier scan of a log, and the stamps of its files, taken before that scan."""

    log: LogView
    stamps: Stamps

    def holds(self, queue: MappedFileQueue, *, with_keys: bool = True) -> bool:
        """Whether a new scan would find the same: no file has changed, and the log is plain.

        Other logs are scanned again: the meaning of damage, tail and old records depends on the queues.
        """
        log = self.log
        if not log.is_plain or (with_keys and not log.has_keys):
            return False
        if (log.queue.odd, log.queue.duplicates) != (queue.odd, queue.duplicates):
            return False
        scanned = [scan.mapped_file.path for scan in log.files]
        return scanned == [mapped_file.path for mapped_file in queue.files] and stamps_of(queue) == self.stamps
