"""Whether the system lets a run do its steps and take them back, asked before the first of them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from recover.errors import Refusal
from recover.plan.journal import Run
from recover.plan.model import JOURNAL_DIR, InPlace, Step, existing_folders, resolve

_GET_FLAGS = 0x80086601
"""FS_IOC_GETFLAGS of 64-bit x86 and ARM; where it is another number, or the file system has no flags, none are seen."""
_FLAGS = ((0x10, "immutable", "i"), (0x20, "append-only", "a"))
_LONG = struct.Struct("l")


def check_changeable(root: Path, steps: Iterable[Step], run: Run | None = None) -> None:
    """`Refusal` naming the first file or folder that steps have to write, rename or remove, and the system will not.

    `run`: its journal and what it keeps has to be changed, too.
    """
    steps = list(steps)
    existing = existing_folders(root)
    folders = {root, root / JOURNAL_DIR, root / JOURNAL_DIR / "runs"}
    folders |= {resolve(root, existing(step.file)) for step in steps if not isinstance(step, InPlace)}
    kept: set[Path] = set()
    if run is not None:
        folders |= {run.path, run.path / "staged", run.path / "preimages", run.path / "retired"}
        kept = {run.journal, *(path for number in range(len(run.plan.steps))
                               for path in (run.staged(number), run.retired(number)))}
    for path in sorted(folders):
        _check(root, path, written=True)
    for step in steps:
        _check(root, resolve(root, step.file), written=isinstance(step, InPlace))
    for path in sorted(kept):
        _check(root, path, written=run is not None and path == run.journal)


def _check(root: Path, path: Path, *, written: bool) -> None:
    inside = path.is_relative_to(root)
    name = "the store's root" if path == root else str(path.relative_to(root) if inside else path)
    for what, letter in _flags(path):
        raise Refusal(f"{name} is {what} (chattr +{letter}), so it can be neither changed nor put back",
                      f"chattr -{letter} {path}, then run the command again (a saved plan: make it again)", file=name)
    if written and os.path.lexists(path) and not os.access(path, os.W_OK, effective_ids=True):
        try:
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        except OSError:
            read_only = 0
        raise Refusal(
            f"{name} cannot be written: {os.strerror(errno.EROFS if read_only else errno.EACCES)}",
            "mount the file system writable, or make a recovered copy with --output" if read_only else
            "run as the broker's user or as root, or make a recovered copy with --output", file=name,
        )


def _flags(path: Path) -> Iterator[tuple[str, str]]:
    """The flags of a file or folder itself that keep it from being written or renamed, with their letters."""
    try:
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        value = _LONG.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_LONG.size)))[0]
    except OSError:
        return
    finally:
        os.close(fd)
    yield from ((what, letter) for bit, what, letter in _FLAGS if value & bit)
