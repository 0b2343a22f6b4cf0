"""How steps that replace a whole file, or take it away, are prepared, done, checked and taken back.

The old file keeps its inode: a second name in `retired` where the file system allows it, so that at any instant the
store has either the old file or the whole new one; a rename where it does not; a copy from another file system.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from recover import disk
from recover.errors import Refusal
from recover.journal import Run
from recover.plan import Replace, resolve
from recover.preconditions import observe
from recover.reading import exists, file_crc


def prepare(run: Run, number: int, step: Replace) -> dict[str, Any]:
    """Set the old file aside and note which directories are missing; the facts for the journal."""
    path, retired = resolve(run.root, step.file), run.retired(number)
    disk.unlink(retired)
    missing = []
    directory = Path(step.file).parent
    while step.content is not None and not resolve(run.root, str(directory)).is_dir():
        missing.append(str(directory))
        directory = directory.parent
    how = _set_aside(path, retired) if exists(path) else None
    disk.fsync_dir(retired.parent)
    return {"aside": how, "mkdirs": missing[::-1]}


def _set_aside(path: Path, retired: Path) -> str:
    try:
        disk.link(path, retired)
        return "link"
    except OSError as error:
        if error.errno == errno.EXDEV:
            disk.copy_file(path, retired)
            return "copy"
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            return "move"
        raise


def perform(run: Run, number: int, step: Replace) -> None:
    """Give the name its new file, or none; may be repeated."""
    path, retired, facts = resolve(run.root, step.file), run.retired(number), run.begin_record(number)
    for name in facts["mkdirs"]:
        directory = resolve(run.root, name)
        disk.mkdir(directory, os.stat(directory.parent))
        disk.fsync_dir(directory.parent)
    if facts["aside"] == "move" and not exists(retired):
        disk.rename(path, retired)
        disk.fsync_dir(retired.parent)
    staged = run.staged(number)
    if step.content is None:
        disk.unlink(path)
    elif staged.exists():
        try:
            disk.rename(staged, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            disk.copy_into_place(staged, path)
        disk.fsync_dir(staged.parent)
    disk.fsync_dir(path.parent)


def settle(run: Run, number: int, step: Replace) -> dict[str, Any]:
    """What the name stands for now, for the journal. The bytes were read back when they were staged."""
    state = observe(run.root, step.file)
    expected = 0 if step.content is None else step.content.size
    if state.exists != (step.content is not None) or state.size != expected:
        raise OSError(errno.EIO, "the file is not there as it was written", step.file)
    return {"size": state.size, "mtime_ns": state.mtime_ns}


def holds_new(run: Run, number: int, step: Replace) -> bool:
    """Whether the name is as the step left it."""
    path = resolve(run.root, step.file)
    if step.content is None:
        return not exists(path)
    return exists(path) and file_crc(path) == (step.content.size, step.content.crc32c)


def holds_old(run: Run, number: int, step: Replace) -> bool:
    """Whether the name is as it was before the step."""
    sealed, state = run.plan.preconditions[number], observe(run.root, step.file)
    if not state.exists:
        return not sealed.exists
    return (state.size, state.mtime_ns) == (sealed.size, sealed.mtime_ns) and (
        file_crc(resolve(run.root, step.file))[1] == sealed.crc32c
    )


def holds_either(run: Run, number: int, step: Replace) -> bool:
    """Whether a kill half way through can have left this: the old file, the new one, or neither."""
    path = resolve(run.root, step.file)
    if not exists(path):
        return not run.plan.preconditions[number].exists or exists(run.retired(number)) or step.content is None
    return holds_old(run, number, step) or holds_new(run, number, step)


def revert(run: Run, number: int, step: Replace) -> dict[str, Any]:
    """Put the old file back, or remove the new one and the directories made for it; may be repeated."""
    path, retired, facts = resolve(run.root, step.file), run.retired(number), run.begin_record(number)
    if facts["aside"] is not None:
        if exists(retired):
            _put_back(path, retired, copy=facts["aside"] == "copy")
        disk.fsync_dir(path.parent)
    elif path.parent.is_dir():
        disk.unlink(path)
        disk.fsync_dir(path.parent)
    _remove_directories(run, facts["mkdirs"])
    if not holds_old(run, number, step):
        raise Refusal(f"{step.file} could not be put back as it was", file=step.file)
    state = observe(run.root, step.file)
    return {"size": state.size, "mtime_ns": state.mtime_ns}


def _put_back(path: Path, retired: Path, *, copy: bool) -> None:
    if copy:
        disk.copy_into_place(retired, path)
    elif exists(path) and os.path.samestat(os.lstat(path), os.lstat(retired)):
        # The step never got to the replacing. (A rename between two names of one file would leave both.)
        disk.unlink(retired)
    else:
        disk.rename(retired, path)
        disk.fsync_dir(retired.parent)


def _remove_directories(run: Run, names: list[str]) -> None:
    for name in reversed(names):
        directory = resolve(run.root, name)
        if not directory.is_dir():
            continue
        try:
            disk.rmdir(directory)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            raise Refusal(
                f"{name} holds files that the run did not make", "move them away, then run undo again", file=name
            ) from error
        disk.fsync_dir(directory.parent)
