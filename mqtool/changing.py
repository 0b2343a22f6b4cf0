"""The sequence of every changing command: verify, plan, show, ask once, apply, verify again, summarise."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct, structs, to_builtins

from mqtool import exits
from mqtool.next_steps import ELSEWHERE, Given, next_steps, undo_step
from mqtool.options import BROKER, CHANGE, EngineChoice, PartsChoice, StoreChoice, UndoChoice, new_outside_store, option
from mqtool.printer import Printer, Text, make_console
from mqtool.screens.verdict import losses, plan_document, room_text, show_plan, verify_line
from mqtool.text import clean, count
from mqtool.words import N_, _, listed, retold
from recover.broker.settings import BrokerSettings
from recover.change.carry_out import apply_plan, refuse_if_unfinished
from recover.change.copy_store import check_target, copy_store, new_folder, relocated, sources_of, twins_retired
from recover.change.journal import RunInfo
from recover.change.lock import refuse_if_held
from recover.change.model import Plan, save_plan
from recover.change.owner import Owner, acting
from recover.change.places import Places, check_changeable, check_space, room_for
from recover.change.preconditions import refuse_if_changed, seal
from recover.check.log import FILE_ALONE
from recover.check.report import VerifyReport, verify
from recover.findings.code import Refusal, UsageRefusal
from recover.findings.model import HIDDEN, FindingList, Phrase, builtins_of, is_secret
from recover.log.scan import KnownLog, Stamps, stamps_of
from recover.look.live import settled
from recover.look.store import settings_of, settings_of_options
from recover.predict.may_start import may_start
from recover.reading.further import Further
from recover.reading.reading import Reading
from recover.repair.losses import RecoverPlan, assumed_sizes, assumptions_of
from recover.repair.never_worse import may_take_messages, refuse_worse
from recover.store.memo import Stamp, current_stamps
from recover.store.reading import kept_open
from recover.store.store import JOURNAL_DIR, Store, StoreOptions

BESIDE_BROKER = N_(
    "Stop the broker first, or work on a snapshot of its file system. While it runs, use only reading commands, "
    "and --dry-run on this machine without --output and --plan-out, which shows a plan for the store as it is now.")
BITS = (exits.CORRECTED, exits.DERIVED, exits.MESSAGES, exits.UNSUPPORTED)
Asked = Callable[[], tuple[BrokerSettings, list[str]]]
"""Settings of a broker, and assumptions about them: computed once and only on demand, as that may read the log."""
Planner = Callable[[Store, Asked, VerifyReport], RecoverPlan]
"""Plans a change of a verified store under the settings of a broker."""


# --- options -------------------------------------------------------------------------------------


class ChangeChoice(Struct, frozen=True, kw_only=True):
    """The store to change, the engine that scans it, whether to ask, and where to save the plan."""

    store: StoreChoice
    engine: EngineChoice
    consent: UndoChoice
    plan_out: Annotated[Path | None, option(
        "--plan-out", "Save the plan for `mqtool apply`, outside the store.", CHANGE,
        metavar="FILE")] = None

    def check(self, root: Path) -> None:
        """`Refusal`, before any long work, if the plan file could not be written at the end."""
        if self.plan_out is not None:
            new_outside_store(self.plan_out, root, self.store.parts)
        self.consent.check_journal([root, *self.store.parts])

    def save(self, out: Printer, plan: Plan) -> None:
        """Write the plan file, if one was requested, and name the folder that belongs to it."""
        if self.plan_out is not None:
            folder = save_plan(plan, self.plan_out)
            out.answer(plan_file=str(self.plan_out), plan_folder=None if folder is None else str(folder))
            beside = _(", and its large contents are in the folder {folder}: keep both together").format(
                folder=folder) if folder else ""
            out.say(_("the plan is saved in {file}").format(file=self.plan_out) + beside)


class ZoneChoice(Struct, frozen=True, kw_only=True):
    """The broker's time zone, in which index files are named."""

    timezone: Annotated[str | None, option(
        "--timezone", "The broker's time zone, for names of new index files (default: from its files, else local).",
        BROKER, metavar="ZONE")] = None

    @property
    def zone(self) -> datetime.tzinfo | None:
        """The zone; a usage error (16) for an unknown name."""
        if self.timezone is None:
            return None
        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise UsageRefusal(Phrase("--timezone {timezone}: unknown time zone", timezone=self.timezone),
                               "Write it like Asia/Shanghai or UTC.") from error


def parse_loss(text: str | None) -> int | None:
    """`--max-loss N|all`: the number, None for all; a usage error (16) for anything else."""
    if text is None:
        return 0
    if text.strip().lower() == "all":
        return None
    if not text.strip().isdecimal():
        raise UsageRefusal(Phrase("--max-loss {text}: a number, or all", text=text),
                           "For instance --max-loss 12, or --max-loss all.")
    return int(text)


# --- shared with apply, resume and undo ------------------------------------------------------------


_REMEMBERED = ("mapped_file_size", "index_slots", "index_entries", "broker", "settings")


def options_of(plan: Plan, parts: PartsChoice) -> StoreOptions:
    """The store options saved in the plan. The `parts` are those of this command: a plan cannot add any."""
    said = plan.summary.get("store_options") or {}
    return structs.replace(parts.options(), **{name: said[name] for name in _REMEMBERED if name in said})


def given_of(store: str, plan: Plan, options: StoreOptions) -> Given:
    """The store of a plan as its command line named it, with `options_of` the plan."""
    said = plan.summary.get("store_options") or {}
    return Given.of_plan(store, options, str(said.get("conf") or ""), said.get("typed_settings") or ())


def ask(question: str, *, yes: bool) -> None:
    """Ask once. `Refusal` (8) if the answer is no, or without a terminal."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refusal(N_("not a terminal: add --yes to confirm"),
                      "`{typed} --dry-run` shows the plan, `{typed} --yes` carries it out.")
    make_console("auto", stderr=True).print(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refusal(N_("not confirmed; nothing was changed"))


def say_owner(out: Printer, owner: Owner | None) -> None:
    """Say as which user root writes, if not as root."""
    if owner is not None:
        out.say(_("the store belongs to {owner}, and is changed as that user, not as root").format(owner=clean(owner)))


def show_room(out: Printer, root: Path, plan: Plan, journal: Path | None) -> None:
    """Say what a plan needs on each file system, and where its undo data go. `Refusal` (8) with both figures if that is
    more than is free."""
    rooms = room_for(root.absolute(), plan, journal)
    out.answer(room=builtins_of(rooms))
    typed = {str(root.absolute()): f"{root}/{JOURNAL_DIR}", str(root.absolute() / JOURNAL_DIR): f"{root}/{JOURNAL_DIR}"}
    out.show(*(Text(room_text(room, typed.get(room.place, room.place))) for room in rooms))
    check_space(rooms)


def say_undo_data(out: Printer, run: RunInfo | None) -> None:
    """Say where the undo data of a run are, if not in the store."""
    if run is not None and run.undo_data is not None:
        out.say(_("the undo data of this run are in {place}: undo and resume look for them there").format(
            place=run.undo_data))


@contextmanager
def step_by_step(out: Printer, title: str) -> Iterator[dict[str, Any]]:
    """The arguments `progress` and `interrupted` for running a plan; signals wait for the end of a step."""
    out.writing = True
    with out.steps(title) as steps, exits.between_steps() as interrupted:
        yield {"progress": steps, "interrupted": interrupted}


@kept_open()
def conclude(
    out: Printer, store: Store, engine: EngineChoice, plan: Plan, done: str, *, corrected: bool = True,
    known: KnownLog | None = None, after_verify: Callable[[Reading], None] | None = None, undo: bool = True,
    settings: BrokerSettings | None = None,
) -> int:
    """Verify the result, ask whether the broker of `settings` (None: those of the store's options) may start, and end:
    its findings replace the earlier ones. Returns the exit code. `done`: the summary of the change. `known`: an earlier
    scan of the log, reused if the log did not change."""
    # opened again: the lists of files in `store` are from before the change
    opened = Store.open(store.root, store.options)
    try:
        with engine.scan(out, opened, title=N_("checking the result"), known=known) as scan:
            report = verify(opened, scan)
            start = may_start(report, settings or settings_of_options(opened, report.analysis.log))
    except (Refusal, OSError) as error:
        out.findings = FindingList()  # those of before the change
        failed = exits.failure_of(error)
        raise Refusal(Phrase("{done}, but the result could not be checked: {message}", done=done,
                             message=failed.message),
                      Phrase("`mqtool verify {store}` checks it. {remedy}" if failed.remedy else
                             "`mqtool verify {store}` checks it.", remedy=failed.remedy)) from error
    if after_verify is not None:
        after_verify(report.analysis)
    out.findings = report.findings
    document = {**report.json(), "exit_code": report.exit_code}
    out.answer(verify=document)
    code = report.exit_code | (exits.CORRECTED if corrected else 0)
    assumed = [f"{name}={value}" for name, value in plan.summary.get("assumed_settings", {}).items()]
    scene = out.scene("changed", code, changes=plan.command, assumed=[*assumed, *start.assumed],
                      mendable=plan.summary.get("mendable_messages", 0), start=start)
    out.summary(f"{done}. {verify_line(report, code)}", next_steps(scene), undo_step(out.given) if undo else None)
    # a verify afterwards does not count messages that the plan gave up as damage
    return code | (exits.MESSAGES if plan.loss else 0)


def copy_with_progress(
    out: Printer, sources: Sequence[tuple[Path, str]], target: Path, doing: str = N_("copying"),
    without: Collection[Path] = (),
) -> None:
    with out.line() as line, exits.between_steps() as interrupted:
        copy_store(sources, target, interrupted=interrupted, without=without,
                   progress=lambda path: line.show(f"{_(doing)} {path}"))


# --- the sequence --------------------------------------------------------------------------------


class Planned(Struct, frozen=True):
    """A plan, and what it was made from."""

    plan: Plan


P = TypeVar("P", bound=Planned)


class Changing(Struct, Generic[P]):
    """One run of a changing command, in the order that all of them keep: plan, show, say who writes and what room that
    needs, ask once, apply, conclude. What is changed is said by a subclass: a store, a copy of it, the folder of a
    client."""

    out: Printer

    @property
    def root(self) -> Path:
        raise NotImplementedError

    @property
    def consent(self) -> UndoChoice:
        raise NotImplementedError

    @property
    def copy(self) -> Path | None:
        """The folder of the copy that is changed in place of `root`."""
        return None

    @property
    def folders(self) -> tuple[str, ...]:
        """Absolute paths of the parts that the user named; a store beside a broker is planned for elsewhere."""
        return ()

    @property
    def question(self) -> str:
        return N_("Make a recovered copy in {place}?") if self.copy else N_("Change {place} as shown?")

    def planned(self) -> P:
        """Check what can be checked before any long work, and plan; the plan is in the document."""
        raise NotImplementedError

    def nothing_to_do(self, planned: P) -> int:
        raise NotImplementedError

    def only_planned(self, planned: P) -> int:
        raise NotImplementedError

    @contextmanager
    def tree(self, planned: P) -> Iterator[tuple[Path, P]]:
        """Where the plan is carried out, and the plan for that place."""
        yield self.root, planned

    def concluded(self, planned: P) -> int:
        raise NotImplementedError

    def run(self) -> int:
        """Plan, then continue as far as the user wants; return the exit code."""
        out, consent, copy = self.out, self.consent, self.copy
        out.answer(applied=False, journal=None)  # also where it is refused before there is a plan
        planned = self.planned()
        if not planned.plan.steps and copy is None:
            return self.nothing_to_do(planned)
        show_plan(out, planned.plan)
        if copy is None:
            self._show_place(planned.plan)
        if consent.dry_run:
            return self.only_planned(planned)
        ask(_(self.question).format(place=clean(copy or self.root)), yes=consent.yes)
        with self.tree(planned) as (root, planned), step_by_step(out, "applying") as how:
            applied = apply_plan(root, planned.plan, parts=self.folders if copy is None else (),
                                 as_root=consent.as_root and copy is None, journal=consent.journal, **how)
        say_undo_data(out, applied)
        out.answer(applied=applied is not None, journal=applied and applied.journal)
        return self.concluded(planned)

    def _show_place(self, plan: Plan) -> None:
        """Say who would write there, and what room that needs. `Refusal` (8) if it would fail now; a dry run only says
        so."""
        out, consent, root, folders = self.out, self.consent, self.root, self.folders
        Places(root, folders).check_plan(plan)
        try:
            beside = [] if consent.journal is None else [consent.journal]
            with acting(root, folders, as_root=consent.as_root, beside=beside) as owner:
                say_owner(out, owner)
                check_changeable(root.absolute(), (), beside=consent.journal)
                show_room(out, root, plan, consent.journal)
        except Refusal as refusal:
            if not consent.dry_run:
                raise
            out.say(_("this plan would be refused now: {reason}").format(
                reason=f"{retold(refusal.message)}. {retold(refusal.remedy)}"))


class _OfStore(Planned, frozen=True):
    """The plan of a store: the store, the verify before it, and the `stamps` of the log's files then."""

    store: Store
    made: RecoverPlan
    asked: Asked
    stamps: Stamps


class Change(Changing[_OfStore]):
    """One run of recover, truncate or a rebuild on one store, or on a copy in `output`.

    The plan is refused if brokers alone would deliver more messages, up to `max_loss` (None: any number).
    `after_verify` is called with the settings of the plan and the analysis of the last verify. `in_place`: the plan
    does not move records, so displaced ones count as damage. `further`: logs that may hold what the store's lost.
    """

    choice: ChangeChoice
    planner: Planner
    output: Path | None = None
    include_deleted: bool = False
    max_loss: int | None = 0
    after_verify: Callable[[BrokerSettings, Reading], None] | None = None
    in_place: bool = False
    further: Further = Further()

    @property
    def root(self) -> Path:
        return self.choice.store.root

    @property
    def consent(self) -> UndoChoice:
        return self.choice.consent

    @property
    def copy(self) -> Path | None:
        return self.output

    @property
    def folders(self) -> tuple[str, ...]:
        return self.choice.store.options().folders

    def _opened(self) -> Store:
        """The store to plan for: as it is now if a broker writes to it. `Refusal` if nothing that a plan needs can be
        done here, before any long work."""
        choice, output = self.choice, self.output
        root, store = choice.store.root, choice.store.open()
        choice.check(root)
        if output is not None:
            if choice.consent.journal is not None:
                raise UsageRefusal("--journal is for a change in place, --output makes a copy",
                                   "Leave one of them out.")
            check_target(sources_of(store), output)
        in_place, dry = output is None, choice.consent.dry_run
        beside_broker = in_place and dry and choice.plan_out is None and not choice.engine.on_spark
        refuse_if_held(root, BESIDE_BROKER, broker=not beside_broker)
        if in_place and not dry:
            refuse_if_unfinished(root, choice.store.parts)
        return settled(store) if beside_broker else store

    def planned(self) -> _OfStore:
        """Verify the store, and plan; what is planned is in the document."""
        store = self._opened()
        seen = current_stamps(store) if store.settled_at is None else None
        stamps = stamps_of(store.commitlog)
        with kept_open():
            try:
                made, asked = self._made(store)
            except (Refusal, OSError):
                # what another run changes meanwhile can look like any damage
                refuse_if_changed(self.choice.store.root, seen or {})
                raise
            return _OfStore(self._stated(store, made, seen), store, made, asked, stamps)

    def nothing_to_do(self, planned: _OfStore) -> int:
        out, made = self.out, planned.made
        code, document = made.before.exit_code, made.before.json()
        out.answer(verify={**document, "exit_code": code})
        left = f" ({losses(made)})" if made.left_messages else ""
        wrong = sum(item.severity != "info" for item in out.findings)
        rest = [count(wrong, "problem remains", "problems remain")] if wrong else []
        out.summary(f"{listed([_('Nothing to repair') + left, *rest])}. {verify_line(made.before, code)}",
                    next_steps(out.scene("nothing", code, plan=self.choice.plan_out, changes=out.command,
                                         start=may_start(made.before, planned.asked()[0]))))
        return code

    def only_planned(self, planned: _OfStore) -> int:
        out, made = self.out, planned.made
        code = made.before.exit_code
        out.summary(_("Dry run, nothing was written: {steps} planned, {losses}").format(
            steps=count(len(planned.plan.steps), "step"), losses=losses(made)),
                    next_steps(out.scene("planned", code, plan=self.choice.plan_out, changes=out.command,
                                         mendable=made.mendable_messages)))
        return code

    @contextmanager
    def tree(self, planned: _OfStore) -> Iterator[tuple[Path, _OfStore]]:
        if self.output is None:
            yield planned.store.root, planned
            return
        with new_folder(self.output) as made:
            store, plan = self._copied(planned.store, planned.plan, made.path)
            made.stays = True  # for resume
            yield store.root, structs.replace(planned, store=store, plan=plan)

    def concluded(self, planned: _OfStore) -> int:
        """Verify the result."""
        plan, settings = planned.plan, planned.asked()[0]
        done = _("{steps} done, {losses}").format(
            steps=count(len(plan.steps), "step"),
            losses=losses(planned.made, N_("undo and --mend-bits would restore")))
        return conclude(
            self.out, planned.store, self.choice.engine, plan, done, corrected=bool(plan.steps),
            undo=self.output is None, settings=settings,
            known=KnownLog(planned.made.before.analysis.log, planned.stamps),
            after_verify=None if self.after_verify is None else partial(self.after_verify, settings),
        )

    def _made(self, store: Store) -> tuple[RecoverPlan, Asked]:
        """Verify once and plan from that; return the plan, and the settings that a planner may ask for. A refusal
        carries the bits of the findings; a usage error carries none."""
        out, planner = self.out, self.planner
        with self.choice.engine.scan(out, store, include_deleted=self.include_deleted, rebuilds=True) as scan:
            before = verify(store, structs.replace(scan, in_place=self.in_place, further=self.further))
            out.found(before.findings)
            asked: Asked = cache(partial(settings_of, store, *self.choice.store.broker.said, log=before.analysis.log))
            try:
                made = planner(store, asked, before)
            except UsageRefusal:
                out.findings = FindingList()
                raise
            if not may_take_messages(store, made):
                return made, asked

            def again(planned: Store) -> RecoverPlan:
                left = planner(planned, asked, verify(planned, structs.replace(scan, known=None, memory=scan.share)))
                worse = may_take_messages(planned, left)
                return refuse_worse(planned, left, asked()[0], self.max_loss) if worse else left

            return refuse_worse(store, made, asked()[0], self.max_loss, out.findings, again), asked

    def _stated(self, store: Store, made: RecoverPlan, seen: dict[str, Stamp] | None) -> Plan:
        """Return the plan with its basis, in the document and in the file of --plan-out; sealed to the files in `seen`,
        unless a broker writes to them."""
        out, plan = self.out, made.plan
        if seen is None:
            steps = tuple(step for step in plan.steps if step.file != store.relative(store.abort_path))
            plan = structs.replace(plan, steps=steps)
            out.say(_("a broker runs on this store: its abort file stays, and nothing is changed; the plan is for the "
                      "store as it was when the command began"))
        sizes = assumed_sizes(store, plan)
        made.assumptions += assumptions_of(sizes)
        made.assumed_settings |= sizes
        made.assumptions += [
            Phrase("the records of {file} belong to this log, for which there is no other evidence", file=item.file)
            for item in made.before.findings if item.code == FILE_ALONE]
        plan = structs.replace(plan, summary={
            **plan.summary, "assumptions": made.assumptions, "assumed_settings": made.assumed_settings,
            "mendable_messages": made.mendable_messages, "store_options": self._remembered(store.options),
        })
        if seen is not None:
            plan = seal(plan, store.root.absolute(), seen=seen)
        out.answer(
            valid_to=made.valid_to, plan=plan_document(plan), applied=False, journal=None,
            lost_messages=made.lost_messages, damaged_messages=made.damaged_messages,
            unproven_messages=made.unproven_messages, mendable_messages=made.mendable_messages,
            left_messages=made.left_messages, given_up_messages=made.given_up_messages, bridged=made.bridged,
            verify=None, assumptions=made.assumptions,
            abort_stays_for=made.abort_stays_for if store.has_abort else [],
        )
        if placed := plan.summary.get("placed"):
            out.answer(placed=placed)
        if made.abort_stays_for and store.has_abort:
            parts = ", ".join(made.abort_stays_for)
            out.say(_("abort stays: the broker's own recovery must still process {parts}").format(parts=parts))
        self.choice.save(out, plan)
        return plan

    def _remembered(self, options: StoreOptions) -> dict[str, Any]:
        """The options that apply and resume use again, without secrets."""
        said: dict[str, Any] = {name: getattr(options, name) for name in _REMEMBERED}
        said["settings"] = {key: HIDDEN if is_secret(key) else value for key, value in options.settings.items()}
        sets = self.choice.store.broker.settings or ()
        said["conf"] = os.path.abspath(options.conf) if options.conf else ""
        said["typed_settings"] = [text for text in sets if not is_secret(text.partition("=")[0])]
        if self.output is None:
            # no command writes there because a plan says so: journal names them to verify
            said |= to_builtins({name: getattr(options, name) for name in ELSEWHERE},
                                enc_hook=lambda path: os.path.abspath(str(path)))
        return said

    def _copied(self, store: Store, plan: Plan, target: Path) -> tuple[Store, Plan]:
        """Make the copy, with all parts in one place; return it and the plan for it."""
        out = self.out
        gone = twins_retired(plan, store)
        copy_with_progress(out, sources_of(store), target, without=gone)
        copied = Store.open(target, structs.replace(store.options, commitlog=(), consumequeue=None, index=None))
        out.given = out.given.of_copy(target, copy=True)
        out.answer(output=str(target))
        return copied, seal(relocated(plan, store, gone), target.absolute())

