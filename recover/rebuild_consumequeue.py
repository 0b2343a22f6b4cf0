"""Consume queues computed from the log: the cells of one queue, and the steps that put them on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formats.consumequeue import CQ_UNIT, PRE_BLANK
from formats.names import offset_to_name
from recover.columns import Rows
from recover.delays import DelayTable
from recover.expected import QueueKey, is_lost
from recover.plan import Install, Retire, Step, WriteRange, ZeroRange
from recover.queue_files import UNIT_SIZE, QueueFiles
from recover.spool import Spool
from recover.store import Store

_JOIN_DISTANCE = 4096


@dataclass(frozen=True, slots=True)
class QueueCells:
    """All cells of a queue from queue offset `first_index` on, dtype CQ_UNIT.dtype; `first_index` begins a file."""

    key: QueueKey
    first_index: int
    cells: Rows

    def files(self, file_size: int) -> Iterator[tuple[int, bytes]]:
        """(file_from_offset, content) of each queue file, each padded with zeros to `file_size` bytes."""
        content = self.cells.tobytes()
        start = self.first_index * UNIT_SIZE
        for at in range(0, max(len(content), 1), file_size):
            yield start + at, content[at : at + file_size].ljust(file_size, b"\0")


class QueueBuilder:
    """Builds the cells of queues for one store.

    `min_offset` and `log_end` are those of the log that the queues shall fit; `visible` makes the unit of a
    lost position name its marker instead of repeating the message in front of it.
    """

    def __init__(self, store: Store, delays: DelayTable, min_offset: int, log_end: int, *, visible: bool = False) -> None:
        self.store = store
        self.delays = delays
        self.min_offset = min_offset
        self.log_end = log_end
        self.visible = visible
        self.file_cells = store.queue_file_size // UNIT_SIZE

    def fresh(self, key: QueueKey, rows: Rows) -> QueueCells:
        """The queue as a broker would build it from the log alone: pre-blanks up to the first live position."""
        first = int(rows["queue_offset"][0]) // self.file_cells * self.file_cells
        return self._fill(key, first, np.full(int(rows["queue_offset"][-1]) + 1 - first, -1), rows, None)

    def repaired(self, key: QueueKey, rows: Rows) -> QueueCells | None:
        """The queue on disk with its live positions put right; expired units stay, units behind the log go.

        None when neither the disk nor the log has anything of it.
        """
        old = _old_cells(QueueFiles(self.store, key.topic, key.queue_id), self.file_cells)
        first_live = int(rows["queue_offset"][0]) if rows.size else None
        if old is None:
            return None if first_live is None else self.fresh(key, rows)
        first = old.first_index
        if first_live is not None and first_live < first:
            first = first_live // self.file_cells * self.file_cells
        end = max(self._kept_end(old), int(rows["queue_offset"][-1]) + 1 if rows.size else 0)
        return self._fill(key, first, np.full(max(0, end - first), -1), rows, old)

    def _kept_end(self, old: QueueCells) -> int:
        """Queue offset behind the last cell that stays: the last that names something inside the log."""
        offset, size = old.cells["phy_offset"].astype(np.int64), old.cells["size"].astype(np.int64)
        invalid = np.flatnonzero(size <= 0)
        used = int(invalid[0]) if invalid.size else size.size
        kept = np.flatnonzero((offset[:used] + size[:used] <= self.log_end) & (size[:used] != PRE_BLANK.size))
        return old.first_index + (int(kept[-1]) + 1 if kept.size else 0)

    def _fill(self, key: QueueKey, first: int, blank: Rows, rows: Rows, old: QueueCells | None) -> QueueCells:
        cells = np.zeros(blank.size, dtype=CQ_UNIT.dtype)
        cells[:] = PRE_BLANK
        if old is not None:
            self._keep_expired(cells, first, old)
        at = rows["queue_offset"] - first
        for name, values in (
            ("phy_offset", rows["phy_offset"]), ("size", rows["size"]), ("tags_code", self.delays.tags_codes(rows)),
        ):
            cells[name][at] = values
        if old is not None:
            self._keep_ext(cells, first, old, rows)
        first_live = int(rows["queue_offset"][0]) if rows.size else first + cells.size
        lost = np.zeros(cells.size, dtype=bool)
        lost[at] = is_lost(rows)
        claimed = np.zeros(cells.size, dtype=bool)
        claimed[at] = True
        # an unclaimed place between live ones would be a pre-blank in mid-queue, where consumers lose messages
        unclaimed = ~claimed
        unclaimed[: max(0, first_live - first)] = False
        self._stand_in(key, cells, (lost if not self._shows_marker(key) else np.zeros_like(lost)) | unclaimed)
        return QueueCells(key, first, cells)

    def _shows_marker(self, key: QueueKey) -> bool:
        return self.visible or key.topic == "RMQ_SYS_TRANS_HALF_TOPIC"

    def _keep_expired(self, cells: Rows, first: int, old: QueueCells) -> None:
        start = old.first_index - first
        count = min(old.cells.size, cells.size - start)
        if count <= 0:
            return
        kept = old.cells[:count]
        stays = (kept["size"] > 0) & (kept["phy_offset"].astype(np.int64) < self.min_offset)
        cells[start : start + count][stays] = kept[stays]

    def _keep_ext(self, cells: Rows, first: int, old: QueueCells, rows: Rows) -> None:
        """Addresses of ext units stay where the unit names the right record and the ext unit is intact."""
        addressed = old.cells["tags_code"] < -(2**31)
        if not addressed.any():
            return
        units = QueueFiles(self.store, old.key.topic, old.key.queue_id).ext_units()
        for index in rows["queue_offset"].tolist():
            at = index - old.first_index
            if not 0 <= at < old.cells.size or not addressed[at]:
                continue
            new, unit = cells[index - first], units.get(int(old.cells["tags_code"][at]))
            same = old.cells["phy_offset"][at] == new["phy_offset"] and old.cells["size"][at] == new["size"]
            if same and unit is not None and unit.tags_code == int(new["tags_code"]):
                cells["tags_code"][index - first] = old.cells["tags_code"][at]

    @staticmethod
    def _stand_in(key: QueueKey, cells: Rows, missing: Rows) -> None:
        """Give each missing place the unit in front of it; at the queue's beginning, the one behind it."""
        if not missing.any():
            return
        good = np.where(missing | (cells["size"] == PRE_BLANK.size), -1, np.arange(cells.size))
        in_front = np.maximum.accumulate(good)
        behind = np.where(good < 0, cells.size, good)
        behind = np.minimum.accumulate(behind[::-1])[::-1]
        source = np.where(in_front >= 0, in_front, np.where(behind < cells.size, behind, -1))
        usable = missing & (source >= 0)
        cells[usable] = cells[source[usable]]


def _old_cells(files: QueueFiles, file_cells: int) -> QueueCells | None:
    """The cells on disk up to the first gap between files, over whole files."""
    for stretch in files.stretches():
        cells = np.zeros(stretch.cells, dtype=CQ_UNIT.dtype)
        for name in ("phy_offset", "size", "tags_code"):
            cells[name] = getattr(stretch, name)
        return QueueCells(QueueKey(files.topic, files.queue_id), stretch.first_index, cells)
    return None


def queue_steps(store: Store, queue: QueueCells, spool: Spool) -> Iterator[Step]:
    """Steps that make the files of a queue on disk hold exactly these cells; nothing for a file that does."""
    files = QueueFiles(store, queue.key.topic, queue.key.queue_id)
    folder = store.consumequeue_dir / queue.key.topic / str(queue.key.queue_id)
    size = store.queue_file_size
    wanted = {offset for offset, _ in queue.files(size)}
    on_disk = {mapped_file.file_from_offset: mapped_file for mapped_file in files.mapped_files.files}
    for offset, content in queue.files(size):
        path = folder / offset_to_name(offset)
        mapped_file = on_disk.get(offset)
        if mapped_file is None or mapped_file.length != size:
            yield Install(store.relative(path), spool.keep(content))
        else:
            yield from _patches(store.relative(path), path.read_bytes(), content)
    for offset, mapped_file in on_disk.items():
        if offset not in wanted:
            yield Retire(store.relative(mapped_file.path))
    for odd in files.mapped_files.odd:
        if not odd.is_directory:
            yield Retire(store.relative(odd.path))


def _patches(file: str, old: bytes, new: bytes) -> Iterator[Step]:
    """The ranges in which two contents of one length differ, near ones joined."""
    a, b = np.frombuffer(old, dtype=np.uint8), np.frombuffer(new, dtype=np.uint8)
    differing = np.flatnonzero(a != b)
    if not differing.size:
        return
    cuts = np.flatnonzero(np.diff(differing) > _JOIN_DISTANCE) + 1
    for run in np.split(differing, cuts):
        start, stop = int(run[0]), int(run[-1]) + 1
        yield _range_step(file, start, new[start:stop])


def _range_step(file: str, start: int, content: bytes) -> Step:
    if not any(content):
        return ZeroRange(file, start, start + len(content))
    return WriteRange(file, start, content)


