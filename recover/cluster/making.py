"""Queues and index files made by executors: chunks out of the kept scan, a shuffle, a task for some queues or a file.

What is to be made is decided where it is decided without Spark; here it is spread over tasks and its result gathered.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats.layout import Buffer
from formats.record.rows import RECORD
from recover.change.content import Content, DeferredContent, Manifest
from recover.change.model import Install, Step
from recover.cluster.derived import (
    Chunk,
    IndexChunks,
    IndexFileTask,
    NotStaged,
    OtherView,
    Product,
    QueueChunks,
    QueueFilesTask,
    Staged,
    Stager,
    announced,
    contents,
    listing,
)
from recover.cluster.jobs import enter, invisible, watch
from recover.cluster.session import Session
from recover.cluster.splits import Piece, RowsElsewhere, checked, pack_rows, pieces_of, unpack_rows
from recover.cluster.views import Seen, confirm
from recover.derived.expected import Expectation, QueueKey
from recover.derived.index_rebuild import FileBuilder, RebuiltIndexFile, Target
from recover.derived.queues import QueueBuilder
from recover.findings.refusal import Interrupted, Refusal
from recover.log.scan import LogView
from recover.store.columns import Rows, Split
from recover.store.reading import recorded
from recover.store.store import Store

# --- The functions of the jobs that make files: what `recover.cluster.derived` does, over the elements of an RDD.


Pack = Callable[[int, Split], Iterable[Chunk]]
_CHUNK = 2
"""So many parts has a chunk that was sent; an element of a kept scan has three."""


class SentSplit(Struct, frozen=True):
    """A split of the log, by its number, that no executor kept."""

    number: int
    columns: bytes
    hashes: bytes

    def split(self) -> Split:
        """Its rows."""
        return Split(unpack_rows(self.columns, RECORD), np.frombuffer(self.hashes, dtype="<i4"))


def pack_elements(
    pieces: dict[int, list[Piece]], digests: dict[int, int], numbers: dict[tuple[bytes, int], int], pack: Pack,
    elements: Iterable[Any],
) -> Iterator[Chunk]:
    """Chunks of what executors kept (see `pieces`, by task) and of splits that were sent; chunks stay what they are.

    `digests`: what each of these tasks read for the driver; `numbers` are those of the queues of the log.
    """
    for element in elements:
        if isinstance(element, SentSplit):
            yield from pack(element.number, element.split())
        elif len(element) == _CHUNK:
            yield element
        else:
            for task, home, rows in checked(digests, [element]):
                for number, split in pieces_of(home, rows, pieces[task], numbers):
                    yield from pack(number, split)


def make_queues(task: QueueFilesTask, chunks: Iterable[Chunk]) -> Iterator[Product | OtherView | Seen]:
    """What one group of queues comes to, and what was read of their files for it."""
    enter()
    with recorded() as files:
        yield from task(chunks)
    yield Seen(files)


def stage_products(stager: Stager, number: int, products: Iterable[Any]) -> Iterator[Staged | NotStaged]:
    """The manifest of the whole files among the products of an RDD."""
    enter()
    yield from stager(contents(number, products))


def stage_index(stager: Stager, task: IndexFileTask, chunks: Iterable[Chunk]) -> Iterator[Staged | NotStaged]:
    """The manifest of one index file."""
    enter()
    yield from stager(task(chunks))


def is_at(place: tuple[int, int], product: Any) -> bool:
    """Whether a product is the one of that queue with that number."""
    return isinstance(product, Product) and (product.queue, product.number) == place


_ROWS_A_TASK = 500_000
_TASKS_A_CORE = 2
_LAST = 1 << 40


class SparkProducer:
    """See `recover.derived.expected.Producer`. `store` is as executors can open it; `log` what files are made for."""

    def __init__(self, session: Session, kept: RowsElsewhere, store: Store, log: LogView) -> None:
        self.session = session
        self.kept = kept
        self.store = store
        self.sources = kept.sources(log)
        self.digests = {task: kept.digests[task] for task in self.sources.pieces}
        self.numbers = {key: number for number, key in enumerate(log.queues)}
        self._products: list[Any] = []
        self._index: dict[int, tuple[FileBuilder, Target, Content]] = {}

    def queues(
        self, builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None, *, fresh: bool
    ) -> Iterator[tuple[QueueKey, list[Step]]]:
        """See `Producer`: a job that shuffles positions by groups of queues, whose products executors keep."""
        keys, counts = expectation.keys, expectation.counts
        chosen = [n for n, key in enumerate(keys) if counts[n] and (wanted is None or key in wanted)]
        if not chosen:
            return
        groups, count = self._groups(chosen, counts)
        listed = {} if self.session.is_local else {keys[n]: listing(self.store, keys[n]) for n in chosen}
        task = QueueFilesTask(_elsewhere(builder, self.store), keys, fresh, listed)
        plain = groups.copy()
        plain[: expectation.skipped.size][expectation.skipped] = -1
        sent = list(_lmq_chunks(expectation, groups))
        number = len(self._products)

        def run() -> list[Any]:
            from pyspark import StorageLevel

            chunks = self._shuffled(QueueChunks(plain), count, sent)
            products = chunks.mapPartitions(partial(make_queues, task)).persist(StorageLevel.DISK_ONLY)
            self._products.append(products)
            return list(products.map(announced).collect())

        found: dict[int, dict[int, Product]] = {n: {} for n in chosen}
        for product in watch(self.session, run, "queues"):
            if isinstance(product, OtherView):
                raise invisible(product.host, product.folder)
            if isinstance(product, Seen):
                for path, reads in product.files.items() if not self.session.is_local else ():
                    confirm(path, product.host, reads)
                continue
            found[product.queue][product.number] = product
        for n in chosen:
            products = found[n]
            tally = products.pop(-1, None)
            if tally is None or tally.size != int(counts[n]):
                raise Refusal(f"of queue {keys[n].topic}/{keys[n].queue_id} not all positions came through the shuffle",
                              "Run it with --engine local.")
            yield keys[n], [self._step(number, products[place]) for place in sorted(products)]

    def index_files(
        self, builder: FileBuilder, targets: Iterable[Target], files: Iterable[RebuiltIndexFile]
    ) -> Iterator[RebuiltIndexFile]:
        """See `Producer`: nothing is made yet; how many keys there are says which go to which file."""
        for target, file in zip(targets, files, strict=True):
            number = len(self._index)
            self._index[number] = builder, target, file.content
            content = DeferredContent(self, ("index", number), file.content.size, file.content.allocated)
            yield structs.replace(file, content=content)

    def write(
        self, folder: Path, contents: Mapping[str, DeferredContent], interrupted: Callable[[], bool]
    ) -> Manifest:
        """See `Producer`: one job that builds index files and writes the products that are kept."""
        names = {content.key: name for name, content in contents.items()}
        index = {key[1]: name for key, name in names.items() if key[0] == "index"}
        stager = Stager(str(folder.absolute()), names, sync=not self.session.is_local)
        # index files first: of the tasks that follow the shuffle theirs are the longest
        jobs = [self._index_job(structs.replace(stager, names=index))] if index else []
        for number in sorted({key[0] for key in names if key[0] != "index"}):
            jobs.append((partial(stage_products, stager, number), self._products[number]))
        return self._staged(jobs, interrupted)

    def chunks(self, content: DeferredContent) -> Iterator[Buffer]:
        """See `Producer`."""
        kind, *place = content.key
        if kind == "index":
            yield from self._index[place[0]][2].chunks()
            return
        products = self._products[kind]
        found = watch(self.session, lambda: products.filter(partial(is_at, tuple(place))).collect(), "a queue's file")
        yield from found[0].content.chunks()

    def _staged(self, jobs: list[tuple[Any, Any]], interrupted: Callable[[], bool]) -> Manifest:
        """What functions write of the partitions of RDDs."""
        def stop() -> None:
            if interrupted():
                raise Interrupted("stopped before anything was changed", "run the command again")

        def run() -> list[Any]:
            return list(self.session.context.union([rdd.mapPartitions(function) for function, rdd in jobs]).collect())

        manifest: Manifest = {}
        for line in watch(self.session, run, "files", tick=stop) if jobs else ():
            if isinstance(line, NotStaged):
                if line.no_folder:
                    raise invisible(line.host, str(Path(line.path).parent))
                raise OSError(line.number, line.text, line.path)
            manifest[line.name] = line.file, line.size, line.crc32c
        return manifest

    def _index_job(self, stager: Stager) -> tuple[Any, Any]:
        """One task a file; the function that it runs, and its keys."""
        order = sorted(stager.names)
        builder = self._index[order[0]][0]
        spans: dict[int, list[tuple[int, int, int]]] = {}
        files = {}
        for place, number in enumerate(order):
            target = self._index[number][1]
            files[place] = builder.head(target), target.stop - target.start
            for split, first, last in builder.numbers.spans(target.start, target.stop):
                spans.setdefault(split, []).append((place, first, last))
        pack = IndexChunks(spans, builder.numbers.stream.tags)
        task = IndexFileTask(files, builder.geometry, builder.counts_entries)
        named = structs.replace(stager, names={place: stager.names[number] for place, number in enumerate(order)})
        return partial(stage_index, named, task), self._shuffled(pack, len(order), [])

    def _shuffled(self, pack: Pack, partitions: int, sent: list[Chunk]) -> Any:
        """An RDD of chunks, a partition for each group or file."""
        context = self.session.context
        more: list[Any] = [
            SentSplit(number, pack_rows(split.records), split.hashes.tobytes()) for number, split in self.sources.sent
        ]
        rdds = [self.kept.job.rdd]
        if more or sent:
            # serialized as what executors keep is, or a union would have them do that anew
            rdds.append(context.parallelize([*more, *sent], min(len(more) + 1, self.session.cores)).mapPartitions(iter))
        # one step from what is kept to the shuffle: each further one would take a Python worker of its own
        packing = partial(pack_elements, self.sources.pieces, self.digests, self.numbers, pack)
        return context.union(rdds).mapPartitions(packing).partitionBy(partitions, int)

    def _groups(self, chosen: list[int], counts: Rows) -> tuple[Rows, int]:
        """The group of each queue, -1 for none, and how many groups: about as many positions in each."""
        total = int(counts[chosen].sum())
        cores = watch(self.session, lambda: self.session.cores, "how many cores")
        # a multiple of the cores, so that none is idle at the end
        number = min(len(chosen), max(_TASKS_A_CORE, -(-total // (_ROWS_A_TASK * cores))) * cores)
        groups = np.full(counts.size, -1, dtype=np.int64)
        heap = [(0, group) for group in range(number)]
        for queue in sorted(chosen, key=lambda n: -int(counts[n])):
            filled, group = heapq.heappop(heap)
            groups[queue] = group
            heapq.heappush(heap, (filled + int(counts[queue]), group))
        return groups, number

    def _step(self, number: int, product: Product) -> Step:
        if product.step is not None:
            return product.step
        key = number, product.queue, product.number
        return Install(product.file, DeferredContent(self, key, product.size, product.allocated, product.crc32c))


def seen_elsewhere(store: Store) -> Store | None:
    """The store by absolute paths, its sizes known; None where its parts would go by other names then."""
    options, root = store.options, store.root.absolute()
    seen = Store(root, structs.replace(
        options, commitlog=tuple(folder.absolute() for folder in options.commitlog),
        consumequeue=None if options.consumequeue is None else options.consumequeue.absolute(),
        index=None if options.index is None else options.index.absolute(),
    ))
    seen.queue_file_size, seen.ext_file_size = store.queue_file_size, store.ext_file_size
    folders = ("consumequeue_dir", "consumequeue_ext_dir", "index_dir")
    same = all(seen.relative(getattr(seen, name)) == store.relative(getattr(store, name)) for name in folders)
    return seen if same else None


def _elsewhere(builder: QueueBuilder, store: Store) -> QueueBuilder:
    return QueueBuilder(
        store, builder.delays, builder.min_offset, builder.log_end, visible=builder.visible,
        evidence=builder.evidence, bridge=builder.bridge,
    )


def _lmq_chunks(expectation: Expectation, groups: Rows) -> Iterator[Chunk]:
    """Positions in LMQ queues, which were read one by one: they come after all others."""
    rows = expectation.lmq_rows
    own = groups[rows["queue"]]
    for group in np.unique(own[own >= 0]).tolist():
        yield int(group), (_LAST, pack_rows(rows[own == group]))
