"""What a start delivers: delayed messages, timers, half messages and popped ones, one event each.

1. `delay`: each level is read from the offset in delayOffset.json on, in order, up to the first message that is not due
   (ScheduleMessageService.executeOnTimeup).
2. `timer`: units that the wheel leads to, and messages of the timer's queue that have none (timers.py).
3. `half`: half messages from the committed offset of the check on that no op message ends. The first check stores each
   again and asks its producer (TransactionalMessageServiceImpl.check); too old or asked too often, it is discarded.
4. `revive`: check points of popped messages without an acknowledgement, from the committed offset of the revive queue
   on (PopReviveService): their messages go to the retry topic when their invisible time is over.

A message that the log already holds where it would be delivered comes `again`: the same topic and queue, unique key,
time of birth, reconsume times and checksum, stored later. Otherwise it is delivered `now`, or `pending`, or `skipped`:
never delivered, though nobody has it.

Not played: a damaged timer, timers and transactions in RocksDB, popped messages in kvStore, a slave.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field

from formats import properties as props, timer
from formats.basics import hash32
from formats.config.tables import read_consumer_offsets, read_delay_offsets
from formats.properties import OFFSET_DIGITS, QUEUE_ID_DIGITS, TIME_DIGITS, is_number
from formats.record import SERVICE_TOPICS, TOPIC_HALF, TOPIC_OP_HALF, TOPIC_SCHEDULE, Record
from formats.record.layout import HEAD
from formats.record.message import RETRY_PREFIX, TOPIC_TIMER
from recover.broker import versions
from recover.broker.settings import BrokerSettings, delay_of
from recover.findings.code import N_, Severity
from recover.findings.model import Finding, Phrase, finding, listing
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.predict.dispatch import Key
from recover.predict.queues import UNIT, QueueState
from recover.predict.timers import PRECISION_MS, TimerStart, start_timer
from recover.store.config_files import DELAYS_FILE, LMQ_OFFSETS_FILE, OFFSET_FILES, OFFSETS_FILE, Topics, topic_text
from recover.store.derived_files import ExtFiles
from recover.store.store import Store

Kind = Literal["delay", "timer", "half", "revive"]
Outcome = Literal["again", "now", "pending", "skipped"]
Identity = tuple[str, int, str, int, int, int]
_Head = tuple[int, int]
_HEAD = struct.Struct(f">{HEAD.offset('body_crc')}xi{HEAD.offset('born_timestamp') - HEAD.offset('body_crc') - 4}xq")
"""The body CRC and the born timestamp (ms) of a record: at the same places in every layout."""
States = Mapping[Key, QueueState]

HALF_GROUP = "CID_RMQ_SYS_TRANS"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_"
SERVICES = (versions.SEVERAL_ENDED, versions.TIMERS)
"""The behaviours of releases that decide what services deliver, beside settings."""
_CHECK_POINT, _ACK, _ACKS = "ck", "ack", "bAck"
_REVIVE_CODES = frozenset(hash32(tag) for tag in (_CHECK_POINT, _ACK, _ACKS))
_REVIVE_SLACK_MS = 2000
"""A check point is revived when the newest message of its queue is later than its time by this (PopReviveService)."""
_LAG_MS = 60_000
"""Files of offsets and times lack no more than the deliveries of this time after a kill."""
_HOUR_MS = 3600 * 1000
_SAMPLES = 5


class Event(NamedTuple):
    """One message that a service of the broker holds, and what its start does to it.

    `topic`, `queue`: where consumers get it. `level`: of a delay. `due` (ms): when it may be delivered; None if that is
    not known. `place`, `number`, `phy_offset`: the queue that holds it, its offset there and in the log. `checks`: how
    often a producer was asked. `born`: ms.
    """

    kind: Kind
    outcome: Outcome
    topic: str
    queue: int
    level: int | None
    due: int | None
    place: str
    number: int
    phy_offset: int
    key: str
    born: int
    stored: int
    checks: int = 0
    group: str = ""


class Row(Struct):
    """Counts of messages of one kind, real topic and delay level. `until`: the latest due time of those pending, ms."""

    kind: Kind
    topic: str
    level: int | None
    again: int = 0
    now: int = 0
    pending: int = 0
    skipped: int = 0
    until: int | None = None


class Delivers(Struct):
    """The rows of a start, and unique keys of some messages by outcome. `discards_stated`: a setting was given that
    decides which half messages are discarded; without it only a default says so."""

    rows: list[Row] = field(default_factory=list)
    samples: dict[str, list[str]] = field(default_factory=dict)
    discards_stated: bool = False

    def findings(self, broker: str) -> Iterator[Finding]:
        half = [row for row in self.rows if row.kind == "half"]
        others = [row for row in self.rows if row.kind != "half"]
        told: tuple[tuple[str, list[Row], Outcome, Severity | None], ...] = (
            ("start-skips-waiting", others, "skipped", None),
            ("start-discards-half", half, "skipped", "error" if self.discards_stated else None),
            ("start-delivers-again", self.rows, "again", None),
            ("start-delivers-overdue", self.rows, "now", None),
        )
        for code, rows, outcome, severity in told:
            rows = [row for row in rows if getattr(row, outcome)]
            if rows:
                yield finding(
                    code, broker=broker, count=sum(getattr(row, outcome) for row in rows), kinds=_kinds(rows, outcome),
                    topics=sorted({row.topic for row in rows}), samples=self.samples.get(outcome, []),
                    severity=severity,
                )


_WORDS = {"delay": N_("{n} delayed"), "timer": N_("{n} timer"), "half": N_("{n} half"), "revive": N_("{n} popped")}


def _kinds(rows: list[Row], outcome: str) -> str:
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.kind] += getattr(row, outcome)
    return listing(Phrase(_WORDS[kind], n=number) for kind, number in counts.items())


# --- Records, and where the log holds them a second time.


class _Sought(NamedTuple):
    """What was looked for in a topic: the heads, since when (ms), and the last offset of each message found."""

    heads: set[_Head]
    since: int
    found: dict[Identity, int]


class _Held(NamedTuple):
    """One record of a service's queue: where its message belongs, how it is known again, and its properties."""

    identity: Identity
    phy_offset: int
    queue_offset: int
    stored: int
    born: int
    key: str
    values: dict[str, str]
    body: bytes

    @property
    def head(self) -> _Head:
        """What a copy of it has in its head, too."""
        return self.identity[-1], self.born


class Books:
    """The log of a store as services of brokers read it at a time `now` (ms). Keeps what it has read, so that several
    releases can be asked."""

    def __init__(self, store: Store, log: LogView, topics: Topics, now: int) -> None:
        self.store, self.log, self.topics, self.now = store, log, topics, now
        self._held: dict[int, _Held | None] = {}
        self._copies: dict[str, _Sought] = {}

    def held(self, reader: LogReader, phy_offset: int, size: int) -> _Held | None:
        """The record of this size there; None if there is none that a broker could read."""
        if phy_offset not in self._held:
            record = reader.find(phy_offset, size) if size > 0 and self.log.min_offset <= phy_offset else None
            self._held[phy_offset] = None if record is None else _held(record)
        return self._held[phy_offset]

    def delivered(self, reader: LogReader, held: Iterable[_Held], *, earlier: bool = False) -> set[int]:
        """The offsets of those that the log holds where they would be delivered, stored later (`earlier`: at any time
        since their birth)."""
        by_topic: dict[str, list[_Held]] = defaultdict(list)
        for item in held:
            by_topic[item.identity[0]].append(item)
        return {item.phy_offset for topic, items in by_topic.items()
                for copies in [self._copies_of(reader, topic, {item.head for item in items}, min(
                    min(item.stored, item.born - _LAG_MS) if earlier else item.stored for item in items))]
                for item in items if copies.get(item.identity, -1) > (-1 if earlier else item.phy_offset)}

    def _copies_of(self, reader: LogReader, topic: str, heads: set[_Head], since: int) -> dict[Identity, int]:
        """The last offset of each message of a topic that has one of these heads and was stored at `since` (ms) or
        later. Of all others only the head is read: a log has few messages that were delayed, and millions beside."""
        sought = self._copies.get(topic)
        if sought is not None and sought.since <= since and heads <= sought.heads:
            return sought.found
        if sought is not None:
            heads, since = heads | sought.heads, min(since, sought.since)
        numbers = [number for number, (name, _) in enumerate(self.log.queues) if topic_text(name) == topic]
        copies: dict[Identity, int] = {}
        for rows in self.log.rows_of(numbers, since):
            for phy_offset, size in zip(rows["phy_offset"].tolist(), rows["size"].tolist(), strict=True):
                record = reader.find(phy_offset, size) if _head_at(reader, phy_offset) in heads else None
                if record is not None:
                    copies[_identity(record, topic, record.queue_id, record.reconsume_times)] = record.phy_offset
        self._copies[topic] = _Sought(heads, since, copies)
        return copies

    def offset(self, settings: BrokerSettings, topic: str, group: str, queue: int) -> int:
        """A committed offset in the file that this broker reads; -1 if there is none."""
        by_name = {pair.name: pair for pair in self.topics.pairs if pair.name in OFFSET_FILES}
        name = LMQ_OFFSETS_FILE if settings.flag("enableLmq") else OFFSETS_FILE
        if "enableLmq" not in settings.given and not by_name[name].present:
            name = LMQ_OFFSETS_FILE
        chosen = by_name[name].chosen
        known = {} if chosen is None else read_consumer_offsets(chosen.value).offsets
        return known.get((topic, group), {}).get(queue, -1)


def _held(record: Record) -> _Held:
    values = record.property_map()
    topic, queue = record.topic_name, record.queue_id
    if topic in SERVICE_TOPICS and (real := values.get(props.REAL_TOPIC)):
        number = values.get(props.REAL_QID, "")
        topic, queue = real, int(number) if is_number(number, QUEUE_ID_DIGITS) else queue
    return _Held(_identity(record, topic, queue, record.reconsume_times), record.phy_offset, record.queue_offset,
                 record.store_timestamp, record.born_timestamp, values.get(props.UNIQ_KEY, ""), values, record.body)


def _identity(record: Record, topic: str, queue: int, times: int) -> Identity:
    return topic, queue, record.uniq_key or "", record.born_timestamp, times, record.body_crc


def _head_at(reader: LogReader, phy_offset: int) -> _Head | None:
    """The body CRC and the birth of the record there; None where the log cannot be read."""
    try:
        content = reader.read(phy_offset, _HEAD.size)
    except OSError:
        return None
    crc, born = _HEAD.unpack(content) if len(content) == _HEAD.size else (0, 0)
    return crc, born


def _units(state: QueueState, first: int, last: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """(queue offset, phy offset, size, tags code) from `first` on, before `last`."""
    for queue_file in state.files:
        units = queue_file.valid()
        base = queue_file.start // UNIT
        low, high = max(0, first - base), units.size if last is None else min(units.size, last - base)
        for index in range(low, max(low, high)):
            phy_offset, size, tags_code = units[index].tolist()
            yield base + index, phy_offset, size, tags_code


# --- The services.


def keeps_for_later(log: LogView) -> bool:
    """Whether the log has messages that services of brokers deliver."""
    topics = {topic_text(topic) for topic, _ in log.queues}
    return not topics.isdisjoint((TOPIC_SCHEDULE, TOPIC_TIMER, TOPIC_HALF)) or any(
        topic.startswith(REVIVE_TOPIC) for topic in topics)


def events(books: Books, settings: BrokerSettings, states: States) -> Iterator[Event]:
    """Yield what a broker of these settings does with each message that its services hold, once its queues are as in
    `states`."""
    serves = settings.text("brokerRole").upper() != "SLAVE"
    with LogReader(books.log.queue) as reader:
        for service in (_delayed, _timers, _half, _popped):
            for event in service(books, reader, settings, states):
                yield event if serves or event.outcome not in ("again", "now") else event._replace(outcome="pending")


def delivers(books: Books, settings: BrokerSettings, states: States) -> Delivers:
    """Add the events of a start up to one row for each kind, topic and level."""
    found = [*events(books, settings, states)]
    samples: dict[str, list[str]] = defaultdict(list)
    for event in found:
        if len(samples[event.outcome]) < _SAMPLES and event.key:
            samples[event.outcome].append(event.key)
    stated = bool({"transactionCheckMax", "fileReservedTime"} & settings.given.keys())
    return Delivers(rows_of(found), dict(samples), stated)


def rows_of(those: Iterable[Event]) -> list[Row]:
    """Add events up by kind, topic and level."""
    rows: dict[tuple[str, str, int], Row] = {}
    for event in those:
        row = rows.setdefault((event.kind, event.topic, event.level or 0), Row(event.kind, event.topic, event.level))
        setattr(row, event.outcome, getattr(row, event.outcome) + 1)
        if event.outcome == "pending" and event.due is not None:
            row.until = max(event.due, row.until or 0)
    return [rows[key] for key in sorted(rows)]


def _event(kind: Kind, outcome: Outcome, held: _Held, place: str, due: int | None, **more: Any) -> Event:
    topic, queue = held.identity[:2]
    return Event(kind, outcome, topic, queue, more.pop("level", None), due, place, held.queue_offset, held.phy_offset,
                 held.key, held.born, held.stored, **more)


def _delayed(books: Books, reader: LogReader, settings: BrokerSettings, states: States) -> Iterator[Event]:
    (pair,) = (pair for pair in books.topics.pairs if pair.name == DELAYS_FILE)
    offsets = {} if pair.chosen is None else read_delay_offsets(pair.chosen.value)
    for (topic, queue_id), state in sorted(states.items()):
        level = queue_id + 1
        if topic == TOPIC_SCHEDULE and level in settings.delay_table:
            first = max(offsets.get(level, 0), state.min_offset)
            yield from _of_level(books, reader, state, level, first, delay_of(settings.delay_table, level))


def _of_level(
    books: Books, reader: LogReader, state: QueueState, level: int, first: int, delay: int,
) -> Iterator[Event]:
    """`first`: the queue offset at which the level goes on; `delay`: of the level, ms."""
    ext, newest = ExtFiles(books.store, state.topic, state.queue_id), books.log.tally.newest_timestamp
    due: list[tuple[_Held, int]] = []
    passed: list[tuple[_Held, int]] = []
    later: list[tuple[_Held, int]] = []
    for number, phy_offset, size, tags_code in _units(state, state.min_offset):
        deliver = int(ext.tags_codes(np.array([tags_code]))[0])
        if number < first and deliver <= newest - _LAG_MS:
            continue
        held = books.held(reader, phy_offset, size)
        if held is None:
            continue
        # what is due later than its level allows is due at once (correctDeliverTimestamp)
        is_due = deliver <= books.now or deliver > books.now + delay
        (passed if number < first else later if later or not is_due else due).append((held, deliver))
    known = books.delivered(reader, [held for held, _ in due + passed])
    told: list[tuple[Outcome, _Held, int]] = [
        *(("skipped", *each) for each in passed if each[0].phy_offset not in known),
        *(("again" if each[0].phy_offset in known else "now", *each) for each in due),
        *(("pending", *each) for each in later),
    ]
    for outcome, held, deliver in told:
        yield _event("delay", outcome, held, f"{state.topic}/{state.queue_id}", deliver, level=level)


class _Found(NamedTuple):
    """A timer message that a start finds: in its queue, or by a unit of the timerlog. `due`: ms, of a unit that is
    rolled on (`rolls`) the next roll."""

    held: _Held
    due: int
    by_unit: bool
    rolls: bool

    @property
    def name(self) -> tuple[str, int]:
        """What recalls name it by: unique key and second."""
        return self.held.key, self.due // PRECISION_MS


def _timers(books: Books, reader: LogReader, settings: BrokerSettings, states: States) -> Iterator[Event]:
    state = states.get((TOPIC_TIMER, 0))
    if state is None or not (settings.knows("timerWheelEnable") and settings.flag("timerWheelEnable")):
        return

    def queue_offset_at(phy_offset: int, size: int) -> int | None:
        held = books.held(reader, phy_offset, size)
        return None if held is None else held.queue_offset

    loaded = start_timer(books.store, state, books.now, queue_offset_at)
    all_of = [*_found(books, reader, state, loaded)]
    recalled = {(name, one.due // PRECISION_MS) for one in all_of if (name := _recalled_by(one.held)) is not None}
    found = [one for one in all_of if one.name not in recalled and _recalled_by(one.held) is None
             and not _revives(one.held)]
    known = books.delivered(reader, [one.held for one in found])
    place, seen = f"{TOPIC_TIMER}/0", set(known)
    for held, due, by_unit, rolls in found:
        if not by_unit or due // PRECISION_MS * PRECISION_MS >= loaded.read_from:
            # a message that is rolled on is stored once more in the timer's own queue
            pending = due > books.now or rolls
            yield _event("timer", _once(held, seen, pending=pending), held, place, _out_time(held) or due)
        elif held.phy_offset not in known and not rolls:
            yield _event("timer", "skipped", held, place, due)


def _found(books: Books, reader: LogReader, state: QueueState, loaded: TimerStart) -> Iterator[_Found]:
    units = loaded.units
    near = units.due >= min(loaded.delivered, books.log.tally.newest_timestamp) - _LAG_MS
    for due, phy_offset, size, magic in zip(*(column[near].tolist() for column in units[1:]), strict=True):
        held = books.held(reader, phy_offset, size)
        if held is not None:
            yield _Found(held, due, by_unit=True, rolls=bool(magic & timer.MAGIC_ROLL))
    for _, phy_offset, size, _ in _units(state, loaded.queue_from):
        held = books.held(reader, phy_offset, size)
        if held is not None:
            yield _Found(held, _out_time(held), by_unit=False, rolls=False)


def _recalled_by(held: _Held) -> str | None:
    """The unique key of the timer message that this one takes back; None if it takes back none."""
    name = held.values.get(props.TIMER_DEL_UNIQKEY)
    return None if name is None else name.rpartition("+")[2]


class TimerMessage(NamedTuple):
    """A message of the timer's queue that a timerlog needs; `recalls`: it takes back another one. `due`: ms."""

    due: int
    phy_offset: int
    size: int
    queue_offset: int
    topic: str
    recalls: bool


def timers_of_log(books: Books, reader: LogReader) -> list[Event]:
    """The timer messages of the log that wait: not recalled, not stored once more to be rolled on, not delivered."""
    waiting, recalled, _ = _timers_in(books, reader)
    left = [(held, _out_time(held)) for held, _ in waiting]
    return [_event("timer", "pending" if due > books.now else "now", held, f"{TOPIC_TIMER}/0", due)
            for held, due in left if (held.key, due // PRECISION_MS) not in recalled]


def timer_messages(books: Books, reader: LogReader) -> tuple[list[TimerMessage], TimerMessage | None]:
    """Return what waits and what recalls it, in the order of the queue, and the last message of the queue, if any."""
    waiting, recalled, last = _timers_in(books, reader)
    needed = {(held.key, _out_time(held) // PRECISION_MS) for held, _ in waiting}
    all_of = [*waiting, *(item for name, item in recalled.items() if name in needed)]
    found = sorted((_timer_message(held, size) for held, size in all_of), key=lambda each: each.queue_offset)
    return found, None if last is None else _timer_message(*last)


def _timer_message(held: _Held, size: int) -> TimerMessage:
    return TimerMessage(_out_time(held), held.phy_offset, size, held.queue_offset, held.identity[0],
                        _recalled_by(held) is not None)


def _timers_in(
    books: Books, reader: LogReader,
) -> tuple[list[tuple[_Held, int]], dict[tuple[str, int], tuple[_Held, int]], tuple[_Held, int] | None]:
    """Messages with their sizes: those that are neither rolled on nor delivered, recalls by what they recall, the last
    one."""
    numbers = [number for number, queue in enumerate(books.log.queues) if queue == (TOPIC_TIMER.encode(), 0)]
    found: dict[Identity, tuple[_Held, int]] = {}
    recalls: dict[tuple[str, int], tuple[_Held, int]] = {}
    last: tuple[_Held, int] | None = None
    for rows in books.log.rows_of(numbers):
        for row in rows:
            held, size = books.held(reader, int(row["phy_offset"]), int(row["size"])), int(row["size"])
            if held is None:
                continue
            if last is None or held.queue_offset > last[0].queue_offset:
                last = held, size
            key = _recalled_by(held)
            if key is not None:
                recalls[key, _out_time(held) // PRECISION_MS] = held, size
            else:
                found[held.identity] = held, size
    known = books.delivered(reader, [held for held, _ in found.values()])
    return [item for item in found.values() if item[0].phy_offset not in known], recalls, last


def _once(held: _Held, seen: set[int], *, pending: bool) -> Outcome:
    """What becomes of a message that is due: a second copy if it was delivered, now or before."""
    if pending:
        return "pending"
    outcome: Outcome = "again" if held.phy_offset in seen else "now"
    seen.add(held.phy_offset)
    return outcome


def _out_time(held: _Held) -> int:
    due = held.values.get(props.TIMER_OUT_MS, "")
    return int(due) if is_number(due, TIME_DIGITS) else 0


def _half(books: Books, reader: LogReader, settings: BrokerSettings, states: States) -> Iterator[Event]:
    state = states.get((TOPIC_HALF, 0))
    if state is None or settings.flag("transRocksDBEnable"):
        return
    first = max(state.min_offset, books.offset(settings, TOPIC_HALF, HALF_GROUP, 0))
    ended = _ended(books, reader, settings, states)
    when = books.now + settings.number("transactionCheckInterval")
    open_ones = [held for number, phy_offset, size, _ in _units(state, first)
                 if number not in ended and (held := books.held(reader, phy_offset, size)) is not None]
    # a check stores a half message again, also behind its commit
    known = books.delivered(reader, open_ones, earlier=True)
    as_half = [held._replace(identity=(TOPIC_HALF, 0, *held.identity[2:])) for held in open_ones]
    known |= books.delivered(reader, as_half)
    waits = False
    for held in open_ones:
        checks = _number(held.values.get(props.TRANSACTION_CHECK_TIMES, "0"))
        immune = held.values.get("CHECK_IMMUNITY_TIME_IN_SECONDS")
        immunity = settings.number("transactionTimeOut") if immune is None else 1000 * _number(immune)
        age = when - held.born
        # the check stops at the first message that is too young for it, and goes on with those behind it later
        waits = waits or (immune is None and 0 <= age < immunity)
        outcome: Outcome = "again" if held.phy_offset in known else "now"
        if waits or (immune is not None and age < immunity):
            outcome = "pending"
        elif checks >= settings.number("transactionCheckMax") or (
                age > settings.number("fileReservedTime") * _HOUR_MS):
            outcome = "skipped"
        yield _event("half", outcome, held, f"{TOPIC_HALF}/0", held.born + immunity, checks=checks,
                     group=held.values.get(props.PGROUP, ""))


def _ended(books: Books, reader: LogReader, settings: BrokerSettings, states: States) -> set[int]:
    """The queue offsets of half messages that op messages end, those from the committed offset on."""
    state = states.get((TOPIC_OP_HALF, 0))
    if state is None:
        return set()
    several = settings.version.has(versions.SEVERAL_ENDED)
    first = max(state.min_offset, books.offset(settings, TOPIC_OP_HALF, HALF_GROUP, 0))
    found: set[int] = set()
    for _, phy_offset, size, _ in _units(state, first):
        held = books.held(reader, phy_offset, size)
        text = "" if held is None else held.body.decode("ascii", "replace")
        found.update(_number(part) for part in (text.split(",") if several else [text]) if _is_offset(part))
    return found


def _is_offset(text: str) -> bool:
    return is_number(text, OFFSET_DIGITS)


def _number(text: str) -> int:
    return int(text) if is_number(text, OFFSET_DIGITS) else 0


# --- POP: check points, in the revive queues or still in the timer.


def _revives(held: _Held) -> bool:
    return held.identity[0].startswith(REVIVE_TOPIC)


class _CheckPoint(NamedTuple):
    held: _Held
    topic: str
    group: str
    queue: int
    start: int
    popped: int
    invisible: int
    offsets: list[int]

    @property
    def name(self) -> tuple[str, str, int, int, int]:
        return self.topic, self.group, self.queue, self.start, self.popped


def _popped(books: Books, reader: LogReader, settings: BrokerSettings, states: States) -> Iterator[Event]:
    """Of each check point the messages that no acknowledgement names."""
    points: dict[tuple[str, str, int, int, int], _CheckPoint] = {}
    acked: dict[tuple[str, str, int, int, int], set[int]] = defaultdict(set)
    for item in _of_revival(books, reader, settings, states):
        told = _told(item.body)
        tag = item.values.get(props.TAGS)
        if told is None:
            continue
        if tag == _CHECK_POINT:
            point = _check_point(item, told)
            points[point.name] = point
        elif tag in (_ACK, _ACKS):
            name = (str(told.get("t")), str(told.get("c")), _int(told, "q"), _int(told, "so"), _int(told, "pt"))
            acked[name].update(told.get("aol") or [_int(told, "ao")])
    for point in points.values():
        left = [offset for offset in point.offsets if offset not in acked[point.name]]
        due = point.popped + point.invisible
        yield from _revived(books, reader, point, left, due, states)


def _of_revival(books: Books, reader: LogReader, settings: BrokerSettings, states: States) -> Iterator[_Held]:
    """Check points and acknowledgements, those of the revive queues first."""
    for (topic, queue), state in sorted(states.items()):
        if topic.startswith(REVIVE_TOPIC):
            first = books.offset(settings, topic, REVIVE_GROUP, queue) + 1
            read = (books.held(reader, phy_offset, size)
                    for _, phy_offset, size, _ in _units(state, max(first, state.min_offset)))
            yield from (item for item in read if item is not None)
    timers = states.get((TOPIC_TIMER, 0))
    if timers is not None:
        # they wait in the timer for their time; a tag tells them from other timer messages
        waiting = [item for _, phy_offset, size, tags_code in _units(timers, timers.min_offset)
                   if tags_code in _REVIVE_CODES
                   and (item := books.held(reader, phy_offset, size)) is not None and _revives(item)]
        known = books.delivered(reader, waiting)
        yield from (item for item in waiting if item.phy_offset not in known)


def _revived(
    books: Books, reader: LogReader, point: _CheckPoint, left: list[int], due: int, states: States,
) -> Iterator[Event]:
    state = states.get((point.topic, point.queue))
    if state is None:
        return
    for offset in left:
        for _, phy_offset, size, _ in _units(state, offset, offset + 1):
            held = books.held(reader, phy_offset, size)
            if held is None:
                continue
            retry = point.topic if point.topic.startswith(RETRY_PREFIX) else None
            targets = [retry] if retry else [f"{RETRY_PREFIX}{point.group}{join}{point.topic}" for join in "_+"]
            again = [held._replace(identity=(name, 0, *held.identity[2:4], held.identity[4] + 1, held.identity[5]))
                     for name in targets]
            pending = due + _REVIVE_SLACK_MS > books.now
            delivered = bool(books.delivered(reader, again))
            outcome: Outcome = "again" if delivered and not pending else "pending" if pending else "now"
            yield _event("revive", outcome, held, f"{point.held.identity[0]}/{point.held.identity[1]}", due,
                         group=point.group)._replace(topic=point.topic, queue=point.queue, number=offset)


def _check_point(held: _Held, told: dict[str, Any]) -> _CheckPoint:
    start, count = _int(told, "so"), _int(told, "n")
    differences = told.get("d") or list(range(count))
    offsets = [start + difference for at, difference in enumerate(differences) if not _int(told, "bm") >> at & 1]
    return _CheckPoint(held, str(told.get("t")), str(told.get("c")), _int(told, "q"), start, _int(told, "pt"),
                       _int(told, "it"), offsets)


def _told(body: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(body)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _int(told: dict[str, Any], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) else 0

