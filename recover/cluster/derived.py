"""On executors: packed chunks of queues and index files, and the files built from them.

Nothing here imports pyspark. `recover.derived.queues` determines the content of a queue,
`recover.derived.index_rebuild` that of an index file: the same code as without Spark, with rows that came through a
shuffle.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec import Struct, msgpack, structs

from formats.index import IndexGeometry
from formats.native.index import TAKE_ALL
from formats.record.rows import EXPECTED, RECORD
from recover.change import disk
from recover.change.content import BytesContent, DeferredContent, Manifest, Spool
from recover.change.model import Install, Step
from recover.change.owner import Owner, being
from recover.cluster.jobs import TaskReads, enter
from recover.cluster.splits import pack_rows, unpack_rows
from recover.derived.expected import QueueKey, placed
from recover.derived.index_keys import IndexStream, KeyPart, TagHistory
from recover.derived.index_rebuild import FileHead, image_of
from recover.derived.queues import Beside, QueueBuilder, fresh_steps, repaired_steps
from recover.store.columns import Rows, Split
from recover.store.derived_files import ExtFiles, QueueFiles
from recover.store.reading import Piece, in_order
from recover.store.source import StorePath, send, url_of
from recover.store.store import Store

# --- On executors: files written to a staging folder. Failures are values.


_MODE = 0o600

Wanted = tuple[Any, Iterable[Piece]]
"""Key of a content, and its bytes in any order."""


class StagingFailure(Struct, frozen=True):
    """A file that could not be written, with host and reason. `no_folder`: the host does not see the staging folder."""

    host: str
    path: str
    number: int
    text: str
    no_folder: bool


class Stager(Struct, frozen=True):
    """Writes the contents that have a name to `folder`, as the `owner` of the store if this is root; one on a server
    gets each by way of this host's disk. `sync`: sync files here, as they are on this host's disks."""

    folder: Path
    names: dict[Any, str]
    sync: bool
    owner: Owner | None = None

    def __call__(self, contents: Iterable[Wanted]) -> Iterator[Manifest | StagingFailure]:
        """Yield a manifest for each file written; the first failure ends the task."""
        for key, pieces in contents:
            name = self.names.get(key)
            if name is None:
                continue
            # Each attempt writes its own file, and only those whose lines arrive are used: if an executor dies, its
            # Python worker takes the end of its input for the end of the data, and goes on to write what it has.
            path = self.folder / f"{name}.{uuid.uuid4().hex}"
            try:
                size, crc = _sent(path, pieces) if isinstance(path, StorePath) else self._written(path, pieces)
            except OSError as error:
                place = url_of(path)
                if place is None:
                    with being(self.owner), suppress(OSError):
                        disk.unlink(path)
                yield StagingFailure(socket.gethostname(), place or str(path), error.errno or 0,
                                     error.strerror or str(error), place is None and not self.folder.is_dir())
                return
            yield {name: (path.name, size, crc)}

    def _written(self, path: Path, pieces: Iterable[Piece]) -> tuple[int, int]:
        with being(self.owner):
            size, crc = disk.create_from_pieces(path, pieces, _MODE, sync=self.sync)
        if self.sync:  # the check that reads it back must read the disk, not the page cache
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return size, crc


def _sent(path: StorePath, pieces: Iterable[Piece]) -> tuple[int, int]:
    own = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]  # a worker's own disk, which Spark names
    with TemporaryDirectory(prefix="mqtool-", dir=own if os.path.isdir(own) else None) as scratch:
        file = Path(scratch, path.name)
        found = disk.create_from_pieces(file, pieces, _MODE, sync=False)
        send(file, path)
    return found


Listing = tuple[tuple[str, int], ...]
Chunk = tuple[int, tuple[int, bytes]]
"""Group of queues, or index file; number of the split in log order, and its packed rows."""


ROWS_A_TASK = 500_000
"""Approximate number of positions that a task holds at one time."""
WHOLE = 1 << 62


class Cut(Struct, frozen=True):
    """The division of queues into parts of so many `places` each, and the group of each part.

    A part consists of whole files; an undivided queue is one part of `WHOLE` places. `groups` lists all parts in a row;
    `zeros`: index of the part with place 0, one a queue.
    """

    places: Rows
    zeros: Rows
    groups: Rows

    def parts(self, rows: Rows) -> Rows:
        """Return the part of its queue that each of some EXPECTED rows belongs to."""
        return np.asarray(rows["queue_offset"] // self.places[rows["queue"]])

    def packed(self, number: int, rows: Rows) -> Iterator[Chunk]:
        """Yield a chunk for each group that these rows belong to. They come queue by queue: runs of rows are moved."""
        parts = self.zeros[rows["queue"]] + self.parts(rows)
        edges = np.r_[0, np.flatnonzero(np.diff(parts)) + 1, rows.size]
        firsts = parts[edges[:-1]] if rows.size else parts
        groups = self.groups[firsts]
        order = np.lexsort((firsts, groups))
        for some in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if rows.size else ():
            ranges = zip(edges[some].tolist(), edges[some + 1].tolist(), strict=True)
            # as bytes: rows would be copied column by column
            runs = np.concatenate([rows[start:stop].view(np.uint8) for start, stop in ranges]).view(EXPECTED)
            yield int(groups[some[0]]), (number, pack_rows(runs))


class QueueChunks(Struct, frozen=True):
    """Packs the positions that splits fill in the `wanted` queues of the log (bool array)."""

    cut: Cut
    wanted: Rows

    def __call__(self, splits: Iterable[tuple[int, Split]]) -> Iterator[Chunk]:
        """Yield chunks for each group, of several splits together: small chunks would have more overhead than
        content."""
        held: list[Rows] = []
        size = number = 0
        for number, split in splits:
            held.append(placed(self.wanted, split))
            size += split.size
            if size >= ROWS_A_TASK:
                yield from self.cut.packed(number, _joined(held))
                size = 0
        yield from self.cut.packed(number, _joined(held))


def _joined(parts: list[Rows]) -> Rows:
    """Return the EXPECTED rows of all parts, and clear the list to free them."""
    rows = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, dtype=EXPECTED), *parts])
    parts.clear()
    return rows


class Product(Struct, frozen=True):
    """One `step` for a part of a queue; without one, the number of `positions` of the part."""

    queue: int
    part: int
    number: int
    step: Step | None = None
    positions: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Its key among the products of one RDD."""
        return self.queue, self.part, self.number

    @property
    def file(self) -> BytesContent | None:
        """The content of the whole file that the step installs; None if it does something else."""
        content = self.step.content if isinstance(self.step, Install) else None
        return content if isinstance(content, BytesContent) else None


class OtherView(Struct, frozen=True):
    """A host that sees other files of a queue than the driver, for lack of the mount."""

    host: str
    folder: str


class IndivisibleQueue(Struct, frozen=True):
    """A queue with ext units: its parts cannot be built separately, as the place of a unit depends on all before it."""

    queue: int


Made = Product | OtherView | IndivisibleQueue | TaskReads


def announced(rdd: int, product: Made) -> Made:
    """Return a product of an RDD without the bytes of its file, which stay there under the key (rdd, *place)."""
    if not isinstance(product, Product) or product.step is None or (file := product.file) is None:
        return product
    producer: Any = None  # the driver adds it
    content = DeferredContent(producer, (rdd, *product.place), file.size, file.allocated, file.crc32c)
    return structs.replace(product, step=Install(product.step.file, content))


def contents(rdd: int, products: Iterable[Made]) -> Iterator[Wanted]:
    """Yield the whole files among the products of one RDD, as a stager takes them."""
    for product in products:
        if isinstance(product, Product) and product.file is not None:
            yield (rdd, *product.place), in_order(product.file.chunks())


class _Carrier(Spool):
    """Passes contents on instead of storing them."""

    def keep(self, data: np.ndarray[Any, Any]) -> bytes:
        return data.tobytes()


class QueueFilesTask(Struct, frozen=True):
    """Builds the files of the queues of one group. `keys`: the queue of each number of the log.

    `listed`: the driver's view of a queue's files, if it has to be compared. `beside`: by queue and part, the
    neighbours of the part, for queues whose places are not all held by messages.
    """

    builder: QueueBuilder
    keys: list[QueueKey]
    fresh: bool
    cut: Cut
    listed: dict[QueueKey, Listing]
    beside: dict[int, dict[int, Beside]] = {}

    def parts(self, chunks: Iterable[Chunk]) -> Iterator[tuple[int, int, Rows]]:
        """Yield queue, part, and positions of each part of a queue of the group."""
        rows = _joined([unpack_rows(content, EXPECTED) for _, (_, content) in sorted(chunks)])
        parts = self.cut.parts(rows)
        order = np.lexsort((parts, rows["queue"]))
        rows, parts = rows[order], parts[order]
        cuts = np.flatnonzero((np.diff(rows["queue"]) != 0) | (np.diff(parts) != 0)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), rows.size] if rows.size else ()):
            own = rows[start:stop]
            if not (np.diff(own["queue_offset"]) > 0).all():
                own = own[np.lexsort((own["phy_offset"], own["queue_offset"]))]
            yield int(own["queue"][0]), int(parts[start]), own

    def ends(self, queues: frozenset[int], chunks: Iterable[Chunk]) -> Iterator[tuple[int, int, Rows]]:
        """Yield the `QueueBuilder.ends` of each part of some queues."""
        enter()
        for queue, part, rows in self.parts(chunks):
            if queue in queues:
                yield queue, part, self.builder.ends(self.keys[queue], rows)

    def __call__(self, chunks: Iterable[Chunk]) -> Iterator[Product | OtherView | IndivisibleQueue]:
        """Yield the steps of each part, in order, and its number of positions."""
        for queue, part, rows in self.parts(chunks):
            key = self.keys[queue]
            if key in self.listed and self.listed[key] != listing(self.builder.store, key):
                yield OtherView(socket.gethostname(), str(self.builder.store.consumequeue_dir / key.topic))
                return
            beside = None
            if self.cut.places[queue] < WHOLE:
                if self.builder.wants_ext(key, rows):
                    yield IndivisibleQueue(queue)
                    continue
                beside = self.beside.get(queue, {}).get(part, (rows[:0], rows[:0]))
            yield Product(queue, part, -1, positions=rows.size)
            for number, step in enumerate(self._steps(key, rows, beside)):
                yield Product(queue, part, number, step)

    def _steps(self, key: QueueKey, rows: Rows, beside: Beside | None) -> Iterator[Step]:
        if self.fresh:
            return fresh_steps(self.builder.store, self.builder.fresh(key, rows, beside=beside))
        return repaired_steps(self.builder, key, rows, _Carrier(), beside)


def listing(store: Store, key: QueueKey) -> Listing:
    """Return names and lengths of the files of a queue and of its ext files, as this host sees them."""
    queues = (QueueFiles(store, key.topic, key.queue_id), ExtFiles(store, key.topic, key.queue_id))
    return tuple((file.name, file.length) for queue in queues for file in queue.mapped_files.files)


_OF_KEYS = ["phy_offset", "hashes", "store_timestamp"]


class IndexChunks(Struct, frozen=True):
    """Packs the keys of a split for their index files.

    `spans`: for each split the file numbers, each with the range [first, last) of the split's keys that it takes.
    """

    spans: dict[int, list[tuple[int, int, int]]]
    tags: TagHistory

    def __call__(self, splits: Iterable[tuple[int, Split]]) -> Iterator[Chunk]:
        """Yield a chunk for each file that takes keys of a split."""
        for number, split in splits:
            yield from self._chunks(number, split, self.spans.get(number, []))

    def _chunks(self, number: int, split: Split, spans: list[tuple[int, int, int]]) -> Iterator[Chunk]:
        if not spans:
            return
        stream = IndexStream([split])
        stream.tags = self.tags
        ends, places = np.r_[0, np.cumsum(stream.wanted(0))], stream.asked(0)
        for file, start, stop in spans:
            counts = np.diff(np.clip(ends, start, stop))
            own = np.flatnonzero(counts)
            keys = split.records[own]
            keys["hashes"] = counts[own]
            packed = pack_rows(keys[_OF_KEYS])
            yield file, (number, msgpack.encode((packed, split.hashes[places[start:stop]].tobytes())))


def _keys(chunks: Iterable[tuple[int, bytes]]) -> Iterator[KeyPart]:
    """Yield the key parts of a file, one a chunk, in log order."""
    for _, content in sorted(chunks):
        packed, hashes = msgpack.decode(content)
        own = np.frombuffer(hashes, dtype=np.int32).copy()
        yield unpack_rows(packed, RECORD, _OF_KEYS), own, np.array([TAKE_ALL], dtype=np.uint8)


class IndexFileTask(Struct, frozen=True):
    """Builds one index file. `files`: number -> (its head, number of keys that follow)."""

    files: dict[int, tuple[FileHead, int]]
    geometry: IndexGeometry
    counts_entries: bool

    def __call__(self, chunks: Iterable[Chunk]) -> Iterator[Wanted]:
        """Yield the file of the chunks, if there are any; all belong to one file."""
        own = list(chunks)
        if own:
            number = own[0][0]
            head, count = self.files[number]
            keys = _keys(chunk for _, chunk in own)
            yield number, image_of(self.geometry, head, keys, count, counts_entries=self.counts_entries)
