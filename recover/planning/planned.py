"""A plan beside what it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from recover.files.store import Store
from recover.plan.model import Install, Plan
from recover.verify.report import VerifyReport

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
    `unproven_messages` those that nothing but the units of a queue names, behind the end of the log. Of damaged ones,
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
