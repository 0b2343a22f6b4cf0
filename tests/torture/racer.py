"""Another user who owns a store, and swaps what root makes in it for links while root works there."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.system import reachable
from tests.support.trees import tree_digest

OWNER = 54321
"""The user and group who own the store; nobody else on this machine has the number."""
_CREATE, _MOVED_TO, _MODIFY, _DELETE, _ATTRIB, _CLOSE = 0x100, 0x80, 0x2, 0x200, 0x4, 0x8
_ALL = _CREATE | _MOVED_TO | _MODIFY | _DELETE | _ATTRIB | _CLOSE
_ISDIR = 0x40000000
_EVENT = struct.Struct("iIII")
ASIDE = ".aside"

React = Callable[[Path, int], bool]
"""Called with a path and the event's mask; whether something was swapped."""


def give(root: Path, uid: int = OWNER) -> Path:
    """Make a store that user's, in folders that he can reach."""
    for path in (root, *root.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
    reachable(root)
    return root


def become(uid: int = OWNER) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


class Victim:
    """A folder of root's, as it is and must stay: a secret file, and many files by names that a run uses too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.secret = folder / "secret"
        self.secret.write_text("root's own\n" * 400)
        self.secret.chmod(0o600)
        for number in range(40):
            (folder / f"{number:06d}").write_bytes(b"root's own")
        self.kept = tree_digest(folder)

    def assert_untouched(self, store: Path) -> None:
        """Fail if anything of root's is another's now, gone or changed, if its text came out, or if a program got the
        setuid bit."""
        assert tree_digest(self.folder) == self.kept
        for path in store.rglob("*"):
            status = path.lstat()
            assert status.st_mode & 0o6000 == 0 or path.name.startswith("shell"), f"{path} got {status.st_mode:o}"
            if path.is_symlink() or not path.is_file() or status.st_uid != OWNER:
                continue
            with suppress(OSError):
                assert b"root's own" not in path.read_bytes(), path


class Swap(NamedTuple):
    """On which events what becomes a link to the target: the file that they name, or the folder that it is in."""

    events: int
    of_folder: bool
    fits: Callable[[str], bool]
    """By the name of what would become a link."""


_WORKED_IN = ("staged", "preimages", "retired", "making", "leftover")
SWAPS = {
    "each file that appears": Swap(_CREATE | _MOVED_TO, False, lambda name: name != "lock"),
    "each folder in which something is made or removed": Swap(
        _CREATE | _DELETE | _MOVED_TO, True, lambda name: name in _WORKED_IN),
    "each file that is written": Swap(_MODIFY, False, lambda name: name not in ("lock", "journal.ndjson")),
}


def reaction(swap: Swap, victim: Victim) -> React:
    """Swap what fits for a link to the victim's secret file, or to its folder, as soon as an event is seen."""
    def react(path: Path, mask: int) -> bool:
        place = path.parent if swap.of_folder else path
        named = mask & swap.events and not path.name.endswith(ASIDE) and swap.fits(place.name)
        if named and (swap.of_folder or not mask & _ISDIR) and not place.is_symlink():
            with suppress(OSError):
                place.rename(place.with_name(place.name + ASIDE))
                place.symlink_to(victim.folder if swap.of_folder else victim.secret)
                return True
        return False

    return react


@contextmanager
def racing(root: Path, react: React, uid: int = OWNER) -> Iterator[list[bytes]]:
    """Have that user watch everything below a folder, with inotify, and react at once, for the length of a block; what
    was yielded has an item for each swap then."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            become(uid)
            _watch(root, react, told)
        os._exit(0)
    os.close(told)
    os.read(ready, 1)
    swapped: list[bytes] = []
    try:
        yield swapped
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while one := os.read(ready, 1):
            swapped.append(one)
        os.close(ready)


def _watch(root: Path, react: React, told: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init()
    folders: dict[int, Path] = {}

    def reacted(path: Path, mask: int) -> None:
        if react(path, mask):
            os.write(told, b"x")

    def add(folder: Path, *, late: bool = True) -> None:
        if folder.name.endswith(ASIDE) or folder.is_symlink():
            return
        watch = libc.inotify_add_watch(queue, os.fsencode(folder), _ALL | 0x02000000)
        if watch < 0:
            return
        folders[watch] = folder
        with suppress(OSError):
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    add(Path(entry.path), late=late)
                elif late:  # it came before the watch
                    reacted(Path(entry.path), _CREATE)

    add(root, late=False)
    os.write(told, b"x")
    while True:
        select.select([queue], [], [])
        data = os.read(queue, 1 << 16)
        while data:
            watch, mask, _, length = _EVENT.unpack_from(data)
            name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
            data = data[_EVENT.size + length :]
            path = folders.get(watch, root) / os.fsdecode(name)
            if mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
                add(path)
            if name and not path.name.endswith(ASIDE):
                reacted(path, mask)
