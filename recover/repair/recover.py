"""recover: from a survey to a plan. Decides everything, changes nothing."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct, field

from formats.index import DEFAULT_GEOMETRY
from recover.broker.recovery import RECOVERED_BY_LAST_FILES, Mode
from recover.broker.settings import BrokerSettings
from recover.change.content import Spool
from recover.change.model import Plan, Retire, RetireFolder, Step, replacing
from recover.change.places import can_be_retired, stray_folders
from recover.check.log import damaged_messages
from recover.check.report import VerifyReport, verify
from recover.check.survey import ScanOptions, Survey
from recover.derived.checkpoint import checkpoint_steps
from recover.derived.index_rebuild import rebuild_index
from recover.derived.producer import producer_for
from recover.derived.queues import NO_EVIDENCE, consumequeue_steps
from recover.evidence.edits import Edit
from recover.evidence.last_numbers import correct_generations_by_units
from recover.evidence.lost import record_count
from recover.findings.code import BIT_UNSUPPORTED
from recover.findings.model import count
from recover.findings.refusal import Refusal
from recover.log.scan import LogView
from recover.predict.prediction import Prediction
from recover.predict.start import limited_search_cuts, predict
from recover.repair.after import after_replacing, judge_against
from recover.repair.config import repair_config
from recover.repair.log_changes import LogChanges, Lost, cut_log, keep_everything
from recover.repair.losses import (
    RecoverPlan,
    loss_of_damage,
    loss_of_rows,
    loss_of_unproven,
    refuse_cut_of_unread,
    refuse_missing_files,
    refuse_unread,
    refuse_unreadable,
    refuse_without_log,
)
from recover.repair.rebuild import evidence_of
from recover.store.store import CONSUMEQUEUE, Store

Policy = Literal["keep", "broker"]
_SHARE = 4
"""What part of the memory for the columns of the log those of the log as it will be may take."""


class RecoverOptions(Struct, frozen=True):
    """How to recover. `max_loss` is the number of messages that may go, None for any number: of intact ones, and of
    those that queues name where hardly anything of the log is left.
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
    """Plan what makes a store sound, of which `before` says everything (verified here if not given).

    `Refusal` (8) where nothing safe can be done.
    """
    before = before or verify(store, options.scan)
    refuse_unreadable(before)
    refuse_unread(before)
    refuse_without_log(before, options.max_loss)
    refuse_missing_files(before, options.max_loss)
    prediction = _predict(before.survey, options)
    if options.policy == "broker":
        changes = _as_the_broker(before.survey, prediction)
    else:
        changes = keep_everything(
            before.survey, lost=options.lost, bridge=options.bridge, mend_bits=options.mend_bits,
            edits=_edits(before),
        )
    made = plan_from_changes(store, before, changes, options, prediction)
    made.given_up_messages = refuse_missing_files(before, options.max_loss, made.cut_from or 0)
    if options.policy == "keep" and not options.mend_bits:
        made.mendable_messages = before.findings.counts().get("commitlog-flipped-bit", 0)
        made.mendable_messages += sum(before.wrong_messages.values())
    return made


def _edits(before: VerifyReport) -> list[Edit]:
    """Those of intact records: places that queues show, messages that nobody can read, tags and keys."""
    rejected = [item.edit for item in before.rejected if item.edit is not None]
    return [*before.survey.contradictions, *rejected, *before.flipped]


def plan_truncate(
    store: Store, offset: int, options: RecoverOptions, before: VerifyReport | None = None
) -> RecoverPlan:
    """Cut the log at physical offset `offset`, a record boundary, and everything derived with it; as `plan_recover`."""
    before = before or verify(store, options.scan)
    refuse_unreadable(before)
    refuse_unread(before, (CONSUMEQUEUE,))
    refuse_cut_of_unread(before)
    refuse_without_log(before, options.max_loss)
    changes = cut_log(before.survey, offset)
    given_up = refuse_missing_files(before, options.max_loss, offset)
    made = plan_from_changes(store, before, changes, options, None)
    made.given_up_messages = given_up
    return made


def plan_from_changes(
    store: Store, before: VerifyReport, changes: LogChanges, options: RecoverOptions, prediction: Prediction | None
) -> RecoverPlan:
    """The whole plan: the log first, then what derives from it as it will be, checkpoint, config, abort last."""
    look = before.survey
    if changes.bridged:
        # the units of lost positions have to lead past the bridge
        refuse_unread(before, (CONSUMEQUEUE,))
    after = correct_generations_by_units(after_replacing(
        look.log, changes.replaced, cut_from=changes.cut_from, drop_files=changes.dropped,
        memory=look.options.memory // _SHARE,
    ), store)
    dropped = max(0, look.log.messages - after.messages)
    if options.max_loss is not None and dropped > options.max_loss:
        raise Refusal(
            f"this would drop {count(dropped, 'intact message')}, and --max-loss allows {options.max_loss}",
            f"If that is what you want: `{{typed}} --max-loss {dropped}`. A recover with --policy keep drops none.",
            lost_messages=dropped, max_loss=options.max_loss,
        )
    config: list[dict[str, Any]] = []
    steps = list(_in_order(store, before, changes, after, options, config, prediction))
    if steps:
        look.options.scanner.confirm()
    cut = changes.cut_from if changes.cuts_only else None
    loss = [*loss_of_damage(look, changes.bridged, cut or 0), *loss_of_unproven(look)]
    loss += loss_of_rows(look.log, changes.cut_from) if dropped else []
    restored = {b["start"] for b in changes.bridged if b["kind"] == "restored"}
    damaged = max(0, before.damaged_messages - len(restored))
    unproven = record_count(look.losses.unproven)
    summary = {"lost_messages": dropped, "damaged_messages": damaged, "unproven_messages": unproven,
               "bridged": changes.bridged[:1000], "valid_to": after.valid_to, "config": config}
    plan = Plan.of(options.command, replacing(steps), loss=loss, summary=summary, parts=_parts(store))
    left = sum(not (explained and start in changes.edited) for start, explained in before.wrong_messages.items())
    if cut is not None:
        left += damaged_messages(look.log, look.losses, look.end_marks, before=cut)
    return RecoverPlan(
        plan, before, prediction, changes.bridged, dropped, damaged, unproven, after.valid_to,
        left_messages=left, cut_from=cut, abort_stays_for=_needs_a_start(before),
    )


def _predict(look: Survey, options: RecoverOptions) -> Prediction | None:
    if options.settings is None:
        return None
    return predict(look.store, look.log, options.settings, mode=options.mode, counted=False)


def _as_the_broker(look: Survey, prediction: Prediction | None) -> LogChanges:
    if prediction is not None and prediction.not_emulated:
        raise Refusal(f"what that broker makes of {prediction.not_emulated[0]} is not known",
                      "`{typed} --policy keep` looks at the whole log.")
    if prediction is None or not prediction.starts:
        reason = prediction.reason if prediction is not None else "no broker version is known"
        raise Refusal(f"that broker would not start on this store: {reason}",
                      "`{typed} --policy keep` looks at the whole log.")
    return cut_log(look, prediction.max_phy, anywhere=True)


def _in_order(
    store: Store, before: VerifyReport, changes: LogChanges, after: LogView, options: RecoverOptions,
    config: list[dict[str, Any]], prediction: Prediction | None,
) -> Iterator[Step]:
    """All steps in the order they run; `config` takes what was decided about each config file."""
    look = before.survey
    spool = Spool()
    yield from changes.steps
    stray = stray_folders(before.findings, store)
    movable = [file for file in stray if can_be_retired(store.root, file)]
    yield from map(RetireFolder, movable)
    judged = judge_against(store, before, after, rewritten=bool(changes.replaced or changes.dropped))
    as_broker = options.policy == "broker"
    producer = producer_for(look.options.scanner, store, after)
    if judged.look.queues is not None:
        yield from consumequeue_steps(
            store, after, judged.look.expectation, judged.look.queues, spool, visible=options.lost == "visible",
            # a broker leaves the units alone of what its check passed, or what it never looked at
            evidence=evidence_of(after.damaged) if as_broker else NO_EVIDENCE, producer=producer,
        )
    index = judged.index
    if any(item.severity != "info" for item in index.findings):
        index.geometry = index.geometry or DEFAULT_GEOMETRY
        yield from rebuild_index(store, after, report=index, zone=options.zone, producer=producer).steps(store)
    if not judged.checkpoint.sound:
        yield from checkpoint_steps(store, after)
    repair = repair_config(store, judged.look, judged.config, clamp_offsets=options.clamp_offsets)
    config += repair.choices
    yield from repair.steps
    # while a folder that stops brokers is left, the first start is still to come, with its own recovery
    still_to_come = len(movable) < len(stray)
    if as_broker:
        still_to_come |= _abnormal_is_better(after, changes, options, prediction)
    if store.has_abort and not _needs_a_start(before) and not still_to_come:
        yield Retire(store.relative(store.abort_path))


def _needs_a_start(before: VerifyReport) -> list[str]:
    """The parts that mqtool does not read, and that the recovery of a broker has still to look at."""
    unread = {item.file or "" for item in before.findings if item.bits & BIT_UNSUPPORTED}
    return sorted(unread | {held.part for held in before.survey.elsewhere.values()})


def _abnormal_is_better(
    log: LogView, changes: LogChanges, options: RecoverOptions, prediction: Prediction | None
) -> bool:
    """Whether only an abnormal recovery passes over the damage that a broker's own one has left in the log.

    A normal one may cut what that did not look at. Where it looked at the newest files only, and the last of them is
    gone now, the next one looks at an older file, and may cut there; a normal one reads less.
    """
    if not log.damaged or prediction is None or options.settings is None:
        return bool(log.damaged)
    newest = log.queue.files[-RECOVERED_BY_LAST_FILES:]
    if any(damage.stop > newest[0].file_from_offset for damage in log.damaged):
        return True
    moved = prediction.search_limited and bool(changes.dropped)
    return not (moved and limited_search_cuts(log, options.settings))


def _parts(store: Store) -> list[str]:
    """Absolute folders outside of the root that steps may touch."""
    folders = [*store.commitlog_dirs, store.consumequeue_dir, store.index_dir]
    return sorted({str(folder.absolute()) for folder in folders if not folder.is_relative_to(store.root)})
