"""`mqtool journal`: what was done to a store."""

from __future__ import annotations

from typing import Annotated

from mqtool import exits
from mqtool.advice import to_type
from mqtool.declared import argument
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
    from recover.plan.journal import journal

    runs = journal(run_root(store))
    out.answer(runs=[item.json() for item in runs])
    if runs:
        rows = (
            (item.id, item.command, Text(item.state, style=_STYLES[item.state]), human_time(item.started_ms),
             f"{item.steps_done} of {item.steps}", item.reason or "") for item in runs
        )
        out.show(table("runs, oldest first", ["run", "command", "state", "started", ">steps done", "*note"], rows))
    unfinished = [item for item in runs if item.state in ("unfinished", "undoing")]
    if unfinished:
        out.summary(f"{count(len(runs), 'run')}; {unfinished[0].id} is not finished",
                    to_type("mqtool resume {store}", str(store)))
    elif not runs:
        out.summary("Nothing was ever done to this store by mqtool")
    else:
        last = [item for item in runs if item.state == "applied"]
        out.summary(f"{count(len(runs), 'run')}, none unfinished",
                    to_type("mqtool undo {store}", str(store)) if last else "")
    return exits.CLEAN
