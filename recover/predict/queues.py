"""One consume queue in a starting broker: recovered, appended to, truncated (ConsumeQueue)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from formats.basics import MAX_OFFSET
from formats.consumequeue import CQ_UNIT, PRE_BLANK, valid_mask
from formats.index import INDEX_HEADER
from recover.broker.recovery import BrokenStartError
from recover.broker.settings import BrokerSettings
from recover.broker.versions import DEDUPE_BY_START, EMPTY_LAST_QUEUE_FILE_BREAKS, MIN_BY_BISECTION
from recover.findings.model import Phrase
from recover.store.columns import Rows
from recover.store.source import names_in, open_file, read_small

# --- One consume queue file in the memory of a broker: the bytes on disk, plus what was appended since.


UNIT = CQ_UNIT.size


class Leading(NamedTuple):
    """The valid units at the beginning of a queue file, up to the first that is not: how many, the largest physical
    offset among them, and the first and the last as (phy_offset, size, tags_code)."""

    units: int
    highest: int = -1
    first: tuple[int, int, int] = (0, 0, 0)
    last: tuple[int, int, int] = (0, 0, 0)


class QueueFile:
    """`size` bytes of the queue from byte `start` on, `wrote` of them before the write position, `stored` at most as
    they are on the disk; `path` is None if dispatch created it. Content is read on demand and not kept."""

    def __init__(self, start: int, size: int, path: Path | None = None) -> None:
        self.start = start
        self.size = size
        self.path = path
        self.wrote = self.stored = size if path is not None else 0
        self.first_in_queue = False
        self._frozen: Rows | None = None if path is not None else _none()
        self._appended_at = -1
        self._parts: list[Rows] = []
        self._leading: Leading | None = None

    @property
    def _as_on_disk(self) -> bool:
        return not self._parts and self._frozen is None

    @property
    def full(self) -> bool:
        return self.wrote == self.size

    @property
    def end(self) -> int:
        """The queue position, in bytes, of the next unit."""
        return self.start + self.wrote

    def content(self) -> Rows:
        """Units from the start of the file (dtype of CQ_UNIT) to its last data; only zeros follow."""
        base = self._frozen if self._frozen is not None else self._from_disk()
        if not self._parts:
            return base
        added = np.concatenate(self._parts)
        head = _padded(base[: self._appended_at], self._appended_at)
        return np.concatenate([head, added, base[self._appended_at + added.size :]])

    def valid(self) -> Rows:
        count = self.wrote // UNIT
        return _padded(self.content()[:count], count)

    def leading(self) -> Leading:
        """The file is read for them once, unless the start changes it."""
        if self._leading is None or not self._as_on_disk:
            units = self.content()
            invalid = ~valid_mask(units)
            units = units[: int(invalid.argmax())] if invalid.any() else units
            self._leading = Leading(0)
            if units.size:
                highest = int(units["phy_offset"].max())
                self._leading = Leading(units.size, highest, units[0].tolist(), units[-1].tolist())
        return self._leading

    def unit(self, index: int) -> tuple[int, int, int]:
        """(phy_offset, size, tags_code) of one unit."""
        if self._as_on_disk and self.path is not None:
            known = self._leading or Leading(0)
            if known.units and index in (0, known.units - 1):
                return known.last if index else known.first
            with open_file(self.path) as reader:
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
            self.stored = min(self.stored, self.wrote)
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
        with open_file(self.path) as reader:
            stop = max((last for _, last in reader.data_ranges(0, self.size)), default=0)
            content = reader.read(0, min(-(-stop // UNIT) * UNIT, self.size))
        return np.frombuffer(content, dtype=CQ_UNIT.dtype, count=len(content) // UNIT)


def _none() -> Rows:
    return np.empty(0, dtype=CQ_UNIT.dtype)


def _padded(units: Rows, count: int) -> Rows:
    if units.size >= count:
        return units
    return np.concatenate([units, np.zeros(count - units.size, dtype=CQ_UNIT.dtype)])


RECOVERED_BY_LAST_FILES = 3
LARGEST_OFFSET = MAX_OFFSET // UNIT


class QueueState:
    """Files, largest physical offset (-1: none) and minimum of one queue; positions are bytes of the queue.
    `misaligned`: how many units were appended at another index than their queue offset."""

    def __init__(
        self, topic: str, queue_id: int, file_size: int, files: list[QueueFile], settings: BrokerSettings,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.file_size = file_size
        self.files = files
        self.deleted: list[QueueFile] = []
        self.by_start = settings.version.has(DEDUPE_BY_START)
        self.bisects = settings.version.has(MIN_BY_BISECTION)
        self.empty_breaks = settings.version.has(EMPTY_LAST_QUEUE_FILE_BREAKS)
        self.max_physic = -1
        self.min_logic = 0
        self.misaligned = 0

    @property
    def end(self) -> int:
        return self.files[-1].end if self.files else 0

    @property
    def max_offset(self) -> int:
        """The queue offset of the next message."""
        return self.end // UNIT

    @property
    def min_offset(self) -> int:
        return self.min_logic // UNIT

    def keeps(self, first: int, stop: int) -> bool:
        """Whether the start left all units from one queue offset up to another as they are on the disk: none cut, none
        written over, none below the minimum, each where its position says."""
        reached = first * UNIT
        for queue_file in self.files:
            if queue_file.start % queue_file.size == 0 and queue_file.start <= reached:
                reached = max(reached, queue_file.start + min(queue_file.wrote, queue_file.stored))
        return self.min_logic <= first * UNIT and reached >= stop * UNIT

    def recover(self) -> None:
        """Find the end in the last three files and unlink files that begin after it (ConsumeQueue.recover)."""
        if not self.files:
            return
        last = len(self.files) - 1
        index = max(0, len(self.files) - RECOVERED_BY_LAST_FILES)
        while True:
            current = self.files[index]
            count, *_, (phy_offset, size, _) = current.leading()
            if count:
                self._remember(phy_offset, size)
            if count * UNIT < self.file_size or index == last:
                break
            index += 1
        self._truncate_files(current.start + count * UNIT)

    def _truncate_files(self, end: int) -> None:
        kept = []
        for queue_file in self.files:
            if queue_file.start > end:
                self.deleted.append(queue_file)
                continue
            if queue_file.start + self.file_size > end:
                queue_file.cut(end % self.file_size)
            kept.append(queue_file)
        self.files = kept

    def _remember(self, phy_offset: int, size: int) -> None:
        self.max_physic = phy_offset if self.by_start else phy_offset + size

    def skips(self, end: int, least: int, most: int) -> bool:
        """Whether `append` certainly skips all messages with queue offsets of this range that end by physical `end`:
        the queue has them already."""
        if end <= self.max_physic:
            return True
        return least > 0 and most < self.max_offset and 0 < self.files[-1].wrote < self.files[-1].size

    def append(self, queue_offsets: Rows, units: Rows) -> None:
        """Append messages in log order: `queue_offsets` (int64) and their units (dtype of CQ_UNIT)."""
        phys = units["phy_offset"].astype(np.int64)
        reach = phys if self.by_start else phys + units["size"]
        first = 0
        while first < units.size and int(reach[first]) <= self.max_physic:
            fresh = reach[first:] > self.max_physic
            first += int(fresh.argmax()) if fresh.any() else int(fresh.size)
        offsets, units = queue_offsets[first:], units[first:]
        while units.size:
            taken = self._append_some(offsets, units)
            offsets, units = offsets[taken:], units[taken:]

    def _append_some(self, offsets: Rows, units: Rows) -> int:
        """Append or skip as many leading units as one rule covers; return their number."""
        if not 0 <= offsets[0] <= LARGEST_OFFSET:
            # such an index comes from damage only; the broker's arithmetic overflows, and the unit goes nowhere useful
            return 1
        target = self._writable(int(offsets[0]))
        current = target.end // UNIT
        # an index below the current one counts as a repetition, except index 0, which is not compared
        if 0 < offsets[0] < current:
            repeated = (offsets > 0) & (offsets < current)
            return int((~repeated).argmax()) if not repeated.all() else int(offsets.size)
        room = (self.file_size - target.wrote) // UNIT
        ahead = offsets[:room] - (current + np.arange(min(room, offsets.size)))
        fits = (ahead >= 0) | (offsets[:room] == 0)
        count = int((~fits).argmax()) if not fits.all() else int(fits.size)
        target.append(units[:count])
        self.misaligned += int((ahead[:count] != 0).sum())
        self._remember(int(units["phy_offset"][count - 1]), int(units["size"][count - 1]))
        return count

    def _writable(self, queue_offset: int) -> QueueFile:
        """The file for the next unit; a new one of an empty queue is filled with pre-blanks up to it."""
        if self.files and not self.files[-1].full:
            target = self.files[-1]
        else:
            position = queue_offset * UNIT
            start = self.files[-1].start + self.file_size if self.files else position - position % self.file_size
            target = QueueFile(start, self.file_size)
            target.first_in_queue = not self.files
            self.files.append(target)
        if target.first_in_queue and queue_offset != 0 and target.wrote == 0:
            self.min_logic = queue_offset * UNIT
            blanks = self.min_logic % self.file_size // UNIT
            if blanks:
                target.append(np.array([tuple(PRE_BLANK)] * blanks, dtype=CQ_UNIT.dtype))
        return target

    def truncate(self, phy_offset: int) -> None:
        """Drop units of messages that begin at or after `phy_offset` (ConsumeQueue.truncateDirtyLogicFiles)."""
        self.max_physic = phy_offset
        while self.files:
            last = self.files[-1]
            found = last.leading()
            if found.units and found.highest < phy_offset:
                last.cut(found.units * UNIT)
                self._remember(*found.last[:2])
                return
            units = last.content()
            # the first unit is checked by its offset alone: a zero unit stays, as a phantom
            first_offset = int(units["phy_offset"][0]) if units.size else 0
            if first_offset >= phy_offset:
                self.deleted.append(self.files.pop())
                continue
            stop = ~valid_mask(units) | (units["phy_offset"] >= phy_offset)
            stop[:1] = False
            count = max(1, int(stop.argmax()) if stop.any() else units.size)
            last.cut(count * UNIT)
            size = int(units["size"][count - 1]) if units.size else 0
            self._remember(int(units["phy_offset"][count - 1]) if units.size else 0, size)
            return

    def destroy(self) -> None:
        """Remove every file, as without a commitlog (ConsumeQueue.destroy)."""
        self.deleted += self.files
        self.files, self.max_physic, self.min_logic = [], -1, 0

    def correct_min(self, min_phy: int) -> None:
        """Move the minimum past expired units (ConsumeQueue.correctMinOffset); `BrokenStartError` where it throws."""
        if self.bisects:
            self._correct_by_bisection(min_phy)
        elif self.files and self.files[0].wrote:
            first = self.files[0]
            if (known := first.leading()).units and known.first[0] >= min_phy:
                self.min_logic = first.start
                return
            reached = first.valid()["phy_offset"] >= min_phy
            if reached.any():
                self.min_logic = first.start + int(reached.argmax()) * UNIT

    def _correct_by_bisection(self, min_phy: int) -> None:
        if self.min_logic >= self.end or not self.files:
            return
        last, first = self.files[-1], self.files[0]
        if last.wrote == 0 and self.empty_breaks:
            raise BrokenStartError(Phrase("the last file of queue {topic}/{queue} holds no entry", topic=self.topic,
                                          queue=self.queue_id))
        if last.wrote and last.unit(last.wrote // UNIT - 1)[0] < min_phy:
            self.min_logic = last.end
            return
        start = self.min_logic - first.start
        intact = start >= 0
        start = max(0, start)
        if start >= first.wrote:
            return
        if intact and first.unit(start // UNIT)[0] >= min_phy:
            return
        phys = first.valid()["phy_offset"][start // UNIT :].astype(np.int64)
        low, high = _bisect(phys, min_phy)
        for index in range(low, high + 1):
            if phys[index] >= min_phy:
                self.min_logic = first.start + start + index * UNIT
                return


def _bisect(phys: Rows, min_phy: int) -> tuple[int, int]:
    """The broker's bisection, which assumes that offsets ascend."""
    low, high = 0, phys.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        value = int(phys[middle])
        if value > min_phy:
            high = middle
        elif value == min_phy:
            return middle, middle
        else:
            low = middle
    return low, high


# --- Index files at a start (IndexService.load).


def deleted_index_files(directory: Path, index_msg_timestamp: int) -> list[tuple[Path, int, int]]:
    """Return the files that a start after a crash deletes, as (path, first and last physical offset): all that end
    later than the checkpoint's index time (ms)."""
    found = []
    for name in names_in(directory):
        path = directory / name
        if not name.isdecimal() or not path.is_file():
            continue
        header = INDEX_HEADER.decode(read_small(path, INDEX_HEADER.size).ljust(INDEX_HEADER.size, b"\0"))
        if header.end_timestamp > index_msg_timestamp:
            found.append((path, header.begin_phy_offset, header.end_phy_offset))
    return found
