"""A disk whose power may fail: what reached it for certain, what may have, and trees as they can come back.

Operations are taken from the fault points of `recover.change.disk`. Per POSIX only `fsync` makes bytes, length and
times of a file last, and only the `fsync` of a directory the names in it; a rename is one change. What was not synced
may come back or not, in any combination, and a write also in part.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from recover.change import disk
from tests.support.plans import hooked

_SECTOR = 512
_PAGE = 4096


@dataclass
class Meta:
    """Mode, owner and mtime of a file or directory."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Meta:
        """Those of something on a real disk."""
        status = path.lstat()
        return cls(status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)


@dataclass
class Node:
    """A file: what is on the disk, and the changes of its content since, in order."""

    meta: Meta
    content: bytes = b""
    pending: list[Callable[[bytearray], None]] = field(default_factory=list)
    torn: list[Callable[[bytearray], None]] = field(default_factory=list)
    newest: Meta | None = None

    def sync(self) -> None:
        """All of it is on the disk now."""
        self.content = self.now()
        self.pending, self.torn = [], []
        self.meta, self.newest = self.newest or self.meta, None

    def now(self) -> bytes:
        """The content as the system shows it."""
        content = bytearray(self.content)
        for change in self.pending:
            change(content)
        return bytes(content)

    def after_loss(self, chance: random.Random, kept: float) -> bytes:
        """The content as it can come back."""
        content = bytearray(self.content)
        for change, part in zip(self.pending, self.torn, strict=True):
            if chance.random() < kept:
                (part if 0 < kept < 1 and chance.random() < 0.3 else change)(content)
        return bytes(content)


@dataclass
class Folder:
    """A directory: its names on the disk, those now, and the changes since, each as one that is kept or lost."""

    meta: Meta
    names: dict[str, Node | Folder] = field(default_factory=dict)
    now: dict[str, Node | Folder] = field(default_factory=dict)
    newest: Meta | None = None


@dataclass
class _Change:
    """Names that change together: folder, name, what it stands for then (None: nothing)."""

    parts: list[tuple[Folder, str, Node | Folder | None]]


@dataclass
class Noted:
    """An operation that happened, and what its paths looked like afterwards."""

    operation: disk.Operation
    metas: dict[str, Meta]


def recorded(work: Callable[[], object]) -> list[Noted]:
    """Do some work; the operations that it took, in order."""
    notes: list[Noted] = []

    def look() -> None:
        if notes:
            names = (notes[-1].operation.path, notes[-1].operation.target)
            notes[-1].metas = {name: Meta.of(Path(name)) for name in names if name and os.path.lexists(name)}

    def hook(operation: disk.Operation) -> None:
        look()
        notes.append(Noted(structs.replace(operation, data=bytes(operation.data)), {}))

    with hooked(hook):
        work()
    look()
    return notes


class Disk:
    """The disk below one root, as it is when this is made; `take` lets operations happen to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = _load(root)
        self.changes: list[_Change] = []
        self.unnamed = Node(Meta(0o100644, 0, 0, 0))

    def take(self, note: Noted) -> None:
        """One more operation has happened."""
        operation = note.operation
        getattr(self, "_" + operation.name.replace("-", "_"))(Path(operation.path), operation)
        for name, meta in note.metas.items():
            node = self._find(Path(name))
            if node is not None and operation.name in ("fsync", "fsync-dir"):
                node.meta, node.newest = meta, None
            elif node is not None:
                node.newest = meta

    # --- what operations do ---------------------------------------------------------------------

    def _write(self, path: Path, operation: disk.Operation) -> None:
        # A file without a name yet is written before it is linked.
        node = self._file(path) or self.unnamed
        data, offset = bytes(operation.data), operation.offset
        node.pending.append(lambda content: _put(content, offset, data))
        torn = data[: max(1, len(data) // 2 // _SECTOR * _SECTOR)]
        node.torn.append(lambda content: _put(content, offset, torn))

    def _append(self, path: Path, operation: disk.Operation) -> None:
        if self._file(path) is None:
            self._create(path, operation)
        node, data = self._file(path), bytes(operation.data)
        assert node is not None
        at = len(node.now())
        node.pending.append(lambda content: _put(content, at, data))
        node.torn.append(lambda content: _put(content, at, data[: len(data) // 2]))

    def _punch(self, path: Path, operation: disk.Operation) -> None:
        node, start, stop = self._file(path), operation.offset, operation.offset + operation.length
        assert node is not None

        def change(content: bytearray) -> None:
            end = min(stop, len(content))
            content[start:end] = bytes(max(0, end - start))

        node.pending.append(change)
        node.torn.append(change)

    def _truncate(self, path: Path, operation: disk.Operation) -> None:
        node, size = self._file(path), operation.length
        assert node is not None

        def change(content: bytearray) -> None:
            content[:] = content[:size].ljust(size, b"\0")

        node.pending.append(change)
        node.torn.append(change)

    def _create(self, path: Path, operation: disk.Operation) -> None:
        self._rename_names([(path, Node(Meta(0o100600, 0, 0, 0)))])

    def _mkdir(self, path: Path, operation: disk.Operation) -> None:
        if self._find(path) is None:
            self._rename_names([(path, Folder(Meta(0o040755, 0, 0, 0)))])

    def _rename(self, path: Path, operation: disk.Operation) -> None:
        self._rename_names([(path, None), (Path(operation.target), self._find(path))])

    def _link(self, path: Path, operation: disk.Operation) -> None:
        if operation.target:
            self._rename_names([(Path(operation.target), self._find(path))])
        else:
            self._rename_names([(path, self.unnamed)])
            self.unnamed = Node(Meta(0o100644, 0, 0, 0))

    def _unlink(self, path: Path, operation: disk.Operation) -> None:
        if self._find(path) is not None:
            self._rename_names([(path, None)])

    _rmdir = _unlink

    def _fsync(self, path: Path, operation: disk.Operation) -> None:
        node = self._find(path) or self.unnamed
        if isinstance(node, Node):
            node.sync()

    def _fsync_dir(self, path: Path, operation: disk.Operation) -> None:
        folder = self._find(path)
        assert isinstance(folder, Folder)
        for change in [each for each in self.changes if any(part[0] is folder for part in each.parts)]:
            self.changes.remove(change)
            _keep(change, lambda place: place.names)
        folder.meta, folder.newest = folder.newest or folder.meta, None

    def _set_times(self, path: Path, operation: disk.Operation) -> None:
        """Looked up from the real disk afterwards, as are owner, mode and attributes."""

    _set_owner = _set_mode = _set_xattr = _set_times

    # --- names ------------------------------------------------------------------------------------

    def _rename_names(self, parts: list[tuple[Path, Node | Folder | None]]) -> None:
        change = _Change([])
        for path, node in parts:
            folder = self._find(path.parent)
            assert isinstance(folder, Folder), path
            change.parts.append((folder, path.name, node))
        _keep(change, lambda place: place.now)
        self.changes.append(change)

    def _find(self, path: Path) -> Node | Folder | None:
        node: Node | Folder | None = self.top
        for name in path.relative_to(self.root).parts:
            node = node.now.get(name) if isinstance(node, Folder) else None
        return node

    def _file(self, path: Path) -> Node | None:
        node = self._find(path)
        return node if isinstance(node, Node) else None

    # --- the power fails ----------------------------------------------------------------------------

    def come_back(self, target: Path, chance: random.Random, kept: float) -> None:
        """Write the tree as it can come back; each change that was not synced is kept with this probability."""
        names: dict[int, dict[str, Node | Folder]] = {}

        def of(folder: Folder) -> dict[str, Node | Folder]:
            return names.setdefault(id(folder), dict(folder.names))

        for change in self.changes:
            if chance.random() < kept:
                _keep(change, of)
        written: dict[int, Path] = {}
        _restore(self.top, target, of, chance, kept, written)


def _keep(change: _Change, of: Callable[[Folder], dict[str, Node | Folder]]) -> None:
    for folder, name, node in change.parts:
        if node is None:
            of(folder).pop(name, None)
        else:
            of(folder)[name] = node


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


def _load(path: Path) -> Folder:
    folder = Folder(Meta.of(path))
    for entry in path.iterdir():
        child = _load(entry) if entry.is_dir() else Node(Meta.of(entry), entry.read_bytes())
        folder.names[entry.name] = folder.now[entry.name] = child
    return folder


def _restore(
    node: Node | Folder, path: Path, of: Callable[[Folder], dict[str, Node | Folder]], chance: random.Random,
    kept: float, written: dict[int, Path],
) -> None:
    meta = node.newest if node.newest is not None and chance.random() < kept else node.meta
    if isinstance(node, Node):
        if id(node) in written:
            os.link(written[id(node)], path)
            return
        written[id(node)] = path
        _fill(path, node.after_loss(chance, kept))
    else:
        path.mkdir()
        for name, child in of(node).items():
            _restore(child, path / name, of, chance, kept, written)
    os.chown(path, meta.uid, meta.gid)
    os.chmod(path, meta.mode & 0o7777)
    os.utime(path, ns=(meta.mtime_ns, meta.mtime_ns))


def _fill(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        for start in range(0, len(content), _PAGE):
            page = content[start : start + _PAGE]
            if any(page):
                file.seek(start)
                file.write(page)
        file.truncate(len(content))
