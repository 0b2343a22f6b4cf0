"""The table of (topic, queue id) pairs that a compiled walk fills: topic names in one array, an open hash over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from formats.compiled import INT, Array, kernel, part
from formats.kernels.byte_reads import equal_bytes
from formats.record_columns import RECORD

QUEUE_COLUMNS = 4
QUEUE_PASSES = 3
"""Columns of a queue: where its topic's name begins, how long that is, queue id, and whether nobody wants its rows."""


@part
def _queue_slot(topic_hash: int, queue_id: int, mask: int) -> int:
    return (topic_hash * 31 + queue_id * 2654435761) & mask


def new_queue_slots(size: int, names: Any, queue_table: Any, queues: int) -> Any:
    """Hash slots (int32, -1 empty; `size` a power of two above twice `queues`) over the queues of the table."""
    slots = np.full(size, -1, dtype=np.int32)
    _fill_slots(slots, names, queue_table, queues)
    return slots


@kernel(
    slots=Array(np.int32, out=True), names=Array(np.uint8), queue_table=Array(np.int64, 2), queues=INT, returns=None,
)
def _fill_slots(slots: Any, names: Any, queue_table: Any, queues: int) -> None:
    mask = slots.size - 1
    for number in range(queues):
        topic_hash = np.int64(0)
        for i in range(queue_table[number, 0], queue_table[number, 0] + queue_table[number, 1]):
            topic_hash = (31 * topic_hash + np.int64(names[i])) & 0xFFFFFFFF
        slot = _queue_slot(topic_hash, queue_table[number, 2], mask)
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number


@kernel(records=Array(RECORD, out=True), numbers=Array(np.int32, some=True), returns=None)
def renumber(records: Any, numbers: Any) -> None:
    """Call the queue of each row (RECORD) what `numbers` (int32, one a queue) says that it is called."""
    for row in range(records.size):
        queue = records[row].queue
        if 0 <= queue < numbers.size:
            records[row].queue = numbers[queue]


@kernel(
    records=Array(RECORD), wanted=Array(np.bool_, some=True), picked=Array(RECORD, out=True), returns=INT,
)
def pick_rows(records: Any, wanted: Any, picked: Any) -> int:
    """Copy the rows (RECORD) of queues that are `wanted` (bool, one a queue) into `picked`; how many there are.

    `picked` may be `records`; where it is full the rest is left.
    """
    count = 0
    for row in range(records.size):
        queue = records[row].queue
        if 0 <= queue < wanted.size and wanted[queue] and count < picked.size:
            picked[count] = records[row]
            count += 1
    return count


@part
def find_queue(
    data: Any, start: int, length: int, queue_id: int, topic_hash: int, slots: Any, slot_count: int, names: Any,
    queue_table: Any,
) -> int:
    """Number of (topic, queue id) in the table, -1 where it has none.

    `data`, `slots`, `names` and `queue_table` are pointers (`byte_reads.pointer_to`).
    """
    mask = slot_count - 1
    slot = _queue_slot(topic_hash, queue_id, mask)
    for _ in range(slot_count):
        number = np.int64(slots[slot])
        if number < 0:
            break
        at = number * QUEUE_COLUMNS
        known = queue_table[at + 2] == queue_id and queue_table[at + 1] == length
        if known and equal_bytes(names, queue_table[at], data, start, length):
            return number
        slot = (slot + 1) & mask
    return np.int64(-1)


@part
def enter_queue(
    data: Any, start: int, length: int, queue_id: int, topic_hash: int, slots: Any, slot_count: int,
    names: Any, name_room: int, queue_table: Any, queue_room: int, queues: int, names_used: int,
) -> int:
    """Give (topic, queue id), which the table does not have, the number `queues` there; -1 when it is full."""
    if queues * 2 >= slot_count or queues >= queue_room or names_used + length > name_room:
        return np.int64(-1)
    mask = slot_count - 1
    slot = _queue_slot(topic_hash, queue_id, mask)
    while slots[slot] >= 0:
        slot = (slot + 1) & mask
    for i in range(length):
        names[names_used + i] = data[start + i]
    at = queues * QUEUE_COLUMNS
    queue_table[at] = names_used
    queue_table[at + 1] = length
    queue_table[at + 2] = queue_id
    queue_table[at + QUEUE_PASSES] = 0
    slots[slot] = queues
    return queues
