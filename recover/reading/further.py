"""Further logs: those of a replica, a backup, loose log files or an image, whose records may fill what this log lost.

1. A further log is scanned like any other. Its intact records are candidates for places that no record of this log
   holds: damage, missing files, and what is after the log's end. Bridges that stand for lost records are none.
   Missing files before the first one are such places only if retention cannot have deleted them.
2. It is a witness only if it is the same log. Of each damaged range, the nearest records before and after it that both
   logs hold are compared byte for byte. Logs of one broker part once and never meet again: so a record after the range
   that is the same vouches for all before it, and one that differs denies them.
3. Where both logs have no record after the range, its queues or index must name the messages (`contested.py`).
4. After the log's end nothing vouches for a record: it is taken if a queue or the index names it; or on demand
   (`extend`) if it continues the log without a break, and the last record that both have is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from msgspec import Struct

from formats.record import BLANK_SIZE
from formats.record.rows import BIT_STALE, STAND_IN
from recover.log.file_scan import FileScan
from recover.log.judge import LogReader, is_same_log
from recover.log.scan import LogView
from recover.reading.candidates import AGAINST, CANDIDATE, FOR, Candidates, Dead, Source, dead_in
from recover.store.columns import Rows, Split
from recover.store.mapped_files import MappedFileQueue
from recover.store.source import open_file


class Further(Struct, frozen=True, eq=False):
    """Logs whose records are candidates. `extend`: also what continues the log past its end; `unanchored`: whatever the
    records around the range say."""

    logs: tuple[LogView, ...] = ()
    extend: bool = False
    unanchored: bool = False

    @property
    def reach(self) -> int:
        """The end of the last file that any of them has."""
        return max((scan.file_end for log in self.logs for scan in log.files), default=0)

    def begin(self, log: LogView, retention: int) -> int:
        """Where a log begins with the files before its first one that they have, and that are not older than
        `retention` (ms) before its newest message, by their last one."""
        begin, kept = log.min_offset, log.tally.newest_timestamp - retention
        while any(newest_in(scan) > kept for other in self.logs for scan in other.files if scan.file_end == begin):
            begin -= log.queue.file_size
        return begin


def is_of_log(other: LogView, queue: MappedFileQueue) -> bool:
    """Whether a further log is the same as that of these files, which were not scanned."""
    return any(is_same_log(queue, other.queue, split.records["phy_offset"], split.records["size"])
               for split in other.splits() if split.size and queue.find(split.first) is not None)


def newest_in(scan: FileScan) -> int:
    """The newest store time (ms) in a file, -1 without a record."""
    return max((int(split.records["store_timestamp"].max()) for split in scan.splits if split.size), default=-1)


def dead_within(log: LogView, begin: int, reach: int) -> Dead:
    """The ranges of a log from `begin` to `reach` that hold no live record: those of missing files, too, file by
    file."""
    dead, size = dead_in(log), log.queue.file_size
    missing = [(begin, log.min_offset), *log.queue.missing_ranges(), (log.queue.max_offset, reach)]
    begins = [begin for start, stop in missing for begin in range(start, stop, size)]
    starts = np.concatenate([dead.starts, np.array(begins, dtype=np.int64)])
    stops = np.concatenate([dead.stops, np.array(begins, dtype=np.int64) + size])
    order = np.argsort(starts, kind="stable")
    return Dead(starts[order], stops[order])


def with_further(found: Candidates, further: Further, log: LogView, dead: Dead) -> Candidates:
    """Return the candidates with those of further logs. `OSError` from reading."""
    sources, queues = [*found.sources], {key: number for number, key in enumerate(found.queues)}
    parts = [found.rows]
    with LogReader(log.queue) as reader:
        for other in further.logs:
            parts.append(_Beside(other, log, dead, reader, further).rows(sources, queues))
    return Candidates(sources, np.concatenate(parts), [*queues])


class _Beside:
    """The candidates of one further log, with what the records around each range say of it."""

    def __init__(self, other: LogView, log: LogView, dead: Dead, reader: LogReader, further: Further) -> None:
        self._other, self._log, self._dead, self._reader, self._further = other, log, dead, reader, further
        self._known: dict[tuple[int, int, int], bool | None] = {}

    def rows(self, sources: list[Source], queues: dict[tuple[bytes, int], int]) -> Rows:
        """Return them, ascending by place; their files are added to `sources`, their queues to `queues`."""
        own = np.array([queues.setdefault(key, len(queues)) for key in self._other.queues], dtype=np.int32)
        parts, around = [np.empty(0, dtype=CANDIDATE)], [np.empty(0, dtype=CANDIDATE)]
        for scan, splits in self._near():
            file = scan.mapped_file
            found = np.concatenate([parts[0], *(_candidates(split, own) for split in splits), *_mark(scan)])
            found["position"], found["source"] = found["phy_offset"] - file.file_from_offset, len(sources)
            inside = self._inside(found)
            parts.append(found[inside])
            around.append(found[~inside & (found["queue"] >= 0)])
            if found.size:
                sources.append(Source(file.path, file.length, ()))
        rows, anchors = np.concatenate(parts), np.concatenate(around)
        anchors = anchors[~self._stood_for(anchors)]
        for number in np.unique(self._dead.at(rows["phy_offset"])).tolist():
            here = self._dead.at(rows["phy_offset"]) == number
            rows["beside"][here] = self._says(int(self._dead.starts[number]), anchors, sources)
        if self._further.extend:
            self._continue(rows, anchors, sources)
        return rows

    def _near(self) -> Iterator[tuple[FileScan, list[Split]]]:
        """Yield the splits that may hold candidates, or the records around them, by file: of the rest the rows are not
        asked for."""
        splits = [(scan, split) for scan in self._other.files for split in scan.splits if split.size]
        # where the next split begins, since the last record of this one may be long
        firsts = [*(split.first for _, split in splits), self._further.reach]
        touched = [bool(((self._dead.starts < end) & (self._dead.stops > first)).any())
                   for first, end in pairwise(firsts)]
        wanted = [any(touched[max(0, at - 1) : at + 2]) for at in range(len(splits))]
        for scan in self._other.files:
            yield scan, [split for (own, split), near in zip(splits, wanted, strict=True) if near and own is scan]

    def _inside(self, rows: Rows) -> Rows:
        """Which of them lie within one dead range (bool array)."""
        at = self._dead.at(rows["phy_offset"])
        return np.asarray((at >= 0) & (rows["phy_offset"] + rows["size"] <= np.append(self._dead.stops, 0)[at]))

    def _stood_for(self, rows: Rows) -> Rows:
        """Which of them lie before the log, or where it has a bridge for lost records (bool array): nothing can be said
        of these."""
        log = self._log
        unknown = rows["phy_offset"] < log.min_offset
        for split in (split for split in log.splits(STAND_IN) if log.tally.has_bridge):
            bridge = split.records[(split.records["bits"] & STAND_IN) != 0]
            at = np.searchsorted(bridge["phy_offset"] + bridge["size"], rows["phy_offset"], side="right")
            starts = np.append(bridge["phy_offset"], np.iinfo(np.int64).max)
            unknown |= starts[at] < rows["phy_offset"] + rows["size"]
        return unknown

    def _says(self, start: int, anchors: Rows, sources: Sequence[Source]) -> int:
        """What the records of both logs next to a dead range say of its candidates."""
        if self._further.unanchored:
            return FOR if start < self._log.log_end else 0
        at = int(np.searchsorted(anchors["phy_offset"], start))
        before = self._is_same(anchors[at - 1], sources) if at else None
        behind = self._is_same(anchors[at], sources) if at < anchors.size else None
        if before is False or behind is False:
            return AGAINST
        return FOR if behind else 0

    def _is_same(self, row: np.void, sources: Sequence[Source]) -> bool | None:
        """Whether this log has the same bytes at a record's place; None if they cannot be read."""
        source, position, size = (int(row[name]) for name in ("source", "position", "size"))
        key = (source, position, size)
        if key not in self._known:
            self._known[key] = None
            with suppress(OSError), open_file(sources[source].path) as reader:
                self._known[key] = reader.read(position, size) == self._reader.read(int(row["phy_offset"]), size)
        return self._known[key]

    def _continue(self, rows: Rows, anchors: Rows, sources: Sequence[Source]) -> None:
        """Let the last record that both logs have vouch for those that continue the log without a break."""
        log, size = self._log, self._log.queue.file_size
        at, last = log.log_end, int(np.searchsorted(anchors["phy_offset"], log.log_end))
        if last == 0 or last < anchors.size or not self._is_same(anchors[last - 1], sources):
            return
        if any(scan.blank == at for scan in log.files):
            at += -at % size
        for number in np.flatnonzero(rows["phy_offset"] >= at).tolist():
            if rows["phy_offset"][number] != at:
                return
            rows["beside"][number] = FOR
            at += int(rows["size"][number]) if rows["queue"][number] >= 0 else -at % size


def _candidates(split: Split, own: Rows) -> Rows:
    """The records of a split as candidates; stale ones, and those that stand for lost ones, are none."""
    records = split.records[(split.records["bits"] & (BIT_STALE | STAND_IN)) == 0]
    rows = np.zeros(records.size, dtype=CANDIDATE)
    for name in ("phy_offset", "size", "queue_offset", "store_timestamp"):
        rows[name] = records[name]
    rows["queue"] = own[records["queue"]]
    return rows


def _mark(scan: FileScan) -> Iterator[Rows]:
    """Yield the end mark of a file as a candidate."""
    if scan.blank is not None:
        rows = np.zeros(1, dtype=CANDIDATE)
        rows["phy_offset"], rows["size"], rows["queue"] = scan.blank, BLANK_SIZE, -1
        yield rows


def beyond(rows: Rows, log: LogView) -> int:
    """The number of messages among candidates that were left, after the log's end."""
    return int(((rows["phy_offset"] >= log.log_end) & (rows["queue"] >= 0)).sum())
