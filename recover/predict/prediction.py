"""The predicted outcome of a start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field, structs

from formats.consumequeue import CQ_EXT_HEAD, MAX_EXT_ADDRESS
from formats.record.rows import STAND_IN
from recover.broker.recovery import Mode
from recover.broker.settings import DelayTable, is_delayed
from recover.derived.expected import QueueVerdict, expect
from recover.findings.code import DERIVED, MESSAGES, UNSUPPORTED
from recover.findings.model import Finding, Phrase, finding
from recover.findings.store_codes import TOPICS_GUESSED
from recover.log.scan import LogView
from recover.predict.delivers import Delivers
from recover.predict.dispatch import Key, Stop
from recover.predict.queues import UNIT, QueueState
from recover.store.columns import Rows
from recover.store.config_files import ConfigPair, Topics, topic_text
from recover.store.derived_files import ExtFiles, positions_of

_LISTED = 100
_ROOM_FOR_END = 4  # ConsumeQueueExt.END_BLANK_DATA_LENGTH
_NOT_SAID = (
    "search_limited", "not_emulated", "dispatched_from", "incomplete", "by_hand", "stop", "cut_at", "deliveries")


class Prediction(Struct):
    """The end state of one broker's start on one store; offsets in bytes of the log, queue ranges as [min, max).

    `min_phy`, `max_phy` (-1 and 0 without a log) are those after load; the rest is the state when dispatch has caught
    up. `cut_at`: where recovery ended the log; `max_phy` is the same, except where no log file can have the name of the
    last one. `lost_messages`: intact records no longer in the log. `unreachable_messages`: in the log, without a right
    unit in their own queue; `missing_lmq_units`: of LMQ queues. `duplicated_offsets`: queue offsets of messages in
    the log that the next messages get again. `misaligned_units`: appended at an index that is not their message's queue
    offset. `lowered_queues`: (queue, max before, max after). `index_gap`: (from, to) of the log whose index entries are
    deleted and not recreated. `config_lost`: config files whose content the broker starts without, or without a part of
    it. `revived_topics`: deleted ones that get queues again. `end_reason`: why the scan ended at `cut_at`.
    `dispatched_from`: the first message that the start gives to queues and index, None if it dispatches none.
    `search_limited`: the broker searches no more files for the start. `incomplete`: missing parts of the log.
    `unsupported`: parts with data that the answer leaves out; `not_emulated`: those that would change all of it,
    and then nothing else is predicted. `deliveries`: what the services deliver; None if not asked for.
    """

    broker: str
    mode: Mode
    starts: bool = True
    reason: str | None = None
    start_file: str | None = None
    min_phy: int = 0
    max_phy: int = 0
    queues: dict[str, list[int]] = field(default_factory=dict)
    deleted_files: list[str] = field(default_factory=list)
    lost_messages: int = 0
    unreachable_messages: int = 0
    duplicated_offsets: int = 0
    assumptions: list[str] = field(default_factory=list)
    end_reason: str | None = None
    lost: dict[str, int] = field(default_factory=dict)
    unreachable: dict[str, int] = field(default_factory=dict)
    missing_lmq_units: int = 0
    misaligned_units: int = 0
    lowered_queues: list[tuple[str, int, int]] = field(default_factory=list)
    index_gap: tuple[int, int] | None = None
    ignored_files: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    config_lost: dict[str, ConfigPair] = field(default_factory=dict)
    revived_topics: list[str] = field(default_factory=list)
    search_limited: bool = False
    not_emulated: list[str] = field(default_factory=list)
    incomplete: list[Finding] = field(default_factory=list)
    by_hand: list[Finding] = field(default_factory=list)
    stop: Stop | None = None
    cut_at: int = 0
    dispatched_from: int | None = None
    deliveries: Delivers | None = None

    def refuse(self, stop: Stop) -> None:
        self.starts, self.reason, self.stop = False, stop.reason, stop

    @property
    def exit_code(self) -> int:
        """0: no cost; 2: only what comes back from the log; 4: do not start; 64: unknown. Never 2 together with 4."""
        code = UNSUPPORTED if self.unsupported else 0
        for item in self.findings():
            code |= item.bits
        return code & ~DERIVED if code & MESSAGES else code

    @property
    def is_unknown(self) -> bool:
        """Whether every answer depends on a part that is not emulated."""
        return self.starts and bool(self.not_emulated)

    def json(self) -> dict[str, Any]:
        said = {name: value for name, value in structs.asdict(self).items() if name not in _NOT_SAID}
        delivers = [] if self.deliveries is None else [structs.asdict(row) for row in self.deliveries.rows]
        return said | {"starts": None if self.is_unknown else self.starts, "config_lost": [*self.config_lost],
                       "delivers": delivers}

    def findings(self) -> list[Finding]:
        broker = self.broker
        found = [*self.by_hand, *(finding("start-cannot-say", part=part, broker=broker) for part in self.unsupported)]
        if self.stop is not None:
            found.append(finding("start-refused", broker=broker, reason=self.stop.reason, remedy=self.stop.remedy))
        found += self.incomplete
        # a repair waits for what must be found first
        asked = [item.code for item in self.incomplete if item.by_a_person]
        remedy = Phrase("Do not start it. Read first: mqtool explain {code}", code=asked[0]) if asked else None
        if self.lost_messages:
            found.append(finding(
                "start-loses-messages", broker=broker, offset_cut=self.cut_at, reason=self.end_reason,
                lost=self.lost_messages, start_file=self.start_file, remedy=remedy,
            ))
        lowered = self.lowered_queues
        costs: tuple[tuple[str, int, dict[str, Any]], ...] = (
            ("start-leaves-unreachable", self.unreachable_messages or self.misaligned_units, {
                "light_queue_units": self.missing_lmq_units, "misaligned_units": self.misaligned_units}),
            ("start-leaves-light-queues", self.missing_lmq_units, {}),
            ("start-reuses-offsets", self.duplicated_offsets, {}),
            ("start-lowers-queues", len(lowered), {
                "offsets": sum(before - after for _, before, after in lowered),
                "queues": [list(row) for row in lowered[:_LISTED]]}),
        )
        found += [finding(code, broker=broker, count=number, remedy=remedy, **facts)
                  for code, number, facts in costs if number]
        if self.index_gap is not None:
            found.append(finding("start-drops-index", broker=broker, first=self.index_gap[0], last=self.index_gap[1]))
        found += [_forgets(broker, *lost) for lost in self.config_lost.items()]
        found += [] if self.deliveries is None else self.deliveries.findings(broker)
        if self.deleted_files:
            found.append(finding("start-deletes-files", broker=broker, count=len(self.deleted_files)))
        return found


def _forgets(broker: str, name: str, pair: ConfigPair) -> Finding:
    return finding("start-forgets-config", name, broker=broker, lost=pair.lost,
                   severity="warning" if pair.known.comes_back else "error",
                   remedy=TOPICS_GUESSED if pair.name == "topics.json" else None)


# --- The cost of a start: messages cut from the log, messages without a unit, queue offsets reused.


def queue_name(key: Key) -> str:
    return f"{key[0]}/{key[1]}"


def count_lost(view: LogView, end: int, prediction: Prediction) -> None:
    """Count intact messages at or after `end`, the new end of the log."""
    counts = np.zeros(len(view.queues), dtype=np.int64)
    for split in view.live():
        if not split.size or split.last < end:
            continue
        rows = split.records
        gone = rows[(rows["phy_offset"] >= end) & ((rows["bits"] & STAND_IN) == 0)]
        counts += np.bincount(gone["queue"], minlength=len(counts))
    prediction.lost_messages = int(counts.sum())
    names = [queue_name((topic_text(topic), queue_id)) for topic, queue_id in view.queues]
    prediction.lost = {name: int(count) for name, count in sorted(zip(names, counts, strict=True)) if count}


def count_unreachable(
    view: LogView, topics: Topics, states: dict[Key, QueueState], end: int, prediction: Prediction,
    delays: Mapping[int, int], ext_from: int | None, proven: Mapping[Key, QueueVerdict], *, late: bool,
) -> bool:
    """Count messages before `end` without a right unit, and those with a queue offset at or above their queue's max.

    `ext_from`: where dispatch began that writes ext units, too, None if none does; `late`: it knew no delays. A queue
    of `proven` whose units the start leaves alone is not counted again. Returns whether units that it wrote to lost ext
    files are wrong for older units.
    """
    refers = False
    own = {(topic_text(topic), queue_id) for topic, queue_id in view.queues}
    expectation = expect(view, topics)
    unknown = topics.absent(key.topic for key in expectation.keys)
    asked = (number for number, key in enumerate(expectation.keys) if (count := int(expectation.counts[number]))
             and not _holds(proven.get(key), states.get(key), count))
    for queue, rows in expectation.of(asked):
        rows = rows[rows["phy_offset"] < end]
        key = (queue.topic, queue.queue_id)
        state = states.get(key)
        ext = ExtFiles(topics.store, *key)
        written = None
        if ext_from is not None and state is not None and not ext.units.position.size and any(
                (queue_file.valid()["tags_code"] <= MAX_EXT_ADDRESS).any() for queue_file in state.files):
            again = rows[rows["phy_offset"] >= ext_from]
            written = DelayTable(dict(delays)).tags_codes(again)
            written[late & is_delayed(again)] = 0
        rows = rows[(rows["bits"] & STAND_IN) == 0]
        if queue.topic in unknown:
            rows = rows[~_led_to(rows, states.values())]
        missing = int((~right_units(rows, state, delays, ext, written)).sum())
        refers |= written is not None and missing > int((~right_units(rows, state, delays, ext)).sum())
        if key not in own:
            prediction.missing_lmq_units += missing
            continue
        if missing:
            prediction.unreachable[queue_name(key)] = missing
            prediction.unreachable_messages += missing
        next_offset = state.max_offset if state is not None else 0
        prediction.duplicated_offsets += int((rows["queue_offset"] >= next_offset).sum())
    return refers


def _holds(verdict: QueueVerdict | None, state: QueueState | None, expected: int) -> bool:
    """Whether a queue that held exactly the units of its `expected` messages still does after the start."""
    if verdict is None or state is None or verdict.live is None:
        return False
    return verdict.expected == expected and state.keeps(verdict.live, verdict.end)


def _led_to(rows: Rows, states: Iterable[QueueState]) -> Rows:
    """Which messages a unit of any queue leads to (bool array): one flipped bit makes a topic that no part knows."""
    found = np.zeros(rows.size, dtype=bool)
    for queue_file in (queue_file for state in states for queue_file in state.files):
        units = queue_file.valid()
        found |= np.isin(rows["phy_offset"], units["phy_offset"][np.isin(units["size"], rows["size"])])
    return found


def right_units(
    rows: Rows, state: QueueState | None, delays: Mapping[int, int], ext: ExtFiles, written: Rows | None = None,
) -> Rows:
    """Whether the queue has a unit at each expected position that leads to its message, not below its minimum (bool
    array). A deliver time is right as for verify: if it fits the delay table, or the delay of most units of its level.
    `written`: the tags codes that the start itself writes to lost ext files, from their beginning, so that older units
    refer to them."""
    right = np.zeros(rows.size, dtype=bool)
    if state is None:
        return right
    positions, table = rows["queue_offset"] * UNIT, DelayTable(dict(delays))
    for queue_file in state.files:
        # a broker takes the position modulo the file size, whatever the name of the file
        cells = positions % queue_file.size // UNIT
        # below its minimum a queue delivers nothing, whatever unit is there
        inside = np.flatnonzero((positions >= max(queue_file.start, state.min_logic)) & (positions < queue_file.end)
                                & (cells < queue_file.wrote // UNIT))
        if not inside.size:
            continue
        chosen = rows[inside]
        units = queue_file.valid()[cells[inside]]
        tags = units["tags_code"].astype(np.int64)
        tags = ext.tags_codes(tags) if written is None else _over_old_addresses(tags, written, ext)
        named = (units["phy_offset"] == chosen["phy_offset"]) & (units["size"] == chosen["size"])
        delayed, fitting = is_delayed(chosen), tags == chosen["tags_code"]
        if delayed.any():
            table.learn(chosen[delayed & named], tags[delayed & named])
            fitting[delayed] = table.fits(chosen[delayed], tags[delayed])
        if not ext.units.position.size:
            # without any ext unit no address can be wrong, and brokers deliver the message all the same
            fitting |= tags <= MAX_EXT_ADDRESS
        right[inside] = named & fitting
    return right


def _over_old_addresses(tags_codes: Rows, written: Rows, ext: ExtFiles) -> Rows:
    """Return a copy in which addresses that `written` reaches are replaced by the tags codes there; 0 between two."""
    plain = tags_codes.copy()
    cells = np.flatnonzero(tags_codes <= MAX_EXT_ADDRESS)
    size = ext.store.ext_file_size
    file, at = np.divmod(positions_of(tags_codes[cells]), size)
    number, between = np.divmod(at, CQ_EXT_HEAD.size)
    number += file * ((size - _ROOM_FOR_END) // CQ_EXT_HEAD.size)
    reached = number < written.size
    plain[cells[reached]] = np.where(between[reached] == 0, written[number[reached]], 0)
    return plain
