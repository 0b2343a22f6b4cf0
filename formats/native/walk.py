"""The walk over records of the log, the search for non-zero bytes, and CRC-32; in C in `walk.c` and `crc.c`."""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any

import numpy as np

from formats.basics import CRC31_MASK, FormatError
from formats.native.library import BOOL, INT, Array, kernel, library
from formats.record import check_strict
from formats.record.grammar import RANGE_COLUMNS
from formats.record.layout import BLANK_SIZE, MAGIC_BLANK, MAGICS, MIN_RECORD_SIZE
from formats.record.rows import RECORD, row_of

NEED_MORE, AT_BLANK, FALLBACK, OUTPUT_FULL = range(4)
"""Reasons why a walk stopped."""

QUEUE_COLUMNS = 3
"""Columns of a queue: start and length of its topic's name, and queue id."""

PROBES = 256
"""Slots that a queue may be in, from its own on. Of half full slots, random queues take less than 100."""
_WORD = (1 << 64) - 1

_CHUNK = 64 << 10
_BYTES = Array(np.uint8)
_START_OF_RECORD = struct.Struct(">ii")


@kernel(
    data=_BYTES, position=INT, available=INT, window_offset=INT, file_end=INT,
    records=Array(RECORD, out=True), hashes=Array(np.int32, out=True), slots=Array(np.int32, out=True, least=1),
    names=Array(np.uint8, out=True), queue_table=Array(np.int64, QUEUE_COLUMNS, out=True), seed=INT,
    state=Array(np.int64, out=True, least=4), with_keys=BOOL, stop=INT,
    ranges=Array(np.int64, RANGE_COLUMNS), returns=(INT, INT),
)
def walk_records(
    data: Any, position: int, available: int, window_offset: int, file_end: int, records: Any, hashes: Any, slots: Any,
    names: Any, queue_table: Any, seed: int, state: Any, with_keys: bool, stop: int, ranges: Any,
) -> tuple[int, int]:
    """Accept records in data[position:available] while each is certainly intact; return (position, status).

    It may only say yes: it stops before the first record that it does not accept, and the reference codec decides.
    data[0] is at physical offset `window_offset`; the mapped file ends at `file_end`. Rows go to `records`, index key
    hashes to `hashes`, new queues to `names` and `queue_table`, with `slots` (int32, a power of two, -1 empty) as a
    hash table over them, keyed with `seed`; `state` is int64 [rows, hashes, queues, names_used] and is updated. Without
    `with_keys`, rows have no key hashes and no tags codes, only delay levels. The walk ends at position `stop`.
    `ranges` is the grammar's `range_table`.
    """
    limit = min(available, data.size)
    content = memoryview(data)[: max(limit, 0)]
    while state[0] < records.size:
        if position >= stop or position + BLANK_SIZE > limit:
            return position, NEED_MORE
        size, magic = _START_OF_RECORD.unpack_from(content, position)
        if magic == MAGIC_BLANK:
            return position, AT_BLANK
        if magic not in MAGICS or size < MIN_RECORD_SIZE:
            return position, FALLBACK
        if window_offset + position + size + BLANK_SIZE <= file_end and position + size > limit:
            return position, NEED_MORE
        try:
            record = check_strict(content, position, file_end - window_offset, window_offset + position)
        except FormatError:
            return position, FALLBACK
        known, used = int(state[2]), int(state[3])
        queue, slot = _find_queue(slots, names, queue_table, known, record.topic, record.queue_id, seed)
        if queue == known and (slot is None or 2 * queue >= slots.size or queue >= queue_table.shape[0]
                               or used + len(record.topic) > names.size):
            return position, OUTPUT_FULL
        row, values = row_of(record, queue, with_keys=with_keys)
        if state[1] + values.size > hashes.size:
            return position, OUTPUT_FULL
        hashes[state[1] : state[1] + values.size] = values
        state[1] += values.size
        if queue == known:
            slots[slot] = queue
            names[used : used + len(record.topic)] = np.frombuffer(record.topic, dtype=np.uint8)
            queue_table[queue] = used, len(record.topic), record.queue_id
            state[2], state[3] = queue + 1, used + len(record.topic)
        records[state[0]] = row[0]
        state[0] += 1
        position += size
    return position, OUTPUT_FULL


def queue_hash(topic: bytes, queue_id: int, seed: int) -> int:
    """Return a hash (64 bits) of a queue, keyed with `seed`: nobody can choose topics that share a slot."""
    value, key = (seed ^ len(topic)) & _WORD, (seed | 1) & _WORD
    words = [int.from_bytes(topic[at : at + 8], "little") for at in range(0, len(topic), 8)]
    for word in [*words, queue_id & _WORD]:
        product = (value ^ word) * key
        value = (product ^ product >> 64) & _WORD
    return value


def _find_queue(
    slots: Any, names: Any, queue_table: Any, queues: int, topic: bytes, queue_id: int, seed: int,
) -> tuple[int, int | None]:
    """Return number and slot of a queue; for a new one, `queues` and the first free slot, None if no probe has one."""
    own = queue_hash(topic, queue_id, seed)
    for step in range(PROBES):
        slot = (own + step) % slots.size
        number = int(slots[slot])
        if not 0 <= number < queue_table.shape[0]:
            return queues, slot
        at, length, known = queue_table[number].tolist()
        if known == queue_id and names[at : at + length].tobytes() == topic:
            return number, slot
    return queues, None


def new_queue_slots(size: int, names: Any, queue_table: Any, queues: int) -> tuple[Any, int]:
    """Return hash slots (int32, -1 empty; `size` a power of two above twice `queues`) over the queues of the table, and
    the seed, drawn anew, under which each takes one of its probes."""
    while True:
        slots, seed = np.full(size, -1, dtype=np.int32), int.from_bytes(os.urandom(8), "little", signed=True)
        if fill_slots(slots, names, queue_table, 0, queues, seed):
            return slots, seed


@kernel(
    slots=Array(np.int32, out=True, least=1), names=_BYTES, queue_table=Array(np.int64, QUEUE_COLUMNS), first=INT,
    queues=INT, seed=INT, returns=BOOL,
)
def fill_slots(slots: Any, names: Any, queue_table: Any, first: int, queues: int, seed: int) -> bool:
    """Put the numbers of the queues from `first` on into the first free slot, from each one's own on; whether all got
    one."""
    for number, (at, length, queue_id) in enumerate(queue_table[first:queues].tolist(), first):
        own = queue_hash(names[at : at + length].tobytes(), queue_id, seed)
        free = next((slot for slot in ((own + step) % slots.size for step in range(PROBES)) if slots[slot] < 0), None)
        if free is None:
            return False
        slots[free] = number
    return True


def last_nonzero(data: Any, start: int, stop: int) -> int:
    """Return the position of the last non-zero byte in data[start:stop] (uint8), or -1."""
    start, at = max(start, 0), min(stop, data.size)
    while at > start:
        block = data[max(start, at - _CHUNK) : at]
        at -= int(block.size)
        if block.any():
            return int(at + len(block.tobytes().rstrip(b"\0")) - 1)
    return -1


@kernel(data=_BYTES, start=INT, length=INT, portable=BOOL, returns=INT)
def crc32(data: Any, start: int, length: int, portable: bool) -> int:
    """Return the CRC-32 (zlib) of data[start:start+length] (uint8), by tables if `portable`; 0 for an invalid range."""
    return zlib.crc32(data[start : start + length]) if 0 <= start <= start + length <= data.size else 0


@kernel(length=INT, change=INT, found=Array(np.int64, out=True), returns=INT)
def bits_that_change(length: int, change: int, found: Any) -> int:
    """Return how many single bits of `length` bytes change the lower 31 bits of their CRC-32 by `change` (xor).

    The first of them go to `found` (int64) as 8 * byte + bit, bit 0 being the lowest. The CRC is linear: the effect of
    a bit depends only on its distance from the end, not on the other bytes.
    """
    count = 0
    nothing = zlib.crc32(b"\0")
    for bit in range(8):
        value = zlib.crc32(bytes([1 << bit])) ^ nothing
        for behind in range(length):
            if value & CRC31_MASK == change:
                if count < found.size:
                    found[count] = 8 * (length - 1 - behind) + bit
                count += 1
            value = zlib.crc32(b"\0", value) ^ nothing
    return count


def crc_name() -> str:
    """Return the CRC-32 in use: `hardware`, `portable` (tables), or `zlib` without the compiled kernels."""
    found = library()
    if found is None:
        return "zlib"
    return "hardware" if found.mq_crc_is_fast() else "portable"
