"""Open files, read by position and for reading only: never mapped, locked or created."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from recover.store.reading import data_extents, give_descriptor, reads_of, take_descriptor


class ReadFailure(OSError):  # noqa: N818 - the house word; what it is not is a bug
    """A range that could not be read completely: `path`, `offset` and `wanted` in bytes, `got` bytes read."""

    def __init__(self, path: Path, offset: int, wanted: int, got: int, cause: OSError | None = None) -> None:
        text = cause.strerror if cause is not None else f"only {got} of {wanted} bytes came"
        super().__init__(cause.errno if cause is not None else 0, f"{text} at {offset}", str(path))
        self.path = path
        self.offset = offset
        self.wanted = wanted
        self.got = got
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadFailure, (self.path, self.offset, self.wanted, self.got, self.cause)


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
    """Account for `size` bytes that were read from a disk or a server."""
    _pace.spend(size)


_BLOCK = 4096


class FileReader:
    """One open file; `recover.store.source.open_file` opens it, and sets `path` as it was given.

    `descriptor` is -1 if the system has none for it.
    """

    path: Path
    descriptor = -1

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def length(self) -> int:
        """The file's current length in bytes."""
        raise NotImplementedError

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`: fewer only at the end of the file. `ReadFailure` on an I/O error."""
        raise NotImplementedError

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; return the bytes read, fewer only at the file's end. `ReadFailure` on an I/O
        error."""
        content = self.read(offset, len(buffer))
        buffer[: len(content)] = content
        return len(content)

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

    def data_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the stored parts of [start, stop); the holes between them read as zeros."""
        if start < stop:
            yield start, stop

    def announce(self, start: int, stop: int) -> None:
        """Announce that [start, stop) is read next, in order, and that nothing before it is needed any more."""

    def close(self) -> None:
        """Close the file."""


BLOCK = 1 << 20
AHEAD = 10 * BLOCK
"""The buffer of a scan, and 8 MiB after it."""


class ClosedFile(FileReader):
    """A file that the system does not open, of a known length: each read of it fails, and all of it is one range."""

    def __init__(self, path: Path, length: int, cause: OSError) -> None:
        self.path = path
        self._length = length
        self._cause = cause

    @property
    def length(self) -> int:
        return self._length

    @property
    def failure(self) -> ReadFailure:
        """The failure to read all of it."""
        return ReadFailure(self.path, 0, self._length, 0, self._cause)

    def read(self, offset: int, length: int) -> bytes:
        raise ReadFailure(self.path, offset, length, 0, self._cause)

    def salvage_into(self, buffer: memoryview, offset: int) -> tuple[int, list[ReadFailure]]:
        got = min(len(buffer), max(0, self._length - offset))
        buffer[:got] = bytes(got)
        return got, [self.failure]

    def close(self) -> None:
        pass


class LocalFile(FileReader):
    """A local regular file. `OSError` if there is none, or something else."""

    def __init__(self, path: Path | str) -> None:
        # to make a path of a path costs more than to read a block
        self.path = self._opened = path if isinstance(path, Path) else Path(path)
        self.descriptor = take_descriptor(self._opened)
        self._reads = reads_of(path, self.descriptor)
        self._requested = -1
        """The end of what was requested from the system; -1 before the first announcement."""
        self._cold: list[int] = []
        """The positions of blocks that the page cache lacked, and that are not dropped again yet."""
        self._tells = hasattr(os, "RWF_NOWAIT")
        """Whether the file system can tell what is cached."""

    @property
    def length(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        got = 0
        while got < length:
            try:
                part = os.pread(self.descriptor, length - got, offset + got)
            except OSError as error:
                raise ReadFailure(self.path, offset, length, got, error) from error
            if not part:
                break
            parts.append(part)
            got += len(part)
        content = parts[0] if len(parts) == 1 else b"".join(parts)
        self._note(offset, got, content)
        return content

    def read_into(self, buffer: memoryview, offset: int) -> int:
        got = 0
        while got < len(buffer):
            try:
                size = os.preadv(self.descriptor, [buffer[got:]], offset + got)
            except OSError as error:
                raise ReadFailure(self.path, offset, len(buffer), got, error) from error
            if size == 0:
                break
            got += size
        self._note(offset, got, buffer)
        return got

    def _note(self, offset: int, size: int, content: bytes | memoryview) -> None:
        spend(size)
        if self._reads is not None:
            self._reads.note(offset, size, content)

    def data_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        at = start
        for first, last in data_extents(self.descriptor, start, stop):
            self._note_hole(at, first)
            yield first, last
            at = last
        self._note_hole(at, stop)

    def _note_hole(self, start: int, stop: int) -> None:
        if self._reads is not None:
            self._reads.note(start, min(stop, self.length) - start)

    def announce(self, start: int, stop: int) -> None:
        """See `FileReader`. Requests blocks that the page cache lacks, and drops only those again once they were read:
        pages that a broker had there stay. Failed advice does not fail the read."""
        if self._requested < 0 and self._tells:
            # the kernel's own read-ahead would make everything appear cached before
            self._advise(0, os.POSIX_FADV_RANDOM, 0)
        self._drop(start)
        end = min(stop, start + AHEAD)
        at = self._requested if start <= self._requested <= end + BLOCK else start // BLOCK * BLOCK
        # half the distance at a time, since each piece of advice costs a system call
        if end < stop and end - at < AHEAD // 2:
            return
        while at < end and self._tells:
            if not self._is_cached(at):
                self._cold.append(at)
                self._advise(at, os.POSIX_FADV_WILLNEED)
            at += BLOCK
        self._requested = at

    def _is_cached(self, at: int) -> bool:
        """Whether the page cache holds the byte at `at`; true if the file system cannot tell."""
        try:
            os.preadv(self.descriptor, [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except (OSError, NotImplementedError):  # of a kernel, or of a C library that Python was built for
            # leave read-ahead to the kernel
            self._advise(0, os.POSIX_FADV_NORMAL, 0)
            self._tells = False
        return True

    def _drop(self, position: float) -> None:
        while self._cold and self._cold[0] + BLOCK <= position:
            self._advise(self._cold.pop(0), os.POSIX_FADV_DONTNEED)

    def _advise(self, at: int, advice: int, size: int = BLOCK) -> None:
        try:
            os.posix_fadvise(self.descriptor, at, size, advice)
        except OSError:
            self._tells = False

    def close(self) -> None:
        self._drop(math.inf)
        if self._requested >= 0 and self._tells:
            self._advise(0, os.POSIX_FADV_NORMAL, 0)
        give_descriptor(self._opened, self.descriptor)
