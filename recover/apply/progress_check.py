"""Compares a store with what a run's journal says of it, before the run is continued or taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from recover.apply import step_folder, step_in_place, step_replace
from recover.apply.run import check_changeable
from recover.errors import Refusal
from recover.files.reading import file_crc
from recover.plan.content import FileContent
from recover.plan.journal import Run
from recover.plan.model import InPlace, Plan, Replace, RetireFolder, Step
from recover.plan.places import check_alone
from recover.plan.preconditions import check_same_store, check_watched, compare, observe

CHANGED = "something else worked on this store since: compare by hand, the saved bytes are in the journal's folder"


class Family(Protocol):
    """What a family of steps knows to do; each module `recover.step_*` is one."""

    def prepare(self, run: Run, number: int, step: Any, promised: set[str]) -> tuple[dict[str, Any], list[Path]]:
        """Save what the step will destroy; facts for the journal, what to sync before it is written."""

    def make_room(self, run: Run, number: int, step: Any) -> list[Path]:
        """Make the directories it needs; may be repeated. What to sync before it is done."""

    def perform(self, run: Run, number: int, step: Any) -> list[Path]:
        """Do it; may be repeated. What to sync."""

    def settle(self, run: Run, number: int, step: Any) -> dict[str, Any]:
        """Check it; size and mtime of the file afterwards."""

    def revert(self, run: Run, number: int, step: Any) -> list[Path]:
        """Take it back; may be repeated. What to sync."""

    def settle_reverted(self, run: Run, number: int, step: Any) -> dict[str, Any]:
        """Check that; size and mtime of the file afterwards."""

    def holds_new(self, run: Run, number: int, step: Any) -> bool:
        """Whether the file is as the step left it."""

    def holds_old(self, run: Run, number: int, step: Any) -> bool:
        """Whether the file is as it was before."""

    def holds_either(self, run: Run, number: int, step: Any) -> bool:
        """Whether a kill in between can have left this."""


def family(step: Step) -> Family:
    """The module that carries out a step."""
    if isinstance(step, InPlace):
        return step_in_place
    if isinstance(step, RetireFolder):
        return step_folder
    assert isinstance(step, Replace)
    return step_replace


def check_for_resume(run: Run, plan: Plan) -> None:
    """`Refusal` unless the store is just as the run left it, what it had not touched yet included."""
    check_same_store(plan, run.root)
    _check_staged(run, plan)
    _check(run, plan, only_touched=False)
    check_watched(plan, run.root, same_inodes=False)
    check_changeable(run.root, plan.steps, run)


def check_for_undo(run: Run, plan: Plan) -> None:
    """`Refusal` naming the files that are not as the run left them."""
    if plan.parts:
        # A copied store may be undone where it is now, but not through paths that lead to the original.
        check_same_store(plan, run.root)
    _check(run, plan, only_touched=True)
    touched = [step for step, status in zip(plan.steps, run.statuses, strict=True) if status != "untouched"]
    check_changeable(run.root, touched, run)


def _check_staged(run: Run, plan: Plan) -> None:
    """The content that is still to come was verified when it was staged; it may have lain there for long."""
    for number, step in enumerate(plan.steps):
        staged = run.staged(number)
        if step.content is None or (run.statuses[number] != "untouched" and not staged.exists()):
            continue
        known = file_crc(staged) if staged.exists() else None
        inline = isinstance(step, InPlace) and not isinstance(step.content, FileContent)
        if not inline and known != (step.content.size, step.content.crc32c):
            raise Refusal(
                f"the staged content for {step.file} is damaged", "run `mqtool undo`", file=step.file, run=run.id
            )


def _check(run: Run, plan: Plan, *, only_touched: bool) -> None:
    statuses = run.statuses
    last = _last_looks(run, plan)
    changed: list[str] = []
    for number, step in enumerate(plan.steps):
        status = statuses[number]
        if isinstance(step, InPlace) and not (only_touched and status == "untouched"):
            check_alone(run.root, step.file)
        if status == "untouched" and (only_touched or step.file not in last):
            if not only_touched:
                compare(run.root, plan.preconditions[number], whole_file=not isinstance(step, InPlace))
            continue
        if step.file not in changed and not _as_left(run, number, step, status, last.get(step.file)):
            changed.append(step.file)
    if changed:
        names = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise Refusal(
            f"{names} {'is' if len(changed) == 1 else 'are'} not as the run {run.id} left "
            f"{'it' if len(changed) == 1 else 'them'}", CHANGED, files=changed, run=run.id,
        )


def _last_looks(run: Run, plan: Plan) -> dict[str, dict[str, Any] | None]:
    """Size and mtime of each touched file after the last record about it; None while a step on it is half done."""
    looks: dict[str, dict[str, Any] | None] = {}
    for record in run.records:
        if "step" in record:
            looks[plan.steps[record["step"]].file] = record.get("after")
    for number, status in enumerate(run.statuses):
        if status in ("begun", "reverting"):
            looks[plan.steps[number].file] = None
    return looks


def _as_left(run: Run, number: int, step: Step, status: str, look: dict[str, Any] | None) -> bool:
    try:
        if isinstance(step, InPlace):
            state = observe(run.root, step.file)
            if not state.exists:
                return False
            if look is not None and (state.size, state.mtime_ns) != (look["size"], look["mtime_ns"]):
                return False
        hands = family(step)
        if status in ("untouched", "reverted"):
            return hands.holds_old(run, number, step)
        if status == "done":
            return hands.holds_new(run, number, step)
        return hands.holds_either(run, number, step)
    except OSError as error:
        raise Refusal(f"{step.file} cannot be read: {error.strerror}", file=step.file) from error
