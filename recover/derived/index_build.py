"""The bytes of index files that a rebuild calls for: header, slots, chains, as a broker would write them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    link_units,
    put_keys,
)
from recover.change.content import Content, LazyContent
from recover.derived.index_file_check import is_expired
from recover.derived.index_files import IndexWords, blank_words, file_chunks, load_words
from recover.derived.index_layout import KeyNumbers, Place, Target
from recover.derived.index_stream import IndexStream
from recover.store.columns import Rows
from recover.store.reading import Piece, in_order, zeros

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

    Header and slots stand before the units, and come last: they are what the units make of them.
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
    """Unit 0, which stays zero, and `count` units after it."""
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
    """The same pieces, made on a thread of their own while those before them are used."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, pieces, None) for _ in range(_AHEAD))
        try:
            while (piece := waiting.popleft().result()) is not None:
                waiting.append(pool.submit(next, pieces, None))
                yield piece
        finally:
            pool.shutdown(cancel_futures=True)


class RebuiltIndexFile(Struct, frozen=True):
    """One index file to write. Its bytes are made when they are asked for, one file in memory at a time.

    `first` and `last` are the phy offsets of the messages of its first and last unit,
    `begin_timestamp` and `end_timestamp` (ms) their times. `replaces`: a file of that name is there.
    """

    name: str
    content: Content
    units: int
    first: int
    last: int
    begin_timestamp: int
    end_timestamp: int
    replaces: bool


class FileHead(Struct, frozen=True):
    """What stands before a file's own keys: units of expired messages (int32, shape (n, 5)) with the time (ms)
    that their file began at, or none, and then the end time of the file before counts."""

    previous_end: int
    expired: Rows
    begin_timestamp: int


_NO_UNITS = np.empty((0, 5), dtype=np.int32)


class FileBuilder:
    """Builds index files of one log, which begins at `min_offset`. `counts_entries`: the header counts units instead of
    slots."""

    def __init__(
        self, stream: IndexStream, numbers: KeyNumbers, geometry: IndexGeometry, counts_entries: bool, min_offset: int
    ) -> None:
        self.stream = stream
        self.numbers = numbers
        self.geometry = geometry
        self.counts_entries = counts_entries
        self.min_offset = min_offset

    def describe(self, target: Target) -> RebuiltIndexFile:
        """The file that a target stands for, its content not yet made."""
        head = self.head(target)
        units = target.stop - target.start + len(head.expired)
        used = self.geometry.units_offset + (units + 1) * INDEX_UNIT.size
        content = LazyContent(
            self.geometry.size, lambda: file_chunks(self._image(target, head)), allocated=used,
            pieces=lambda: self._pieces(target, head),
        )
        numbers, last = self.numbers, target.stop - 1
        return RebuiltIndexFile(
            target.name, content, units, numbers.phy_offset(target.start), numbers.phy_offset(last),
            numbers.timestamp(target.start), numbers.timestamp(last), target.replaces,
        )

    def head(self, target: Target) -> FileHead:
        """What comes first, read now: when the file is built, the old one may be gone."""
        old = target.expired_from
        if old is None:
            return FileHead(target.previous_end, _NO_UNITS, 0)
        units = load_words(old.file.path, self.geometry).units[1 : old.end]
        expired = units[is_expired(units, self.min_offset)][: old.expired_in_front]
        return FileHead(target.previous_end, np.array(expired), old.header.begin_timestamp)

    def _image(self, target: Target, head: FileHead) -> IndexWords:
        """One file as a whole: its own keys, after the units kept of the old one."""
        first, count = self.numbers.place(target.start), target.stop - target.start
        return build_file(
            self.geometry, head, self._parts(first), count, first=first, counts_entries=self.counts_entries
        )

    def _pieces(self, target: Target, head: FileHead) -> Iterator[Piece]:
        """The same without the whole file in memory, where nothing is kept of an old one."""
        if len(head.expired):
            return in_order(file_chunks(self._image(target, head)))
        first, count = self.numbers.place(target.start), target.stop - target.start
        return ahead(pieces_of_file(
            self.geometry, self._parts(first), count, previous_end=head.previous_end, first=first,
            counts_entries=self.counts_entries,
        ))

    def _parts(self, first: Place) -> Iterator[KeyPart]:
        stream = self.stream
        for number in range(first.split, len(stream.splits)):
            split = stream.splits[number]
            yield np.asarray(split.records), np.asarray(split.hashes), stream.take(number)


def build_file(
    geometry: IndexGeometry, head: FileHead, parts: Iterable[KeyPart], count: int, *,
    first: Place | None = None, counts_entries: bool,
) -> IndexWords:
    """One file: its head, then `count` keys of `parts` (RECORD rows, their hashes, what to take of each row).

    `first` is where in the first part the first key is, None for its beginning.
    """
    image = blank_words(geometry)
    state = start_state(head.previous_end, first)
    if len(head.expired):
        _put_expired(image, head, state)
    limit = int(state[STATE_NUMBER]) + count
    for records, hashes, take in parts:
        put_keys(image.units, 0, False, image.slots, records, hashes, take, limit, state)
        if state[STATE_NUMBER] >= limit:
            break
        state[STATE_RECORD] = state[STATE_KEY] = state[STATE_HASH] = 0
    image.header = header_of(state, int(state[STATE_USED_SLOTS]), counts_entries=counts_entries)
    return image


def _put_expired(image: IndexWords, head: FileHead, state: Rows) -> None:
    """Put the units that are kept of the old file, as they were but for their chains."""
    count = len(head.expired)
    image.units[1 : count + 1] = head.expired
    state[STATE_USED_SLOTS] = link_units(image.units, count + 1, image.slots)
    state[STATE_NUMBER], state[STATE_BEGIN] = count + 1, head.begin_timestamp
    state[STATE_BEGIN_OFFSET] = (int(head.expired[0, 1]) << 32) | (int(head.expired[0, 2]) & 0xFFFFFFFF)
