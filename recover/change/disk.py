"""The only writer: ranges of files, zeros, new files, journal lines, names.

1. A folder that a change works in is opened once (`within`); everything in it is reached from that descriptor, never
   by way of a link, and never above it. Who swaps a folder for a link meanwhile is refused, or changes his own files.
2. Owner, mode, attributes and times are set on open files. Names are made, moved and removed by the descriptor of
   their folder; trees are removed from folder to folder in the same way.
3. Only what this process made itself is given away, and never with a setuid or setgid bit.

Paths outside of such folders are those that a user named: there the folder above a name is opened as named.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
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
    name: str, path: Path | str, target: str = "", *, offset: int = 0, length: int = 0, data: bytes | memoryview = b""
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


# --- Folders: everything below one is reached from its descriptor.


_CLOEXEC = os.O_CLOEXEC
_FOLDER = os.O_PATH | os.O_DIRECTORY | _CLOEXEC
_OPENAT2 = 437
_BENEATH, _NO_SYMLINKS = 0x08, 0x04  # RESOLVE_*: see openat2(2)
_TRIES = 64
_ODD = re.compile(r"//|/\.{0,2}(?:/|\Z)")
_folders: list[tuple[str, int]] = []


@contextlib.contextmanager
def within(*folders: Path | str) -> Iterator[None]:
    """Reach everything in these folders from their descriptors, for the length of a block. A folder itself may be
    named through links; nothing in it is reached through one (`OSError` ELOOP)."""
    mark = len(_folders)
    try:
        for folder in folders:
            name, known = _whole(folder).rstrip("/"), dict(_folders)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _folders.append((name, os.dup(known[name]) if name in known else os.open(folder, _FOLDER)))
        yield
    finally:
        while len(_folders) > mark:
            os.close(_folders.pop()[1])


def _whole(path: Path | str) -> str:
    text = str(path)
    return text if text[:1] == "/" and _ODD.search(text) is None else os.path.abspath(text)


def _place(whole: str) -> tuple[int, str] | None:
    """The open folder that a path is in, the deepest if it is in several, and the rest of the path; None outside of
    all."""
    length = fd = -1
    for name, folder in _folders:
        if len(name) >= length and whole.startswith(name) and (len(whole) == len(name) or whole[len(name)] == "/"):
            length, fd = len(name), folder
    return None if fd < 0 else (fd, whole[length:].strip("/") or ".")


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(folder: int, name: str, flags: int, mode: int) -> int:
    """Open a name below a folder by one system call; `OSError`."""
    how = _How(flags, mode if flags & (os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY) else 0, _BENEATH | _NO_SYMLINKS)
    call = _libc("syscall")
    assert call is not None
    code, encoded, size = 0, os.fsencode(name), ctypes.c_size_t(ctypes.sizeof(how))
    for _ in range(_TRIES):
        fd = call(ctypes.c_long(_OPENAT2), folder, encoded, ctypes.byref(how), size)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EINTR, errno.EAGAIN):  # EAGAIN: something was renamed during the walk
            break
    raise OSError(code, os.strerror(code), name)


@cache
def has_openat2() -> bool:
    """Whether this kernel, and what guards this process, knows openat2 (Linux 5.6)."""
    try:
        os.close(_openat2(-100, ".", _FOLDER, 0))  # AT_FDCWD
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            return False
        raise
    return True


def _step_by_step(folder: int, name: str, flags: int, mode: int) -> int:
    """The same without openat2: one component after the other, none of them a link."""
    *above, last = name.split("/")
    if ".." in (*above, last):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    with contextlib.ExitStack() as opened:
        for part in above:
            folder = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            opened.callback(os.close, folder)
        return os.open(last, flags | (os.O_NOFOLLOW if last != "." else 0), mode, dir_fd=folder)


def _open(path: Path | str, flags: int, mode: int = 0o600) -> int:
    """Open a path in the way of this module; errors name the whole path."""
    place = _place(_whole(path))
    try:
        if place is None:
            return os.open(path, flags | _CLOEXEC, mode)
        return (_openat2 if has_openat2() else _step_by_step)(*place, flags | _CLOEXEC, mode)
    except OSError as error:
        error.filename = str(path)
        raise


@contextlib.contextmanager
def _opened(path: Path | str, flags: int, mode: int = 0o600) -> Iterator[int]:
    fd = _open(path, flags, mode)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _above(path: Path | str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder of a path, and its name there; errors of the block name the whole path."""
    above, _, name = _whole(path).rpartition("/")
    folder = _open(above or "/", _FOLDER)
    try:
        yield folder, name
    except OSError as error:
        error.filename = str(path)
        error.filename2 = None
        raise
    finally:
        os.close(folder)


_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@contextlib.contextmanager
def _itself(path: Path | str) -> Iterator[int]:
    """Yield a descriptor of a file or folder whose attributes are to be set: not of what a link leads to."""
    try:
        fd = _open(path, _LOOK)
    except PermissionError:  # its owner may set them without a right to read it
        fd = _open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


# --- Owner, mode, attributes and times: of open files.


_PLAIN = 0o1777  # no setuid, no setgid
_KEPT_BACK = ("security.capability", "security.ima", "security.evm", "trusted.")
"""Attributes that give rights, or that vouch for content: never copied."""


class Like(Struct, frozen=True):
    """What a new file takes from the one that it replaces, or from its neighbours."""

    uid: int
    gid: int
    mode: int
    attributes: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of(cls, status: os.stat_result, attributes: tuple[tuple[str, bytes], ...] = ()) -> Like:
        return cls(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode) & _PLAIN, attributes)


def like_of(source: int | Path | str) -> Like:
    """See `Like`, of an open file or a path; attributes as far as they can be read."""
    attributes: list[tuple[str, bytes]] = []
    with contextlib.suppress(OSError):
        for name in os.listxattr(source):
            if not name.startswith(_KEPT_BACK):
                with contextlib.suppress(OSError):
                    attributes.append((name, os.getxattr(source, name)))
    return Like.of(os.stat(source), tuple(attributes))


def _give(fd: int, path: Path | str, like: Like, *, strict: bool = False) -> None:
    """Give an open file that this process made the owner, mode and attributes of another; a missing permission to set
    the owner is an error only if `strict`."""
    status = os.fstat(fd)
    if (status.st_uid, status.st_gid) != (like.uid, like.gid):
        fault("set-owner", path)
        _give_owner(fd, status, like, strict=strict)
    # a folder's own setgid bit, which the kernel took from the folder above, stays
    own = os.fstat(fd).st_mode & (stat.S_ISGID if stat.S_ISDIR(status.st_mode) else 0)
    if stat.S_IMODE(os.fstat(fd).st_mode) != (like.mode & _PLAIN | own):
        fault("set-mode", path)
        os.fchmod(fd, like.mode & _PLAIN | own)
    for name, value in like.attributes:
        fault("set-xattr", path)
        with contextlib.suppress(OSError):
            os.setxattr(fd, name, value)


def _give_owner(fd: int, status: os.stat_result, like: Like, *, strict: bool) -> None:
    is_ours = status.st_uid == os.geteuid() and (stat.S_ISDIR(status.st_mode) or status.st_nlink <= 1)
    if not is_ours and os.geteuid() == 0:
        raise OSError(errno.EPERM, "somebody else put another file in its place")
    try:
        os.fchown(fd, like.uid, like.gid)
    except PermissionError:
        if strict:
            raise
        with contextlib.suppress(PermissionError):  # the group alone, if the user is in it
            os.fchown(fd, -1, like.gid)


def dress(path: Path, like: Like, *, strict: bool = False) -> None:
    """`_give` for a file that another process made for this one."""
    with _itself(path) as fd:
        _give(fd, path, like, strict=strict)


def _set_times(fd: int, path: Path | str, mtime_ns: int) -> None:
    fault("set-times", path)
    os.utime(fd, ns=(os.fstat(fd).st_atime_ns, mtime_ns))


def set_times(path: Path, mtime_ns: int) -> None:
    """Set the modification time (ns since the epoch) of a file or folder; the access time stays."""
    with _itself(path) as fd:
        _set_times(fd, path, mtime_ns)


# --- Content.


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
    path: Path, chunks: Iterable[Buffer], mode: int = 0o600, *, sync: bool = True, like: Like | None = None
) -> tuple[int, int]:
    """Write a new file, and sync it unless the caller does; returns (size, CRC-32C). Blocks of zeros become holes.
    `like`: what it takes from another file, as far as that is permitted."""
    return create_from_pieces(path, in_order(chunks), mode, sync=sync, like=like)


def create_from_pieces(
    path: Path, pieces: Iterable[Piece], mode: int = 0o600, *, sync: bool = True, like: Like | None = None
) -> tuple[int, int]:
    """As `create_file`, from pieces in any order that hold each byte once; `RuntimeError` if they do not."""
    fault("create", path)
    with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as fd:
        size, crc = _fill(fd, path, pieces)
        if like is not None:
            _give(fd, path, like)
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


_SYNCS = 16
_DEEPEST = 100


def rename(source: Path, target: Path) -> None:
    """Rename, replacing the target; neither directory is synced yet."""
    fault("rename", source, str(target))
    with _above(source) as (old, name), _above(target) as (new, other):
        os.rename(name, other, src_dir_fd=old, dst_dir_fd=new)


def write_whole(path: Path, data: bytes, temporary: Path) -> None:
    """Replace the content of `path` atomically and synced, through `temporary` beside it."""
    unlink(temporary)
    create_file(temporary, [data], MODE)
    rename(temporary, path)
    fsync_dir(path.parent)


def link(source: Path, target: Path) -> None:
    """Create a second name for the same file (for a symbolic link, for the link itself)."""
    fault("link", source, str(target))
    with _above(source) as (old, name), _above(target) as (new, other):
        os.link(name, other, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)


def unlink(path: Path) -> None:
    """Remove a name; a missing one is fine."""
    fault("unlink", path)
    with contextlib.suppress(FileNotFoundError), _above(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def mkdir(path: Path, like: os.stat_result | None = None, mode: int = 0o755) -> None:
    """Create one directory with owner and mode of `like`; an existing one is fine."""
    fault("mkdir", path)
    with _above(path) as (folder, name):
        try:
            os.mkdir(name, mode, dir_fd=folder)
        except FileExistsError:
            return
    if like is not None:
        with _opened(path, _LOOK | os.O_DIRECTORY) as fd:
            if os.listdir(fd):
                raise OSError(errno.EPERM, "somebody else put another folder in its place", str(path))
            _give(fd, path, Like.of(like))


def rmdir(path: Path) -> None:
    """Remove one empty directory; a missing one is fine."""
    fault("rmdir", path)
    with contextlib.suppress(FileNotFoundError), _above(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove a directory that mqtool made, and everything in it; never follows symbolic links, not even this one. A
    missing one is fine."""
    with contextlib.suppress(FileNotFoundError), _above(path) as (folder, name):
        try:
            fd = os.open(name, _LOOK | os.O_DIRECTORY | _CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            fault("unlink", path)
            os.unlink(name, dir_fd=folder)
            return
        try:
            _empty(fd, path, 0)
        finally:
            os.close(fd)
        fault("rmdir", path)
        os.rmdir(name, dir_fd=folder)


def _empty(fd: int, path: Path, depth: int) -> None:
    if depth > _DEEPEST:
        raise OSError(errno.ELOOP, "folders are nested deeper than mqtool makes them", str(path))
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            inner = os.open(name, _LOOK | os.O_DIRECTORY | _CLOEXEC, dir_fd=fd)
            try:
                _empty(inner, path / name, depth + 1)
            finally:
                os.close(inner)
        fault("rmdir" if is_folder else "unlink", path / name)
        with contextlib.suppress(FileNotFoundError):
            (os.rmdir if is_folder else os.unlink)(name, dir_fd=fd)


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
    with _opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        os.fsync(fd)


# --- Whole files: copies with their metadata, and files that get their name when they are complete.


_FICLONE = 0x40049409


def copy_file(source: Path, target: Path, *, is_new: bool = False) -> os.stat_result:
    """Create a file (or symbolic link) with the content, holes, owner, mode, mtime and xattrs of another, synced;
    return the status of that one. Shares blocks where the file system can.

    `is_new`: in a new tree. There the owner stays that of this process (see `hand_over`), and a link is an error.
    """
    try:
        reader = _open(source, _LOOK)
    except OSError as error:
        if error.errno != errno.ELOOP or is_new:
            raise
        return _copy_link(source, target)
    try:
        status = os.fstat(reader)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(source))
        fault("create", target)
        with _opened(target, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            _copy_content(reader, source, target, fd)
            _copy_metadata(reader, fd, target, owner=not is_new)
            fault("fsync", target)
            os.fsync(fd)
    finally:
        os.close(reader)
    return status


def _copy_link(source: Path, target: Path) -> os.stat_result:
    with _above(source) as (folder, name):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        leads_to = os.readlink(name, dir_fd=folder)
    fault("create", target)
    with _above(target) as (folder, name):
        os.symlink(leads_to, name, dir_fd=folder)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=folder, follow_symlinks=False)
    return status


def _copy_metadata(reader: int, fd: int, target: Path, *, strict: bool = True, owner: bool = True) -> None:
    """Give an open file the owner, mode, xattrs and, last, mtime of another."""
    like = like_of(reader)
    if not owner:
        now = os.fstat(fd)
        like = Like(now.st_uid, now.st_gid, like.mode, like.attributes)
    _give(fd, target, like, strict=strict)
    _set_times(fd, target, os.fstat(reader).st_mtime_ns)


def copy_metadata(source: Path, target: Path) -> None:
    """Give a folder that this process made the owner (as far as permitted), mode, xattrs and, last, mtime of
    another."""
    with _opened(source, _LOOK | os.O_DIRECTORY) as reader, _opened(target, _LOOK | os.O_DIRECTORY) as fd:
        _copy_metadata(reader, fd, target, strict=False)


def _copy_content(reader: int, source: Path, target: Path, fd: int) -> None:
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


# --- New trees: closed to everybody else until they are complete.


_CLOSED = 0o700


def close_off(folder: Path) -> Like:
    """Take over an empty folder, as far as permitted, and keep everybody else out of it; return how it was."""
    with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd, contextlib.suppress(PermissionError):
        was = like_of(fd)
        if was.uid != os.geteuid():
            fault("set-owner", folder)
            os.fchown(fd, os.geteuid(), -1)
        fault("set-mode", folder)
        os.fchmod(fd, _CLOSED)
    return was


Own = Callable[[str, os.stat_result], Like | None]
"""What becomes of a file or folder of a new tree, by its name in there and its status; None: as it is, with the owner
of the folder that it is in."""


def hand_over(tree: Path, own: Own, top: Like, *, only_top: bool = False) -> None:
    """Give everything in a new tree its owner and mode, the deepest first, and the tree itself last."""
    with _opened(tree, os.O_RDONLY | os.O_DIRECTORY) as fd:
        if not only_top:
            _hand_over(fd, tree, "", own, top)
            if (call := _libc("syncfs")) is not None:
                call(fd)
        _give(fd, tree, top)
        os.fsync(fd)


def _hand_over(folder: int, path: Path, above: str, own: Own, like: Like) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.is_symlink()]
    for name in names:
        fd = os.open(name, _LOOK | _CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(fd)
            wanted = own(above + name, status) or Like(like.uid, like.gid, stat.S_IMODE(status.st_mode))
            if stat.S_ISDIR(status.st_mode):
                _hand_over(fd, path / name, f"{above}{name}/", own, wanted)
            _give(fd, path / name, wanted)
        finally:
            os.close(fd)


def open_for_lock(path: Path) -> int:
    """Return a descriptor of an existing lock file that can carry an exclusive lock; writes nothing."""
    return _open(path, os.O_RDWR | os.O_NONBLOCK)


def create_locked(path: Path, data: bytes, like: os.stat_result, lock: Callable[[int], None]) -> int:
    """Create a file that has its content, owner and lock before it is visible; return its descriptor.
    `FileExistsError`."""
    fd, temporary = _unnamed(path, os.path.basename(path))
    try:
        _give(fd, path, Like(like.st_uid, like.st_gid, MODE))
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
    try:
        reader = _open(source, _LOOK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        unlink(target)
        _copy_link(source, target)
        return
    try:
        fd, temporary = _unnamed(target, target.name)
        try:
            _copy_content(reader, source, target, fd)
            _copy_metadata(reader, fd, target)
            fault("fsync", target)
            os.fsync(fd)
            unlink(target)
            _give_name(fd, temporary, target)
        finally:
            os.close(fd)
    finally:
        os.close(reader)


def _unnamed(path: Path, name: str) -> tuple[int, Path | None]:
    """Open a file without a name in the directory of `path`, or, where that is not supported, with a hidden name."""
    with _above(path) as (folder, _):
        try:
            return os.open(".", os.O_TMPFILE | os.O_RDWR | _CLOEXEC, 0o600, dir_fd=folder), None
        except OSError as error:
            if error.errno not in UNSUPPORTED | {errno.EISDIR, errno.ENOENT} or not path.parent.is_dir():
                raise
    temporary = path.parent / f".{name}.mqtool"
    unlink(temporary)
    fault("create", temporary)
    return _open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL), temporary


def _give_name(fd: int, temporary: Path | None, path: Path) -> None:
    fault("link", path)
    if temporary is not None:
        with _above(path) as (folder, name):
            os.link(temporary.name, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        unlink(temporary)
        return
    # linkat follows /proc/self/fd only with AT_SYMLINK_FOLLOW, which Python passes if a directory descriptor is given.
    with _opened("/", os.O_RDONLY) as anchor, _above(path) as (folder, name):
        os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=anchor, dst_dir_fd=folder, follow_symlinks=True)
