"""One consume queue file in the memory of a broker: bytes of the disk, overlaid by what was appended since."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from formats.consumequeue import CQ_UNIT
from recover.files.reader import FileReader
from recover.memory.columns import Rows

UNIT = CQ_UNIT.size


class QueueFile:
    """A file that begins at byte `start` of its queue and takes `size` bytes; `path` is None for one made by dispatch.

    `wrote` is the write position, bytes in the file. Content is read when asked for and not kept.
    """

    def __init__(self, start: int, size: int, path: Path | None = None) -> None:
        self.start = start
        self.size = size
        self.path = path
        self.wrote = size if path is not None else 0
        self.first_in_queue = False
        self._frozen: Rows | None = None if path is not None else _none()
        self._appended_at = -1
        self._parts: list[Rows] = []

    @property
    def full(self) -> bool:
        return self.wrote == self.size

    @property
    def end(self) -> int:
        """Byte of the queue at which the next unit goes."""
        return self.start + self.wrote

    def content(self) -> Rows:
        """Units from the start of the file (dtype of CQ_UNIT) to its last data; after it are zeros only."""
        base = self._frozen if self._frozen is not None else self._from_disk()
        if not self._parts:
            return base
        added = np.concatenate(self._parts)
        head = _padded(base[: self._appended_at], self._appended_at)
        return np.concatenate([head, added, base[self._appended_at + added.size :]])

    def valid(self) -> Rows:
        """The units before the write position."""
        count = self.wrote // UNIT
        return _padded(self.content()[:count], count)

    def unit(self, index: int) -> tuple[int, int, int]:
        """(phy_offset, size, tags_code) of one unit."""
        if not self._parts and self._frozen is None and self.path is not None:
            with FileReader(self.path) as reader:
                found = reader.read(index * UNIT, UNIT)
            unit = CQ_UNIT.decode(found.ljust(UNIT, b"\0"))
            return unit.phy_offset, unit.size, unit.tags_code
        content = self.content()
        if index >= content.size:
            return 0, 0, 0
        phy_offset, size, tags_code = content[index].tolist()
        return phy_offset, size, tags_code

    def append(self, units: Rows) -> None:
        """Write units at the write position; they must fit."""
        if not self._parts:
            self._appended_at = self.wrote // UNIT
        self._parts.append(units)
        self.wrote += units.size * UNIT

    def cut(self, wrote: int) -> None:
        """Move the write position back; the bytes after it stay."""
        if self._parts:
            self._frozen, self._parts = self.content(), []
        self.wrote = wrote

    def _from_disk(self) -> Rows:
        if self.path is None:
            return _none()
        with FileReader(self.path) as reader:
            stop = max((last for _, last in reader.data_ranges(0, self.size)), default=0)
            content = reader.read(0, min(-(-stop // UNIT) * UNIT, self.size))
        return np.frombuffer(content, dtype=CQ_UNIT.dtype, count=len(content) // UNIT)


def _none() -> Rows:
    return np.empty(0, dtype=CQ_UNIT.dtype)


def _padded(units: Rows, count: int) -> Rows:
    if units.size >= count:
        return units
    return np.concatenate([units, np.zeros(count - units.size, dtype=CQ_UNIT.dtype)])
