"""Which steps go together: their records and syncs are shared, so that ten thousand queue files do not take all night.

Between two batches everything is on the disk. So the order that counts is the order of batches: files directly in the
store root (checkpoint, then abort, last of all) are never in one batch with anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from recover.plan.model import InPlace, Step, resolve

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
