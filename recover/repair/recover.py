"""recover: plan the repair of a store, config files included, from its analysis. Plans only; changes nothing."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from msgspec import Struct, field

from recover.broker.recovery import RECOVERED_BY_LAST_FILES, Mode
from recover.broker.settings import BrokerSettings
from recover.change.model import Plan, Retire, RetireFolder, Step, replacing
from recover.change.places import can_be_retired, foreign_folders
from recover.check.config import ConfigReport
from recover.check.parts import MOSTLY_GONE
from recover.check.report import VerifyReport, verify
from recover.derived.checkpoint import CheckpointReport, check_checkpoint
from recover.derived.index_check import IndexReport
from recover.derived.transactions import WRONG as WRONG_TABLE, transaction_steps
from recover.findings.code import UNSUPPORTED, Refusal
from recover.findings.model import Phrase, few
from recover.log.scan import LogView
from recover.predict.prediction import Prediction
from recover.predict.start import Starts, limited_search_cuts
from recover.reading.doubts import ORDER, resolved
from recover.reading.facts import ScanOptions
from recover.reading.reading import Reading
from recover.repair.config_repair import ConfigRepair
from recover.repair.log_changes import LogChanges, Lost, cut_log, keep_everything
from recover.repair.losses import RecoverPlan, check_plannable, refuse_missing_files, refuse_unread, stated_losses
from recover.repair.rebuild import PARTS, derived_steps
from recover.repair.rounds import settled
from recover.repair.timers import is_broken, timer_steps
from recover.store.config_files import ConfigText
from recover.store.store import BATCHCONSUMEQUEUE, CONSUMEQUEUE, Store

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
    offsets_from: ConfigText | None = None
    mend_bits: bool = False
    zone: datetime.tzinfo | None = None
    command: str = "recover"


def plan_recover(store: Store, options: RecoverOptions, before: VerifyReport | None = None) -> RecoverPlan:
    """Plan the repair of a store, after which a second one has nothing to do; `before` is its complete verify report
    (verified here if not given).

    `Refusal` (8) where nothing safe can be done.
    """
    made = _plan_once(store, options, before or verify(store, options.scan))
    if options.policy != "keep":
        return made
    # what a plan would leave is read by this process alone, while the rows of the store as it is are kept
    scan = ScanOptions(options.scan.share, options.scan.include_deleted)
    return settled(store, made, lambda planned: _plan_once(planned, options, verify(planned, scan)))


def _plan_once(store: Store, options: RecoverOptions, before: VerifyReport) -> RecoverPlan:
    check_plannable(before, (), options.max_loss)
    refuse_missing_files(before, options.max_loss)
    prediction = None if options.settings is None else \
        Starts.on(before.analysis).alone(options.settings, options.mode).prediction
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
        raise Refusal(Phrase("this would drop {dropped:intact message}, and --max-loss allows {max_loss}",
                             dropped=dropped, max_loss=options.max_loss),
                      Phrase("To accept that: `{typed} --max-loss {dropped}`. A recover with --policy keep drops none.",
                             dropped=dropped), lost_messages=dropped, max_loss=options.max_loss)
    steps, config = _in_order(before, changes, after, options, prediction)
    if steps:
        analysis.options.engine.confirm()
    unproven = analysis.account.after_end + sum(each.messages for each in before.claimed)
    loss = stated_losses(before, changes.bridged, cut, changes.cut_from if dropped else None)
    restored = {b["start"] for b in changes.bridged if b["kind"] in ("restored", "copied")}
    damaged = max(0, before.damaged_messages - len(restored))
    summary = {"lost_messages": dropped, "damaged_messages": damaged, "unproven_messages": unproven,
               "bridged": changes.bridged[:1000], "placed": changes.placed[:1000], "valid_to": after.log.valid_to,
               "config": config,
               "index_units": max((item.facts["index_units"] for item in before.findings if item.code == MOSTLY_GONE),
                                  default=0)}
    plan = Plan(options.command, tuple(replacing(steps)), loss, summary, store.folders_elsewhere)
    left = sum(not (explained and start in changes.edited) for start, explained in before.wrong_messages.items())
    if cut is not None:
        left += analysis.account.damaged(before=cut)
    return RecoverPlan(
        plan, before, prediction, changes.bridged, dropped, damaged, unproven, after.log.valid_to,
        left_messages=left, given_up_messages=given_up, cut_from=cut, abort_stays_for=_needs_a_start(before),
    )


def _as_the_broker(analysis: Reading, prediction: Prediction | None) -> LogChanges:
    if prediction is not None and prediction.not_emulated:
        raise Refusal(Phrase("cannot predict the start of that broker: mqtool does not read {part}",
                             part=prediction.not_emulated[0]), "`{typed} --policy keep` reads the whole log.")
    if prediction is None or not prediction.starts:
        reason = prediction.reason if prediction is not None else "no broker version is known"
        raise Refusal(Phrase("that broker would not start on this store: {reason}", reason=reason),
                      "`{typed} --policy keep` reads the whole log.")
    if analysis.misnamed:
        names = few([analysis.store.relative(file.path) for file, _ in analysis.misnamed])
        raise Refusal(Phrase("that broker reads log files by their names, but their records belong elsewhere: {names}",
                             names=names), "`{typed} --policy keep` reads the whole log.")
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
    repair = ConfigRepair(store, analysis, found, clamp_offsets=options.clamp_offsets,
                          offsets_from=options.offsets_from)
    timers = timer_steps(store, after.log, analysis.topics) if is_broken(before.findings) else []
    transactions = transaction_steps(store, after.log) if WRONG_TABLE in before.findings.counts() else []
    steps = [*changes.steps, *map(RetireFolder, movable), *derived, *repair.steps, *timers, *transactions]
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
