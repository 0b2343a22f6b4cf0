"""Carries out plans: lock, compare, save, do, check, record; and completes runs that were killed.

If the disk fails half way, the begun steps are taken back at once and the refusal says so; only if that fails too does
the run stay unfinished. A signal stops between two steps and leaves the run for `resume` or `undo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from recover.change import disk
from recover.change.journal import Run, RunInfo, leftovers, open_runs, runs
from recover.change.lock import StoreLock, is_own_lock_file, refuse_if_held
from recover.change.model import Plan
from recover.change.plan_file import Places
from recover.change.preconditions import check, detach
from recover.change.run import (
    check_changeable,
    check_for_resume,
    check_for_undo,
    check_space,
    family,
    make_last,
    record,
    record_all,
    start,
    tidy,
)
from recover.change.staging import batches
from recover.change.undo import take_back, undo_run
from recover.findings.refusal import Interrupted, Refusal

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what comes next)."""


class Applied(Struct, frozen=True):
    """What came of a plan. `run` is None if there was nothing to do; `journal` is its folder relative to the root."""

    changed: bool
    run: RunInfo | None

    @property
    def journal(self) -> str | None:
        """Folder of the run, relative to the store root."""
        return self.run.plan_path.removesuffix("/plan.json") if self.run else None


def never() -> bool:
    """Not interrupted."""
    return False


def apply_plan(
    root: Path, plan: Plan, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = never,
) -> Applied:
    """Carry out a sealed plan, or go on with it if it was begun. `parts`: what may be written outside of the root.

    Raises `Refusal` with nothing changed (a broker runs, the store is not as planned, no room, the disk failed and the
    steps were taken back), or `Interrupted` with a run that can be resumed or undone. Without steps nothing is touched.
    """
    root, given = root.absolute(), tuple(map(str, parts))
    if not plan.steps:
        return Applied(False, None)
    Places(root, given).check_plan(plan)
    with StoreLock(root), _disk_trouble("nothing was changed"):
        tidy(root)
        begun = _begun(root, plan, given)
        if begun is not None:
            return _go_on(begun, progress, interrupted)
        whole = _checked(root, plan, given)
        try:
            run = start(root, whole, interrupted, given)
        except BaseException:
            tidy(root)
            raise
        return _carry_out(run, progress, interrupted)


def check_for_apply(root: Path, plan: Plan, parts: Iterable[Path | str] = ()) -> None:
    """`Refusal` where `apply_plan` would refuse before its first step; reads only."""
    root, given = root.absolute(), tuple(map(str, parts))
    if not plan.steps:
        return
    refuse_if_held(root)
    begun = _begun(root, plan, given)
    if begun is not None:
        check_for_resume(begun, begun.plan)
    else:
        _checked(root, plan, given)


def _begun(root: Path, plan: Plan, parts: tuple[str, ...]) -> Run | None:
    """The run of this very plan that was begun; `Refusal` for any other that is not complete."""
    for run in open_runs(root, parts):
        if run.header["plan"] == plan.id and run.state == "unfinished":
            return run
        raise _unfinished(run)
    return None


def _checked(root: Path, plan: Plan, parts: tuple[str, ...]) -> Plan:
    """The plan as its run will do it, once everything is as it has to be before the first step."""
    check(plan, root)
    Places(root, parts).check_plan(plan)
    whole = detach(plan, root)
    check_changeable(root, whole.steps)
    check_space(root, whole)
    return whole


def would_resume(root: Path, parts: Iterable[Path | str] = ()) -> Run:
    """The run that `resume` would complete; `Refusal` where it would refuse. Reads only."""
    root = root.absolute()
    for run in open_runs(root, parts):
        refuse_if_held(root)
        (check_for_undo if run.state == "undoing" else check_for_resume)(run, run.plan)
        return run
    raise Refusal("there is no unfinished run", "see what was done with `mqtool journal`")


def resume(
    root: Path, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = never,
) -> Applied:
    """Complete the run that was killed or interrupted: an apply is carried to its end, an undo too.

    `parts`: what may be written outside of the root.

    `Refusal` if there is none, or if something else worked on the store in between.
    """
    root, given = root.absolute(), tuple(map(str, parts))
    nothing = Refusal("there is no unfinished run", "see what was done with `mqtool journal`")
    if not open_runs(root) and not _has_leftovers(root):
        raise nothing
    with StoreLock(root), _disk_trouble("the run is still unfinished"):
        tidy(root)
        for run in open_runs(root, given):
            if run.state == "undoing":
                undo_run(run, progress, interrupted)
                return Applied(True, run.info())
            return _go_on(run, progress, interrupted)
    raise nothing


def _has_leftovers(root: Path) -> bool:
    return bool(leftovers(root)) or is_own_lock_file(root / "lock")


def refuse_if_unfinished(root: Path, parts: Iterable[Path | str] = ()) -> None:
    """For commands that are about to plan a change: `Refusal` if an earlier run is not complete."""
    for run in open_runs(root.absolute(), parts):
        raise _unfinished(run)


def _unfinished(run: Run) -> Refusal:
    _ = run.plan  # nobody is sent to resume or undo what they would refuse
    return Refusal(
        f"the run {run.id} ({run.header['command']}) is {run.state}", "run `mqtool resume` or `mqtool undo` first",
        run=run.id,
    )


def _go_on(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Applied:
    check_for_resume(run, run.plan)
    return _carry_out(run, progress, interrupted)


def _carry_out(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Applied:
    plan = run.plan
    try:
        make_last(run)
        for batch in list(batches(run.root, plan.steps)):
            if all(run.statuses[number] == "done" for number in batch):
                continue
            if interrupted():
                raise Interrupted(
                    f"stopped after {batch[0]} of {len(plan.steps)} steps", "run `mqtool resume` or `mqtool undo`",
                    run=run.id,
                )
            if progress is not None:
                step = plan.steps[batch[0]]
                progress(batch[0], len(plan.steps), f"{step.kind} {step.file}")
            _one_batch(run, [number for number in batch if run.statuses[number] != "done"])
        disk.unlink(run.path / "reserve")
        record(run, "finish")
    except OSError as error:
        raise _taken_back(run, error) from error
    except Refusal as refusal:
        if not isinstance(refusal, Interrupted):
            raise _taken_back(run, refusal) from refusal
        raise
    if progress is not None:
        progress(len(plan.steps), len(plan.steps), "done")
    return Applied(True, run.info())


def _one_batch(run: Run, batch: list[int]) -> None:
    """Save, sync, record; do, sync, read back, record."""
    steps = run.plan.steps
    Places(run.root, run.parts).check(steps[number] for number in batch)
    promised = set(run.promised)
    prepared = [
        (number, *family(steps[number]).prepare(run, number, steps[number], promised))
        for number in batch if run.statuses[number] == "untouched"
    ]
    disk.sync_all(path for _, _, paths in prepared for path in paths)
    record_all(run, "begin", [{"step": number, **facts} for number, facts, _ in prepared])
    disk.sync_all([path for number in batch for path in family(steps[number]).make_room(run, number, steps[number])])
    disk.sync_all([path for number in batch for path in family(steps[number]).perform(run, number, steps[number])])
    record_all(run, "done", [
        {"step": number, "after": family(steps[number]).settle(run, number, steps[number])} for number in batch
    ])


def _taken_back(run: Run, error: OSError | Refusal) -> Refusal:
    """Take the begun steps back after a failure; the refusal to raise."""
    reason = error.message if isinstance(error, Refusal) else f"{error.strerror} ({error.filename or run.path.name})"
    try:
        disk.unlink(run.path / "reserve")
        record(run, "undo", reason=reason)
        take_back(run, None, never)
    except (OSError, Refusal) as second:
        return Refusal(
            f"{reason}; taking the begun steps back failed too: {second}",
            "check the disk, then run `mqtool undo`: the saved bytes are in the journal", run=run.id,
        )
    return Refusal(f"{reason}; the begun steps were taken back, the store is as it was", "check the disk", run=run.id)


class _disk_trouble:  # noqa: N801 - used like a function
    """Turns an `OSError` of the body into a `Refusal` that says how the store stands."""

    def __init__(self, standing: str) -> None:
        self.standing = standing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise Refusal(
                f"{error.strerror} ({error.filename or 'no file name'}); {self.standing}",
                "check the disk and its free space, then run the command again", errno=error.errno,
            ) from error


__all__ = ["Applied", "Progress", "apply_plan", "refuse_if_unfinished", "resume", "runs"]
