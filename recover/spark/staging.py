"""On executors: files put into a staging folder. A name is there when the file is whole; what went wrong is a value."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from formats.layout import Buffer
from recover import disk

_MODE = 0o600

Wanted = tuple[Any, Iterable[Buffer]]
"""Which content, and its bytes."""


class Staged(Struct, frozen=True):
    """A line of the manifest: length in bytes and CRC-32C of the file under that name."""

    name: str
    size: int
    crc32c: int


class NotStaged(Struct, frozen=True):
    """A file that could not be written, where, and why. `no_folder`: that host does not see the staging folder."""

    host: str
    path: str
    number: int
    text: str
    no_folder: bool


class Stager(Struct, frozen=True):
    """Writes those contents that have a name into `folder`. `sync`: on this host, for nobody else can."""

    folder: str
    names: dict[Any, str]
    sync: bool

    def __call__(self, contents: Iterable[Wanted]) -> Iterator[Staged | NotStaged]:
        """A line for each file that was wanted; the first that fails ends the task."""
        for key, chunks in contents:
            name = self.names.get(key)
            if name is None:
                continue
            # a task that is tried again, or twice at a time, writes the same bytes under a name of its own
            path = Path(self.folder, name)
            own = path.with_name(f"{name}.{uuid.uuid4().hex}")
            try:
                size, crc = disk.create_file(own, chunks, _MODE, sync=self.sync)
                os.replace(own, path)
            except OSError as error:
                own.unlink(missing_ok=True)
                yield NotStaged(socket.gethostname(), str(path), error.errno or 0, error.strerror or str(error),
                                not os.path.isdir(self.folder))
                return
            yield Staged(name, size, crc)
