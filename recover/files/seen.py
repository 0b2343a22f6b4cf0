"""How a store's files looked just before they were read, so that a plan or a later look can notice what changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from recover.files.store import JOURNAL, Store


class Stamp(NamedTuple):
    """One file or folder as it is: size in bytes, mtime in ns, inode, ctime in ns."""

    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file or folder, or of what a link leads to; None where there is nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)


class Seen(Struct, frozen=True):
    """Name as plans have it -> stamp of every file that recover reads, and of every folder that it lists.

    A folder's stamp tells whether a name in it came or went.
    """

    files: dict[str, Stamp]
    folders: dict[str, Stamp]


def seen_now(store: Store) -> Seen:
    """The store as it is; topics and queues that are links are followed."""
    queues = store.consumequeue_dir, store.consumequeue_ext_dir
    listed = [entry for top in queues for entry in _walk(top, 2)]
    for top in (*store.commitlog_dirs, store.index_dir, store.config_dir):
        listed += _walk(top, 0)
    files = [Path(directory, name) for directory, names in listed for name in names]
    return Seen(
        _stamps(store, [*files, store.checkpoint_path, store.abort_path]),
        _stamps(store, [Path(directory) for directory, _ in listed]),
    )


def _walk(top: Path, links: int) -> Iterator[tuple[str, list[str]]]:
    """Each folder below `top` with its files; links in the uppermost `links` levels are followed as deep as these."""
    found = [*os.walk(top)]
    walked = {directory for directory, _, _ in found}
    for directory, folders, names in found:
        yield directory, names
        level = directory.count(os.sep) - str(top).count(os.sep) + 1
        for name in folders if level <= links else ():
            path = os.path.join(directory, name)
            if path not in walked:
                yield from _behind_link(path, links - level)


def _behind_link(path: str, levels: int) -> Iterator[tuple[str, list[str]]]:
    """A folder with its files, and as many `levels` of folders below: a link may lead anywhere."""
    folders: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                (folders if entry.is_dir() else names).append(entry.name)
    except OSError:
        return
    yield path, names
    for name in folders if levels else ():
        yield from _behind_link(os.path.join(path, name), levels - 1)


def _stamps(store: Store, paths: Iterable[Path]) -> dict[str, Stamp]:
    return {store.relative(path): stamp for path in paths if (stamp := stamp_of(path)) is not None}


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
