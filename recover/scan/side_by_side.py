"""Splits of a log looked at on several threads, for what compiled code does with them: it gives up the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_AHEAD = 16
"""So many results are waiting at most: of a large log there may be something to keep of every row."""


def side_by_side(look: Callable[[int], Result], count: int, threads: int) -> Iterator[Result]:
    """What `look` says of each number below `count`, in their order."""
    if min(count, threads) < 2:
        yield from map(look, range(count))
        return
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, count, _AHEAD):
            yield from pool.map(look, range(start, min(count, start + _AHEAD)))
