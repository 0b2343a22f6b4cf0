"""The queues that the scan of one file has met, numbered as they came: the compiled walk finds and enters them here."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from formats.native.rows import renumber
from formats.native.walk import QUEUE_COLUMNS, new_queue_slots
from recover.memory.columns import Rows, Split

_QUEUES = 2
_NAMES_USED = 3
_SLOTS = 1 << 12
_NAMES = 1 << 17


def number_rows(splits: Iterable[Split], numbers: Rows) -> None:
    """Call the queue of each row what `numbers` (int32, one a queue) says that it is called."""
    if (numbers != np.arange(numbers.size)).any():
        for split in splits:
            renumber(np.asarray(split.records), numbers)


class QueueTable:
    """`slots` (int32), `names` (uint8) and `table` (int64 (n, QUEUE_COLUMNS)) are what the kernels take.

    `state` is the walk's, which counts queues and bytes of names in it.
    """

    def __init__(self, state: Rows) -> None:
        self._state = state
        self.slots = np.full(_SLOTS, -1, dtype=np.int32)
        self.names = np.zeros(_NAMES, dtype=np.uint8)
        self.table = np.zeros((_SLOTS // 2, QUEUE_COLUMNS), dtype=np.int64)

    def __len__(self) -> int:
        return int(self._state[_QUEUES])

    @property
    def is_nearly_full(self) -> bool:
        """Another queue may find no place."""
        return len(self) * 2 >= self.slots.size - 2 or int(self._state[_NAMES_USED]) * 2 > self.names.size

    def keys(self, first: int = 0) -> list[tuple[bytes, int]]:
        """(topic, queue id) of each queue from number `first` on."""
        rows = self.table[first : len(self)].tolist()
        names = self.names.tobytes() if rows else b""
        return [(names[at : at + length], queue_id) for at, length, queue_id in rows]

    def number(self, topic: bytes, queue_id: int) -> int:
        """Number of a queue, for a record that the compiled walk did not take."""
        queues = self.keys()
        if (topic, queue_id) in queues:
            return queues.index((topic, queue_id))
        number = len(queues)
        while int(self._state[_NAMES_USED]) + len(topic) > self.names.size or number + 1 >= self.table.shape[0]:
            self.grow()
        at = int(self._state[_NAMES_USED])
        self.names[at : at + len(topic)] = np.frombuffer(topic, dtype=np.uint8)
        self.table[number] = at, len(topic), queue_id
        self._state[_QUEUES], self._state[_NAMES_USED] = number + 1, at + len(topic)
        self.slots = new_queue_slots(self.slots.size, self.names, self.table, number + 1)
        return number

    def begin_with(self, known: QueueTable) -> None:
        """Give the queues that another table has the same numbers here, where there are none yet."""
        self.slots, self.names, self.table = known.slots.copy(), known.names.copy(), known.table.copy()
        self._state[_QUEUES:] = known._state[_QUEUES:]

    def grow(self) -> None:
        """Four times the room."""
        names = np.zeros(self.names.size * 4, dtype=np.uint8)
        names[: self.names.size] = self.names
        table = np.zeros((self.table.shape[0] * 4, QUEUE_COLUMNS), dtype=np.int64)
        table[: self.table.shape[0]] = self.table
        self.names, self.table = names, table
        self.slots = new_queue_slots(self.slots.size * 4, names, table, len(self))
