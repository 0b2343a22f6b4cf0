"""Queues and index files built by executors: chunks of the kept scan, a shuffle, a task for some queues or one file.

The content is determined by the same code as without Spark; this module distributes it over tasks and collects results.
"""

from __future__ import annotations

import heapq
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats.basics import Buffer
from formats.record.rows import BIT_MARKER
from recover.change.content import Content, DeferredContent, Manifest, stop_if
from recover.change.model import Step
from recover.change.owner import acting_owner
from recover.cluster.derived import (
    ROWS_A_TASK,
    WHOLE,
    Chunk,
    Cut,
    IndexChunks,
    IndexFileTask,
    IndivisibleQueue,
    Made,
    OtherView,
    Product,
    QueueChunks,
    QueueFilesTask,
    Stager,
    StagingFailure,
    announced,
    contents,
    listing,
)
from recover.cluster.jobs import TaskReads, enter, invisible, run_job, unreadable, watch
from recover.cluster.session import Session
from recover.cluster.splits import (
    PackedLater,
    RowsElsewhere,
    checked,
    has_retry_left,
    renumbered,
    tasks_of,
    unpack_split,
)
from recover.derived.expected import Expectation, QueueKey
from recover.derived.index_rebuild import FileBuilder, RebuiltIndexFile, Target
from recover.derived.queues import QueueBuilder
from recover.findings.code import Refusal
from recover.log.scan import LogView
from recover.store.columns import Rows, Split
from recover.store.derived_files import ExtFiles, QueueFiles
from recover.store.reading import file_crc, recorded
from recover.store.store import Store

# --- Functions of the jobs that build files: `recover.cluster.derived` applied to the elements of an RDD.


Pack = Callable[[Iterable[tuple[int, Split]]], Iterable[Chunk]]
_CHUNK = 2
"""Number of fields of a chunk that was sent; an element of a kept scan has three."""


class SentSplit(Struct, frozen=True):
    """A split of the log, with its number, whose rows the driver has."""

    number: int
    rows: PackedLater | bytes


def pack_elements(
    kept: dict[int, int], digests: dict[int, int], numbers: dict[tuple[bytes, int], int], pack: Pack,
    elements: Iterable[Any],
) -> Iterator[Chunk]:
    """Yield chunks of elements kept by executors (`kept`: their split numbers by task) and of splits that were sent;
    pass on sent chunks.

    `digests`: what each of these tasks read for the driver; `numbers`: queue numbers of the log.
    """
    chunks: list[Chunk] = []

    def splits() -> Iterator[tuple[int, Split]]:
        for element in elements:
            if isinstance(element, SentSplit):
                yield element.number, Split(*unpack_split(bytes(element.rows)))
            elif len(element) == _CHUNK:
                chunks.append(element)
            else:
                for task, home, rows in checked(digests, [element]):
                    yield kept[task], renumbered(home, rows, numbers)

    yield from pack(splits())
    yield from chunks


def make_queues(task: QueueFilesTask, chunks: Iterable[Chunk]) -> Iterator[Made]:
    """Yield the products of one group of queues, and what was read of their files for them."""
    enter()
    with recorded() as files:
        yield from task(chunks)
    yield TaskReads(files)


def stage_products(stager: Stager, number: int, products: Iterable[Any]) -> Iterator[Manifest | StagingFailure]:
    """Yield the manifest of the whole files among the products of an RDD."""
    enter()
    yield from stager(contents(number, products))


def stage_index(stager: Stager, task: IndexFileTask, chunks: Iterable[Chunk]) -> Iterator[Manifest | StagingFailure]:
    """Yield the manifest of one index file."""
    enter()
    yield from stager(task(chunks))


def read_back(attempts: int, tasks: Iterable[tuple[int, list[Path]]]) -> Iterator[tuple[str, Path, Any]]:
    """Yield host, path, and (length, CRC-32C) of the files of some tasks, or on the last attempt the read error."""
    enter()
    for _, paths in tasks:
        for path in paths:
            try:
                yield socket.gethostname(), path, file_crc(path)
            except OSError as error:
                if has_retry_left(attempts):
                    raise
                yield socket.gethostname(), path, error


def is_at(place: tuple[int, int, int], product: Any) -> bool:
    """Whether a product is the one at that place."""
    return isinstance(product, Product) and product.place == place


class _QueueJob(Struct, frozen=True):
    """A job that builds queues. `sent`: chunks of the driver; `packing`: the most tasks that pack. `uneven`: queues cut
    into parts whose places are not all held by messages: their parts ask each other for neighbours first."""

    task: QueueFilesTask
    pack: QueueChunks
    sent: list[Chunk]
    packing: int
    uneven: frozenset[int]


_BYTES_A_ROW = 256
_TASKS_A_CORE = 2
_LAST = 1 << 40


class SparkProducer:
    """See `recover.derived.expected.Producer`. `store` has paths that executors can open; `log` is the one to build
    for.

    A queue with more positions than a task should hold (messages of 256 bytes in a split, or `ROWS_A_TASK`) is divided.
    """

    def __init__(self, session: Session, kept: RowsElsewhere, store: Store, log: LogView, split_size: int) -> None:
        self.session = session
        self.kept = kept
        self.store = store
        self.by_task, self.here = kept.sources(log)
        self.digests = {task: kept.digests[task] for task in self.by_task}
        self.numbers = {key: number for number, key in enumerate(log.queues)}
        self.rows_a_task = max(1, min(ROWS_A_TASK, split_size // _BYTES_A_ROW))
        self._products: list[Any] = []
        self._index: dict[int, tuple[FileBuilder, Target, Content]] = {}

    def queues(
        self, builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey] | None, *, fresh: bool
    ) -> Iterator[tuple[QueueKey, list[Step]]]:
        """See `Producer`: a job that shuffles positions by groups of queues, and of parts of large ones; executors keep
        the products."""
        counts = expectation.counts
        chosen = [n for n, key in enumerate(expectation.keys) if counts[n] and (wanted is None or key in wanted)]
        steps = self._queue_steps(builder, expectation, chosen, fresh=fresh)
        left = [n for n in chosen if n not in steps]
        steps |= self._queue_steps(builder, expectation, left, fresh=fresh, cuts=False)
        for n in chosen:
            yield expectation.keys[n], steps[n]

    def _queue_steps(
        self, builder: QueueBuilder, expectation: Expectation, chosen: list[int], *, fresh: bool, cuts: bool = True
    ) -> dict[int, list[Step]]:
        """Return the steps of each of these queues; with `cuts`, without those that turn out to be indivisible."""
        if not chosen:
            return {}
        job = self._queue_job(builder, expectation, chosen, fresh=fresh, cuts=cuts)
        answers = watch(self.session, partial(self._run_queues, job, len(self._products)), "queues")
        found = self._received(job, {n: int(expectation.counts[n]) for n in chosen}, answers)
        return {n: [self._ours(product.step) for product in products if product.step is not None]
                for n, products in found.items()}

    def _queue_job(
        self, builder: QueueBuilder, expectation: Expectation, chosen: list[int], *, fresh: bool, cuts: bool
    ) -> _QueueJob:
        """Return the job that builds these queues, large ones in parts if it `cuts`."""
        keys, counts = expectation.keys, expectation.counts
        cores, total = watch(self.session, lambda: self.session.cores, "how many cores"), int(counts[chosen].sum())
        # a multiple of the cores, so that none idles at the end
        packing, making = (max(_TASKS_A_CORE, -(-total // (rows * cores))) * cores
                           for rows in (ROWS_A_TASK, self.rows_a_task))
        large = {n for n in chosen if cuts and counts[n] > self.rows_a_task and (fresh or self._has_no_files(keys[n]))}
        cut = self._cut(expectation, chosen, large, builder.file_cells, making)
        listed = {} if self.session.is_local or fresh else {keys[n]: listing(self.store, keys[n]) for n in chosen}
        asked = np.zeros(counts.size, dtype=bool)
        asked[chosen] = True
        return _QueueJob(
            task=QueueFilesTask(_for_executors(builder, self.store), keys, fresh, cut, listed),
            pack=QueueChunks(cut, asked[: expectation.skipped.size] & ~expectation.skipped),
            sent=list(cut.packed(_LAST, expectation.lmq_rows[asked[expectation.lmq_rows["queue"]]])),
            packing=packing,
            uneven=frozenset(n for n in chosen if cut.places[n] < WHOLE and not _is_dense(expectation.tally_of(n))),
        )

    def _run_queues(self, job: _QueueJob, number: int) -> list[Made]:
        """Have executors build queues and keep the files as product `number`; return the rest. Call it in `watch`."""
        from pyspark import StorageLevel

        task = job.task
        chunks = self._shuffled(job.pack, int(task.cut.groups.max()) + 1, job.sent, job.packing)
        ends: dict[int, dict[int, Rows]] = {}
        asking = chunks.mapPartitions(partial(task.ends, job.uneven))
        for queue, part, rows in asking.collect() if job.uneven else ():
            ends.setdefault(queue, {})[part] = rows
        beside = {n: task.builder.beside(task.keys[n], int(task.cut.places[n]), parts) for n, parts in ends.items()}
        make = partial(make_queues, structs.replace(task, beside=beside))
        products = chunks.mapPartitions(make).persist(StorageLevel.DISK_ONLY)
        self._products.append(products)
        return list(products.map(partial(announced, number)).collect())

    def _received(self, job: _QueueJob, counts: Mapping[int, int], answers: Iterable[Made]) -> dict[int, list[Product]]:
        """Return the products of each queue in order, without queues that are indivisible; `counts`: the positions that
        each must have. `Refusal` (8) if some are lost, or a host sees other files."""
        found: dict[int, list[Product]] = {n: [] for n in counts}
        ended = 0
        for answer in answers:
            if isinstance(answer, OtherView):
                raise invisible(answer.host, answer.folder)
            if isinstance(answer, TaskReads):
                ended += 1
                for path, reads in answer.files.items() if not self.session.is_local else ():
                    self.kept.views.compare(path, answer.host, reads)
            elif isinstance(answer, IndivisibleQueue):
                found.pop(answer.queue, None)
            elif answer.queue in found:
                found[answer.queue].append(answer)
        positions = {n: sum(product.positions for product in products) for n, products in found.items()}
        if ended <= job.task.cut.groups.max() or any(counts[n] != size for n, size in positions.items()):
            raise Refusal("executors lost parts of the queues that they built: a disk may be full",
                          "Make room for Spark's files on each worker, or run it with --engine local.")
        return {n: sorted(products, key=lambda product: product.place) for n, products in found.items()}

    def index_files(
        self, builder: FileBuilder, targets: Iterable[Target], files: Iterable[RebuiltIndexFile]
    ) -> Iterator[RebuiltIndexFile]:
        """See `Producer`: nothing is built yet; the number of keys determines which go into which file."""
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
        stager = Stager(folder.absolute(), names, sync=not self.session.is_local, owner=acting_owner())
        # index files first: their tasks are the longest after the shuffle
        jobs = [self._index_job(structs.replace(stager, names=index))] if index else []
        for number in sorted({key[0] for key in names if key[0] != "index"}):
            jobs.append((partial(stage_products, stager, number), self._products[number]))

        def run() -> list[Any]:
            return list(self.session.context.union([rdd.mapPartitions(function) for function, rdd in jobs]).collect())

        manifest: Manifest = {}
        for line in watch(self.session, run, "files", tick=partial(stop_if, interrupted)):
            if isinstance(line, StagingFailure):
                if line.no_folder:
                    raise invisible(line.host, str(Path(line.path).parent))
                raise OSError(line.number, line.text, line.path)
            manifest |= line
        return manifest

    def read_back(self, files: Mapping[Path, tuple[int, int]], interrupted: Callable[[], bool]) -> None:
        """See `Writes`: run on any executors; the results prove that they see the folder that others wrote to."""
        work = partial(read_back, self.session.attempts)
        tasks = tasks_of([*files], [path.stat().st_blocks * 512 for path in files])
        for host, path, found in run_job(self.session, work, tasks, "files read back"):
            stop_if(interrupted)
            if isinstance(found, OSError):
                file_crc(path)  # this machine's own error comes first
                raise unreadable(host, path, found)
            if found != files[path]:
                raise Refusal(f"{path} reads back on host {host} otherwise than it was written",
                              "Check the disk, and how that host mounts it.", host=host, file=str(path))

    def chunks(self, content: DeferredContent) -> Iterator[Buffer]:
        """See `Producer`."""
        kind, *place = content.key
        if kind == "index":
            yield from self._index[place[0]][2].chunks()
            return
        products = self._products[kind]
        found = watch(self.session, lambda: products.filter(partial(is_at, tuple(place))).collect(), "a queue's file")
        yield from found[0].file.chunks()

    def _index_job(self, stager: Stager) -> tuple[Any, Any]:
        """Return the function of a job with one task a file, and the RDD of its keys."""
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

    def _shuffled(self, pack: Pack, partitions: int, sent: list[Chunk], tasks: int = 0) -> Any:
        """Return an RDD of chunks, a partition for each group or file; at most `tasks` tasks pack them, if given."""
        context = self.session.context
        more: list[Any] = [SentSplit(number, PackedLater(split)) for number, split in self.here]
        rdds = [self.kept.job.rdd]
        if more or sent:
            # use the serializer of kept elements, or the union would have executors serialize those again
            rdds.append(context.parallelize([*more, *sent], min(len(more) + 1, self.session.cores)).mapPartitions(iter))
        # a single step from kept elements to the shuffle: each further one would occupy another Python worker
        packing = partial(pack_elements, self.by_task, self.digests, self.numbers, pack)
        elements = context.union(rdds)
        return (elements.coalesce(tasks) if tasks else elements).mapPartitions(packing).partitionBy(partitions, int)

    def _has_no_files(self, key: QueueKey) -> bool:
        """Whether a queue has no file at all."""
        parts = (QueueFiles(self.store, key.topic, key.queue_id), ExtFiles(self.store, key.topic, key.queue_id))
        return not any(part.mapped_files.files or part.mapped_files.odd for part in parts)

    def _cut(
        self, expectation: Expectation, chosen: list[int], large: set[int], file_cells: int, tasks: int
    ) -> Cut:
        """Divide the `large` queues into parts, leave others whole, and balance positions over at most `tasks` groups.
        A queue with positions read on the driver (LMQ) stays whole, too."""
        counts = expectation.counts
        places, zeros = np.full(counts.size, WHOLE), np.zeros(counts.size, dtype=np.int64)
        length = max(1, self.rows_a_task // file_cells) * file_cells
        sizes: list[int] = []
        for n in chosen:
            tally = expectation.tally_of(n) if n in large else None
            first, own = 0, [int(counts[n])]
            # a broken record's queue offset may be so high that nearly all parts would be empty
            if tally is not None and 0 < int(tally["most"] - tally["least"]) // length <= counts[n]:
                places[n], first = length, int(tally["least"]) // length
                parts = np.arange(first, int(tally["most"]) // length + 1) * length
                own = (np.minimum(parts + length, tally["most"] + 1) - np.maximum(parts, tally["least"])).tolist()
            zeros[n] = len(sizes) - first
            sizes += own
        number = min(len(sizes), tasks)
        groups = np.empty(len(sizes), dtype=np.int64)
        heap = [(0, group) for group in range(number)]
        for part in sorted(range(len(sizes)), key=lambda part: -sizes[part]):
            filled, group = heapq.heappop(heap)
            groups[part] = group
            heapq.heappush(heap, (filled + sizes[part], group))
        return Cut(places, zeros, groups)

    def _ours(self, step: Step) -> Step:
        """Return a step that came from an executor; bytes that stayed there come from this producer."""
        content = step.content
        if isinstance(content, DeferredContent):
            return structs.replace(step, given=structs.replace(content, producer=self))
        return step


def store_for_executors(store: Store) -> Store | None:
    """Return the store by absolute paths, with its sizes known; None if its parts would get other names by that."""
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


def _for_executors(builder: QueueBuilder, store: Store) -> QueueBuilder:
    return QueueBuilder(
        store, builder.delays, builder.min_offset, builder.log_end, visible=builder.visible,
        evidence=builder.evidence, bridge=builder.bridge,
    )


def _is_dense(tally: Rows | None) -> bool:
    """Whether each place of a queue is held by one message, so that no unit fills in for another."""
    if tally is None or tally["fallen"] or tally["bits"] & BIT_MARKER:
        return False
    return bool(tally["positions"] == tally["most"] - tally["least"] + 1)
