"""Read-only helpers: where a file has blocks, its content, its checksum, and what a process read of it."""

from __future__ import annotations

import errno
import os
import resource
import stat
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from crc32c import crc32c as computed_crc32c
from msgspec import Struct, field

from formats.basics import Buffer
from recover.findings.code import N_


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of `data` after bytes whose sum is `value`: the checksum of what mqtool writes."""
    return int(computed_crc32c(data, value))


READ = 1 << 20
BLANK = bytes(READ)
"""Zeros, recognized by identity so that no check of the bytes is needed."""

Piece = tuple[int, Buffer]
"""Position in a file, and the bytes."""


def open_descriptor(path: Path | str) -> int:
    """Return a descriptor for reading a regular file; for anything else, an `OSError` that names its kind. Never
    blocks.

    A store may hold a pipe, without a writer, under a file's name, or a link to a disk that is not mounted.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.islink(path):
            raise not_a_file(path, DANGLING) from error
        if error.errno != errno.ENXIO:
            raise
        raise not_a_file(path, kind_of(os.stat(path).st_mode)) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise not_a_file(path, kind_of(mode))
    return fd


_MOST_KEPT, _SHARE_KEPT = 256, 4
"""Descriptors, and the share of those that this process may have: the usual limit is 1,024."""


class Kept:
    """Descriptors of files that were read and may be read again, the ones used last; any thread may take one."""

    def __init__(self) -> None:
        self._by_path: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = _MOST_KEPT if limit < 0 else min(_MOST_KEPT, limit // _SHARE_KEPT)

    def take(self, path: Path | str) -> int | None:
        """Return the descriptor of a path, for its reader alone; None if it is not kept, or leads elsewhere by now."""
        with self._lock:
            fd = self._by_path.pop(os.fspath(path), None)
        if fd is None:
            return None
        try:
            now, then = os.stat(path), os.fstat(fd)
        except OSError:
            now = None
        if now is not None and (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino):
            return fd
        os.close(fd)
        return None

    def give(self, path: Path | str, fd: int) -> None:
        """Keep a descriptor in place of the one that was used least recently, or close it."""
        with self._lock:
            others = [fd] if self._by_path.setdefault(os.fspath(path), fd) != fd else []
            self._by_path.move_to_end(os.fspath(path))
            while len(self._by_path) > self._most:
                others.append(self._by_path.popitem(last=False)[1])
        for each in others:
            os.close(each)

    def close(self, folder: str = "") -> None:
        """Close all, or those of the files in a folder."""
        with self._lock:
            own = [path for path in self._by_path if path.startswith(folder)]
            for path in own:
                os.close(self._by_path.pop(path))


_kept: Kept | None = None


@contextmanager
def kept_open() -> Iterator[None]:
    """Within this, a file that is read again is not opened again: a plan reads the same few files many times."""
    global _kept
    outer = _kept
    own = _kept = outer or Kept()
    try:
        yield
    finally:
        _kept = outer
        if outer is None:
            own.close()


def take_descriptor(path: Path | str) -> int:
    """Return a descriptor as `open_descriptor` does, within `kept_open` the one that was given back."""
    kept = None if _kept is None else _kept.take(path)
    return open_descriptor(path) if kept is None else kept


def give_descriptor(path: Path | str, fd: int) -> None:
    """Close a descriptor, or keep it for the next reader of the same file."""
    if _kept is None:
        os.close(fd)
    else:
        _kept.give(path, fd)


def forget_descriptors(folder: Path) -> None:
    """Close what is kept of the files in a folder that goes, so that their room is free."""
    if _kept is not None:
        _kept.close(f"{folder}/")


@contextmanager
def descriptor_of(path: Path | str) -> Iterator[int]:
    """Yield a descriptor as `take_descriptor` does, and give it back."""
    fd = take_descriptor(path)
    try:
        yield fd
    finally:
        give_descriptor(path, fd)


def not_a_file(path: Path | str, kind: str) -> OSError:
    """Return the error for something that is not a regular file, with its kind."""
    return OSError(errno.EINVAL, f"it is not a file but {kind}", os.fspath(path))


FILE, FOLDER, DANGLING = N_("a file"), N_("a folder"), N_("a link to nothing")


def kind_of(mode: int) -> str:
    """Return the kind of file for a stat mode, in words."""
    kinds = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: N_("a link"),
             stat.S_IFIFO: N_("a pipe"), stat.S_IFSOCK: N_("a socket"), stat.S_IFCHR: N_("a device"),
             stat.S_IFBLK: N_("a device")}
    return kinds.get(stat.S_IFMT(mode), N_("something else"))


def data_extents(fd: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the parts of [start, stop) that are not holes, clipped to it; all of it if holes are not supported."""
    extents: list[tuple[int, int]] = []
    position = start
    while position < stop:
        try:
            first = os.lseek(fd, position, os.SEEK_DATA)
            if first >= stop:
                break
            last = min(stop, os.lseek(fd, first, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            extents.append((position, stop))
            break
        extents.append((first, last))
        position = last
    return extents


def between_extents(extents: Iterable[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, stop) between ascending ranges."""
    position = start
    for first, last in extents:
        if first > position:
            yield position, min(first, stop)
        position = max(position, last)
    if position < stop:
        yield position, stop


def read_chunks(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of [start, stop) in pieces of at most 1 MiB; fewer bytes if the file ends before."""
    with descriptor_of(path) as fd:
        position = start
        while stop is None or position < stop:
            piece = os.pread(fd, READ if stop is None else min(READ, stop - position), position)
            if not piece:
                return
            yield piece
            position += len(piece)


def identity(path: Path) -> tuple[int, ...]:
    """Return device, inode, size and mtime of a file: changes with each write, not with a rename."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def crc_of(chunks: Iterable[Buffer]) -> tuple[int, int]:
    """Return (size, CRC-32C) of some bytes."""
    size = crc = 0
    for chunk in chunks:
        crc = crc32c(chunk, crc)
        size += len(chunk)
    return size, crc


def file_crc(path: Path, start: int = 0, stop: int | None = None) -> tuple[int, int]:
    """Return (size, CRC-32C) of [start, stop) of a file, clipped to its length. Holes are counted, not read."""
    with descriptor_of(path) as fd:
        end = os.fstat(fd).st_size
        stop = end if stop is None else min(stop, end)
        crc, position = 0, start
        for first, last in data_extents(fd, start, stop):
            crc = crc_with_zeros(crc, first - position)
            position = first
            while position < last:
                piece = os.pread(fd, min(READ, last - position), position)
                if not piece:
                    return position - start, crc
                crc = crc32c(piece, crc)
                position += len(piece)
        return max(0, stop - start), crc_with_zeros(crc, stop - position)


_CRC32C = 0x82F63B78
_ONE = 1 << 31
_BLOCK = 4096


def crc_with_zeros(crc: int, count: int) -> int:
    """Return the CRC-32C of bytes followed by `count` zeros, computed from that of the bytes."""
    return times(crc ^ 0xFFFFFFFF, power(count)) ^ 0xFFFFFFFF if count > 0 else crc


def crc_joined(first: int, second: int, length: int) -> int:
    """Return the CRC-32C of bytes followed by `length` others, computed from that of each."""
    return times(first, power(length)) ^ second


def times(a: int, b: int, polynomial: int = _CRC32C) -> int:
    """Return the product of two polynomials modulo that of a CRC, bits reflected."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (polynomial if b & 1 else 0)
    return product


def power(count: int, polynomial: int = _CRC32C) -> int:
    """Return x to the 8 * count, the effect of `count` more bytes on a sum, modulo the polynomial of a CRC."""
    return times(_power_of(_BLOCK, count // _BLOCK, polynomial), _power_of(1, count % _BLOCK, polynomial), polynomial)


@lru_cache(maxsize=2 * _BLOCK)
def _power_of(size: int, count: int, polynomial: int) -> int:
    """Return x to the 8 * size * count."""
    base = _ONE >> 8 if size == 1 else _power_of(1, size, polynomial)
    result = _ONE
    while count:
        if count & 1:
            result = times(result, base, polynomial)
        base = times(base, base, polynomial)
        count >>= 1
    return result


def zeros(size: int) -> Iterator[bytes]:
    """Yield `size` zero bytes in pieces: all but the last are `BLANK`."""
    while size >= READ:
        yield BLANK
        size -= READ
    if size > 0:
        yield bytes(size)


def in_order(chunks: Iterable[Buffer], start: int = 0) -> Iterator[Piece]:
    """Yield consecutive chunks with their positions, the first at `start`."""
    for chunk in chunks:
        yield start, chunk
        start += len(chunk)


# --- The bytes that a process read, as checksums small enough to send. -----------------------------------------------
#
# CRC-32C: a record carries the CRC-32 of its body, and a sum of the same polynomial over both would detect less.


PIECE = 4 << 20
"""Bytes per sum: 10 TB of log make 10 MB of sums."""
_FIRST = 64 << 10


class Run(Struct):
    """Bytes [start, stop) of a file that were read, and the sum of each of their pieces.

    A piece ends at each multiple of `PIECE` in the file, and 64 KiB after the run's start, which is cheap to compare.
    """

    start: int
    stop: int
    sums: array[int] = field(default_factory=lambda: array("I"))

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start, stop, sum) of each piece, ascending."""
        at = self.start
        for value in self.sums:
            end = min(self._piece_end(at), self.stop)
            yield at, end, value
            at = end

    def extend(self, size: int, data: Buffer | None) -> None:
        """Add the next `size` bytes, zeros without `data`."""
        done = 0
        while done < size:
            if not self.sums or self._piece_end(self.stop - 1) == self.stop:
                self.sums.append(0)
            part = min(self._piece_end(self.stop) - self.stop, size - done)
            if data is None:
                self.sums[-1] = crc_with_zeros(self.sums[-1], part)
            else:
                self.sums[-1] = crc32c(memoryview(data)[done : done + part], self.sums[-1])
            self.stop += part
            done += part

    def _piece_end(self, at: int) -> int:
        """Return the end of the piece that holds the byte at `at`."""
        border = (at // PIECE + 1) * PIECE
        return min(border, self.start + _FIRST) if at < self.start + _FIRST else border


class Seen(NamedTuple):
    """What one host sees of a file beside its bytes. Equal on two hosts, it is one file in one state: no copy gets the
    ctime, which nothing can set, and a write changes it."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int
    file_system: int

    @classmethod
    def of(cls, file: int | str) -> Seen:
        """Return it for an open file, or the one at a path. `OSError` if it is gone."""
        status = os.stat(file)
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns, os.statvfs(file).f_fsid)

    def is_of_file(self, other: Seen) -> bool:
        """Whether both are of the same file, perhaps in another state."""
        return (self.inode, self.file_system) == (other.inode, other.file_system)


class FileReads(Struct):
    """The reads of one file of `size` bytes: runs, ascending and disjoint; `seen` when it was opened."""

    size: int
    runs: list[Run] = []
    seen: Seen | None = None

    def note(self, offset: int, size: int, data: Buffer | None = None) -> None:
        """Note that `size` bytes were read at `offset`, zeros without `data`. Bytes noted before keep their sums."""
        at, stop = offset, offset + size
        while at < stop:
            number = bisect_right(self.runs, at, key=lambda run: run.start)
            if not number or self.runs[number - 1].stop < at:
                self.runs.insert(number, Run(at, at))
                number += 1
            run = self.runs[number - 1]
            end = min(stop, self.runs[number].start) if number < len(self.runs) else stop
            if run.stop < end:
                fresh = None if data is None else memoryview(data)[run.stop - offset : end - offset]
                run.extend(end - run.stop, fresh)
            at = end


_recorded: dict[str, FileReads] | None = None


@contextmanager
def recorded() -> Iterator[dict[str, FileReads]]:
    """Within the block this process, single-threaded, records what it reads of each file it opens, by path."""
    global _recorded
    before, _recorded = _recorded, {}
    try:
        yield _recorded
    finally:
        _recorded = before


def reads_of(path: Path | str, descriptor: int) -> FileReads | None:
    """Return the record of an open file's reads; None if none is kept, or there is no descriptor."""
    if _recorded is None or descriptor < 0:
        return None
    if (reads := _recorded.get(str(path))) is None:
        seen = Seen.of(descriptor)
        reads = _recorded[str(path)] = FileReads(seen.size, seen=seen)
    return reads
