"""Whole files: copies with all that belongs to them, and files that get their name when they are complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

from recover.disk.content import CHUNK, UNSUPPORTED, fault, pwrite
from recover.disk.names import copy_metadata, fsync, unlink
from recover.files.reading import data_extents

_FICLONE = 0x40049409


def copy_file(source: Path, target: Path, *, strict: bool = True) -> None:
    """A new file (or symbolic link) with the content, holes, owner, mode, mtime and xattrs of another, synced.

    Shares blocks where the file system can. `strict`: an owner that cannot be given is an error.
    """
    status = os.lstat(source)
    fault("create", target)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        return
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _copy_content(source, target, fd)
    finally:
        os.close(fd)
    copy_metadata(source, target, status, strict=strict)
    fsync(target)


def _copy_content(source: Path, target: Path, fd: int) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fault("reflink", target, str(source))
        try:
            fcntl.ioctl(fd, _FICLONE, reader)
            return
        except OSError as error:
            if error.errno not in UNSUPPORTED | {errno.EPERM, errno.EBADF}:
                raise
        size = os.fstat(reader).st_size
        for start, stop in data_extents(reader, 0, size):
            position = start
            while position < stop:
                piece = os.pread(reader, min(CHUNK, stop - position), position)
                if not piece:
                    raise OSError(errno.EIO, "the file became shorter while it was copied", str(source))
                pwrite(fd, target, position, piece)
                position += len(piece)
        fault("truncate", target, length=size)
        os.ftruncate(fd, size)
    finally:
        os.close(reader)


def open_for_lock(path: Path) -> int:
    """A descriptor on an existing lock file that can carry an exclusive lock; writes nothing."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)


def create_locked(path: Path, data: bytes, like: os.stat_result, lock: Callable[[int], None]) -> int:
    """A new file that carries its content, its owner and a lock before anybody can see it; its descriptor.

    `FileExistsError` if somebody was faster.
    """
    fd, temporary = _unnamed(path, os.path.basename(path))
    try:
        os.fchmod(fd, 0o644)
        with contextlib.suppress(PermissionError):
            os.fchown(fd, like.st_uid, like.st_gid)
        pwrite(fd, path, 0, data)
        # Or a power cut could leave the name without the content that tells whose it is.
        fault("fsync", path)
        os.fsync(fd)
        lock(fd)
        _give_name(fd, temporary, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def copy_into_place(source: Path, target: Path) -> None:
    """Put a copy of `source` at `target` on another file system, replacing what is there; synced.

    The name appears when the copy is complete: at any instant there is the old file, none, or the whole new one.
    """
    status = os.lstat(source)
    if stat.S_ISLNK(status.st_mode):
        unlink(target)
        copy_file(source, target)
        return
    fd, temporary = _unnamed(target, target.name)
    try:
        _copy_content(source, target, fd)
        handle = Path(f"/proc/self/fd/{fd}") if temporary is None else temporary
        copy_metadata(source, handle, status)
        fault("fsync", target)
        os.fsync(fd)
        unlink(target)
        _give_name(fd, temporary, target)
    finally:
        os.close(fd)


def _unnamed(path: Path, name: str) -> tuple[int, Path | None]:
    """A file without a name in the directory of `path`, or where that cannot be had, one with a hidden name."""
    try:
        return os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), None
    except OSError as error:
        if error.errno not in UNSUPPORTED | {errno.EISDIR, errno.ENOENT} or not path.parent.is_dir():
            raise
    temporary = path.parent / f".{name}.mqtool"
    unlink(temporary)
    fault("create", temporary)
    return os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), temporary


def _give_name(fd: int, temporary: Path | None, path: Path) -> None:
    fault("link", path)
    if temporary is not None:
        os.link(temporary, path)
        unlink(temporary)
        return
    # linkat follows /proc/self/fd only with AT_SYMLINK_FOLLOW, which Python passes if a directory descriptor is given.
    anchor = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=anchor, follow_symlinks=True)
    finally:
        os.close(anchor)
