"""rebuild: what derives from the log, computed from it anew. In place, only what is wrong is changed."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from formats.index import DEFAULT_GEOMETRY
from recover.errors import Refusal, UsageRefusal
from recover.evidence.expected import QueueKey
from recover.evidence.lost import record_count
from recover.files.store import Store
from recover.plan.content import Spool
from recover.plan.model import Plan, Step, replacing
from recover.planning.loss import RecoverPlan, loss_of_unproven
from recover.planning.unreadable import refuse_missing_files, refuse_unread, refuse_unreadable, refuse_without_log
from recover.rebuild.consumequeue import Evidence
from recover.rebuild.maker import maker_for
from recover.rebuild.plain_queues import consumequeue_steps
from recover.scan.log import Damage
from recover.verify.index_file import IndexReport
from recover.verify.report import VerifyReport, verify
from recover.verify.survey import ScanOptions, Survey


def evidence_of(damaged: Sequence[Damage]) -> Evidence:
    """The units of the damaged ranges that stay in the log."""
    return Evidence(
        np.array([damage.start for damage in damaged], dtype=np.int64),
        np.array([damage.stop for damage in damaged], dtype=np.int64),
    )


CONSUMEQUEUE, INDEX, CHECKPOINT = PARTS = ("consumequeue", "index", "checkpoint")


class RebuildOptions(Struct, frozen=True):
    """What to rebuild. `topic` and `queue` narrow the consume queues; `zone` names new index files.

    `max_loss`: messages of missing log files that may be gone for good, None for any number.
    """

    scan: ScanOptions = field(default_factory=ScanOptions)
    parts: Collection[str] = PARTS
    topic: str | None = None
    queue: int | None = None
    zone: datetime.tzinfo | None = None
    command: str = "rebuild"
    max_loss: int | None = 0


def plan_rebuild(store: Store, options: RebuildOptions, before: VerifyReport | None = None) -> RecoverPlan:
    """Plan what puts the derived files of a store right; without steps where nothing is wrong.

    `before` is what verify says of the store, found here if not given.
    `Refusal` (8) when the log is gone, `UsageRefusal` (16) for a topic or queue that the store does not know.
    """
    before = look(store, options, before)
    wanted = chosen_queues(before.survey, options)
    seen = before.survey
    drops_units = CONSUMEQUEUE in options.parts
    plan = Plan.of(
        options.command, replacing(_steps(before, options, wanted)),
        loss=loss_of_unproven(seen, wanted) if drops_units else [],
        summary=summary(before, options), parts=store.folders_elsewhere,
    )
    unproven = record_count(p for p in seen.losses.unproven if drops_units and (wanted is None or p.key in wanted))
    return RecoverPlan(
        plan, before, None, [], 0, before.damaged_messages, unproven, seen.log.valid_to,
        left_messages=before.damaged_messages,
    )


def look(store: Store, options: RebuildOptions, report: VerifyReport | None = None) -> VerifyReport:
    """Verify the store, unless a report is given; `Refusal` (8) when its log is gone, or not to be read here."""
    report = report or verify(store, options.scan)
    refuse_unreadable(report)
    refuse_unread(report, options.parts)
    refuse_without_log(report)
    refuse_missing_files(report, options.max_loss)
    return report


def summary(before: VerifyReport, options: RebuildOptions) -> dict[str, Any]:
    """What the plan says beyond its steps. A rebuild works around `damaged` ranges: it cannot mend them."""
    seen = before.survey
    return {
        "parts": sorted(options.parts), "topic": options.topic, "queue": options.queue, "valid_to": seen.log.valid_to,
        "damaged": [damage.json() for damage in seen.log.damaged], "lost_positions": seen.losses.total,
        "contradictions": len(seen.contradictions),
    }


def chosen_queues(look: Survey, options: RebuildOptions) -> set[QueueKey] | None:
    """The queues that the options name; None for all. Refuses what is not there to be rebuilt."""
    if options.topic is None:
        return None
    on_disk = look.queues.verdicts if look.queues is not None else {}
    own = {key for key in (*look.expectation.queues(), *on_disk) if key.topic == options.topic}
    if not own:
        _refuse_topic(look, options.topic)
    if options.queue is None:
        return own
    key = QueueKey(options.topic, options.queue)
    if key not in own:
        known = ", ".join(str(number) for number in sorted(key.queue_id for key in own))
        raise UsageRefusal(
            f"neither the log nor consumequeue/ knows queue {options.queue} of topic {options.topic}",
            f"It has these: {known}",
        )
    return {key}


def _refuse_topic(look: Survey, topic: str) -> None:
    if topic in look.expectation.deleted:
        raise UsageRefusal(f"topic {topic} is deleted", "--include-deleted brings its queues back.")
    if topic in look.expectation.unsafe:
        raise UsageRefusal(f"{topic!r} cannot be the name of a folder", "Such queues are not rebuilt.")
    if topic in look.topics.batch:
        raise Refusal(f"topic {topic} has batch consume queues, which this version does not rebuild",
                      "Let a broker do it: it does so after an unclean stop.", topic=topic)
    raise UsageRefusal(
        f"neither the log nor consumequeue/ knows topic {topic}",
        "`mqtool inspect` lists the topics. An LMQ queue whose folder is gone needs --include-deleted.",
    )


def index_needs_work(index: IndexReport, options: RebuildOptions) -> bool:
    """True if index files are wrong, or if the user wants an index where there is none."""
    if any(item.severity != "info" for item in index.findings):
        return True
    return index.switched_off and tuple(options.parts) == (INDEX,)


def _steps(before: VerifyReport, options: RebuildOptions, wanted: set[QueueKey] | None) -> Iterator[Step]:
    seen = before.survey
    store, log = seen.store, seen.log
    assert before.index is not None and before.checkpoint is not None
    maker = maker_for(seen.options.scanner, store, log)
    if CONSUMEQUEUE in options.parts and seen.queues is not None:
        yield from consumequeue_steps(
            store, log, seen.expectation, seen.queues, Spool(), wanted=wanted,
            # a rebuild does not mend the log, so it must not remove what tells recover how
            evidence=evidence_of(seen.log.damaged), maker=maker,
        )
    # what is not asked for is not imported
    if INDEX in options.parts and index_needs_work(before.index, options):
        from recover.rebuild.index import rebuild_index

        before.index.geometry = before.index.geometry or DEFAULT_GEOMETRY
        yield from rebuild_index(store, log, report=before.index, zone=options.zone, maker=maker).steps(store)
    if CHECKPOINT in options.parts and not before.checkpoint.sound:
        from recover.rebuild.checkpoint import checkpoint_steps

        yield from checkpoint_steps(store, log)
