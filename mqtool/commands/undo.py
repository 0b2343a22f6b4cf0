"""`mqtool undo`: take the last run back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mqtool import exits
from mqtool.changing import ConsentChoice, ask, options_of
from mqtool.declared import argument
from mqtool.next_steps import Given, Scene, Step, next_steps
from mqtool.options import PartsChoice, command
from mqtool.output import Printer
from mqtool.plan_screen import show_plan
from mqtool.progress import Steps
from mqtool.runs import run_root
from mqtool.shown import Text
from mqtool.text import clean, count, human_time


@command(examples=[
    ("/data/store", "show the last run, ask, and take it back"),
    ("/data/store --yes --json", "the same in a script"),
    ("/data/store --dry-run", "only show which run would be taken back"),
])
def run(
    out: Printer,
    consent: ConsentChoice,
    parts: PartsChoice,
    store: Annotated[str, argument("STORE", "Store root.")],
) -> int:
    """Take the last applied (or unfinished) plan back: content, owner, mode, mtime, xattrs, sparseness.

    Run it again to take back the one before. The journal is kept. Exit 0 says that the store is as it was before the
    plan, damage included; `mqtool verify` tells what that is.
    """
    from recover.change.undo import last_run, would_undo

    root = run_root(store, parts.options())
    last = last_run(root, parts.parts)
    if last is not None:
        info = last.info()
        out.given = Given.of_plan(store, options_of(last.plan, parts))
        out.answer(plan=info.plan_id, run=info.id, restored=[])
        what = clean(f"run {info.id}: {info.command}, {info.state}, {human_time(info.started_ms)}")
        out.show(Text(what, style="bold"))
        show_plan(out, last.plan)
    if consent.dry_run:
        out.summary(f"Dry run: run {would_undo(root, parts.parts).id} would be taken back",
                    [Step(out.given.line("undo"), "the same, carried out")])
        return exits.CLEAN
    if last is not None:
        ask(f"Take run {last.id} back?", yes=consent.yes)
    return _undo(out, root, parts)


def _undo(out: Printer, root: Path, parts: PartsChoice) -> int:
    from recover.change.undo import undo

    out.writing = True
    with Steps("undoing", out.options.progress, out.stderr_console) as steps, exits.between_steps() as interrupted:
        undone = undo(root, parts=parts.parts, progress=steps, interrupted=interrupted)
    out.answer(plan=undone.run.plan_id, run=undone.run.id, restored=list(undone.restored))
    restored = count(len(undone.restored), "file")
    out.summary(f"Run {undone.run.id} is undone, {restored} restored", next_steps(Scene("undone", out.given)))
    return exits.CLEAN
