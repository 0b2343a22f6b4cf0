"""On executors: packed chunks of queues and of index files on their way, and the files that come of them.

Nothing here imports pyspark. What a queue shall hold is decided by `recover.derived.queues`, how an index file
looks by `recover.derived.index_rebuild`: the code that builds them without Spark, with rows that came by a shuffle.
"""

from __future__ import annotations

import os
import pickle
import socket
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats.index import IndexGeometry
from formats.native.index import TAKE_ALL
from formats.native.rows import group_rows
from formats.record.rows import EXPECTED, RECORD
from recover.change import disk
from recover.change.content import BytesContent, Spool
from recover.change.model import Install, Step
from recover.cluster.splits import pack_rows, unpack_rows
from recover.cluster.views import Seen
from recover.derived.expected import QueueKey
from recover.derived.index_keys import IndexStream, KeyPart, TagHistory
from recover.derived.index_rebuild import FileHead, image_of
from recover.derived.queues import QueueBuilder, fresh_files, repaired_steps
from recover.store.columns import Rows, Split
from recover.store.derived_files import ExtFiles, QueueFiles
from recover.store.reading import Piece, in_order
from recover.store.store import Store

# --- On executors: files put into a staging folder. What went wrong is a value.


_MODE = 0o600

Wanted = tuple[Any, Iterable[Piece]]
"""Which content, and its bytes in any order."""


class Staged(Struct, frozen=True):
    """A line of the manifest: what is in `file`, of that length in bytes and CRC-32C."""

    name: str
    file: str
    size: int
    crc32c: int


class NotStaged(Struct, frozen=True):
    """A file that could not be written, where, and why. `no_folder`: that host does not see the staging folder."""

    host: str
    path: str
    number: int
    text: str
    no_folder: bool


class Stager(Struct, frozen=True):
    """Writes those contents that have a name into `folder`. `sync`: on this host, for nobody else can."""

    folder: str
    names: dict[Any, str]
    sync: bool

    def __call__(self, contents: Iterable[Wanted]) -> Iterator[Staged | NotStaged]:
        """A line for each file that was wanted; the first that fails ends the task."""
        for key, pieces in contents:
            name = self.names.get(key)
            if name is None:
                continue
            # Each try has a file of its own, and only what comes home is used. A Python worker whose executor died
            # takes the end of its input for the end of the data, and goes on to write what came of that.
            path = Path(self.folder, f"{name}.{uuid.uuid4().hex}")
            try:
                size, crc = disk.create_from_pieces(path, pieces, _MODE, sync=self.sync)
            except OSError as error:
                path.unlink(missing_ok=True)
                yield NotStaged(socket.gethostname(), str(path), error.errno or 0, error.strerror or str(error),
                                not os.path.isdir(self.folder))
                return
            yield Staged(name, path.name, size, crc)


Listing = tuple[tuple[str, int], ...]
Chunk = tuple[int, tuple[int, bytes]]
"""Which group of queues, or which index file; number of the split in log order, and its packed rows."""


class QueueChunks(Struct, frozen=True):
    """Packs the positions that a split fills. `groups`: the group of each queue of the log, -1 for none."""

    groups: Rows

    def __call__(self, number: int, split: Split) -> Iterator[Chunk]:
        """A chunk for each group that the split has rows for."""
        records = np.ascontiguousarray(split.records)
        wanted = self.groups >= 0
        stops = np.cumsum(np.where(wanted, np.bincount(records["queue"], minlength=wanted.size), 0))
        starts = np.r_[0, stops[:-1]]
        places, rows = starts.copy(), np.empty(int(stops[-1]) if stops.size else 0, dtype=EXPECTED)
        fits = group_rows(records, wanted, places, stops, rows)
        assert fits, "every row has room"
        filled = np.flatnonzero(places > starts)
        for group in np.unique(self.groups[filled]).tolist():
            queues = filled[self.groups[filled] == group]
            parts = [rows[starts[queue] : places[queue]] for queue in queues.tolist()]
            yield int(group), (number, pack_rows(np.concatenate(parts)))


def _positions(chunks: Iterable[tuple[int, bytes]]) -> Rows:
    """The rows of all chunks, in log order within each queue; the queues ascending."""
    parts = [unpack_rows(content, EXPECTED) for _, content in sorted(chunks)]
    rows = np.concatenate([np.empty(0, dtype=EXPECTED), *parts])
    return np.asarray(rows[np.argsort(rows["queue"], kind="stable")])


class Product(Struct, frozen=True):
    """One `step` for one queue, or a whole `file`: `data` and zeros up to `size`, and the CRC-32C of that.

    A product without either says how many positions the queue has: `size`.
    """

    queue: int
    number: int
    step: Step | None = None
    file: str = ""
    data: bytes = b""
    allocated: int = 0
    size: int = 0
    crc32c: int = 0

    @property
    def content(self) -> BytesContent:
        return BytesContent(self.data, self.size - len(self.data))


class OtherView(Struct, frozen=True):
    """A host that sees other files of a queue than the driver: it has no such mount."""

    host: str
    folder: str


def announced(product: Product | OtherView | Seen) -> Product | OtherView | Seen:
    """The product without its bytes."""
    return structs.replace(product, data=b"") if isinstance(product, Product) else product


def contents(rdd: int, products: Iterable[Product | OtherView | Seen]) -> Iterator[Wanted]:
    """Whole files among the products of one RDD, as a stager takes them."""
    for product in products:
        if isinstance(product, Product) and product.file:
            yield (rdd, product.queue, product.number), in_order(product.content.chunks())


class _Carrier(Spool):
    """Hands contents on instead of keeping them."""

    def keep(self, data: np.ndarray[Any, Any]) -> bytes:
        return data.tobytes()


class QueueFilesTask(Struct, frozen=True):
    """Makes the files of the queues of one group. `keys`: the queue of each number of the log.

    `listed`: what the driver sees of the files of a queue, where that has to be compared.
    """

    builder: QueueBuilder
    keys: list[QueueKey]
    fresh: bool
    listed: dict[QueueKey, Listing]

    def __call__(self, chunks: Iterable[Chunk]) -> Iterator[Product | OtherView]:
        """The steps of each queue, in their order, and how many positions it has."""
        rows = _positions(chunk for _, chunk in chunks)
        cuts = np.flatnonzero(np.diff(rows["queue"])) + 1
        for part in np.split(rows, cuts) if rows.size else ():
            if not (np.diff(part["queue_offset"]) > 0).all():
                part = part[np.lexsort((part["phy_offset"], part["queue_offset"]))]
            queue = int(part["queue"][0])
            key = self.keys[queue]
            if key in self.listed and self.listed[key] != listing(self.builder.store, key):
                yield OtherView(socket.gethostname(), str(self.builder.store.consumequeue_dir / key.topic))
                return
            yield Product(queue, -1, size=part.size)
            for number, step in enumerate(self._steps(key, part)):
                content = step.content
                if isinstance(step, Install) and isinstance(content, BytesContent):
                    yield Product(queue, number, None, step.file, bytes(content.data), len(content.data), content.size,
                                  content.crc32c)
                else:
                    yield Product(queue, number, step)

    def _steps(self, key: QueueKey, rows: Rows) -> Iterator[Step]:
        carrier = _Carrier()
        if not self.fresh:
            yield from repaired_steps(self.builder, key, rows, carrier)
            return
        for name, content, size in fresh_files(self.builder.store, self.builder.fresh(key, rows)):
            yield Install(name, carrier.padded(content, size))


def listing(store: Store, key: QueueKey) -> Listing:
    """Names and lengths of the files of a queue and of its ext files, as this host sees them."""
    queues = (QueueFiles(store, key.topic, key.queue_id), ExtFiles(store, key.topic, key.queue_id))
    return tuple((file.name, file.length) for queue in queues for file in queue.mapped_files.files)


class IndexChunks(Struct, frozen=True):
    """Packs the keys of a split for the files that they go to.

    `spans`: for each split the numbers of files, and from which to before which of the split's keys each takes.
    """

    spans: dict[int, list[tuple[int, int, int]]]
    tags: TagHistory

    def __call__(self, number: int, split: Split) -> Iterator[Chunk]:
        """A chunk for each file that takes keys of the split."""
        spans = self.spans.get(number)
        if not spans:
            return
        stream = IndexStream([split])
        stream.tags = self.tags
        rows, places = np.repeat(np.arange(split.size), stream.wanted(0)), stream.asked(0)
        for file, start, stop in spans:
            own, counts = np.unique(rows[start:stop], return_counts=True)
            keys = split.records[own]
            keys["hashes"] = counts
            packed = pack_rows(keys[["phy_offset", "hashes", "store_timestamp"]])
            yield file, (number, pickle.dumps((packed, split.hashes[places[start:stop]].tobytes())))


def _keys(chunks: Iterable[tuple[int, bytes]]) -> Iterator[KeyPart]:
    """What a file is built from, one chunk after the other in log order."""
    for _, content in sorted(chunks):
        packed, hashes = pickle.loads(content)
        own = np.frombuffer(hashes, dtype=np.int32).copy()
        yield unpack_rows(packed, RECORD), own, np.array([TAKE_ALL], dtype=np.uint8)


class IndexFileTask(Struct, frozen=True):
    """Builds one index file. `files`: number -> (what it begins with, how many keys follow)."""

    files: dict[int, tuple[FileHead, int]]
    geometry: IndexGeometry
    counts_entries: bool

    def __call__(self, chunks: Iterable[Chunk]) -> Iterator[Wanted]:
        """The file of the chunks, if there are any: all are of one."""
        own = list(chunks)
        if own:
            number = own[0][0]
            head, count = self.files[number]
            keys = _keys(chunk for _, chunk in own)
            yield number, image_of(self.geometry, head, keys, count, counts_entries=self.counts_entries)
