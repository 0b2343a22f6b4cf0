"""What a task makes of a split: a summary, which goes home, and its rows as compressed Arrow, which executors keep."""

from __future__ import annotations

import os
import pickle
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from formats.native.rows import TOTALS, new_tally, tally_rows
from formats.record.rows import QUEUE_TALLY, RECORD
from recover.cluster.views import Seen
from recover.derived.index_keys import key_counts
from recover.log.file_scan import FileScan, Gap, SplitRange, SplitScan
from recover.log.split_scan import one_split
from recover.store.columns import Holder, Rows, Split, Summary
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
    """One split without its rows, and without what the driver knows: file and range.

    `summary` without its queues, which are `tally` (packed QUEUE_TALLY). `seen` is what was read for it.
    """

    summary: Summary | None
    tally: bytes
    queues: list[tuple[bytes, int]]
    gaps: list[Gap]
    blank: int | None
    blank_size: int
    end: int
    entry: int | None
    enters_at: str
    crossed: int | None
    open_gap: Gap | None
    last_data: int
    over_record: bool
    unreadable: list[tuple[int, int, int, int, str]]
    seen: Seen


Element = tuple[int, bytes, bytes]
"""What executors keep of a task: its number, a `PackedSplit` or `Unopened`, and the rows (`pack_split`). Both are
packed: who passes them on needs nothing of ours."""


def pack(scan: SplitScan, seen: Seen, seed: int) -> tuple[bytes, bytes]:
    """The split as a task returns it; sums of units are taken with `seed`."""
    found, rows = scan.scan, one_split(scan.scan.splits)
    summary, tally = None, new_tally(len(found.queues))
    if records := rows.records.size:
        first, last = rows.records[0], rows.records[-1]
        totals = np.zeros(TOTALS, dtype=np.int64)
        tally_rows(np.asarray(rows.records), seed, tally, totals)
        summary = Summary(
            records, int(first["phy_offset"]), int(last["phy_offset"]), int(last["phy_offset"]) + int(last["size"]),
            int(rows.hashes.size), key_counts(rows), tally[:0], totals,
        )
    packed = PackedSplit(
        summary, pack_rows(tally), found.queues, found.gaps, found.blank, found.blank_size, found.end, scan.entry,
        scan.enters_at, scan.crossed, scan.open_gap, scan.last_data, found.over_record,
        [(f.offset, f.wanted, f.got, f.errno or 0, f.strerror or "") for f in found.unreadable], seen,
    )
    return packed_home(packed), pickle.dumps((pack_rows(rows.records), rows.hashes.tobytes()))


def packed_home(answer: PackedSplit | Unopened) -> bytes:
    """What goes home of a task."""
    return zlib.compress(pickle.dumps(answer), 1)


def unpacked_home(content: bytes) -> PackedSplit | Unopened:
    """The reverse of `packed_home`."""
    answer: PackedSplit | Unopened = pickle.loads(zlib.decompress(content))
    return answer


def unpack(packed: PackedSplit, part: SplitRange, holder: Holder) -> SplitScan:
    """The split as a scan on this machine would have left it, but for its rows, which `holder` has."""
    found = FileScan(part.mapped_file, part.file_size)
    if packed.summary is not None:
        summary = structs.replace(packed.summary, queues=unpack_rows(packed.tally, QUEUE_TALLY))
        found.splits.append(Split.elsewhere(summary, holder))
    found.queues, found.gaps, found.end = packed.queues, packed.gaps, packed.end
    found.blank, found.blank_size, found.over_record = packed.blank, packed.blank_size, packed.over_record
    for offset, wanted, got, number, text in packed.unreadable:
        found.unreadable.append(ReadFailure(part.mapped_file.path, offset, wanted, got, OSError(number, text)))
    return SplitScan(
        part, found, packed.entry, packed.enters_at, packed.crossed, packed.open_gap, packed.last_data
    )


def unpack_split(content: bytes) -> tuple[Rows, Rows]:
    """The rows of a split and their hashes, as its scan numbered the queues."""
    columns, hashes = pickle.loads(content)
    return unpack_rows(columns, RECORD), np.frombuffer(hashes, dtype="<i4")


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


class KeptPiece(Struct, frozen=True):
    """Split `number` of a log as rows [start, stop) of a kept split, where rows `changed` have other `bits`."""

    number: int
    start: int
    stop: int
    changed: Rows
    bits: Rows


def rows_of(
    packed: PackedSplit, rows: bytes, pieces: list[KeptPiece], queues: dict[tuple[bytes, int], int]
) -> Iterator[tuple[int, Split]]:
    """On an executor: the splits of the log that are pieces of this one, queues numbered as the log does."""
    records, hashes = unpack_split(rows)
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
