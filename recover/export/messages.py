"""A message as it leaves the store (`mqtool/message/1`): one flat value, the same in every format."""

from __future__ import annotations

import base64
import functools
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field, structs

from formats import properties as props
from formats import sysflag
from formats.compression import MissingCodecError, decompress
from formats.errors import FormatError
from formats.javahash import java_string
from formats.message_id import offset_id
from formats.record import (
    HEAD,
    HEAD_SIZE,
    HEADS,
    MAGIC_V1,
    TOPIC_HALF,
    TOPIC_OP_HALF,
    TOPIC_SCHEDULE,
    Record,
    decode,
    host_text,
)
from formats.record.grammar import valid_topic
from formats.record.message import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, TOPIC_TIMER
from formats.sysflag import HOSTS_V6
from recover.check.survey import Survey
from recover.evidence.lost import LostPosition
from recover.export.select import Selected
from recover.log.file_scan import own_heads
from recover.log.judge import LogReader
from recover.log.scan import Damage

_TRANSACTIONS = {
    sysflag.TRANSACTION_NOT: "none", sysflag.TRANSACTION_PREPARED: "half", sysflag.TRANSACTION_COMMIT: "commit",
    sysflag.TRANSACTION_ROLLBACK: "rollback",
}
_COMPRESSIONS = {
    sysflag.COMPRESSION_LEGACY_ZLIB: "zlib", sysflag.COMPRESSION_ZLIB: "zlib", sysflag.COMPRESSION_LZ4: "lz4",
    sysflag.COMPRESSION_ZSTD: "zstd",
}
_KINDS = {TOPIC_HALF: "half", TOPIC_SCHEDULE: "delayed", TOPIC_TIMER: "timer", TOPIC_OP_HALF: "op"}
_SYSTEM = frozenset({
    "TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT", TOPIC_HALF, TOPIC_OP_HALF, TOPIC_SCHEDULE, "CHECKPOINT_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
})
"""`TopicValidator.SYSTEM_TOPIC_SET`; further ones begin with rmq_sys_."""
_INNER_HEAD = struct.Struct(">iiiii")
_INNER_LENGTH = struct.Struct(">h")
"""Of a message inside a batch: size, magic, body CRC, flag, body length; after the body the length of its properties
(`MessageDecoder.encodeMessage`)."""


class Message(Struct):
    """One message; times in ms since the epoch, offsets and sizes in bytes, queue offsets in messages.

    `topic` and `queue` are those that consumers know: of a half, delayed or timer message the real ones, of a retry or
    dead letter the original topic; `stored_topic` and `stored_queue` are where the record stands, and `queue_offset`
    counts there. `kind` says which of these it is, None for an ordinary message. `body_problem` is why a body could not
    be decompressed. Of a damaged message `damage` is the reason, `doubtful` names the fields that nothing vouches for,
    and what cannot be read is None.
    """

    topic: str
    queue: int
    queue_offset: int
    phy_offset: int
    size: int
    state: str
    store_time: int
    born_time: int
    born_host: str
    store_host: str
    msg_id: str
    unique_key: str | None
    keys: str | None
    tags: str | None
    flag: int
    sys_flag: int
    transaction: str
    reconsume_times: int
    properties: dict[str, str]
    body: str
    body_encoding: str
    body_compression: str | None
    kind: str | None
    stored_topic: str
    stored_queue: int
    body_problem: str | None = None
    damage: str | None = None
    doubtful: list[str] = field(default_factory=list)


Counts = Counter[tuple[str, str]]
"""Messages by topic and by what they are: see `count_key`."""


def count_key(message: Message) -> tuple[str, str]:
    """Topic, and "ordinary" or what else a message is: its state if it is not live, else the kind of copy."""
    return message.topic, message.kind or "ordinary" if message.state == "live" else message.state


COLUMNS = tuple(item.name for item in structs.fields(Message))


def message_of(record: Record, state: str, *, raw_body: bool = False) -> Message:
    """The message of an intact record; its body decompressed, unless `raw_body`."""
    values = record.property_map()
    stored = record.topic_name
    topic, queue, kind = real_place(stored, record.queue_id, values)
    content, compression, problem = _body(record, raw_body)
    text, encoding = body_text(content)
    return Message(
        topic, queue, record.queue_offset, record.phy_offset, record.total_size, state, record.store_timestamp,
        record.born_timestamp, _host(record.born_host), _host(record.store_host),
        offset_id(*record.store_host, record.phy_offset), values.get(props.UNIQ_KEY), values.get(props.KEYS),
        values.get(props.TAGS), record.flag, record.sys_flag, _TRANSACTIONS[record.transaction_type],
        record.reconsume_times, values, text, encoding, compression, kind, stored, record.queue_id, problem,
    )


def real_place(stored: str, queue_id: int, values: dict[str, str]) -> tuple[str, int, str | None]:
    """Topic and queue that consumers know, and the kind of message (None for an ordinary one)."""
    kind = _KINDS.get(stored)
    if kind in ("half", "delayed", "timer"):
        topic, number = values.get(props.REAL_TOPIC), values.get(props.REAL_QID, "")
        if topic:
            return topic, int(number) if number.isascii() and number.isdecimal() else queue_id, kind
    if stored.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        kind = "retry" if stored.startswith(RETRY_PREFIX) else "dead-letter"
        return values.get(props.RETRY_TOPIC) or stored, queue_id, kind
    return stored, queue_id, kind


def has_real_topic(stored: str) -> bool:
    """Whether messages of this topic belong to others, which only their properties name."""
    return _KINDS.get(stored) in ("half", "delayed", "timer") or stored.startswith((RETRY_PREFIX, DLQ_PREFIX))


def is_system(topic: str) -> bool:
    """Whether brokers made this topic for themselves (`TopicValidator.isSystemTopic`)."""
    return topic in _SYSTEM or topic.startswith(SYSTEM_PREFIX)


def _body(record: Record, raw: bool) -> tuple[bytes, str | None, str | None]:
    """Content, how it was compressed when it was stored (None: not at all), why it is given as stored."""
    if not record.compressed:
        return record.body, None, None
    compression = _COMPRESSIONS.get(record.sys_flag & sysflag.COMPRESSION_TYPE, "unknown")
    if raw:
        return record.body, compression, "as stored, on request"
    try:
        return decompress(record.body, record.sys_flag), compression, None
    except (FormatError, MissingCodecError) as error:
        return record.body, compression, str(error)


def body_text(content: bytes) -> tuple[str, str]:
    """(text, "utf-8"), or ("…", "base64") for bytes that are no UTF-8."""
    try:
        return content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode("ascii"), "base64"


@functools.lru_cache(maxsize=4096)
def _host(host: tuple[bytes, int]) -> str:
    return host_text(host)


def unfolded(message: Message, content: bytes) -> Iterator[Message]:
    """The messages of an inner batch, whose body is `content` (decompressed): `MessageDecoder.decodeMessages`.

    Each has the queue offset that a 5.x client gives it. What is no such body yields the record as one message.
    """
    at, number, found = 0, 0, []
    while at < len(content):
        whole = _inner(content, at)
        if whole is None:
            yield message
            return
        size, flag, body, text = whole
        values = props.parse(text)
        shown, encoding = body_text(body)
        found.append(structs.replace(
            message, queue_offset=message.queue_offset + number, size=size, flag=flag, properties=values,
            unique_key=values.get(props.UNIQ_KEY), keys=values.get(props.KEYS), tags=values.get(props.TAGS),
            body=shown, body_encoding=encoding,
        ))
        at, number = at + size, number + 1
    yield from found


def _inner(content: bytes, at: int) -> tuple[int, int, bytes, bytes] | None:
    """(size, flag, body, properties) of one message in the body of a batch; None where the lengths do not add up."""
    body_at = at + _INNER_HEAD.size
    if body_at > len(content):
        return None
    size, _, _, flag, length = _INNER_HEAD.unpack_from(content, at)
    body_end, end = body_at + length, at + size
    if length < 0 or end > len(content) or body_end + _INNER_LENGTH.size > end:
        return None
    (text_length,) = _INNER_LENGTH.unpack_from(content, body_end)
    text_at = body_end + _INNER_LENGTH.size
    if text_length < 0 or text_at + text_length != end:
        return None
    return size, flag, content[body_at:body_end], content[text_at:end]


# --- What is legible of damaged messages: fields whose bytes are there, what queues remember, and which are doubtful.


_MOST_READ = 64 << 20
_SANE_TIME = range(1_000_000_000_000, 10_000_000_000_000)
"""ms: the years 2001 to 2286."""


def damaged_messages(look: Survey) -> Iterator[Selected]:
    """What is left of each message in a damaged range: by its own bytes, else by the queue that names it.

    The state is `damaged`, `doubtful` names the fields that no checksum or second witness backs; what cannot be read is
    None. Messages that only queues name come without anything but their place.
    """
    with LogReader(look.log.queue) as reader:
        for damage, positions in zip(look.log.damaged, look.losses.by_damage, strict=True):
            named = {position.phy_offset: position for position in positions if position.phy_offset is not None}
            for at, content in _heads(reader, damage, set(named)):
                yield Selected(_legible(at, content, named.pop(at, None), damage), content)
            left = [*named.values(), *(position for position in positions if position.phy_offset is None)]
            for position in left:
                yield Selected(_of_queue(position, damage), b"")


def _heads(reader: LogReader, damage: Damage, named: set[int]) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes to the next head or the range's end) of what looks like a record: by its magic and own offset,
    or because a queue names it."""
    if damage.mapped_file is None:
        return
    content = reader.read(damage.start, min(damage.stop - damage.start, _MOST_READ))
    starts = {at - damage.start for at in named if damage.start <= at < damage.stop}
    starts |= set(own_heads(np.frombuffer(content, dtype=np.uint8), 0, damage.start).tolist())
    if content.strip(b"\0"):
        starts.add(0)
    ordered = sorted(starts)  # none in a range of zeros
    for start, stop in zip(ordered, [*ordered[1:], len(content)], strict=False):
        yield damage.start + start, content[start:stop]


def _legible(at: int, content: bytes, position: LostPosition | None, damage: Damage) -> Message:
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    doubtful: list[str] = []
    try:
        record = decode(content, check_crc=False)
        values.update(structs.asdict(message_of(record, "damaged")))
        doubtful += _doubts(record, content, damage)
    except FormatError as error:
        values.update(_of_head(content))
        doubtful += [name for name, value in values.items() if value is not None]
        values["body_problem"] = str(error)
    values.update(phy_offset=at, state="damaged")
    if position is not None:
        seen = {"stored_topic": position.key.topic, "stored_queue": position.key.queue_id,
                "queue_offset": position.queue_offset, "size": position.size}
        for name, value in seen.items():
            if values[name] == value:
                doubtful = [each for each in doubtful if each != name]
            elif values[name] is None or name in doubtful:
                values[name] = value
                doubtful = [each for each in doubtful if each != name]
        values["topic"] = values["topic"] or position.key.topic
        values["queue"] = position.key.queue_id if values["queue"] is None else values["queue"]
    values["properties"] = values["properties"] or {}
    values["doubtful"] = sorted(set(doubtful) - {"state", "properties_text"})
    values["damage"] = damage.reason
    return Message(**values)


def _doubts(record: Record, content: bytes, damage: Damage) -> list[str]:
    """Fields of a record whose lengths add up that something speaks against."""
    try:
        decode(content)
    except FormatError as error:
        if error.reason == "bad-body-crc":
            return ["body"]
        if error.reason == "bad-property-crc":
            return [name for name in COLUMNS if name not in ("phy_offset", "state", "damage", "doubtful", "body")]
    doubts = []
    if not valid_topic(record.topic):
        doubts += ["topic", "stored_topic"]
    for name in ("store_timestamp", "born_timestamp"):
        if getattr(record, name) not in _SANE_TIME:
            doubts.append(name.removesuffix("stamp"))
    if record.queue_id < 0:
        doubts += ["queue", "stored_queue"]
    if record.queue_offset < 0:
        doubts.append("queue_offset")
    if not doubts and damage.reason == "bad-properties":
        doubts = ["properties", "keys", "tags", "unique_key"]
    return doubts


def _of_head(content: bytes) -> dict[str, Any]:
    """The fields of a head, where so much is there; topic and the rest hang on lengths that do not add up."""
    if len(content) < HEAD_SIZE or not content[:HEAD_SIZE].strip(b"\0"):
        return {}
    layout = HEADS[HEAD.decode(content).sys_flag & HOSTS_V6]
    if len(content) < layout.size:
        return {}
    (size, magic, _, queue_id, flag, queue_offset, _, sys_flag, born, born_ip, born_port, stored, store_ip, store_port,
     again, _, body_length) = layout.struct.unpack_from(content, 0)
    found: dict[str, Any] = {
        "size": size, "queue": queue_id, "stored_queue": queue_id, "flag": flag, "queue_offset": queue_offset,
        "sys_flag": sys_flag, "reconsume_times": again, "born_host": host_text((born_ip, born_port)),
        "store_host": host_text((store_ip, store_port)), "born_time": born, "store_time": stored,
    }
    for name in ("born_time", "store_time"):
        if found[name] not in _SANE_TIME:
            del found[name]
    if "store_time" not in found:
        return {}
    topic_at = layout.size + max(0, body_length)
    length = content[topic_at] if magic == MAGIC_V1 and topic_at < len(content) else 0
    topic = content[topic_at + 1 : topic_at + 1 + length]
    if length and len(topic) == length and valid_topic(topic):
        found["topic"] = found["stored_topic"] = java_string(topic)
    return found


def _of_queue(position: LostPosition, damage: Damage) -> Message:
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    key = position.key
    values.update(
        topic=key.topic, queue=key.queue_id, stored_topic=key.topic, stored_queue=key.queue_id,
        queue_offset=position.queue_offset, phy_offset=position.phy_offset, size=position.size, state="damaged",
        properties={}, doubtful=[], damage=damage.reason,
    )
    return Message(**values)
