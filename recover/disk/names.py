"""Names: rename, link, unlink, directories, and the syncs that make them last."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path

from recover.disk.content import fault


def set_times(path: Path, mtime_ns: int, *, follow: bool = True) -> None:
    """Set the modification time (ns since the epoch); the access time stays."""
    fault("set-times", path)
    status = os.stat(path, follow_symlinks=follow)
    os.utime(path, ns=(status.st_atime_ns, mtime_ns), follow_symlinks=follow)


def set_owner(path: Path, like: os.stat_result, *, strict: bool = False) -> None:
    """Give a file or directory the owner and mode of `like`; without the right to, only `strict` fails."""
    fault("set-owner", path)
    status = os.stat(path)
    if (status.st_uid, status.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.chown(path, like.st_uid, like.st_gid)
        except PermissionError:
            if strict:
                raise
    if stat.S_IMODE(os.stat(path).st_mode) != stat.S_IMODE(like.st_mode):
        os.chmod(path, stat.S_IMODE(like.st_mode))


def copy_xattrs(source: Path, target: Path) -> None:
    """Copy the extended attributes, as far as the target's file system and our rights take them."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            fault("set-xattr", target)
            with contextlib.suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name))


def set_metadata(path: Path, uid: int, gid: int, mode: int, mtime_ns: int) -> None:
    """Owner, mode and, last, mtime; only what differs is touched."""
    status = os.stat(path)
    if (status.st_uid, status.st_gid) != (uid, gid):
        fault("set-owner", path)
        os.chown(path, uid, gid)
    if stat.S_IMODE(os.stat(path).st_mode) != stat.S_IMODE(mode):
        fault("set-mode", path)
        os.chmod(path, stat.S_IMODE(mode))
    set_times(path, mtime_ns)


def copy_metadata(source: Path, target: Path, status: os.stat_result, *, strict: bool = True) -> None:
    """Owner, mode, xattrs and, last, mtime of `source` (`status` is its stat) for `target`."""
    set_owner(target, status, strict=strict)
    copy_xattrs(source, target)
    set_times(target, status.st_mtime_ns)


_SYNCS = 16


def rename(source: Path, target: Path) -> None:
    """Rename, replacing the target; neither directory is synced yet."""
    fault("rename", source, str(target))
    os.rename(source, target)


def link(source: Path, target: Path) -> None:
    """A second name for the same file (for the symbolic link itself, if it is one)."""
    fault("link", source, str(target))
    os.link(source, target, follow_symlinks=False)


def unlink(path: Path) -> None:
    """Remove a name; a missing one is fine."""
    fault("unlink", path)
    path.unlink(missing_ok=True)


def mkdir(path: Path, like: os.stat_result | None = None) -> None:
    """Make one directory, owned and readable as `like` says; an existing one is fine."""
    fault("mkdir", path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
        if like is not None:
            set_owner(path, like)


def rmdir(path: Path) -> None:
    """Remove one empty directory; a missing one is fine."""
    fault("rmdir", path)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def remove_tree(path: Path) -> None:
    """Remove a directory of our own making, never following symbolic links, not even this one."""
    if path.is_symlink():
        unlink(path)
        return
    for directory, names, files in os.walk(path, topdown=False):
        for name in files + [name for name in names if os.path.islink(os.path.join(directory, name))]:
            unlink(Path(directory, name))
        rmdir(Path(directory))


def fsync(path: Path) -> None:
    """Sync a file's content and metadata."""
    fault("fsync", path)
    _sync(path)


def fsync_dir(path: Path) -> None:
    """Sync the names in a directory."""
    fault("fsync-dir", path)
    _sync(path)


def sync_all(paths: Iterable[Path]) -> None:
    """Sync files and directories, each once, several at a time: a file system answers many syncs almost like one."""
    distinct = list(dict.fromkeys(paths))
    for path in distinct:
        fault("fsync-dir" if path.is_dir() else "fsync", path)
    if len(distinct) < 3:
        _sync_each(distinct)
        return
    # so many tasks and no more: to hand over each path by itself takes as long as to sync it
    tasks = min(_SYNCS, len(distinct))
    syncs = [_threads().submit(_sync_each, distinct[number::tasks]) for number in range(tasks)]
    # nothing is being synced any more when the first failure is told
    wait(syncs)
    for sync in syncs:
        sync.result()


@cache
def _threads() -> ThreadPoolExecutor:
    """Kept for the next syncs: to start sixteen takes as long as half of them."""
    return ThreadPoolExecutor(_SYNCS, thread_name_prefix="sync")


# threads do not survive in a child, which would wait for them
os.register_at_fork(after_in_child=_threads.cache_clear)


def _sync_each(paths: Iterable[Path]) -> None:
    for path in paths:
        _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
