"""The store's lock byte: seen without touching anything, or held while a store is changed.

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
from pathlib import Path
from types import TracebackType

from recover.change import disk
from recover.findings.refusal import Refusal
from recover.store.source import StorePath
from recover.store.store import check_journal_folder

_FLOCK = struct.Struct("hhqqi")
_MARKER = b"mqtool"
_BUSY = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
ROOT_MTIME = ".mqtool/root-mtime"
"""A note of the root directory's mtime (ns), there only while our lock file is being removed."""
UNKNOWN_HOLDER = -1
"""The holder's pid is not known: another mqtool (locks of open files have no pid), or another host."""


def probe(store: Path) -> int | None:
    """Pid of the process that holds the store, `UNKNOWN_HOLDER`, or None if nobody does. Creates and locks nothing.

    `Refusal` if the lock file is there but cannot be read. None of a store on a server, which knows no locks.
    """
    if isinstance(store, StorePath):
        return None
    try:
        fd = os.open(store / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refusal(f"lock cannot be opened: {error.strerror}", "run as the broker's user") from error
    try:
        return _holder(fd)
    finally:
        os.close(fd)


def refuse_if_held(root: Path, remedy: str = "stop the broker first") -> None:
    """`Refusal` (8) naming who holds the store, where `StoreLock` would give it; makes and locks nothing."""
    check_journal_folder(root)
    holder = probe(root)
    if holder is not None:
        raise _held_by(holder, remedy)


def _held_by(holder: int | None, remedy: str) -> Refusal:
    if holder is None or holder == UNKNOWN_HOLDER:
        return Refusal("another mqtool, or a process of another host, holds the store's lock",
                       "wait until it has ended", pid=None)
    return Refusal(f"process {holder} holds the store's lock", remedy, pid=holder)


def _holder(fd: int) -> int | None:
    """Who holds byte 0 against us. Does not report locks of this process itself made with F_SETLK."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else pid if pid > 0 else UNKNOWN_HOLDER


def holder_text(root: Path, pid: int) -> str:
    """Who holds the lock of the store at `root`: a process by its name, or another mqtool. `pid` as of `probe`."""
    if pid != UNKNOWN_HOLDER:
        try:
            name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
        except OSError:
            return f"process {pid}"
        return f"process {pid} ({name})"
    if is_own_lock_file(root / "lock"):
        return "another mqtool"
    return "another mqtool, or a process that cannot be seen from here"


def is_own_lock_file(path: Path) -> bool:
    """Whether a lock file was made by an mqtool (that is at work, or was killed) and not by a broker."""
    return _read(path).startswith(_MARKER)


def _read(path: Path) -> bytes:
    try:
        # a link is not ours, whatever it leads to: what is ours is removed
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(fd, 64, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


class StoreLock:
    """Holds byte 0 of `STORE/lock` exclusively; `Refusal` if somebody else does.

    A missing lock file is made, with a mark in it and the lock already on it, and removed at the end while still held.
    Making and removing it changes the root directory's mtime, which is put back; the mark, and at the end a note in the
    journal's folder, keep it meanwhile, so that a kill does not lose it.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.path = store / "lock"
        self.created = False
        self._fd = -1
        self._made_at: int | None = None

    def __enter__(self) -> StoreLock:
        check_journal_folder(self.store)
        try:
            self._acquire()
        except OSError as error:
            if self._made_at is not None:
                with contextlib.suppress(OSError):
                    disk.unlink(self.path)
                    disk.set_times(self.store, self._made_at)
            self._close()
            raise Refusal(
                f"the store's lock cannot be taken: {error.strerror}", _remedy(error), errno=error.errno
            ) from error
        except Refusal:
            self._close()
            raise
        return self

    def _acquire(self) -> None:
        for _ in range(100):
            if not self.path.exists() and not self._create():
                continue
            if self._fd < 0 and not self._open():
                continue
            # Another mqtool may have removed its lock file between our open and our lock.
            mine = os.fstat(self._fd)
            if self.path.exists() and os.path.samestat(mine, os.stat(self.path)):
                self._settle()
                return
            self._close()
        raise Refusal("the store's lock file keeps changing", "see who else works on this store")

    def _settle(self) -> None:
        """Put back the root's mtime if the file is ours and says so; from then on it does not."""
        text = _read(self.path)
        self.created = self._made_at is not None or text.startswith(_MARKER)
        pending = text.removeprefix(_MARKER).strip()
        if self.created and pending.isdigit():
            disk.set_times(self.store, int(pending))
            disk.truncate(self.path, len(_MARKER))

    def _create(self) -> bool:
        status = os.stat(self.store)
        try:
            self._fd = disk.create_locked(
                self.path, _MARKER + b" " + str(status.st_mtime_ns).encode(), status, _lock_byte
            )
        except FileExistsError:
            return False
        self._made_at = status.st_mtime_ns
        return True

    def _open(self) -> bool:
        try:
            self._fd = disk.open_for_lock(self.path)
        except FileNotFoundError:
            return False
        try:
            _lock_byte(self._fd)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
            raise _held_by(_holder(self._fd), "stop the broker first") from error
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.created:
                # What could not be removed carries our mark: the next mqtool does it, and no broker minds.
                with contextlib.suppress(OSError):
                    self._remove()
        finally:
            self._close()

    def _remove(self) -> None:
        mtime = os.stat(self.store).st_mtime_ns
        note = self.store / ROOT_MTIME
        if note.parent.is_dir():
            disk.unlink(note)
            disk.create_file(note, [b"%d\n" % mtime])
        disk.unlink(self.path)
        disk.set_times(self.store, mtime)
        disk.fsync_dir(self.store)
        if note.parent.is_dir():
            disk.unlink(note)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _lock_byte(fd: int) -> None:
    """Take byte 0 exclusively, or fail at once."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    fcntl.fcntl(fd, getattr(fcntl, "F_OFD_SETLK", fcntl.F_SETLK), request)


def _remedy(error: OSError) -> str:
    if error.errno == errno.EROFS:
        return "the file system is read-only: mount it writable, or make a recovered copy with --output"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "run as the broker's user or as root, or make a recovered copy with --output"
    if error.errno in (errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP):
        return "the file system has no locks, so a running broker cannot be told: make a recovered copy with --output"
    return "check the disk, then run the command again"
