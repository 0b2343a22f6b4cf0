"""Owners and modes of a store's files: which of them the broker's user may not open as a start does.

1. What most files have, of the store or else of their part, is what all should have. The owner of most files is taken
   for the user of the broker.
2. A finding for each part, of files that differ from that, and of folders in which that user cannot create files.
3. Of these the closed ones: which that user may not open, or list, as a start does. Some a start does without: it
   deletes all queues if it cannot list the log, runs no timer without the timerlog, and no query by key without index.

Not seen: access lists, capabilities of the process, and the user of a broker that owns none of the files.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from recover.check.timer import CHECK_FILE, TIMERLOG, TIMERWHEEL
from recover.findings.model import Finding, Phrase, few, finding
from recover.store.source import StorePath, files_below, names_in
from recover.store.store import CHECKPOINT, CONFIG, LOCK, Store

_BESIDE = (LOCK, CHECKPOINT, TIMERWHEEL)
_MODES = {stat.S_IFREG: 0o644, stat.S_IFDIR: 0o755}
"""Kind of file -> the mode that a broker gives it by default."""
_READ, _LIST, _WRITE, _ALL = 4, 5, 6, 7


class _Rights(NamedTuple):
    uid: int
    gid: int
    mode: int


class _User(NamedTuple):
    """The broker's user, if most files have one owner; what most files of a kind have; and the folders without which a
    start goes on: those that it needs not list, and of them the one that costs no message."""

    rights: _Rights | None
    usual: dict[int, _Rights | None]
    unlisted: frozenset[str]
    spared: str

    def closed(self, some: dict[str, _Rights]) -> list[str]:
        """The names that this user may not open, or list, as a start does."""
        return [name for name, rights in some.items() if _lacks(self.rights, rights, _wanted(name, rights))]

    def stopped_by(self, name: str, rights: _Rights) -> bool:
        """Whether 4.9.7 and 5.3.3 do not start where this user may not open that."""
        return _wanted(name, rights) != _READ and name not in self.unlisted


def check_owners(store: Store) -> Iterator[Finding]:
    """A finding for each part with files that differ in owner or mode from most files of the store, or of the part, or
    with folders in which the broker's user cannot create files; and for each mounted read-only, unlike the root.

    `closed`: how many of them this user, the owner of most files, may not open as a start does; `stops`: whether that
    keeps 4.9.7 and 5.3.3 from starting; `costs`: whether a start without them costs more than the index; `user`: its
    id.
    """
    parts = [*store.commitlog_dirs, store.consumequeue_dir, store.consumequeue_ext_dir, store.batchconsumequeue_dir,
             store.index_dir, store.root / TIMERLOG, store.config_dir]
    found = {store.relative(part): _rights(store, part, files_below(part, folders=True)) for part in parts}
    beside = ((name, store.path(name).lstat()) for name in _BESIDE if name in names_in(store.root))
    found["."] = _rights(store, store.root, beside)
    user = _user_of(store, found)
    for kind in _MODES:
        for part, names in found.items():
            some = {name: rights for name, rights in names.items() if stat.S_IFMT(rights.mode) == kind}
            yield from _of_part(part, kind, some, user)
    yield from _read_only(store, parts)


def _user_of(store: Store, found: dict[str, dict[str, _Rights]]) -> _User:
    every: dict[int, list[_Rights]] = {kind: [] for kind in _MODES}
    for rights in (rights for names in found.values() for rights in names.values()):
        every.get(stat.S_IFMT(rights.mode), []).append(rights)
    index = store.relative(store.index_dir)
    unlisted = {store.relative(part) for part in (*store.commitlog_dirs, store.root / TIMERLOG)} | {index}
    return _User(_usual([rights._replace(mode=0) for rights in every[stat.S_IFREG]]),
                 {kind: _usual(rights) for kind, rights in every.items()}, frozenset(unlisted), index)


def _of_part(part: str, kind: int, some: dict[str, _Rights], user: _User) -> Iterator[Finding]:
    """The finding about the files, or the folders, of one part."""
    closed = user.closed(some)
    usual = user.usual[kind] or _usual([*some.values()])
    if usual is None and user.rights is not None and closed:
        usual = user.rights._replace(mode=_MODES[kind])
    odd = [name for name, rights in some.items() if (
        rights != usual if kind == stat.S_IFREG else _lacks(user.rights, rights, _ALL))]
    if usual is None or not odd:
        return
    odd.sort(key=lambda name: name.split("/"))
    yield finding(
        "file-owner-or-mode", part, None, count=len(odd), first=odd[0],
        names=few(["the root folder" if name == "." else name for name in odd]), has=_text(some[odd[0]]),
        usual=_text(usual), owner=f"{usual.uid}:{usual.gid}", mode=f"{stat.S_IMODE(usual.mode):o}",
        closed=len(closed), stops=any(user.stopped_by(name, some[name]) for name in closed),
        costs=any(name != user.spared for name in closed), user=user.rights.uid if user.rights else None,
    )


def _read_only(store: Store, parts: list[Path]) -> Iterator[Finding]:
    # if the root is read-only, too, it is a copy that nobody may change
    if not (isinstance(store.root, StorePath) or _is_read_only(store.root)):
        for folder in filter(_is_read_only, parts):
            yield finding("part-mounted-read-only", store.relative(folder), closed=1, costs=True,
                          stops=folder != store.config_dir)


def _is_read_only(folder: Path) -> bool:
    """Whether the file system of a folder is mounted read-only."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _wanted(name: str, rights: _Rights) -> int:
    """The permissions that a start needs: config files are only read, except timercheck, all others written."""
    if stat.S_ISDIR(rights.mode):
        return _ALL if name == "." else _LIST
    return _READ if name.startswith(f"{CONFIG}/") and name != CHECK_FILE else _WRITE


def _lacks(user: _Rights | None, rights: _Rights, wanted: int) -> bool:
    """Whether the user lacks one of these permissions; root lacks none."""
    if user is None or user.uid == 0:
        return False
    shift = 6 if rights.uid == user.uid else 3 if rights.gid == user.gid else 0
    return rights.mode >> shift & wanted != wanted


def _rights(store: Store, top: Path, below: Iterable[tuple[str, os.stat_result]]) -> dict[str, _Rights]:
    """Rights by name of a folder and of the files and folders `below` it."""
    part = store.relative(top)
    try:
        listed = [(part, top.stat()), *((name if part == "." else f"{part}/{name}", status) for name, status in below)]
    except OSError:
        return {}
    return {name: _Rights(status.st_uid, status.st_gid, status.st_mode) for name, status in listed}


def _usual(rights: list[_Rights]) -> _Rights | None:
    """The rights of more than half of them, or None."""
    for most, count in Counter(rights).most_common(1):
        return most if 2 * count > len(rights) else None
    return None


def _text(rights: _Rights) -> str:
    return Phrase("owner {owner}, mode {mode}", owner=f"{rights.uid}:{rights.gid}",
                  mode=f"{stat.S_IMODE(rights.mode):o}")
