"""Files that somebody else may hold under another name: hard links and symbolic links.

Writing into such a file would change a backup made with hard links, or a file outside of the store. It is replaced by a
changed copy of its own instead; what the other name stands for stays as it is.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from formats.layout import Buffer
from recover.files.reading import READ, data_extents, open_file, read_chunks, zeros
from recover.plan.content import LazyContent
from recover.plan.model import FileState, InPlace, Install, Plan, Step, resolve


def detach(plan: Plan, root: Path) -> Plan:
    """The plan with the in-place steps of each shared file joined into one `Install` of its changed copy.

    Call with the lock held and the preconditions checked: the whole file is noted as it is now.
    """
    patches: dict[str, list[InPlace]] = defaultdict(list)
    for step in plan.steps:
        if isinstance(step, InPlace) and _shared(resolve(root, step.file)):
            patches[step.file].append(step)
    if not patches:
        return plan
    from recover.plan.preconditions import observe_step

    steps: list[Step] = []
    states: list[FileState] = []
    for step, sealed in zip(plan.steps, plan.preconditions, strict=True):
        if step.file not in patches:
            steps.append(step)
            states.append(sealed)
        elif patches[step.file]:
            install = Install(step.file, _patched(resolve(root, step.file), patches[step.file]))
            steps.append(install)
            states.append(structs.replace(observe_step(root, install), mtime_ns=sealed.mtime_ns))
            patches[step.file] = []
    return plan.with_steps(steps, states)


def _shared(path: Path) -> bool:
    return path.is_symlink() or os.stat(path).st_nlink > 1


class _Patched(Struct, frozen=True):
    path: Path
    size: int
    steps: tuple[InPlace, ...]

    def __call__(self) -> Iterator[Buffer]:
        position = 0
        for step in self.steps:
            yield from self._old(position, step.start)
            yield from zeros(step.stop - step.start) if step.content is None else step.content.chunks()
            position = step.stop
        yield from self._old(position, self.size)

    def _old(self, start: int, stop: int) -> Iterator[bytes]:
        size = max(0, min(stop, self.path.stat().st_size) - start)
        yield from read_chunks(self.path, start, start + size)
        yield from zeros(stop - start - size)


def _patched(path: Path, steps: list[InPlace]) -> LazyContent:
    size = max(path.stat().st_size, *(step.stop for step in steps))
    ordered = tuple(sorted(steps, key=lambda step: step.start))
    fd = open_file(path)
    try:
        data = sum(last - first for first, last in data_extents(fd, 0, size))
    finally:
        os.close(fd)
    written = sum(step.stop - step.start for step in ordered if step.content is not None)
    return LazyContent(size, _Patched(path, size, ordered), allocated=data + written + READ)
