"""The verdict on a record: what every broker takes for granted, checked.

This is what compiled walkers hand to whenever they are not certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from formats import properties as props
from formats import sysflag
from formats.layout import Buffer
from formats.record.codec import CrcOf, check_crcs, crc_in, fail, parse, read_start
from formats.record.layout import (
    BLANK_SIZE,
    HEAD_SIZE,
    HEADS,
    I64_STRUCT,
    LARGEST_PORT,
    OFFSET_PHY_OFFSET,
    PROPERTIES_LENGTH_SIZE,
    TOPIC_LENGTHS,
)
from formats.record.message import (
    DLQ_PREFIX,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    TOPIC_HALF,
    TOPIC_SCHEDULE,
    TOPIC_TIMER,
    Record,
    delay_level,
    inner_batch,
)

_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")
# The broker makes these names itself, out of a group, a topic (joined by "+" in the second
# kind of pop retry topic) or a cluster name that nothing has validated.
_BROKER_MADE_TOPIC = re.compile(
    rb"(?:%s|%s|%s)[!-~]+|[!-~]+%s"
    % tuple(re.escape(part.encode()) for part in (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX, REPLY_SUFFIX))
)
_NUMBERS = range(1 << 63)
_TIMES = range(1, 1 << 63)
_PORTS = range(LARGEST_PORT + 1)
"""Clients throw at any other, and drop what else came with the message (`MessageDecoder.decode`)."""


PLAUSIBLE: tuple[tuple[str, range], ...] = (
    ("queue_id", _NUMBERS), ("queue_offset", _NUMBERS), ("born_timestamp", _TIMES), ("store_timestamp", _TIMES),
    ("born_port", _PORTS), ("store_port", _PORTS),
)
"""Fields of the head, and the values that brokers write there; the first that has another gives the reason."""


def _batch_of(record: Record) -> tuple[int, int] | None:
    return inner_batch(record.property_map()) if props.INNER_NUM.encode() in record.properties else None


NUMBERS_IN_PROPERTIES: tuple[tuple[str, Callable[[Record], object]], ...] = (
    (props.DELAY, delay_level), (f"{props.INNER_BASE}, {props.INNER_NUM}", _batch_of),
)
"""Properties that brokers read as numbers: what reads them (None: not there; ValueError: not a number)."""


def check_strict(buffer: Buffer, offset: int, limit: int, phy_offset: int) -> Record:
    """Read the record at `offset` and believe nothing: every field must be what a broker writes there.

    `phy_offset` is the position of `offset` in the log, `limit` the end of the mapped file
    counted as `offset` is: a blank must still fit after the record. The buffer may end before
    `limit`; a record that it does not hold whole is `short`, unless its head already shows
    damage. Raises FormatError as `decode` does, and `bad-phy-offset`, `bad-queue-id`,
    `bad-queue-offset`, `bad-born-timestamp`, `bad-store-timestamp`, `bad-born-port`,
    `bad-store-port`, `bad-topic`, `bad-properties`. The first check that fails gives the reason; cheap ones come before
    checksums.
    """
    available = len(buffer) - offset
    room = limit - offset
    total_size = read_start(buffer, offset, min(limit, len(buffer)))
    if total_size > room - BLANK_SIZE:
        fail("bad-size", offset, f"size {total_size}, but {room} bytes left and a blank takes {BLANK_SIZE}",
             size=total_size, room=room)
    if available < min(total_size, HEAD_SIZE):
        fail("short", offset, f"the head of a record, {available} bytes at hand", needed=HEAD_SIZE, available=available)
    (own,) = I64_STRUCT.unpack_from(buffer, offset + OFFSET_PHY_OFFSET)
    if own != phy_offset:
        fail("bad-phy-offset", offset + OFFSET_PHY_OFFSET, f"says it stands at {own}, but stands at {phy_offset}",
             stored=own, expected=phy_offset)
    if available < total_size:
        fail("short", offset, f"a record of {total_size} bytes, {available} at hand",
             needed=total_size, available=available)
    record = parse(buffer, offset, total_size)
    _check_plausible(record, offset)
    check_crcs(record, offset, crc_in(buffer, offset))
    return record


def check_ends(buffer: Buffer, total_size: int, left_out: int, crc: CrcOf) -> None:
    """Raise what `check_strict` raises of a record that stands whole in its own place, but for the end of the log.

    The buffer begins with the record, whose body lacks its first `left_out` bytes there; they are summed up by `crc`.
    """
    record = parse(buffer, 0, total_size, left_out)
    _check_plausible(record, 0)
    check_crcs(record, 0, crc, left_out)


def _check_plausible(record: Record, offset: int) -> None:
    """Fields that no broker leaves at these values, and text that no broker writes."""
    layout = HEADS[record.sys_flag & sysflag.HOSTS_V6]
    values = {
        "queue_id": record.queue_id, "queue_offset": record.queue_offset, "born_timestamp": record.born_timestamp,
        "store_timestamp": record.store_timestamp, "born_port": record.born_host[1], "store_port": record.store_host[1],
    }
    for name, possible in PLAUSIBLE:
        if (value := values[name]) not in possible:
            fail("bad-" + name.replace("_", "-"), offset + layout.offset(name), f"{name} {value}", value=value)
    topic_at = offset + layout.size + len(record.body) + TOPIC_LENGTHS[record.magic].size
    if not valid_topic(record.topic):
        fail("bad-topic", topic_at, f"topic {record.topic!r}", topic=record.topic)
    properties_at = topic_at + len(record.topic) + PROPERTIES_LENGTH_SIZE
    if problem := props.structure_problem(record.properties):
        fail("bad-properties", properties_at, f"properties with {problem}", problem=problem)
    for name, read in NUMBERS_IN_PROPERTIES:
        try:
            read(record)
        except ValueError as error:
            fail("bad-properties", properties_at, f"{name}: {error}", problem=f"{name.rpartition(' ')[2]} is no number")


def valid_topic(topic: bytes) -> bool:
    """Whether a broker can have stored a message under this name (`TopicValidator`, or its own names)."""
    return _TOPIC.fullmatch(topic) is not None or _BROKER_MADE_TOPIC.fullmatch(topic) is not None


# --- Messages that brokers keep for later: what they read in them to deliver them.
#
# Brokers write these properties themselves, and take them for good when the time has come. Where one is not, 4.9
# delivers
# nothing of a delay level from there on, and the timer of 5.x takes up nothing (seen on 4.9.7, 5.3.3, 5.5.0); others
# drop
# the message.


QUEUE_ID_DIGITS = 9
TIME_DIGITS = 18


def _is_number(text: str, digits: int) -> bool:
    return 0 < len(text) <= digits and text.isascii() and text.isdigit()


_TOPIC_AND_QUEUE: dict[str, Callable[[str], bool]] = {
    props.REAL_TOPIC: lambda text: valid_topic(text.encode("utf-8", "surrogatepass")),
    props.REAL_QID: lambda text: _is_number(text, QUEUE_ID_DIGITS),
}
NEEDED: dict[str, dict[str, Callable[[str], bool]]] = {
    TOPIC_SCHEDULE: _TOPIC_AND_QUEUE,
    TOPIC_HALF: _TOPIC_AND_QUEUE,
    TOPIC_TIMER: {**_TOPIC_AND_QUEUE, props.TIMER_OUT_MS: lambda text: _is_number(text, TIME_DIGITS)},
}
"""By topic, the properties that its service reads, and whether a value is one that brokers write."""


def unserved(record: Record) -> list[str]:
    """Names of the properties for which a service of brokers could not deliver the message, in the order of NEEDED.

    None where none is right: no broker's service has stored that. Nor where a property CRC says that it was stored so.
    """
    wrong = [] if record.property_crc is not None else _wrong(record)
    return wrong if len(wrong) < len(NEEDED.get(record.topic_name, {})) else []


def is_served(record: Record) -> bool:
    """Whether a service of brokers can deliver the message. False for messages of other topics."""
    return record.topic_name in NEEDED and not _wrong(record)


def _wrong(record: Record) -> list[str]:
    needed = NEEDED.get(record.topic_name)
    if needed is None:
        return []
    values = record.property_map()
    return [name for name, is_right in needed.items() if name not in values or not is_right(values[name])]
