"""Reading sparse files without reading their holes."""

from __future__ import annotations

import os
from collections.abc import Iterator

CHUNK = 64 * 1024
_ZEROS = bytes(CHUNK)


def data_chunks(descriptor: int) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each aligned 64 KiB chunk that is not all zero; holes cost nothing."""
    size = os.fstat(descriptor).st_size
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(descriptor, offset, os.SEEK_DATA) // CHUNK * CHUNK
        except OSError:  # no data up to the end
            return
        chunk = os.pread(descriptor, CHUNK, offset)
        if chunk != _ZEROS[: len(chunk)]:
            yield offset, chunk
        offset += CHUNK
