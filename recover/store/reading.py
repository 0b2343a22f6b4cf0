"""Small read-only helpers of the writer: where a file has blocks, what it holds, whether it reads as zeros."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from crc32c import crc32c as computed_crc32c

from formats.layout import Buffer


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of `data` after bytes whose sum is `value`: the checksum of what we write."""
    return int(computed_crc32c(data, value))


READ = 1 << 20
BLANK = bytes(READ)
"""Zeros, whose identity says so: nobody has to look at them."""

Piece = tuple[int, Buffer]
"""Where in a file, and the bytes."""


def open_file(path: Path | str) -> int:
    """A descriptor for reading a regular file; `OSError` that says what it is for anything else. Never waits.

    A store may hold a pipe under a file's name, which nobody ever writes to.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise not_a_file(path, os.stat(path).st_mode) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise not_a_file(path, mode)
    return fd


def not_a_file(path: Path | str, mode: int) -> OSError:
    """The error for something that is no regular file, with what it is."""
    return OSError(errno.EINVAL, f"it is no file but {kind_of(mode)}", os.fspath(path))


FILE, FOLDER, DANGLING = "a file", "a folder", "a link to nothing"


def kind_of(mode: int) -> str:
    """What a mode of the system says that something is."""
    kinds = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe",
             stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "something else")


def data_extents(fd: int, start: int, stop: int) -> list[tuple[int, int]]:
    """The parts of [start, stop) that are not holes, clipped to it; all of it where holes cannot be asked for."""
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


def gaps(extents: Iterable[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """What lies in [start, stop) between ascending ranges."""
    position = start
    for first, last in extents:
        if first > position:
            yield position, min(first, stop)
        position = max(position, last)
    if position < stop:
        yield position, stop


def read_chunks(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The bytes of [start, stop) in pieces of at most 1 MiB; fewer bytes if the file ends before."""
    fd = open_file(path)
    try:
        position = start
        while stop is None or position < stop:
            piece = os.pread(fd, READ if stop is None else min(READ, stop - position), position)
            if not piece:
                return
            yield piece
            position += len(piece)
    finally:
        os.close(fd)


def crc_of(chunks: Iterable[Buffer]) -> tuple[int, int]:
    """(size, CRC-32C) of some bytes."""
    size = crc = 0
    for chunk in chunks:
        crc = crc32c(chunk, crc)
        size += len(chunk)
    return size, crc


def file_crc(path: Path, start: int = 0, stop: int | None = None) -> tuple[int, int]:
    """(size, CRC-32C) of [start, stop) of a file, clipped to its length. Holes are counted, not read."""
    fd = open_file(path)
    try:
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
    finally:
        os.close(fd)


_CRC32C = 0x82F63B78
_ONE = 1 << 31
_BLOCK = 4096


def crc_with_zeros(crc: int, count: int) -> int:
    """The CRC-32C of some bytes followed by `count` zeros, from that of the bytes, without looking at the zeros."""
    return times(crc ^ 0xFFFFFFFF, power(count)) ^ 0xFFFFFFFF if count > 0 else crc


def crc_joined(first: int, second: int, length: int) -> int:
    """The CRC-32C of some bytes followed by `length` others, from that of each."""
    return times(first, power(length)) ^ second


def times(a: int, b: int, polynomial: int = _CRC32C) -> int:
    """The product of two polynomials modulo that of a CRC, bits reflected."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (polynomial if b & 1 else 0)
    return product


def power(count: int, polynomial: int = _CRC32C) -> int:
    """x to the 8 * count: what `count` more bytes do to a sum, modulo the polynomial of a CRC."""
    return times(_power_of(_BLOCK, count // _BLOCK, polynomial), _power_of(1, count % _BLOCK, polynomial), polynomial)


@lru_cache(maxsize=2 * _BLOCK)
def _power_of(size: int, count: int, polynomial: int) -> int:
    """x to the 8 * size * count."""
    base = _ONE >> 8 if size == 1 else _power_of(1, size, polynomial)
    result = _ONE
    while count:
        if count & 1:
            result = times(result, base, polynomial)
        base = times(base, base, polynomial)
        count >>= 1
    return result


def zeros(size: int) -> Iterator[bytes]:
    """`size` zero bytes, in pieces: all but the last are `BLANK`."""
    while size >= READ:
        yield BLANK
        size -= READ
    if size > 0:
        yield bytes(size)


def in_order(chunks: Iterable[Buffer], start: int = 0) -> Iterator[Piece]:
    """Chunks that stand one after the other, the first of them at `start`."""
    for chunk in chunks:
        yield start, chunk
        start += len(chunk)
