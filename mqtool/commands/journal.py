"""`mqtool journal`: what was done to a store."""

from __future__ import annotations

from typing import Annotated

from mqtool import exits
from mqtool.declared import argument
from mqtool.next_steps import Scene, next_steps, undo_step
from mqtool.options import command
from mqtool.output import Printer
from mqtool.runs import run_root
from mqtool.screens import table
from mqtool.shown import Text
from mqtool.text import count, human_time

_STYLES = {"applied": "green", "undone": "dim", "unfinished": "bold yellow", "undoing": "bold yellow"}


@command(examples=[
    ("/data/store", "every run: when, which command, by which plan, how it ended"),
    ("/data/store --json", "the same for a change record"),
])
def run(
    out: Printer,
    store: Annotated[str, argument("STORE", "Store root.")],
) -> int:
    """Show what was done to this store, and which run is unfinished.

    The journal, the bytes that were overwritten and the files that were replaced are in STORE/.mqtool/ and stay there.
    """
    from recover.change.journal import journal, run_findings

    root = run_root(store)
    runs = journal(root)
    out.answer(runs=[item.json() for item in runs])
    if runs:
        rows = (
            (item.id, item.command, Text(item.state, style=_STYLES[item.state]), human_time(item.started_ms),
             f"{item.steps_done} of {item.steps}",
             " ".join(filter(None, (item.who["user"] and f"{item.who['user']}@{item.who['host']}",
                                    item.who["command_line"], item.reason)))) for item in runs
        )
        columns = ["run", "command", "state", "started", ">steps done", "*by whom, with what"]
        out.show(table("runs, oldest first", columns, rows))
    unfinished = [item for item in runs if item.state in ("unfinished", "undoing")]
    what = f"{unfinished[0].id} is not finished" if unfinished else "none unfinished"
    steps = next_steps(Scene("journal", out.given, findings=run_findings(root) if unfinished else []))
    can_undo = unfinished or any(item.state == "applied" for item in runs)
    line = f"{count(len(runs), 'run')}; {what}" if runs else "Nothing was ever done to this store by mqtool"
    out.summary(line, steps, undo_step(out.given) if can_undo else None)
    return exits.CLEAN
