"""Positional, read-only access to the files of a store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recover.store.reading import reads_of
from recover.store.source import ReadFailure, Source, missing, open_source

__all__ = ["FileReader", "Pace", "ReadAhead", "ReadFailure", "descriptor_cache", "read_small", "set_rate", "spend"]

_BURST_SECONDS = 0.05


class Pace:
    """Limits reads to `rate` bytes a second; None for no limit."""

    def __init__(self, rate: int | None = None) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def spend(self, size: int) -> None:
        """Account for `size` bytes read; returns when the next read may start."""
        if self._rate is None or size <= 0:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            wait = self._free_at - now
        if wait > _BURST_SECONDS:
            time.sleep(wait)


_pace = Pace()


def set_rate(rate: int | None) -> None:
    """Limit the reads of this process to `rate` bytes a second from now on; None lifts the limit."""
    global _pace
    _pace = Pace(rate)


def spend(size: int) -> None:
    """Account for `size` bytes of a store that were read."""
    _pace.spend(size)


BLOCK = 1 << 20
AHEAD = 8 * BLOCK


class ReadAhead:
    """Read-ahead advice for one pass over an open file, from any position up to `length` bytes.

    Up to `behind` bytes after that, of the next pass, may be read, too. Does nothing if the file system cannot tell
    what is cached. Failed advice does not fail the scan.
    """

    def __init__(self, descriptor: int, length: int, behind: int = 0) -> None:
        self._descriptor = descriptor
        self._length = length
        self._behind = behind
        self._drops_behind: bool | None = None
        self._asked = -1  # the end of what has been checked for caching
        self._cold: list[int] = []
        self._works = descriptor >= 0 and hasattr(os, "RWF_NOWAIT")
        if self._works:
            # the kernel's own read-ahead would make everything appear cached before
            self._advise(0, os.POSIX_FADV_RANDOM, 0)

    def announce(self, position: int, size: int) -> None:
        """Announce that [position, position + size) is read next, and that nothing before it is needed any more."""
        if not self._works:
            return
        self._drop(position)
        start = max(self._asked, position // BLOCK * BLOCK)
        stop = min(self._length, position + size + AHEAD)
        # half the distance at a time, since each piece of advice costs a system call
        if stop < self._length and stop - start < AHEAD // 2 and self._asked >= position + size:
            return
        at = start
        while at < stop and self._works:
            if not self.holds(at):
                self._cold.append(at)
                self._advise(at, os.POSIX_FADV_WILLNEED)
            at += BLOCK
        self._asked = max(self._asked, at)
        if self._behind and at >= self._length and self._drops_behind is None:
            # not the first byte, which the next pass will test itself
            self._drops_behind = not self.holds(self._length + self._behind - 1)

    def close(self) -> None:
        """End the pass."""
        self._drop(self._asked + BLOCK)
        if self._works and self._drops_behind:
            self._advise(self._length, os.POSIX_FADV_DONTNEED, self._behind)

    def holds(self, at: int) -> bool:
        """Whether the page cache holds the byte at `at`, as far as the file system can tell."""
        if not self._works:
            return True
        try:
            os.preadv(self._descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            # this file system cannot tell: leave read-ahead to the kernel
            self._advise(0, os.POSIX_FADV_NORMAL, 0)
            self._works = False
        return True

    def _drop(self, position: int) -> None:
        while self._cold and self._cold[0] + BLOCK <= position:
            self._advise(self._cold.pop(0), os.POSIX_FADV_DONTNEED)

    def _advise(self, at: int, advice: int, size: int = BLOCK) -> None:
        try:
            os.posix_fadvise(self._descriptor, at, size, advice)
        except OSError:
            self._works = False


_BLOCK = 4096
_MOST_KEPT = 64


class _DescriptorCache:
    """Cache of open files that are not in use, and of paths without a file."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._missing: set[str] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def take(self, path: Path | str) -> Source:
        """Return an open source for exclusive use."""
        name = str(path)
        with self._lock:
            source = self._sources.pop(name, None)
            if source is not None:
                return source
            if name in self._missing:
                raise missing(name)
        try:
            return open_source(path)
        except FileNotFoundError:
            self._missing.add(name)
            raise

    def give(self, path: Path | str, source: Source) -> None:
        """Return a source to the cache."""
        with self._lock:
            if self._is_over or str(path) in self._sources:
                source.close()
                return
            self._sources[str(path)] = source
            if len(self._sources) > _MOST_KEPT:
                self._sources.pop(next(iter(self._sources))).close()

    def end(self) -> None:
        """Close the cached sources, and from now on those that are returned."""
        with self._lock:
            self._is_over = True
            for source in self._sources.values():
                source.close()
            self._sources.clear()


_cache: _DescriptorCache | None = None


@contextmanager
def descriptor_cache() -> Iterator[None]:
    """Within the block a file that is read again is the one first opened, even if its name now means another file.

    Limit the block to one analysis of a store that mqtool itself does not change meanwhile.
    """
    global _cache
    if _cache is not None:
        yield
        return
    _cache = cache = _DescriptorCache()
    try:
        yield
    finally:
        _cache = None
        cache.end()


class FileReader:
    """One file of a store, opened for reading only. Never maps, never locks, never creates.

    `again`: within `descriptor_cache` keep the file open, since it may be read again soon.
    """

    def __init__(self, path: Path | str, *, again: bool = True) -> None:
        self._path = path
        self._cache = _cache if again else None
        self.source = open_source(path) if self._cache is None else self._cache.take(path)
        self._reads = reads_of(path, self.descriptor)

    @property
    def path(self) -> Path:
        """The file's path as it was given."""
        return self._path if isinstance(self._path, Path) else Path(self._path)

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, or return it to the cache."""
        if self._cache is not None:
            self._cache.give(self._path, self.source)
        else:
            self.source.close()

    @property
    def descriptor(self) -> int:
        """The open file's descriptor, for advice to the kernel; -1 if there is none."""
        return self.source.descriptor

    @property
    def length(self) -> int:
        return self.source.length

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`: fewer only at the end of the file. `ReadFailure` on an I/O error."""
        content = self.source.read(offset, length)
        if self._reads is not None:
            self._reads.note(offset, len(content), content)
        return content

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; return the bytes read, fewer only at the file's end. `ReadFailure` on an I/O
        error."""
        got = self.source.read_into(buffer, offset)
        if self._reads is not None:
            self._reads.note(offset, got, buffer)
        return got

    def announce(self, start: int, stop: int) -> None:
        """Announce that [start, stop) is read next, in order, and that nothing before it is needed any more."""
        self.source.announce(start, stop)

    def data_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the stored parts of [start, stop); the holes between them read as zeros."""
        at = start
        for first, last in self.source.stored(start, stop):
            self._note_hole(at, first)
            yield first, last
            at = last
        self._note_hole(at, stop)

    def _note_hole(self, start: int, stop: int) -> None:
        if self._reads is not None:
            self._reads.note(start, min(stop, self.length) - start)

    def salvage_into(self, buffer: memoryview, offset: int) -> tuple[int, list[ReadFailure]]:
        """Fill `buffer` from `offset` with what can be read; unreadable blocks of 4 KiB become zeros.

        Returns the bytes filled, fewer only at the end of the file, and each range that could not be read.
        """
        failures: list[ReadFailure] = []
        with suppress(ReadFailure):
            return self.read_into(buffer, offset), failures
        at = 0
        while at < len(buffer):
            # each block is tried by itself, once: a failed read may take seconds
            block = buffer[at : at + _BLOCK - (offset + at) % _BLOCK]
            try:
                got = self.read_into(block, offset + at)
            except ReadFailure as failure:
                got, start = len(block), offset + at
                block[:] = bytes(got)
                if failures and failures[-1].offset + failures[-1].wanted == start:
                    start = failures.pop().offset
                failures.append(ReadFailure(self.path, start, offset + at + got - start, 0, failure.cause))
            at += got
            if got < len(block):
                break
        return at, failures


def read_small(path: Path, limit: int) -> bytes:
    """Return the file's bytes, at most `limit` of them."""
    with FileReader(path) as reader:
        return reader.read(0, min(limit, reader.length))
