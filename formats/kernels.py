"""Compiled walk over commitlog records. It may only say yes.

`walk_records` takes records from a window of the log as long as every check of the reference
codec (`formats.commitlog.check_strict`) is certain to pass, and stops in front of the first
byte that it does not like; the caller then asks the reference codec, whose verdict counts.
Every read is bounded by the window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from formats import sysflag
from formats.commitlog import layout
from formats.crc_kernel import crc32_kernel
from formats.record_columns import (
    BIT_DELAY,
    BIT_FILLER,
    BIT_HAS_TAGS,
    BIT_HAS_UNIQ,
    BIT_INNER_BATCH,
    BIT_LMQ,
    BIT_MARKER,
    BIT_PROP_CRC,
    BIT_V2,
)

NEED_MORE = 0
AT_BLANK = 1
DISLIKED = 2
OUTPUT_FULL = 3

_MAGIC_V1 = layout.MAGIC_V1 & 0xFFFFFFFF
_MAGIC_V2 = layout.MAGIC_V2 & 0xFFFFFFFF
_MAGIC_BLANK = layout.MAGIC_BLANK & 0xFFFFFFFF
_HEAD_SIZE = layout.HEAD_SIZE
_AT_MAGIC = layout.OFFSET_MAGIC
_AT_BODY_CRC = layout.OFFSET_BODY_CRC
_AT_QUEUE_ID = layout.OFFSET_QUEUE_ID
_AT_QUEUE_OFFSET = layout.OFFSET_QUEUE_OFFSET
_AT_PHY_OFFSET = layout.OFFSET_PHY_OFFSET
_AT_SYS_FLAG = layout.OFFSET_SYS_FLAG
_AT_BORN_TIMESTAMP = layout.OFFSET_BORN_TIMESTAMP
_AT_STORE_TIMESTAMP = layout.OFFSET_STORE_TIMESTAMP
_AT_BODY_LENGTH = layout.OFFSET_BODY_LENGTH
_BLANK_SIZE = layout.BLANK_SIZE
_MIN_RECORD = layout.MIN_RECORD_SIZE
_BORN_V6 = sysflag.BORNHOST_V6
_STORE_V6 = sysflag.STOREHOST_V6
_TRANSACTION = sysflag.TRANSACTION
_ROLLBACK = sysflag.TRANSACTION_ROLLBACK
_V6_EXTRA = layout.IPV6_EXTRA
_PROP_CRC_SIZE = layout.PROPERTY_CRC_SIZE
_PROP_CRC_DIGITS = 10


def _text(value: str | bytes) -> Any:
    raw = value.encode() if isinstance(value, str) else value
    return np.frombuffer(raw, dtype=np.uint8).copy()


_TAGS = _text("TAGS")
_KEYS = _text("KEYS")
_UNIQ_KEY = _text("UNIQ_KEY")
_DELAY = _text("DELAY")
_LMQ = _text("INNER_MULTI_DISPATCH")
_INNER_NUM = _text("INNER_NUM")
_LOST = _text("MQTOOL_LOST")
_SCHEDULE = _text("SCHEDULE_TOPIC_XXXX")
_FILLER = _text("MQTOOL_FILLER")
_PROP_CRC_NAME = _text(b"__CRC32#\x01")
_TOPIC_BYTES = np.zeros(256, dtype=np.uint8)
for _character in b"%|_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
    _TOPIC_BYTES[_character] = 1


@njit(cache=True, nogil=True)
def _i16(data: Any, i: int) -> int:
    value = (np.int64(data[i]) << 8) | np.int64(data[i + 1])
    return value - 65536 if value >= 32768 else value


@njit(cache=True, nogil=True)
def _u32(data: Any, i: int) -> int:
    return (
        (np.int64(data[i]) << 24) | (np.int64(data[i + 1]) << 16) | (np.int64(data[i + 2]) << 8) | np.int64(data[i + 3])
    )


@njit(cache=True, nogil=True)
def _i32(data: Any, i: int) -> int:
    value = _u32(data, i)
    return value - 4294967296 if value >= 2147483648 else value


@njit(cache=True, nogil=True)
def _i64(data: Any, i: int) -> int:
    return (_i32(data, i) << 32) | _u32(data, i + 4)


@njit(cache=True, nogil=True)
def _same(data: Any, start: int, length: int, text: Any) -> bool:
    if length != text.size:
        return False
    for i in range(length):  # noqa: SIM110 - compiled code knows no all()
        if data[start + i] != text[i]:
            return False
    return True


@njit(cache=True, nogil=True)
def _is_filler_topic(data: Any, start: int, length: int) -> bool:
    """True for the name of filler, or a beginning of it: filler for a narrow range has a shorter topic."""
    return length <= _FILLER.size and _same(data, start, length, _FILLER[:length])


@njit(cache=True, nogil=True)
def _java_hash(data: Any, start: int, stop: int, seed: int) -> tuple[int, bool]:
    """Java String.hashCode over the UTF-16 units of strict UTF-8 text, continued from `seed`; False if malformed."""
    h = np.int64(seed)
    i = start
    while i < stop:
        b = np.int64(data[i])
        if b < 0x80:
            h = (31 * h + b) & 0xFFFFFFFF
            i += 1
            continue
        if 0xC2 <= b <= 0xDF:
            extra, point, least = 1, b & 0x1F, np.int64(0x80)
        elif 0xE0 <= b <= 0xEF:
            extra, point, least = 2, b & 0x0F, np.int64(0x800)
        elif 0xF0 <= b <= 0xF4:
            extra, point, least = 3, b & 0x07, np.int64(0x10000)
        else:
            return h, False
        if i + extra >= stop:
            return h, False
        for k in range(1, extra + 1):
            c = np.int64(data[i + k])
            if (c & 0xC0) != 0x80:
                return h, False
            point = (point << 6) | (c & 0x3F)
        if point < least or point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            return h, False
        if point >= 0x10000:
            point -= 0x10000
            h = (31 * h + (0xD800 | (point >> 10))) & 0xFFFFFFFF
            h = (31 * h + (0xDC00 | (point & 0x3FF))) & 0xFFFFFFFF
        else:
            h = (31 * h + point) & 0xFFFFFFFF
        i += extra + 1
    return h, True


@njit(cache=True, nogil=True)
def _signed(h: int) -> int:
    return h - 4294967296 if h >= 2147483648 else h


@njit(cache=True, nogil=True)
def _key_hash(h: int) -> int:
    value = _signed(h)
    if value == -2147483648:
        return 0
    return -value if value < 0 else value


@njit(cache=True, nogil=True)
def _queue_slot(topic_hash: int, queue_id: int, mask: int) -> int:
    return (topic_hash * 31 + queue_id * 2654435761) & mask


@njit(cache=True, nogil=True)
def new_queue_slots(size: int, names: Any, queue_table: Any, queues: int) -> Any:
    """Hash slots (int32, -1 empty; `size` a power of two above twice `queues`) over the queues of the table."""
    slots = np.full(size, -1, dtype=np.int32)
    mask = size - 1
    for number in range(queues):
        topic_hash = np.int64(0)
        for i in range(queue_table[number, 0], queue_table[number, 0] + queue_table[number, 1]):
            topic_hash = (31 * topic_hash + np.int64(names[i])) & 0xFFFFFFFF
        slot = _queue_slot(topic_hash, queue_table[number, 2], mask)
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number
    return slots


@njit(cache=True, nogil=True)
def _find_queue(
    data: Any, start: int, length: int, queue_id: int, topic_hash: int,
    slots: Any, names: Any, queue_table: Any, queues: int, names_used: int,
) -> tuple[int, int, int]:
    """Number of (topic, queue id) in the table, adding it if new: (number, queues, names_used); -1 when full."""
    mask = slots.size - 1
    slot = _queue_slot(topic_hash, queue_id, mask)
    for _ in range(slots.size):
        number = slots[slot]
        if number < 0:
            break
        if queue_table[number, 2] == queue_id and queue_table[number, 1] == length:
            at = queue_table[number, 0]
            equal = True
            for i in range(length):
                if names[at + i] != data[start + i]:
                    equal = False
                    break
            if equal:
                return number, queues, names_used
        slot = (slot + 1) & mask
    if queues * 2 >= slots.size or queues >= queue_table.shape[0] or names_used + length > names.size:
        return -1, queues, names_used
    for i in range(length):
        names[names_used + i] = data[start + i]
    queue_table[queues, 0] = names_used
    queue_table[queues, 1] = length
    queue_table[queues, 2] = queue_id
    slots[slot] = queues
    return queues, queues + 1, names_used + length


@njit(cache=True, nogil=True)
def walk_records(
    data: Any, position: int, available: int, window_offset: int, file_end: int, crc_address: int, crc_table: Any,
    records: Any, hashes: Any, slots: Any, names: Any, queue_table: Any, state: Any,
) -> tuple[int, int]:
    """Take records from data[position:available] while sure that each is intact.

    data[0] lies at physical offset `window_offset`; the mapped file ends at `file_end`. Rows go to
    `records`, index key hashes to `hashes`, new queues to the tables; `state` is int64
    [rows, hashes, queues, names_used] and is updated. Returns (position, status).
    """
    limit = min(available, data.size)
    while True:
        if state[0] >= records.size:
            return position, OUTPUT_FULL
        if position + _BLANK_SIZE > limit:
            return position, NEED_MORE
        magic = _u32(data, position + _AT_MAGIC)
        if magic == _MAGIC_BLANK:
            return position, AT_BLANK
        if magic not in (_MAGIC_V1, _MAGIC_V2):
            return position, DISLIKED
        size = _i32(data, position)
        offset = window_offset + position
        if size < _MIN_RECORD or offset + size + _BLANK_SIZE > file_end:
            return position, DISLIKED
        if position + size > limit:
            return position, NEED_MORE
        if _i64(data, position + _AT_PHY_OFFSET) != offset:
            return position, DISLIKED
        status = _take_record(
            data, position, size, offset, magic == _MAGIC_V2, crc_address, crc_table,
            records, hashes, slots, names, queue_table, state,
        )
        if status != NEED_MORE:
            return position, status
        position += size


@njit(cache=True, nogil=True)
def _take_record(
    data: Any, start: int, size: int, offset: int, is_v2: bool, crc_address: int, crc_table: Any,
    records: Any, hashes: Any, slots: Any, names: Any, queue_table: Any, state: Any,
) -> int:
    """Check the record data[start:start+size] and fill one row; NEED_MORE (0) means taken."""
    sys_flag = _i32(data, start + _AT_SYS_FLAG)
    v6 = (_V6_EXTRA if sys_flag & _BORN_V6 else 0) + (_V6_EXTRA if sys_flag & _STORE_V6 else 0)
    topic_field = 2 if is_v2 else 1
    if size < _HEAD_SIZE + v6 + topic_field + 2:
        return DISLIKED
    store_at = start + _AT_STORE_TIMESTAMP + (_V6_EXTRA if sys_flag & _BORN_V6 else 0)
    queue_id = _i32(data, start + _AT_QUEUE_ID)
    queue_offset = _i64(data, start + _AT_QUEUE_OFFSET)
    store_timestamp = _i64(data, store_at)
    body_length = _i32(data, start + _AT_BODY_LENGTH + v6)
    if queue_id < 0 or queue_offset < 0 or store_timestamp <= 0 or _i64(data, start + _AT_BORN_TIMESTAMP) <= 0:
        return DISLIKED
    body_at = start + _HEAD_SIZE + v6
    end = start + size
    if body_length < 0 or body_at + body_length + topic_field + 2 > end:
        return DISLIKED
    topic_at = body_at + body_length + topic_field
    topic_length = _i16(data, topic_at - 2) if is_v2 else np.int64(np.int8(data[topic_at - 1]))
    if topic_length < 1 or topic_at + topic_length + 2 > end:
        return DISLIKED
    properties_at = topic_at + topic_length + 2
    properties_length = _i16(data, properties_at - 2)
    if properties_length < 0 or properties_at + properties_length != end:
        return DISLIKED
    topic_hash = np.int64(0)
    for i in range(topic_at, topic_at + topic_length):
        if _TOPIC_BYTES[data[i]] == 0:
            return DISLIKED
        topic_hash = (31 * topic_hash + np.int64(data[i])) & 0xFFFFFFFF
    if body_length > 0:
        crc = np.int64(crc32_kernel(crc_address, crc_table, data, body_at, body_length))
        if (crc & 0x7FFFFFFF) != _i32(data, start + _AT_BODY_CRC):
            return DISLIKED
    bits = BIT_V2 if is_v2 else 0
    if properties_length >= _PROP_CRC_SIZE and _same(data, end - _PROP_CRC_SIZE, _PROP_CRC_NAME.size, _PROP_CRC_NAME):
        if not _property_crc_fits(data, start, size, crc_address, crc_table):
            return DISLIKED
        bits |= BIT_PROP_CRC
    queue, queues, names_used = _find_queue(
        data, topic_at, topic_length, queue_id, topic_hash, slots, names, queue_table, state[2], state[3]
    )
    if queue < 0:
        return OUTPUT_FULL
    first_hash = state[1]
    more_bits, count, tags_code, status = _take_properties(
        data, properties_at, end, topic_at, topic_length, topic_hash, hashes, first_hash
    )
    if status != NEED_MORE:
        return status
    bits |= more_bits
    if (sys_flag & _TRANSACTION) == _ROLLBACK:
        count = 0  # IndexService.buildIndex skips these
    if (sys_flag & _TRANSACTION) == _ROLLBACK and _is_filler_topic(data, topic_at, topic_length):
        bits |= BIT_FILLER
    row = records[state[0]]
    row.phy_offset = offset
    row.size = size
    row.queue = queue
    row.queue_offset = queue_offset
    row.store_timestamp = store_timestamp
    row.tags_code = tags_code
    row.sys_flag = sys_flag
    row.bits = bits
    row.hashes = count
    state[0] += 1
    state[1] += count
    state[2] = queues
    state[3] = names_used
    return NEED_MORE


@njit(cache=True, nogil=True)
def _property_crc_fits(data: Any, start: int, size: int, crc_address: int, crc_table: Any) -> bool:
    """The ten digits at the record's end, least significant first, equal the CRC of what precedes them."""
    end = start + size
    if data[end - 1] != 2:
        return False
    value = np.int64(0)
    for k in range(_PROP_CRC_DIGITS):
        digit = np.int64(data[end - 2 - k]) - 48
        if digit < 0 or digit > 9:
            return False
        value = value * 10 + digit
    crc = np.int64(crc32_kernel(crc_address, crc_table, data, start, size - _PROP_CRC_SIZE))
    return value == (crc & 0x7FFFFFFF)


@njit(cache=True, nogil=True)
def _take_properties(
    data: Any, start: int, end: int, topic_at: int, topic_length: int, topic_hash: int, hashes: Any, first_hash: int
) -> tuple[int, int, int, int]:
    """Read the properties that matter: (bits, number of index key hashes, tags code, status)."""
    bits = 0
    tags_at, tags_length = -1, 0
    keys_at, keys_length = -1, 0
    uniq_at, uniq_length = -1, 0
    delay_at, delay_length = -1, 0
    i = start
    while i < end:
        item_end = i
        split = -1
        while item_end < end and data[item_end] != 2:
            if data[item_end] == 0:  # most likely a page that never reached the disk
                return 0, 0, 0, DISLIKED
            if data[item_end] == 1:
                if split >= 0:
                    return 0, 0, 0, DISLIKED
                split = item_end
            item_end += 1
        if split <= i or split + 1 >= item_end:
            return 0, 0, 0, DISLIKED
        length = split - i
        value, value_length = split + 1, item_end - split - 1
        if length == 4 and _same(data, i, length, _TAGS):
            tags_at, tags_length = value, value_length
        elif length == 4 and _same(data, i, length, _KEYS):
            keys_at, keys_length = value, value_length
        elif length == 8 and _same(data, i, length, _UNIQ_KEY):
            uniq_at, uniq_length = value, value_length
        elif length == 5 and _same(data, i, length, _DELAY):
            delay_at, delay_length = value, value_length
        elif length == _LMQ.size and _same(data, i, length, _LMQ):
            bits |= BIT_LMQ
        elif length == 9 and _same(data, i, length, _INNER_NUM):
            bits |= BIT_INNER_BATCH
        elif length == 11 and _same(data, i, length, _LOST):
            bits |= BIT_MARKER
        i = item_end + 1
    count = 0
    prefix = (31 * topic_hash + 35) & 0xFFFFFFFF
    if uniq_length > 0:
        bits |= BIT_HAS_UNIQ
        h, good = _java_hash(data, uniq_at, uniq_at + uniq_length, prefix)
        if not good:
            return 0, 0, 0, DISLIKED
        if first_hash + count >= hashes.size:
            return 0, 0, 0, OUTPUT_FULL
        hashes[first_hash + count] = _key_hash(h)
        count += 1
    word = keys_at
    while keys_length > 0 and word < keys_at + keys_length:
        stop = word
        while stop < keys_at + keys_length and data[stop] != 32:
            stop += 1
        if stop > word:
            h, good = _java_hash(data, word, stop, prefix)
            if not good:
                return 0, 0, 0, DISLIKED
            if first_hash + count >= hashes.size:
                return 0, 0, 0, OUTPUT_FULL
            hashes[first_hash + count] = _key_hash(h)
            count += 1
        word = stop + 1
    tags_code = np.int64(0)
    if tags_length > 0:
        h, good = _java_hash(data, tags_at, tags_at + tags_length, 0)
        if not good:
            return 0, 0, 0, DISLIKED
        tags_code = _signed(h)
        seed = (31 * ((31 * prefix + 84) & 0xFFFFFFFF) + 35) & 0xFFFFFFFF
        h, good = _java_hash(data, tags_at, tags_at + tags_length, seed)
        if first_hash + count >= hashes.size:
            return 0, 0, 0, OUTPUT_FULL
        hashes[first_hash + count] = _key_hash(h)
        count += 1
        bits |= BIT_HAS_TAGS
    if delay_length > 0 and _same(data, topic_at, topic_length, _SCHEDULE):
        level = np.int64(0)
        if delay_length > 9:
            return 0, 0, 0, DISLIKED
        for k in range(delay_at, delay_at + delay_length):
            digit = np.int64(data[k]) - 48
            if digit < 0 or digit > 9:
                return 0, 0, 0, DISLIKED
            level = level * 10 + digit
        if level > 0:
            bits |= BIT_DELAY
            tags_code = level
    return bits, count, tags_code, NEED_MORE


@njit(cache=True, nogil=True)
def find_record_head(data: Any, position: int, available: int, window_offset: int) -> int:
    """First place at or after `position` with a message magic and its own physical offset, or -1."""
    limit = min(available, data.size) - _AT_PHY_OFFSET - 8
    i = position
    while i <= limit:
        if data[i + _AT_MAGIC] == 0xDA:
            magic = _u32(data, i + _AT_MAGIC)
            if magic in (_MAGIC_V1, _MAGIC_V2) and _i64(data, i + _AT_PHY_OFFSET) == window_offset + i:
                return i
        i += 1
    return -1


@njit(cache=True, nogil=True)
def find_blank(data: Any, position: int, available: int, window_offset: int, file_end: int) -> int:
    """First place at or after `position` with a blank that reaches exactly to `file_end`, or -1."""
    limit = min(available, data.size) - _BLANK_SIZE
    i = position
    while i <= limit:
        if (
            data[i + _AT_MAGIC] == 0xCB and _u32(data, i + _AT_MAGIC) == _MAGIC_BLANK
            and _i32(data, i) == file_end - window_offset - i
        ):
            return i
        i += 1
    return -1


@njit(cache=True, nogil=True)
def last_nonzero(data: Any, start: int, stop: int) -> int:
    """Position of the last byte that is not zero in data[start:stop], or -1."""
    i = min(stop, data.size) - 1
    while i >= start:
        if data[i] != 0:
            return i
        i -= 1
    return -1
