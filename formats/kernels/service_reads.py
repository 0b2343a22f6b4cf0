"""Compiled reading of what brokers' services need to deliver a message (`formats.commitlog.service`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.commitlog import TOPIC_HALF, TOPIC_SCHEDULE, TOPIC_TIMER
from formats.commitlog.service import QUEUE_ID_DIGITS, TIME_DIGITS
from formats.compiled import part
from formats.kernels.byte_reads import byte_at, is_number, same_bytes, text_bytes

SERVED = 0
UNSERVED = 1
UNSURE = 2

_SCHEDULE = text_bytes(TOPIC_SCHEDULE)
_HALF = text_bytes(TOPIC_HALF)
_TIMER = text_bytes(TOPIC_TIMER)
_REAL_TOPIC = text_bytes("REAL_TOPIC")
_REAL_QID = text_bytes("REAL_QID")
_OUT_MS = text_bytes("TIMER_OUT_MS")
_TOPIC_BYTES = np.zeros(256, dtype=np.uint8)
for _character in b"%|_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
    _TOPIC_BYTES[_character] = 1


@part
def is_plain_topic(data: Any, start: int, length: int) -> bool:
    """Whether a topic's bytes are those that `TopicValidator` lets pass."""
    plain = True
    for i in range(start, start + length):
        plain &= _TOPIC_BYTES[byte_at(data, i)] != 0
    return plain


@part
def service_of(data: Any, start: int, end: int, topic_at: int, topic_length: int) -> int:
    """SERVED, UNSERVED or UNSURE, of properties that `take_properties` has taken; SERVED where there is no service."""
    is_timer = topic_length == _TIMER.size and same_bytes(data, topic_at, topic_length, _TIMER)
    if (
        not is_timer and not (topic_length == _SCHEDULE.size and same_bytes(data, topic_at, topic_length, _SCHEDULE))
        and not (topic_length == _HALF.size and same_bytes(data, topic_at, topic_length, _HALF))
    ):
        return SERVED
    topic, queue, time = False, False, False
    i = start
    while i < end:
        split = i
        while split < end and byte_at(data, split) != 1:
            split += 1
        stop = split + 1
        while stop < end and byte_at(data, stop) != 2:
            stop += 1
        value, length = split + 1, stop - split - 1
        if split - i == _REAL_TOPIC.size and same_bytes(data, i, split - i, _REAL_TOPIC):
            topic = is_plain_topic(data, value, length)
            if not topic:
                return UNSURE
        elif split - i == _REAL_QID.size and same_bytes(data, i, split - i, _REAL_QID):
            queue = is_number(data, value, length, QUEUE_ID_DIGITS)
        elif split - i == _OUT_MS.size and same_bytes(data, i, split - i, _OUT_MS):
            time = is_number(data, value, length, TIME_DIGITS)
        i = stop + 1
    if topic and queue and (time or not is_timer):
        return SERVED
    return UNSERVED if topic or queue or (time and is_timer) else SERVED
