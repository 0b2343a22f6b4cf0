"""The store as a plan would leave it: its files with the steps laid over them, read like any other store.

Nothing is written but new files, into a scratch folder, when they are opened.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from recover.change.model import InPlace, Install, Overlaid, RetireFolder, Step
from recover.findings.code import Refusal
from recover.findings.model import Phrase
from recover.store.reader import FileReader, LocalFile
from recover.store.reading import forget_descriptors
from recover.store.source import Entry, LocalTree, StorePath, missing, status_of, unmount
from recover.store.store import JOURNAL_DIR, Store


class _Planned(LocalTree):
    """The files of this machine, or of another local tree, as steps would leave them; new files are written below
    `scratch` when they are opened."""

    def __init__(self, changed: Mapping[Path, list[Step]], scratch: Path, below: LocalTree) -> None:
        self._changed, self._below = changed, below
        self._scratch = scratch
        self._written: dict[Path, Path] = {}
        self._found: dict[str, tuple[Path, Install | None, list[InPlace]] | None] = {}
        self._inside: dict[Path, set[str]] = defaultdict(set)
        for path in changed:
            for inner, folder in zip((path, *path.parents), path.parents, strict=False):
                self._inside[folder].add(inner.name)
        self._retired = {path for path, steps in changed.items() if path not in self._inside
                         and any(isinstance(step, RetireFolder) for step in steps)}

    def _steps(self, name: str) -> tuple[Path, Install | None, list[InPlace]]:
        """Return the path, the file installed there, and its in-place changes. `OSError` if the steps remove it."""
        if name not in self._found:
            path = self.behind(name)
            steps = self._changed.get(path, [])
            within = [step for step in steps if isinstance(step, InPlace)]
            installed = next((step for step in steps if isinstance(step, Install)), None)
            goes = installed is None and len(within) < len(steps) and path not in self._inside
            left = not goes and self._retired.isdisjoint(path.parents)
            self._found[name] = (path, installed, within) if left else None
        found = self._found[name]
        if found is None:
            raise missing(self.behind(name))
        return found

    def status(self, name: str) -> os.stat_result:
        path, installed, within = self._steps(name)
        if installed is not None:
            return status_of(stat.S_IFREG | 0o644, installed.content.size, time.time_ns())
        if path in self._inside and not path.exists():
            return status_of(stat.S_IFDIR | 0o755, 0, 0)
        status = self._below.status(name)
        if not within:
            return status
        return status_of(status.st_mode, max(status.st_size, *(step.stop for step in within)), status.st_mtime_ns)

    def entries(self, name: str) -> list[Entry]:
        path, _, _ = self._steps(name)
        touched = self._inside.get(path, set())
        found = [entry for entry in (self._below.entries(name) if path.is_dir() or not touched else ())
                 if entry.name not in touched and entry.name != JOURNAL_DIR]
        for inner in touched:
            with suppress(FileNotFoundError):
                found.append(Entry(inner, self.status(f"{name}/{inner}")))
        return found

    def open(self, name: str) -> FileReader:
        """See `Tree`. `Refusal` (8) where the scratch folder has no room."""
        path, installed, within = self._steps(name)
        if installed is None:
            below = self._below.open(name)
            return Overlaid(below, within) if within else below
        if path not in self._written:
            target = self._scratch / str(len(self._written))
            try:
                with target.open("wb") as file:
                    for at, piece in installed.content.pieces():
                        if np.frombuffer(piece, dtype=np.uint8).any():
                            file.seek(at)
                            file.write(piece)
                    file.truncate(installed.content.size)
            except OSError as error:
                raise Refusal(Phrase("no space to check the store as the plan would leave it: {error}",
                                     error=error.strerror), "Set TMPDIR to a larger disk.") from error
            self._written[path] = target
        return LocalFile(self._written[path])


@contextmanager
def planned_store(
    store: Store, steps: Iterable[Step], *, with_index: bool = False
) -> Iterator[tuple[Store, Callable[[Path], Path]]]:
    """The store after these steps, and a function that maps a path of the store to its path there. Without
    `with_index` the index stays as it is: what brokers deliver does not depend on it."""
    changed: dict[Path, list[Step]] = defaultdict(list)
    seen = store.root.tree if isinstance(store.root, StorePath) else None
    below = seen if isinstance(seen, LocalTree) else LocalTree()
    for step in steps:
        path = store.path(step.file)
        if with_index or not path.is_relative_to(store.index_dir):
            changed[below.behind(path.within) if isinstance(path, StorePath) else path.absolute()].append(step)
    with tempfile.TemporaryDirectory(prefix="mqtool-planned-") as scratch:
        opened, path_in = store.with_tree(_Planned(changed, Path(scratch), below))
        try:
            yield opened, path_in
        finally:
            unmount(opened.root)
            forget_descriptors(Path(scratch))
