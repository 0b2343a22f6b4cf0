"""Where a command may write, and whether it can: folders, links, flags, free space; checked before the first step.

A store is hostile input, and so are its journal and a plan from elsewhere: both name files, and neither may reach
beyond what the command was given. Therefore no folder between a part and a file may be a link. A part's own folder may
be one if the command line names that part (for instance commitlog on another disk).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from recover.change.model import InPlace, Plan, RetireFolder, Step, existing_folders
from recover.change.owner import permission_remedy
from recover.findings.code import N_, Refusal
from recover.findings.model import Finding, Phrase
from recover.store.source import open_file
from recover.store.store import JOURNAL_DIR, Store

_PARTS = ("commitlog", "consumequeue", "consumequeue_ext", "index", "config", "timerlog", "transaction")
_FILES = re.compile(r"checkpoint|abort|timerwheel(\.[0-9]+)?|offsets\.json(\.bak)?")
"""Of the root; offsets.json is in that of a broadcast client's group."""
_OPTIONS = {"commitlog": "--commitlog", "consumequeue": "--consumequeue", "index": "--index"}


class Places:
    """The folders that may be written below `root` and in the parts that are `given` (paths). Each is checked once:
    create a new instance for the next check."""

    def __init__(self, root: Path, given: Iterable[Path | str] = ()) -> None:
        self._root = os.path.abspath(root)
        self._given = frozenset(map(os.path.abspath, given))
        self._bases = self._given | {os.path.join(self._root, name) for name in _PARTS}
        self._known: set[str] = set()

    def check_plan(self, plan: Plan) -> None:
        """`Refusal` naming the first path of a plan that the command was not given, or that leads through a link."""
        for part in plan.parts:
            path = os.path.abspath(part)
            if path not in self._given and not Path(path).is_relative_to(self._root):
                raise _foreign(part)
        self.check(plan.steps)

    def check(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.folders_of(step)

    def folders_of(self, step: Step) -> tuple[str, ...]:
        """The folders, as plans name them, in which a step may create or remove names; `Refusal` for a foreign one."""
        if _FILES.fullmatch(step.file) or (isinstance(step, RetireFolder) and step.file in _PARTS):
            return (".",)
        folders = [os.path.dirname(os.path.normpath(os.path.join(self._root, step.file)))]
        while folders[-1] not in self._bases:
            folders.append(os.path.dirname(folders[-1]))
            if folders[-1] == folders[-2]:
                raise _foreign(step.file)
        for folder in folders:
            self._check_folder(folder)
        if step.file.startswith("/"):
            return tuple(folders)
        return (*map(self._name, folders), ".")

    def _name(self, folder: str) -> str:
        below = folder.removeprefix(f"{self._root}/")
        return os.path.relpath(folder, self._root) if below == folder else below

    def _check_folder(self, folder: str) -> None:
        if folder in self._known:
            return
        if folder not in self._given and os.path.islink(folder):
            target = os.path.realpath(folder)
            name = folder.removeprefix(f"{self._root}/")
            remedy: str = N_("replace the link by the folder itself (move it, or mount it there), or make a copy with "
                             "--output")
            if name in _OPTIONS:
                remedy = Phrase("if that folder belongs to this store, name it: {option} {target}",
                                option=_OPTIONS[name], target=target)
            raise Refusal(Phrase("{name} is a link to {target}, and mqtool does not write through a link in the store",
                                 name=name, target=target), remedy, file=name, target=target)
        self._known.add(folder)


def _foreign(path: str) -> Refusal:
    return Refusal(Phrase("{path} is outside of the store's files given to this command, and nothing is written there",
                          path=repr(path)),
                   "if it belongs to the store, name its folder with --commitlog, --consumequeue or --index; if not, "
                   "the plan or journal is forged: do not use it", file=path)


def check_alone(root: Path, file: str) -> None:
    """`Refusal` unless a file that is about to be written in place is a regular file with a single name."""
    try:
        status = os.lstat(root / file)
    except OSError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        linked = N_("a link") if stat.S_ISLNK(status.st_mode) else N_("not a regular file")
        what = N_("also known by another name") if stat.S_ISREG(status.st_mode) else linked
        raise Refusal(Phrase("{file} is {what}: a change would reach outside of the store", file=file, what=what),
                      "put a copy of the file in its place (cp -p --sparse=always), then run the command again",
                      file=file)


_ODD_NAMES = frozenset({"commitlog-odd-name", "consumequeue-odd-name", "index-odd-name"})


def foreign_folders(findings: Iterable[Finding], store: Store) -> list[str]:
    """The folders, as plans name them, that findings report because only data files belong in their place."""
    return [
        item.file for item in findings
        if item.code in _ODD_NAMES and item.severity != "info" and item.file is not None
        and (store.root / item.file).is_dir()
    ]


def can_be_retired(root: Path, file: str) -> bool:
    """Whether a folder can leave the store in one move: it is on the journal's file system, or empty."""
    path = root / file
    home = root / JOURNAL_DIR if (root / JOURNAL_DIR).is_dir() else root
    try:
        if path.is_symlink() or not os.path.ismount(path):
            return os.lstat(path).st_dev == home.stat().st_dev or (not path.is_symlink() and not os.listdir(path))
    except OSError:
        pass
    return False


_GET_FLAGS = 0x80086601
"""FS_IOC_GETFLAGS of 64-bit x86 and ARM; elsewhere, or on file systems without flags, none are seen."""
_FLAGS = ((0x10, N_("immutable"), "i"), (0x20, N_("append-only"), "a"))
_LONG = struct.Struct("l")


def check_changeable(
    root: Path, steps: Iterable[Step], run: Iterable[Path] = (), kept: Iterable[Path] = (), *,
    beside: Path | None = None,
) -> None:
    """`Refusal` naming the first file or folder that steps have to write, rename or remove, and the system does not
    allow. `run`: the folders of a begun run, whose journal is written too, and whose `kept` files are moved; `beside`:
    the folder that gets the undo data of a new one."""
    steps = list(steps)
    existing = existing_folders(root)
    folders = {root, root / JOURNAL_DIR, root / JOURNAL_DIR / "runs"}
    folders |= {root / existing(step.file) for step in steps if not isinstance(step, InPlace)}
    for place in run:
        folders |= {place / name for name in ("", "staged", "preimages", "retired", "journal.ndjson")}
    if beside is not None:
        folders.add(beside)
    for path in sorted(folders):
        _check(root, path, written=True)
    for step in steps:
        _check(root, root / step.file, written=isinstance(step, InPlace))
    for path in sorted(kept):
        _check(root, path, written=False)


def _check(root: Path, path: Path, *, written: bool) -> None:
    inside = path.is_relative_to(root)
    name = N_("the store's root") if path == root else str(path.relative_to(root) if inside else path)
    for what, letter in _flags(path):
        raise Refusal(Phrase("{name} is {what} (chattr +{letter}), so it can be neither changed nor restored",
                             name=name, what=what, letter=letter),
                      Phrase("chattr -{letter} {path}, then run the command again (create a saved plan again)",
                             letter=letter, path=path), file=name)
    if written and os.path.lexists(path) and not os.access(path, os.W_OK, effective_ids=True):
        try:
            read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        except OSError:
            read_only = 0
        raise Refusal(Phrase("{name} cannot be written: {error}", name=name,
                             error=os.strerror(errno.EROFS if read_only else errno.EACCES)),
                      N_("mount the file system writable, or make a recovered copy with --output") if read_only
                      else permission_remedy(path.absolute()),
                      file=name)


def _flags(path: Path) -> Iterator[tuple[str, str]]:
    """The flags of a file or folder itself that prevent writing or renaming, with their letters."""
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


RESERVE = 64 << 10
"""Bytes reserved in a run and freed when the disk is full, so that reverting the steps can still be recorded."""
_SLACK = 1 << 20
_PER_STEP = 16 << 10
_RECORDS = 4 << 10
"""Bytes in the store for each step, if its undo data are elsewhere."""


class Room(Struct, frozen=True):
    """Bytes that a run `needed` on the file system of a `place`, those that are `free`, and those of its undo data:
    `undo` counts what it writes there or keeps from being deleted."""

    place: str
    needed: int
    free: int
    undo: int

    @property
    def is_enough(self) -> bool:
        return self.needed <= self.free


def room_for(root: Path, plan: Plan, journal: Path | None = None) -> list[Room]:
    """What a plan needs on each file system, that of the undo data first; `journal`: their folder, if not the
    store's."""
    home = root / JOURNAL_DIR if (root / JOURNAL_DIR).is_dir() else root
    data = journal or home
    store, aside = home.stat().st_dev, data.stat().st_dev
    places = {aside: data}
    places.setdefault(store, home)
    needed: dict[int, int] = defaultdict(int)
    needed[aside] += RESERVE + _SLACK + _PER_STEP * len(plan.steps)
    if store != aside:
        needed[store] += RESERVE + _RECORDS * len(plan.steps)
    undo = 0
    existing = existing_folders(root)
    folder_of = cache(lambda name: (root / name, os.stat(root / name).st_dev))
    for step in plan.steps:
        if isinstance(step, RetireFolder):
            continue
        path = root / step.file
        content = step.content.allocated if step.content is not None else 0
        is_there = path.exists()
        place, device = (path, path.stat().st_dev) if is_there else folder_of(existing(step.file))
        places.setdefault(device, place)
        needed[aside] += content
        in_place = isinstance(step, InPlace)
        old = _data_bytes(path, step.start, step.stop) if isinstance(step, InPlace) else \
            _data_bytes(path, 0, path.stat().st_size) if is_there else 0
        undo += old
        if in_place or device != aside:
            needed[device] += content
            needed[aside] += old
    return [Room(str(place), needed[device], _free(place), undo if device == aside else 0)
            for device, place in places.items()]


def _free(place: Path) -> int:
    status = os.statvfs(place)
    return (status.f_bfree if os.geteuid() == 0 else status.f_bavail) * status.f_frsize


def check_space(rooms: Iterable[Room]) -> None:
    """`Refusal` if a file system that a plan writes to has fewer free bytes than it may need."""
    for room in rooms:
        if not room.is_enough:
            raise Refusal(Phrase("{needed} bytes are needed on the file system of {place}, {free} are free",
                                 needed=f"{room.needed:,}", place=room.place, free=f"{room.free:,}"),
                          "make room, keep the undo data on another disk with --journal DIR, or write a recovered "
                          "copy elsewhere with --output", needed=room.needed, free=room.free)


def _data_bytes(path: Path, start: int, stop: int) -> int:
    with open_file(path) as reader:
        return sum(last - first for first, last in reader.data_ranges(start, min(stop, reader.length)))
