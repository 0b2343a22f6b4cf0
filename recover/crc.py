"""The checksum of what we write. Its package takes 0.015 s to import, and what only reads needs no sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from formats.layout import Buffer


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of `data` behind bytes whose sum is `value`."""
    return _run()(data, value)


@cache
def _run() -> Callable[[Buffer, int], int]:
    from crc32c import crc32c as run

    return run
