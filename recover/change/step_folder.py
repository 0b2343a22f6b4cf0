"""How the step that takes a folder away is prepared, done, checked and taken back.

The folder moves by one rename, so at any instant all of it is in the one place or in the other, and nothing in it is
read or written. On another file system only an empty folder can go; it is removed, and made again with what it had.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from recover.change import disk
from recover.change.journal import Run
from recover.change.model import RetireFolder, resolve
from recover.change.plan_file import observe_folder
from recover.findings.refusal import Refusal
from recover.store.reading import exists


def prepare(run: Run, number: int, step: RetireFolder, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
    """Note what an empty folder must get back; nothing is set aside before the step. The facts for the journal."""
    path = resolve(run.root, step.file)
    status = os.lstat(path)
    moves = status.st_dev == os.stat(run.retired(number).parent).st_dev
    facts = {
        "aside": "move" if moves else "remove", "mode": status.st_mode, "uid": status.st_uid, "gid": status.st_gid,
        "mtime_ns": status.st_mtime_ns,
    }
    return facts, []


def make_room(run: Run, number: int, step: RetireFolder) -> list[Path]:
    """Nothing: it goes where a run always has room."""
    return []


def perform(run: Run, number: int, step: RetireFolder) -> list[Path]:
    """Take the folder away; may be repeated. The paths to sync afterwards."""
    path, retired = resolve(run.root, step.file), run.retired(number)
    if run.begin_record(number)["aside"] == "remove":
        disk.rmdir(path)
    elif exists(path):
        disk.rename(path, retired)
    return [path.parent, retired.parent]


def settle(run: Run, number: int, step: RetireFolder) -> dict[str, Any]:
    """See that the name is free; size and mtime for the journal. `OSError` if it is not."""
    if not holds_new(run, number, step):
        raise OSError(errno.EEXIST, "the folder is there again", step.file)
    return {"size": 0, "mtime_ns": 0}


def holds_new(run: Run, number: int, step: RetireFolder) -> bool:
    """Whether the name is free."""
    return not exists(resolve(run.root, step.file))


def holds_old(run: Run, number: int, step: RetireFolder) -> bool:
    """Whether the folder is as it was before the step, with everything in it."""
    return observe_folder(run.root, step.file) == run.plan.preconditions[number]


def holds_either(run: Run, number: int, step: RetireFolder) -> bool:
    """Whether a kill half way through can have left this: all of the folder, or nothing."""
    if not holds_new(run, number, step):
        # made again, it gets its owner, mode and time last
        empty = run.begin_record(number)["aside"] == "remove" and not os.listdir(resolve(run.root, step.file))
        return empty or holds_old(run, number, step)
    return run.begin_record(number)["aside"] == "remove" or exists(run.retired(number))


def revert(run: Run, number: int, step: RetireFolder) -> list[Path]:
    """Put the folder back; may be repeated. The paths to sync afterwards."""
    path, retired, facts = resolve(run.root, step.file), run.retired(number), run.begin_record(number)
    if facts["aside"] == "remove":
        disk.mkdir(path)
        disk.set_metadata(path, facts["uid"], facts["gid"], facts["mode"] & 0o777, facts["mtime_ns"])
    elif exists(retired):
        disk.rename(retired, path)
    if os.lstat(path).st_mtime_ns != facts["mtime_ns"] and not path.is_symlink():
        disk.set_times(path, facts["mtime_ns"])
    return [path.parent, retired.parent]


def settle_reverted(run: Run, number: int, step: RetireFolder) -> dict[str, Any]:
    """Compare with what was there before the step; size and mtime for the journal."""
    if not holds_old(run, number, step):
        raise Refusal(f"{step.file} could not be put back as it was", file=step.file)
    return {"size": 0, "mtime_ns": 0}
