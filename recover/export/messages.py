"""A message as exported (`mqtool/message/1`): one flat value, the same in every format."""

from __future__ import annotations

import base64
import functools
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, field, structs

from formats import properties as props, sysflag
from formats.basics import FormatError
from formats.properties import QUEUE_ID_DIGITS, is_number
from formats.record import SERVICE_TOPICS, Record, host_text
from formats.record.message import (
    DLQ_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    TOPIC_CHECK_MAX,
    MissingCodecError,
    decompress,
    offset_id,
)
from recover.store.source import StorePath, origin_of, url_of

_TRANSACTIONS = {
    sysflag.TRANSACTION_NOT: "none", sysflag.TRANSACTION_PREPARED: "half", sysflag.TRANSACTION_COMMIT: "commit",
    sysflag.TRANSACTION_ROLLBACK: "rollback",
}
_COMPRESSIONS = {
    sysflag.COMPRESSION_LEGACY_ZLIB: "zlib", sysflag.COMPRESSION_ZLIB: "zlib", sysflag.COMPRESSION_LZ4: "lz4",
    sysflag.COMPRESSION_ZSTD: "zstd",
}
_SYSTEM = frozenset({
    "TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", TOPIC_CHECK_MAX, "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC", "DefaultHeartBeatSyncerTopic", *SERVICE_TOPICS,
})
"""`TopicValidator.SYSTEM_TOPIC_SET`, and the topic in which proxies tell each other of their clients
(`HeartbeatSyncer`); further ones begin with rmq_sys_."""
_REPLY = "reply"
"""MSG_TYPE of an answer to a request, which brokers hand to its client and store in CLUSTER_REPLY_TOPIC (`MixAll`)."""
_INNER_HEAD = struct.Struct(">iiiii")
_INNER_LENGTH = struct.Struct(">h")
"""Head of a message inside a batch: size, magic, body CRC, flag, body length; the length of its properties follows the
body (`MessageDecoder.encodeMessage`)."""


class Message(Struct):
    """One message; times in ms since the epoch, offsets and sizes in bytes, queue offsets in messages.

    `topic` and `queue` are those that consumers know: for a half, delayed or timer message the real ones, for a retry
    or dead letter the original topic. `stored_topic` and `stored_queue` are those of the record; `queue_offset` refers
    to them. `kind` is one of these, None for an ordinary message. `body_problem`: why a body could not be decompressed.
    For a damaged message `damage` is the reason, `doubtful` names unconfirmed fields, and unreadable ones are None.
    `place`: the file and position that it was read from; `copy`: 0 for the one that counts, else its number.
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
    place: str | None = None
    copy: int = 0


def place_text(path: Path, position: int) -> str:
    """Return file and position of a byte, as `place` has them; a file laid over others stands for these."""
    file, at = origin_of(path, position)
    return f"{url_of(file) or (file if isinstance(file, StorePath) else file.absolute())}:{at}"


Counts = Counter[tuple[str, str]]
"""Messages by topic and kind: see `count_key`."""


def count_key(message: Message) -> tuple[str, str]:
    """Return the topic, and the message's state if it is not live, else the kind of copy or "ordinary"; "copy" for a
    second one."""
    if message.copy:
        return message.topic, "copy"
    return message.topic, message.kind or "ordinary" if message.state == "live" else message.state


COLUMNS = tuple(item.name for item in structs.fields(Message))


def message_of(record: Record, state: str, *, raw_body: bool = False) -> Message:
    """The message of an intact record; its body is decompressed unless `raw_body`."""
    values = record.property_map()
    stored = record.topic_name
    topic, queue, kind = real_destination(stored, record.queue_id, values)
    is_compressed = record.sys_flag & sysflag.COMPRESSED
    compression = _COMPRESSIONS.get(record.sys_flag & sysflag.COMPRESSION_TYPE, "unknown") if is_compressed else None
    content, problem = (record.body, "as stored, on request") if raw_body and is_compressed else plain_body(record)
    text, encoding = encoded(content)
    return Message(
        topic, queue, record.queue_offset, record.phy_offset, record.total_size, state, record.store_timestamp,
        record.born_timestamp, _host(record.born_host), _host(record.store_host),
        offset_id(*record.store_host, record.phy_offset), values.get(props.UNIQ_KEY), values.get(props.KEYS),
        values.get(props.TAGS), record.flag, record.sys_flag, _TRANSACTIONS[record.transaction_type],
        record.reconsume_times, values, text, encoding, compression, kind, stored, record.queue_id, problem,
    )


def real_destination(stored: str, queue_id: int, values: dict[str, str]) -> tuple[str, int, str | None]:
    """Return the topic and queue that consumers know, and the kind of message (None for an ordinary one)."""
    kind = SERVICE_TOPICS.get(stored)
    if kind in ("half", "delayed", "timer"):
        # a producer that recalls a timer message has the broker store this request beside it
        kind = "recall" if kind == "timer" and props.TIMER_DEL_UNIQKEY in values else kind
        topic, number = values.get(props.REAL_TOPIC), values.get(props.REAL_QID, "")
        if topic:
            return topic, int(number) if is_number(number, QUEUE_ID_DIGITS) else queue_id, kind
    if stored.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        kind = "retry" if stored.startswith(RETRY_PREFIX) else "dead-letter"
        return values.get(props.RETRY_TOPIC) or stored, queue_id, kind
    if may_hold_replies(stored) and values.get(props.MSG_TYPE) == _REPLY:
        return stored, queue_id, "reply"
    return stored, queue_id, kind


def has_real_topic(stored: str) -> bool:
    """Whether messages of this topic belong to other topics, which only their properties name."""
    return SERVICE_TOPICS.get(stored) in ("half", "delayed", "timer") or stored.startswith((RETRY_PREFIX, DLQ_PREFIX))


def may_hold_replies(stored: str) -> bool:
    """Whether this can be the topic of a cluster's answers to requests; only their properties tell."""
    return stored.endswith(REPLY_SUFFIX)


def is_system(topic: str) -> bool:
    """Whether brokers created this topic for themselves (`TopicValidator.isSystemTopic`)."""
    return topic in _SYSTEM or topic.startswith(SYSTEM_PREFIX)


def plain_body(record: Record) -> tuple[bytes, str | None]:
    """Return the body as its producer wrote it and None; or as stored, and why it could not be decompressed."""
    try:
        return decompress(record.body, record.sys_flag), None
    except (FormatError, MissingCodecError) as error:
        return record.body, str(error)


def encoded(content: bytes) -> tuple[str, str]:
    """Return (text, "utf-8"), or ("…", "base64") for bytes that are not UTF-8."""
    try:
        return content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(content).decode("ascii"), "base64"


def decoded(text: str, encoding: str) -> bytes:
    """Return the bytes that `encoded` was given; `ValueError` for a text that it does not return."""
    if encoding not in ("utf-8", "base64"):
        raise ValueError(f"body_encoding {encoding} is neither utf-8 nor base64")
    return text.encode() if encoding == "utf-8" else base64.b64decode(text, validate=True)


_host = functools.lru_cache(maxsize=4096)(host_text)


def unfolded(message: Message, content: bytes) -> Iterator[Message]:
    """Yield the messages of an inner batch, whose body is `content` (decompressed), with the queue offsets that a 5.x
    client gives them (`MessageDecoder.decodeMessages`); any other message, and a damaged batch, as it is."""
    at, number, found = 0, 0, []
    while message.sys_flag & sysflag.BATCH == sysflag.BATCH and at < len(content):
        whole = _inner(content, at)
        if whole is None:
            yield message
            return
        size, flag, body, text = whole
        values = props.parse(text)
        shown, encoding = encoded(body)
        found.append(structs.replace(
            message, queue_offset=message.queue_offset + number, size=size, flag=flag, properties=values,
            unique_key=values.get(props.UNIQ_KEY), keys=values.get(props.KEYS), tags=values.get(props.TAGS),
            body=shown, body_encoding=encoding, body_problem=None, sys_flag=message.sys_flag & ~sysflag.BATCH,
        ))
        at, number = at + size, number + 1
    yield from found or (message,)


def _inner(content: bytes, at: int) -> tuple[int, int, bytes, bytes] | None:
    """Return (size, flag, body, properties) of one message in the body of a batch; None if lengths do not add up."""
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
