"""The only writer: ranges of files, zeros, new files, journal lines, names."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from msgspec import Struct

from formats.basics import Buffer
from recover.store.reading import (
    BLANK,
    Piece,
    between_extents,
    crc32c,
    crc_joined,
    crc_with_zeros,
    data_extents,
    in_order,
)


class Operation(Struct, frozen=True):
    """One disk operation: its name and path; `offset`, `length` and `data` in bytes where they apply."""

    name: str
    path: str
    target: str = ""
    offset: int = 0
    length: int = 0
    data: bytes | memoryview = b""


_hook: Callable[[Operation], None] | None = None


def set_hook(hook: Callable[[Operation], None] | None) -> None:
    """Announce each operation to `hook` (None: to none). For tests: the hook may kill, fail or record."""
    global _hook
    _hook = hook


def fault(
    name: str, path: Path, target: str = "", *, offset: int = 0, length: int = 0, data: bytes | memoryview = b""
) -> None:
    """Announce the next operation; the hook may raise or never return."""
    if _hook is not None:
        _hook(Operation(name, str(path), target, offset, length, data))


CHUNK = 1 << 20
MODE = 0o644
"""Mode of new files, including those that a broker must be able to read."""
_ZERO_BLOCK = 64 << 10
_ZEROS = bytes(_ZERO_BLOCK)
_PROBE = 32  # bytes that settle for most blocks that they are not zeros
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start writeback, do not wait
UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOTTY, errno.EXDEV}
"""Error codes of file systems that do not support an operation, as opposed to one that failed."""


@contextlib.contextmanager
def _opened(path: Path | str, flags: int, mode: int = 0o600) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield fd
    finally:
        os.close(fd)


def pwrite(fd: int, path: Path, offset: int, data: Buffer) -> None:
    """Write all of `data` at `offset`, in pieces of at most `CHUNK` bytes."""
    view = memoryview(data)
    while len(view):
        piece = view[:CHUNK]
        fault("write", path, offset=offset, length=len(piece), data=piece)
        written = os.pwrite(fd, piece, offset)
        view, offset = view[written:], offset + written


def write_range(path: Path, offset: int, chunks: Iterable[Buffer]) -> None:
    """Overwrite bytes of an existing file from `offset` on. Not synced yet."""
    with _opened(path, os.O_WRONLY | os.O_NOFOLLOW) as fd:
        for chunk in chunks:
            pwrite(fd, path, offset, chunk)
            offset += len(chunk)


def zero_range(path: Path, start: int, stop: int) -> None:
    """Make [start, stop) read as zeros without allocating blocks; grows the file if `stop` is after its end."""
    if stop <= start:
        return
    with _opened(path, os.O_RDWR | os.O_NOFOLLOW) as fd:
        size = os.fstat(fd).st_size
        if start < size and not punch(fd, path, start, min(stop, size)):
            # holes read as zeros already; only allocated blocks need writing
            for first, last in data_extents(fd, start, min(stop, size)):
                for position in range(first, last, CHUNK):
                    pwrite(fd, path, position, bytes(min(CHUNK, last - position)))
        if stop > size:
            fault("truncate", path, length=stop)
            os.ftruncate(fd, stop)


def punch(fd: int, path: Path, start: int, stop: int) -> bool:
    """Deallocate a range; False if this file system cannot."""
    fault("punch", path, offset=start, length=stop - start)
    call = _libc("fallocate64") or _libc("fallocate")
    if call is None:
        return False
    while call(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(stop - start)) != 0:
        code = ctypes.get_errno()
        if code in UNSUPPORTED:
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), str(path))
    return True


@cache
def _libc(name: str) -> Callable[..., int] | None:
    """A C library function that Python does not provide; None if there is none."""
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


def truncate(path: Path, size: int) -> None:
    fault("truncate", path, length=size)
    with _opened(path, os.O_WRONLY | os.O_NOFOLLOW) as fd:
        os.ftruncate(fd, size)


def create_file(
    path: Path, chunks: Iterable[Buffer], mode: int = 0o600, *, sync: bool = True
) -> tuple[int, int]:
    """Write a new file, and sync it unless the caller does; returns (size, CRC-32C). Blocks of zeros become holes."""
    return create_from_pieces(path, in_order(chunks), mode, sync=sync)


def create_from_pieces(
    path: Path, pieces: Iterable[Piece], mode: int = 0o600, *, sync: bool = True
) -> tuple[int, int]:
    """As `create_file`, from pieces in any order that hold each byte once; `RuntimeError` if they do not."""
    fault("create", path)
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as fd:
        size, crc = _fill(fd, path, pieces)
        if sync:
            fault("fsync", path)
            os.fsync(fd)
    return size, crc


def _fill(fd: int, path: Path, pieces: Iterable[Piece]) -> tuple[int, int]:
    runs: list[list[int]] = []  # start, stop and CRC-32C of what came one after the other
    for at, piece in pieces:
        view, stop = memoryview(piece).cast("B"), 0
        if not view:
            continue
        for first, last in _written(view) if piece is not BLANK else ():
            pwrite(fd, path, at + first, view[first:last])
            stop = last
        if stop >= CHUNK and (call := _libc("sync_file_range")) is not None:
            # start writeback of a range while the next is produced, so that the final sync has little left to wait for
            call(fd, ctypes.c_int64(at), ctypes.c_int64(stop), _WRITE)
        if not runs or runs[-1][1] != at:
            runs.append([at, at, 0])
        crc = runs[-1][2]
        runs[-1][1:] = at + len(view), crc_with_zeros(crc, len(view)) if piece is BLANK else crc32c(view, crc)
    size = crc = 0
    for start, stop, own in sorted(runs):
        if start != size:
            raise RuntimeError(f"the content is not as announced: a piece at {start} instead of {size}")
        size, crc = stop, crc_joined(crc, own, stop - start)
    fault("truncate", path, length=size)
    os.ftruncate(fd, size)
    return size, crc


def _written(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yield the ranges of blocks that are not all zero, ascending."""
    start = 0
    for first in range(0, len(view), _ZERO_BLOCK):
        last = min(first + _ZERO_BLOCK, len(view))
        if not any(view[first : first + _PROBE]) and bytes(view[first:last]) == _ZEROS[: last - first]:
            if start < first:
                yield start, first
            start = last
    if start < len(view):
        yield start, len(view)


def append(path: Path, data: bytes) -> None:
    """Append bytes to a file (created if missing) and sync it."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW) as fd:
        view = memoryview(data)
        while len(view):
            fault("append", path, length=len(view), data=view[:CHUNK])
            view = view[os.write(fd, view[:CHUNK]) :]
        fault("fsync", path)
        os.fsync(fd)


def punch_holes(path: Path, keep: Iterable[tuple[int, int]], start: int, stop: int) -> None:
    """Deallocate the parts of [start, stop) outside of the `keep` ranges, where the file system can."""
    with _opened(path, os.O_RDWR | os.O_NOFOLLOW) as fd:
        for first, last in between_extents(keep, start, stop):
            punch(fd, path, first, last)


# --- Names: rename, link, unlink, directories, and the syncs that make them durable.


def set_times(path: Path, mtime_ns: int) -> None:
    """Set the modification time (ns since the epoch); the access time stays."""
    fault("set-times", path)
    os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ns))


def set_owner(path: Path, uid: int, gid: int, mode: int, *, strict: bool = True) -> None:
    """Set owner and mode of a file or directory where they differ; a missing permission is an error only if
    `strict`."""
    status = os.stat(path)
    if (status.st_uid, status.st_gid) != (uid, gid):
        fault("set-owner", path)
        try:
            os.chown(path, uid, gid)
        except PermissionError:
            if strict:
                raise
    if stat.S_IMODE(os.stat(path).st_mode) != stat.S_IMODE(mode):
        fault("set-mode", path)
        os.chmod(path, stat.S_IMODE(mode))


def set_owner_like(path: Path, like: os.stat_result, *, strict: bool = False) -> None:
    set_owner(path, like.st_uid, like.st_gid, like.st_mode, strict=strict)


def copy_xattrs(source: Path, target: Path) -> None:
    """Copy the extended attributes, as far as the target's file system and our permissions allow."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            fault("set-xattr", target)
            with contextlib.suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name))


def copy_metadata(source: Path, target: Path, status: os.stat_result, *, strict: bool = True) -> None:
    """Give `target` the owner, mode, xattrs and, last, mtime of `source` (`status` is its stat)."""
    set_owner_like(target, status, strict=strict)
    copy_xattrs(source, target)
    set_times(target, status.st_mtime_ns)


_SYNCS = 16


def rename(source: Path, target: Path) -> None:
    """Rename, replacing the target; neither directory is synced yet."""
    fault("rename", source, str(target))
    os.rename(source, target)


def write_whole(path: Path, data: bytes, temporary: Path) -> None:
    """Replace the content of `path` atomically and synced, through `temporary` beside it."""
    unlink(temporary)
    create_file(temporary, [data], MODE)
    rename(temporary, path)
    fsync_dir(path.parent)


def link(source: Path, target: Path) -> None:
    """Create a second name for the same file (for a symbolic link, for the link itself)."""
    fault("link", source, str(target))
    os.link(source, target, follow_symlinks=False)


def unlink(path: Path) -> None:
    """Remove a name; a missing one is fine."""
    fault("unlink", path)
    path.unlink(missing_ok=True)


def mkdir(path: Path, like: os.stat_result | None = None) -> None:
    """Create one directory with owner and mode of `like`; an existing one is fine."""
    fault("mkdir", path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
        if like is not None:
            set_owner_like(path, like)


def rmdir(path: Path) -> None:
    """Remove one empty directory; a missing one is fine."""
    fault("rmdir", path)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def remove_tree(path: Path) -> None:
    """Remove a directory that mqtool made; never follows symbolic links, not even this one."""
    if path.is_symlink():
        unlink(path)
        return
    for directory, names, files in os.walk(path, topdown=False):
        for name in files + [name for name in names if os.path.islink(os.path.join(directory, name))]:
            unlink(Path(directory, name))
        rmdir(Path(directory))


def fsync_dir(path: Path) -> None:
    fault("fsync-dir", path)
    _sync(path)


def sync_all(paths: Iterable[Path], *, missing_ok: bool = False) -> None:
    """Sync files and directories, each once, in parallel: a file system serves many syncs almost as fast as one."""
    distinct = [path for path in dict.fromkeys(paths) if not missing_ok or path.exists()]
    for path in distinct:
        fault("fsync-dir" if path.is_dir() else "fsync", path)
    # all are tried before the first failure is reported
    with ThreadPoolExecutor(_SYNCS) as pool:
        syncs = [pool.submit(_sync, path) for path in distinct]
    for sync in syncs:
        sync.result()


def _sync(path: Path) -> None:
    with _opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)


# --- Whole files: copies with their metadata, and files that get their name when they are complete.


_FICLONE = 0x40049409


def copy_file(source: Path, target: Path, *, strict: bool = True) -> None:
    """Create a file (or symbolic link) with the content, holes, owner, mode, mtime and xattrs of another, synced.

    Shares blocks where the file system can. `strict`: failing to set the owner is an error.
    """
    status = os.lstat(source)
    fault("create", target)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        return
    with _opened(target, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
        _copy_content(source, target, fd)
    copy_metadata(source, target, status, strict=strict)
    sync_all([target])


def _copy_content(source: Path, target: Path, fd: int) -> None:
    with _opened(source, os.O_RDONLY) as reader:
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


def open_for_lock(path: Path) -> int:
    """Return a descriptor of an existing lock file that can carry an exclusive lock; writes nothing."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)


def create_locked(path: Path, data: bytes, like: os.stat_result, lock: Callable[[int], None]) -> int:
    """Create a file that has its content, owner and lock before it is visible; return its descriptor.
    `FileExistsError`."""
    fd, temporary = _unnamed(path, os.path.basename(path))
    try:
        os.fchmod(fd, MODE)
        with contextlib.suppress(PermissionError):
            os.fchown(fd, like.st_uid, like.st_gid)
        pwrite(fd, path, 0, data)
        # otherwise a power cut could leave the name without the content that identifies its owner
        fault("fsync", path)
        os.fsync(fd)
        lock(fd)
        _give_name(fd, temporary, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def copy_into_place(source: Path, target: Path) -> None:
    """Put a synced copy of `source` at `target` on another file system. At any instant the target is the old file,
    missing, or the whole new one."""
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
    """Open a file without a name in the directory of `path`, or, where that is not supported, with a hidden name."""
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
    with _opened("/", os.O_RDONLY) as anchor:
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=anchor, follow_symlinks=True)
