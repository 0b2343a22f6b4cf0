"""The cells of one queue: as they stand on disk, as files, and the steps that put them there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from formats.consumequeue import CQ_UNIT
from formats.layout import Buffer
from formats.names import offset_to_name
from recover.evidence.expected import QueueKey
from recover.files.ext_files import ExtFiles
from recover.files.queue_files import UNIT_SIZE, QueueFiles
from recover.files.store import CONSUMEQUEUE, CONSUMEQUEUE_EXT, Store
from recover.memory.columns import Rows
from recover.plan.model import Install, Retire, Step
from recover.plan.patches import patches
from recover.plan.spool import Spool
from recover.rebuild.consumequeue_ext import ExtImage, ext_steps


class QueueCells(Struct, frozen=True):
    """All cells of a queue from queue offset `first_index` on, dtype CQ_UNIT.dtype; `first_index` begins a file.

    `ext` is what their ext addresses lead to; None for a queue without.
    """

    key: QueueKey
    first_index: int
    cells: Rows
    ext: ExtImage | None = None

    @property
    def is_empty(self) -> bool:
        """True when no cell is left."""
        return self.cells.size == 0

    def files(self, file_size: int) -> Iterator[tuple[int, memoryview]]:
        """(file_from_offset, content) of each queue file of `file_size` bytes; zeros follow the last one's content."""
        content = self.cells.view(np.uint8).data
        for offset, start, stop in file_spans(self.first_index, len(content), file_size):
            yield offset, content[start:stop]


def file_spans(first_index: int, size: int, file_size: int) -> Iterator[tuple[int, int, int]]:
    """(file_from_offset, start, stop) of each queue file: which of `size` bytes of units it holds; one for no units."""
    for start in range(0, max(size, 1), file_size):
        yield first_index * UNIT_SIZE + start, start, min(start + file_size, size)


def cells_on_disk(files: QueueFiles) -> Iterator[QueueCells]:
    """The cells on disk over whole files, one stretch for each run of adjoining files."""
    for stretch in files.stretches():
        cells = np.zeros(stretch.cells, dtype=CQ_UNIT.dtype)
        for name in ("phy_offset", "size", "tags_code"):
            cells[name] = getattr(stretch, name)
        yield QueueCells(QueueKey(files.topic, files.queue_id), stretch.first_index, cells)


def fresh_files(store: Store, queue: QueueCells) -> Iterator[tuple[str, Buffer, int]]:
    """The files of a queue built from the log alone: name below an output folder, content, and size with the zeros
    that follow it."""
    key = queue.key
    for offset, content in queue.files(store.queue_file_size):
        yield f"{CONSUMEQUEUE}/{key.topic}/{key.queue_id}/{offset_to_name(offset)}", content, store.queue_file_size
    for offset, units in queue.ext.files() if queue.ext is not None else ():
        yield f"{CONSUMEQUEUE_EXT}/{key.topic}/{key.queue_id}/{offset_to_name(offset)}", units, store.ext_file_size


def queue_steps(store: Store, queue: QueueCells, spool: Spool) -> Iterator[Step]:
    """Steps that make the files of a queue on disk hold exactly these cells; nothing for a file that does.

    A queue without a cell goes, as after a broker's own cut: of a file of zeros brokers make one unit, or do not start.
    """
    files = QueueFiles(store, queue.key.topic, queue.key.queue_id)
    folder = store.consumequeue_dir / queue.key.topic / str(queue.key.queue_id)
    size = store.queue_file_size
    if queue.ext is not None:
        yield from ext_steps(ExtFiles(store, queue.key.topic, queue.key.queue_id), queue.ext, spool)
    contents = [] if queue.is_empty else list(queue.files(size))
    wanted = {offset for offset, _ in contents}
    on_disk = {mapped_file.file_from_offset: mapped_file for mapped_file in files.mapped_files.files}
    for offset, content in contents:
        path = folder / offset_to_name(offset)
        mapped_file = on_disk.get(offset)
        if mapped_file is None or mapped_file.length != size:
            yield Install(store.relative(path), spool.padded(content, size))
        else:
            yield from patches(store.relative(path), path.read_bytes(), bytes(content))
    for offset, mapped_file in on_disk.items():
        if offset not in wanted:
            yield Retire(store.relative(mapped_file.path))
    for odd in files.mapped_files.odd:
        if not odd.is_directory:
            yield Retire(store.relative(odd.path))
