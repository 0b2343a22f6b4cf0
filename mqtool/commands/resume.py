"""`mqtool resume`: complete a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mqtool import exits
from mqtool.changing import BITS, ConsentChoice, ask, conclude, given_up, loss_line, options_of
from mqtool.declared import argument
from mqtool.next_steps import Given, Scene, Step, next_steps, undo_step
from mqtool.options import EngineChoice, PartsChoice, command
from mqtool.output import Printer
from mqtool.plan_screen import plan_document, show_plan
from mqtool.progress import Steps
from mqtool.runs import run_root
from mqtool.shown import Text
from mqtool.text import clean, human_time
from mqtool.verify_screen import verify_line

if TYPE_CHECKING:
    from recover.change.carry_out import Applied


@command(
    examples=[
        ("/data/store", "show what is unfinished, ask, complete it"),
        ("/data/store --yes", "the same in a script"),
    ],
    bits=BITS,
)
def run(
    out: Printer,
    engine: EngineChoice,
    consent: ConsentChoice,
    parts: PartsChoice,
    store: Annotated[str, argument("STORE", "Store root.")],
) -> int:
    """Complete a run that was killed or interrupted: an apply is carried to its end, an undo too.

    Steps that were done are not repeated, one that was half done is done again. `mqtool undo` is the other way out.
    """
    from recover.change.carry_out import would_resume
    from recover.change.journal import open_runs
    from recover.store.store import Store

    root = run_root(store, parts.options())
    found = open_runs(root, parts.parts)
    unfinished = [item.info() for item in found]
    out.answer(runs=[item.json() for item in unfinished], applied=False)
    for item in unfinished:
        what = f"run {item.id}: {item.command}, {item.state}, begun {human_time(item.started_ms)}"
        out.show(Text(f"{clean(what)}, {item.steps_done} of {item.steps} steps done", style="bold"))
    for run in found:
        out.answer(plan=plan_document(run.plan))
        show_plan(out, run.plan)
    if consent.dry_run:
        out.summary(f"Dry run: run {would_resume(root, parts.parts).id} would be completed",
                    [Step(out.given.line("resume"), "the same, carried out")], undo_step(out.given))
        return exits.CLEAN
    if unfinished:
        ask(f"Complete run {unfinished[0].id}?", yes=consent.yes)
    options = options_of(found[0].plan, parts) if found else parts.options()
    out.given = Given.of_plan(store, options)
    done = _resume(out, root, parts)
    undone = done.run is not None and done.run.state == "undone"
    out.answer(applied=not undone, runs=[done.run.json()] if done.run else [], journal=done.journal)
    if undone:
        out.summary("The undo is complete: the store is as it was before the run",
                    next_steps(Scene("undone", out.given)))
        return exits.CLEAN
    code, document = conclude(out, Store.open(root, options), engine, None, corrected=True)
    out.answer(verify=document)
    changes = found[0].plan.command if found else "recover"
    steps = next_steps(Scene("changed", out.given, code, list(out.findings), changes=changes))
    losses = f", {loss_line(found[0].plan)}" if found else ""
    out.summary(f"The run is complete{losses}. {verify_line(document, code)}", steps, undo_step(out.given))
    return code | (given_up(found[0].plan) if found else 0)


def _resume(out: Printer, root: Path, parts: PartsChoice) -> Applied:
    from recover.change.carry_out import resume

    out.writing = True
    with Steps("resuming", out.options.progress, out.stderr_console) as steps, exits.between_steps() as interrupted:
        return resume(root, parts=parts.parts, progress=steps, interrupted=interrupted)
