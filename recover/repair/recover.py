"""recover: plan the repair of a store, config files included, from its analysis. Plans only; changes nothing."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, field

from formats.config.json import detect_style, dumps
from formats.config.tables import BACKUP_SUFFIX
from recover.broker.recovery import RECOVERED_BY_LAST_FILES, Mode
from recover.broker.settings import BrokerSettings
from recover.change.model import Plan, Retire, RetireFolder, Step, WriteFile, replacing
from recover.change.places import can_be_retired, foreign_folders
from recover.check.config import MARK, TOPICS_FILE, AboveMax, ConfigReport, Members, guess_topics
from recover.check.log import damaged_messages
from recover.check.parts import MOSTLY_GONE
from recover.check.report import VerifyReport, verify
from recover.derived.checkpoint import CheckpointReport, check_checkpoint
from recover.derived.index_check import IndexReport
from recover.findings.code import UNSUPPORTED, Refusal
from recover.findings.model import count, few
from recover.log.scan import LogView
from recover.predict.prediction import Prediction
from recover.predict.start import limited_search_cuts, predict
from recover.reading.doubts import ORDER, resolved
from recover.reading.facts import ScanOptions
from recover.reading.reading import Reading
from recover.repair.log_changes import LogChanges, Lost, cut_log, keep_everything
from recover.repair.losses import (
    RecoverPlan,
    check_plannable,
    loss_of_altered,
    loss_of_damage,
    loss_of_rows,
    loss_of_unproven,
    refuse_missing_files,
    refuse_unread,
)
from recover.repair.rebuild import PARTS, derived_steps
from recover.store.config_files import ConfigPair, ConfigText, tables_of
from recover.store.store import BATCHCONSUMEQUEUE, CONSUMEQUEUE, Store

# --- Repair of config files: cut, restored from the backup, merged from what can be read, or guessed. ---------------
#
# Offsets are never invented. A file of which nothing can be read stays in place and verify keeps reporting it; only a
# broken backup that would keep the broker from starting is removed (ConfigManager.load).


STATISTICS = ("timermetrics", "transactionMetrics")
"""Files that the broker recomputes; without a readable copy they are removed."""

_PULLED = "pullOffsetTable"


class ConfigRepair:
    """What recover does to config/: the steps, and for each file the decision and its reason. Files without a warning
    are not touched.

    A choice has `file`, `action` (cut, rewritten, restored, guessed, put-together, backup-renewed, taken-away,
    clamped), `text` for the screen, `members` kept, and the differences of the copies.
    """

    def __init__(self, store: Store, analysis: Reading, report: ConfigReport, *, clamp_offsets: bool = False) -> None:
        self.store, self.analysis = store, analysis
        self.steps: list[Step] = []
        self.choices: list[dict[str, Any]] = []
        for pair in report.pairs:
            self.pair, self.file = pair, store.relative(pair.main.path)
            self.clamps = [above for above in report.above if clamp_offsets and above.file == self.file]
            self._decide()

    def _decide(self) -> None:
        """Decide about one file and its backup."""
        main, backup, chosen = self.pair.main, self.pair.backup, self.pair.chosen
        if "unreadable" in (main.state, backup.state):
            return
        if chosen is not None:
            self._keep(chosen)
        elif self.pair.name == TOPICS_FILE and (self.pair.present or self.pair.shown):
            self._guess()
        elif not self.pair.is_empty:
            self._put_together()

    def _keep(self, chosen: ConfigText) -> None:
        """A complete text exists: write it to the main file, and to a backup that cannot serve as a fallback."""
        main, backup = self.pair.main, self.pair.backup
        content = whole = chosen.document if chosen.state != "sound" else chosen.content
        if self.pair.ahead:
            content = dumps(merged(self.pair), detect_style(chosen.content))
            text = "restored from its backup, with the offsets that can be read in the file itself"
            self._chose("restored", text, chosen)
        elif chosen is backup:
            self._chose("restored", f"restored from its backup, with {len(chosen.table)} members", chosen)
        elif main.flipped is not None:
            at, bit = main.flipped
            self._chose("name-restored", f"bit {bit} of byte {at} flipped back: its table has its name again", chosen)
        elif main.state == "odd-text":
            self._chose("rewritten", "written anew, as every release reads it", chosen)
        elif main.state != "sound":
            self._chose("cut", f"cut at byte {main.parsed.end}, where its text ends", chosen)
        if self.clamps:
            content = clamped(chosen, self.clamps)
            shown = few([f"{clamp.member or 'level'} {clamp.queue_id}: {clamp.offset} to {clamp.end}"
                         for clamp in self.clamps], 8)
            text = f"{count(len(self.clamps), 'offset')} lowered to the ends of their queues ({shown})"
            self._chose("clamped", text, chosen)
        if content != main.content or main.missing:
            self.steps.append(WriteFile(self.file, content))
        if backup.state not in ("sound", "missing"):
            self.steps.append(WriteFile(self.file + BACKUP_SUFFIX, whole))
            if main.state == "sound":
                self._chose("backup-renewed", "its broken backup is replaced with a copy of it", chosen)

    def _guess(self) -> None:
        guess = guess_topics(self.store, self.analysis.topics, self.analysis.log, self.pair)
        self._write(guess.content())
        read = f", {len(guess.read)} of them as in the broken text" if guess.read else ""
        topics = count(len(guess.topics), "topic")
        text = f"A GUESS: {topics} from queues and log{read}; review it before the start"
        self._note("guessed", text, members=len(guess.topics), guess=True, topics=sorted(guess.topics))

    def _put_together(self) -> None:
        """No complete text exists: keep each member that can be read, and state what is lost."""
        pair = self.pair
        value = merged(pair)
        tables = [value.get(name) for name in tables_of(pair.known)]
        members = sum(len(table) for table in tables if isinstance(table, dict))
        if members:
            mark = {} if pair.known.comes_back else MARK
            self._write(dumps({**mark, **value}, detect_style(pair.main.content or pair.backup.content)))
            text = f"{members} members are readable and kept; the rest is lost: {pair.known.lost}"
            self._note("put-together", text, members=members)
        else:
            # brokers treat an empty or unreadable file as no file at all, and some do not start on one
            copies = (self.file, pair.main), (self.file + BACKUP_SUFFIX, pair.backup)
            self.steps += [Retire(name) for name, copy in copies if not copy.missing]
            outcome = "the broker recomputes it" if pair.name in STATISTICS else f"lost: {pair.known.lost}"
            self._note("taken-away", f"nothing in it is readable, so it is moved to quarantine: {outcome}", members=0)

    def _write(self, content: bytes) -> None:
        """Write the file, and its backup if there is one."""
        self.steps.append(WriteFile(self.file, content))
        if not self.pair.backup.missing:
            self.steps.append(WriteFile(self.file + BACKUP_SUFFIX, content))

    def _chose(self, action: str, text: str, chosen: ConfigText) -> None:
        self._note(action, text, members=len(chosen.table), chosen=chosen.path.name)

    def _note(self, action: str, text: str, **facts: Any) -> None:
        self.choices.append({
            "file": self.file, "action": action, "text": f"{self.pair.name}: {text}", **facts, **self.pair.difference(),
        })


def merged(pair: ConfigPair) -> Members:
    """Return what can be read of two broken copies; where both have a member, the main file's wins, queue by queue."""
    main, backup = pair.main.value, pair.backup.value
    value: Members = {**backup, **main}
    for name in (*tables_of(pair.known), _PULLED):
        old, new = backup.get(name), main.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            table: Members = dict(old)
            for key, member in new.items():
                before = old.get(key)
                both = isinstance(before, dict) and isinstance(member, dict) and name.endswith("ffsetTable")
                table[key] = {**before, **member} if both else member  # type: ignore[dict-item]
            value[name] = table
    return value


def clamped(text: ConfigText, clamps: Iterable[AboveMax]) -> bytes:
    """Return the file with these offsets, and the pull offsets ahead of them, lowered to the ends of their queues."""
    value = copy.deepcopy(text.value)
    for clamp in clamps:
        tables = (clamp.table, _PULLED) if clamp.table == "offsetTable" and clamp.member else (clamp.table,)
        of_lmq = clamp.table == "lmqOffsetTable"
        for table in (value.get(name) for name in tables):
            if isinstance(table, dict) and clamp.member and not of_lmq:
                table = table.get(clamp.member)
            if isinstance(table, dict):
                _lower(table, clamp.member if of_lmq else clamp.queue_id, clamp.end)
    return dumps(value, detect_style(text.content))


def _lower(table: Members, key: str | int, end: int) -> None:
    """Lower one offset to `end`. Keys are numbers or quoted digits; so are the offsets."""
    for name in (key, str(key)):
        offset = table.get(name)
        if isinstance(offset, (int, str)) and str(offset).isdecimal() and int(offset) > end:
            table[name] = end


Policy = Literal["keep", "broker"]


class RecoverOptions(Struct, frozen=True):
    """How to recover. `max_loss` is the number of messages that may be lost, None for any number: intact messages, and
    those that queues name where almost nothing of the log is left.
    """

    scan: ScanOptions = field(default_factory=ScanOptions)
    settings: BrokerSettings | None = None
    mode: Mode | None = None
    policy: Policy = "keep"
    lost: Lost = "repeat"
    bridge: bool = True
    max_loss: int | None = 0
    clamp_offsets: bool = False
    mend_bits: bool = False
    zone: datetime.tzinfo | None = None
    command: str = "recover"


def plan_recover(store: Store, options: RecoverOptions, before: VerifyReport | None = None) -> RecoverPlan:
    """Plan the repair of a store; `before` is its complete verify report (verified here if not given).

    `Refusal` (8) where nothing safe can be done.
    """
    before = before or verify(store, options.scan)
    check_plannable(before, (), options.max_loss)
    refuse_missing_files(before, options.max_loss)
    prediction = None if options.settings is None else predict(
        store, before.analysis.log, options.settings, mode=options.mode, counted=False)
    if options.policy == "broker":
        changes = _as_the_broker(before.analysis, prediction)
    else:
        # edits of intact records: places that queues prove, messages no client can decode, tags and keys
        rejected = [item.edit for item in before.rejected if item.edit is not None]
        changes = keep_everything(
            before.analysis, lost=options.lost, bridge=options.bridge, mend_bits=options.mend_bits,
            edits=[*before.analysis.contradictions, *rejected, *before.flipped],
        )
    made = _planned(before, changes, options, prediction)
    if options.policy == "keep" and not options.mend_bits:
        made.mendable_messages = before.findings.counts().get("commitlog-flipped-bit", 0)
        made.mendable_messages += sum(before.wrong_messages.values())
    return made


def plan_truncate(
    store: Store, offset: int, options: RecoverOptions, before: VerifyReport | None = None
) -> RecoverPlan:
    """Cut the log at physical offset `offset`, a record boundary, and everything derived from it; see
    `plan_recover`."""
    before = before or verify(store, options.scan)
    check_plannable(before, (CONSUMEQUEUE,), options.max_loss, cuts=True)
    return _planned(before, cut_log(before.analysis, offset), options, None)


def _planned(
    before: VerifyReport, changes: LogChanges, options: RecoverOptions, prediction: Prediction | None
) -> RecoverPlan:
    """The whole plan: first the log, then the derived files of the changed log, checkpoint, config, `abort` last."""
    analysis, store = before.analysis, before.analysis.store
    cut = changes.cut_from if changes.cuts_only else None
    given_up = refuse_missing_files(before, options.max_loss, cut or 0)
    if changes.bridged:
        # the units of lost positions must lead past the bridge
        refuse_unread(before, (CONSUMEQUEUE,))
    after = resolved(changes.after(), ORDER)
    dropped = max(0, analysis.log.tally.messages - after.log.tally.messages)
    if options.max_loss is not None and dropped > options.max_loss:
        raise Refusal(
            f"this would drop {count(dropped, 'intact message')}, and --max-loss allows {options.max_loss}",
            f"To accept that: `{{typed}} --max-loss {dropped}`. A recover with --policy keep drops none.",
            lost_messages=dropped, max_loss=options.max_loss,
        )
    steps, config = _in_order(before, changes, after, options, prediction)
    if steps:
        analysis.options.engine.confirm()
    unproven, only_named = loss_of_unproven(analysis)
    altered = [record for record in before.altered if cut is None or record.phy_offset < cut]
    loss = [*loss_of_damage(analysis, changes.bridged, cut or 0), *loss_of_altered(altered), *only_named]
    loss += loss_of_rows(analysis.log, changes.cut_from) if dropped else []
    restored = {b["start"] for b in changes.bridged if b["kind"] in ("restored", "copied")}
    damaged = max(0, before.damaged_messages - len(restored))
    summary = {"lost_messages": dropped, "damaged_messages": damaged, "unproven_messages": unproven,
               "bridged": changes.bridged[:1000], "valid_to": after.log.valid_to, "config": config,
               "index_units": max((item.facts["index_units"] for item in before.findings if item.code == MOSTLY_GONE),
                                  default=0)}
    plan = Plan(options.command, tuple(replacing(steps)), loss, summary, store.folders_elsewhere)
    left = sum(not (explained and start in changes.edited) for start, explained in before.wrong_messages.items())
    if cut is not None:
        left += damaged_messages(analysis.log, analysis.losses, analysis.end_marks, before=cut)
    return RecoverPlan(
        plan, before, prediction, changes.bridged, dropped, damaged, unproven, after.log.valid_to,
        left_messages=left, given_up_messages=given_up, cut_from=cut, abort_stays_for=_needs_a_start(before),
    )


def _as_the_broker(analysis: Reading, prediction: Prediction | None) -> LogChanges:
    if prediction is not None and prediction.not_emulated:
        raise Refusal(f"the effect of {prediction.not_emulated[0]} on that broker is unknown",
                      "`{typed} --policy keep` reads the whole log.")
    if prediction is None or not prediction.starts:
        reason = prediction.reason if prediction is not None else "no broker version is known"
        raise Refusal(f"that broker would not start on this store: {reason}",
                      "`{typed} --policy keep` reads the whole log.")
    if analysis.misnamed:
        names = few([analysis.store.relative(file.path) for file, _ in analysis.misnamed])
        raise Refusal(f"that broker reads log files by their names, but their records belong elsewhere: {names}",
                      "`{typed} --policy keep` reads the whole log.")
    return cut_log(analysis, prediction.cut_at, anywhere=True)


def _judged_by(
    before: VerifyReport, after: Reading, *, rewritten: bool
) -> tuple[Reading, IndexReport, CheckpointReport, ConfigReport]:
    """Return the reading `after` with its index, checkpoint and config judged against it.

    `rewritten`: records changed. The verdicts of `before` are reused if the changed log demands the same derived files.
    """
    analysis = before.analysis
    same = not rewritten and not analysis.log.stale and _asked_by(analysis.log) == _asked_by(after.log)
    if same and before.index and before.checkpoint and before.config:
        return after.like(analysis), before.index, before.checkpoint, before.config
    return after, after.index, check_checkpoint(after.store, after.log), ConfigReport(after)


def _asked_by(log: LogView) -> list[Any]:
    """Everything in a log that derived files are judged by."""
    tally = log.tally
    return [log.min_offset, log.log_end, tally.messages, log.superseded, tally.fillers, tally.markers,
            tally.newest_timestamp, *((damage.start, damage.stop) for damage in log.damaged)]


def _in_order(
    before: VerifyReport, changes: LogChanges, after: Reading, options: RecoverOptions, prediction: Prediction | None
) -> tuple[list[Step], list[dict[str, Any]]]:
    """All steps in execution order, and the decision about each config file."""
    store, as_broker = before.analysis.store, options.policy == "broker"
    stray = foreign_folders(before.findings, store)
    movable = [file for file in stray if can_be_retired(store.root, file)]
    analysis, index, checkpoint, found = _judged_by(before, after, rewritten=bool(changes.replaced or changes.dropped))
    derived = derived_steps(
        analysis, index, checkpoint, options.zone, visible=options.lost == "visible",
        bridged=changes.bridged_queues,
        # a broker leaves units alone if its check passed their records or did not read them
        unmended=after.log.damaged if as_broker else (),
        # without a checkpoint the recovery that writes batch queues reads the whole log
        parts=PARTS[:-1] if store.has_abort and _batch_queues_missing(before)
        and "checkpoint-missing" in before.findings.counts() else PARTS,
    )
    repair = ConfigRepair(store, analysis, found, clamp_offsets=options.clamp_offsets)
    steps = [*changes.steps, *map(RetireFolder, movable), *derived, *repair.steps]
    # while a folder remains that keeps brokers from starting, the first start and its recovery are still to come
    still_to_come = len(movable) < len(stray)
    if as_broker:
        still_to_come |= _abnormal_is_better(after.log, changes, options, prediction)
    if store.has_abort and not _needs_a_start(before) and not still_to_come:
        steps.append(Retire(store.relative(store.abort_path)))
    return steps, repair.choices


def _needs_a_start(before: VerifyReport) -> list[str]:
    """The unread parts that still need a broker's own recovery."""
    unread = {item.file or "" for item in before.findings if item.bits & UNSUPPORTED}
    unread |= _batch_queues_missing(before)
    return sorted(unread | {held.part for held in before.analysis.elsewhere.values()})


def _batch_queues_missing(before: VerifyReport) -> set[str]:
    """Batch queues that are not there: a broker writes them after an unclean stop."""
    return {item.file for item in before.findings
            if item.code == "part-missing" and item.file and item.file.startswith(BATCHCONSUMEQUEUE)}


def _abnormal_is_better(
    log: LogView, changes: LogChanges, options: RecoverOptions, prediction: Prediction | None
) -> bool:
    """Whether only an abnormal recovery passes over the damage that the broker's own recovery left in the log.

    A normal recovery may cut what the broker's did not read. If the broker's read the newest files only and the last of
    them is now gone, the next abnormal recovery starts at an older file and may cut there; a normal one reads less.
    """
    if not log.damaged or prediction is None or options.settings is None:
        return bool(log.damaged)
    newest = log.queue.files[-RECOVERED_BY_LAST_FILES:]
    if any(damage.stop > newest[0].file_from_offset for damage in log.damaged):
        return True
    moved = prediction.search_limited and bool(changes.dropped)
    return not (moved and limited_search_cuts(log, options.settings))
