"""The life of one message, from all records with its unique key: half, op, commit, waits, deliveries, retries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal

from msgspec import Struct, field

from formats import properties as props
from formats.properties import TIME_DIGITS, is_number
from formats.record import TOPIC_HALF, TOPIC_OP_HALF, TOPIC_SCHEDULE, Record, decode
from formats.record.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TOPIC_CHECK_MAX,
    TOPIC_ROCKSDB_HALF,
    TOPIC_ROCKSDB_OP_HALF,
    TOPIC_TIMER,
    offset_id,
)
from formats.sysflag import TRANSACTION_COMMIT
from recover.export.messages import real_destination
from recover.export.select import FOREVER, Wanted, scan_for, selected
from recover.export.sources import Scanned
from recover.findings.code import N_, Refusal
from recover.findings.model import Phrase
from recover.look.query import (
    Answer,
    deliver_time,
    known_topics,
    query_id,
    query_key,
    query_place,
    query_time,
    queue_records,
)
from recover.predict.groups import GroupRow, committed_rows, offsets_in_rocksdb
from recover.store.config_files import OFFSET_FILES, read_pairs
from recover.store.store import Store

HalfName = tuple[str, int, str]
_OP_TOPICS = {TOPIC_HALF: TOPIC_OP_HALF, TOPIC_ROCKSDB_HALF: TOPIC_ROCKSDB_OP_HALF}
_READ = frozenset({"sent", "committed", "delivered", "retry", "dead-letter"})
_LIVES = 20
_MOST = 500_000
"""How many messages of a queue after a half message are searched for the one that ends it."""


Stage = Literal[
    "sent", "half", "committed", "op", "discarded", "waiting", "delivered", "recall", "retry", "dead-letter"]


class Event(Struct):
    """One record of a life. `stage`: sent, half, discarded, op, committed, waiting, recall, delivered, retry,
    dead-letter.

    `topic` and `queue` are those of the record; `target` is the topic that it is for. `due`: when a waiting message is
    delivered, ms. `group`: of a retry or dead letter. `note`: further facts from the record.
    """

    stage: Stage
    topic: str
    queue: int
    queue_offset: int
    phy_offset: int
    store_time: int
    msg_id: str
    target: str
    reconsume_times: int = 0
    due: int | None = None
    group: str | None = None
    note: str | None = None


class Offset(Struct):
    """What a group's committed offset says about a record in a queue that it reads."""

    group: str
    topic: str
    queue: int
    queue_offset: int
    committed: int
    consumed: bool


class MessageHistory(Struct):
    """One message: its records in the order in which they were stored, its outcome so far, and consumers."""

    unique_key: str | None
    keys: str | None
    topic: str
    ended: str
    events: list[Event] = field(default_factory=list)
    consumers: list[Offset] = field(default_factory=list)


def trace(store: Store, name: str, scanned: Scanned | None = None) -> tuple[list[MessageHistory], Answer]:
    """Return the lives of the messages with this id, unique key or key, and the search: in the `scanned` log, or
    through the index. `Refusal` (8) if the index cannot be used."""
    found = query_id(store, name) if scanned is None else _scan(scanned, store, name)
    if scanned is None and not found.messages and not known_topics(store):
        raise Refusal("an index lookup needs the topics, and these are unknown",
                      "`{typed} --scan` scans the whole log instead.")
    by_key = _by_key(store, found, by_index=scanned is None)
    ops = None if scanned is None else _scanned_ops(scanned, by_key.values(), found)
    offsets = offsets_in_rocksdb(store)
    pairs = [pair for pair in read_pairs(store) if pair.name in OFFSET_FILES]
    committed = [row for pair in pairs for row in committed_rows(pair, offsets)]
    for line in offsets:
        found.incomplete(line)
    if ops is None:
        _note_lost_ops(store, by_key.values(), committed, found)
    lives = []
    for key, records_at in by_key.items():
        records = [records_at[at] for at in sorted(records_at)]
        for group in ([[record] for record in records] if key is None else [records]):
            life = _life(store, key, group, found, ops)
            life.consumers = [*_consumers(life.events, committed)]
            lives.append(life)
    return lives, found


def _scan(scanned: Scanned, store: Store, name: str) -> Answer:
    """Search a log that was scanned: for a place, and for the unique key of the message there; else for a key."""
    found = query_place(store, name) or Answer("scan")
    key = found.messages[0].record.uniq_key if found.messages else name
    return found if key is None else scan_for(scanned, Wanted(key=key, include=frozenset({"system"})))


def _by_key(store: Store, found: Answer, *, by_index: bool) -> dict[str | None, dict[int, Record]]:
    """The records of each unique key by their place; the index leads to more of them than the first search found."""
    keys = list(dict.fromkeys(item.record.uniq_key for item in found.messages))
    if len(keys) > _LIVES:
        found.more, found.left_out = True, len(keys) - _LIVES
    by_key: dict[str | None, dict[int, Record]] = {}
    for key in keys[:_LIVES]:
        records = [item.record for item in found.messages if item.record.uniq_key == key]
        if key is not None and by_index:
            more = query_key(store, known_topics(store), key)
            records += [item.record for item in more.messages]
            found.complete &= more.complete
            found.notes += [note for note in more.notes if note not in found.notes]
            found.damaged += [item for item in more.damaged if item not in found.damaged]
        by_key[key] = {record.phy_offset: record for record in records}
    return by_key


def _note_lost_ops(
    store: Store, lives: Iterable[dict[int, Record]], committed: list[GroupRow], found: Answer,
) -> None:
    """Note each queue of op messages that is not there, although half messages of these lives may have been ended."""
    queues = {(folder.topic, folder.queue_id) for folder in store.queue_folders}
    halves = {(record.topic_name, record.queue_id) for life in lives for record in life.values()
              if record.topic_name in _OP_TOPICS}
    for topic, queue in sorted(halves):
        # before the first op message they have no queue
        of_ops = _OP_TOPICS[topic], queue
        were_read = any((row.topic, row.queue) == of_ops and row.committed for row in committed)
        if of_ops not in queues and (were_read or (topic, queue) not in queues):
            found.incomplete(Phrase("there is no consume queue {topic}/{queue}; --scan searches the log instead",
                                    topic=of_ops[0], queue=queue))


def _consumers(events: list[Event], committed: list[GroupRow]) -> Iterator[Offset]:
    """What the committed offsets say about the records that consumers read."""
    for event in events:
        if event.stage in _READ:
            for row in committed:
                if (row.topic, row.queue) == (event.topic, event.queue):
                    yield Offset(row.group, row.topic, row.queue, event.queue_offset, row.committed,
                                 row.committed > event.queue_offset)


def _life(
    store: Store, key: str | None, records: list[Record], found: Answer, ops: dict[HalfName, Record] | None,
) -> MessageHistory:
    events = [_event(store, record) for record in records]
    for half in (record for record in records if record.topic_name in _OP_TOPICS):
        _add_end(store, half, events, found, ops)
    events.sort(key=lambda event: event.phy_offset)
    waited: set[str] = set()
    for event in events:
        if event.stage == "waiting":
            waited.add(event.target)
        elif event.stage == "sent" and event.topic in waited:
            event.stage = "delivered"
    first = records[0]
    target = next((event.target for event in events if event.stage != "op"), first.topic_name)
    sure = found.complete and not found.damaged and not found.damaged_ranges
    return MessageHistory(key, first.keys, target, _ended(events, sure=sure), events)


def _add_end(
    store: Store, half: Record, events: list[Event], found: Answer, ops: dict[HalfName, Record] | None
) -> None:
    """Add to the events what ended a half message: its op message, and the message if that committed it."""
    op = _op_of(store, half, found) if ops is None else ops.get(_half_name(half))
    if op is None or any(event.phy_offset == op.phy_offset for event in events):
        return
    event = _event(store, op)
    event.stage, event.target, event.note = "op", half.topic_name, Phrase(
        "ends the half message {offset}", offset=half.queue_offset)
    events.append(event)
    if ops is None and all(event.stage != "committed" for event in events):
        commit = _commit_of(store, half, op, found)
        events += [] if commit is None else [_event(store, commit)]


def _event(store: Store, record: Record) -> Event:
    values = record.property_map()
    topic = record.topic_name
    target, _, _ = real_destination(topic, record.queue_id, values)
    event = Event("sent", topic, record.queue_id, record.queue_offset, record.phy_offset, record.store_timestamp,
                  offset_id(*record.store_host, record.phy_offset), target, record.reconsume_times)
    if topic in _OP_TOPICS:
        event.stage = "half"
        checks = values.get(props.TRANSACTION_CHECK_TIMES)
        event.note = Phrase(
            "producer group {group}" if not checks else "producer group {group}, checked {n} time" if checks == "1" else
            "producer group {group}, checked {n} times", group=values.get(props.PGROUP), n=checks)
    elif topic == TOPIC_CHECK_MAX:
        event.stage = "discarded"
    elif topic == TOPIC_SCHEDULE:
        event.stage, event.note = "waiting", Phrase("delay level {level}", level=values.get(props.DELAY))
        event.due = deliver_time(store, topic, record.queue_id, record.queue_offset)
    elif topic == TOPIC_TIMER:
        out = values.get(props.TIMER_OUT_MS, "")
        event.stage, event.note = ("recall" if props.TIMER_DEL_UNIQKEY in values else "waiting"), N_("timer")
        event.due = int(out) if is_number(out, TIME_DIGITS) else None
    elif topic.startswith(RETRY_PREFIX):
        event.stage, event.group = "retry", topic.removeprefix(RETRY_PREFIX)
        event.note = Phrase("attempt {n}", n=str(record.reconsume_times + 1))
    elif topic.startswith(DLQ_PREFIX):
        event.stage, event.group = "dead-letter", topic.removeprefix(DLQ_PREFIX)
        event.note = Phrase("after {n} retries", n=str(record.reconsume_times))
    elif record.transaction_type == TRANSACTION_COMMIT:
        event.stage = "committed"
    return event


def _op_of(store: Store, half: Record, found: Answer) -> Record | None:
    """The op message that ends a half message: it is in the queue of the same number."""
    return _first_after(store, half, _OP_TOPICS[half.topic_name], half.queue_id, FOREVER, found,
                        lambda record: _half_name(half) in _ended_by(record))


def _half_name(half: Record) -> HalfName:
    """How an op message names a half message."""
    at = half.queue_offset if half.topic_name == TOPIC_HALF else half.phy_offset
    return _OP_TOPICS[half.topic_name], half.queue_id, str(at)


def _ended_by(op: Record) -> list[HalfName]:
    """The half messages that an op message names: by queue offset, from 5.0 on several; by log offset if the broker
    keeps transactions in RocksDB (TransactionalMessageRocksDBService)."""
    offset = op.get_property(props.TRANS_OFFSET)
    texts = op.body.decode("ascii", "replace").split(",") if offset is None else [offset]
    return [(op.topic_name, op.queue_id, text) for text in texts]


def _commit_of(store: Store, half: Record, op: Record, found: Answer) -> Record | None:
    """The committed message, which the index may lack: brokers store it in its own queue before the op message."""
    topic, queue, _ = real_destination(half.topic_name, half.queue_id, half.property_map())
    return _first_after(store, half, topic, queue, op.phy_offset, found, lambda record: (
        record.transaction_type == TRANSACTION_COMMIT and record.uniq_key == half.uniq_key))


def _first_after(
    store: Store, half: Record, topic: str, queue: int, before: int, found: Answer, fits: Callable[[Record], bool],
) -> Record | None:
    """The first record of a queue that was stored after a half message, and `before` an offset of the log, and fits."""
    looked = Answer("queue")
    try:
        start = query_time(store, topic, queue, half.store_timestamp).queue_offset
        for number, record in enumerate(queue_records(store, topic, queue, start or 0, looked)):
            if record.phy_offset >= before:
                break
            if fits(record):
                return record
            if number >= _MOST:
                found.incomplete(Phrase(
                    "of the messages of {topic} after half message {offset} {n} were read, and none ends it",
                    topic=topic, offset=half.queue_offset, n=f"{_MOST:,}"))
                break
    except Refusal:
        pass  # without a commit its topic has no queue; for that of op messages see `trace`
    except OSError as error:
        found.incomplete(Phrase("messages of {topic} could not be searched: {error}", topic=topic, error=str(error)))
    if looked.damaged:
        found.damaged += [item for item in looked.damaged if item not in found.damaged]
        found.incomplete(Phrase(
            "{n:message} of {topic} after half message {offset} cannot be read, and may end it", n=len(looked.damaged),
            topic=topic, offset=half.queue_offset))
    return None


def _scanned_ops(
    scanned: Scanned, lives: Iterable[dict[int, Record]], found: Answer,
) -> dict[HalfName, Record]:
    """The first op message in the log for each half message."""
    halves = {_half_name(record): at for life in lives for at, record in life.items()
              if record.topic_name in _OP_TOPICS}
    ops: dict[HalfName, Record] = {}
    if halves:
        wanted = Wanted(topics=tuple(_OP_TOPICS.values()), include=frozenset({"system"}))
        for _, content in selected(scanned, wanted, found.incomplete):
            op = decode(content, check_crc=False)
            for name in _ended_by(op):
                if name in halves and op.phy_offset > halves[name]:
                    ops.setdefault(name, op)
    return ops


def _ended(events: list[Event], *, sure: bool) -> str:
    """How the life of a message has ended so far, in words. `sure`: nothing that could end it was left unread."""
    stages = {event.stage for event in events}
    last = events[-1] if events[-1].stage != "op" or len(events) == 1 else events[-2]
    if "dead-letter" in stages:
        return Phrase("given up by group {group}",
                      group=next(event.group for event in events if event.stage == "dead-letter"))
    if "half" in stages and "committed" not in stages:
        return _uncommitted(stages, sure=sure)
    if "recall" in stages and "delivered" not in stages:
        return N_("recalled by its producer: not delivered")
    if (waits := _of_stage(events, "waiting")) and not any(
            event.topic == waits[-1].target and event.phy_offset > waits[-1].phy_offset for event in events):
        return Phrase("waiting for its delivery to {topic}", topic=waits[-1].target)
    if retries := _of_stage(events, "retry"):
        return Phrase("given to group {group} again, {note}", group=retries[-1].group, note=retries[-1].note)
    return N_("committed") if "committed" in stages else N_("delivered") if last.stage == "delivered" else N_("sent")


def _of_stage(events: list[Event], stage: str) -> list[Event]:
    return [event for event in events if event.stage == stage]


def _uncommitted(stages: Collection[str], *, sure: bool) -> str:
    """How a half message without a commit has ended so far."""
    if "op" in stages:
        return N_("rolled back: an op message ends it, and there is no commit") if sure else \
            N_("ended by an op message: rolled back, or its commit cannot be read")
    if "discarded" in stages:
        return N_("given up by the broker: its producer did not answer any check")
    return N_("open: neither committed nor rolled back") if sure else \
        N_("open, unless the commit or op message that ends it cannot be read")
