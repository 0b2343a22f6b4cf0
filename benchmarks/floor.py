"""What no reader of these files can go below: `python -m benchmarks.floor read|crc FILE...` prints seconds.

Every byte is read into a buffer, and with `crc` its CRC-32 is taken by ISA-L; a thread a core, each with stretches of
its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isal import isal_zlib

_BUFFER = 1 << 20


def pass_over(paths: Iterable[Path], *, crc: bool) -> float:
    """Seconds that it takes to read all files, and to check them."""
    paths = list(paths)
    threads = os.cpu_count() or 1
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda path: _read(path, crc), paths))
    return time.perf_counter() - begin


def _read(path: Path, crc: bool) -> int:
    buffer = bytearray(_BUFFER)
    view = memoryview(buffer)
    value = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            if crc:
                value = isal_zlib.crc32(view[:count], value)
    return value


if __name__ == "__main__":
    print(pass_over(map(Path, sys.argv[2:]), crc=sys.argv[1] == "crc"))
