"""Small read-only helpers of the writer: where a file has blocks, what it holds, whether it reads as zeros."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from crc32c import crc32c

READ = 1 << 20


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
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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


def crc_of(chunks: Iterable[bytes]) -> tuple[int, int]:
    """(size, CRC-32C) of some bytes."""
    size = crc = 0
    for chunk in chunks:
        crc = crc32c(chunk, crc)
        size += len(chunk)
    return size, crc


def file_crc(path: Path, start: int = 0, stop: int | None = None) -> tuple[int, int]:
    """(bytes read, CRC-32C) of [start, stop) of a file."""
    return crc_of(read_chunks(path, start, stop))


def zeros(size: int) -> Iterator[bytes]:
    """`size` zero bytes, in pieces."""
    while size > 0:
        yield bytes(min(READ, size))
        size -= READ


def exists(path: Path) -> bool:
    """Whether the name exists; a broken symbolic link does."""
    return os.path.lexists(path)
