"""`mqtool recover`: bring a store to where brokers start and no intact message is lost."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct

from mqtool.changing import BITS, ChangeChoice
from mqtool.declared import FLAG, option
from mqtool.loss_list import LossChoice
from mqtool.options import BrokerChoice, EngineChoice, StoreChoice, command
from mqtool.output import Printer
from mqtool.predicting import group_rows, settings_of
from mqtool.recovering import Change, ZoneChoice, max_loss
from mqtool.text import count
from recover.findings.refusal import UsageRefusal

if TYPE_CHECKING:
    from mqtool.recovering import Planner
    from recover.check.report import VerifyReport
    from recover.check.survey import Survey
    from recover.repair.losses import RecoverPlan
    from recover.store.store import Store

_PANEL = "How to recover"


class Mode(StrEnum):
    """Which recovery a broker would run."""

    auto = "auto"
    normal = "normal"
    abnormal = "abnormal"


class Policy(StrEnum):
    """What to do about damage."""

    keep = "keep"
    broker = "broker"


class Lost(StrEnum):
    """What the unit of a lost queue position says."""

    repeat = "repeat"
    visible = "visible"
    gap = "gap"


class RecoverChoice(Struct, frozen=True, kw_only=True):
    """How to recover."""

    policy: Annotated[Policy, option(
        "--policy", "keep: drop no intact message, bridge damage. broker: cut where that broker would.",
        _PANEL)] = Policy.keep
    mode: Annotated[Mode, option(
        "--mode", "Which recovery a broker would run (auto: as the abort file says).", _PANEL)] = Mode.auto
    lost: Annotated[Lost, option(
        "--lost", "What a lost queue position shows: the message before it once more, a visible marker, or nothing.",
        _PANEL)] = Lost.repeat
    no_bridge: Annotated[bool, option(
        "--no-bridge", "Refuse rather than bridge damage.", _PANEL, metavar=FLAG)] = False
    max_loss: Annotated[str | None, option(
        "--max-loss", "How many messages may go: intact ones with --policy broker; those that queues name where hardly "
        "anything of the log is left (default: 0).", _PANEL,
        metavar="N|all")] = None
    mend_bits: Annotated[bool, option(
        "--mend-bits", "Turn back flipped bits: the one of a damaged message that makes every checksum right, and the "
        "one of a tag or key that makes it what its units remember.", _PANEL, metavar=FLAG)] = False
    clamp_offsets: Annotated[bool, option(
        "--clamp-offsets", "Lower consumer offsets that lie after the end of their queue.", _PANEL,
        metavar=FLAG)] = False
    include_deleted: Annotated[bool, option(
        "--include-deleted", "Rebuild queues of deleted topics, too.", _PANEL, metavar=FLAG)] = False
    output: Annotated[Path | None, option(
        "--output", "Make a recovered copy here (a new or empty folder); the store is not touched.", _PANEL,
        metavar="DIR")] = None


_LOST: dict[Lost, Literal["repeat", "visible", "gap"]] = {
    Lost.repeat: "repeat", Lost.visible: "visible", Lost.gap: "gap",
}


def mode_of(mode: Mode) -> Literal["normal", "abnormal"] | None:
    """The mode that was asked for, None for what the abort file says."""
    return None if mode is Mode.auto else "normal" if mode is Mode.normal else "abnormal"


@command(
    examples=[
        ("/data/store --dry-run", "what would be done, and what is lost"),
        ("/data/store", "show that, ask once, do it, verify the result"),
        ("/data/store --dry-run --loss-out lost.csv", "and each lost message, with all that is legible of it"),
        ("/data/store --yes --json", "unattended"),
        ("/data/store --mend-bits", "restore, too, what one flipped bit explains"),
        ("/data/store --output /backup/recovered", "a recovered copy; the store is left alone"),
        ("/data/store --policy broker --broker 5.3.3 --max-loss all", "cut as that broker would"),
    ],
    bits=BITS,
)
def run(
    out: Printer, store: StoreChoice, broker: BrokerChoice, engine: EngineChoice, zone: ZoneChoice,
    consent: ChangeChoice, how: RecoverChoice, loss: LossChoice,
) -> int:
    """Bring a store to a state on which every broker version starts and no intact message is lost.

    Damage in mid-log is bridged: the bytes become records that brokers pass over, so that everything after is kept
    and no queue offset moves. Queues, index, checkpoint and config files are repaired where they are wrong, and only
    there. All that is replaced is kept in STORE/.mqtool/, and `mqtool undo` brings it back bit for bit.
    """

    if loss.loss_out is not None and not consent.dry_run:
        raise UsageRefusal("--loss-out without --dry-run", "List what is lost with --dry-run first, then recover.")
    loss.check(store.root, tuple(store.commitlog or ()))

    def make(opened: Store) -> Planner:
        from recover.repair.recover import RecoverOptions, plan_recover

        if how.mend_bits and how.policy is Policy.broker:
            raise UsageRefusal("--mend-bits with --policy broker", "A broker mends nothing: leave out one of them.")
        settings, assumed = settings_of(opened, broker)
        options = RecoverOptions(
            settings=settings, mode=mode_of(how.mode), policy="broker" if how.policy is Policy.broker else "keep",
            lost=_LOST[how.lost], bridge=not how.no_bridge, max_loss=max_loss(how.max_loss),
            clamp_offsets=how.clamp_offsets, mend_bits=how.mend_bits, zone=zone.zone,
        )

        def plan(before: VerifyReport) -> RecoverPlan:
            made = plan_recover(opened, options, before)
            prediction = made.prediction
            out.answer(
                policy=how.policy.value, mode=prediction.mode if prediction else how.mode.value,
                start_file=prediction.start_file if prediction else None,
            )
            made.assumptions += assumed
            rows = group_rows(before.survey, settings)
            out.answer(groups=rows, groups_after=None if made.plan.steps else rows)
            cuts = how.policy is Policy.broker and prediction is not None
            loss.write(out, before.survey, prediction.max_phy if cuts and prediction else None)
            return made

        return plan

    def look_after(look: Survey) -> None:
        rows = group_rows(look, settings_of(look.store, broker)[0])
        out.answer(groups_after=rows)
        skips, again = (sum(row[name] or 0 for row in rows) for name in ("skips", "again"))
        if skips or again:
            out.say(f"consumer groups will skip {count(skips, 'message')} and get {again:,} again: mqtool groups")

    return Change(
        out, store, engine, broker, consent, how.output, how.include_deleted, looked=look_after,
        max_loss=max_loss(how.max_loss),
    ).run(make)
