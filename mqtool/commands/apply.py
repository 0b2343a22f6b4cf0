"""`mqtool apply`: run a saved plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from mqtool.changing import BITS, ConsentChoice, ask, carry_out, conclude, given_up, loss_line, options_of
from mqtool.declared import argument
from mqtool.next_steps import Given, Scene, next_steps, undo_step
from mqtool.options import EngineChoice, PartsChoice, command
from mqtool.output import Printer
from mqtool.plan_screen import plan_document, show_plan
from mqtool.text import count
from mqtool.verify_screen import verify_line
from recover.findings.refusal import Refusal


@command(
    examples=[
        ("plan.json", "show the plan, ask, run it, verify the result"),
        ("plan.json --yes", "the same in a script"),
        ("plan.json --dry-run", "only show it"),
    ],
    bits=BITS,
)
def run(
    out: Printer,
    engine: EngineChoice,
    consent: ConsentChoice,
    parts: PartsChoice,
    plan_file: Annotated[Path, argument("PLAN.json", "A plan that --plan-out saved.")],
) -> int:
    """Run a plan that a changing command saved with --plan-out.

    It is refused if a broker holds the store, or if one of the files is no longer what the plan was made on. Parts that
    are kept elsewhere are named again: what the plan says is not enough to write there.
    """
    from recover.change.carry_out import check_for_apply
    from recover.change.places import Places
    from recover.change.plan_file import load_plan
    from recover.store.store import Store

    plan = load_plan(plan_file)
    if plan.store is None:
        raise Refusal(f"{plan_file} is not bound to a store", "Make the plan again.")
    root = Path(plan.store.root)
    out.store = str(root)
    options = options_of(plan, parts)
    out.given = Given.of_plan(str(root), options)
    store = Store.open(root, options)
    answer: dict[str, Any] = {"command": plan.command, "plan": plan_document(plan), "applied": False, "journal": None}
    out.answer(**answer)
    show_plan(out, plan)
    Places(root, store.options.folders).check_plan(plan)
    if consent.dry_run:
        check_for_apply(root, plan, store.options.folders)
        out.summary(f"Dry run: {count(len(plan.steps), 'step')} on {root}",
                    next_steps(Scene("planned", out.given, plan=plan_file)))
        return 0
    ask(f"Run this plan on {root}?", yes=consent.yes)
    applied = carry_out(out, root, plan, store.options.folders)
    out.answer(applied=applied.changed, journal=applied.journal)
    code, document = conclude(out, store, engine, None, corrected=applied.changed)
    out.answer(verify=document)
    steps = next_steps(Scene("changed", out.given, code, list(out.findings), changes=plan.command))
    out.summary(f"{count(len(plan.steps), 'step')} done, {loss_line(plan)}. {verify_line(document, code)}", steps,
                undo_step(out.given))
    return code | given_up(plan)
