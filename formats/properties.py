"""Message properties: `name 0x01 value 0x02 ...`, parsed as either generation of brokers does.

Names are the constants of the broker's `MessageConst`; values are arbitrary text under Java's `String` rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from formats.basics import java_string

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
NAME_VALUE_BYTE = NAME_VALUE_SEPARATOR.encode()
PROPERTY_BYTE = PROPERTY_SEPARATOR.encode()
KEY_SEPARATOR = " "
KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANS_OFFSET = "TRANS_OFFSET"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
DUP_INFO = "DUP_INFO"
CRC32 = "__CRC32#"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
SHARDING_KEY = "__SHARDINGKEY"
MSG_TYPE = "MSG_TYPE"


def parse(content: bytes, *, old: bool = False) -> dict[str, str]:
    """Return the properties that a broker sees (with `old`, one up to 4.9.0); the last one of a name wins.

    Items that the broker's parser (MessageDecoder.string2messageProperties) skips are skipped here, too; never raises.
    """
    if not content:
        return {}
    items = java_string(content).split(PROPERTY_SEPARATOR)
    return dict(_old_pairs(items) if old else _new_pairs(items))


def _new_pairs(items: Iterable[str]) -> Iterable[tuple[str, str]]:
    for item in items:
        name, _, value = item.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            yield name, value


def _old_pairs(items: Iterable[str]) -> Iterable[tuple[str, str]]:
    # Java's split drops trailing empty parts and keeps leading ones, so "k 0x01" has one
    # part, "k 0x01 v 0x01" two, and " 0x01 v" two with an empty name.
    for item in items:
        parts = item.rstrip(NAME_VALUE_SEPARATOR).split(NAME_VALUE_SEPARATOR)
        if len(parts) == 2:
            yield parts[0], parts[1]


QUEUE_ID_DIGITS = 9
TIME_DIGITS = OFFSET_DIGITS = 18


def is_number(text: str, digits: int) -> bool:
    """Whether a property is a number as brokers write it, of at most so many digits."""
    return 0 < len(text) <= digits and text.isascii() and text.isdigit()


def multi_dispatch(values: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the LMQ queues that a multi-dispatch record names, each with its queue offset; empty if the counts differ.

    Invalid queue names and offsets are left out.
    """
    queues, offsets = (values.get(name, "").split(",") for name in (INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET))
    if len(queues) != len(offsets):
        return []
    return [(queue, int(offset)) for queue, offset in zip(queues, offsets, strict=True)
            if queue and "/" not in queue and is_number(offset, OFFSET_DIGITS)]


def join(properties: Mapping[str, str]) -> bytes:
    """Return the stored text, in the order of the mapping, as brokers up to 4.9.0 and from 5.2.0 on write it.

    Releases in between leave out the last 0x02.
    """
    text = "".join(f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in properties.items())
    return text.encode("utf-8", "surrogatepass")


def structure_problem(content: bytes) -> str | None:
    """Return why these bytes cannot be properties that a broker wrote, or None.

    Deliberately tolerant, because a broker stores what a client sends: empty values, empty items, a 0x01 or 0x02 inside
    a value and bytes that are not UTF-8 all pass. No writer produces text without any `name 0x01`, or zero bytes in a
    name or at the very end: pages that were lost before they reached the disk.
    """
    if not content:
        return None
    if not any(item.find(NAME_VALUE_BYTE) > 0 for item in content.split(PROPERTY_BYTE)):
        return "no property name"
    if b"\x00" in content:
        if content.endswith(b"\x00"):
            return "zero bytes at the end"
        if any(b"\x00" in item.partition(NAME_VALUE_BYTE)[0] for item in content.split(PROPERTY_BYTE)):
            return "zero byte in a property name"
    return None
