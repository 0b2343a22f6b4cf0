"""The files of one consume queue and the units in them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from msgspec import Struct, field

from formats.commitlog import MIN_RECORD_SIZE
from formats.consumequeue import CQ_UNIT, PRE_BLANK, CqUnit, is_ext_address
from recover.files.mapped_files import MappedFile, MappedFileQueue
from recover.files.reader import FileReader, ReadFailure, spend
from recover.files.store import Store
from recover.memory.columns import Rows

UNIT_SIZE = CQ_UNIT.size


class Stretch(Struct):
    """Units of adjoining files: cell i is queue offset `first_index + i`. Columns are native int64/int32.

    There are `cells` cells in the files; those of the columns, and after them only zeros.
    """

    first_index: int
    files: list[MappedFile]
    cells: int
    phy_offset: Rows
    size: Rows
    tags_code: Rows

    @property
    def held(self) -> int:
        """How many cells the columns have."""
        return int(self.phy_offset.size)

    def place(self, cell: int) -> tuple[MappedFile, int]:
        """The file that holds a cell and the byte position of the cell in it."""
        position = (self.first_index + cell) * UNIT_SIZE
        for mapped_file in reversed(self.files):
            if position >= mapped_file.file_from_offset:
                return mapped_file, position - mapped_file.file_from_offset
        return self.files[0], 0


class QueueFiles(Struct, dict=True):
    """One consume queue on disk. Units are read when asked for and not kept."""

    store: Store
    topic: str
    queue_id: int
    failures: list[ReadFailure] = field(default_factory=list)

    @cached_property
    def mapped_files(self) -> MappedFileQueue:
        """The queue's files; its file size is that of all consume queues of the store."""
        folder = self.store.consumequeue_dir / self.topic / str(self.queue_id)
        return MappedFileQueue.load((folder,), self.store.queue_file_size)

    def stretches(self, *, whole: bool = True) -> Iterator[Stretch]:
        """The units of the queue, one stretch for each run of adjoining files.

        Unless `whole`, columns end where the file system stores nothing more: of a new file that is nearly all of it.
        """
        run: list[MappedFile] = []
        for mapped_file in self.mapped_files.files:
            if run and mapped_file.file_from_offset != run[-1].file_from_offset + self.store.queue_file_size:
                yield self._load(run, whole)
                run = []
            run.append(mapped_file)
        if run:
            yield self._load(run, whole)

    def _load(self, files: list[MappedFile], whole: bool) -> Stretch:
        size = self.store.queue_file_size
        cells = len(files) * size // UNIT_SIZE
        pieces = [self._read(mapped_file, whole or mapped_file is not files[-1]) for mapped_file in files]
        content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        units = np.frombuffer(content, dtype=CQ_UNIT.dtype, count=min(cells, len(content) // UNIT_SIZE))
        return Stretch(
            files[0].file_from_offset // UNIT_SIZE, files, cells,
            units["phy_offset"].astype(np.int64), units["size"].astype(np.int32), units["tags_code"].astype(np.int64),
        )

    def _read(self, mapped_file: MappedFile, whole: bool) -> bytearray:
        """The bytes of a file, padded to its full size, or unless `whole` up to where it has nothing more."""
        size = self.store.queue_file_size
        with FileReader(mapped_file.path, again=False) as reader:
            ranges = list(reader.data_ranges(0, min(size, mapped_file.length)))
            end = size if whole else -(-max((stop for _, stop in ranges), default=0) // UNIT_SIZE) * UNIT_SIZE
            content = bytearray(end)
            for start, stop in ranges:
                spend(stop - start)
                self.failures += reader.salvage_into(memoryview(content)[start:stop], start)[1]
        return content


def unit_at(files: MappedFileQueue, queue_offset: int) -> CqUnit | None:
    """The unit of one queue offset, None where there is no file or the file ends. `OSError`."""
    position = queue_offset * UNIT_SIZE
    mapped_file = files.find(position)
    if mapped_file is None:
        return None
    with FileReader(mapped_file.path) as reader:
        content = reader.read(position - mapped_file.file_from_offset, UNIT_SIZE)
    return CQ_UNIT.decode(content) if len(content) == UNIT_SIZE else None


def has_ext(stretch: Stretch) -> bool:
    """True when a unit of the stretch points into consumequeue_ext."""
    return bool(stretch.tags_code.size) and is_ext_address(int(stretch.tags_code.min()))


def cut_off(phy_offset: Rows, size: Rows, used: int, min_offset: int) -> int:
    """Cell after the last unit of an expired message that stands after the first cell without a unit, `used`.

    `used` if there is none. Brokers leave no gap, so the cell was a unit too; with all of its messages expired a queue
    has nothing but this to show that it was longer. Bytes that do not go on from the unit before are not units.
    """
    before = int(phy_offset[used - 1]) if used else -1
    rest, sizes = phy_offset[used:], size[used:]
    units = (sizes >= MIN_RECORD_SIZE) & (sizes < PRE_BLANK.size) & (rest > before) & (rest + sizes <= min_offset)
    found = np.flatnonzero(units)
    return used + int(found[-1]) + 1 if found.size else used
