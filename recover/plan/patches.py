"""Where a file differs from what it shall hold, as steps that turn the one into the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recover.files.reader import FileReader
from recover.plan.model import Step, WriteRange, ZeroRange

_JOIN_DISTANCE = 4096
_CHUNK = 1 << 20


def patches(file: str, old: bytes, new: bytes) -> Iterator[Step]:
    """Steps on the ranges of `file` that differ, near ones joined. After their ends both contents are zeros."""
    size = max(len(old), len(new))
    a = np.frombuffer(old.ljust(size, b"\0"), dtype=np.uint8)
    b = np.frombuffer(new.ljust(size, b"\0"), dtype=np.uint8)
    differing = np.flatnonzero(a != b)
    if not differing.size:
        return
    cuts = np.flatnonzero(np.diff(differing) > _JOIN_DISTANCE) + 1
    for run in np.split(differing, cuts):
        start, stop = int(run[0]), int(run[-1]) + 1
        content = b[start:stop].tobytes()
        yield WriteRange(file, start, content) if any(content) else ZeroRange(file, start, stop)


def zeroes(file: str, path: Path, start: int) -> Iterator[Step]:
    """Zeroes in the file at `path` from `start` to its last byte that is not zero already; `OSError` from reading."""
    stop = start
    with FileReader(path) as reader:
        for first, last in reader.data_ranges(start, reader.length):
            for at in range(first, last, _CHUNK):
                content = reader.read(at, min(_CHUNK, last - at)).rstrip(b"\0")
                stop = at + len(content) if content else stop
    if stop > start:
        yield ZeroRange(file, start, stop)
