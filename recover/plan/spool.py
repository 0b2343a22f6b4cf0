"""Content of a plan that was computed and shall not sit in memory: kept in an unnamed scratch file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import IO

import numpy as np
from msgspec import Struct

from formats.layout import Buffer
from formats.native.walk import last_nonzero
from recover.crc import crc32c
from recover.memory.scratch import scratch_file
from recover.plan.content import BytesContent, Content, LazyContent, padded

IN_MEMORY = 128 << 20
_CHUNK = 1 << 20


class SpooledContent(Struct, frozen=True):
    """Bytes [start, start + size) of the scratch file."""

    file: IO[bytes]
    start: int
    size: int
    crc32c: int

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of at most 1 MiB."""
        for at in range(0, self.size, _CHUNK):
            yield os.pread(self.file.fileno(), min(_CHUNK, self.size - at), self.start + at)


class Spool:
    """Keeps contents in memory up to a limit, the rest on disk."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._left = in_memory
        self._file: IO[bytes] | None = None
        self._end = 0

    def keep(self, content: Buffer) -> Content:
        """The content, for as long as the plan lives."""
        if len(content) <= self._left:
            self._left -= len(content)
            return BytesContent(content)
        if self._file is None:
            self._file = scratch_file()
        start, self._end = self._end, self._end + len(content)
        self._file.seek(start)
        self._file.write(content)
        self._file.flush()
        return SpooledContent(self._file, start, len(content), crc32c(content))

    def padded(self, content: Buffer, size: int) -> Content:
        """The content followed by zeros up to `size` bytes; the zeros take no room."""
        data = content[: last_nonzero(np.frombuffer(content, dtype=np.uint8), 0, len(content)) + 1]
        return LazyContent(size, partial(padded, self.keep(data), size), allocated=len(data))
