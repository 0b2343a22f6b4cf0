"""Carries out plans, and completes runs that were killed: lock, compare, save, do, check, record.

If the disk fails half way, the begun steps are reverted at once and the refusal says so; only if that fails too does
the run stay unfinished. A signal stops between two steps and leaves the run for `resume` or `undo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from recover.change import disk
from recover.change.content import FileContent
from recover.change.journal import Run, RunInfo, open_runs, record, record_all, start, tidy
from recover.change.lock import refuse_if_held
from recover.change.model import InPlace, Plan
from recover.change.places import Places, check_changeable, check_space
from recover.change.preconditions import check, check_same_store, check_watched, detach
from recover.change.steps import batches, work_of
from recover.change.undo import (
    Progress,
    check_as_left,
    check_for_undo,
    has_leftovers,
    never,
    revert_begun,
    store_locked,
    undo_run,
)
from recover.findings.refusal import Interrupted, Refusal
from recover.store.reading import file_crc


class Applied(Struct, frozen=True):
    """What came of a plan. `run` is None if there was nothing to do; `journal` is its folder relative to the root."""

    changed: bool
    run: RunInfo | None

    @property
    def journal(self) -> str | None:
        """Folder of the run, relative to the store root."""
        return self.run.plan_path.removesuffix("/plan.json") if self.run else None


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
    with store_locked(root, "nothing was changed", "the command"):
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
        _check_for_resume(begun)
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
        (check_for_undo if run.state == "undoing" else _check_for_resume)(run)
        return run
    raise _nothing_to_resume()


def resume(
    root: Path, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = never,
) -> Applied:
    """Complete the run that was killed or interrupted: an apply is carried to its end, an undo too.

    `parts`: what may be written outside of the root. `Refusal` if there is no such run, or if something else worked on
    the store in between.
    """
    root, given = root.absolute(), tuple(map(str, parts))
    if not open_runs(root) and not has_leftovers(root):
        raise _nothing_to_resume()
    with store_locked(root, "the run is still unfinished", "the command"):
        for run in open_runs(root, given):
            if run.state != "undoing":
                return _go_on(run, progress, interrupted)
            undo_run(run, progress, interrupted)
            return Applied(True, run.info())
    raise _nothing_to_resume()


def _nothing_to_resume() -> Refusal:
    return Refusal("there is no unfinished run", "`mqtool journal {store}` shows what was done.")


def refuse_if_unfinished(root: Path, parts: Iterable[Path | str] = ()) -> None:
    """For commands that are about to plan a change: `Refusal` if an earlier run is not complete."""
    for run in open_runs(root.absolute(), parts):
        raise _unfinished(run)


def _unfinished(run: Run) -> Refusal:
    _ = run.plan  # nobody is sent to resume or undo what they would refuse
    return Refusal(
        f"the run {run.id} ({run.header['command']}) is {run.state}",
        "Complete it (`mqtool resume {store}`), or take it back (`mqtool undo {store}`).",
        run=run.id,
    )


def _check_for_resume(run: Run) -> None:
    """`Refusal` unless the store is just as the run left it, what it had not touched yet included."""
    steps = run.plan.steps
    check_same_store(run.plan, run.root)
    for number, step in enumerate(steps):
        # The content that is still to come was verified when it was staged; it may have lain there for long.
        staged, content = run.staged(number), step.content
        if content is None or (isinstance(step, InPlace) and not isinstance(content, FileContent)):
            continue
        is_there = staged.exists()
        if not is_there and run.statuses[number] != "untouched":
            continue
        if not is_there or file_crc(staged) != (content.size, content.crc32c):
            raise Refusal(
                f"the staged content for {step.file} is damaged", "`mqtool undo {store}` takes the run back.",
                file=step.file, run=run.id,
            )
    check_as_left(run, range(len(steps)))
    check_watched(run.plan, run.root)
    check_changeable(run.root, steps, run.path, run.kept())


def _go_on(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Applied:
    _check_for_resume(run)
    return _carry_out(run, progress, interrupted)


def _carry_out(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Applied:
    steps = run.plan.steps
    try:
        # the names that lead to the run: from here on a failure is one of the run and no longer of its making
        disk.fsync_dir(run.path.parent)
        disk.fsync_dir(run.root)
        for batch in list(batches(run.root, steps)):
            left = [number for number in batch if run.statuses[number] != "done"]
            if not left:
                continue
            if interrupted():
                raise Interrupted(
                    f"stopped after {batch[0]} of {len(steps)} steps",
                    "`mqtool resume {store}` completes the run, `mqtool undo {store}` takes it back.",
                    run=run.id,
                )
            if progress is not None:
                progress(batch[0], len(steps), f"{steps[batch[0]].kind} {steps[batch[0]].file}")
            _one_batch(run, left)
        disk.unlink(run.path / "reserve")
        record(run, "finish")
    except Interrupted:
        raise
    except (OSError, Refusal) as error:
        raise _reverted(run, error) from error
    if progress is not None:
        progress(len(steps), len(steps), "done")
    return Applied(True, run.info())


def _one_batch(run: Run, batch: list[int]) -> None:
    """Save, sync, record; do, sync, read back, record."""
    Places(run.root, run.parts).check(run.plan.steps[number] for number in batch)
    works = [(number, work_of(run, number)) for number in batch]
    promised = set(run.promised)
    prepared = [(number, *work.prepare(promised)) for number, work in works if run.statuses[number] == "untouched"]
    disk.sync_all(path for _, _, paths in prepared for path in paths)
    record_all(run, "begin", [{"step": number, **facts} for number, facts, _ in prepared])
    disk.sync_all([path for _, work in works for path in work.make_room()])
    disk.sync_all([path for _, work in works for path in work.perform()])
    record_all(run, "done", [{"step": number, "after": work.settle()} for number, work in works])


def _reverted(run: Run, error: OSError | Refusal) -> Refusal:
    """Revert the begun steps after a failure; the refusal to raise."""
    reason = error.message if isinstance(error, Refusal) else f"{error.strerror} ({error.filename or run.path.name})"
    try:
        disk.unlink(run.path / "reserve")
        record(run, "undo", reason=reason)
        revert_begun(run, None, never)
    except (OSError, Refusal) as second:
        return Refusal(
            f"{reason}; taking the begun steps back failed too: {second}",
            "Check the disk, then run `mqtool undo {store}`: the saved bytes are in the journal.", run=run.id,
        )
    return Refusal(f"{reason}; the begun steps were taken back, the store is as it was", "check the disk", run=run.id)
