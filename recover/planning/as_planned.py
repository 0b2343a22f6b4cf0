"""A store as a plan would leave it, to be read only: links to what stays, stand-ins in a scratch folder for the rest.

A file changed in place has a stand-in of its length without a byte; whoever reads it with a `FileReader` reads the
store's own file with the changes laid over it. New files are written into the scratch folder, without their zeros.
Index files are left as they are: they decide nothing about what a broker delivers.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import structs

from recover.errors import Refusal
from recover.files.reader import Elsewhere, FileReader, read_elsewhere, read_here
from recover.files.store import JOURNAL, Store
from recover.plan.content import pieces_of
from recover.plan.model import InPlace, Install, Step, WriteRange

Names = dict[Path, list[Step]]


class Overlaid(Elsewhere):
    """A file with changes laid over it; those that do not bear on what is read are not looked at."""

    def __init__(self, path: Path, changes: Iterable[InPlace]) -> None:
        self.changes = sorted(changes, key=lambda change: change.start)
        self._reader = FileReader(path)
        self.length = max([self._reader.length, *(change.stop for change in self.changes)])

    def read_at(self, length: int, offset: int) -> bytes:
        """See `Elsewhere`."""
        stop = min(offset + length, self.length)
        found = bytearray(self._reader.read(offset, max(0, stop - offset)).ljust(max(0, stop - offset), b"\0"))
        for change in self.changes:
            first, last = max(offset, change.start), min(stop, change.stop)
            if first < last:
                content = _bytes(change, first, last)
                found[first - offset : last - offset] = content
        return bytes(found)

    def close(self) -> None:
        """See `Elsewhere`."""
        self._reader.__exit__(None, None, None)


def _bytes(change: InPlace, first: int, last: int) -> bytes:
    if not isinstance(change, WriteRange):
        return bytes(last - first)
    return b"".join(change.content.chunks())[first - change.start : last - change.start]


@contextmanager
def as_planned(store: Store, steps: Iterable[Step]) -> Iterator[tuple[Store, dict[Path, Path]]]:
    """The store after these steps, and for each log file of the store that is only changed in place its stand-in."""
    changed: Names = defaultdict(list)
    for step in steps:
        path = store.path(step.file)
        if not path.is_relative_to(store.index_dir):
            changed[path].append(step)
    with tempfile.TemporaryDirectory(prefix="mqtool-planned-") as place, ExitStack() as stack:
        scratch = _Scratch(Path(place), changed, stack)
        root = Path(place, "store")
        scratch.folder(store.root, root)
        parts = {path: root / f".part-{number}" for number, path in enumerate(
            (*store.options.commitlog, *filter(None, (store.options.consumequeue, store.options.index)))
        )}
        try:
            for source, target in parts.items():
                scratch.folder(source, target)
        except OSError as error:
            raise Refusal(f"no room to look at the store as the plan would leave it: {error.strerror}",
                          "Set TMPDIR to a larger disk.") from error
        given = store.options
        options = structs.replace(
            given, commitlog=tuple(parts[path] for path in given.commitlog),
            consumequeue=given.consumequeue and parts[given.consumequeue], index=given.index and parts[given.index],
        )
        planned = Store.open(root, options)
        planned.commitlog.file_size = store.mapped_file_size
        yield planned, scratch.stand_ins


class _Scratch:
    def __init__(self, place: Path, changed: Names, stack: ExitStack) -> None:
        self.changed = changed
        self.stack = stack
        self.stand_ins: dict[Path, Path] = {}
        self._above = {parent for path in changed for parent in path.parents}

    def folder(self, source: Path, target: Path) -> None:
        """The folder `source` as it would be."""
        target.mkdir(parents=True)
        names = set(os.listdir(source)) if source.is_dir() else set()
        names |= {path.relative_to(source).parts[0] for path in self.changed if path.is_relative_to(source)}
        for name in sorted(names - {JOURNAL}):
            path = source / name
            if path in self._above:
                self.folder(path, target / name)
            elif path in self.changed:
                self._file(path, target / name, self.changed[path])
            else:
                (target / name).symlink_to(path.absolute())

    def _file(self, source: Path, target: Path, steps: list[Step]) -> None:
        installs = [step for step in steps if isinstance(step, Install)]
        if installs:
            with target.open("wb") as file:
                for at, piece in pieces_of(installs[0].content):
                    if bytes(piece).strip(b"\0"):
                        file.seek(at)
                        file.write(piece)
                file.truncate(installs[0].content.size)
            return
        within = [step for step in steps if isinstance(step, InPlace)]
        if len(within) < len(steps):
            return  # it goes
        with target.open("wb") as file:
            file.truncate(max([source.stat().st_size, *(step.stop for step in within)]))
        shutil.copystat(source, target)
        read_elsewhere(target, lambda: Overlaid(source, within))
        self.stack.callback(read_here, target)
        self.stand_ins[source] = target
