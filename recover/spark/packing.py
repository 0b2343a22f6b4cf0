"""What a task sends home: one scanned split, its columns as compressed Arrow."""

from __future__ import annotations

import os
import socket
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field, structs

from formats.record_columns import RECORD
from recover.crc import crc32c
from recover.files.reader import FileReader, ReadFailure
from recover.memory.columns import ColumnStore, Rows
from recover.scan.file_scan import FileScan, Hole
from recover.scan.split_scan import SplitRange, SplitScan, one_split

_COLUMNS = pa.schema([(name, pa.from_numpy_dtype(RECORD[name])) for name in RECORD.names or ()])
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


_HEAD = 64
_BORDER = 4096


class Identity(Struct, frozen=True):
    """What tells two views of a file apart: size, mtime (s), head, and CRC-32C of 4 KiB at both borders of a split.

    `host` is who looked.
    """

    host: str
    size: int
    mtime: int
    head: bytes
    borders: tuple[int, int]

    @classmethod
    def of(cls, part: SplitRange) -> Identity:
        """As this process sees the file now. `OSError`."""
        status = os.stat(part.mapped_file.path)
        with FileReader(part.mapped_file.path) as reader:
            borders = [reader.read(max(0, at), _BORDER) for at in (part.start, part.stop - _BORDER)]
            return cls(socket.gethostname(), status.st_size, int(status.st_mtime), reader.read(0, _HEAD),
                       (crc32c(borders[0]), crc32c(borders[1])))

    def is_same(self, other: Identity) -> bool:
        """Whether both are views of one file."""
        return structs.replace(self, host="") == structs.replace(other, host="")


class PackedSplit(Struct, frozen=True):
    """One split without what the driver knows: file and range. `columns` and `hashes` are Arrow IPC and int32 bytes.

    `identity` says which file was read, None for one of an object store.
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
    identity: Identity | None = None


def pack(scan: SplitScan, identity: Identity | None = None) -> PackedSplit:
    """The split as a task returns it."""
    found, rows = scan.scan, one_split(scan.scan.splits)
    return PackedSplit(
        pack_rows(rows.records), rows.hashes.tobytes(), found.queues, found.holes, found.blank, found.blank_size,
        found.end, scan.entry, scan.enters_at, scan.crossed, scan.open_hole, scan.last_data, found.over_record,
        [(f.offset, f.wanted, f.got, f.errno or 0, f.strerror or "") for f in found.unreadable], identity,
    )


def unpack(packed: PackedSplit, part: SplitRange, store: ColumnStore) -> SplitScan:
    """The split as a scan on this machine would have left it; its rows are kept in `store`."""
    found = FileScan(part.mapped_file, part.file_size)
    records = unpack_rows(packed.columns)
    if records.size:
        found.splits.append(store.keep(records, np.frombuffer(packed.hashes, dtype="<i4")))
    found.queues, found.holes, found.end = packed.queues, packed.holes, packed.end
    found.blank, found.blank_size, found.over_record = packed.blank, packed.blank_size, packed.over_record
    for offset, wanted, got, number, text in packed.unreadable:
        found.unreadable.append(ReadFailure(part.mapped_file.path, offset, wanted, got, OSError(number, text)))
    return SplitScan(
        part, found, packed.entry, packed.enters_at, packed.crossed, packed.open_hole, packed.last_data
    )


def pack_rows(records: Rows) -> bytes:
    """RECORD rows as one Arrow IPC stream, a column each."""
    columns = [_array(records[name]) for name in RECORD.names or ()]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _COLUMNS, options=_OPTIONS) as writer:
        writer.write_batch(pa.record_batch(columns, schema=_COLUMNS))
    return bytes(sink.getvalue().to_pybytes())


def unpack_rows(content: bytes) -> Rows:
    """The reverse of `pack_rows`: dtype RECORD."""
    batch = pa.ipc.open_stream(content).read_next_batch()
    records = np.empty(batch.num_rows, dtype=RECORD)
    for name in RECORD.names or ():
        records[name] = _values(batch.column(name))
    return records


def pack_numbers(columns: dict[str, Rows]) -> bytes:
    """Integer columns of one length as an Arrow IPC stream: differences from row to row, as narrow as they fit."""
    arrays = {name: _array(_narrow(np.diff(column.astype(np.int64), prepend=0))) for name, column in columns.items()}
    batch = pa.record_batch(arrays)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def unpack_numbers(content: bytes) -> dict[str, Rows]:
    """The reverse of `pack_numbers`: int64 columns."""
    batch = pa.ipc.open_stream(content).read_next_batch()
    return {name: np.cumsum(_values(batch.column(name)), dtype=np.int64) for name in batch.schema.names}


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
