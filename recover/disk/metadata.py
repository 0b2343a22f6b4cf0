"""Owner, mode, times, extended attributes."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from recover.disk.faults import fault


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
