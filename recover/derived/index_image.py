"""The bytes of one index file, as a broker puts its keys one after the other: units, chains, slots, header."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
from msgspec import Struct

from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry, IndexHeader
from formats.layout import Buffer
from formats.native.index import (
    STATE_BEGIN,
    STATE_BEGIN_OFFSET,
    STATE_END,
    STATE_END_OFFSET,
    STATE_HASH,
    STATE_KEY,
    STATE_NUMBER,
    STATE_RECORD,
    STATE_SIZE,
    STATE_USED_SLOTS,
    put_keys,
)
from recover.derived.index_keys import KeyPart, Place
from recover.store.columns import Rows
from recover.store.reading import Piece, in_order, zeros

CHUNK = 2 << 20
UNITS = CHUNK // INDEX_UNIT.size


class FileHead(Struct, frozen=True):
    """What stands before a file's own keys.

    `expired`: units of expired messages (int32, shape (n, 5)) that are kept, and the time (ms) that their file began
    at. Without one the first unit counts from `previous_end`, the end time (ms) of the file before; 0 for none.
    """

    previous_end: int = 0
    expired: Rows = np.empty((0, 5), dtype=np.int32)
    begin_timestamp: int = 0


class IndexImage:
    """One file: its head, then `count` keys of `parts`; `first` is where in the first part the first of them is.

    Units come first, in blocks; header and slots are what they make of them. Goes through the parts once.
    """

    def __init__(
        self, geometry: IndexGeometry, head: FileHead, parts: Iterable[KeyPart], count: int, first: Place | None = None
    ) -> None:
        self.geometry = geometry
        self.stop = len(head.expired) + 1 + count
        self._head = head
        self._parts = parts
        self._slots = np.zeros(geometry.slots, dtype=np.int32)
        self._state = np.zeros(STATE_SIZE, dtype=np.int64)
        self._state[STATE_NUMBER], self._state[STATE_BEGIN] = 1, head.previous_end
        if first is not None:
            self._state[[STATE_RECORD, STATE_KEY, STATE_HASH]] = first.row, first.key, first.first_hash

    def units(self) -> Iterator[Buffer]:
        """Unit 0, which stays zero, the expired ones with chains of their own, and those of the keys."""
        state, expired = self._state, self._head.expired
        kept = np.concatenate([np.zeros((1, 5), dtype=np.int32), expired])
        if len(expired):
            state[STATE_USED_SLOTS] = self._link(kept)
            state[STATE_NUMBER], state[STATE_BEGIN] = len(kept), self._head.begin_timestamp
            state[STATE_BEGIN_OFFSET] = (int(expired[0, 1]) << 32) | (int(expired[0, 2]) & 0xFFFFFFFF)
        for at in range(0, len(kept), UNITS):
            yield kept[at : at + UNITS].astype(">i4").tobytes()
        yield from self._of_keys(len(kept))

    def _link(self, units: Rows) -> int:
        """Chain units that stand there without their slots, from number 1 on; the number of slots in use."""
        heads = np.maximum(units[1:, 0], 0) % self._slots.size
        order = np.argsort(heads, kind="stable")
        follows = np.r_[False, heads[order[1:]] == heads[order[:-1]]]
        units[order + 1, 4] = np.where(follows, np.r_[0, order[:-1] + 1], 0)
        # of several to one slot the last stays, which is the newest
        self._slots[heads] = np.arange(1, len(units))
        return int(np.count_nonzero(~follows))

    def _of_keys(self, base: int) -> Iterator[bytes]:
        state = self._state
        # used again for each block: units are put more slowly into memory that no cache holds than copied there
        block = np.zeros((min(self.stop - base, UNITS), INDEX_UNIT.size // 4), dtype=np.int32)
        for records, hashes, take in self._parts:
            while state[STATE_NUMBER] < self.stop:
                limit = min(self.stop, base + len(block))
                put_keys(block, base, self._slots, records, hashes, take, limit, state)
                if state[STATE_NUMBER] == limit:
                    yield block[: limit - base].tobytes()
                    base = limit
                if state[STATE_RECORD] == records.size:
                    break
            if state[STATE_NUMBER] == self.stop:
                return
            state[STATE_RECORD] = state[STATE_KEY] = state[STATE_HASH] = 0

    def header(self, *, counts_entries: bool = False) -> IndexHeader:
        """The header, once all units were made. `counts_entries`: it counts units instead of slots."""
        state, units = self._state, int(self._state[STATE_NUMBER]) - 1
        return IndexHeader(
            int(state[STATE_BEGIN]), int(state[STATE_END]), int(state[STATE_BEGIN_OFFSET]),
            int(state[STATE_END_OFFSET]), units if counts_entries else int(state[STATE_USED_SLOTS]), units + 1,
        )

    def slots(self) -> Iterator[Buffer]:
        """The slots, once all units were made; they are turned where they stand, so only once."""
        for at in range(0, self._slots.size, CHUNK // 4):
            part = self._slots[at : at + CHUNK // 4]
            if sys.byteorder == "little":
                part.byteswap(inplace=True)
            yield part.view(np.uint8).data

    def pieces(self, *, counts_entries: bool = False) -> Iterator[Piece]:
        """The whole file in pieces of at most `CHUNK` bytes; header and slots come last."""
        end = self.geometry.unit_offset(self.stop)
        yield from in_order(self.units(), self.geometry.units_offset)
        yield from in_order(zeros(self.geometry.size - end), end)
        header = INDEX_HEADER.encode(self.header(counts_entries=counts_entries))
        yield from in_order(chain([header], self.slots()))
