"""The commitlog as one piece: its files in order, its damage, its end, its stale bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field

from formats.commitlog import Record
from formats.record_columns import BIT_FILLER, BIT_MARKER, STALE
from recover.files.mapped_files import MappedFile, MappedFileQueue
from recover.memory.columns import Rows, Split
from recover.scan.file_scan import FileScan
from recover.scan.tally import Counter, Tally

MISSING_FILE = "missing-file"
GHOSTS = "ghosts"
OVERWRITTEN = "overwritten"
"""A whole record of an earlier life of the log stands where units name another message."""
OTHER_LOG = "other-log"
"""A whole file of another log stands where units name this log's messages."""
DENIED = frozenset({OVERWRITTEN, OTHER_LOG})
"""Reasons that queues give: a scan alone finds nothing wrong there."""


class Damage(Struct):
    """Bytes [start, stop) of the log that hold no intact record although the log goes on after them, or a
    damaged last message. `file` is None for a missing file; `ended_by` is as in `Hole`, or "next-file"."""

    start: int
    stop: int
    reason: str
    intact_after: int
    ended_by: str
    envelope: bool
    mapped_file: MappedFile | None
    facts: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """The keys that the reports show."""
        return {"start": self.start, "stop": self.stop, "reason": self.reason, "intact_after": self.intact_after}


class Tail(Struct):
    """Bytes [start, stop) after the last record of the log that are not all zero, but no whole message either."""

    start: int
    stop: int
    reason: str
    mapped_file: MappedFile
    facts: dict[str, Any] = field(default_factory=dict)


class LogView(Struct):
    """What a scan of the whole commitlog found. Offsets are physical, in bytes.

    `queues[i]` is the (topic, queue id) that rows name as `queue` i. `valid_to` and `log_end` are
    as docs/commands/verify.md defines them. `tail` is None when only zeros follow the last record.
    `written` holds, by phy offset, the records of a planned log that the disk does not have yet. Rows of a scan
    without `has_keys` have no hashes and no tags codes: queues and index cannot be judged by it.
    """

    queue: MappedFileQueue
    files: list[FileScan]
    queues: list[tuple[bytes, int]]
    min_offset: int
    valid_to: int
    log_end: int
    damaged: list[Damage]
    tail: Tail | None
    ghosts: int
    superseded: int
    tally: Tally
    written: dict[int, Record] = field(default_factory=dict)
    has_keys: bool = True

    @property
    def messages(self) -> int:
        """Live records that are messages."""
        return self.tally.messages

    @property
    def fillers(self) -> int:
        """Records that fill a damaged range."""
        return self.tally.fillers

    @property
    def markers(self) -> int:
        """Records that stand for a lost message."""
        return self.tally.markers

    @property
    def last_timestamp(self) -> int:
        """Store timestamp (ms) of the last record."""
        return self.tally.last_timestamp

    @property
    def newest_timestamp(self) -> int:
        """The highest store timestamp (ms)."""
        return self.tally.newest_timestamp

    @property
    def blanks(self) -> int:
        """End marks of mapped files that fit."""
        return sum(1 for scan in self.files if scan.blank is not None)

    def splits(self) -> Iterator[Split]:
        """All rows in log order, ghosts and superseded ones included (see the bits)."""
        for scan in self.files:
            yield from scan.splits

    def live(self) -> Iterator[Split]:
        """Rows in log order without ghosts and superseded records."""
        if not self.ghosts and not self.superseded:
            yield from self.splits()
            return
        for split in self.splits():
            stale = (split.records["bits"] & STALE) != 0
            yield _without(split, stale) if stale.any() else split

    def stand_in(self) -> tuple[int, int] | None:
        """(phy offset, size) of the first marker of a bridge, of the first filler where there is no marker, or None."""
        for bit, count in ((BIT_MARKER, self.markers), (BIT_FILLER, self.fillers)):
            for split in self.live() if count else ():
                found = split.records[(split.records["bits"] & bit) != 0]
                if found.size:
                    return int(found["phy_offset"][0]), int(found["size"][0])
        return None

    def in_damage(self, offsets: Rows) -> Rows:
        """For each physical offset, whether it lies in a damaged range (bool array)."""
        if not self.damaged:
            return np.zeros(offsets.shape, dtype=bool)
        starts = np.array([d.start for d in self.damaged])
        stops = np.array([d.stop for d in self.damaged])
        at = np.searchsorted(starts, offsets, side="right") - 1
        return np.asarray((at >= 0) & (offsets < stops[np.maximum(at, 0)]))


def _without(split: Split, drop: Rows) -> Split:
    keep_hashes = np.repeat(~drop, split.records["hashes"].astype(np.int64))
    return Split(split.records[~drop], split.hashes[keep_hashes])


def tally(scans: Iterable[FileScan], queues: int) -> Tally:
    """Count the rows of these scans, whose rows number `queues` queues."""
    counter = Counter(queues)
    for scan in scans:
        for split in scan.splits:
            counter.add(split.records, queues)
    return counter.result(queues)
