"""A file as changes in place would leave it, written anew: for one that gets another length or name as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from formats.layout import Buffer
from recover.apply.step_in_place import new_bytes
from recover.files.reader import FileReader
from recover.plan.content import LazyContent
from recover.plan.model import InPlace

_CHUNK = 1 << 20


def changed_file(path: Path, size: int, changes: Sequence[InPlace]) -> LazyContent:
    """The first `size` bytes of the file at `path` with these changes; zeros where neither has any.

    What changes say of bytes from `size` on is left out. `ValueError` if two of them concern the same bytes.
    """
    ordered = sorted(changes, key=lambda change: change.start)
    if any(one.stop > other.start for one, other in pairwise(ordered)):
        raise ValueError("changes overlap")
    return LazyContent(size, lambda: _limited(_pieces(path, size, ordered), size))


def _pieces(path: Path, size: int, changes: Sequence[InPlace]) -> Iterator[Buffer]:
    position = 0
    with FileReader(path) as reader:
        for change in changes:
            yield from _as_it_is(reader, position, min(change.start, size))
            yield from new_bytes(change)
            position = change.stop
        yield from _as_it_is(reader, position, size)


def _as_it_is(reader: FileReader, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, _CHUNK):
        length = min(_CHUNK, stop - at)
        yield reader.read(at, length).ljust(length, b"\0")


def _limited(pieces: Iterator[Buffer], size: int) -> Iterator[Buffer]:
    for piece in pieces:
        if size <= 0:
            return
        yield piece[:size]
        size -= len(piece)
