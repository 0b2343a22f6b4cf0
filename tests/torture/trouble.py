"""Disks that fail: reads that give an error or too little, and writes that fail at one operation or from one on."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGE = 4096

Verdict = Callable[[str, int, int], bool]
"""(path, offset, length) of a read: whether it fails."""


@contextmanager
def failing_reads(fails: Verdict, code: int = errno.EIO) -> Iterator[None]:
    """Reads at a position that `fails` says so of end with an errno; all others work."""
    real, real_into = os.pread, os.preadv

    def check(fd: int, offset: int, length: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if fails(path, offset, length):
            raise OSError(code, os.strerror(code), path)

    def pread(fd: int, length: int, offset: int) -> bytes:
        check(fd, offset, length)
        return real(fd, length, offset)

    def preadv(fd: int, buffers: Any, offset: int, *flags: int) -> int:
        check(fd, offset, sum(len(buffer) for buffer in buffers))
        return real_into(fd, buffers, offset, *flags)

    with _replaced(pread, preadv):
        yield


@contextmanager
def short_reads(chance: random.Random) -> Iterator[None]:
    """Every read at a position gives a part of what was asked for, as a system call may."""
    real, real_into = os.pread, os.preadv

    def pread(fd: int, length: int, offset: int) -> bytes:
        return real(fd, max(1, chance.randrange(length + 1)) if length else 0, offset)

    def preadv(fd: int, buffers: Any, offset: int, *flags: int) -> int:
        first = memoryview(buffers[0])
        some = first[: max(1, chance.randrange(len(first) + 1))] if len(first) else first
        return real_into(fd, [some], offset, *flags)

    with _replaced(pread, preadv):
        yield


@contextmanager
def _replaced(pread: Callable[..., bytes], preadv: Callable[..., int]) -> Iterator[None]:
    kept = os.pread, os.preadv
    os.pread, os.preadv = pread, preadv
    try:
        yield
    finally:
        os.pread, os.preadv = kept


def inside(file: Path, start: int, stop: int) -> Verdict:
    """Reads of a file that touch [start, stop)."""
    name = str(file)
    return lambda path, offset, length: path == name and offset < stop and start < offset + length
