"""The functions of the jobs that make files: what `recover.spark.derived` does, over the elements of an RDD."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from recover.columns import Split
from recover.spark.derived import Chunk, IndexFileTask, OtherView, Product, QueueFilesTask, contents
from recover.spark.kept import Piece, rows_of
from recover.spark.packing import PackedSplit, unpack_rows
from recover.spark.staging import NotStaged, Staged, Stager
from recover.spark.tasks import enter

Pack = Callable[[int, Split], Iterable[Chunk]]


def pack_kept(
    pieces: dict[int, list[Piece]], numbers: dict[tuple[bytes, int], int], pack: Pack,
    elements: Iterable[tuple[int, Any]],
) -> Iterator[Chunk]:
    """Chunks of the pieces of kept splits; `numbers` are those of the queues of the log."""
    enter()
    for part, packed in elements:
        if part not in pieces:
            continue
        if not isinstance(packed, PackedSplit):
            raise RuntimeError("a file of the log went away while files were made from it")
        for number, split in rows_of(packed, pieces[part], numbers):
            yield from pack(number, split)


def pack_sent(pack: Pack, elements: Iterable[tuple[int, bytes, bytes]]) -> Iterator[Chunk]:
    """Chunks of splits that no executor kept."""
    enter()
    for number, records, hashes in elements:
        yield from pack(number, Split(unpack_rows(records), np.frombuffer(hashes, dtype="<i4")))


def make_queues(task: QueueFilesTask, chunks: Iterable[Chunk]) -> Iterator[Product | OtherView]:
    """What one group of queues comes to."""
    enter()
    yield from task(chunks)


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
