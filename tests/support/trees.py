"""Digests of whole trees: the proof that a reading command left no trace and that undo restores everything."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.sparse import data_chunks


class Node(NamedTuple):
    """What a comparison sees of one file, folder or link; `sha256` leaves zeros out, a link's is that of its target."""

    kind: str
    size: int
    sha256: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int


def tree_digest(root: Path, skip: Sequence[str] = (".mqtool",)) -> dict[str, Node]:
    """Relative path -> node for everything under `root`, which itself is `"."`.

    Names in `skip` directly below the root are left out. If one is there, so is the root's own mtime
    (given as 0): creating that name changed it.
    """
    nodes = {".": _node(str(root)), **dict(_below(str(root), "", skip))}
    if any((root / name).exists() for name in skip):
        nodes["."] = nodes["."]._replace(mtime_ns=0)
    return nodes


def contents(root: Path) -> dict[str, Node]:
    """`tree_digest` without times: for trees that went through different runs."""
    return {name: node._replace(mtime_ns=0) for name, node in tree_digest(root).items()}


@contextmanager
def assert_unchanged(root: Path, skip: Sequence[str] = ()) -> Iterator[None]:
    """Fail if anything under `root` (but `skip`) differs after the block: content, owner, mode, mtime, names."""
    before = tree_digest(root, skip)
    yield
    assert_same_tree(before, tree_digest(root, skip))


def assert_same_tree(before: dict[str, Node], after: dict[str, Node]) -> None:
    """Fail with the paths that differ, each with the fields that do."""
    if before["."].mtime_ns == 0 or after["."].mtime_ns == 0:
        before = {**before, ".": before["."]._replace(mtime_ns=0)}
        after = {**after, ".": after["."]._replace(mtime_ns=0)}
    differences = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            differences.append(f"{path}: {'appeared' if old is None else 'vanished'}")
        elif old != new:
            changed = [f"{name} {a!r} -> {b!r}" for name, a, b in zip(Node._fields, old, new, strict=True) if a != b]
            differences.append(f"{path}: {', '.join(changed)}")
    assert not differences, "the tree changed:\n  " + "\n  ".join(differences)


def _below(folder: str, name: str, skip: Sequence[str] = ()) -> Iterator[tuple[str, Node]]:
    """The nodes under a folder, whose relative path with its `/` is `name`."""
    for entry in os.scandir(folder):
        if entry.name not in skip:
            yield name + entry.name, _node(entry.path)
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path, f"{name}{entry.name}/")


def _content_digest(path: str) -> str:
    """Equal for equal content, whether zeros are stored or holes."""
    digest = hashlib.sha256()
    file = os.open(path, os.O_RDONLY)
    try:
        for offset, chunk in data_chunks(file):
            digest.update(b"%d:" % offset + chunk)
    finally:
        os.close(file)
    return digest.hexdigest()


def _node(path: str) -> Node:
    status = os.lstat(path)
    kind, size, digest = "other", 0, ""
    if stat.S_ISREG(status.st_mode):
        kind, size = "file", status.st_size
        digest = _content_digest(path)
    elif stat.S_ISDIR(status.st_mode):
        kind = "dir"
    elif stat.S_ISLNK(status.st_mode):
        kind, digest = "link", hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
    mode = stat.S_IMODE(status.st_mode)
    return Node(kind, size, digest, mode, status.st_uid, status.st_gid, status.st_mtime_ns)
