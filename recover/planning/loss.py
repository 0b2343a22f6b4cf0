"""The loss statement: what is gone, by topic, queue and time span."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field

from formats.record_columns import NO_MESSAGE
from recover.evidence.expected import QueueKey
from recover.evidence.lost import Surroundings, was_a_message
from recover.files.store import Store
from recover.files.topics import topic_text
from recover.plan.model import Install, Plan
from recover.scan.log import LogView
from recover.verify.report import VerifyReport
from recover.verify.survey import Survey

if TYPE_CHECKING:
    from recover.predict import Prediction


def assumed_sizes(store: Store, plan: Plan) -> list[str]:
    """The length of queue files that a plan makes, where no file is left to tell it and no setting does."""
    folder = f"{store.relative(store.consumequeue_dir)}/"
    makes = any(isinstance(step, Install) and step.file.startswith(folder) for step in plan.steps)
    if not makes or store.queue_file_size_is_told:
        return []
    size = store.queue_file_size
    return [
        f"mappedFileSizeConsumeQueue={size}: no queue file and no setting tells it, and a broker with another value "
        f"does not start on queue files of {size} bytes; --broker-conf FILE or --set names it"
    ]


class RecoverPlan(Struct):
    """A plan, what it was made from, and what it will cost.

    `lost_messages` are intact ones that it drops, `damaged_messages` those that damage has taken, and
    `unproven_messages` those that nothing but the units of a queue names, after the end of the log. Of damaged ones,
    `left_messages` stay as they are, and `mendable_messages` are one flipped bit away from what was stored.
    `given_up_messages` are those of the damaged ones that were in log files which are missing.
    `cut_from`: where a plan cuts the log that repairs nothing before that; intact messages from there on are stated.
    `assumptions` are what neither files nor settings tell, and the plan depends on.
    `abort_stays_for`: parts not read here, for which the next start has to run a broker's own recovery.
    """

    plan: Plan
    before: VerifyReport
    prediction: Prediction | None
    bridged: list[dict[str, Any]]
    lost_messages: int
    damaged_messages: int
    unproven_messages: int
    valid_to: int
    left_messages: int = 0
    mendable_messages: int = 0
    given_up_messages: int = 0
    cut_from: int | None = None
    assumptions: list[str] = field(default_factory=list)
    abort_stays_for: list[str] = field(default_factory=list)


def loss_of_damage(look: Survey, bridged: Sequence[dict[str, Any]], begin: int = 0) -> list[dict[str, Any]]:
    """One entry a queue for messages that damage from `begin` on has taken; times (ms) are those of the records around.

    A message of which nothing tells the queue has an entry without topic and queue.
    """
    restored = {
        (b["topic"], b["queue"], b["queue_offset"]) for b in bridged if b["kind"] == "restored"
    }
    # a record put back stands in every queue again that it names
    whole_again = {b["start"] for b in bridged if b["kind"] == "restored"}
    statement = _Statement()
    surroundings = Surroundings(look.log)
    for number, (damage, positions) in enumerate(zip(look.log.damaged, look.losses.by_damage, strict=True)):
        if damage.start in whole_again or damage.start < begin:
            continue
        since, until = surroundings.times(damage)
        for position in positions:
            key = position.key
            if (key.topic, key.queue_id, position.queue_offset) not in restored:
                statement.add(key.topic, key.queue_id, position.queue_offset, since, until, damage.reason)
        if not positions and number not in look.end_marks and was_a_message(damage):
            statement.add(None, None, None, since, until, damage.reason)
    return statement.entries()


def loss_of_unproven(look: Survey, wanted: Collection[QueueKey] | None = None) -> list[dict[str, Any]]:
    """One entry a queue (of `wanted`, if given) for messages that nothing but the units of a queue names."""
    statement = _Statement()
    for position in look.losses.unproven:
        key = position.key
        if wanted is None or key in wanted:
            last = look.log.last_timestamp
            statement.add(key.topic, key.queue_id, position.queue_offset, last, last, "beyond-log")
    return statement.entries()


class _Statement:
    """Entries of the statement by topic and queue."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str | None, int | None], dict[str, Any]] = {}

    def add(
        self, topic: str | None, queue: int | None, queue_offset: int | None, begin: int, end: int, cause: str
    ) -> None:
        entry = self._entries.setdefault((topic, queue), {
            "topic": topic, "queue": queue, "messages": 0, "first_offset": queue_offset, "last_offset": queue_offset,
            "begin": begin, "end": end, "cause": cause,
        })
        entry["messages"] += 1
        if queue_offset is not None:
            entry["first_offset"] = min(entry["first_offset"], queue_offset)
            entry["last_offset"] = max(entry["last_offset"], queue_offset)
        entry["begin"], entry["end"] = min(entry["begin"], begin), max(entry["end"], end)

    def entries(self) -> list[dict[str, Any]]:
        return [self._entries[key] for key in sorted(self._entries, key=lambda key: (key[0] or "", key[1] or 0))]


def loss_of_rows(log: LogView, cut_from: int) -> list[dict[str, Any]]:
    """One entry a queue for the intact messages that a cut at `cut_from` drops."""
    entries: dict[int, dict[str, Any]] = defaultdict(dict)
    for split in log.splits():
        rows = split.records[(split.records["phy_offset"] + split.records["size"] > cut_from)]
        rows = rows[(rows["bits"] & NO_MESSAGE) == 0]
        for number in np.unique(rows["queue"]).tolist():
            own = rows[rows["queue"] == number]
            topic, queue_id = log.queues[number]
            entry = entries[number] or {
                "topic": topic_text(topic), "queue": queue_id, "messages": 0,
                "first_offset": int(own["queue_offset"].min()),
                "last_offset": 0, "begin": int(own["store_timestamp"].min()), "end": 0, "cause": "cut",
            }
            entry["messages"] += int(own.size)
            entry["last_offset"] = max(entry["last_offset"], int(own["queue_offset"].max()))
            entry["end"] = max(entry["end"], int(own["store_timestamp"].max()))
            entries[number] = entry
    return sorted(entries.values(), key=lambda e: (e["topic"], e["queue"]))
