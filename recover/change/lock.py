"""The store's lock byte: probed without touching anything, or held while a store is changed.

Brokers hold byte 0 of `STORE/lock` exclusively (`FileChannel.tryLock(0, 1)` in DefaultMessageStore.start, a POSIX
record lock). A probe asks for its holder on a read-only descriptor. A change holds the byte through an open file
description lock: it conflicts with record locks both ways, and outlives other descriptors of the file in this process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from recover.change import disk
from recover.change.owner import permission_remedy
from recover.findings.code import N_, Refusal
from recover.findings.model import Phrase
from recover.store.source import StorePath
from recover.store.store import Store, check_journal_folder

_FLOCK = struct.Struct("hhqqi")
_MARKER = b"mqtool"
_BUSY = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
ROOT_MTIME = ".mqtool/root-mtime"
"""A file with the root directory's mtime (ns), which exists only while our lock file is being removed."""
UNKNOWN_HOLDER = -1
"""The holder's pid is unknown: another mqtool (open file description locks have no pid), or another host."""


def probe(store: Path) -> int | None:
    """Return the pid of the process that holds the store, `UNKNOWN_HOLDER`, or None. Creates and locks nothing.

    `Refusal` if the lock file exists but cannot be read. None for a store on a server, which has no locks.
    """
    root = store.behind if isinstance(store, StorePath) else store
    if root is None:
        return None
    try:
        fd = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refusal(Phrase("lock cannot be opened: {error}", error=error.strerror),
                      N_("run as the broker's user")) from error
    try:
        return _holder(fd)
    finally:
        os.close(fd)


def holder_of(store: Store) -> int | None:
    """The result of `probe` of its root, cached."""
    if store.lock_holder is None:
        store.lock_holder = (probe(store.root),)
    return store.lock_holder[0]


def refuse_if_held(root: Path, remedy: str = N_("stop the broker first"), *, broker: bool = True) -> None:
    """`Refusal` (8) naming who holds the store, where `store_lock` would give it; makes and locks nothing. `broker`:
    also where that is a process with a pid, and so no other mqtool."""
    holder = probe(root)
    if holder is not None and (broker or holder == UNKNOWN_HOLDER):
        raise _held_by(holder, remedy)


def _held_by(holder: int | None, remedy: str) -> Refusal:
    if holder is None or holder == UNKNOWN_HOLDER:
        return Refusal(N_("another mqtool, or a process of another host, holds the store's lock"),
                       N_("wait until it has ended"), pid=None)
    return Refusal(Phrase("process {pid} holds the store's lock", pid=holder), remedy, pid=holder)


def only_run(stream: IO[bytes], path: Path) -> None:
    """Hold a file that a run writes elsewhere, until the stream is closed; `Refusal` (8) if another run holds it."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Refusal(Phrase("another mqtool uses {path}", path=path),
                      N_("Wait until it has ended, or name another file."),
                      path=str(path)) from error
    except OSError:
        pass  # a file system without locks


def _holder(fd: int) -> int | None:
    """The holder of byte 0, if it conflicts with us. Does not report locks of this process itself made with F_SETLK."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else pid if pid > 0 else UNKNOWN_HOLDER


def holder_text(root: Path, pid: int) -> str:
    """Describe the holder of the lock of the store at `root`: process and name, or another mqtool. `pid` as of
    `probe`."""
    if pid != UNKNOWN_HOLDER:
        try:
            name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
        except OSError:
            return Phrase("process {pid}", pid=pid)
        return Phrase("process {pid} ({name})", pid=pid, name=name)
    here = root.behind if isinstance(root, StorePath) else root
    if here is not None and is_own_lock_file(here / "lock"):
        return N_("another mqtool")
    return N_("another mqtool, or a process that is not visible from here")


def is_own_lock_file(path: Path) -> bool:
    """Whether a lock file was created by an mqtool (running or killed) and not by a broker."""
    return _read(path).startswith(_MARKER)


def _read(path: Path) -> bytes:
    try:
        # a link is never ours, whatever its target: our own file is going to be removed
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(fd, 64, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


@contextlib.contextmanager
def store_lock(store: Path) -> Iterator[None]:
    """Hold byte 0 of `STORE/lock` exclusively; `Refusal` if another process does.

    A missing lock file is created with a mark in it and already locked, and removed at the end while still held.
    Creating and removing it changes the root directory's mtime, which is restored; the mark, and at the end a file in
    the journal's folder, record it meanwhile, so that a kill does not lose it.
    """
    check_journal_folder(store)
    with disk.within(store):
        fd, is_own = _acquire(store)
        try:
            yield
        finally:
            try:
                if is_own:
                    # a file that could not be removed carries our mark: the next mqtool removes it, and no broker minds
                    with contextlib.suppress(OSError):
                        _remove(store)
            finally:
                os.close(fd)


def _acquire(store: Path) -> tuple[int, bool]:
    """Return a descriptor that holds the byte, and whether the file is ours."""
    path = store / "lock"
    for _ in range(100):
        made_at, status = None, os.stat(store)
        with contextlib.ExitStack() as stack:
            try:
                if path.exists():
                    fd = disk.open_for_lock(path)
                    stack.callback(os.close, fd)
                    _lock_or_refuse(fd)
                else:
                    mark = b"%s %d" % (_MARKER, status.st_mtime_ns)
                    fd = disk.create_locked(path, mark, status, _lock_byte)
                    stack.callback(os.close, fd)
                    made_at = status.st_mtime_ns
                # another mqtool may have removed its lock file between our open and our lock
                if path.exists() and os.path.samestat(os.fstat(fd), os.stat(path)):
                    is_own = _settle(store) or made_at is not None
                    stack.pop_all()
                    return fd, is_own
            except (FileExistsError, FileNotFoundError):
                continue
            except OSError as error:
                if made_at is not None:
                    with contextlib.suppress(OSError):
                        disk.unlink(path)
                        disk.set_times(store, made_at)
                raise Refusal(Phrase("the store's lock cannot be taken: {error}", error=error.strerror),
                              _remedy(error, store), errno=error.errno) from error
    raise Refusal("the store's lock file keeps changing", "find the other process that uses this store")


def _lock_or_refuse(fd: int) -> None:
    try:
        _lock_byte(fd)
    except OSError as error:
        if error.errno not in _BUSY:
            raise
        raise _held_by(_holder(fd), N_("stop the broker first")) from error


def _settle(store: Path) -> bool:
    """Whether the file is ours; if it records the root's mtime, restore that and clear the record."""
    text = _read(store / "lock")
    pending = text.removeprefix(_MARKER).strip()
    if text.startswith(_MARKER) and pending.isdigit():
        disk.set_times(store, int(pending))
        disk.truncate(store / "lock", len(_MARKER))
    return text.startswith(_MARKER)


def _remove(store: Path) -> None:
    mtime, note = os.stat(store).st_mtime_ns, store / ROOT_MTIME
    if note.parent.is_dir():
        disk.unlink(note)
        disk.create_file(note, [b"%d\n" % mtime])
    disk.unlink(store / "lock")
    disk.set_times(store, mtime)
    disk.fsync_dir(store)
    if note.parent.is_dir():
        disk.unlink(note)


def _lock_byte(fd: int) -> None:
    """Take byte 0 exclusively, or fail at once."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    fcntl.fcntl(fd, getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK), request)


def _remedy(error: OSError, store: Path) -> str:
    if error.errno == errno.EROFS:
        return N_("the file system is read-only: mount it writable, or make a recovered copy with --output")
    if error.errno in (errno.EACCES, errno.EPERM):
        return permission_remedy(store)
    if error.errno in (errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP):
        return N_("the file system has no locks and a broker cannot be detected: make a recovered copy with --output")
    return N_("check the disk, then run the command again")
