"""The content of a plan's steps written into the folder of its run, read back, and dressed for the place it is for."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

from formats.layout import Buffer
from recover.change import disk
from recover.change.content import Content, LazyContent, allocated, inline_json, pieces_of
from recover.change.journal import Run
from recover.change.model import InPlace, Step, existing_folders, resolve
from recover.change.plan_file import stands_inline
from recover.change.step_in_place import new_bytes
from recover.findings.refusal import Interrupted, Refusal
from recover.store.reader import FileReader
from recover.store.reading import Piece, file_crc, identity

LARGEST = 512
_BYTES = 64 << 20


def batches(root: Path, steps: Sequence[Step]) -> Iterator[list[int]]:
    """The numbers of the steps, in order, in runs of steps of one family in one part of the store.

    A step that lengthens its file is alone: what a later step on that file finds depends on it.
    """
    batch: list[int] = []
    size = 0
    for number, step in enumerate(steps):
        length = step.stop - step.start if isinstance(step, InPlace) else 0
        apart = batch and (
            len(batch) >= LARGEST or size + length > _BYTES or _part(steps[batch[-1]]) != _part(step)
            or _part(step)[1] == "" or _lengthens(root, step) or _lengthens(root, steps[batch[-1]])
        )
        if apart:
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += length
    if batch:
        yield batch


def _part(step: Step) -> tuple[bool, str]:
    folder, slash, _ = step.file.rpartition("/")
    if step.file.startswith("/"):
        return isinstance(step, InPlace), folder
    return isinstance(step, InPlace), folder.split("/")[0] if slash else ""


def _lengthens(root: Path, step: Step) -> bool:
    path = resolve(root, step.file)
    return isinstance(step, InPlace) and path.exists() and step.stop > path.stat().st_size


_CHUNK = 1 << 20


def changed_file(path: Path, size: int, changes: Sequence[InPlace]) -> LazyContent:
    """The first `size` bytes of the file at `path` with these changes; zeros where neither has any.

    What changes say of bytes from `size` on is left out. `ValueError` if two of them concern the same bytes.
    """
    ordered = sorted(changes, key=lambda change: change.start)
    if any(one.stop > other.start for one, other in pairwise(ordered)):
        raise ValueError("changes overlap")
    return LazyContent(size, lambda: _limited(_pieces(path, size, ordered), size))


def _pieces(path: Path, size: int, changes: Sequence[InPlace]) -> Iterator[Buffer]:
    position = 0
    with FileReader(path) as reader:
        for change in changes:
            yield from _as_it_is(reader, position, min(change.start, size))
            yield from new_bytes(change)
            position = change.stop
        yield from _as_it_is(reader, position, size)


def _as_it_is(reader: FileReader, start: int, stop: int) -> Iterator[bytes]:
    for at in range(start, stop, _CHUNK):
        length = min(_CHUNK, stop - at)
        yield reader.read(at, length).ljust(length, b"\0")


def _limited(pieces: Iterator[Buffer], size: int) -> Iterator[Buffer]:
    for piece in pieces:
        if size <= 0:
            return
        yield piece[:size]
        size -= len(piece)


LARGE = 16 << 20
"""From so many bytes on content is written on a thread of its own: compiled code makes and checks it."""

Made = Mapping[Path, tuple[int, int]]


def stage(
    run: Run, steps: Sequence[Step], interrupted: Callable[[], bool], made: Made
) -> list[dict[str, Any] | None]:
    """Where the content of each step is kept, None for a step without; all of it is synced. What is in `made` is there.

    `OSError`; `Refusal` for what reads back differently; `Interrupted`. Then nothing more is being written.
    """
    failed = Event()
    neighbour, existing = cache(_neighbour), existing_folders(run.root)

    def like(file: str) -> os.stat_result:
        return neighbour(resolve(run.root, existing(file)))

    def one(number: int) -> dict[str, Any] | None:
        return _stage(run, number, steps[number], lambda: failed.is_set() or interrupted(), made, like)

    def one_beside(number: int) -> dict[str, Any] | None:
        kept = one(number)
        disk.sync_all([run.staged(number)])
        return kept

    with ThreadPoolExecutor(1) as pool:
        beside = {
            number: pool.submit(one_beside, number) for number, step in enumerate(steps)
            if step.content is not None and allocated(step.content) >= LARGE and run.staged(number) not in made
        }
        try:
            rest = {number: one(number) for number in range(len(steps)) if number not in beside}
            disk.sync_all(path for path in map(run.staged, rest) if path.exists())
            return [beside[n].result() if n in beside else rest[n] for n in range(len(steps))]
        except BaseException:
            failed.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _stage(
    run: Run, number: int, step: Step, interrupted: Callable[[], bool], made: Made,
    like: Callable[[str], os.stat_result],
) -> dict[str, Any] | None:
    content = step.content
    if content is None:
        return None
    path = run.staged(number)
    if stands_inline(step, content) and path not in made:
        return inline_json(content)
    size, crc = made.get(path) or disk.create_from_pieces(path, _watched(content, interrupted), sync=False)
    if not isinstance(step, InPlace):
        _dress(run.root, step, path, like)
    # before it is read: what is written to it from here on shows
    run.compared[number] = identity(path)
    if file_crc(path) != (size, crc) or size != content.size:
        raise Refusal(f"what was written for {step.file} reads back differently", "check the disk", file=step.file)
    return {"size": size, "crc32c": crc, "file": path.name}


def _watched(content: Content, interrupted: Callable[[], bool]) -> Iterable[Piece]:
    for piece in pieces_of(content):
        if interrupted():
            raise Interrupted("stopped before anything was changed", "run the command again")
        yield piece


def _dress(root: Path, step: Step, staged: Path, like: Callable[[str], os.stat_result]) -> None:
    """Owner and mode as the broker left them on the old file or on its neighbours, and the old file's xattrs."""
    target = resolve(root, step.file)
    if target.exists():
        disk.set_owner(staged, os.stat(target))
        disk.copy_xattrs(target, staged)
        return
    disk.set_owner(staged, like(step.file))


def _neighbour(directory: Path) -> os.stat_result:
    """Stat whose owner and mode a new file in a directory takes."""
    parent = os.stat(directory)
    for name in sorted(os.listdir(directory)):
        status = os.lstat(directory / name)
        if stat.S_ISREG(status.st_mode) and status.st_uid == parent.st_uid:
            return status
    fields = list(parent)
    fields[stat.ST_MODE] = stat.S_IFREG | 0o644
    return os.stat_result(fields)
