"""`mqtool apply`, `resume`, `undo` and `journal`: running saved plans, and completing, undoing and listing runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import structs

from mqtool import exits
from mqtool.changing import (
    BITS,
    ask,
    conclude,
    given_of,
    options_of,
    parse_loss,
    say_owner,
    say_undo_data,
    show_room,
    step_by_step,
)
from mqtool.next_steps import ELSEWHERE, Given, Step, client_step, next_steps, undo_step
from mqtool.options import CHANGE, EngineChoice, PartsChoice, UndoChoice, WriteChoice, argument, command, flag, option
from mqtool.printer import Printer, Table, Text, table
from mqtool.screens.verdict import plan_document, show_plan, steps_table
from mqtool.text import clean, count, human_size, human_time
from mqtool.words import N_, _, listed
from recover.change.carry_out import (
    apply_plan,
    check_for_apply,
    last_run,
    prunable,
    prune as prune_runs,
    resume as resume_run,
    undo as undo_last,
    would_resume,
    would_undo,
)
from recover.change.journal import Run, RunInfo, journal as runs_of, open_runs, run_findings
from recover.change.model import Install, Plan, load_plan
from recover.change.owner import owner_of
from recover.change.places import Places
from recover.check.report import verify
from recover.findings.code import NotAStore, Refusal
from recover.findings.model import Phrase, builtins_of
from recover.log.scan import KnownLog, stamps_of
from recover.look.store import settings_of
from recover.repair.plan_cost import cost_of, lost_by, refuse_costlier
from recover.store.config_files import client_folder
from recover.store.store import JOURNAL_DIR, Store, StoreOptions

_STYLES = {N_("applied"): "green", N_("undone"): "dim", N_("unfinished"): "bold yellow", N_("undoing"): "bold yellow"}


def _root(store: str, options: StoreOptions | None = None) -> Path:
    """The root of a store that may be too damaged to be recognised, as long as it has a journal; else `NotAStore`."""
    root = Path(store)
    if not (root / JOURNAL_DIR).is_dir():
        Store.open(root, options)
    return root


def _run(info: RunInfo) -> str:
    return clean(_("run {id}: {command}, {state}, {time}").format(
        id=info.id, command=info.command, state=_(info.state), time=human_time(info.started_ms)))


def _as_run(store: str, plan_file: Path) -> Given:
    """The store with the options of a run's plan, its parts included, for a command that only reads; without them if
    the plan cannot be read, or is that of another place."""
    with suppress(Refusal):
        plan = load_plan(plan_file, sidecar="staged")
        if plan.store is not None and plan.store.root == os.path.realpath(store):
            said = plan.summary.get("store_options") or {}
            found = {name: said[name] for name in ELSEWHERE if said.get(name)}
            return given_of(store, plan, structs.replace(options_of(plan, PartsChoice()), **found))
    return Given(store)


_MaxLoss = Annotated[str | None, option(
    "--max-loss", "How many intact messages may be taken away where that is more than the plan says (default: 0).",
    CHANGE, metavar="N|all")]


def _judged(
    out: Printer, engine: EngineChoice, store: Store, plan: Plan, run: Run | None, max_loss: str | None, instead: str
) -> tuple[Plan, KnownLog]:
    """Return the plan with the statement of what it costs this store, and the scan of its log; `Refusal` (8) with the
    bits of the store if that is more than the plan says. `run`: what was begun of it."""
    allowed, options = parse_loss(max_loss), store.options
    steps = None
    if run is not None and set(run.statuses) != {"untouched"}:
        steps = [step for number, (step, status) in enumerate(zip(plan.steps, run.statuses, strict=True))
                 if status != "done" and (not isinstance(step, Install) or run.staged(number).exists())]
    stamps = stamps_of(store.commitlog)
    with engine.scan(out, store, title=N_("counting what it costs")) as scan:
        before = verify(store, scan)
        settings, _assumed = settings_of(store, options.broker, None, [f"{k}={v}" for k, v in options.settings.items()])
        cost = cost_of(store, plan, before, settings, steps=steps)
    try:
        return refuse_costlier(plan, cost, allowed, instead), KnownLog(before.analysis.log, stamps)
    except Refusal:
        out.found(before.findings)
        raise


@command(
    examples=[
        ("plan.json", "show the plan, ask, run it, verify the result"),
        ("plan.json --yes", "the same in a script"),
        ("plan.json --dry-run", "only show it"),
    ],
    bits=BITS,
)
def apply(
    out: Printer, engine: EngineChoice, consent: UndoChoice, parts: PartsChoice,
    plan_file: Annotated[Path, argument("PLAN.json", "A plan that --plan-out saved.")], max_loss: _MaxLoss = None,
) -> int:
    """Run a plan that a changing command saved with --plan-out.

    It is refused if a broker holds the store, or if one of its files has changed since the plan was made. What it costs
    is counted again: a plan that takes away more intact messages than it says is refused. Name parts kept elsewhere
    again: the plan alone does not permit writing there.
    """
    plan = load_plan(plan_file)
    if plan.store is None:
        raise Refusal(Phrase("{plan_file} is not bound to a store", plan_file=plan_file), "Create the plan again.")
    root = Path(plan.store.root)
    out.store = str(root)
    options = options_of(plan, parts)
    out.given = given_of(str(root), plan, options)
    cut = ("--to", plan.summary["valid_to"]) if plan.command == "truncate" and "valid_to" in plan.summary else ()
    out.again = out.given.line(plan.command, *cut, "--dry-run")
    store = Store.open(root, options)
    folders = store.options.folders
    consent.check_journal([root, *folders])
    out.answer(command=plan.command, plan=plan_document(plan), applied=False, journal=None)
    Places(root, folders).check_plan(plan)
    run = check_for_apply(root, plan, folders, as_root=consent.as_root, journal=consent.journal)
    plan, known = _judged(out, engine, store, plan, run, max_loss, "`{again}` makes one for the store as it is.")
    out.answer(plan=plan_document(plan))
    show_plan(out, plan)
    if run is None and plan.steps:
        show_room(out, root, plan, consent.journal)
    steps = count(len(plan.steps), "step")
    say_owner(out, owner_of(root, folders) if not consent.as_root else None)
    if consent.dry_run:
        out.summary(_("Dry run: {steps} on {store}").format(steps=steps, store=root),
                    next_steps(out.scene("planned", plan=plan_file)))
        return exits.CLEAN
    ask(_("Run this plan on {store}?").format(store=root), yes=consent.yes)
    with step_by_step(out, "applying") as how:
        applied = apply_plan(root, plan, parts=folders, as_root=consent.as_root, journal=consent.journal, **how)
    say_undo_data(out, applied)
    out.answer(applied=applied is not None, journal=applied and applied.journal)
    return conclude(out, store, engine, plan, _("{steps} done, {losses}").format(
                        steps=steps, losses=_("{n} lost").format(n=count(lost_by(plan.loss), "message"))),
                    corrected=applied is not None, known=known)


@command(
    examples=[
        ("/data/store", "show what is unfinished, ask, complete it"),
        ("/data/store --yes", "the same in a script"),
    ],
    bits=BITS,
)
def resume(
    out: Printer, engine: EngineChoice, consent: WriteChoice, parts: PartsChoice,
    store: Annotated[str, argument("STORE", "Store root.")], max_loss: _MaxLoss = None,
) -> int:
    """Complete a run that was killed or interrupted, an undo included.

    Finished steps are not repeated, a half-finished one is. What the others cost is counted again: a run whose plan
    takes away more intact messages than it says is refused. The alternative is `mqtool undo`.
    """
    root = _root(store, parts.options())
    found = open_runs(root, parts.parts)
    out.answer(runs=builtins_of([run.info() for run in found]), applied=False)
    for run in found:
        info = run.info()
        far = _("{done} of {steps} steps done, {begun} begun").format(
            done=info.steps_done, steps=info.steps, begun=info.steps_begun)
        out.show(Text(f"{_run(info)}, {far}", style="bold"))
        out.answer(plan=plan_document(run.plan))
        show_plan(out, run.plan)
    say_owner(out, owner_of(root, parts.parts) if not consent.as_root else None)
    plan, known = found[0].plan if found else None, None
    if plan is not None and found[0].state == "unfinished":
        run = would_resume(root, parts.parts, as_root=consent.as_root)
        with suppress(NotAStore):  # without a log there is nothing to lose
            plan, known = _judged(out, engine, Store.open(root, options_of(plan, parts)), plan, run, max_loss,
                                  "`mqtool undo {store}` undoes what was begun of it.")
            out.answer(plan=plan_document(plan))
    if consent.dry_run:
        left = would_resume(root, parts.parts, as_root=consent.as_root)
        out.summary(_("Dry run: run {run} would be completed").format(run=left.id),
                    [Step(out.given.line("resume"), "carries it out")], undo_step(out.given))
        return exits.CLEAN
    if found:
        ask(_("Complete run {run}?").format(run=found[0].id), yes=consent.yes)
    with step_by_step(out, "resuming") as how:
        done = resume_run(root, parts=parts.parts, as_root=consent.as_root, **how)
    assert plan is not None  # without an open run `resume_run` refuses
    options = options_of(plan, parts)
    out.given = given_of(store, plan, options)
    undone = done.state == "undone"
    of_client = client_folder(root)
    out.answer(applied=not undone, runs=builtins_of([done]), journal=done.journal)
    if undone:
        out.summary(_("The undo is complete: the store is as it was before the run"),
                    [client_step(root)] if of_client else next_steps(out.scene("undone")))
        return exits.CLEAN
    if of_client or plan.summary.get("client"):
        out.summary(_("The run is complete"), [client_step(root)] if of_client else (), undo_step(out.given))
        return exits.CORRECTED
    return conclude(out, Store.open(root, options), engine, plan,
                    _("The run is complete, {messages} lost").format(messages=count(lost_by(plan.loss), "message")),
                    known=known)


@command(examples=[
    ("/data/store", "show the last run, ask, and revert it"),
    ("/data/store --yes --json", "the same in a script"),
    ("/data/store --dry-run", "only show which run would be reverted"),
])
def undo(
    out: Printer, consent: WriteChoice, parts: PartsChoice,
    store: Annotated[str, argument("STORE", "Store root.")],
) -> int:
    """Revert the last applied (or unfinished) run: content, owner, mode, mtime, xattrs, sparseness.

    Run it again to revert the one before. The journal is kept. Exit 0 means that the store is as it was before the
    plan, damage included; `mqtool verify` reports its state.
    """
    root = _root(store, parts.options())
    last = last_run(root, parts.parts)
    if last is not None:
        info = last.info()
        out.given = given_of(store, last.plan, options_of(last.plan, parts))
        out.answer(plan=info.plan_id, run=info.id, restored=[])
        back = _("; {messages} that it gave up will be missing or damaged again").format(
            messages=count(lost_by(last.plan.loss), "message")) if last.plan.loss else ""
        out.show(Text(_run(info), style="bold"), Text(_("undo reverts these steps, last one first") + back))
        out.show(steps_table(last.plan.steps))
    say_owner(out, owner_of(root, parts.parts) if not consent.as_root else None)
    if consent.dry_run:
        left = would_undo(root, parts.parts, as_root=consent.as_root)
        out.summary(_("Dry run: run {run} would be reverted").format(run=left.id),
                    [Step(out.given.line("undo"), "carries it out")])
        return exits.CLEAN
    if last is not None:
        ask(_("Revert run {run}?").format(run=last.id), yes=consent.yes)
    with step_by_step(out, "undoing") as how:
        undone = undo_last(root, parts=parts.parts, as_root=consent.as_root, **how)
    out.answer(plan=undone.run.plan_id, run=undone.run.id, restored=list(undone.restored))
    removed, restored = len(undone.removed), len(undone.restored) - len(undone.removed)
    said = [_("{files} restored").format(files=count(restored, "file"))] if restored or not removed else []
    said += [_("{files} removed again").format(files=count(removed, "file"))] if removed else []
    out.summary(listed([_("Run {run} is undone").format(run=undone.run.id), *said]),
                [client_step(root)] if client_folder(root) else next_steps(out.scene("undone")))
    return exits.CLEAN


@command(examples=[
    ("/data/store", "every run: when, which command, by which plan, how it ended"),
    ("/data/store --json", "the same for a change record"),
    ("/data/store --prune --dry-run", "how much room the undo data of runs that have ended take"),
    ("/data/store --prune --yes", "remove them: these runs cannot be undone any more"),
])
def journal(
    out: Printer, consent: WriteChoice, store: Annotated[str, argument("STORE", "Store root.")],
    prune: Annotated[bool, flag(
        "--prune", "Remove the undo data of all runs that have ended, which frees their room; none of them can be "
        "undone any more. A broker may run.", CHANGE)] = False,
) -> int:
    """Show what was done to this store, and which run is unfinished.

    The journal, the bytes that were overwritten and the files that were replaced are in STORE/.mqtool/, or where
    --journal put them, and stay there until --prune removes them. The list of runs stays for good.
    """
    root = _root(store)
    if prune:
        return _pruned(out, root, consent)
    runs = runs_of(root)
    out.answer(runs=builtins_of(runs))
    if runs:
        out.show(_table(runs))
    unfinished = [item for item in runs if item.state in ("unfinished", "undoing")]
    what = _("{run} is not finished").format(run=unfinished[0].id) if unfinished else _("none unfinished")
    steps, undoing = _ways_on(out, root, store, runs, is_over=not unfinished)
    out.summary(f"{count(len(runs), 'run')}; {what}" if runs else _("mqtool never changed this store"), steps, undoing)
    return exits.CLEAN


def _ways_on(
    out: Printer, root: Path, store: str, runs: list[RunInfo], *, is_over: bool
) -> tuple[list[Step], Step | None]:
    """The steps after these runs, and that which undoes the last one, if it can be undone."""
    given = _as_run(store, root / runs[-1].plan_path) if runs and is_over else out.given
    steps = [client_step(root)] if client_folder(root) and is_over else \
        next_steps(out.scene("journal", findings=[] if is_over else run_findings(root), given=given))
    last = next((item for item in reversed(runs) if item.state != "undone"), None)
    can_undo = last is not None and last.pruned_ms is None
    undoing = undo_step(out.given)
    if any(f"--{part}" in item.command_line for item in runs
            for part in ("commitlog", "consumequeue", "index", "broker-conf")):
        more = _("name parts kept elsewhere as for that run: --commitlog, --consumequeue, --index")
        if given == out.given:
            steps = [step._replace(why=f"{_(step.why)}; {more}") for step in steps]
        undoing = undoing._replace(why=f"{_(undoing.why)}; {more}")
    return steps, undoing if can_undo else None


def _table(runs: list[RunInfo]) -> Table:
    rows = (
        (item.id, item.command, Text(_(item.state), style=_STYLES[item.state]), human_time(item.started_ms),
         _("{done} of {all}").format(done=item.steps_done, all=item.steps),
         " ".join(filter(None, (item.user and f"{item.user}@{item.host}", item.command_line, item.reason,
                                _undo_data(item)))))
        for item in runs
    )
    columns = ["run", "command", "state", "started", ">steps done", "*user and command"]
    return table("runs, oldest first", columns, rows)


def _undo_data(run: RunInfo) -> str:
    if run.pruned_ms is not None:
        return _("(undo data removed {time})").format(time=human_time(run.pruned_ms))
    return _("(undo data in {place})").format(place=run.undo_data) if run.undo_data else ""


def _pruned(out: Printer, root: Path, consent: WriteChoice) -> int:
    """Show what would be removed, ask, and remove it."""
    found = prunable(root)
    held = sum(item.bytes for item in found)
    runs = [item.run for item in found]
    size, lasting = human_size(held), count(sum(run.state == "applied" for run in runs), "run")
    out.answer(runs=builtins_of(runs), prunes=[{"run": item.run.id, "bytes": item.bytes} for item in found],
               bytes=held, applied=False)
    if found:
        rows = ((item.run.id, item.run.command, Text(_(item.run.state), style=_STYLES[item.run.state]),
                 human_time(item.run.started_ms), human_size(item.bytes),
                 item.run.undo_data or f"{JOURNAL_DIR}/") for item in found)
        out.show(table("undo data of runs that have ended", [
            "run", "command", "state", "started", ">on disk", "*kept in"], rows))
    say_owner(out, owner_of(root) if not consent.as_root else None)
    if not found:
        out.summary(_("No run that has ended has undo data left"), clean=False)
        return exits.CLEAN
    if consent.dry_run:
        out.summary(_("Dry run: {size} of undo data would be removed; {runs} could not be undone any more").format(
            size=size, runs=lasting), [Step(out.given.line("journal", "--prune"), "carries it out")], clean=False)
        return exits.CLEAN
    ask(_("Remove {size} of undo data for good?").format(size=size), yes=consent.yes)
    done = prune_runs(root, as_root=consent.as_root)
    out.answer(runs=builtins_of(done), applied=True)
    out.summary(_("{size} of undo data removed; {runs} cannot be undone any more").format(
        size=size, runs=lasting), clean=False)
    return exits.CLEAN
