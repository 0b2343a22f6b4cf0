"""What a start costs: messages that left the log, messages that no unit leads to, queue offsets given out again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from formats.record_columns import BIT_FILLER, BIT_MARKER
from recover.broker.delays import is_delayed
from recover.broker.record_check import UNKNOWN_LEVEL_MS
from recover.evidence.expected import expect
from recover.files.ext_files import ExtFiles, is_address
from recover.files.topics import Topics, topic_text
from recover.memory.columns import Rows
from recover.predict.dispatch import Key
from recover.predict.prediction import Prediction
from recover.predict.queue_file import UNIT
from recover.predict.queue_state import QueueState
from recover.scan.log import LogView

STAND_INS = BIT_FILLER | BIT_MARKER


def queue_name(key: Key) -> str:
    """How reports name a queue."""
    return f"{key[0]}/{key[1]}"


def count_lost(view: LogView, end: int, prediction: Prediction) -> None:
    """Intact messages at or after `end`, the new end of the log."""
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
    delays: Mapping[int, int],
) -> None:
    """Messages before `end` without a right unit, and those whose queue offset is at or above their queue's max."""
    own = {(topic_text(topic), queue_id) for topic, queue_id in view.queues}
    for queue, rows in expect(view, topics).grouped():
        rows = rows[(rows["phy_offset"] < end) & ((rows["bits"] & STAND_INS) == 0)]
        key = (queue.topic, queue.queue_id)
        state = states.get(key)
        ext = ExtFiles(topics.store, *key)
        missing = int((~right_units(rows, state, delays, ext)).sum())
        if key not in own:
            prediction.missing_lmq_units += missing
            continue
        if missing:
            prediction.unreachable[queue_name(key)] = missing
            prediction.unreachable_messages += missing
        next_offset = state.max_offset if state is not None else 0
        prediction.duplicated_offsets += int((rows["queue_offset"] >= next_offset).sum())


def right_units(rows: Rows, state: QueueState | None, delays: Mapping[int, int], ext: ExtFiles) -> Rows:
    """For each expected position, whether the queue has a unit there that leads to its message (bool array).

    A deliver time is right if it fits the delay table, or the delay that most units of the queue (each level has
    its own) agree on.
    """
    right = np.zeros(rows.size, dtype=bool)
    for queue_file in state.files if state is not None else ():
        base = queue_file.start // UNIT
        inside = np.flatnonzero((rows["queue_offset"] >= base) & (rows["queue_offset"] < queue_file.end // UNIT))
        if not inside.size:
            continue
        chosen = rows[inside]
        units = queue_file.valid()[chosen["queue_offset"] - base]
        tags = ext.tags_codes(units["tags_code"].astype(np.int64))
        named = (units["phy_offset"] == chosen["phy_offset"]) & (units["size"] == chosen["size"])
        fitting = np.where(is_delayed(chosen), _in_time(chosen, tags, named, delays), tags == chosen["tags_code"])
        if not ext.units.position.size:
            # without any ext unit no address can be told wrong, and brokers deliver the message all the same
            fitting |= is_address(tags)
        right[inside] = named & fitting
    return right


def _in_time(rows: Rows, deliver_times: Rows, named: Rows, delays: Mapping[int, int]) -> Rows:
    """Whether each deliver time is one that a broker with this table, or with the store's own, would compute."""
    shown = deliver_times - rows["store_timestamp"]
    highest = max(delays, default=0)
    table = np.array([delays.get(min(int(level), highest), UNKNOWN_LEVEL_MS) for level in rows["tags_code"]])
    fits = shown == table
    seen, counts = np.unique(shown[named & is_delayed(rows)], return_counts=True)
    if seen.size and counts.max() * 2 > counts.sum():
        fits |= shown == seen[counts.argmax()]
    return np.asarray(fits)
