"""The evidence: every file of a store with its length and time and, where asked for, the SHA-256 of its bytes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from recover.files.reader import FileReader, ReadFailure
from recover.files.store import JOURNAL, Store

_CHUNK = 1 << 20


class EvidenceFile(Struct):
    """One file: `path` as reports name it, `size` in bytes, `mtime` in ms. `problem`: why it has no digest."""

    path: str
    size: int
    mtime: int
    sha256: str | None = None
    problem: str | None = None


class Evidence(Struct):
    """The first files in the order of their paths, and of all: how many, how long, and what became of them.

    `sha256` is that of the lines `<sha256>  <path>` of all files in this order, as sha256sum writes them. None without
    digests, and where a file could not be read whole: `unread` counts these.
    """

    files: list[EvidenceFile]
    count: int = 0
    size: int = 0
    sha256: str | None = None
    unread: int = 0

    def json(self) -> dict[str, Any]:
        """The keys of the document."""
        return structs.asdict(self) | {"files": [structs.asdict(item) for item in self.files]}


def evidence(
    store: Store, *, digests: bool, most: int, progress: Callable[[int, int], None] | None = None
) -> Evidence:
    """Look at every file of the store, our own journal left out, and read them all if `digests` are wanted."""
    found = Evidence([])
    all_of_them = hashlib.sha256()
    for path, status in _files(store):
        item = EvidenceFile(store.relative(path), status.st_size, status.st_mtime_ns // 1_000_000)
        if digests:
            _read(path, item, progress)
            found.unread += item.sha256 is None
            all_of_them.update(f"{item.sha256}  {item.path}\n".encode("utf-8", "surrogateescape"))
        if len(found.files) < most:
            found.files.append(item)
        found.count += 1
        found.size += item.size
    found.sha256 = all_of_them.hexdigest() if digests and not found.unread else None
    return found


def _files(store: Store) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files by path, those in parts kept elsewhere after those of the root."""
    for top in (str(store.root), *store.folders_elsewhere):
        for folder, names, files in os.walk(top):
            names[:] = sorted(name for name in names if folder != top or name != JOURNAL)
            for name in sorted(files):
                path = Path(folder, name)
                try:
                    status = os.stat(path)
                except OSError:
                    continue  # a link that leads nowhere, or gone meanwhile: verify reports what is missing
                if stat.S_ISREG(status.st_mode):
                    yield path, status


def _read(path: Path, item: EvidenceFile, progress: Callable[[int, int], None] | None) -> None:
    digest, at = hashlib.sha256(), 0
    try:
        with FileReader(path, again=False) as reader:
            while chunk := reader.read(at, _CHUNK):
                digest.update(chunk)
                at += len(chunk)
                if progress is not None:
                    progress(len(chunk), 0)
    except (OSError, ReadFailure) as error:
        item.problem = str(error.strerror or error)
        return
    if at != item.size:
        item.problem = f"its length changed from {item.size} to {at} while it was read"
        return
    item.sha256 = digest.hexdigest()
