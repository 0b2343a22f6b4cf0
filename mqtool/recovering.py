"""recover, truncate and the rebuilds from the plan on: show, ask, apply (in place or to a copy), verify, conclude."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct, structs

from mqtool import exits
from mqtool.changing import (
    ChangeChoice,
    ask,
    carry_out,
    conclude,
    given_up,
    refuse_while_running,
    with_options,
)
from mqtool.declared import option
from mqtool.next_steps import Given, Scene, Step, next_steps, undo_step
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice
from mqtool.output import Printer
from mqtool.plan_screen import plan_document, show_plan
from mqtool.predicting import settings_of
from mqtool.progress import Line
from mqtool.scanning import scan_options, store_options
from mqtool.text import clean, count
from mqtool.verify_screen import verify_line
from recover.findings.refusal import UsageRefusal

ELSEWHERE = ("commitlog", "consumequeue", "index", "broker_conf")
"""What a command line says of a store and not of its copy."""

if TYPE_CHECKING:
    from recover.change.model import Plan
    from recover.check.report import VerifyReport
    from recover.check.survey import Survey
    from recover.log.engine import KnownLog
    from recover.repair.losses import RecoverPlan
    from recover.store.store import Store

    Planner = Callable[[VerifyReport], RecoverPlan]


class ZoneChoice(Struct, frozen=True, kw_only=True):
    """The broker's time zone, which names index files."""

    timezone: Annotated[str | None, option(
        "--timezone", "The broker's time zone, for names of new index files (default: as its files tell, else ours).",
        "Broker settings", metavar="ZONE")] = None

    @property
    def zone(self) -> datetime.tzinfo | None:
        """The zone; a usage error (16) for a name that nobody knows."""
        if self.timezone is None:
            return None
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise UsageRefusal(f"--timezone {self.timezone}: there is no such zone",
                               "Write it like Asia/Shanghai or UTC.") from error


class Change(Struct):
    """One run of a changing command on one store. `made`: the queues of which files are made (None: of all).

    The plan is refused if brokers alone deliver more, but for `max_loss` messages (None: any number).
    `looked` is called with what the last verify has seen.
    """

    out: Printer
    choice: StoreChoice
    engine: EngineChoice
    broker: BrokerChoice
    consent: ChangeChoice
    output: Path | None = None
    include_deleted: bool = False
    known: KnownLog | None = None
    max_loss: int | None = 0
    looked: Callable[[Survey], None] | None = None

    def run(self, make: Callable[[Store], Planner]) -> int:
        """Plan, then go through with it as far as the user wants; the exit code.

        `make` looks at what was asked for and gives what plans it, once the store has been verified.
        """
        from recover.change.preconditions import seal
        from recover.log.engine import KnownLog, stamps_of
        from recover.repair.losses import assumed_sizes
        from recover.store.memo import seen_now
        from recover.store.store import Store

        root = self.choice.root
        store = Store.open(root, store_options(self.choice, self.broker))
        self.consent.check_plan_out(root, self.choice.parts)
        if not self.consent.dry_run and self.output is None:
            refuse_while_running(root, self.choice.parts)
        seen, stamps = seen_now(store), stamps_of(store.commitlog)
        made = self._plan(store, make(store))
        self.known = KnownLog(made.before.survey.log, stamps)
        running = self.output is None and any(item.code == "broker-running" for item in made.before.findings)
        if running:
            steps = [step for step in made.plan.steps if step.file != store.relative(store.abort_path)]
            made.plan = structs.replace(made.plan, steps=tuple(steps))
        made.assumptions += assumed_sizes(store, made.plan)
        made.plan = structs.replace(made.plan, summary={**made.plan.summary, "assumptions": made.assumptions})
        plan = seal(with_options(made.plan, store), root.absolute(), seen={**seen.files, **seen.folders})
        self.out.answer(
            valid_to=made.valid_to, plan=plan_document(plan), applied=False, journal=None,
            lost_messages=made.lost_messages, damaged_messages=made.damaged_messages,
            unproven_messages=made.unproven_messages, mendable_messages=made.mendable_messages,
            left_messages=made.left_messages, given_up_messages=made.given_up_messages, bridged=made.bridged,
            verify=None, assumptions=made.assumptions,
            abort_stays_for=made.abort_stays_for if store.has_abort else [],
        )
        if made.abort_stays_for and store.has_abort:
            parts = ", ".join(made.abort_stays_for)
            self.out.say(f"abort stays: the broker's own recovery has still to look at {parts}")
        if running:
            self.out.say("a broker runs on this store: its abort file belongs there, and nothing is changed meanwhile")
        self.consent.save(self.out, plan)
        return self._go_on(store, made, plan)

    def _plan(self, store: Store, planner: Planner) -> RecoverPlan:
        """Verify once, and plan from that. A refusal then carries the bits of what was found; a wrong option none."""
        from recover.check.report import verify
        from recover.findings.model import FindingList

        with scan_options(
            self.out, store, self.engine, self.broker, include_deleted=self.include_deleted, rebuilds=True,
        ) as scan:
            before = verify(store, scan)
            self.out.found(before.findings)
            try:
                return self._never_worse(store, planner(before))
            except UsageRefusal:
                self.out.findings = FindingList()
                raise

    def _never_worse(self, store: Store, made: RecoverPlan) -> RecoverPlan:
        if not made.plan.steps:
            return made
        from recover.repair.never_worse import refuse_worse

        return refuse_worse(store, made, settings_of(store, self.broker)[0], self.max_loss, self.out.findings)

    def _go_on(self, store: Store, made: RecoverPlan, plan: Plan) -> int:
        from recover.change.places import Places

        out, root = self.out, self.choice.root
        document = made.before.json()
        code = made.before.exit_code
        if not plan.steps and self.output is None:
            out.answer(verify={**document, "exit_code": code})
            left = f" ({_losses(made)})" if made.left_messages else ""
            out.summary(f"Nothing to do{left}. {verify_line(document, code)}", self._steps("nothing", code))
            return code
        show_plan(out, plan)
        if self.output is None:
            Places(root, store.options.folders).check_plan(plan)
        if self.consent.dry_run:
            out.summary(f"Dry run, nothing was written: {count(len(plan.steps), 'step')} planned, "
                        f"{_losses(made)}", self._steps("planned", code, made))
            return code
        target = root if self.output is None else self.output
        question = f"Make a recovered copy in {clean(target)}?" if self.output else f"Change {clean(root)} as shown?"
        ask(question, yes=self.consent.yes)
        if self.output is not None:
            return self._copy(store, made, plan, self.output)
        applied = carry_out(out, root, plan, store.options.folders)
        out.answer(applied=applied.changed, journal=applied.journal)
        return self._conclude(store, made, plan, undo_step(out.given))

    def _conclude(self, store: Store, made: RecoverPlan, plan: Plan, undo: Step | None = None) -> int:
        code, document = conclude(
            self.out, store, self.engine, self.broker, corrected=bool(plan.steps), known=self.known, looked=self.looked,
        )
        self.out.answer(verify=document)
        losses = _losses(made, "undo and --mend-bits would restore")
        self.out.summary(f"{count(len(plan.steps), 'step')} done, {losses}. {verify_line(document, code)}",
                         self._steps("changed", code), undo)
        return code | given_up(plan)

    def _copy(self, store: Store, made: RecoverPlan, plan: Plan, target: Path) -> int:
        from recover.change.copy_store import copy_store, relocated, sources_of
        from recover.change.preconditions import seal
        from recover.store.store import Store

        sources = sources_of(store)
        with Line(self.out.options.progress, self.out.stderr_console) as line, exits.between_steps() as interrupted:
            names = copy_store(sources, target, interrupted=interrupted,
                               progress=lambda path, size: line.show(f"copying {path}"))
        moved = relocated(plan, names)
        options = structs.replace(store.options, commitlog=(), consumequeue=None, index=None)
        copied = Store.open(target, options)
        moved = with_options(moved, copied)
        applied = carry_out(self.out, target, seal(moved, target.absolute()))
        self.out.answer(applied=applied.changed, journal=applied.journal, output=str(target))
        self.out.given = Given(str(target), tuple(item for item in self.out.given.options if item[0] not in ELSEWHERE))
        return self._conclude(copied, made, plan)

    def _steps(self, phase: str, code: int, made: RecoverPlan | None = None) -> list[Step]:
        typed = tuple(item for item in self.out.arguments if item not in ("--dry-run", "--json"))
        mendable = made.mendable_messages if made is not None else 0
        scene = Scene(phase, self.out.given, code, list(self.out.findings), typed, self.consent.plan_out, mendable,
                      changes=self.out.command)
        return next_steps(scene)


def _losses(made: RecoverPlan, mendable: str = "--mend-bits would restore") -> str:
    """What goes; `mendable` is said of how many of the damaged messages need not."""
    parts = []
    if made.lost_messages:
        parts.append(f"{count(made.lost_messages, 'intact message')} dropped")
    if made.given_up_messages:
        parts.append(f"{count(made.given_up_messages, 'message')} of missing log files given up")
    gone = made.damaged_messages - made.left_messages - made.given_up_messages
    for number, what in ((gone, "lost"), (made.left_messages, "left")):
        if number:
            parts.append(f"{count(number, 'damaged message')} {what}")
    if made.mendable_messages:
        parts[-1] += f" ({mendable} {made.mendable_messages:,})"
    if made.unproven_messages:
        parts.append(f"{count(made.unproven_messages, 'message')} lost that only a queue names")
    text = ", ".join(parts) if parts else "0 messages lost"
    sizes = [item.partition(":")[0] for item in made.assumptions if item.startswith("mappedFileSize")]
    return f"{text}, assumed {', '.join(sizes)}" if sizes else text


def max_loss(text: str | None) -> int | None:
    """`--max-loss N|all`: the number, None for all; a usage error for anything else."""
    if text is None:
        return 0
    if text.strip().lower() == "all":
        return None
    if not text.strip().isdecimal():
        raise UsageRefusal(f"--max-loss {text}: a number, or all", "For instance --max-loss 12, or --max-loss all.")
    return int(text)


