"""Takes runs back: begun steps in reverse, then the times of the directories. The journal stays.

Every part may be repeated, so an undo that is killed is undone by running it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from recover.change import disk
from recover.change.journal import Run, RunInfo, leftovers, runs
from recover.change.lock import StoreLock, is_own_lock_file, refuse_if_held
from recover.change.model import resolve
from recover.change.plan_file import Places
from recover.change.run import check_for_undo, family, record, record_all, tidy
from recover.change.staging import batches
from recover.findings.refusal import Interrupted, Refusal

Progress = Callable[[int, int, str], None]


class Undone(Struct, frozen=True):
    """A run that was taken back, and the files it had changed (as the plan names them)."""

    run: RunInfo
    restored: tuple[str, ...]


def undo(
    root: Path, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Undone:
    """Take back the unfinished run, or else the last applied one. `parts`: what may be written outside of the root.

    `Refusal` if there is none, if a broker runs, or if a file is no longer as the run left it.
    """
    root, parts = root.absolute(), tuple(parts)
    if last_run(root) is None and not leftovers(root) and not is_own_lock_file(root / "lock"):
        raise Refusal("nothing was applied to this store, or all of it was undone", "see `mqtool journal`")
    with StoreLock(root):
        try:
            tidy(root)
            run = last_run(root, parts)
            if run is None:
                raise Refusal("no run had changed this store; what a killed one left behind was removed")
            return undo_run(run, progress, interrupted)
        except OSError as error:
            raise Refusal(
                f"{error.strerror} ({error.filename or 'no file name'}); the undo is not complete",
                "check the disk and its free space, then run `mqtool undo` again", errno=error.errno,
            ) from error


def would_undo(root: Path, parts: Iterable[Path | str] = ()) -> Run:
    """The run that `undo` would take back; `Refusal` where it would refuse. Reads only."""
    root = root.absolute()
    run = last_run(root, parts)
    if run is None:
        raise Refusal("there is nothing to take back", "see `mqtool journal`")
    refuse_if_held(root)
    check_for_undo(run, run.plan)
    return run


def last_run(root: Path, parts: Iterable[Path | str] = ()) -> Run | None:
    """The run that undo would take back: the newest that is not undone."""
    return next((run for run in reversed(runs(root, parts)) if run.state != "undone"), None)


def undo_run(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Undone:
    """Take one run back, with the lock held."""
    check_for_undo(run, run.plan)
    if run.state != "undoing":
        record(run, "undo")
    return take_back(run, progress, interrupted)


def take_back(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Undone:
    """Walk the begun steps backwards, then put the directories' times back."""
    statuses = run.statuses
    _drop_unused(run)
    begun = [number for number, status in enumerate(statuses) if status != "untouched"]
    left = {number for number in begun if statuses[number] != "reverted"}
    for batch in reversed(list(batches(run.root, run.plan.steps))):
        batch = [number for number in reversed(batch) if number in left]
        if not batch:
            continue
        if interrupted():
            raise Interrupted("the undo was stopped between two steps", "run `mqtool undo` again", run=run.id)
        if progress is not None:
            done = sum(statuses[number] == "reverted" for number in begun)
            progress(done, len(begun), f"restore {run.plan.steps[batch[0]].file}")
        _revert(run, batch)
    for directory, mtime_ns in run.header["directories"].items():
        disk.set_times(resolve(run.root, directory), mtime_ns)
        disk.fsync_dir(resolve(run.root, directory))
    record(run, "undone")
    return Undone(run.info(), tuple(sorted({run.plan.steps[number].file for number in begun})))


def _revert(run: Run, batch: list[int]) -> None:
    steps = run.plan.steps
    Places(run.root, run.parts).check(steps[number] for number in batch)
    record_all(run, "revert", [{"step": number} for number in batch if run.statuses[number] != "reverting"])
    changed = [path for number in batch for path in family(steps[number]).revert(run, number, steps[number])]
    disk.sync_all(path for path in changed if path.exists())
    record_all(run, "reverted", [
        {"step": number, "after": family(steps[number]).settle_reverted(run, number, steps[number])}
        for number in batch
    ])


def _drop_unused(run: Run) -> None:
    """Second names of files whose step never began: the file would count as shared for ever."""
    for name in sorted((run.path / "retired").iterdir()):
        if run.statuses[int(name.name)] == "untouched":
            disk.unlink(name)
