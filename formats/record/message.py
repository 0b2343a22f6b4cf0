"""A commitlog record as a value, and what follows from its fields."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from msgspec import Struct

from formats import javahash, sysflag
from formats import properties as props
from formats.properties import PARSER_NEW, Parser
from formats.record.layout import MAGIC_V2, PROPERTY_CRC_SIZE

Host = tuple[bytes, int]

TOPIC_SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TOPIC_HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
TOPIC_OP_HALF = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TOPIC_TIMER = "rmq_sys_wheel_timer"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
REPLY_SUFFIX = "_REPLY_TOPIC"

KEY_JOIN = "#"
TAG_JOIN = "#T#"
PROPERTY_CRC_START = props.CRC32.encode() + props.NAME_VALUE_BYTE


class Record(Struct, frozen=True):
    """One stored message, field by field in the order of the bytes.

    Hosts are (address of 4 or 16 bytes, port), timestamps are ms, `body` is as stored
    (compressed when the sysFlag says so), `properties` is the raw text.
    """

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes

    @property
    def version(self) -> int:
        """1 or 2: how the topic length is written."""
        return 2 if self.magic == MAGIC_V2 else 1

    @property
    def topic_name(self) -> str:
        """The topic as Java reads it."""
        return javahash.java_string(self.topic)

    @property
    def transaction_type(self) -> int:
        """0 none, 4 prepared, 8 commit, 12 rollback."""
        return sysflag.transaction_type(self.sys_flag)

    @property
    def compressed(self) -> bool:
        """Whether the stored body is compressed."""
        return bool(self.sys_flag & sysflag.COMPRESSED)

    @property
    def property_crc(self) -> bytes | None:
        """The ten digits of the property CRC at the very end of the record, None without one."""
        last = self.properties[-PROPERTY_CRC_SIZE:]
        if len(last) < PROPERTY_CRC_SIZE or not last.startswith(PROPERTY_CRC_START):
            return None
        return last[len(PROPERTY_CRC_START):-1]

    def property_map(self, generation: Parser = PARSER_NEW) -> dict[str, str]:
        """All properties as that generation of brokers parses them."""
        return props.parse(self.properties, generation)

    def get_property(self, name: str, generation: Parser = PARSER_NEW) -> str | None:
        """One property, None when the broker does not see it."""
        if name.encode() not in self.properties:
            return None
        return self.property_map(generation).get(name)

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.get_property(props.TAGS)

    @property
    def keys(self) -> str | None:
        """The KEYS property, words separated by single spaces."""
        return self.get_property(props.KEYS)

    @property
    def uniq_key(self) -> str | None:
        """The UNIQ_KEY property: the id that the client gave."""
        return self.get_property(props.UNIQ_KEY)


def crc_digits(crc: int) -> bytes:
    """The ten digits of a property CRC (31 bits), lowest first."""
    return f"{crc:010d}"[::-1].encode()


def tags_code(record: Record, generation: Parser = PARSER_NEW) -> int:
    """The hash of TAGS that a unit carries (not that of a delayed message, see `delay_level`)."""
    return javahash.tags_code(record.get_property(props.TAGS, generation))


def delay_level(record: Record, generation: Parser = PARSER_NEW) -> int | None:
    """The level whose deliver time replaces the tags code, None for an ordinary message.

    ValueError when DELAY is no Java int, where the broker's record check fails.
    """
    if record.topic_name != TOPIC_SCHEDULE:
        return None
    text = record.get_property(props.DELAY, generation)
    return None if text is None else java_number(text)


def inner_batch(values: Mapping[str, str]) -> tuple[int, int] | None:
    """Queue offset of the first of several messages in one body, and how many they are; None for an ordinary record.

    ValueError when its INNER_BASE is no Java long or its INNER_NUM no Java short, where the record check of 5.x fails.
    """
    base, count = values.get(props.INNER_BASE), values.get(props.INNER_NUM)
    return None if base is None or count is None else (java_number(base, 64), java_number(count, 16))


def java_number(text: str, bits: int = 32) -> int:
    """`Integer.parseInt` and its siblings: an optional sign and digits that fit so many bits, else ValueError."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal():
        raise ValueError(f"not a Java number: {text!r}")
    value = int(text)
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueError(f"out of the range of a Java number of {bits} bits: {text!r}")
    return value


def iter_index_keys(record: Record, tags: bool, generation: Parser = PARSER_NEW) -> Iterator[str]:
    """The texts that `IndexService.buildIndex` hashes for a record, in its order.

    The unique key, each word of KEYS (duplicates kept), and with `tags` (5.4.0 and later)
    the whole TAGS text. Nothing for a rolled back transaction.
    """
    if record.transaction_type == sysflag.TRANSACTION_ROLLBACK:
        return
    topic = record.topic_name
    values = record.property_map(generation)
    if uniq_key := values.get(props.UNIQ_KEY):
        yield topic + KEY_JOIN + uniq_key
    for word in values.get(props.KEYS, "").split(props.KEY_SEPARATOR):
        if word:
            yield topic + KEY_JOIN + word
    if tags and (text := values.get(props.TAGS)):
        yield topic + TAG_JOIN + text


def host_text(host: Host) -> str:
    """`address:port`, with an IPv6 address in brackets."""
    address = ipaddress.ip_address(host[0])
    return f"[{address}]:{host[1]}" if address.version == 6 else f"{address}:{host[1]}"
