"""Where two contents of a file differ, as steps that turn the one into the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recover.plan import Step, WriteRange, ZeroRange

_JOIN_DISTANCE = 4096


def patches(file: str, old: bytes, new: bytes) -> Iterator[Step]:
    """Steps on the ranges of `file` that differ, near ones joined. Behind their ends both contents are zeros."""
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
