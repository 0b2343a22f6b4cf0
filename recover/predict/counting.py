"""What a start costs: messages that left the log, messages that no unit leads to, queue offsets given out again."""

from __future__ import annotations

import numpy as np

from formats.consumequeue import MAX_EXT_ADDRESS
from formats.record_columns import BIT_FILLER, BIT_MARKER
from recover.columns import Rows
from recover.expected import expect, is_delayed
from recover.log import LogView
from recover.predict.dispatch import Key
from recover.predict.prediction import Prediction
from recover.predict.queue_file import UNIT
from recover.predict.queue_state import QueueState
from recover.topics import Topics, topic_text

STAND_INS = BIT_FILLER | BIT_MARKER


def queue_name(key: Key) -> str:
    """How reports name a queue."""
    return f"{key[0]}/{key[1]}"


def count_lost(view: LogView, end: int, prediction: Prediction) -> None:
    """Intact messages at or behind `end`, the new end of the log."""
    counts = np.zeros(len(view.queues), dtype=np.int64)
    for split in view.live():
        rows = split.records
        gone = rows[(rows["phy_offset"] >= end) & ((rows["bits"] & STAND_INS) == 0)]
        counts += np.bincount(gone["queue"], minlength=len(counts))
    prediction.lost_messages = int(counts.sum())
    names = [queue_name((topic_text(topic), queue_id)) for topic, queue_id in view.queues]
    prediction.lost = {name: int(count) for name, count in sorted(zip(names, counts, strict=True)) if count}


def count_unreachable(
    view: LogView, topics: Topics, states: dict[Key, QueueState], end: int, prediction: Prediction,
) -> None:
    """Messages before `end` without a right unit, and those whose queue offset is at or above their queue's max."""
    own = {(topic_text(topic), queue_id) for topic, queue_id in view.queues}
    for queue, rows in expect(view, topics).grouped():
        rows = rows[(rows["phy_offset"] < end) & ((rows["bits"] & STAND_INS) == 0)]
        key = (queue.topic, queue.queue_id)
        state = states.get(key)
        missing = int((~right_units(rows, state)).sum())
        if key not in own:
            prediction.missing_lmq_units += missing
            continue
        if missing:
            prediction.unreachable[queue_name(key)] = missing
            prediction.unreachable_messages += missing
        next_offset = state.max_offset if state is not None else 0
        prediction.duplicated_offsets += int((rows["queue_offset"] >= next_offset).sum())


def right_units(rows: Rows, state: QueueState | None) -> Rows:
    """For each expected position, whether the queue has a unit there that leads to its message (bool array).

    Deliver times and addresses of ext units are not compared: they do not decide what is delivered.
    """
    right = np.zeros(rows.size, dtype=bool)
    for queue_file in state.files if state is not None else ():
        base = queue_file.start // UNIT
        inside = np.flatnonzero((rows["queue_offset"] >= base) & (rows["queue_offset"] < queue_file.end // UNIT))
        if not inside.size:
            continue
        chosen = rows[inside]
        units = queue_file.valid()[chosen["queue_offset"] - base]
        tags = units["tags_code"].astype(np.int64)
        right[inside] = (
            (units["phy_offset"] == chosen["phy_offset"]) & (units["size"] == chosen["size"])
            & ((tags == chosen["tags_code"]) | (tags <= MAX_EXT_ADDRESS) | is_delayed(chosen))
        )
    return right
