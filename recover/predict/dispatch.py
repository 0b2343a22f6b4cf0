"""Dispatch of messages into consume queues, by recovery and afterwards (CommitLogDispatcherBuildConsumeQueue)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import pairwise

import numpy as np

from formats import properties as props
from formats.consumequeue import CQ_UNIT
from formats.javahash import java_string
from formats.record import TOPIC_SCHEDULE, decode, tags_code
from formats.record.message import RETRY_PREFIX, SYSTEM_PREFIX
from formats.record.rows import BIT_DELAY, BIT_LMQ
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT
from recover.broker.record_check import Checked, CheckRules, check_message, deliver_time
from recover.broker.recovery import DispatchTarget, Runs, end_of
from recover.broker.settings import BrokerSettings
from recover.broker.versions import INNER_BATCHES, MULTI_DISPATCH, MULTI_DISPATCH_LIMITED
from recover.predict.loading import BrokerLog
from recover.predict.queues import QueueState
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX

Key = tuple[str, int]


class Dispatcher:
    """Implements `recover.broker.recovery.DispatchTarget` over the broker's queues; unknown queues are created.

    `queues` are the log's (topic, queue id) that rows name by number, `read(offset, length)` gives bytes
    of the log. Topics of `batch` have queues of their own, which are not emulated. `delays` (level -> ms) may be
    changed between phases of a start. `first_offset` is where the first message lay that was dispatched, None before.
    """

    def __init__(
        self, states: dict[Key, QueueState], queues: list[tuple[bytes, int]], settings: BrokerSettings,
        file_size: int, read: Callable[[int, int], bytes], batch: Collection[str] = (),
    ) -> None:
        self.states = states
        self.batch = batch if settings.version.has(INNER_BATCHES) else ()
        self.keys = [(java_string(topic), queue_id) for topic, queue_id in queues]
        self.settings = settings
        self.file_size = file_size
        self.read = read
        self.delays: Mapping[int, int] = settings.delay_table
        self.multi = settings.version.has(MULTI_DISPATCH) and settings.flag("enableMultiDispatch")
        self.limited = settings.version.has(MULTI_DISPATCH_LIMITED)
        self.known = settings.version.has(MULTI_DISPATCH)
        self.lmq = settings.flag("enableLmq")
        self.first_offset: int | None = None
        self.dispatched = 0
        self.multi_skipped = 0
        self.delayed = 0

    def rows(self, rows: Rows) -> None:
        """A run of intact records, in log order."""
        if not rows.size:
            return
        self._note(int(rows["phy_offset"][0]), rows.size)
        kind = rows["sys_flag"] & TRANSACTION
        rows = rows[(kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT)]
        units = np.empty(rows.size, dtype=CQ_UNIT.dtype)
        units["phy_offset"], units["size"] = rows["phy_offset"], rows["size"]
        units["tags_code"] = self._tags_codes(rows)
        order = np.argsort(rows["queue"], kind="stable")
        numbers, starts = np.unique(rows["queue"][order], return_index=True)
        for number, (start, stop) in zip(numbers.tolist(), pairwise([*starts.tolist(), rows.size]), strict=True):
            chosen = order[start:stop]
            if self.keys[number][0] not in self.batch:
                self.state(self.keys[number]).append(rows["queue_offset"][chosen], units[chosen])
        carriers = (rows["bits"] & BIT_LMQ) != 0
        for row, unit in zip(rows[carriers], units[carriers], strict=True):
            record = decode(self.read(int(row["phy_offset"]), int(row["size"])), check_crc=False)
            self._to_lmq(record.topic_name, record.queue_id, record.property_map(), unit)

    def checked(self, message: Checked) -> None:
        """One record that the broker's own check has accepted; its stored offset is believed."""
        self._note(message.phy_offset, 1)
        if message.sys_flag & TRANSACTION not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return
        unit = np.array([(message.phy_offset, message.size, message.tags_code)], dtype=CQ_UNIT.dtype)
        offsets = np.array([message.queue_offset], dtype=np.int64)
        if message.topic not in self.batch:
            self.state((message.topic, message.queue_id)).append(offsets, unit)
        if message.properties and props.INNER_MULTI_DISPATCH in message.properties:
            self._to_lmq(message.topic, message.queue_id, message.properties, unit[0])

    def state(self, key: Key) -> QueueState:
        """The queue, made if need be: no broker asks whether the topic still exists."""
        found = self.states.get(key)
        if found is None:
            found = self.states[key] = QueueState(key[0], key[1], self.file_size, [], self.settings)
        return found

    def _note(self, offset: int, count: int) -> None:
        self.first_offset = offset if self.first_offset is None else min(self.first_offset, offset)
        self.dispatched += count

    def _tags_codes(self, rows: Rows) -> Rows:
        codes: Rows = rows["tags_code"].astype(np.int64)
        delayed = np.flatnonzero((rows["bits"] & BIT_DELAY) != 0)
        self.delayed += delayed.size
        for at in delayed.tolist():
            row = rows[at]
            level = min(int(codes[at]), max(self.delays, default=0))
            codes[at] = deliver_time(int(row["store_timestamp"]), level, self.delays) if level else self._hash(row)
        return codes

    def _hash(self, row: Rows) -> int:
        """Without a delay table the tags code is that of any message; the scan has not kept it."""
        return tags_code(decode(self.read(int(row["phy_offset"]), int(row["size"])), check_crc=False))

    def _to_lmq(self, topic: str, queue_id: int, properties: Mapping[str, str], unit: Rows) -> None:
        queues = properties.get(props.INNER_MULTI_DISPATCH, "").split(",")
        offsets = properties.get(props.INNER_MULTI_QUEUE_OFFSET, "").split(",")
        if self.limited and (topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) or topic == TOPIC_SCHEDULE):
            return
        if not self.multi:
            self.multi_skipped += self.known
            return
        if len(queues) != len(offsets):
            return
        for queue, text in zip(queues, offsets, strict=True):
            if not text.isdecimal() or "/" in queue:
                continue
            number = 0 if self.lmq and queue.startswith(LMQ_PREFIX) else queue_id
            one = np.array([unit.item()], dtype=CQ_UNIT.dtype)
            self.state((queue, number)).append(np.array([int(text)], dtype=np.int64), one)


class Above:
    """Passes on what lies strictly above an offset: the dispatch of a normal recovery from 5.3.2 on."""

    def __init__(self, target: Dispatcher, offset: int) -> None:
        self.target = target
        self.offset = offset

    def rows(self, rows: Rows) -> None:
        self.target.rows(rows[rows["phy_offset"] > self.offset])

    def checked(self, message: Checked) -> None:
        if message.phy_offset > self.offset:
            self.target.checked(message)


class Confirmed:
    """Passes on what ends at or below an offset: dispatch with duplicationEnable, or in controller mode."""

    def __init__(self, target: Dispatcher, offset: int) -> None:
        self.target = target
        self.offset = offset

    def rows(self, rows: Rows) -> None:
        self.target.rows(rows[rows["phy_offset"] + rows["size"] <= self.offset])

    def checked(self, message: Checked) -> None:
        if message.phy_offset + message.size <= self.offset:
            self.target.checked(message)


class Nobody:
    """Takes nothing: a recovery that only looks for the end."""

    def rows(self, rows: Rows) -> None:
        pass

    def checked(self, message: Checked) -> None:
        pass


# --- Dispatch after recovery: ReputMessageService.doReput, until it has caught up or cannot go on.


def reput(log: BrokerLog, start: int, end: int, rules: CheckRules, target: DispatchTarget) -> int | None:
    """Dispatch the log from physical `start` to its `end`; the offset at which it is stuck for ever, or None.

    A master is assumed: a record that cannot be read makes it jump over the rest of the file.
    """
    position = max(start, log.min_offset)
    while position < end:
        index = log.index_of(position)
        if index is None:
            return position
        base = log.files[index].file_from_offset
        readable = min(end - base, log.file_size)
        if position - base >= readable:
            return position
        position = _Range(log, index, readable, rules, target).read(position)
    return None


class _Range:
    """What one `getData` returns: the rest of one file. The broker keeps three positions, and so do we."""

    def __init__(self, log: BrokerLog, index: int, readable: int, rules: CheckRules, target: DispatchTarget) -> None:
        self.base = log.files[index].file_from_offset
        self.file_size = log.file_size
        self.readable = readable
        self.rules = rules
        self.target = target
        self.runs = Runs(log.rows(index), rules)
        self.bytes_at = log.read_at(index)

    def read(self, reput_from: int) -> int:
        """Where dispatch goes on after this range."""
        at = reput_from - self.base
        size = self.readable - at
        read_size = 0
        while read_size < size:
            run = self.runs.at(self.base + at, self.base + self.readable)
            if run.size:
                self.target.rows(run)
                step = end_of(run) - self.base - at
                at, read_size, reput_from = at + step, read_size + step, reput_from + step
                continue
            message = check_message(self.bytes_at, at, self.readable, self.rules)
            if message.ok and message.size == 0:
                return reput_from + self.file_size - reput_from % self.file_size
            if message.ok:
                self.target.checked(message)
                at, read_size, reput_from = at + message.size, read_size + message.size, reput_from + message.size
            elif message.size > 0:
                # the buffer stands after the fields that were read, the offset after the size that was claimed
                at, reput_from = at + message.consumed, reput_from + message.size
            else:
                return reput_from + size - read_size
        return reput_from
