"""The functions of the jobs that make files: what `recover.spark.derived` does, over the elements of an RDD."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from recover.memory.columns import Split
from recover.spark.derived import Chunk, IndexFileTask, OtherView, Product, QueueFilesTask, contents
from recover.spark.kept import KeptPiece, rows_of
from recover.spark.packing import PackedSplit, unpack_rows
from recover.spark.staging import NotStaged, Staged, Stager
from recover.spark.tasks import enter

Pack = Callable[[int, Split], Iterable[Chunk]]


class SentSplit(Struct, frozen=True):
    """A split of the log, by its number, that no executor kept."""

    number: int
    columns: bytes
    hashes: bytes

    def split(self) -> Split:
        """Its rows."""
        return Split(unpack_rows(self.columns), np.frombuffer(self.hashes, dtype="<i4"))


def pack_elements(
    pieces: dict[int, list[KeptPiece]], numbers: dict[tuple[bytes, int], int], pack: Pack, elements: Iterable[Any],
) -> Iterator[Chunk]:
    """Chunks of what executors kept (see `pieces`, by task) and of splits that were sent; chunks stay what they are.

    `numbers` are those of the queues of the log.
    """
    enter()
    for element in elements:
        if isinstance(element, SentSplit):
            yield from pack(element.number, element.split())
            continue
        task, packed = element
        if isinstance(packed, PackedSplit):
            for number, split in rows_of(packed, pieces.get(task, []), numbers):
                yield from pack(number, split)
        elif isinstance(packed, tuple):
            yield task, packed
        elif task in pieces:
            raise RuntimeError("a file of the log went away while files were made from it")


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
