"""Transactions of RocketMQ 3.x: a table of states and a redo log. Dropped in 4.x, but found in old stores.

transaction/statetable is a queue of `StateUnit`; transaction/redolog is a ConsumeQueue
(`formats.consumequeue.CQ_UNIT`) of topic TRANSACTION_REDOLOG_TOPIC_XXXX, queue 0, with its own kind of tags code.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from formats.basics import I32, I64, Layout

STATE_PREPARED = 4
STATE_COMMIT = 8
STATE_ROLLBACK = 12
STATES = (STATE_PREPARED, STATE_COMMIT, STATE_ROLLBACK)


class StateUnit(NamedTuple):
    """One prepared message and its outcome; its queue offset is its place in the table."""

    phy_offset: Annotated[int, I64, "start of the prepared record in the commitlog"]
    size: Annotated[int, I32, "bytes of the record; above 0"]
    timestamp: Annotated[int, I32, "store time in seconds since 1970"]
    group_hash: Annotated[int, I32, "Java hash of the producer group"]
    state: Annotated[int, I32, "4 prepared, 8 committed, 12 rolled back"]


STATE_UNIT = Layout.of(StateUnit)


def is_valid(unit: StateUnit) -> bool:
    """Whether a unit was written and has one of the three states."""
    return unit.phy_offset >= 0 and unit.size > 0 and unit.state in STATES
