"""The search that goes on behind damage: for the next record that is intact, or the end mark of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from formats.commitlog import BLANK, BLANK_SIZE, HEAD, HEAD_SIZE, HEADS, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from formats.crc import CRC31_MASK
from formats.errors import FormatError
from formats.layout import Layout
from formats.native.walk import find_blank, find_record_head, last_nonzero
from formats.sysflag import HOSTS_V6
from recover.files.range_sums import Numbers
from recover.scan.judge import judge
from recover.scan.window import Window

Found = tuple[str, int]
"""What stands there, "record" or "blank", and its position in the file."""

_FEW = 16
"""So many heads of a stretch are judged one by one; of more, those together whose bodies are not what was stored."""
_LARGEST_HEAD = max(layout.size for layout in HEADS.values())


class HoleSearch(Struct, frozen=True):
    """In one mapped file, through a window over it: `base` is its physical offset, `file_end` where it ends at its full
    size, `length` what of it is there, and what begins at `stop` in it belongs to another scan."""

    window: Window
    base: int
    length: int
    stop: int
    file_end: int

    def first_intact(self, position: int, first: int, last_data: int) -> tuple[Found | None, int]:
        """The first intact record or end mark at or behind `first`, and the end of the last data from `position` on.

        `last_data` is where that ends in front of `position`.
        """
        window = self.window
        end = min(self.length, self.stop)
        for start, stop in self._stored(position, end):
            at = start
            while at < stop:
                window.load(at)
                loaded = window.filled
                data_end = last_nonzero(window.data, 0, min(loaded, end - at))
                if data_end >= 0:
                    last_data = max(last_data, self.base + at + data_end + 1)
                found = self._next_candidate(at, max(at, first), min(loaded, stop - at + HEAD_SIZE))
                if found is not None and found[1] < self.stop:
                    return found, last_data
                if loaded < min(HEAD_SIZE, end - at):
                    # the file has become shorter under the scan: nothing of it is left further on
                    return None, last_data
                at += max(1, loaded - HEAD_SIZE)
        return None, last_data

    def _stored(self, position: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [position, end) in which something can begin: what the file system stores, and a head before.

        Holes read as zeros, and so may the first bytes of a record or an end mark: the size that it begins with.
        Parts that are close together are one, so that the buffer is not filled for each.
        """
        last: tuple[int, int] | None = None
        for start, stop in self.window.reader.data_ranges(position, end):
            start = max(position, start - HEAD_SIZE)
            if last is not None and start - last[1] > self.window.data.size:
                yield last
                last = None
            last = (start if last is None else last[0], stop)
        if last is not None:
            yield last

    def _next_candidate(self, start: int, first: int, filled: int) -> Found | None:
        window, at = self.window, first - start
        base = self.base + start
        judged, doubtful = 0, None
        while at < filled:
            if judged == _FEW:
                doubtful = np.append(self._doubtful(start, at, filled), -1)
            judged += 1
            if doubtful is None:
                head = find_record_head(window.data, at, filled, base)
            else:
                head = int(doubtful[np.searchsorted(doubtful[:-1], at)])
            behind = filled if head < 0 else min(filled, head + BLANK_SIZE - 1)
            blank = find_blank(window.data, at, behind, base, self.file_end)
            if blank >= 0:
                return "blank", start + blank
            if head < 0:
                return None
            if self._is_intact(start, start + head):
                return "record", start + head
            if window.start != start:
                window.load(start)
            at = head + 1
        return None

    def _doubtful(self, start: int, first: int, filled: int) -> Numbers:
        """Where in the window a head stands in its own place that nothing in it or in its body's sum rules out."""
        data = self.window.data[:filled]
        at = _heads(data, first, self.base + start)
        whole = at <= filled - _LARGEST_HEAD
        kept = [at[~whole]]
        at = at[whole]
        hosts = _field(data, at, HEAD, "sys_flag") & HOSTS_V6
        for flag, layout in HEADS.items():
            own = at[hosts == flag]
            size, length = (_field(data, own, layout, name) for name in ("total_size", "body_length"))
            begin, left = start + own + layout.size, self.length - start - own
            fits = (size >= MIN_RECORD_SIZE) & (size <= left) & (length >= 0) & (layout.size + length <= size)
            stored = _field(data, own, layout, "body_crc")
            summed = fits & (length > 0)
            sums = self.window.sums.crcs(begin[summed], (begin + length)[summed], start, data)
            fits[summed] = (sums & CRC31_MASK) == stored[summed]
            kept.append(own[fits])
        return np.sort(np.concatenate(kept))

    def _is_intact(self, start: int, position: int) -> bool:
        try:
            judge(self.window.bytes_at, position, self.base, self.file_end, self.window.sums)
        except FormatError:
            return False
        finally:
            if self.window.start != start:
                self.window.load(start)
        return True


def _heads(data: Numbers, first: int, base: int) -> Numbers:
    """Where heads of records stand in the data, from `first` on, that name this place: `base` and what is before."""
    at = [np.empty(0, dtype=np.int64)]
    for shift in range(4):
        words = np.frombuffer(data, dtype=">i4", offset=shift, count=max(0, (data.size - shift) // 4))
        magic = np.flatnonzero((words == MAGIC_V1) | (words == MAGIC_V2))
        at.append(magic * 4 + shift - BLANK.offset("magic"))
    found = np.sort(np.concatenate(at))
    found = found[(found >= first) & (found <= data.size - HEAD_SIZE)]
    return np.compress(_field(data, found, HEAD, "phy_offset") == base + found, found)


def _field(data: Numbers, at: Numbers, layout: Layout[Any], name: str) -> Numbers:
    """One field of all structures that stand there (int64)."""
    kind = np.dtype(layout.field(name).wire.numpy)
    begin = at + layout.offset(name)
    content = np.ascontiguousarray(data[begin[:, None] + np.arange(kind.itemsize)])
    return content.view(kind)[:, 0].astype(np.int64)
