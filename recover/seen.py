"""How a store's files looked just before they were read, so that a plan can notice what changed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from recover.store import JOURNAL, Store


def files_now(store: Store) -> dict[str, tuple[int, int]]:
    """Name as plans have it -> (size in bytes, mtime in ns) of every file that recover reads; for `seal(seen=...)`."""
    folders = [*store.commitlog_dirs, store.consumequeue_dir, store.consumequeue_ext_dir, store.index_dir,
               store.config_dir]
    seen: dict[str, tuple[int, int]] = {}
    for path in (*_files(folders), store.checkpoint_path, store.abort_path):
        try:
            status = os.stat(path)
        except OSError:
            continue
        seen[store.relative(path)] = (status.st_size, status.st_mtime_ns)
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
