"""`mqtool recover`, `truncate` and the three rebuilds: each makes a plan, and `mqtool.changing` does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct, structs

from mqtool import exits
from mqtool.changing import (
    BESIDE_BROKER,
    BITS,
    Asked,
    Change,
    ChangeChoice,
    Changing,
    Planned,
    ZoneChoice,
    ask,
    conclude,
    copy_with_progress,
    parse_loss,
)
from mqtool.commands.predict import LossChoice
from mqtool.next_steps import Given, Step, client_step, next_steps, undo_step
from mqtool.options import UndoChoice, command, flag, option, refuse_first
from mqtool.printer import Printer, facts, outside_store
from mqtool.screens.verdict import delivers_line, plan_document
from mqtool.text import clean, count, human_size
from mqtool.words import N_, _, retold
from recover.broker.settings import BrokerSettings
from recover.change.carry_out import refuse_if_unfinished
from recover.change.copy_store import check_target, sources_of
from recover.change.lock import refuse_if_held
from recover.change.model import Plan
from recover.change.preconditions import seal
from recover.check.report import VerifyReport
from recover.findings.code import UsageRefusal
from recover.findings.model import Phrase, builtins_of
from recover.log.scan import LocalEngine
from recover.predict.delivers import keeps_for_later
from recover.predict.groups import groups_of, has_offsets
from recover.predict.start import Starts
from recover.reading.facts import ScanOptions
from recover.reading.further import Further, is_of_log
from recover.reading.reading import Reading
from recover.repair.config_repair import offsets_of, plan_client_offsets
from recover.repair.losses import RecoverPlan
from recover.repair.rebuild import RebuildOptions, plan_rebuild, write_rebuild
from recover.repair.recover import RecoverOptions, plan_recover, plan_truncate
from recover.store.columns import DEFAULT_MEMORY
from recover.store.config_files import ClientOffsets, client_folder
from recover.store.source import is_remote, remote_root
from recover.store.store import Store, StoreOptions

if TYPE_CHECKING:
    from recover.export.sources import Scanned, Source

_HOW, _CUT, _WHAT = "How to recover", "Where to cut", "What and where"


# --- recover -------------------------------------------------------------------------------------


class RecoverChoice(Struct, frozen=True, kw_only=True):
    """How to recover."""

    policy: Annotated[Literal["keep", "broker"], option(
        "--policy", "keep: drop no intact message, bridge damage. broker: cut where that broker would.",
        _HOW)] = "keep"
    mode: Annotated[Literal["auto", "normal", "abnormal"], option(
        "--mode", "Which recovery a broker would run (auto: by the abort file).", _HOW)] = "auto"
    lost: Annotated[Literal["repeat", "visible", "gap"], option(
        "--lost", "What consumers get at a lost queue position: the previous message, a visible marker, or nothing.",
        _HOW)] = "repeat"
    no_bridge: Annotated[bool, flag("--no-bridge", "Refuse rather than bridge damage.", _HOW)] = False
    max_loss: Annotated[str | None, option(
        "--max-loss", "How many messages may be given up: intact ones with --policy broker, and those of log files "
        "that are missing, foreign or mostly gone (default: 0).", _HOW, metavar="N|all")] = None
    mend_bits: Annotated[bool, flag(
        "--mend-bits", "Flip bits back: the one bit of a damaged message that makes every checksum right, and the "
        "one of a tag or key that makes it match its queue entries.", _HOW)] = False
    clamp_offsets: Annotated[bool, flag(
        "--clamp-offsets", "Lower consumer offsets that are after the end of their queue.", _HOW)] = False
    offsets_from: Annotated[Path | None, option(
        "--offsets-from", "Raise committed offsets to those of another consumerOffset.json, as after a failover: never "
        "back, never past the end of a queue.", _HOW, metavar="FILE")] = None
    sources: Annotated[list[str] | None, option(
        "--from", "Take what is damaged or missing from here, where it is the same log: a replica's or backup's store, "
        "a folder of log files, a log file, an image of a disk; repeat for several. It is only read.", _HOW,
        metavar="SOURCE")] = None
    extend: Annotated[bool, flag(
        "--extend", "Also take what continues the log past its end.", _HOW)] = False
    unanchored: Annotated[bool, flag(
        "--from-unanchored", "Also where the records around the damage differ, or the source has none.", _HOW)] = False
    include_deleted: Annotated[bool, flag(
        "--include-deleted", "Also rebuild queues of deleted topics.", _HOW)] = False
    output: Annotated[Path | None, option(
        "--output", "Make a recovered copy here (a new or empty folder); the store is not touched.", _HOW,
        metavar="DIR")] = None


@command(
    examples=[
        ("/data/store --dry-run", "what would be done, and what is lost"),
        ("/data/store", "show that, ask once, do it, verify the result"),
        ("/data/store --dry-run --loss-out lost.csv", "also list each lost message with all its legible fields"),
        ("/data/store --yes --json", "unattended"),
        ("/data/store --mend-bits", "also restore messages that one flipped bit explains"),
        ("/data/store --offsets-from /mnt/slave/config/consumerOffset.json",
         "also raise offsets that a failover set back"),
        ("/data/store --from /mnt/slave/store --dry-run", "what a replica has of the damaged and missing messages"),
        ("/data/store --output /backup/recovered", "a recovered copy; the store is not touched"),
        ("--from /backup/disk.img --output /data/store", "a store of what an image of a lost disk holds"),
        ("/data/store --policy broker --broker 5.3.3 --max-loss all", "cut as that broker would"),
    ],
    bits=BITS,
)
def recover(
    out: Printer, change: ChangeChoice, zone: ZoneChoice, how: RecoverChoice, loss: LossChoice,
) -> int:
    """Repair a store so that every broker version starts on it without losing intact messages.

    Damage in mid-log is bridged: the bytes become records that brokers pass over, so that everything after is kept
    and no queue offset moves. Queues, index, checkpoint and config files are repaired where they are wrong, and only
    there. Everything replaced is kept in STORE/.mqtool/, and `mqtool undo` restores it byte for byte.
    """
    folder = client_folder(change.store.root) if change.store.store and not is_remote(change.store.store) else None
    if folder is not None:
        _check_client(folder, change, how, loss)
        return _OfClient(out, change.consent, folder).run()
    _check(how, loss, dry_run=change.consent.dry_run)
    output = how.output
    if not change.store.store and output is not None:
        return _carved(out, change, how, output)
    loss.check(change.store.root, change.store.parts)
    if is_remote(change.store.store) and output is not None:
        change, output = _fetched(out, change, output), None
    options = RecoverOptions(
        mode=None if how.mode == "auto" else how.mode, policy=how.policy, lost=how.lost, bridge=not how.no_bridge,
        max_loss=parse_loss(how.max_loss), clamp_offsets=how.clamp_offsets, mend_bits=how.mend_bits, zone=zone.zone,
        offsets_from=None if how.offsets_from is None else offsets_of(how.offsets_from),
    )
    sources = [*_scanned(out, change, how)]
    further = Further(tuple(scanned.log for scanned in sources), how.extend, how.unanchored)
    recovery = _Recovery(out, how, loss, options)
    if told := _size_of(change, sources):
        recovery.size_of = told.name
        change = structs.replace(change, store=structs.replace(change.store, mapped_file_size=told.told_file_size))
    return Change(out, change, recovery.plan, output, how.include_deleted, options.max_loss, recovery.show_start,
                  in_place=options.policy == "broker", further=further).run()


def _check_client(folder: Path, change: ChangeChoice, how: RecoverChoice, loss: LossChoice) -> None:
    """A usage error (16) for an option that means nothing for a broadcast client."""
    if change.plan_out is not None or loss.loss_out is not None or how != RecoverChoice():
        raise UsageRefusal(Phrase("{folder} is the folder of a broadcast client, not a store", folder=folder),
                           "Only --dry-run, --yes, --journal and --as-root are for it.")


class _OfClient(Changing[Planned]):
    """The repair of offsets.json of a broadcast client, in the folder of its group."""

    given: UndoChoice
    folder: Path

    @property
    def root(self) -> Path:
        return self.folder

    @property
    def consent(self) -> UndoChoice:
        return self.given

    @property
    def question(self) -> str:
        return N_("Change {place} as shown? The client must be stopped")

    def planned(self) -> Planned:
        out, folder = self.out, self.folder
        out.store, out.given = str(folder), Given(str(folder))
        self.consent.check_journal([folder])
        if not self.consent.dry_run:
            refuse_if_unfinished(folder)
        plan = plan_client_offsets(folder)
        plan = seal(plan, folder.absolute()) if plan.steps else plan
        out.answer(mode=None, policy=None, start_file=None, plan=plan_document(plan), config=plan.summary["config"],
                   verify=None)
        return Planned(plan)

    def nothing_to_do(self, planned: Planned) -> int:
        self.out.summary(_("Nothing to repair: the offsets of this broadcast client are whole"),
                         [client_step(self.folder)])
        return exits.CLEAN

    def only_planned(self, planned: Planned) -> int:
        out = self.out
        out.summary(
            _("Dry run, nothing was written: {steps} planned").format(steps=count(len(planned.plan.steps), "step")),
            [Step(out.given.line("recover"), "carries it out, once the client is stopped")])
        return exits.CLEAN if ClientOffsets.of(self.folder).is_sound else exits.DERIVED

    def concluded(self, planned: Planned) -> int:
        out, steps = self.out, count(len(planned.plan.steps), "step")
        whole = ClientOffsets.of(self.folder).is_sound
        out.summary(_("{steps} done: the client begins with the offsets of its file").format(steps=steps) if whole else
                    _("{steps} done: the client begins where its consumeFromWhere says").format(steps=steps),
                    [client_step(self.folder)] if whole else (), undo_step(out.given))
        return exits.CORRECTED


def _check(how: RecoverChoice, loss: LossChoice, *, dry_run: bool) -> None:
    """Usage errors (16) for options that contradict others."""
    refuse_first((
        (loss.loss_out is not None and not dry_run, N_("--loss-out without --dry-run"),
         N_("List what is lost with --dry-run first, then recover.")),
        (how.mend_bits and how.policy == "broker", N_("--mend-bits with --policy broker"),
         N_("A broker repairs nothing: leave out one of them.")),
        (not how.sources and how.extend, N_("--extend without --from"),
         N_("Name the source that has more: --from SOURCE.")),
        (not how.sources and how.unanchored, N_("--from-unanchored without --from"),
         N_("Name a source: --from SOURCE.")),
        (how.sources and how.policy == "broker", N_("--from with --policy broker"),
         N_("A broker takes no message from elsewhere: leave out one of them.")),
    ))


class _Recovery(Struct):
    """The plan of recover, and what the next start does before and after it: of groups, and by the broker's services
    (`_waiting`). `size_of`: the source of --from that tells how long log files are, if the store does not."""

    out: Printer
    how: RecoverChoice
    loss: LossChoice
    options: RecoverOptions
    size_of: str = ""
    delivers_before: list[dict[str, Any]] = []

    def plan(self, opened: Store, asked: Asked, before: VerifyReport) -> RecoverPlan:
        """Plan under the settings of the broker; what the start does as the store is, is in the document."""
        out, policy = self.out, self.how.policy
        settings, assumed = asked()
        made = plan_recover(opened, structs.replace(self.options, settings=settings), before)
        prediction = made.prediction
        rows, self.delivers_before = _waiting(before.analysis, settings)
        now = {"groups": rows, "delivers": self.delivers_before}
        out.answer(
            policy=policy, mode=prediction.mode if prediction else self.how.mode,
            start_file=prediction.start_file if prediction else None, **now,
            # a plan changes that, and the verify after it tells how
            **{f"{name}_after": None if made.plan.steps else value for name, value in now.items()},
        )
        made.assumptions += assumed
        if self.size_of:
            size = opened.commitlog.file_size
            made.assumed_settings["mappedFileSizeCommitLog"] = size
            made.assumptions.append(Phrase(
                "{setting}: the log files of {source} have that length, and nothing in this store shows it",
                setting=f"mappedFileSizeCommitLog={size}", source=self.size_of))
        if beyond := before.analysis.facts.search.beyond:
            out.say(_("{count} of --from after the end of the log, which nothing here names, are left out: --extend "
                      "takes them if they continue it").format(count=count(beyond, "message")))
        cut_at = prediction.cut_at if prediction and policy == "broker" else None
        self.loss.write(out, before.analysis, cut_at)
        return made

    def show_start(self, settings: BrokerSettings, analysis: Reading) -> None:
        """Say what the start does after the change."""
        out = self.out
        rows, delivers = _waiting(analysis, settings)
        out.answer(groups_after=rows, delivers_after=delivers)
        skips, again = (sum(row[name] or 0 for row in rows) for name in ("skips", "again"))
        if skips or again:
            out.say(_("consumer groups will skip {messages} and get {again:,} again: see mqtool groups").format(
                messages=count(skips, "message"), again=again))
        before, after = (delivers_line(some) for some in (self.delivers_before, delivers))
        if after:
            out.say(_("the start will {what}; before the repair it would {before}").format(what=after, before=before)
                    if before not in ("", after) else _("the start will {what}").format(what=after))


def _size_of(change: ChangeChoice, sources: Sequence[Scanned]) -> Source | None:
    """Return the source that tells how long log files are, if those of the store do not: one of the same log, whose
    length they fit, while none tells another."""
    telling = [each for each in sources if each.source.told_file_size]
    store = change.store.open() if telling else None
    if store is None or store.log_file_size_is_told:
        return None
    told = {each.source.told_file_size: each.source for each in telling if is_of_log(each.log, store.commitlog)}
    fitting = [source for size, source in told.items() if all(
        file.length <= size and file.file_from_offset % size == 0 for file in store.commitlog.files)]
    return fitting[0] if len(told) == len(fitting) == 1 else None


def _scanned(out: Printer, change: ChangeChoice, how: RecoverChoice) -> Iterator[Scanned]:
    """Yield each log of --from, scanned."""
    from recover.export.sources import open_sources, scan_source

    options = StoreOptions(mapped_file_size=change.store.mapped_file_size)
    for place in how.sources or ():
        path = remote_root(place) if is_remote(place) else Path(place)
        if change.store.store and not is_remote(place) and path.resolve() == change.store.root.resolve():
            raise UsageRefusal(Phrase("--from {place}: this is the store itself", place=place),
                               "Name a replica, a backup or an image.")
        for source in open_sources([path], options):
            with out.progress("scanning", source.size) as progress:
                scanned = scan_source(source, LocalEngine(change.engine.thread_count),
                                      memory=change.engine.memory or DEFAULT_MEMORY, progress=progress)
            out.say(*(clean(line) for line in scanned.unread))
            yield scanned


def _carved(out: Printer, change: ChangeChoice, how: RecoverChoice, target: Path) -> int:
    """Make a store of what the sources of --from hold, without any other."""
    from recover.export.joined import joined
    from recover.export.select import Wanted
    from recover.repair.new_store import write_store

    outside_store(target, [Path(place) for place in how.sources or () if not is_remote(place)])
    pieces = [*_scanned(out, change, how)]
    scanned, is_guess, left = joined(
        pieces, change.store.mapped_file_size or 0, memory=change.engine.memory or DEFAULT_MEMORY)
    found, size = scanned.log.tally.messages, scanned.log.queue.file_size
    assumed = [Phrase("--mapped-file-size {size}: a log file has that length", size=size)] if is_guess else []
    out.answer(mode=None, policy=None, start_file=None, plan=None, applied=False, journal=None, output=str(target),
               messages=found, left_out=left, assumptions=assumed, verify=None)
    out.say(*(_("assumed: {text}").format(text=retold(line)) for line in assumed))
    if left:
        out.say(_("{records} claim places that others claim, too, and are left out").format(
            records=count(left, "record")))
    if change.consent.dry_run:
        out.summary(_("Dry run, nothing was written: {found} would be put together").format(
            found=count(found, "message")))
        return exits.CLEAN
    ask(_("Make a store of {messages} in {place}?").format(messages=count(found, "message"), place=clean(target)),
        yes=change.consent.yes)
    with out.progress("writing", scanned.source.size) as progress, exits.between_steps() as interrupted:
        made = write_store(
            scanned, Wanted(include=frozenset({"system"})), target, ScanOptions(engine=LocalEngine(
                change.engine.thread_count)), change.store.broker.given(), note=out.say, progress=progress,
            interrupted=interrupted)
    out.given = Given(str(target), out.given.options, copy=True)
    out.answer(applied=True, bridged_positions=made.bridged)
    store = Store.open(target, structs.replace(change.store.options(), mapped_file_size=size))
    code = conclude(
        out, store, change.engine, Plan("recover", (), summary={"assumed_settings": made.assumed_settings}),
        _("{found} put together in {place}").format(found=count(found, "message"), place=clean(target)), undo=False)
    return code | (exits.MESSAGES if made.bridged or scanned.log.damaged or left else 0)


def _fetched(out: Printer, change: ChangeChoice, target: Path) -> ChangeChoice:
    """Fetch a store on a server to this disk; the copy is the store from here on."""
    if change.consent.dry_run:
        raise UsageRefusal("--dry-run with a store on a server", "`mqtool verify` and `mqtool predict` read it where "
                           "it is. Without --dry-run it is fetched; then the plan is shown, and you are asked.")
    change.check(target)  # before the fetch, which may take hours
    copy_with_progress(out, [(change.store.root, ".")], target, "fetching")
    out.say(_("fetched into {place}; this copy is the store from here on").format(place=clean(target)))
    out.given = Given(str(target), out.given.options, copy=True)
    out.answer(output=str(target))
    return structs.replace(change, store=structs.replace(change.store, store=str(target)))


def _waiting(analysis: Reading, settings: BrokerSettings) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of groups, and of what the services of a broker deliver at a start now."""
    offsets = has_offsets(analysis.store)
    if not offsets and not keeps_for_later(analysis.log):
        return [], []
    found = groups_of(analysis, settings, delivers_at=Starts.on(analysis).now)
    return builtins_of(found.rows) if offsets else [], found.prediction.json()["delivers"]


# --- truncate ------------------------------------------------------------------------------------


@command(
    examples=[
        ("/data/store --to 1305932 --dry-run", "what a cut there would cost"),
        ("/data/store --to 1305932 --max-loss 12", "cut, if at most 12 intact messages are lost"),
        ("/data/store --to 1305932 --max-loss all --yes", "cut without asking"),
    ],
    bits=BITS,
)
def truncate(
    out: Printer, change: ChangeChoice, zone: ZoneChoice,
    to: Annotated[int, option(
        "--to", "Log offset; a record must begin or end there.", _CUT, metavar="OFFSET", min=0)],
    loss: Annotated[str | None, option(
        "--max-loss", "How many messages may be lost by the cut and with missing log files (default: 0).", _CUT,
        metavar="N|all")] = None,
) -> int:
    """Cut the log at a record boundary, and with it everything derived from it.

    Between two boundaries the command refuses (16) and names both. The cut bytes are zeroed, so that no broker finds
    them again, and kept in the journal; files keep their length.
    """
    options = RecoverOptions(max_loss=parse_loss(loss), zone=zone.zone, command="truncate")
    out.answer(mode=None, policy=None, start_file=None, to=to)
    return Change(out, change, lambda opened, _, before: plan_truncate(opened, to, options, before),
                  max_loss=options.max_loss, in_place=True).run()


# --- the rebuilds --------------------------------------------------------------------------------


class RebuildChoice(ZoneChoice, frozen=True, kw_only=True):
    """Output folder, and whether deleted topics count."""

    output: Annotated[str | None, option(
        "--output", "Write fresh files here (a new or empty folder, or an empty place on s3://); the store is not "
        "touched.", _WHAT, metavar="DIR")] = None
    include_deleted: Annotated[bool, flag(
        "--include-deleted", "Also rebuild queues of deleted topics.", _WHAT)] = False
    max_loss: Annotated[str | None, option(
        "--max-loss", "How many messages may be lost with missing log files, or no longer be delivered that a broker "
        "delivers from the store as it is (default: 0).", _WHAT, metavar="N|all")] = None


@command(
    examples=[
        ("/data/store --dry-run", "what is wrong and would be rebuilt"),
        ("/data/store", "repair queues, index and checkpoint in place"),
        ("/data/store --output /tmp/derived", "all of them from scratch, in a folder of their own"),
    ],
    bits=BITS,
)
def rebuild(out: Printer, change: ChangeChoice, what: RebuildChoice) -> int:
    """Rebuild consume queues, index and checkpoint from the log, in one scan.

    In place, only what is wrong is changed; entries of expired messages stay, and so do sound index files. The log is
    not touched: damage in it needs `mqtool recover`.
    """
    parts = ("consumequeue", "index", "checkpoint")
    return _rebuild(out, change, what, RebuildOptions(parts=parts))


@command(
    examples=[
        ("/data/store --dry-run", "which queues are wrong"),
        ("/data/store --topic Orders", "the queues of one topic, in place"),
        ("/data/store --topic Orders --queue 3", "one queue, in place"),
        ("/data/store --output /tmp/derived", "all queues from scratch, in a folder of their own"),
    ],
    bits=BITS,
)
def rebuild_consumequeue(
    out: Printer, change: ChangeChoice, what: RebuildChoice,
    topic: Annotated[str | None, option("--topic", "Only the queues of this topic.", _WHAT, metavar="T")] = None,
    queue: Annotated[int | None, option("--queue", "Only this queue of the topic.", _WHAT, metavar="N", min=0)] = None,
) -> int:
    """Rebuild consume queues from the log: all, those of a topic, or one; LMQ queues and consumequeue_ext included.

    In place only cells that are wrong or missing are written; no queue loses its highest offset.
    """
    if queue is not None and topic is None:
        raise UsageRefusal("--queue needs --topic", "Each topic counts its own queues.")
    options = RebuildOptions(parts=("consumequeue",), topic=topic, queue=queue)
    return _rebuild(out, change, what, options)


@command(
    examples=[
        ("/data/store", "repair wrong or missing index files in place"),
        ("/data/store --output /tmp/derived --timezone Asia/Shanghai",
         "all files from scratch, named as a broker in that zone would"),
    ],
    bits=BITS,
)
def rebuild_index(out: Printer, change: ChangeChoice, what: RebuildChoice) -> int:
    """Rebuild index files from the log, byte for byte as a broker writes them.

    In place, sound files stay as they are, and others keep their name and start offset.
    """
    return _rebuild(out, change, what, RebuildOptions(parts=("index",)))


def _rebuild(out: Printer, change: ChangeChoice, what: RebuildChoice, options: RebuildOptions) -> int:
    options = structs.replace(options, zone=what.zone, command=out.command, max_loss=parse_loss(what.max_loss))
    if what.output is None:
        return Change(out, change, lambda store, _, before: plan_rebuild(store, options, before), None,
                      what.include_deleted, options.max_loss, in_place=True).run()
    store, names = change.store.open(), ", ".join(sorted(options.parts))
    refuse_if_held(store.root, BESIDE_BROKER)
    output = remote_root(what.output) if is_remote(what.output) else Path(what.output)
    check_target(sources_of(store), output)
    out.answer(plan=None, applied=False, journal=None, output=what.output, files=[], bytes=0, verify=None)
    if change.consent.dry_run:
        out.summary(_("Dry run, nothing was written: {parts} would be built in {place}").format(
            parts=names, place=what.output),
                    next_steps(out.scene("planned")))
        return exits.CLEAN
    place = what.output
    with change.engine.scan(out, store, include_deleted=what.include_deleted, rebuilds=True) as scan, \
            exits.between_steps() as interrupted:
        done = write_rebuild(store, structs.replace(options, scan=scan), output, interrupted=interrupted)
    out.found(done.findings)
    out.answer(applied=True, files=list(done.files), bytes=done.size,
               verify={**done.before.json(), "exit_code": done.findings.bits})
    out.show(facts("", [("built", names), ("from", change.store.store), ("in", place)]))
    bits = done.findings.bits
    out.summary(_("{files} written to {place}, {size}, read back and compared with the log").format(
        files=count(len(done.files), "file"), place=place, size=human_size(done.size)),
        next_steps(out.scene("checked", bits)) if bits else ())
    return bits | (exits.CORRECTED if done.corrected else 0)
