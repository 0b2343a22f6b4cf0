"""The bytes of an index file made block by block: of the whole file only its slots are in memory."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np

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
from recover.files.reading import Piece, in_order, zeros
from recover.memory.columns import Rows
from recover.rebuild.index_layout import Place

KeyPart = tuple[Rows, Rows, Rows]
"""RECORD rows, their hashes, and what to take of each row, or of all."""

CHUNK = 2 << 20
_UNITS = CHUNK // INDEX_UNIT.size
_AHEAD = 4


def start_state(previous_end: int, first: Place | None) -> Rows:
    """What the kernels carry along, before the first key; `first` is where it stands in the first part."""
    state = np.zeros(STATE_SIZE, dtype=np.int64)
    state[STATE_NUMBER], state[STATE_BEGIN] = 1, previous_end
    if first is not None:
        state[STATE_RECORD], state[STATE_KEY], state[STATE_HASH] = first.row, first.key, first.first_hash
    return state


def header_of(state: Rows, used: int, *, counts_entries: bool) -> IndexHeader:
    """The header of a file with all of its keys, of which `used` slots are in use."""
    units = int(state[STATE_NUMBER]) - 1
    return IndexHeader(
        int(state[STATE_BEGIN]), int(state[STATE_END]), int(state[STATE_BEGIN_OFFSET]), int(state[STATE_END_OFFSET]),
        units if counts_entries else used, units + 1,
    )


def pieces_of_file(
    geometry: IndexGeometry, parts: Iterable[KeyPart], count: int, *, previous_end: int, first: Place | None = None,
    counts_entries: bool,
) -> Iterator[Piece]:
    """A file of `count` keys of the parts, in pieces of at most `CHUNK` bytes.

    Header and slots stand in front of the units, and come last: they are what the units make of them.
    """
    slots = np.zeros(geometry.slots, dtype=np.int32)
    state = start_state(previous_end, first)
    at = geometry.units_offset
    for block in _units(parts, count, state, slots):
        yield at, block
        at += len(block)
    yield from in_order(zeros((geometry.capacity - count) * INDEX_UNIT.size), at)
    header = INDEX_HEADER.encode(header_of(state, int(state[STATE_USED_SLOTS]), counts_entries=counts_entries))
    yield from in_order(chain([header], _in_file_order(slots)))


def _in_file_order(slots: Rows) -> Iterator[Buffer]:
    """The slots as a file has them; they are turned where they stand."""
    for at in range(0, slots.size, CHUNK // 4):
        part = slots[at : at + CHUNK // 4]
        if sys.byteorder == "little":
            part.byteswap(inplace=True)
        yield part.view(np.uint8).data


def _units(parts: Iterable[KeyPart], count: int, state: Rows, slots: Rows) -> Iterator[bytes]:
    """Unit 0, which stays zero, and `count` units behind it."""
    # used again for each block: units are put more slowly into memory that no cache holds than copied there
    units = np.zeros((min(count + 1, _UNITS), INDEX_UNIT.size // 4), dtype=np.int32)
    base = 0
    for records, hashes, take in parts:
        while True:
            stop = min(count + 1, base + len(units))
            put_keys(units, base, True, slots, records, hashes, take, stop, state)
            if state[STATE_NUMBER] == stop:
                yield units[: stop - base].tobytes()
                if stop > count:
                    return
                base = stop
            if state[STATE_RECORD] == records.size:
                break
        state[STATE_RECORD] = state[STATE_KEY] = state[STATE_HASH] = 0


def ahead(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The same pieces, made on a thread of their own while those in front of them are used."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, pieces, None) for _ in range(_AHEAD))
        try:
            while (piece := waiting.popleft().result()) is not None:
                waiting.append(pool.submit(next, pieces, None))
                yield piece
        finally:
            pool.shutdown(cancel_futures=True)
