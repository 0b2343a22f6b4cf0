"""Whether the disks have room for what a plan will write, asked before it writes anything."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from recover.apply.run import RESERVE
from recover.errors import Refusal
from recover.files.reading import data_extents, open_file
from recover.plan.content import allocated
from recover.plan.model import JOURNAL_DIR, InPlace, Plan, RetireFolder, existing_folders, resolve

_SLACK = 1 << 20
_PER_STEP = 16 << 10


def check_space(root: Path, plan: Plan) -> None:
    """`Refusal` if a file system that the plan writes to has fewer free bytes than it may need."""
    home = root / JOURNAL_DIR if (root / JOURNAL_DIR).is_dir() else root
    needed: dict[int, int] = defaultdict(int)
    journal = home.stat().st_dev
    places = {journal: home}
    needed[journal] += RESERVE + _SLACK + _PER_STEP * len(plan.steps)
    existing = existing_folders(root)
    for step in plan.steps:
        if isinstance(step, RetireFolder):
            continue
        path = resolve(root, step.file)
        content = allocated(step.content) if step.content is not None else 0
        place = path if path.exists() else resolve(root, existing(step.file))
        device = place.stat().st_dev
        places.setdefault(device, place)
        needed[journal] += content
        if isinstance(step, InPlace):
            needed[journal] += _data_bytes(path, step.start, step.stop)
            needed[device] += content
        elif device != journal:
            needed[device] += content
            needed[journal] += _data_bytes(path, 0, path.stat().st_size) if path.exists() else 0
    for device, place in places.items():
        free = _free(place)
        if free < needed[device]:
            raise Refusal(
                f"{needed[device]:,} bytes are needed on the file system of {place}, {free:,} are free",
                "make room, or write a recovered copy elsewhere with --output", needed=needed[device], free=free,
            )


def _data_bytes(path: Path, start: int, stop: int) -> int:
    fd = open_file(path)
    try:
        return sum(last - first for first, last in data_extents(fd, start, min(stop, os.fstat(fd).st_size)))
    finally:
        os.close(fd)


def _free(path: Path) -> int:
    status = os.statvfs(path)
    return (status.f_bfree if os.geteuid() == 0 else status.f_bavail) * status.f_frsize
