"""The life of one message, from all records with its unique key: half, op, commit, waits, deliveries, retries."""

from __future__ import annotations

from msgspec import Struct, field

from formats import properties as props
from formats.properties import TIME_DIGITS, is_number
from formats.record import TOPIC_HALF, TOPIC_OP_HALF, TOPIC_SCHEDULE, Record
from formats.record.message import DLQ_PREFIX, RETRY_PREFIX, TOPIC_TIMER, offset_id
from formats.sysflag import TRANSACTION_COMMIT
from recover.check.config import OFFSET_FILES
from recover.export.messages import real_place
from recover.export.select import Wanted, scan_for
from recover.findings.code import Refusal
from recover.findings.model import count
from recover.log.file_scan import ProgressCallback
from recover.log.scan import Engine
from recover.look.query import (
    Answer,
    deliver_time,
    has_key,
    known_topics,
    query_id,
    query_key,
    query_time,
    queue_records,
)
from recover.predict.groups import committed_rows
from recover.store.config_files import read_pairs
from recover.store.store import Store

_LIVES = 20
_OPS = 500_000
"""How many op messages after a half message are searched for the one that ends it."""


class Event(Struct):
    """One record of a life. `stage`: sent, half, op, committed, waiting, delivered, retry, dead-letter.

    `topic` and `queue` are those of the record; `target` is the topic that it is for. `due`: when a waiting message is
    delivered, ms. `group`: of a retry or dead letter. `note`: further facts from the record.
    """

    stage: str
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


class Life(Struct):
    """One message: its records in the order in which they were stored, its outcome so far, and consumers."""

    unique_key: str | None
    keys: str | None
    topic: str
    ended: str
    events: list[Event] = field(default_factory=list)
    consumers: list[Offset] = field(default_factory=list)


def trace(
    store: Store, name: str, *, engine: Engine | None = None, progress: ProgressCallback | None = None,
) -> tuple[list[Life], Answer]:
    """Return the lives of the messages with this id, unique key or key, and the search: through the index, or with an
    `engine` by a scan of the log. `Refusal` (8) if the index cannot be used."""
    found = query_id(store, name) if engine is None else _at_place(store, name)
    if engine is not None:
        placed = found.messages[0].record.uniq_key if found.messages else name
        if placed is not None:
            wanted = Wanted(key=placed, include=frozenset({"system"}))
            found = scan_for(store, wanted, engine=engine, progress=progress)
    keys = list(dict.fromkeys(item.record.uniq_key for item in found.messages))
    if len(keys) > _LIVES:
        found.more, found.left_out = True, len(keys) - _LIVES
    if engine is None and not found.messages and not known_topics(store):
        raise Refusal("an index finds messages by topic, and which topics there are is not known",
                      "Add --scan to look through the whole log instead.")
    by_key: dict[str | None, dict[int, Record]] = {}
    for key in keys[:_LIVES]:
        records = [item.record for item in found.messages if item.record.uniq_key == key]
        if key is not None and engine is None:
            more = query_key(store, known_topics(store), key)
            records += [item.record for item in more.messages]
            found.complete &= more.complete
            found.notes += [note for note in more.notes if note not in found.notes]
            found.damaged += [item for item in more.damaged if item not in found.damaged]
        by_key[key] = {record.phy_offset: record for record in records}
    offsets: list[str] = []
    pairs = [pair for pair in read_pairs(store) if pair.name in OFFSET_FILES]
    committed = [row for pair in pairs for row in committed_rows(pair, offsets)]
    for line in offsets:
        found.incomplete(line)
    lives = []
    for key, records_at in by_key.items():
        records = [records_at[at] for at in sorted(records_at)]
        for group in ([[record] for record in records] if key is None else [records]):
            life = _life(store, key, group, found)
            life.consumers = [
                Offset(row.group, row.topic, row.queue, event.queue_offset, row.committed,
                       row.committed > event.queue_offset)
                for event in life.events if event.stage in ("sent", "committed", "delivered", "retry", "dead-letter")
                for row in committed if (row.topic, row.queue) == (event.topic, event.queue)]
            lives.append(life)
    return lives, found


def _at_place(store: Store, name: str) -> Answer:
    """Find the record at the log offset in the id, without an index."""
    try:
        found = query_id(store, name)
    except Refusal:
        return Answer("scan")
    placed = [item for item in found.messages if not has_key(item.record, name)]
    return Answer("id", placed) if found.way == "id" else Answer("scan")


def _life(store: Store, key: str | None, records: list[Record], found: Answer) -> Life:
    events = [_event(store, record) for record in records]
    for record in records:
        if record.topic_name == TOPIC_HALF:
            op = _op_of(store, record, found)
            if op is not None and all(event.phy_offset != op.phy_offset for event in events):
                events.append(op)
    events.sort(key=lambda event: event.phy_offset)
    waited: dict[str, bool] = {}
    for event in events:
        if event.stage == "waiting":
            waited[event.target] = True
        elif event.stage == "sent" and waited.get(event.topic):
            event.stage = "delivered"
    first = records[0]
    target = next((event.target for event in events if event.stage != "op"), first.topic_name)
    return Life(key, first.keys, target, _ended(events), events)


def _event(store: Store, record: Record) -> Event:
    values = record.property_map()
    topic = record.topic_name
    target, _, _ = real_place(topic, record.queue_id, values)
    event = Event("sent", topic, record.queue_id, record.queue_offset, record.phy_offset, record.store_timestamp,
                  offset_id(*record.store_host, record.phy_offset), target, record.reconsume_times)
    if topic == TOPIC_HALF:
        event.stage = "half"
        checks = values.get(props.TRANSACTION_CHECK_TIMES)
        often = f", checked {checks} time{'' if checks == '1' else 's'}" if checks else ""
        event.note = f"producer group {values.get(props.PGROUP)}{often}"
    elif topic == TOPIC_SCHEDULE:
        event.stage, event.note = "waiting", f"delay level {values.get(props.DELAY)}"
        event.due = deliver_time(store, topic, record.queue_id, record.queue_offset)
    elif topic == TOPIC_TIMER:
        out = values.get(props.TIMER_OUT_MS, "")
        event.stage, event.note = "waiting", "timer"
        event.due = int(out) if is_number(out, TIME_DIGITS) else None
    elif topic.startswith(RETRY_PREFIX):
        event.stage, event.group = "retry", topic.removeprefix(RETRY_PREFIX)
        event.note = f"attempt {record.reconsume_times + 1}"
    elif topic.startswith(DLQ_PREFIX):
        event.stage, event.group = "dead-letter", topic.removeprefix(DLQ_PREFIX)
        event.note = f"after {record.reconsume_times} retries"
    elif record.transaction_type == TRANSACTION_COMMIT:
        event.stage = "committed"
    return event


def _op_of(store: Store, half: Record, found: Answer) -> Event | None:
    """The op message that ends a half message: it is in the queue of the same number and names its queue offset."""
    wanted, looked = str(half.queue_offset), Answer("queue")
    try:
        start = query_time(store, TOPIC_OP_HALF, half.queue_id, half.store_timestamp).queue_offset
        for number, record in enumerate(queue_records(store, TOPIC_OP_HALF, half.queue_id, start or 0, looked)):
            if wanted in record.body.decode("ascii", "replace").split(","):
                event = _event(store, record)
                event.stage, event.target, event.note = "op", half.topic_name, f"ends the half message {wanted}"
                return event
            if number >= _OPS:
                found.incomplete(f"of the op messages after half message {wanted} {_OPS:,} were looked at, and none "
                                 "ends it")
                break
    except (Refusal, OSError) as error:
        found.incomplete(f"op messages could not be looked through: {error}")
    if looked.damaged:
        found.damaged += looked.damaged
        found.incomplete(f"{count(len(looked.damaged), 'op message')} after half message {wanted} cannot be read, and "
                         "may end it")
    return None


def _ended(events: list[Event]) -> str:
    stages = [event.stage for event in events]
    last = events[-1] if events[-1].stage != "op" or len(events) == 1 else events[-2]
    if "dead-letter" in stages:
        return f"given up by group {next(event.group for event in events if event.stage == 'dead-letter')}"
    if "half" in stages and "committed" not in stages:
        if "op" in stages:
            return "rolled back: an op message ends it, and no commit stands in the log"
        return "open: neither committed nor rolled back"
    waits = [event for event in events if event.stage == "waiting"]
    if waits:
        after = [event for event in events if event.phy_offset > waits[-1].phy_offset]
        if not any(event.topic == waits[-1].target for event in after):
            return f"waiting for its delivery to {waits[-1].target}"
    retries = [event for event in events if event.stage == "retry"]
    if retries:
        return f"given to group {retries[-1].group} again, {retries[-1].note}"
    return "committed" if "committed" in stages else "delivered" if last.stage == "delivered" else "sent"
