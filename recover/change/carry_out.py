"""Carries out plans, completes killed runs, and undoes runs: lock, compare, save, write, check, record.

Undo applies to a run, revert to one of its steps, the last one first. If the disk fails half way, the begun steps are
reverted at once and the refusal says so; only if that fails too does the run stay unfinished. A signal stops between
two steps and leaves the run for `resume` or `undo`. The folder of `--journal`, as the command line or the run names it,
is reached like the store: from its descriptor, as the owner of the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct

from recover.change import disk
from recover.change.content import FileContent
from recover.change.journal import (
    Run,
    RunInfo,
    kept_bytes,
    leftovers,
    open_runs,
    prune as remove_undo_data,
    record,
    record_all,
    runs,
    start,
    tidy,
)
from recover.change.lock import UNKNOWN_HOLDER, is_own_lock_file, probe, refuse_if_held, store_lock
from recover.change.model import InPlace, Plan
from recover.change.owner import acting, acting_owner, permission_remedy, refuse_unreadable
from recover.change.places import Places, check_alone, check_changeable, check_space, room_for
from recover.change.preconditions import StaleRefusal, check, check_same_store, check_watched, compare, detach
from recover.change.steps import batches, work_of
from recover.findings.code import N_, Interrupted, Refusal
from recover.findings.model import Phrase, few
from recover.store.reading import file_crc, kept_open

Progress = Callable[[int, int, str], None]
"""Called with (steps done, total steps, description of the next one)."""


def never() -> bool:
    """The default `interrupted`: never."""
    return False


@contextmanager
def store_locked(
    root: Path, parts: Iterable[Path | str], standing: str, again: str, *, as_root: bool = False,
    beside: Iterable[Path] = (),
) -> Iterator[None]:
    """Hold the store's lock as the owner of the store (see `acting`), after leftovers of killed runs are removed. An
    `OSError` becomes a `Refusal` that describes the state of the store (`standing`) and what to run `again`. `beside`:
    the folders of undo data elsewhere."""
    beside = tuple(beside)
    with acting(root, parts, as_root=as_root, beside=beside):
        try:
            with disk.within(root, *parts, *beside), store_lock(root):
                tidy(root)
                yield
        except OSError as error:
            remedy: str = Phrase("Check the disk and its free space, then run {again} again.", again=again)
            if isinstance(error, PermissionError) and acting_owner() is not None:
                remedy = permission_remedy(error.filename or root)
            raise Refusal(Phrase("{error} ({file}); {standing}", error=error.strerror,
                                 file=error.filename or N_("no file name"), standing=standing), remedy,
                          errno=error.errno) from error


def has_leftovers(root: Path) -> bool:
    """Whether a run that was killed before it began, or after it ended, left something behind."""
    return bool(leftovers(root)) or is_own_lock_file(root / "lock")


def apply_plan(
    root: Path, plan: Plan, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = never, as_root: bool = False, journal: Path | None = None,
) -> RunInfo | None:
    """Carry out a sealed plan, or continue it if it was begun. `parts`: folders outside of the root that may be
    written; `as_root`: see `recover.change.owner`; `journal`: the folder that takes the undo data, if not the store.

    Raises `Refusal` with nothing changed (a broker runs, the store is not as planned, no room, or the disk failed and
    the steps were reverted), or `Interrupted` with a run that can be resumed or undone. Returns None, touching nothing,
    for a plan without steps.
    """
    root, given = root.absolute(), tuple(map(str, parts))
    if not plan.steps:
        return None
    Places(root, given).check_plan(plan)
    journal = None if journal is None else journal.absolute()
    beside = {*_undo_data(open_runs(root, given)), *([journal] if journal else [])}
    with store_locked(root, given, N_("nothing was changed"), N_("the command"), as_root=as_root, beside=beside):
        run = _begun(root, plan, given)
        if run is None:
            with kept_open():
                whole = _checked(root, plan, given, journal)
            try:
                run = start(root, whole, interrupted, given, journal)
            except BaseException:
                tidy(root)
                raise
        return _carry_out(run, progress, interrupted)


def _undo_data(found: Iterable[Run | None]) -> list[Path]:
    """Where the undo data of these runs are, as far as that is not in the store."""
    return [run.elsewhere for run in found if run is not None and run.elsewhere is not None]


def check_for_apply(
    root: Path, plan: Plan, parts: Iterable[Path | str] = (), *, as_root: bool = False, journal: Path | None = None
) -> Run | None:
    """`Refusal` where `apply_plan` would refuse before its first step. Read-only. The run that it would continue, if
    the plan was begun."""
    root, given = root.absolute(), tuple(map(str, parts))
    if not plan.steps:
        return None
    journal = None if journal is None else journal.absolute()
    with acting(root, given, as_root=as_root, beside=[journal] if journal else []):
        refuse_if_held(root)
        run = _begun(root, plan, given)
        if run is None:
            _checked(root, plan, given, journal)
        return run


def _begun(root: Path, plan: Plan, parts: tuple[str, ...]) -> Run | None:
    """Return the unfinished run of this plan, if any; `Refusal` if it cannot be resumed, or for any other run that is
    not complete."""
    for run in open_runs(root, parts):
        if run.header["plan"] != plan.id or run.state != "unfinished":
            raise _unfinished(run)
        _check_for_resume(run)
        return run
    return None


def _checked(root: Path, plan: Plan, parts: tuple[str, ...], journal: Path | None) -> Plan:
    """Return the plan in the form in which its run executes it, after all checks that precede the first step."""
    check(plan, root)
    Places(root, parts).check_plan(plan)
    refuse_unreadable(root, (state.file for state in (*plan.preconditions, *plan.watched)))
    whole = detach(plan, root)
    check_changeable(root, whole.steps, beside=journal)
    check_space(room_for(root, whole, journal))
    return whole


def would_resume(root: Path, parts: Iterable[Path | str] = (), *, as_root: bool = False) -> Run:
    """Return the run that `resume` would complete; `Refusal` where it would refuse. Read-only."""
    root, parts = root.absolute(), tuple(parts)
    found = open_runs(root)
    with acting(root, parts, as_root=as_root, beside=_undo_data(found)):
        if found:
            refuse_if_held(root)
        return _resumable(root, parts)


def _resumable(root: Path, parts: Iterable[Path | str]) -> Run:
    for run in open_runs(root, parts):
        (check_for_undo if run.state == "undoing" else _check_for_resume)(run)
        return run
    raise _nothing_to_resume()


def _nothing_to_resume() -> Refusal:
    return Refusal(N_("there is no unfinished run"), N_("`mqtool journal {store}` shows what was done."))


def resume(
    root: Path, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = never, as_root: bool = False,
) -> RunInfo:
    """Complete the run that was killed or interrupted, an undo included. `Refusal` if there is none, or if something
    else changed the store in between."""
    root, parts = root.absolute(), tuple(parts)
    found = open_runs(root)
    if not found and not has_leftovers(root):
        raise _nothing_to_resume()
    with store_locked(root, parts, N_("the run is still unfinished"), N_("the command"), as_root=as_root,
                      beside=_undo_data(found)):
        run = _resumable(root, parts)
        if run.state == "undoing":
            return revert_begun(run, progress, interrupted).run
        return _carry_out(run, progress, interrupted)


def refuse_if_unfinished(root: Path, parts: Iterable[Path | str] = ()) -> None:
    """For commands that are about to plan a change: `Refusal` if an earlier run is not complete."""
    for run in open_runs(root.absolute(), parts):
        raise _unfinished(run)


def _unfinished(run: Run) -> Refusal:
    _ = run.plan  # do not recommend resume or undo where they would refuse
    return Refusal(
        Phrase("the run {run} ({command}) is {state}", run=run.id, command=run.header["command"], state=run.state),
        N_("Complete it (`mqtool resume {store}`), or undo it (`mqtool undo {store}`)."),
        run=run.id,
    )


def _check_for_resume(run: Run) -> None:
    """`Refusal` unless the store is exactly as the run left it, including what it had not touched yet."""
    steps = run.plan.steps
    check_same_store(run.plan, run.root)
    for number, step in enumerate(steps):
        # content still to be installed was verified when it was staged, possibly long ago
        staged, content = run.staged(number), step.content
        if content is None or (isinstance(step, InPlace) and not isinstance(content, FileContent)):
            continue
        is_there = staged.exists()
        if not is_there and run.statuses[number] != "untouched":
            continue
        if not is_there or file_crc(staged) != (content.size, content.crc32c):
            raise Refusal(Phrase("the staged content for {file} is damaged", file=step.file),
                          "`mqtool undo {store}` undoes the run.", file=step.file, run=run.id)
    try:
        check_unchanged(run, range(len(steps)))
        check_watched(run.plan, run.root)
    except StaleRefusal as refusal:
        refusal.remedy = N_("the store was changed since the run began; `mqtool undo {store}` undoes the run")
        raise
    check_changeable(run.root, steps, run.places, run.kept())


def _carry_out(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> RunInfo:
    steps = run.plan.steps
    try:
        # sync the names that lead to the run: from here on a failure is reverted as one of the run
        disk.fsync_dir(run.path.parent)
        disk.fsync_dir(run.root)
        for batch in list(batches(run.root, steps)):
            left = [number for number in batch if run.statuses[number] != "done"]
            if not left:
                continue
            if interrupted():
                raise Interrupted(Phrase("stopped after {done} of {n} steps", done=batch[0], n=len(steps)),
                                  "`mqtool resume {store}` completes the run, `mqtool undo {store}` undoes it.",
                                  run=run.id)
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
    return run.info()


def _one_batch(run: Run, batch: list[int]) -> None:
    """Save, sync, record; write, sync, read back, record."""
    Places(run.root, run.parts).check(run.plan.steps[number] for number in batch)
    works = [(number, work_of(run, number)) for number in batch]
    promised = set(run.promised)
    with kept_open():  # many steps change one file
        prepared = [(number, *work.prepare(promised)) for number, work in works if run.statuses[number] == "untouched"]
    disk.sync_all(path for _, _, paths in prepared for path in paths)
    record_all(run, "begin", [{"step": number, **facts} for number, facts, _ in prepared])
    disk.sync_all([path for _, work in works for path in work.make_room()])
    disk.sync_all([path for _, work in works for path in work.perform()])
    with kept_open():
        settled = [{"step": number, "after": work.settle()} for number, work in works]
    record_all(run, "done", settled)


def _reverted(run: Run, error: OSError | Refusal) -> Refusal:
    """Revert the begun steps after a failure; return the refusal to raise."""
    reason = error.message if isinstance(error, Refusal) else Phrase(
        "{error} ({file})", error=error.strerror, file=error.filename or run.path.name)
    try:
        disk.unlink(run.path / "reserve")
        record(run, "undo", reason=reason)
        revert_begun(run, None, never)
    except (OSError, Refusal) as second:
        return Refusal(
            Phrase("{reason}; reverting the begun steps failed too: {second}", reason=reason, second=str(second)),
            "Check the disk, then run `mqtool undo {store}`: the saved bytes are in the journal.", run=run.id,
        )
    return Refusal(Phrase("{reason}; the begun steps were reverted, the store is as before", reason=reason),
                   "check the disk", run=run.id)


# --- Undo.


class Undone(Struct, frozen=True):
    """A run that was undone, and the files it had changed (as the plan names them); `removed`: those of them that the
    run had created, and that are gone again."""

    run: RunInfo
    restored: tuple[str, ...]
    removed: tuple[str, ...]


def undo(
    root: Path, *, parts: Iterable[Path | str] = (), progress: Progress | None = None,
    interrupted: Callable[[], bool] = never, as_root: bool = False,
) -> Undone:
    """Undo the unfinished run, or else the last applied one. `Refusal` if there is none, if a broker runs, or if a file
    is no longer as the run left it."""
    root, parts = root.absolute(), tuple(parts)
    last = last_run(root)
    if last is None and not has_leftovers(root):
        raise Refusal(N_("no run was applied to this store, or all were undone"),
                      N_("`mqtool journal {store}` shows what was done."))
    _refuse_pruned(last)
    with store_locked(root, parts, N_("the undo is not complete"), "`mqtool undo {store}`", as_root=as_root,
                      beside=_undo_data([last])):
        run = last_run(root, parts)
        if run is None:
            raise Refusal("no run had changed this store; leftovers of a killed run were removed")
        check_for_undo(run)
        if run.state != "undoing":
            record(run, "undo")
        return revert_begun(run, progress, interrupted)


def would_undo(root: Path, parts: Iterable[Path | str] = (), *, as_root: bool = False) -> Run:
    """Return the run that `undo` would undo; `Refusal` where it would refuse. Read-only."""
    root, parts = root.absolute(), tuple(parts)
    last = last_run(root)
    _refuse_pruned(last)
    with acting(root, parts, as_root=as_root, beside=_undo_data([last])):
        run = last_run(root, parts)
        if run is None:
            raise Refusal(N_("there is no run to undo"), N_("`mqtool journal {store}` shows what was done."))
        refuse_if_held(root)
        check_for_undo(run)
        return run


def last_run(root: Path, parts: Iterable[Path | str] = ()) -> Run | None:
    """The run that undo applies to: the newest that is not undone."""
    return next((run for run in reversed(runs(root, parts)) if run.state != "undone"), None)


def _refuse_pruned(run: Run | None) -> None:
    if run is not None and run.pruned_ms is not None:
        raise Refusal(Phrase("run {run} cannot be undone: its undo data were removed by `mqtool journal --prune`",
                             run=run.id), N_("`mqtool journal {store}` shows what was done."), run=run.id)


def check_for_undo(run: Run) -> None:
    """`Refusal` naming the files that are not as the run left them."""
    if run.plan.parts:
        # a copied store may be undone in its new place, but not through paths that lead to the original
        check_same_store(run.plan, run.root)
    touched = [number for number, status in enumerate(run.statuses) if status != "untouched"]
    check_unchanged(run, touched)
    check_changeable(run.root, [run.plan.steps[number] for number in touched], run.places, run.kept())


def check_unchanged(run: Run, numbers: Iterable[int]) -> None:
    """`Refusal` unless the files of these steps are as the journal says; untouched ones must be as planned."""
    steps = run.plan.steps
    last = _last_states(run)
    changed: list[str] = []
    for number in numbers:
        step, status = steps[number], run.statuses[number]
        if isinstance(step, InPlace):
            check_alone(run.root, step.file)
        if status == "untouched" and step.file not in last:
            compare(run.root, run.plan.preconditions[number], whole_file=not isinstance(step, InPlace))
            continue
        try:
            if step.file not in changed and not work_of(run, number).is_unchanged(status, last.get(step.file)):
                changed.append(step.file)
        except OSError as error:
            raise Refusal(Phrase("{file} cannot be read: {error}", file=step.file, error=error.strerror),
                          file=step.file) from error
    if changed:
        raise Refusal(
            Phrase("{files} is not as the run {run} left it" if len(changed) == 1 else
                   "{files} are not as the run {run} left them", files=few(changed), run=run.id),
            Phrase("something else has changed this store: compare by hand, the saved bytes are in {data}; "
            "move that folder out of the store to continue with the store as it is", data=run.data),
            files=changed, run=run.id,
        )


def _last_states(run: Run) -> dict[str, dict[str, Any] | None]:
    """Size and mtime of each touched file after its last record; None while a step on it is half done."""
    steps = run.plan.steps
    states = {steps[record["step"]].file: record.get("after") for record in run.records if "step" in record}
    half_done = [number for number, status in enumerate(run.statuses) if status in ("begun", "reverting")]
    return states | dict.fromkeys(steps[number].file for number in half_done)


def revert_begun(run: Run, progress: Progress | None, interrupted: Callable[[], bool]) -> Undone:
    """Revert the begun steps, the last first, then restore the directories' times."""
    steps, statuses = run.plan.steps, run.statuses
    _drop_second_names(run)
    begun = [number for number, status in enumerate(statuses) if status != "untouched"]
    for batch in reversed(list(batches(run.root, steps))):
        left = [number for number in reversed(batch) if statuses[number] not in ("untouched", "reverted")]
        if not left:
            continue
        if interrupted():
            raise Interrupted("the undo was stopped between two steps", "`mqtool undo {store}` continues it.",
                              run=run.id)
        if progress is not None:
            done = sum(statuses[number] == "reverted" for number in begun)
            progress(done, len(begun), f"restore {steps[left[0]].file}")
        _revert(run, left)
    for directory, mtime_ns in run.header["directories"].items():
        disk.set_times(run.root / directory, mtime_ns)
        disk.fsync_dir(run.root / directory)
    record(run, "undone")
    files = sorted({steps[number].file for number in begun})
    removed = [file for file in files if not os.path.lexists(run.root / file)]
    return Undone(run.info(), tuple(files), tuple(removed))


def _drop_second_names(run: Run) -> None:
    """Remove the second names of files whose step never began: with them, these would count as shared for ever."""
    for name in sorted(name for place in run.places for name in (place / "retired").iterdir()):
        if run.statuses[int(name.name)] == "untouched":
            (disk.rmdir if name.is_dir() and not name.is_symlink() else disk.unlink)(name)


def _revert(run: Run, batch: list[int]) -> None:
    Places(run.root, run.parts).check(run.plan.steps[number] for number in batch)
    record_all(run, "revert", [{"step": number} for number in batch if run.statuses[number] != "reverting"])
    works = [(number, work_of(run, number)) for number in batch]
    disk.sync_all([path for _, work in works for path in work.revert()], missing_ok=True)
    record_all(run, "reverted", [{"step": number, "after": work.settle_reverted()} for number, work in works])


# --- Pruning: what makes undo possible is removed, so that its room is free again.


class Prunable(Struct, frozen=True):
    """A run that has ended, and how many `bytes` of the disk its undo data hold."""

    run: RunInfo
    bytes: int


def prunable(root: Path) -> list[Prunable]:
    """The runs that have ended and whose undo data are still there, oldest first. Read-only."""
    return [Prunable(run.info(), kept_bytes(run)) for run in _prunable(root.absolute())]


def _prunable(root: Path) -> list[Run]:
    return [run for run in runs(root) if run.state in ("applied", "undone") and (
        run.pruned_ms is None or any(path for folder in run.path.iterdir() if folder.is_dir()
                                     for path in folder.iterdir())
        or (run.elsewhere is not None and run.elsewhere.is_dir()))]


def prune(root: Path, *, as_root: bool = False) -> list[RunInfo]:
    """Remove the undo data of all runs that have ended: none of them can be undone any more. The journal stays.

    Nothing of the store itself is touched, so a broker may run. `Refusal` (8) if another mqtool works on the store.
    """
    root = root.absolute()
    found = _prunable(root)
    with acting(root, as_root=as_root, beside=_undo_data(found)):
        holder = probe(root)
        if holder == UNKNOWN_HOLDER:
            refuse_if_held(root)
        try:
            with disk.within(root), nullcontext() if holder else store_lock(root):
                found = _prunable(root)
                check_changeable(root, (), [place for run in found for place in run.places])
                for run in found:
                    remove_undo_data(run)
        except OSError as error:
            raise Refusal(Phrase("{error} ({file}); {standing}", error=error.strerror,
                                 file=error.filename or N_("no file name"), standing=N_("undo data are left")),
                          "Check the disk, then run the command again.", errno=error.errno) from error
    return [run.info() for run in found]
