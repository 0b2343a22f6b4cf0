"""The way every changing command goes: plan, loss, one question, apply, a second verify, the summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct, structs

from mqtool import exits
from mqtool.declared import FLAG, option
from mqtool.output import Printer, outside_store
from mqtool.progress import Steps
from mqtool.scanning import run_verify
from mqtool.text import count
from recover.findings.refusal import Refusal

if TYPE_CHECKING:
    from mqtool.options import BrokerChoice, EngineChoice, PartsChoice
    from recover.change.carry_out import Applied
    from recover.change.model import Plan
    from recover.check.survey import Survey
    from recover.log.engine import KnownLog
    from recover.store.store import Store, StoreOptions

_PANEL = "Before anything is changed"
BITS = (exits.CORRECTED, exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED)


class ConsentChoice(Struct, frozen=True, kw_only=True):
    """Whether to ask, and whether to stop before the first write."""

    yes: Annotated[bool, option("--yes", "Do it without asking.", _PANEL, metavar=FLAG)] = False
    dry_run: Annotated[bool, option(
        "--dry-run", "Stop after the plan; nothing is written.", _PANEL, metavar=FLAG)] = False


class ChangeChoice(ConsentChoice, frozen=True, kw_only=True):
    """The same for commands that make a plan of their own."""

    plan_out: Annotated[Path | None, option(
        "--plan-out", "Save the plan for `mqtool apply`, outside the store.", _PANEL, metavar="FILE")] = None

    def check_plan_out(self, root: Path, parts: list[Path]) -> None:
        """`Refusal`, before anything long starts, where the plan file could not be written at the end."""
        if self.plan_out is not None:
            from recover.change.plan_file import refuse_taken

            outside_store(self.plan_out, [root], parts)
            refuse_taken(self.plan_out)

    def save(self, out: Printer, plan: Plan) -> None:
        """Write the plan file where the user wants one, and say what belongs to it."""
        if self.plan_out is not None:
            from recover.change.plan_file import save_plan

            folder = save_plan(plan, self.plan_out)
            out.answer(plan_file=str(self.plan_out), plan_folder=None if folder is None else str(folder))
            beside = f", and its large contents in the folder {folder}: keep both together" if folder else ""
            out.say(f"the plan is saved in {self.plan_out}{beside}")


def with_options(plan: Plan, store: Store) -> Plan:
    """The plan with what the user said about the store, so that apply and resume look at the same parts."""
    options = store.options
    said = {
        "commitlog": [str(path.absolute()) for path in options.commitlog],
        "consumequeue": None if options.consumequeue is None else str(options.consumequeue.absolute()),
        "index": None if options.index is None else str(options.index.absolute()),
        "mapped_file_size": options.mapped_file_size, "index_slots": options.index_slots,
        "index_entries": options.index_entries, "broker": options.broker, "settings": dict(options.settings),
    }
    return structs.replace(plan, summary={**plan.summary, "store_options": said})


def options_of(plan: Plan, parts: PartsChoice) -> StoreOptions:
    """The reverse of `with_options`. The `parts` are those of this command: a plan does not widen what it was given."""
    said = plan.summary.get("store_options") or {}
    return structs.replace(
        parts.options(), mapped_file_size=said.get("mapped_file_size"), index_slots=said.get("index_slots"),
        index_entries=said.get("index_entries"), broker=said.get("broker"), settings=dict(said.get("settings") or {}),
    )


def refuse_while_running(root: Path, parts: Iterable[Path] = ()) -> None:
    """`Refusal` (8) before anything long starts, when a broker holds the store or an earlier run is unfinished."""
    from recover.change.carry_out import refuse_if_unfinished
    from recover.change.lock import refuse_if_held

    refuse_if_held(root, "Stop the broker first. Reading commands and the dry runs of new plans may run beside it.")
    refuse_if_unfinished(root, parts)


def ask(question: str, *, yes: bool) -> None:
    """Ask once. `Refusal` (8) when the answer is no, or when nobody is there to answer."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refusal("not a terminal: add --yes to confirm",
                      "Look at the plan with --dry-run, then add --yes.")
    from mqtool.console import make_console

    make_console("auto", stderr=True).print(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refusal("not confirmed; nothing was changed")


def carry_out(out: Printer, root: Path, plan: Plan, parts: Iterable[Path | str] = ()) -> Applied:
    """Apply a plan, in the root and these parts, with a line of progress; signals wait for the end of a step."""
    from recover.change.carry_out import apply_plan

    out.writing = True
    with Steps("applying", out.options.progress, out.stderr_console) as steps, exits.between_steps() as interrupted:
        return apply_plan(root, plan, parts=parts, progress=steps, interrupted=interrupted)


def given_up(plan: Plan) -> int:
    """The exit bit of a plan that messages are lost by, whatever is left for a verify to find."""
    return exits.MESSAGES if plan.loss else 0


def loss_line(plan: Plan) -> str:
    """How many messages a plan says are lost."""
    return f"{count(sum(int(item.get('messages', 0)) for item in plan.loss), 'message')} lost"


def conclude(
    out: Printer, store: Store, engine: EngineChoice, broker: BrokerChoice | None, *, corrected: bool,
    known: KnownLog | None = None, looked: Callable[[Survey], None] | None = None,
) -> tuple[int, dict[str, Any]]:
    """The final verify: its findings take the place of the earlier ones; (exit bits, document).

    A `known` log that did not change since is not read again.
    """
    from recover.store.store import Store as Opened

    # opened anew: the lists of files are those of before the change
    opened = Opened.open(store.root, store.options)
    report = run_verify(out, opened, engine, broker, title="checking the result", known=known)
    if looked is not None:
        looked(report.survey)
    out.findings = report.findings
    code = report.exit_code | (exits.CORRECTED if corrected else 0)
    return code, {**report.json(), "exit_code": report.exit_code}
