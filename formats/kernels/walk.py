"""Compiled walk over commitlog records. It may only say yes.

`walk_records` takes records from a window of the log as long as every check of the reference
codec (`formats.commitlog.check_strict`) is certain to pass, and stops in front of the first
byte that it does not like; the caller then asks the reference codec, whose verdict counts.
Every read is bounded by the window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from formats import sysflag
from formats.commitlog import layout
from formats.compiled import INT, Array, kernel, part
from formats.kernels.byte_reads import (
    byte_at,
    equal_bytes,
    i16,
    i32,
    i64,
    java_hash,
    pointer_to,
    put_i32,
    put_i64,
    put_u16,
    same_bytes,
    text_bytes,
    u32,
)
from formats.kernels.crc import crc32_inside
from formats.kernels.property_reads import KEYS_COUNTED, KEYS_HASHED, TAGS_CODED, take_properties
from formats.kernels.queue_table import QUEUE_COLUMNS, QUEUE_PASSES, enter_queue, find_queue
from formats.kernels.refill import fill_again, is_over, may_refill
from formats.kernels.service_reads import UNSERVED, UNSURE, is_plain_topic, service_of
from formats.kernels.walk_status import AT_BLANK, DISLIKED, NEED_MORE, NOT_RESIDENT, OUTPUT_FULL
from formats.record_columns import (
    BIT_CONTRADICTED_FLAG,
    BIT_FILLER,
    BIT_PROP_CRC,
    BIT_UNSERVED,
    BIT_V2,
    RECORD,
    column_offset,
)

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
_AT_BORN_PORT = layout.OFFSET_BORN_PORT
_AT_STORE_TIMESTAMP = layout.OFFSET_STORE_TIMESTAMP
_AT_STORE_PORT = layout.OFFSET_STORE_PORT
_AT_BODY_LENGTH = layout.OFFSET_BODY_LENGTH
_LARGEST_PORT = layout.LARGEST_PORT
_BLANK_SIZE = layout.BLANK_SIZE
_MIN_RECORD = layout.MIN_RECORD_SIZE
_BORN_V6 = sysflag.BORNHOST_V6
_STORE_V6 = sysflag.STOREHOST_V6
_TRANSACTION = sysflag.TRANSACTION
_ROLLBACK = sysflag.TRANSACTION_ROLLBACK
_COMPRESSED = sysflag.COMPRESSED
_KIND = sysflag.COMPRESSION_TYPE
_LEGACY_ZLIB = sysflag.COMPRESSION_LEGACY_ZLIB
_ZLIB = sysflag.COMPRESSION_ZLIB
_LZ4 = sysflag.COMPRESSION_LZ4
_ZSTD = sysflag.COMPRESSION_ZSTD
_ZLIB_METHOD = sysflag.ZLIB_METHOD
_ZLIB_CHECK = sysflag.ZLIB_CHECK
_LZ4_MAGIC = sysflag.LZ4_MAGIC
_ZSTD_MAGIC = sysflag.ZSTD_MAGIC
_SKIPPABLE_MAGIC = sysflag.SKIPPABLE_MAGIC
_SKIPPABLE_MASK = sysflag.SKIPPABLE_MASK
_V6_EXTRA = layout.IPV6_EXTRA
_PROP_CRC_SIZE = layout.PROPERTY_CRC_SIZE
_PROP_CRC_DIGITS = 10
_ROW_SIZE = RECORD.itemsize
_ROW_PHY_OFFSET = column_offset("phy_offset")
_ROW_QUEUE_OFFSET = column_offset("queue_offset")
_ROW_STORE_TIMESTAMP = column_offset("store_timestamp")
_ROW_TAGS_CODE = column_offset("tags_code")
_ROW_SIZE_FIELD = column_offset("size")
_ROW_QUEUE = column_offset("queue")
_ROW_SYS_FLAG = column_offset("sys_flag")
_ROW_BITS = column_offset("bits")
_ROW_HASHES = column_offset("hashes")
_FILLER = text_bytes("MQTOOL_FILLER")
_PROP_CRC_NAME = text_bytes(b"__CRC32#\x01")


@part
def _is_filler_topic(data: Any, start: int, length: int) -> bool:
    """True for the name of filler, or a beginning of it: filler for a narrow range has a shorter topic."""
    return length <= _FILLER.size and equal_bytes(data, start, _FILLER, 0, length)


@kernel(
    data=Array(np.uint8, out=True), position=INT, available=INT, window_offset=INT, file_end=INT, crc_address=INT,
    crc_table=Array(np.uint32, 2), records=Array(RECORD, out=True), hashes=Array(np.int32, out=True),
    slots=Array(np.int32, out=True), names=Array(np.uint8, out=True), queue_table=Array(np.int64, 2, out=True),
    state=Array(np.int64, out=True), keys=INT, refill=Array(np.int64, out=True), returns=(INT, INT),
)
def walk_records(
    data: Any, position: int, available: int, window_offset: int, file_end: int, crc_address: int, crc_table: Any,
    records: Any, hashes: Any, slots: Any, names: Any, queue_table: Any, state: Any, keys: int, refill: Any,
) -> tuple[int, int]:
    """Take records from data[position:available] while sure that each is intact.

    data[0] lies at physical offset `window_offset`; the mapped file ends at `file_end`. Rows go to
    `records`, index key hashes to `hashes`, new queues to the tables; `state` is int64
    [rows, hashes, queues, names_used] and is updated. `keys` says what is made of those for the index
    (`property_reads`): where they are not hashed, `hashes` is left alone; queues that pass have TAGS_CODED
    as KEYS_COUNTED. `refill` says how `data` is filled again (`formats.kernels.refill`): positions then count from its
    START, and no record is taken that begins at STOP or behind; full of zeros, not at all. Returns (position, status).
    """
    limit = min(available, data.size)
    rows = pointer_to(records)
    raw, tables, key_hashes, counts = pointer_to(data), pointer_to(crc_table), pointer_to(hashes), pointer_to(state)
    queue_slots, queue_names, queue_rows = pointer_to(slots), pointer_to(names), pointer_to(queue_table)
    filling = pointer_to(refill)
    while True:
        if state[0] >= records.size:
            return position, OUTPUT_FULL
        if is_over(filling, position):
            return position, NEED_MORE
        size = np.int64(_BLANK_SIZE)
        if position + size <= limit:
            magic = u32(data, position + _AT_MAGIC)
            if magic == _MAGIC_BLANK:
                return position, AT_BLANK
            if magic not in (_MAGIC_V1, _MAGIC_V2):
                return position, DISLIKED
            size = i32(data, position)
            if size < _MIN_RECORD or window_offset + position + size + _BLANK_SIZE > file_end:
                return position, DISLIKED
        if position + size > limit:
            if not may_refill(filling, position):
                return position, NEED_MORE
            window_offset += position
            limit = fill_again(filling, raw, data.size, position)
            position = 0
            if limit == 0:
                return position, NOT_RESIDENT
            continue
        offset = window_offset + position
        if i64(data, position + _AT_PHY_OFFSET) != offset:
            return position, DISLIKED
        status = _take_record(
            raw, position, size, offset, magic == _MAGIC_V2, crc_address, tables, rows, key_hashes, hashes.size,
            queue_slots, slots.size, queue_names, names.size, queue_rows, queue_table.shape[0], counts, keys,
            limit,
        )
        if status != NEED_MORE:
            return position, status
        position += size


@part
def _take_record(
    data: Any, start: int, size: int, offset: int, is_v2: bool, crc_address: int, crc_table: Any,
    rows: Any, hashes: Any, hash_room: int, slots: Any, slot_count: int, names: Any, name_room: int,
    queue_table: Any, queue_room: int, state: Any, keys: int, readable: int,
) -> int:
    """Check the record data[start:start+size] and fill one row; NEED_MORE (0) means taken. All arrays are pointers."""
    sys_flag = i32(data, start + _AT_SYS_FLAG)
    born_v6 = _V6_EXTRA if sys_flag & _BORN_V6 else 0
    v6 = born_v6 + (_V6_EXTRA if sys_flag & _STORE_V6 else 0)
    topic_field = 2 if is_v2 else 1
    if size < _HEAD_SIZE + v6 + topic_field + 2:
        return DISLIKED
    queue_id = i32(data, start + _AT_QUEUE_ID)
    queue_offset = i64(data, start + _AT_QUEUE_OFFSET)
    store_timestamp = i64(data, start + _AT_STORE_TIMESTAMP + born_v6)
    body_length = i32(data, start + _AT_BODY_LENGTH + v6)
    if queue_id < 0 or queue_offset < 0 or store_timestamp <= 0 or i64(data, start + _AT_BORN_TIMESTAMP) <= 0:
        return DISLIKED
    if (u32(data, start + _AT_BORN_PORT + born_v6) | u32(data, start + _AT_STORE_PORT + v6)) > _LARGEST_PORT:
        return DISLIKED
    body_at = start + _HEAD_SIZE + v6
    end = start + size
    if body_length < 0 or body_at + body_length + topic_field + 2 > end:
        return DISLIKED
    topic_at = body_at + body_length + topic_field
    topic_length = i16(data, topic_at - 2) if is_v2 else np.int64(np.int8(byte_at(data, topic_at - 1)))
    if topic_length < 1 or topic_at + topic_length + 2 > end:
        return DISLIKED
    properties_at = topic_at + topic_length + 2
    properties_length = i16(data, properties_at - 2)
    if properties_length < 0 or properties_at + properties_length != end:
        return DISLIKED
    topic_hash, is_text = java_hash(data, topic_at, topic_at + topic_length, 0, readable)
    if not is_text:
        return DISLIKED
    queue = find_queue(
        data, topic_at, topic_length, queue_id, topic_hash, slots, slot_count, names, queue_table,
    )
    # what the table has was looked at before
    if queue < 0 and not is_plain_topic(data, topic_at, topic_length):
        return DISLIKED
    if body_length > 0:
        crc = np.int64(crc32_inside(crc_address, crc_table, data, body_at, body_length))
        if (crc & 0x7FFFFFFF) != i32(data, start + _AT_BODY_CRC):
            return DISLIKED
    bits = BIT_V2 if is_v2 else 0
    crc_at = end - _PROP_CRC_SIZE
    if properties_length >= _PROP_CRC_SIZE and same_bytes(data, crc_at, _PROP_CRC_NAME.size, _PROP_CRC_NAME):
        if not _property_crc_fits(data, start, size, crc_address, crc_table):
            return DISLIKED
        bits |= BIT_PROP_CRC
    elif sys_flag & (_COMPRESSED | _KIND) and _is_contradicted(data, body_at, body_length, sys_flag):
        bits |= BIT_CONTRADICTED_FLAG
    if queue >= 0 and keys == TAGS_CODED and queue_table[queue * QUEUE_COLUMNS + QUEUE_PASSES]:
        keys = KEYS_COUNTED
    first_hash = state[1]
    more_bits, count, tags_code, status = take_properties(
        data, properties_at, end, topic_at, topic_length, topic_hash, hashes, hash_room, first_hash,
        keys, readable,
    )
    if status != NEED_MORE:
        return status
    if not bits & BIT_PROP_CRC:
        service = service_of(data, properties_at, end, topic_at, topic_length)
        if service == UNSURE:
            return DISLIKED
        if service == UNSERVED:
            bits |= BIT_UNSERVED
    # last of all: a queue enters the table only with a record that is taken, or its number would be given twice
    if queue < 0:
        queue = enter_queue(
            data, topic_at, topic_length, queue_id, topic_hash, slots, slot_count, names, name_room, queue_table,
            queue_room, state[2], state[3],
        )
        if queue < 0:
            return OUTPUT_FULL
        state[2] += 1
        state[3] += topic_length
    bits |= more_bits
    if (sys_flag & _TRANSACTION) == _ROLLBACK:
        count = 0  # IndexService.buildIndex skips these
    if (sys_flag & _TRANSACTION) == _ROLLBACK and _is_filler_topic(data, topic_at, topic_length):
        bits |= BIT_FILLER
    row = state[0] * _ROW_SIZE
    put_i64(rows, row + _ROW_PHY_OFFSET, offset)
    put_i32(rows, row + _ROW_SIZE_FIELD, size)
    put_i32(rows, row + _ROW_QUEUE, queue)
    put_i64(rows, row + _ROW_QUEUE_OFFSET, queue_offset)
    put_i64(rows, row + _ROW_STORE_TIMESTAMP, store_timestamp)
    put_i64(rows, row + _ROW_TAGS_CODE, tags_code)
    put_i32(rows, row + _ROW_SYS_FLAG, sys_flag)
    put_u16(rows, row + _ROW_BITS, bits)
    put_u16(rows, row + _ROW_HASHES, count)
    state[0] += 1
    if keys == KEYS_HASHED:
        state[1] += count
    return NEED_MORE


@part
def _is_contradicted(data: Any, body_at: int, length: int, sys_flag: int) -> bool:
    """See `formats.sysflag.contradicted_by`."""
    kind, is_zlib, is_lz4, is_zstd = sys_flag & _KIND, False, False, False
    if length >= 2:
        head = byte_at(data, body_at) << 8 | byte_at(data, body_at + 1)
        is_zlib = head >> 8 & 0x8F == _ZLIB_METHOD and head % _ZLIB_CHECK == 0
    if length >= 4:
        magic = u32(data, body_at)
        is_skippable = magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC
        is_lz4, is_zstd = magic == _LZ4_MAGIC or is_skippable, magic == _ZSTD_MAGIC or is_skippable
        is_zlib = is_zlib and not is_lz4 and not is_zstd
    if not sys_flag & _COMPRESSED:
        return kind != 0 and (is_zlib or is_lz4 or is_zstd)
    if kind in (_LEGACY_ZLIB, _ZLIB):
        return length > 0 and not is_zlib
    return length > 0 and not (is_lz4 and kind == _LZ4) and not (is_zstd and kind == _ZSTD)


@part
def _property_crc_fits(data: Any, start: int, size: int, crc_address: int, crc_table: Any) -> bool:
    """The ten digits at the record's end, least significant first, equal the CRC of what precedes them."""
    end = start + size
    if byte_at(data, end - 1) != 2:
        return False
    value = np.int64(0)
    for k in range(_PROP_CRC_DIGITS):
        digit = byte_at(data, end - 2 - k) - 48
        if digit < 0 or digit > 9:
            return False
        value = value * 10 + digit
    crc = np.int64(crc32_inside(crc_address, crc_table, data, start, size - _PROP_CRC_SIZE))
    return value == (crc & 0x7FFFFFFF)
