"""What executors keep of a scan, so that files are made from it without reading the log again.

Each kept split is the element of a persisted RDD; an executor that is lost takes its part along, and that is scanned
again. The log that files are made for need not be the one that was scanned: damage in it may be mended by then. So each
split of such a log is traced to rows of a kept one, and what cannot be traced is sent along.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct, field

from formats.record_columns import NO_PLACE, RECORD
from recover.memory.columns import Rows, Split
from recover.scan.log import LogView
from recover.spark.packing import PackedSplit, unpack_rows

_TRACED = tuple(name for name in RECORD.names or () if name not in ("queue", "bits"))


class KeptPiece(Struct, frozen=True):
    """Split `number` of a log as rows [start, stop) of a kept split, where rows `changed` have other `bits`."""

    number: int
    start: int
    stop: int
    changed: Rows
    bits: Rows


class Sources(Struct):
    """Where the rows of a log are: pieces of kept splits by their task, and splits that have to be sent."""

    pieces: dict[int, list[KeptPiece]] = field(default_factory=dict)
    sent: list[tuple[int, Split]] = field(default_factory=list)


class Kept(Struct):
    """The persisted RDDs of one scan, and which split of the log came from which task, ascending by phy offset."""

    rdds: list[Any] = field(default_factory=list)
    _noted: dict[int, tuple[Split, int]] = field(default_factory=dict)
    _splits: list[tuple[Split, int]] = field(default_factory=list)
    _count: int = 0

    def tasks(self, count: int) -> int:
        """The first number of so many tasks."""
        self._count += count
        return self._count - count

    def note(self, split: Split, task: int) -> None:
        """This split came from that task."""
        self._noted[id(split)] = split, task

    def settle(self, log: LogView) -> None:
        """The log that was put together from the noted splits."""
        self._splits = [self._noted[id(split)] for split in _with_rows(log) if id(split) in self._noted]
        self._noted = {}
        self._splits.sort(key=lambda item: int(item[0].records["phy_offset"][0]))

    def forget(self) -> None:
        """Let executors drop what they keep."""
        for rdd in self.rdds:
            with suppress(Exception):  # a Spark that is gone keeps nothing
                rdd.unpersist()
        self.rdds, self._noted, self._splits, self._count = [], {}, [], 0

    def sources(self, log: LogView) -> Sources:
        """Where the rows of a log are; splits are numbered in its order, those without rows left out."""
        found = Sources()
        firsts = np.array([int(split.records["phy_offset"][0]) for split, _ in self._splits], dtype=np.int64)
        for number, split in enumerate(_with_rows(log)):
            at = int(np.searchsorted(firsts, int(split.records["phy_offset"][0]), side="right")) - 1
            piece = _traced(number, split, self._splits[at][0]) if at >= 0 else None
            if piece is None:
                found.sent.append((number, split))
            else:
                found.pieces.setdefault(self._splits[at][1], []).append(piece)
        return found


def _with_rows(log: LogView) -> Iterator[Split]:
    return (split for split in log.splits() if split.records.size)


def _traced(number: int, split: Split, kept: Split) -> KeptPiece | None:
    """The split as a piece of a kept one; None when it is not."""
    records, others = split.records, kept.records
    start = int(np.searchsorted(others["phy_offset"], int(records["phy_offset"][0])))
    stop = start + records.size
    if split is not kept:
        part = others[start:stop]
        if part.size != records.size or any((records[name] != part[name]).any() for name in _TRACED):
            return None
        if ((records["bits"] ^ part["bits"]) & ~np.uint16(NO_PLACE)).any():
            return None
        first = int(kept.records["hashes"][:start].astype(np.int64).sum())
        if not np.array_equal(split.hashes, kept.hashes[first : first + split.hashes.size]):
            return None
    changed = np.flatnonzero((records["bits"] & NO_PLACE) != 0).astype(np.int32)
    return KeptPiece(number, start, stop, changed, records["bits"][changed])


def rows_of(packed: PackedSplit, pieces: list[KeptPiece], queues: dict[tuple[bytes, int], int]) -> Iterator[
    tuple[int, Split]
]:
    """On an executor: the splits of the log that are pieces of this one, queues numbered as the log does."""
    records, hashes = unpack_rows(packed.columns), np.frombuffer(packed.hashes, dtype="<i4")
    mapping = np.array([queues.get(key, -1) for key in packed.queues], dtype=np.int32)
    records["queue"] = mapping[records["queue"]] if mapping.size else records["queue"]
    ends = np.cumsum(records["hashes"], dtype=np.int64)
    if pieces and pieces[-1].stop > records.size:
        raise RuntimeError("the log changed while files were made from it")
    for piece in pieces:
        part = records[piece.start : piece.stop]
        if piece.changed.size:
            part = part.copy()
            part["bits"][piece.changed] = piece.bits
        first = int(ends[piece.start - 1]) if piece.start else 0
        yield piece.number, Split(part, hashes[first : int(ends[piece.stop - 1])])
