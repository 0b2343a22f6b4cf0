"""Compiled reading of the properties that matter to queues and index; what it is not sure of it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import part
from formats.kernels.byte_reads import (
    below_3,
    byte_at,
    first_bit,
    is_number,
    java_hash,
    key_hash,
    next_space,
    same_bytes,
    signed,
    text_bytes,
)
from formats.kernels.walk_status import DISLIKED, NEED_MORE, OUTPUT_FULL
from formats.record_columns import (
    BIT_DELAY,
    BIT_HAS_TAGS,
    BIT_HAS_UNIQ,
    BIT_INNER_BATCH,
    BIT_LMQ,
    BIT_MARKER,
)

NO_KEYS = 0
KEYS_COUNTED = 1
TAGS_CODED = 2
KEYS_HASHED = 3
"""What a walk is to make of index keys and tags, each with what those in front of it make."""

_TAGS = text_bytes("TAGS")
_KEYS = text_bytes("KEYS")
_UNIQ_KEY = text_bytes("UNIQ_KEY")
_DELAY = text_bytes("DELAY")
_LMQ = text_bytes("INNER_MULTI_DISPATCH")
_INNER_NUM = text_bytes("INNER_NUM")
_INNER_BASE = text_bytes("INNER_BASE")
_LOST = text_bytes("MQTOOL_LOST")
_SCHEDULE = text_bytes("SCHEDULE_TOPIC_XXXX")
_SHORT_DIGITS, _LONG_DIGITS = 4, 18
"""All numbers of so many digits fit a Java short, a Java long."""


@part
def take_properties(
    data: Any, start: int, end: int, topic_at: int, topic_length: int, topic_hash: int, hashes: Any, hash_room: int,
    first_hash: int, keys: int, readable: int,
) -> tuple[int, int, int, int]:
    """Read the properties that matter: (bits, number of index keys, tags code, status).

    `data` and `hashes` are pointers (`byte_reads.pointer_to`). `keys`: KEYS_HASHED; TAGS_CODED leaves out the
    hashes of keys; KEYS_COUNTED the tags code as well, which is 0 but for a delay level; NO_KEYS their number, too.
    """
    bits = 0
    tags_at, tags_length = -1, 0
    keys_at, keys_length = -1, 0
    uniq_at, uniq_length = -1, 0
    delay_at, delay_length = -1, 0
    base_at, base_length, number_at, number_length = -1, 0, -1, 0
    i = start
    block = start
    marks = below_3(data, block, end, readable)
    while i < end:
        # the next byte below 3 has to split name from value, the one behind it to end the item; a zero
        # instead is most likely a page that never reached the disk
        while marks == 0 and block + 64 < end:
            block += 64
            marks = below_3(data, block, end, readable)
        split = block + first_bit(marks)
        if marks == 0 or byte_at(data, split) != 1:
            return 0, 0, 0, DISLIKED
        marks &= marks - np.uint64(1)
        while marks == 0 and block + 64 < end:
            block += 64
            marks = below_3(data, block, end, readable)
        item_end = end if marks == 0 else block + first_bit(marks)
        marks &= marks - np.uint64(1)
        if split == i or split + 1 == item_end or (item_end < end and byte_at(data, item_end) != 2):
            return 0, 0, 0, DISLIKED
        length = split - i
        value, value_length = split + 1, item_end - split - 1
        if length == 4 and same_bytes(data, i, length, _TAGS):
            tags_at, tags_length = value, value_length
        elif length == 4 and same_bytes(data, i, length, _KEYS):
            keys_at, keys_length = value, value_length
        elif length == 8 and same_bytes(data, i, length, _UNIQ_KEY):
            uniq_at, uniq_length = value, value_length
        elif length == 5 and same_bytes(data, i, length, _DELAY):
            delay_at, delay_length = value, value_length
        elif length == _LMQ.size and same_bytes(data, i, length, _LMQ):
            bits |= BIT_LMQ
        elif length == 9 and same_bytes(data, i, length, _INNER_NUM):
            bits |= BIT_INNER_BATCH
            number_at, number_length = value, value_length
        elif length == 10 and same_bytes(data, i, length, _INNER_BASE):
            base_at, base_length = value, value_length
        elif length == 11 and same_bytes(data, i, length, _LOST):
            bits |= BIT_MARKER
        i = item_end + 1
    if number_at >= 0 and base_at >= 0 and not (
        is_number(data, number_at, number_length, _SHORT_DIGITS) and is_number(data, base_at, base_length, _LONG_DIGITS)
    ):
        return 0, 0, 0, DISLIKED
    count = 0
    prefix = (31 * topic_hash + 35) & 0xFFFFFFFF
    if uniq_length > 0:
        bits |= BIT_HAS_UNIQ
    if uniq_length > 0 and keys == KEYS_HASHED:
        h, good = java_hash(data, uniq_at, uniq_at + uniq_length, prefix, readable)
        if not good:
            return 0, 0, 0, DISLIKED
        if first_hash + count >= hash_room:
            return 0, 0, 0, OUTPUT_FULL
        hashes[first_hash + count] = key_hash(h)
    if uniq_length > 0 and keys != NO_KEYS:
        count += 1
    word = keys_at
    while keys != NO_KEYS and keys_length > 0 and word < keys_at + keys_length:
        stop = next_space(data, word, keys_at + keys_length, readable)
        if stop > word and keys == KEYS_HASHED:
            h, good = java_hash(data, word, stop, prefix, readable)
            if not good:
                return 0, 0, 0, DISLIKED
            if first_hash + count >= hash_room:
                return 0, 0, 0, OUTPUT_FULL
            hashes[first_hash + count] = key_hash(h)
        if stop > word:
            count += 1
        word = stop + 1
    tags_code = np.int64(0)
    if tags_length > 0:
        bits |= BIT_HAS_TAGS
    if tags_length > 0 and keys != NO_KEYS:
        count += 1
    if tags_length > 0 and keys >= TAGS_CODED:
        h, good = java_hash(data, tags_at, tags_at + tags_length, 0, readable)
        if not good:
            return 0, 0, 0, DISLIKED
        tags_code = signed(h)
    if tags_length > 0 and keys == KEYS_HASHED:
        seed = (31 * ((31 * prefix + 84) & 0xFFFFFFFF) + 35) & 0xFFFFFFFF
        h, good = java_hash(data, tags_at, tags_at + tags_length, seed, readable)
        if first_hash + count > hash_room:
            return 0, 0, 0, OUTPUT_FULL
        hashes[first_hash + count - 1] = key_hash(h)
    if delay_length > 0 and same_bytes(data, topic_at, topic_length, _SCHEDULE):
        level = np.int64(0)
        if delay_length > 9:
            return 0, 0, 0, DISLIKED
        for k in range(delay_at, delay_at + delay_length):
            digit = byte_at(data, k) - 48
            if digit < 0 or digit > 9:
                return 0, 0, 0, DISLIKED
            level = level * 10 + digit
        if level > 0:
            bits |= BIT_DELAY
            tags_code = level
    return bits, count, tags_code, NEED_MORE
