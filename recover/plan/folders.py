"""Folders where only data files belong: how they look, and whether one can be put aside whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from recover.crc import crc32c
from recover.errors import Refusal
from recover.files.store import Store
from recover.findings import Finding
from recover.plan.model import JOURNAL_DIR, FileState, resolve

ODD_NAMES = frozenset({"commitlog-odd-name", "consumequeue-odd-name", "index-odd-name"})


def observe_folder(root: Path, file: str) -> FileState:
    """A folder (or a symbolic link to one) and what is in it, by names, sizes and times; no file is opened.

    `Refusal` if it is something else, or cannot be listed.
    """
    path = resolve(root, file)
    try:
        status = os.lstat(path)
        if not path.is_dir():
            raise Refusal(f"{file} is not a folder", file=file)
        size, digest = 0, crc32c(os.fsencode(os.readlink(path)) if stat.S_ISLNK(status.st_mode) else b"")
        for entry in _below(path) if stat.S_ISDIR(status.st_mode) else ():
            inside = entry.stat(follow_symlinks=False)
            length = inside.st_size if stat.S_ISREG(inside.st_mode) else 0
            name = os.fsencode(os.path.relpath(entry.path, path))
            digest = crc32c(b"%s\0%o %d %d\0" % (name, inside.st_mode, length, inside.st_mtime_ns), digest)
            size += length
    except (FileNotFoundError, NotADirectoryError):
        return FileState(file, False, folder=True)
    except OSError as error:
        raise Refusal(f"{file} cannot be looked at: {error.strerror}", file=file) from error
    return FileState(file, True, size, status.st_mtime_ns, crc32c=digest, folder=True)


def _below(path: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder, at any depth, in an order that does not depend on the file system."""
    waiting = [str(path)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        yield from found
        waiting += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]


def stray_folders(findings: Iterable[Finding], store: Store) -> list[str]:
    """The folders that findings warn of because only data files belong where they are, as plans name them."""
    return [
        item.file for item in findings
        if item.code in ODD_NAMES and item.severity != "info" and item.file is not None
        and resolve(store.root, item.file).is_dir()
    ]


def can_be_retired(root: Path, file: str) -> bool:
    """Whether a folder can leave the store in one move: on the journal's file system, or if nothing is in it."""
    path = resolve(root, file)
    home = root / JOURNAL_DIR if (root / JOURNAL_DIR).is_dir() else root
    try:
        if path.is_symlink() or not os.path.ismount(path):
            return os.lstat(path).st_dev == home.stat().st_dev or (not path.is_symlink() and not os.listdir(path))
    except OSError:
        pass
    return False
