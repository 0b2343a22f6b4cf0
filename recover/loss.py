"""The loss statement: what is gone, by topic, queue and time span."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_MARKER, BIT_SUPERSEDED
from recover.log import LogView
from recover.log_changes import LogChanges
from recover.survey import Survey
from recover.topics import topic_text


def loss_of_damage(look: Survey, changes: LogChanges) -> list[dict[str, Any]]:
    """One entry a queue for messages that damage has taken; times (ms) are those of the intact records around it."""
    restored = {
        (b["topic"], b["queue"], b["queue_offset"]) for b in changes.bridged if b["kind"] == "restored"
    }
    # a record put back stands in every queue again that it names
    whole_again = {b["start"] for b in changes.bridged if b["kind"] == "restored"}
    entries: dict[tuple[str, int], dict[str, Any]] = {}
    for damage, positions in zip(look.log.damaged, look.losses.by_damage, strict=True):
        if damage.start in whole_again:
            continue
        begin, end = times_around(look.log, damage.start, damage.stop)
        for position in positions:
            key = (position.key.topic, position.key.queue_id)
            if (*key, position.queue_offset) in restored:
                continue
            entry = entries.setdefault(key, {
                "topic": key[0], "queue": key[1], "messages": 0, "first_offset": position.queue_offset,
                "last_offset": position.queue_offset, "begin": begin, "end": end, "cause": damage.reason,
            })
            entry["messages"] += 1
            entry["first_offset"] = min(entry["first_offset"], position.queue_offset)
            entry["last_offset"] = max(entry["last_offset"], position.queue_offset)
            entry["begin"], entry["end"] = min(entry["begin"], begin), max(entry["end"], end)
    return [entries[key] for key in sorted(entries)]


def loss_of_rows(log: LogView, cut_from: int) -> list[dict[str, Any]]:
    """One entry a queue for the intact messages that a cut at `cut_from` drops."""
    entries: dict[int, dict[str, Any]] = defaultdict(dict)
    stale = BIT_GHOST | BIT_SUPERSEDED | BIT_FILLER | BIT_MARKER
    for split in log.splits():
        rows = split.records[(split.records["phy_offset"] + split.records["size"] > cut_from)]
        rows = rows[(rows["bits"] & stale) == 0]
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


def times_around(log: LogView, start: int, stop: int) -> tuple[int, int]:
    """Store timestamps (ms) of the last live record in front of `start` and the first from `stop` on; 0 for none."""
    begin = end = 0
    for split in log.splits():
        rows = split.records[(split.records["bits"] & BIT_GHOST) == 0]
        front = rows[rows["phy_offset"] < start]
        back = rows[rows["phy_offset"] >= stop]
        if front.size:
            begin = int(front["store_timestamp"][-1])
        if back.size:
            end = int(back["store_timestamp"][0])
            break
    return begin or end, end or begin
