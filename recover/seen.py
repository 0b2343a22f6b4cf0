"""How a store's files looked just before they were read, so that a plan or a later look can notice what changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from recover.store import JOURNAL, Store


class Stamp(NamedTuple):
    """One file as it is: size in bytes, mtime in ns, inode, ctime in ns."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file, or of what a link leads to; None where there is nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


def files_now(store: Store) -> dict[str, Stamp]:
    """Name as plans have it -> stamp of every file that recover reads; for `seal(seen=...)` and `KnownParts`."""
    folders = [*store.commitlog_dirs, store.consumequeue_dir, store.consumequeue_ext_dir, store.index_dir,
               store.config_dir]
    seen: dict[str, Stamp] = {}
    for path in (*_files(folders), store.checkpoint_path, store.abort_path):
        stamp = stamp_of(path)
        if stamp is not None:
            seen[store.relative(path)] = stamp
    return seen


def _files(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        for directory, _, names in os.walk(folder):
            yield from (Path(directory, name) for name in names)


def changed_since(root: Path, when_ns: int) -> str | None:
    """Name of a file or folder below a store that somebody changed since `when_ns` (ns since the epoch), None for none.

    None too if the change may have been our own, with a journal that says so.
    """
    found = None
    try:
        for directory, folders, names in os.walk(root):
            for path in (Path(directory), *(Path(directory, name) for name in names)):
                if os.lstat(path).st_ctime_ns >= when_ns:
                    if JOURNAL in path.relative_to(root).parts[:1]:
                        return None
                    found = found or path.relative_to(root).as_posix()
            folders.sort()
    except OSError:
        return found
    return found
