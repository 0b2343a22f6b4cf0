"""Content that is made elsewhere, by executors: they write it into a folder here, and a manifest says what came out.

A plan holds such content like any other. When it is wanted on disk, its maker writes all of it at once into a staging
folder on the file system that it is for; what is whole, by name, length and CRC-32C, gets its place from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from formats.layout import Buffer
from recover import disk
from recover.errors import Refusal
from recover.plan.content import Content

Manifest = dict[str, tuple[int, int]]
"""File name -> (length in bytes, CRC-32C)."""


class MadeElsewhere(Struct, frozen=True, eq=False):
    """Content that `maker` knows under `key`. `crc32c` is None as long as it was not made."""

    maker: Writes
    key: Any
    size: int
    allocated: int
    crc32c: int | None = None

    def chunks(self) -> Iterator[Buffer]:
        """The bytes, fetched: for the few readers that want one content by itself."""
        return self.maker.chunks(self)


class Writes(Protocol):
    """Something that has made content elsewhere, or will, and writes it where it is wanted."""

    def write(
        self, folder: Path, contents: Mapping[str, MadeElsewhere], interrupted: Callable[[], bool]
    ) -> Manifest:
        """Write each content into the folder under its name. `OSError` where a disk fails, `Interrupted`."""

    def chunks(self, content: MadeElsewhere) -> Iterator[Buffer]:
        """The bytes of one content."""


def make(
    folder: Path, contents: Mapping[Path, Content | None], *, interrupted: Callable[[], bool],
    like: os.stat_result | None = None,
) -> dict[Path, tuple[int, int]]:
    """Have what is made elsewhere written to its paths; (length, CRC-32C) of each. The rest is the caller's.

    `folder`, new and on the file system of the paths, is where makers write to; it is removed in any case, so that a
    maker which is late finds no place. `Refusal` when what came is not what was announced; `OSError` from the disk.
    """
    wanted = {path: content for path, content in contents.items() if isinstance(content, MadeElsewhere)}
    if not wanted:
        return {}
    made: dict[Path, tuple[int, int]] = {}
    try:
        disk.mkdir(folder, like)
        for maker in {id(content.maker): content.maker for content in wanted.values()}.values():
            own = {f"{n:06d}": item for n, item in enumerate(wanted.items()) if item[1].maker is maker}
            manifest = maker.write(folder, {name: content for name, (_, content) in own.items()}, interrupted)
            for name, (path, content) in own.items():
                made[path] = _checked(folder / name, content, manifest.get(name))
                disk.rename(folder / name, path)
    finally:
        with suppress(OSError):
            disk.remove_tree(folder)
    return made


def _checked(path: Path, content: MadeElsewhere, said: tuple[int, int] | None) -> tuple[int, int]:
    """What the manifest says of a file, if the file is there and it is what was wanted."""
    fits = said is not None and said[0] == content.size == path.stat().st_size
    if said is None or not fits or content.crc32c not in (None, said[1]):
        raise Refusal(f"{path.name} was not made as announced: {said} instead of {(content.size, content.crc32c)}",
                      "Run the command again; with --engine local, if it happens again.")
    return said
