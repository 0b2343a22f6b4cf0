"""What no reader of these files can go below: `python -m benchmarks.floor read|crc FILE...` prints seconds.

Every byte is read into a buffer, and with `crc` its CRC-32 is taken by ISA-L; a thread a core, each with stretches of
its own until none is left, so that all of them end together.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from isal import isal_zlib

_BUFFER = 1 << 20
_STRETCH = 32 * _BUFFER


def pass_over(paths: Iterable[Path], *, crc: bool) -> float:
    """Seconds that it takes to read all files, and to check them."""
    threads = len(os.sched_getaffinity(0))
    begin = time.perf_counter()
    with ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        files = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]
        stretches = [
            (file.fileno(), start) for file in files for start in range(0, os.fstat(file.fileno()).st_size, _STRETCH)
        ]
        list(pool.map(lambda stretch: _read(stretch[0], stretch[1], crc), stretches))
    return time.perf_counter() - begin


def _read(descriptor: int, start: int, crc: bool) -> int:
    buffer = bytearray(_BUFFER)
    view = memoryview(buffer)
    value = 0
    end = start + _STRETCH
    while start < end and (count := os.preadv(descriptor, [view[: end - start]], start)):
        if crc:
            value = isal_zlib.crc32(view[:count], value)
        start += count
    return value


if __name__ == "__main__":
    print(pass_over(map(Path, sys.argv[2:]), crc=sys.argv[1] == "crc"))
