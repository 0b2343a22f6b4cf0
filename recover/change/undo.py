"""Takes runs back: the begun steps in reverse, each reverted, then the times of folders.

To undo is to take a run back, to revert is to do so with one step. `recover.change.carry_out` does both where a disk
fails half way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from recover.change import disk
from recover.change.journal import Run, RunInfo, leftovers, record, record_all, runs, tidy
from recover.change.lock import StoreLock, is_own_lock_file, refuse_if_held
from recover.change.model import InPlace, resolve
from recover.change.places import Places, check_alone, check_changeable
from recover.change.preconditions import check_same_store, compare
from recover.change.steps import batches, work_of
from recover.findings.refusal import Interrupted, Refusal

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what comes next)."""


class Undone(Struct, frozen=True):
    """A run that was undone, and the files it had changed (as the plan names them); `removed`: of these what it had
    made, so that they are gone again."""

    run: RunInfo
    restored: tuple[str, ...]
    removed: tuple[str, ...]


def never() -> bool:
    """Not interrupted."""
    return False


@contextmanager
def store_locked(root: Path, standing: str, again: str) -> Iterator[None]:
    """Holds the store's lock, what killed runs left behind removed; an `OSError` becomes a `Refusal`.

    `standing`: how the store then stands; `again`: what to run once the disk is well.
    """
    with StoreLock(root):
        try:
            tidy(root)
            yield
        except OSError as error:
            raise Refusal(
                f"{error.strerror} ({error.filename or 'no file name'}); {standing}",
                f"Check the disk and its free space, then run {again} again.", errno=error.errno,
            ) from error


def has_leftovers(root: Path) -> bool:
    """Whether a run that was killed before it began, or after it ended, left something behind."""
    return bool(leftovers(root)) or is_own_lock_file(root / "lock")


def undo(
    root: Path, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = never,
) -> Undone:
    """Undo the unfinished run, or else the last applied one. `parts`: what may be written outside of the root.

    `Refusal` if there is none, if a broker runs, or if a file is no longer as the run left it.
    """
    root, parts = root.absolute(), tuple(parts)
    if last_run(root) is None and not has_leftovers(root):
        raise Refusal("nothing was applied to this store, or all of it was undone",
                      "`mqtool journal {store}` shows what was done.")
    with store_locked(root, "the undo is not complete", "`mqtool undo {store}`"):
        run = last_run(root, parts)
        if run is None:
            raise Refusal("no run had changed this store; what a killed one left behind was removed")
        return undo_run(run, progress, interrupted)


def would_undo(root: Path, parts: Iterable[Path | str] = ()) -> Run:
    """The run that `undo` would take back; `Refusal` where it would refuse. Reads only."""
    root = root.absolute()
    run = last_run(root, parts)
    if run is None:
        raise Refusal("there is nothing to take back", "`mqtool journal {store}` shows what was done.")
    refuse_if_held(root)
    check_for_undo(run)
    return run


def last_run(root: Path, parts: Iterable[Path | str] = ()) -> Run | None:
    """The run that undo would take back: the newest that is not undone."""
    return next((run for run in reversed(runs(root, parts)) if run.state != "undone"), None)


def check_for_undo(run: Run) -> None:
    """`Refusal` naming the files that are not as the run left them."""
    if run.plan.parts:
        # A copied store may be undone where it is now, but not through paths that lead to the original.
        check_same_store(run.plan, run.root)
    touched = [number for number, status in enumerate(run.statuses) if status != "untouched"]
    check_as_left(run, touched)
    check_changeable(run.root, [run.plan.steps[number] for number in touched], run.path, run.kept())


def check_as_left(run: Run, numbers: Iterable[int]) -> None:
    """`Refusal` unless the files of these steps are as the journal says; what no step touched, as it was planned on."""
    steps = run.plan.steps
    last = _last_looks(run)
    changed: list[str] = []
    for number in numbers:
        step, status = steps[number], run.statuses[number]
        if isinstance(step, InPlace):
            check_alone(run.root, step.file)
        if status == "untouched" and step.file not in last:
            compare(run.root, run.plan.preconditions[number], whole_file=not isinstance(step, InPlace))
            continue
        try:
            if step.file not in changed and not work_of(run, number).is_as_left(status, last.get(step.file)):
                changed.append(step.file)
        except OSError as error:
            raise Refusal(f"{step.file} cannot be read: {error.strerror}", file=step.file) from error
    if changed:
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        is_one = len(changed) == 1
        raise Refusal(
            f"{names} {'is' if is_one else 'are'} not as the run {run.id} left {'it' if is_one else 'them'}",
            f"something else worked on this store since: compare by hand, the saved bytes are in {run.path}",
            files=changed, run=run.id,
        )


def _last_looks(run: Run) -> dict[str, dict[str, Any] | None]:
    """Size and mtime of each touched file after the last record about it; None while a step on it is half done."""
    steps = run.plan.steps
    looks = {steps[record["step"]].file: record.get("after") for record in run.records if "step" in record}
    half_done = [number for number, status in enumerate(run.statuses) if status in ("begun", "reverting")]
    return looks | dict.fromkeys(steps[number].file for number in half_done)


def undo_run(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Undone:
    """Undo one run, with the lock held."""
    check_for_undo(run)
    if run.state != "undoing":
        record(run, "undo")
    return revert_begun(run, progress, interrupted)


def revert_begun(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Undone:
    """Revert the begun steps, the last first, then put the directories' times back."""
    steps, statuses = run.plan.steps, run.statuses
    for name in sorted((run.path / "retired").iterdir()):
        # the second name of a file whose step never began: the file would count as shared for ever
        if statuses[int(name.name)] == "untouched":
            disk.unlink(name)
    begun = [number for number, status in enumerate(statuses) if status != "untouched"]
    for batch in reversed(list(batches(run.root, steps))):
        left = [number for number in reversed(batch) if statuses[number] not in ("untouched", "reverted")]
        if not left:
            continue
        if interrupted():
            raise Interrupted("the undo was stopped between two steps", "`mqtool undo {store}` goes on with it.",
                              run=run.id)
        if progress is not None:
            done = sum(statuses[number] == "reverted" for number in begun)
            progress(done, len(begun), f"restore {steps[left[0]].file}")
        _revert(run, left)
    for directory, mtime_ns in run.header["directories"].items():
        disk.set_times(resolve(run.root, directory), mtime_ns)
        disk.fsync_dir(resolve(run.root, directory))
    record(run, "undone")
    files = sorted({steps[number].file for number in begun})
    removed = [file for file in files if not os.path.lexists(resolve(run.root, file))]
    return Undone(run.info(), tuple(files), tuple(removed))


def _revert(run: Run, batch: list[int]) -> None:
    Places(run.root, run.parts).check(run.plan.steps[number] for number in batch)
    record_all(run, "revert", [{"step": number} for number in batch if run.statuses[number] != "reverting"])
    works = [(number, work_of(run, number)) for number in batch]
    disk.sync_all([path for _, work in works for path in work.revert()], missing_ok=True)
    record_all(run, "reverted", [{"step": number, "after": work.settle_reverted()} for number, work in works])
