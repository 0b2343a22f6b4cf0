"""How steps that replace a whole file, or take it away, are prepared, done, checked and taken back.

The old file keeps its inode: a second name in `retired` where the file system allows it, so that at any instant the
store has either the old file or the whole new one; a rename where it does not; a copy from another file system.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from recover.change import disk
from recover.change.journal import Run
from recover.change.model import Replace, resolve
from recover.change.preconditions import observe
from recover.findings.refusal import Refusal
from recover.store.reading import exists, file_crc, identity


def prepare(run: Run, number: int, step: Replace, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
    """Set the old file aside, note which directories to make: the facts for the journal, the paths to sync before it.

    `promised`: directories that steps before this one make; those of this step are added.
    """
    path, retired = resolve(run.root, step.file), run.retired(number)
    disk.unlink(retired)
    missing: list[str] = []
    directory = Path(step.file).parent
    while step.content is not None and not resolve(run.root, str(directory)).is_dir():
        if str(directory) in promised:
            break  # what it stands in is there, or promised with it
        missing.append(str(directory))
        directory = directory.parent
    promised.update(missing)
    how = _set_aside(path, retired) if exists(path) else None
    return {"aside": how, "mkdirs": missing[::-1]}, [retired.parent]


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


def make_room(run: Run, number: int, step: Replace) -> list[Path]:
    """Make the directories that the new file needs; may be repeated. The paths to sync before anything moves there.

    If the power fails, a file must not be on its way into a directory that never was.
    """
    changed = []
    for name in run.begin_record(number)["mkdirs"]:
        directory = resolve(run.root, name)
        disk.mkdir(directory, os.stat(directory.parent))
        changed.append(directory.parent)
    return changed


def perform(run: Run, number: int, step: Replace) -> list[Path]:
    """Give the name its new file, or none; may be repeated. The paths to sync afterwards."""
    path, retired, facts = resolve(run.root, step.file), run.retired(number), run.begin_record(number)
    changed = [path.parent]
    if facts["aside"] == "move" and not exists(retired):
        disk.rename(path, retired)
        changed.append(retired.parent)
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
        changed.append(staged.parent)
    return changed


def settle(run: Run, number: int, step: Replace) -> dict[str, Any]:
    """Compare what has the name now; size and mtime for the journal. `OSError` if it holds other bytes.

    The very file that was read back before it got this name is not read again: it would come from the same memory.
    """
    if not _is_staged(run, number, step) and not holds_new(run, number, step):
        raise OSError(errno.EIO, "the file does not read back as it was written", step.file)
    return look(run, step)


def _is_staged(run: Run, number: int, step: Replace) -> bool:
    compared = run.compared.get(number)
    return compared is not None and identity(resolve(run.root, step.file)) == compared


def look(run: Run, step: Replace) -> dict[str, Any]:
    """Size and mtime for the journal, zeros for a name that stands for nothing."""
    state = observe(run.root, step.file)
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


def revert(run: Run, number: int, step: Replace) -> list[Path]:
    """Put the old file back, or remove the new one and the directories made for it; may be repeated. What to sync."""
    path, retired, facts = resolve(run.root, step.file), run.retired(number), run.begin_record(number)
    changed = [path.parent, retired.parent]
    if facts["aside"] is None:
        if path.parent.is_dir():
            disk.unlink(path)
    elif exists(retired):
        _put_back(path, retired, copy=facts["aside"] == "copy")
    for name in reversed(facts["mkdirs"]):
        directory = resolve(run.root, name)
        if directory.is_dir():
            _remove_directory(directory, name)
        changed.append(directory.parent)
    return changed


def settle_reverted(run: Run, number: int, step: Replace) -> dict[str, Any]:
    """Compare with what was there before the step; size and mtime for the journal."""
    if not holds_old(run, number, step):
        raise Refusal(f"{step.file} could not be put back as it was", file=step.file)
    return look(run, step)


def _put_back(path: Path, retired: Path, *, copy: bool) -> None:
    if copy:
        disk.copy_into_place(retired, path)
    elif exists(path) and os.path.samestat(os.lstat(path), os.lstat(retired)):
        # The step never got to the replacing. (A rename between two names of one file would leave both.)
        disk.unlink(retired)
    else:
        disk.rename(retired, path)


def _remove_directory(directory: Path, name: str) -> None:
    try:
        disk.rmdir(directory)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise Refusal(
            f"{name} holds files that the run did not make", "move them away, then run undo again", file=name
        ) from error
