"""Messages that brokers keep for later: what they read in them to deliver them.

Brokers write these properties themselves, and take them for good when the time has come. Where one is not, 4.9 delivers
nothing of a delay level from there on, and the timer of 5.x takes up nothing (seen on 4.9.7, 5.3.3, 5.5.0); others drop
the message.
"""

from __future__ import annotations

from collections.abc import Callable

from formats import properties as props
from formats.commitlog.record import TOPIC_HALF, TOPIC_SCHEDULE, TOPIC_TIMER, Record
from formats.commitlog.strict import valid_topic

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
