"""The search that goes on behind damage: for the next record that is intact, or the end mark of the file."""

from __future__ import annotations

from msgspec import Struct

from formats.commitlog import BLANK_SIZE, HEAD_SIZE
from formats.errors import FormatError
from formats.kernels.search import find_blank, find_record_head, last_nonzero
from recover.scan.judge import judge
from recover.scan.window import Window

Found = tuple[str, int]
"""What stands there, "record" or "blank", and its position in the file."""


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
        for start, stop in window.reader.data_ranges(position, min(self.length, self.stop)):
            at = start
            while at < stop:
                window.load(at)
                filled = min(window.filled, stop - at + HEAD_SIZE)
                data_end = last_nonzero(window.data, 0, window.filled)
                if data_end >= 0:
                    last_data = max(last_data, min(self.base + at + data_end + 1, self.base + self.length))
                found = self._next_candidate(at, max(at, first), filled)
                if found is not None and found[1] < self.stop:
                    return found, last_data
                if window.is_last:
                    # also where the file has become shorter under the scan: nothing of it is left further on
                    return None, last_data
                at += max(1, window.filled - HEAD_SIZE)
        return None, last_data

    def _next_candidate(self, start: int, first: int, filled: int) -> Found | None:
        window, at = self.window, first - start
        base = self.base + start
        while at < filled:
            head = find_record_head(window.data, at, filled, base)
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

    def _is_intact(self, start: int, position: int) -> bool:
        try:
            judge(self.window.bytes_at, position, self.base, self.file_end)
        except FormatError:
            return False
        finally:
            if self.window.start != start:
                self.window.load(start)
        return True
