"""Sending exported messages to a live 5.x cluster: selection, conversion, the position of a run, and the client.

Nothing is written to a store. A message counts as sent when the cluster has acknowledged it; only then the position
file advances, so a run that was killed sends again at most what was in flight.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from formats import properties as props
from formats.properties import QUEUE_ID_DIGITS, TIME_DIGITS, is_number
from formats.record.message import DEFAULT_MAX_SIZE, DLQ_PREFIX, RETRY_PREFIX
from recover.change import disk
from recover.change.lock import only_run
from recover.change.model import refuse_existing
from recover.export.messages import Message, decoded, is_system, unfolded
from recover.findings.code import N_, Refusal, UsageRefusal, require
from recover.findings.model import Phrase

ORIGIN = "MQTOOL_ORIGIN"
KINDS = ("half", "delayed", "timer", "retry", "dead-letter")
RESERVED = frozenset({
    "1ST_POP_TIME", "ARRIVE_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CLUSTER", "CONSUME_START_TIME", "CORRECTION_FLAG",
    "CORRELATION_ID", "DELAY", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DUP_INFO", "EXTEND_UNIQ_INFO",
    "INNER_MULTI_QUEUE_OFFSET", "INSTANCE_ID", "KEYS", "MAX_OFFSET", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MQ2_FLAG",
    "MSG_REGION", "MSG_TYPE", "ORIGIN_GROUP", "ORIGIN_MESSAGE_ID", "PGROUP", "POP_CK", "POP_CK_OFFSET",
    "PUSH_REPLY_TIME", "REAL_QID", "REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT", "RETRY_TOPIC", "TAGS",
    "TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY",
    "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRACE_ON", "TRANSFER_FLAG",
    "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "TTL", "UNIQ_KEY", "WAIT", "_SYS_MSG_PRIORITY_", "__BORNHOST",
    "__CRC32#", "__LITE_TOPIC",
})
"""`MessageConst.STRING_HASH_SET` of 5.5.0: a proxy refuses these as properties of a client's message."""
_OF_THE_BROKER = RESERVED | {"INNER_NUM", "INNER_BASE", "TRANS_OFFSET", "TRANSACTION_CHECK_TIMES", "__transactionId__"}
# a zero byte of a body takes six in its line
_LONGEST_LINE = 8 * DEFAULT_MAX_SIZE
_COMPACT = 1 << 20
_NOT_WRITABLE = ("no writable queue", "no available message queues")
"""What a proxy and its client report for a topic without a writable queue."""
_CONNECT_SECONDS = 5
_PATIENCE = (1, 2, 4, 8, 16, 30)
"""Seconds between attempts at a cluster that does not answer or throttles."""


class Rules(NamedTuple):
    """What to send: the `kinds` of copies beside ordinary messages, delays, and renamed topics."""

    kinds: frozenset[str] = frozenset()
    keep_delay: bool = False
    topics: Mapping[str, str] = {}
    levels: Mapping[int, int] = {}


class Outgoing(NamedTuple):
    """One message to send. `deliver_at`: ms since the epoch, None for immediately."""

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    deliver_at: int | None
    origin: str
    type: str


def origin_of(message: Message) -> str:
    """The origin of a message: broker, topic, queue, queue offset and unique key (or the broker's id)."""
    name = message.unique_key or message.msg_id
    place = f"{message.store_host}/{message.stored_topic}/{message.stored_queue}/{message.queue_offset}/{name}"
    return message.properties.get(ORIGIN) or place


class Outbox:
    """Decides what to send. To keep delays, every message of the source goes through `examine` before the first one
    goes through `take`.

    A delayed message that was delivered is in the log twice; its second, later copy is the one sent. A timer stores a
    message again each time that its wheel has turned; the last copy is the one sent. Copies are matched by unique key,
    so memory grows only with the delayed messages.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._waiting: dict[str, int] = {}
        self._ended: dict[str, str] = {}

    def examine(self, message: Message) -> None:
        key = message.unique_key
        if message.kind == "recall":
            # topic+key, before 5.3 the key alone (TimerMessageStore.buildDeleteKey)
            recalled = message.properties.get(props.TIMER_DEL_UNIQKEY, "").rpartition("+")[2]
            self._ended[recalled] = "recalled by its producer"
        elif key is not None and message.kind in ("delayed", "timer"):
            self._waiting[key] = message.phy_offset
        elif key is not None and message.kind is None and key in self._waiting:
            self._ended[key] = "delivered since"

    def take(self, message: Message) -> Outgoing | str:
        """Return the message to send, or the reason why it is not sent."""
        reason = self._left_out(message)
        if reason is not None:
            return reason
        topic = message.properties.get(props.RETRY_TOPIC) or message.topic if _again(message) else message.topic
        topic = self._rules.topics.get(topic, topic)
        if is_system(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return Phrase("topic {topic} belongs to the brokers", topic=topic)
        body = decoded(message.body, message.body_encoding)
        if not body:
            return N_("no body, which the client rejects")
        own = {name: value for name, value in message.properties.items() if name not in _OF_THE_BROKER}
        own[ORIGIN] = origin_of(message)
        # the client takes no blank key
        keys = tuple(dict.fromkeys(filter(str.strip, (message.keys or "").split(props.KEY_SEPARATOR))))
        return Outgoing(topic, body, message.tags, keys, own, self._deliver_at(message), own[ORIGIN], _type(message))

    def _left_out(self, message: Message) -> str | None:
        if message.state == "damaged":
            return N_("damaged")
        if message.body_problem is not None:
            return N_("body not decompressed")
        kind = "retry" if _again(message) and message.kind == "delayed" else message.kind
        if kind is None or kind in self._rules.kinds:
            return None
        if kind in ("delayed", "timer") and self._rules.keep_delay:
            if message.unique_key is None:
                return Phrase("{kind}, without the key that shows whether it was delivered", kind=kind)
            ended = self._ended.get(message.unique_key)
            if ended is None and self._waiting.get(message.unique_key, message.phy_offset) != message.phy_offset:
                ended = N_("stored again later")
            return None if ended is None else Phrase("{kind}, {ended}", kind=kind, ended=ended)
        return Phrase("{kind} copy", kind=kind)

    def _deliver_at(self, message: Message) -> int | None:
        """When a delayed message is due (ms); None for immediately, and for all others."""
        if not self._rules.keep_delay or message.kind not in ("delayed", "timer"):
            return None
        values = message.properties
        for name in (props.TIMER_OUT_MS, props.TIMER_DELIVER_MS):
            if is_number(text := values.get(name, ""), TIME_DIGITS):
                return int(text)
        level = values.get(props.DELAY, "")
        if not is_number(level, QUEUE_ID_DIGITS) or not self._rules.levels:
            return None
        return message.store_time + self._rules.levels[min(max(1, int(level)), max(self._rules.levels))]


def _again(message: Message) -> bool:
    return message.topic.startswith(RETRY_PREFIX)


def _type(message: Message) -> str:
    """The type of the message at its original broker; all are sent as normal messages."""
    if message.transaction != "none" or message.properties.get(props.TRAN_MSG) == "true":
        return "transactional"
    return "ordered" if props.SHARDING_KEY in message.properties else "normal"


def read_messages(path: Path) -> Iterator[Message | str]:
    """Yield the messages of an NDJSON export; for a damaged one only "damaged". `Refusal` (8) for any other line."""
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), start=1):
            try:
                value = msgspec.json.decode(line)
                if isinstance(value, dict) and value.get("state") == "damaged":
                    yield "damaged"  # fields of it may be null
                    continue
                message = msgspec.convert(value, Message)
                body = decoded(message.body, message.body_encoding)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise Refusal(Phrase("line {number} of {path} is not a message of mqtool export: {error}",
                                     number=number, path=path, error=str(error)[:200]),
                              "Send a complete NDJSON export; nothing after this line was read.") from error
            yield from unfolded(message, body)


class Place(NamedTuple):
    """Progress of a run: messages of the source that are done, how many of them were sent, the last origin, and the
    bytes of the file of refused ones."""

    done: int = 0
    sent: int = 0
    origin: str = ""
    refused: int = 0


class Position:
    """The position file: a head that identifies the source, then a synced line for every acknowledgement. The last
    whole line counts. A long file is compacted. Messages that the cluster refuses are kept beside it, in the file
    `refused`, an export that can be sent. Without a path nothing is kept."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self.path = path
        self.refused = None if path is None else path.with_name(path.name + ".refused")
        self._head = json.dumps({"schema": "mqtool/position/1", **about}, ensure_ascii=True).encode() + b"\n"
        self.place, self.ended = Place(), False
        self._seen = b"" if path is None or not path.exists() else self._read(path)
        self.went_on = self._seen != b""
        self._stream: IO[bytes] | None = None

    def _read(self, path: Path) -> bytes:
        with path.open("rb") as stream:
            head = stream.readline(1 << 16)
            if head not in (b"", self._head):
                raise UsageRefusal(Phrase("{path} is the position file of another source", path=path),
                                   "Continue with the same source, filters and options, or name another file.")
            content = stream.read()
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        try:
            if lines:
                done, sent, origin, refused, state = json.loads(lines[-1])
                self.place = Place(int(done), int(sent), str(origin), int(refused))
                self.ended = state == "stopped"
        except (ValueError, TypeError) as error:
            raise UsageRefusal(Phrase("{path} is damaged: {line}", path=path, line=repr(lines[-1][:80])),
                               "Name another file.") from error
        return head + content

    def begin(self) -> None:
        """Open the file for a run, before anything is sent; `OSError`, or `Refusal` (8) if another run uses it."""
        if self.path is None:
            return
        with self.path.open("ab") as held:
            only_run(held, self.path)
            if self.path.read_bytes() != self._seen:
                raise Refusal(Phrase("another run has used {path}", path=self.path),
                              "Run the same command again: it continues there.")
            self._cut_refused()
            self._rewrite("under way")

    def _cut_refused(self) -> None:
        """Remove the messages that the last run refused without recording their place: they are sent again."""
        if self.refused is None or not self.refused.exists():
            self.place = self.place._replace(refused=0)
        elif self.went_on:
            self.place = self.place._replace(refused=min(self.place.refused, self.refused.stat().st_size))
            os.truncate(self.refused, self.place.refused)
        else:
            refuse_existing(self.refused)

    def keep(self, refused: Sequence[Message]) -> int:
        """Append messages that the cluster refused to their file; return its length, bytes."""
        if self.refused is None or not refused:
            return self.place.refused
        with self.refused.open("ab") as stream:
            stream.writelines(msgspec.json.encode(message) + b"\n" for message in refused)
            stream.flush()
            os.fsync(stream.fileno())
            return stream.tell()

    def move(self, place: Place) -> None:
        """Record durably how far the run has come."""
        self.place = place
        if self._stream is None:
            return
        self._stream.write(self._line("under way"))
        os.fdatasync(self._stream.fileno())
        if self._stream.tell() > _COMPACT:
            self._rewrite("under way")

    def end(self) -> None:
        self._rewrite("stopped")
        self.close()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _line(self, state: str) -> bytes:
        return json.dumps([*self.place, state]).encode() + b"\n"

    def _rewrite(self, state: str) -> None:
        self.close()
        if self.path is None:
            return
        disk.write_whole(self.path, self._head + self._line(state), self.path.with_name(self.path.name + ".new"))
        self._stream = self.path.open("ab", buffering=0)
        only_run(self._stream, self.path)


class RejectedMessage(NamedTuple):
    """A message that the cluster or its client rejects for its content: sending it again would not help."""

    reason: str


class Cluster:
    """The proxies of a live 5.x cluster. `Refusal` (8) if the client is missing or the cluster does not answer."""

    def __init__(self, endpoints: str, *, namespace: str = "", tls: bool = False) -> None:
        require("send", "sending to a cluster")
        from rocketmq.v5.client import ClientConfiguration, Credentials
        from rocketmq.v5.producer import Producer

        access = Credentials(os.environ.get("MQTOOL_ACCESS_KEY", ""), os.environ.get("MQTOOL_SECRET_KEY", ""))
        self.endpoints = endpoints
        self.again = 0
        self._answered = False
        self._producer = Producer(ClientConfiguration(endpoints, access, namespace, request_timeout=10), tls_enable=tls)
        try:
            self._producer.startup()
        except Exception as error:  # the client raises plain Exception, too
            raise Refusal(Phrase("the client for {endpoints} did not start: {error}", endpoints=endpoints,
                                 error=error)) from error

    def send(self, messages: Sequence[Outgoing], interrupted: Callable[[], bool]) -> list[RejectedMessage | None]:
        """Send messages concurrently and wait for all acknowledgements; return for each None, or why it is not taken.

        Without an answer a message is sent again, for a minute (once if nothing ever answered); then `Refusal` (8), and
        none of them counts as sent.
        """
        results: list[RejectedMessage | None] = [None] * len(messages)
        left = list(range(len(messages)))
        for pause in (*(_PATIENCE if self._answered else _PATIENCE[:1]), None):
            futures = [(number, self._start(messages[number])) for number in left]
            left, trouble = [], ""
            for number, future in futures:
                try:
                    future.result(timeout=120)
                except Exception as error:  # the client raises plain Exception, too
                    judged = _judged(error, messages[number].topic)
                    if isinstance(judged, RejectedMessage):
                        results[number] = judged
                    else:
                        left.append(number)
                        trouble = judged
            self._answered |= len(left) < len(futures)
            if not left:
                return results
            if pause is None or interrupted():
                break
            self.again += len(left)
            until = time.monotonic() + pause
            while time.monotonic() < until and not interrupted():
                time.sleep(0.2)
        again = N_("Then run the same command again: with --position it continues where it stopped.")
        if reason := unreachable(self.endpoints):
            raise Refusal(Phrase("{endpoints} cannot be reached: {reason}", endpoints=self.endpoints, reason=reason),
                          Phrase("Check the address, and that a proxy listens there (port 8081). {again}", again=again))
        absent = N_("If the topic does not exist, create it (mqadmin updateTopic) or choose another with --topic-map.")
        raise Refusal(Phrase("{endpoints} does not accept messages: {trouble}", endpoints=self.endpoints,
                             trouble=trouble), Phrase("{absent}  {again}", absent=absent, again=again)
                      if "route" in trouble else again)

    def _start(self, message: Outgoing) -> Future[Any]:
        """Return the future of one message."""
        from rocketmq.v5.model import Message as Sent

        try:
            sent = Sent()
            sent.topic, sent.body = message.topic, message.body
            if message.tags:
                sent.tag = message.tags
            for key in message.keys:
                sent.keys = key
            sent.properties.update(message.properties)
            if message.deliver_at is not None and message.deliver_at > time.time() * 1000:
                sent.delivery_timestamp = -(-message.deliver_at // 1000)
            sending: Future[Any] = self._producer.send_async(sent)
            return sending
        except Exception as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def close(self) -> None:
        self._producer.shutdown()


def unreachable(endpoints: str) -> str:
    """Return why none of some proxies (`host:port;host:port`) accepts a connection; "" if one does. The client reports
    an absent topic and an absent host alike."""
    reason = ""
    for place in endpoints.split(";"):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]") or place, int(port)), _CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        else:
            return ""
    return reason


def _judged(error: Exception, topic: str) -> RejectedMessage | str:
    """Classify an error: of the message (`RejectedMessage`), of the cluster (text: try again), or a `Refusal` (8)."""
    from rocketmq.v5 import exception as client

    text = f"{type(error).__name__}: {error}"[:400]
    if isinstance(error, client.NotFoundException):
        raise Refusal(Phrase("the cluster has no topic {topic}: {error}", topic=topic, error=error),
                      "Create it there (mqadmin updateTopic) and run the same command again, or start "
                      "another run with --topic-map OLD=NEW.") from error
    if any(words in text for words in _NOT_WRITABLE):
        raise Refusal(Phrase("topic {topic} of the cluster takes no messages: {error}", topic=topic, error=error),
                      "Permit writing to it (mqadmin updateTopicPerm -p 6) and run the same command again, "
                      "or start another run with --topic-map OLD=NEW.") from error
    if isinstance(error, (client.UnauthorizedException, client.ForbiddenException)):
        raise Refusal(Phrase("the cluster denies access: {error}", error=error),
                      "Set MQTOOL_ACCESS_KEY and MQTOOL_SECRET_KEY in the environment.") from error
    if isinstance(error, (client.BadRequestException, client.PayloadTooLargeException, client.PayloadEmptyException,
                          client.RequestHeaderFieldsTooLargeException, client.IllegalArgumentException, ValueError)):
        return RejectedMessage(text)
    return text
