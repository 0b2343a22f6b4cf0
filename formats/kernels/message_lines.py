"""Compiled NDJSON: records to lines, byte for byte as the encoder of messages writes them. It may only say yes.

A record that a line needs more of than its own bytes for (a compressed body, an IPv6 host, names or values that are no
ASCII, a property twice) is left to `recover.export.messages`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats import sysflag
from formats.commitlog import layout
from formats.compiled import BOOL, INT, Array, intrinsic, kernel, part
from formats.kernels.byte_reads import (
    byte_at,
    equal_bytes,
    first_bit,
    i16,
    i32,
    i64,
    pointer_to,
    put_i64,
    text_bytes,
    u32,
)

_INTRINSICS = "formats.kernels.byte_intrinsics"
_word = intrinsic(_INTRINSICS, "word")
_mask_below = intrinsic(_INTRINSICS, "mask_below")
_mask_equal = intrinsic(_INTRINSICS, "mask_equal")

MOST_PROPERTIES = 64
_FIXED = 2048
_WIDEST = 12
"""Bytes of a line beside what a record holds, and what a byte of a record can become: twice backslash u 0 0 1 f."""
_APART = 16
_ROOM_APART = 40
"""Sizes of a record from its line on to where its properties are first written apart, and to what is used at most."""

_MAGIC_V1 = layout.MAGIC_V1 & 0xFFFFFFFF
_MAGIC_V2 = layout.MAGIC_V2 & 0xFFFFFFFF
_HEAD_SIZE = layout.HEAD_SIZE
_AT_MAGIC = layout.OFFSET_MAGIC
_AT_QUEUE_ID = layout.OFFSET_QUEUE_ID
_AT_FLAG = layout.OFFSET_FLAG
_AT_QUEUE_OFFSET = layout.OFFSET_QUEUE_OFFSET
_AT_PHY_OFFSET = layout.OFFSET_PHY_OFFSET
_AT_SYS_FLAG = layout.OFFSET_SYS_FLAG
_AT_BORN_TIMESTAMP = layout.OFFSET_BORN_TIMESTAMP
_AT_BORN_HOST = layout.OFFSET_BORN_HOST
_AT_BORN_PORT = layout.OFFSET_BORN_PORT
_AT_STORE_TIMESTAMP = layout.OFFSET_STORE_TIMESTAMP
_AT_STORE_HOST = layout.OFFSET_STORE_HOST
_AT_STORE_PORT = layout.OFFSET_STORE_PORT
_AT_RECONSUME_TIMES = layout.OFFSET_RECONSUME_TIMES
_AT_BODY_LENGTH = layout.OFFSET_BODY_LENGTH
_NOT_PLAIN = sysflag.HOSTS_V6 | sysflag.COMPRESSED
_TRANSACTION = sysflag.TRANSACTION
_HEX = text_bytes("0123456789abcdef")
_HEX_UPPER = text_bytes("0123456789ABCDEF")
_BASE64 = text_bytes("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_UNIQ_KEY = text_bytes("UNIQ_KEY")
_KEYS = text_bytes("KEYS")
_TAGS = text_bytes("TAGS")


def _text(value: str) -> tuple[Any, int]:
    """Text that is copied by words, and how long it is."""
    raw = value.encode()
    return text_bytes(raw + bytes(8 + -len(raw) % 8)), len(raw)


_TOPIC, _TOPIC_SIZE = _text('{"topic":"')
_QUEUE, _QUEUE_SIZE = _text('","queue":')
_QUEUE_OFFSET, _QUEUE_OFFSET_SIZE = _text(',"queue_offset":')
_PHY_OFFSET, _PHY_OFFSET_SIZE = _text(',"phy_offset":')
_SIZE, _SIZE_SIZE = _text(',"size":')
_STORE_TIME, _STORE_TIME_SIZE = _text(',"state":"live","store_time":')
_BORN_TIME, _BORN_TIME_SIZE = _text(',"born_time":')
_BORN_HOST, _BORN_HOST_SIZE = _text(',"born_host":"')
_STORE_HOST, _STORE_HOST_SIZE = _text('","store_host":"')
_MSG_ID, _MSG_ID_SIZE = _text('","msg_id":"')
_UNIQUE, _UNIQUE_SIZE = _text('","unique_key":')
_KEYS_NAME, _KEYS_NAME_SIZE = _text(',"keys":')
_TAGS_NAME, _TAGS_NAME_SIZE = _text(',"tags":')
_FLAG, _FLAG_SIZE = _text(',"flag":')
_SYS_FLAG, _SYS_FLAG_SIZE = _text(',"sys_flag":')
_NONE, _NONE_SIZE = _text(',"transaction":"none","reconsume_times":')
_HALF, _HALF_SIZE = _text(',"transaction":"half","reconsume_times":')
_COMMIT, _COMMIT_SIZE = _text(',"transaction":"commit","reconsume_times":')
_ROLLBACK, _ROLLBACK_SIZE = _text(',"transaction":"rollback","reconsume_times":')
_PROPERTIES, _PROPERTIES_SIZE = _text(',"properties":')
_QUOTED, _QUOTED_SIZE = _text(',"properties":"')
_BODY, _BODY_SIZE = _text(',"body":"')
_AND_BODY, _AND_BODY_SIZE = _text('","body":"')
_IS_TEXT, _IS_TEXT_SIZE = _text('","body_encoding":"utf-8","body_compression":null,"kind":null,"stored_topic":"')
_IS_BASE64, _IS_BASE64_SIZE = _text('","body_encoding":"base64","body_compression":null,"kind":null,"stored_topic":"')
_STORED_QUEUE, _STORED_QUEUE_SIZE = _text('","stored_queue":')
_END, _END_SIZE = _text(',"body_problem":null,"damage":null,"doubtful":[]}\n')
_FLAT_END, _FLAT_END_SIZE = _text(',"body_problem":null,"damage":null,"doubtful":""}\n')
_NULL, _NULL_SIZE = _text("null")


@part
def _put(target: Any, at: int, text: Any, size: int) -> int:
    """Copy a constant by words; up to seven bytes behind it are overwritten, too."""
    for k in range(0, size, 8):
        put_i64(target, at + k, np.int64(_word(text, k)))
    return at + size


@part
def _put_number(target: Any, at: int, value: int) -> int:
    """Digits of a number; the lowest of all has no positive twin and is put digit by digit from below as well."""
    if value < 0:
        target[at] = np.uint8(45)
        at += 1
    rest = np.uint64(value) if value >= 0 else np.uint64(0) - np.uint64(value)
    digits = 1
    bound = np.uint64(10)
    while digits < 19 and rest >= bound:
        digits += 1
        bound *= np.uint64(10)
    i = at + digits
    while i > at:
        i -= 1
        higher = rest // np.uint64(10)
        target[i] = np.uint8(48 + np.int64(rest - higher * np.uint64(10)))
        rest = higher
    return at + digits


@part
def _put_host(data: Any, ip_at: int, port_at: int, target: Any, at: int) -> int:
    for k in range(4):
        at = _put_number(target, at, byte_at(data, ip_at + k))
        target[at] = np.uint8(46 if k < 3 else 58)
        at += 1
    return _put_number(target, at, i32(data, port_at))


@part
def _put_hex(data: Any, start: int, size: int, target: Any, at: int) -> int:
    for k in range(start, start + size):
        octet = byte_at(data, k)
        target[at] = _HEX_UPPER[octet >> 4]
        target[at + 1] = _HEX_UPPER[octet & 15]
        at += 2
    return at


@part
def _put_escaped(octet: int, target: Any, at: int) -> int:
    """A byte below 32, a quote or a backslash as JSON has it."""
    target[at] = np.uint8(92)
    short = 0
    if octet == 34 or octet == 92:
        short = octet
    elif octet == 8:
        short = 98
    elif octet == 9:
        short = 116
    elif octet == 10:
        short = 110
    elif octet == 12:
        short = 102
    elif octet == 13:
        short = 114
    if short:
        target[at + 1] = np.uint8(short)
        return at + 2
    target[at + 1] = np.uint8(117)
    target[at + 2] = np.uint8(48)
    target[at + 3] = np.uint8(48)
    target[at + 4] = _HEX[octet >> 4]
    target[at + 5] = _HEX[octet & 15]
    return at + 6


@part
def _sequence(data: Any, i: int, stop: int) -> int:
    """Length of the UTF-8 sequence that begins at `i` with a byte above 127; 0 for none."""
    first = byte_at(data, i)
    length = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4 if 0xF0 <= first <= 0xF4 else 0
    if length == 0 or i + length > stop:
        return 0
    second = byte_at(data, i + 1)
    low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
    if second < low or second > high:
        return 0
    for k in range(2, length):
        if byte_at(data, i + k) & 0xC0 != 0x80:
            return 0
    return length


@part
def _put_text(data: Any, start: int, stop: int, readable: int, target: Any, at: int) -> int:
    """data[start:stop] as the inside of a JSON string; -1 if it is no UTF-8."""
    i = start
    while i < stop:
        if i + 64 <= readable:
            marks = _mask_below(data, i, 32) | _mask_equal(data, i, 34) | _mask_equal(data, i, 92)
            marks |= ~_mask_below(data, i, 128)
            plain = min(first_bit(marks) if marks != 0 else 64, stop - i)
            for k in range(0, plain, 8):
                put_i64(target, at + k, np.int64(_word(data, i + k)))
            i += plain
            at += plain
            if plain == 64 or i >= stop:
                continue
        octet = byte_at(data, i)
        while octet >= 128:
            length = _sequence(data, i, stop)
            if length == 0:
                return -1
            for k in range(length):
                target[at + k] = np.uint8(byte_at(data, i + k))
            i += length
            at += length
            octet = byte_at(data, i) if i < stop else 0
        if i < stop:
            if octet < 32 or octet == 34 or octet == 92:
                at = _put_escaped(octet, target, at)
            else:
                target[at] = np.uint8(octet)
                at += 1
            i += 1
    return at


@part
def _put_base64(data: Any, start: int, stop: int, target: Any, at: int) -> int:
    i = start
    while i + 3 <= stop:
        group = byte_at(data, i) << 16 | byte_at(data, i + 1) << 8 | byte_at(data, i + 2)
        target[at] = _BASE64[group >> 18]
        target[at + 1] = _BASE64[group >> 12 & 63]
        target[at + 2] = _BASE64[group >> 6 & 63]
        target[at + 3] = _BASE64[group & 63]
        i += 3
        at += 4
    if i < stop:
        group = byte_at(data, i) << 16 | (byte_at(data, i + 1) << 8 if i + 1 < stop else 0)
        target[at] = _BASE64[group >> 18]
        target[at + 1] = _BASE64[group >> 12 & 63]
        target[at + 2] = _BASE64[group >> 6 & 63] if i + 1 < stop else np.uint8(61)
        target[at + 3] = np.uint8(61)
        at += 4
    return at


@part
def _split(data: Any, start: int, stop: int, items: Any) -> int:
    """Fill `items` with (name, split, end) of each property that brokers see; how many, -1 for what is not plain."""
    count = 0
    i = start
    while i < stop:
        name, split = i, -1
        while i < stop and byte_at(data, i) != 2:
            octet = byte_at(data, i)
            if octet == 0 or octet >= 128:
                return -1
            if octet == 1 and split < 0:
                split = i
            i += 1
        if split > name and split + 1 < i:
            if count == MOST_PROPERTIES:
                return -1
            for k in range(count):
                length = items[3 * k + 1] - items[3 * k]
                if length == split - name and equal_bytes(data, name, data, items[3 * k], length):
                    return -1
            items[3 * count], items[3 * count + 1], items[3 * count + 2] = name, split, i
            count += 1
        i += 1
    return count


@part
def _put_property(
    data: Any, items: Any, count: int, name: Any, readable: int, target: Any, at: int
) -> int:
    """The value of a property as a JSON string, or null."""
    for k in range(count):
        start, split, stop = items[3 * k], items[3 * k + 1], items[3 * k + 2]
        if split - start == name.size and equal_bytes(data, start, name, 0, name.size):
            target[at] = np.uint8(34)
            at = _put_text(data, split + 1, stop, readable, target, at + 1)
            target[at] = np.uint8(34)
            return at + 1
    return _put(target, at, _NULL, _NULL_SIZE)


@part
def _is_plain_name(data: Any, start: int, stop: int) -> bool:
    plain = stop > start
    for i in range(start, stop):
        octet = byte_at(data, i)
        plain &= 32 < octet < 127 and octet != 34 and octet != 92
    return plain


@part
def _put_properties(data: Any, items: Any, count: int, readable: int, target: Any, at: int) -> int:
    target[at] = np.uint8(123)
    at += 1
    for k in range(count):
        target[at] = np.uint8(34)
        at = _put_text(data, items[3 * k], items[3 * k + 1], readable, target, at + 1)
        target[at] = np.uint8(34)
        target[at + 1] = np.uint8(58)
        target[at + 2] = np.uint8(34)
        at = _put_text(data, items[3 * k + 1] + 1, items[3 * k + 2], readable, target, at + 3)
        target[at] = np.uint8(34)
        target[at + 1] = np.uint8(44)
        at += 2
    if count:
        at -= 1
    target[at] = np.uint8(125)
    return at + 1


@part
def _put_line(
    data: Any, start: int, size: int, readable: int, items: Any, flat: bool, target: Any, at: int
) -> int:
    """The line of the record at `start`, and where it ends; -1 for a record that it is not sure of."""
    end = start + size
    magic = u32(data, start + _AT_MAGIC)
    sys_flag = i32(data, start + _AT_SYS_FLAG)
    if size < _HEAD_SIZE + 4 or i32(data, start) != size or sys_flag & _NOT_PLAIN:
        return -1
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return -1
    body = start + _HEAD_SIZE
    length = i32(data, start + _AT_BODY_LENGTH)
    body_end = body + length
    if length < 0 or body_end + 4 > end:
        return -1
    topic = body_end + (1 if magic == _MAGIC_V1 else 2)
    length = byte_at(data, body_end) if magic == _MAGIC_V1 else i16(data, body_end)
    topic_end = topic + length
    if length < 0 or (magic == _MAGIC_V1 and length > 127) or topic_end + 2 > end:
        return -1
    properties = topic_end + 2
    if properties + i16(data, topic_end) != end or not _is_plain_name(data, topic, topic_end):
        return -1
    count = _split(data, properties, end, items)
    if count < 0:
        return -1
    at = _put(target, at, _TOPIC, _TOPIC_SIZE)
    at = _put_text(data, topic, topic_end, readable, target, at)
    at = _put(target, at, _QUEUE, _QUEUE_SIZE)
    at = _put_number(target, at, i32(data, start + _AT_QUEUE_ID))
    at = _put(target, at, _QUEUE_OFFSET, _QUEUE_OFFSET_SIZE)
    at = _put_number(target, at, i64(data, start + _AT_QUEUE_OFFSET))
    at = _put(target, at, _PHY_OFFSET, _PHY_OFFSET_SIZE)
    at = _put_number(target, at, i64(data, start + _AT_PHY_OFFSET))
    at = _put(target, at, _SIZE, _SIZE_SIZE)
    at = _put_number(target, at, size)
    at = _put(target, at, _STORE_TIME, _STORE_TIME_SIZE)
    at = _put_number(target, at, i64(data, start + _AT_STORE_TIMESTAMP))
    at = _put(target, at, _BORN_TIME, _BORN_TIME_SIZE)
    at = _put_number(target, at, i64(data, start + _AT_BORN_TIMESTAMP))
    at = _put(target, at, _BORN_HOST, _BORN_HOST_SIZE)
    at = _put_host(data, start + _AT_BORN_HOST, start + _AT_BORN_PORT, target, at)
    at = _put(target, at, _STORE_HOST, _STORE_HOST_SIZE)
    at = _put_host(data, start + _AT_STORE_HOST, start + _AT_STORE_PORT, target, at)
    at = _put(target, at, _MSG_ID, _MSG_ID_SIZE)
    at = _put_hex(data, start + _AT_STORE_HOST, 8, target, at)
    at = _put_hex(data, start + _AT_PHY_OFFSET, 8, target, at)
    at = _put(target, at, _UNIQUE, _UNIQUE_SIZE)
    at = _put_property(data, items, count, _UNIQ_KEY, readable, target, at)
    at = _put(target, at, _KEYS_NAME, _KEYS_NAME_SIZE)
    at = _put_property(data, items, count, _KEYS, readable, target, at)
    at = _put(target, at, _TAGS_NAME, _TAGS_NAME_SIZE)
    at = _put_property(data, items, count, _TAGS, readable, target, at)
    at = _put(target, at, _FLAG, _FLAG_SIZE)
    at = _put_number(target, at, i32(data, start + _AT_FLAG))
    at = _put(target, at, _SYS_FLAG, _SYS_FLAG_SIZE)
    at = _put_number(target, at, sys_flag)
    kind = sys_flag & _TRANSACTION
    if kind == 0:
        at = _put(target, at, _NONE, _NONE_SIZE)
    elif kind == 4:
        at = _put(target, at, _HALF, _HALF_SIZE)
    elif kind == 8:
        at = _put(target, at, _COMMIT, _COMMIT_SIZE)
    else:
        at = _put(target, at, _ROLLBACK, _ROLLBACK_SIZE)
    at = _put_number(target, at, i32(data, start + _AT_RECONSUME_TIMES))
    if flat:
        at = _put(target, at, _QUOTED, _QUOTED_SIZE)
        apart = at + _APART * size
        apart_end = _put_properties(data, items, count, readable, target, apart)
        at = _put_text(target, apart, apart_end, apart_end, target, at)
        at = _put(target, at, _AND_BODY, _AND_BODY_SIZE)
    else:
        at = _put(target, at, _PROPERTIES, _PROPERTIES_SIZE)
        at = _put_properties(data, items, count, readable, target, at)
        at = _put(target, at, _BODY, _BODY_SIZE)
    text_end = _put_text(data, body, body_end, readable, target, at)
    if text_end >= 0:
        at = _put(target, text_end, _IS_TEXT, _IS_TEXT_SIZE)
    else:
        at = _put_base64(data, body, body_end, target, at)
        at = _put(target, at, _IS_BASE64, _IS_BASE64_SIZE)
    at = _put_text(data, topic, topic_end, readable, target, at)
    at = _put(target, at, _STORED_QUEUE, _STORED_QUEUE_SIZE)
    at = _put_number(target, at, i32(data, start + _AT_QUEUE_ID))
    return _put(target, at, _FLAT_END, _FLAT_END_SIZE) if flat else _put(target, at, _END, _END_SIZE)


@kernel(
    data=Array(np.uint8), starts=Array(np.int64), sizes=Array(np.int64), first=INT, items=Array(np.int64, out=True),
    flat=BOOL, lines=Array(np.uint8, out=True), returns=(INT, INT),
)
def write_lines(
    data: Any, starts: Any, sizes: Any, first: int, items: Any, flat: bool, lines: Any
) -> tuple[int, int]:
    """(number of the first record that has no line, bytes of `lines` used).

    Records are data[starts[i]:starts[i] + sizes[i]], from number `first` on; one with a size of 0 is left out and ends
    the call, as does one that it is not sure of or that might not fit into `lines`. `items` is room for
    MOST_PROPERTIES times three numbers. In a `flat` line the properties are one string, as columns have them.
    """
    source, target, room = pointer_to(data), pointer_to(lines), pointer_to(items)
    readable = data.size
    widest = _ROOM_APART if flat else _WIDEST
    at = 0
    i = first
    if items.size < 3 * MOST_PROPERTIES:
        return i, at
    while i < min(starts.size, sizes.size):
        start, size = starts[i], sizes[i]
        if size <= 0 or start < 0 or start + size > readable or at + _FIXED + widest * size > lines.size:
            break
        end = _put_line(source, start, size, readable, room, flat, target, at)
        if end < 0:
            break
        at = end
        i += 1
    return i, at
