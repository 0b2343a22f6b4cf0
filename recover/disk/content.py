"""Writing bytes: ranges of files, zeros, new files, journal lines."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from formats.layout import Buffer
from recover.crc import crc32c
from recover.files.reading import BLANK, Piece, crc_joined, crc_with_zeros, data_extents, gaps, in_order


class Operation(Struct, frozen=True):
    """One operation on a disk: what, on which path; `offset`, `length` and `data` in bytes where they apply."""

    name: str
    path: str
    target: str = ""
    offset: int = 0
    length: int = 0
    data: bytes | memoryview = b""


def _nothing(operation: Operation) -> None:
    """The fault point outside of tests."""


_hook: Callable[[Operation], None] = _nothing


def set_hook(hook: Callable[[Operation], None] | None) -> None:
    """Have each operation announced to `hook` (None: to nobody). For tests: it may kill, fail or record."""
    global _hook
    _hook = hook or _nothing


def fault(
    name: str, path: Path, target: str = "", *, offset: int = 0, length: int = 0, data: bytes | memoryview = b""
) -> None:
    """Announce an operation that comes next; the hook may raise or never return."""
    _hook(Operation(name, str(path), target, offset, length, data))


CHUNK = 1 << 20
_ZERO_BLOCK = 64 << 10
_GLANCE = 64
_ZEROS = bytes(_ZERO_BLOCK)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin, and do not wait
UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOTTY, errno.EXDEV}
"""What file systems answer that cannot do something, as opposed to one that fails."""


def pwrite(fd: int, path: Path, offset: int, data: Buffer) -> None:
    """Write all of `data` at `offset`, in pieces of at most `CHUNK` bytes."""
    view = memoryview(data)
    while len(view):
        piece = view[:CHUNK]
        fault("write", path, offset=offset, length=len(piece), data=piece)
        written = os.pwrite(fd, piece, offset)
        view, offset = view[written:], offset + written


def write_range(path: Path, offset: int, chunks: Iterable[Buffer]) -> int:
    """Overwrite bytes of an existing file from `offset` on; returns how many. Not synced yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        start = offset
        for chunk in chunks:
            pwrite(fd, path, offset, chunk)
            offset += len(chunk)
        return offset - start
    finally:
        os.close(fd)


def zero_range(path: Path, start: int, stop: int) -> None:
    """Make [start, stop) read as zeros without allocating blocks; grows the file if `stop` is behind its end."""
    if stop <= start:
        return
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(fd).st_size
        if start < size and not punch(fd, path, start, min(stop, size)):
            # Holes read as zeros already; only the blocks that exist need writing.
            for first, last in data_extents(fd, start, min(stop, size)):
                for position in range(first, last, CHUNK):
                    pwrite(fd, path, position, bytes(min(CHUNK, last - position)))
        if stop > size:
            fault("truncate", path, length=stop)
            os.ftruncate(fd, stop)
    finally:
        os.close(fd)


def punch(fd: int, path: Path, start: int, stop: int) -> bool:
    """Deallocate a range; False if this file system cannot."""
    fault("punch", path, offset=start, length=stop - start)
    call = _libc("fallocate64") or _libc("fallocate")
    if call is None:
        return False
    while call(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(stop - start)) != 0:
        code = ctypes.get_errno()
        if code in UNSUPPORTED:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), str(path))
    return True


@cache
def _libc(name: str) -> Callable[..., int] | None:
    """A function of the C library that Python does not have; None where there is none."""
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


def truncate(path: Path, size: int) -> None:
    """Set the length of a file in bytes."""
    fault("truncate", path, length=size)
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def create_file(
    path: Path, chunks: Iterable[Buffer], mode: int = 0o600, *, sync: bool = True
) -> tuple[int, int]:
    """Write a new file, and sync it unless the caller does; returns (size, CRC-32C). Blocks of zeros become holes."""
    return create_from_pieces(path, in_order(chunks), mode, sync=sync)


def create_from_pieces(
    path: Path, pieces: Iterable[Piece], mode: int = 0o600, *, sync: bool = True
) -> tuple[int, int]:
    """The same from pieces in any order that hold each byte once; `RuntimeError` where they do not."""
    fault("create", path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        size, crc = _fill(fd, path, pieces)
        if sync:
            fault("fsync", path)
            os.fsync(fd)
    finally:
        os.close(fd)
    return size, crc


class _Stretch(Struct):
    """Bytes [start, stop) that were written one after the other: the CRC-32C of all but the `zeros` at their end."""

    start: int
    stop: int
    crc: int = 0
    zeros: int = 0

    def add(self, data: Buffer) -> None:
        """Bytes after all others, the zeros included."""
        self.crc = crc32c(data, crc_with_zeros(self.crc, self.zeros))
        self.zeros = 0


def _fill(fd: int, path: Path, pieces: Iterable[Piece]) -> tuple[int, int]:
    runs: list[_Stretch] = []
    for at, piece in pieces:
        view, stop = memoryview(piece).cast("B"), 0
        if not view:
            continue
        if not runs or runs[-1].stop != at:
            runs.append(_Stretch(at, at))
        run = runs[-1]
        for first, last in _written(view) if piece is not BLANK else ():
            pwrite(fd, path, at + first, view[first:last])
            run.zeros += first - stop
            run.add(view[first:last])
            stop = last
        if stop >= CHUNK:
            _begin_writeback(fd, at, stop)
        run.zeros += len(view) - stop
        run.stop += len(view)
    size, crc = _joined(runs)
    fault("truncate", path, length=size)
    os.ftruncate(fd, size)
    return size, crc


def _begin_writeback(fd: int, start: int, size: int) -> None:
    """Have the disk take a range while the next is made, so that the sync at the end has little left to wait for."""
    call = _libc("sync_file_range")
    if call is not None:
        call(fd, ctypes.c_int64(start), ctypes.c_int64(size), _WRITE)


def _joined(runs: list[_Stretch]) -> tuple[int, int]:
    size = crc = 0
    for run in sorted(runs, key=lambda run: run.start):
        if run.start != size:
            raise RuntimeError(f"the content is not as announced: a piece at {run.start} instead of {size}")
        whole = crc_with_zeros(run.crc, run.zeros)
        size, crc = run.stop, crc_joined(crc, whole, run.stop - run.start) if size else whole
    return size, crc


def _written(view: memoryview) -> Iterator[tuple[int, int]]:
    """What of some bytes is in blocks that are not all zero, ascending."""
    start = 0
    for first in range(0, len(view), _ZERO_BLOCK):
        last = min(first + _ZERO_BLOCK, len(view))
        zeros = _ZEROS[: last - first]
        # most blocks that are written show it at once, and need not be copied to be compared
        if bytes(view[first : first + _GLANCE]) == zeros[:_GLANCE] and bytes(view[first:last]) == zeros:
            if start < first:
                yield start, first
            start = last
    if start < len(view):
        yield start, len(view)


def append(path: Path, data: bytes) -> None:
    """Add bytes at the end of a file (made if missing) and sync it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while len(view):
            fault("append", path, length=len(view), data=view[:CHUNK])
            view = view[os.write(fd, view[:CHUNK]) :]
        fault("fsync", path)
        os.fsync(fd)
    finally:
        os.close(fd)


def punch_holes(path: Path, keep: Iterable[tuple[int, int]], start: int, stop: int) -> None:
    """Deallocate what of [start, stop) is in none of the `keep` ranges, where it can be done."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for first, last in gaps(keep, start, stop):
            punch(fd, path, first, last)
    finally:
        os.close(fd)
