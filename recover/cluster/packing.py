"""What a task sends home: one scanned split, its columns as compressed Arrow."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from formats.record.rows import NOT_IN_QUEUE, RECORD
from recover.cluster.views import Seen
from recover.log.file_scan import FileScan, Hole, SplitRange, SplitScan
from recover.log.scan import LogView
from recover.log.split_scan import one_split
from recover.store.columns import ColumnStore, Rows, Split
from recover.store.reader import ReadFailure

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class Unopened(Struct, frozen=True):
    """A file that a task could not open, and on which host."""

    number: int
    text: str
    host: str

    @classmethod
    def of(cls, error: OSError) -> Unopened:
        """The error as a value: it is no failure of the task."""
        return cls(error.errno or 0, error.strerror or str(error), socket.gethostname())

    def error(self, path: os.PathLike[str]) -> OSError:
        """The error again, about the path as the driver knows it."""
        return OSError(self.number, self.text, str(path))


class PackedSplit(Struct, frozen=True):
    """One split without what the driver knows: file and range. `columns` and `hashes` are Arrow IPC and int32 bytes.

    `seen` is what was read for it.
    """

    columns: bytes
    hashes: bytes
    queues: list[tuple[bytes, int]]
    holes: list[Hole]
    blank: int | None
    blank_size: int
    end: int
    entry: int | None
    enters_at: str
    crossed: int | None
    open_hole: Hole | None
    last_data: int
    over_record: bool
    unreadable: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    seen: Seen = field(default_factory=lambda: Seen({}))


def pack(scan: SplitScan, seen: Seen) -> PackedSplit:
    """The split as a task returns it."""
    found, rows = scan.scan, one_split(scan.scan.splits)
    return PackedSplit(
        pack_rows(rows.records), rows.hashes.tobytes(), found.queues, found.holes, found.blank, found.blank_size,
        found.end, scan.entry, scan.enters_at, scan.crossed, scan.open_hole, scan.last_data, found.over_record,
        [(f.offset, f.wanted, f.got, f.errno or 0, f.strerror or "") for f in found.unreadable], seen,
    )


def unpack(packed: PackedSplit, part: SplitRange, store: ColumnStore) -> SplitScan:
    """The split as a scan on this machine would have left it; its rows are kept in `store`."""
    found = FileScan(part.mapped_file, part.file_size)
    records = unpack_rows(packed.columns, RECORD)
    if records.size:
        found.splits.append(store.keep(records, np.frombuffer(packed.hashes, dtype="<i4")))
    found.queues, found.holes, found.end = packed.queues, packed.holes, packed.end
    found.blank, found.blank_size, found.over_record = packed.blank, packed.blank_size, packed.over_record
    for offset, wanted, got, number, text in packed.unreadable:
        found.unreadable.append(ReadFailure(part.mapped_file.path, offset, wanted, got, OSError(number, text)))
    return SplitScan(
        part, found, packed.entry, packed.enters_at, packed.crossed, packed.open_hole, packed.last_data
    )


def pack_rows(rows: Rows) -> bytes:
    """Rows of integers as one Arrow IPC stream: a column each, differences from row to row as narrow as they fit."""
    names = rows.dtype.names or ()
    batch = pa.record_batch({
        name: _array(_narrow(np.diff(rows[name].astype(np.int64), prepend=0))) for name in names
    })
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def unpack_rows(content: bytes, dtype: np.dtype[Any]) -> Rows:
    """The reverse of `pack_rows`; fields that were not packed are 0."""
    batch = pa.ipc.open_stream(content).read_next_batch()
    rows = np.zeros(batch.num_rows, dtype=dtype)
    for name in batch.schema.names:
        rows[name] = np.cumsum(_values(batch.column(name)), dtype=np.int64)
    return rows


def _array(values: Rows) -> Any:
    """Arrow's array of numbers; made by its own hands it imports pandas first, which takes a second."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, buffer])


def _values(array: Any) -> Rows:
    """The numbers of an array without nulls; for the reason given above not by Arrow's own hands."""
    content = array.buffers()[1]
    kind = np.dtype(str(array.type))
    if content is None:
        return np.empty(0, dtype=kind)
    return np.frombuffer(content, dtype=kind, count=len(array), offset=array.offset * kind.itemsize)


def _narrow(values: Rows) -> Rows:
    """The values as the smallest signed integers that hold all of them."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    kinds = (np.int8, np.int16, np.int32)
    return values.astype(next((kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max),
                              np.int64))


# --- What executors keep of a scan, so that files are made from it without reading the log again.
#
# Each kept split is the element of a persisted RDD; an executor that is lost takes its part along, and that is
# scanned
# again. The log that files are made for need not be the one that was scanned: damage in it may be mended by then. So
# each
# split of such a log is traced to rows of a kept one, and what cannot be traced is sent along.


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
    digests: dict[int, int] = field(default_factory=dict)
    """What each task read: one that runs again for an executor that was lost has to read the same."""
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
        self.rdds, self.digests, self._noted, self._splits, self._count = [], {}, {}, [], 0

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
        if ((records["bits"] ^ part["bits"]) & ~np.uint16(NOT_IN_QUEUE)).any():
            return None
        first = int(kept.records["hashes"][:start].astype(np.int64).sum())
        if not np.array_equal(split.hashes, kept.hashes[first : first + split.hashes.size]):
            return None
    changed = np.flatnonzero((records["bits"] & NOT_IN_QUEUE) != 0).astype(np.int32)
    return KeptPiece(number, start, stop, changed, records["bits"][changed])


def rows_of(packed: PackedSplit, pieces: list[KeptPiece], queues: dict[tuple[bytes, int], int]) -> Iterator[
    tuple[int, Split]
]:
    """On an executor: the splits of the log that are pieces of this one, queues numbered as the log does."""
    records, hashes = unpack_rows(packed.columns, RECORD), np.frombuffer(packed.hashes, dtype="<i4")
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
