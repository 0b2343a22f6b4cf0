"""The keys that index files should hold, in log order: which of them were found, and how they are numbered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
from msgspec import Struct

from formats.index import MAX_TIME_DIFF
from formats.native.index import (
    DUPLICATE,
    LOST,
    OTHER_KEY,
    RIGHT,
    STAND_IN,
    TAG_ABSENT,
    TAG_PRESENT,
    TAG_UNKNOWN,
    TAKE_ALL,
    TAKE_KEYS,
    TAKE_NOTHING,
    UNINDEXED,
    WRONG_TIME,
    phy_offsets,
    wanted_of,
)
from formats.record.rows import BIT_GHOST, BIT_HAS_TAGS
from recover.store.columns import Rows, Split

_CHANGE_COST = 0.5

KeyPart = tuple[Rows, Rows, Rows]
"""RECORD rows, their hashes, and what to take of each row, or of all."""


class Place(Struct, frozen=True):
    """One key: split, row in it, key of that record, and the record's first hash in the split."""

    split: int
    row: int
    key: int
    first_hash: int


class TagRun(Struct, frozen=True):
    """A run of tagged records in one index file: all with their tag unit, or all without."""

    first: int
    count: int
    present: bool


class TagHistory:
    """From which phy offset on records have a unit for their tags: no broker up to 5.3.3 wrote one."""

    def __init__(self, changes: Sequence[tuple[int, bool]]) -> None:
        self.changes = tuple(changes)
        self._starts = np.array([start for start, _ in changes], dtype=np.int64)
        self._present = np.array([present for _, present in changes], dtype=bool)

    def at(self, phy_offsets: Rows) -> Rows:
        """For each offset, whether a tag unit belongs there (bool array)."""
        if len(self.changes) == 1:
            return np.full(phy_offsets.shape, self._present[0])
        return np.asarray(self._present[np.maximum(np.searchsorted(self._starts, phy_offsets, side="right") - 1, 0)])

    @classmethod
    def infer(cls, runs: Sequence[TagRun], default: bool) -> TagHistory:
        """The history with the fewest contradictions; a change has to explain at least one record."""
        ordered = sorted(runs, key=lambda run: run.first)
        if not ordered:
            return cls([(0, default)])
        costs = [0.0, 0.0]
        came_from: list[tuple[int, int]] = []
        for run in ordered:
            contradicted = [run.count if run.present else 0, 0 if run.present else run.count]
            steps = tuple(
                min((0, 1), key=partial(_cost, costs, mode)) for mode in (0, 1)
            )
            costs = [
                _cost(costs, mode, before) + contradicted[mode] for mode, before in enumerate(steps)
            ]
            came_from.append((steps[0], steps[1]))
        mode = 0 if costs[0] <= costs[1] else 1
        modes: list[int] = []
        for steps in reversed(came_from):
            modes.append(mode)
            mode = steps[mode]
        modes.reverse()
        changes = [(0, bool(modes[0]))]
        for run, now in zip(ordered, modes, strict=True):
            if bool(now) != changes[-1][1]:
                changes.append((run.first, bool(now)))
        return cls(changes)


def _cost(costs: Sequence[float], mode: int, before: int) -> float:
    return costs[before] + _CHANGE_COST * (before != mode)


class IndexStream:
    """Records of the log as index files see them. Keeps one bit a key hash, and the splits by reference.

    `splits` are those of a scan with keys, in log order. `excluded`: numbers of the log's queues whose messages need no
    unit.
    """

    def __init__(self, splits: Iterable[Split], excluded: Collection[int] = ()) -> None:
        self.excluded = tuple(sorted(excluded))
        self.tags = TagHistory([(0, False)])
        self._given = splits
        self._found: dict[int, Rows] = {}

    @cached_property
    def splits(self) -> list[Split]:
        """The splits with a row."""
        return [split for split in self._given if split.size]

    @cached_property
    def _first(self) -> Rows:
        return np.array([split.first for split in self.splits], dtype=np.int64)

    @cached_property
    def _last(self) -> Rows:
        return np.array([split.last for split in self.splits], dtype=np.int64)

    @property
    def has_units(self) -> bool:
        """Some record has a key or tags."""
        return any(split.hash_count for split in self.splits)

    def start(self, number: int) -> int:
        """Phy offset at which a split begins; that of the one after the last is beyond all."""
        return int(self._first[number]) if number < self._first.size else np.iinfo(np.int64).max

    def overlapping(self, low: int, high: int) -> range:
        """Numbers of the splits that hold records with phy offsets in [low, high]."""
        start = int(np.searchsorted(self._last, low, side="left"))
        return range(start, max(start, int(np.searchsorted(self._first, high, side="right"))))

    def find(self, phy_offset: int) -> tuple[int, int] | None:
        """(split number, row) of the intact record that starts at `phy_offset`; None without one."""
        for number in self.overlapping(phy_offset, phy_offset):
            records = self.splits[number].records
            row = int(np.searchsorted(records["phy_offset"], phy_offset))
            if row < records.size and int(records["phy_offset"][row]) == phy_offset:
                return None if int(records["bits"][row]) & BIT_GHOST else (number, row)
        return None

    def place(self, phy_offset: int, key_hash: int) -> Place | None:
        """The first key with that hash of the intact record that starts at `phy_offset`; None without one."""
        found = self.find(phy_offset)
        if found is None:
            return None
        split, row = found
        hashes = self.splits[split].records["hashes"]
        first = int(hashes[:row].sum(dtype=np.int64))
        keys = np.flatnonzero(self.splits[split].hashes[first : first + int(hashes[row])] == key_hash)
        return Place(split, row, int(keys[0]), first) if keys.size else None

    def timestamp(self, phy_offset: int) -> int | None:
        """Store timestamp (ms) of the record that starts there."""
        place = self.find(phy_offset)
        return None if place is None else int(self.splits[place[0]].records["store_timestamp"][place[1]])

    def take(self, number: int) -> Rows:
        """What to index of each record of a split, or of all of them (uint8 TAKE_NOTHING, TAKE_KEYS or TAKE_ALL).

        Of records that brokers never index, it does not say so.
        """
        if not self.excluded and len(self.tags.changes) == 1:
            return np.array([TAKE_ALL if self.tags.changes[0][1] else TAKE_KEYS], dtype=np.uint8)
        records = self.splits[number].records
        take = np.where(self.tags.at(records["phy_offset"]), TAKE_ALL, TAKE_KEYS).astype(np.uint8)
        take[np.isin(records["queue"], self.excluded)] = TAKE_NOTHING
        return take

    def parts(self, first: int, rule: int | None = None) -> Iterator[KeyPart]:
        """The keys of each split from number `first` on, taken by one rule, or as the tags of the log have it."""
        for number in range(first, len(self.splits)):
            take = self.take(number) if rule is None else np.array([rule], dtype=np.uint8)
            yield np.asarray(self.splits[number].records), np.asarray(self.splits[number].hashes), take

    def wanted(self, number: int) -> Rows:
        """How many units each record of a split should have (int64)."""
        return np.asarray(wanted_of(self.splits[number].records, self.take(number)))

    def found(self, number: int) -> Rows:
        """The bits (uint8) of split `number`, one a hash."""
        bits = self._found.get(number)
        if bits is None:
            bits = self._found[number] = np.zeros(self.splits[number].hashes.size // 8 + 1, dtype=np.uint8)
        return bits

    def mark(self, first: Place, count: int, rule: int) -> Rows:
        """Mark so many keys as found that a rule takes, from a place on; phy offsets of their records with tags.

        Those that come before the next key are among them, whether or not the rule takes tags.
        """
        tagged, start, number = [], first.first_hash + first.key, first.split
        while count:
            records, found = self.splits[number].records, self.found(number)
            asked = np.flatnonzero(asked_of(records, np.array([rule], dtype=np.uint8)))
            asked = asked[np.searchsorted(asked, start) :]
            bits = np.zeros(8 * found.size, dtype=bool)
            bits[asked[:count]] = True
            found |= np.packbits(bits, bitorder="little")
            stop = int(asked[count]) if count < asked.size else bits.size
            ends = np.cumsum(records["hashes"], dtype=np.int64)
            has_tags = ((records["bits"] & BIT_HAS_TAGS) != 0) & ((records["bits"] & UNINDEXED) == 0)
            has_tags &= (records["hashes"] > 0) & (ends > start) & (ends <= stop)
            tagged.append(records["phy_offset"][has_tags])
            count, start, number = max(0, count - asked.size), 0, number + 1
        return np.concatenate(tagged)

    def missing(self, number: int) -> tuple[int, Rows | None]:
        """How many units a split should have; how many of each record were not found (int64), None for none at all."""
        records = self.splits[number].records
        wanted = self.wanted(number)
        firsts = np.cumsum(records["hashes"], dtype=np.int64) - records["hashes"]
        found = np.r_[0, np.cumsum(np.unpackbits(self.found(number), bitorder="little"), dtype=np.int64)]
        missing = wanted - (found[firsts + wanted] - found[firsts])
        return int(wanted.sum()), missing if missing.any() else None


def asked_of(records: Rows, take: Rows) -> Rows:
    """Which hashes of some records should have a unit, under `take` (bool array)."""
    hashes = records["hashes"].astype(np.int64)
    in_record = np.arange(int(hashes.sum())) - np.repeat(np.cumsum(hashes) - hashes, hashes)
    return np.asarray(in_record < np.repeat(wanted_of(records, take), hashes))


def match_units(
    units: Rows, end: int, order: Rows, offsets: Rows, records: Rows, hashes: Rows, found: Rows, classes: Rows,
    begin: int,
) -> Rows:
    """Give the units of numbers `order` that name records of one split their classes; `offsets` are ascending.

    Each takes a key of its record that no other has, which sets a bit of `found`. Units that no record takes stay as
    they are; numbers below `end` are in use. Returns what each record has of its tag's unit (uint8 TAG_UNKNOWN,
    TAG_ABSENT or TAG_PRESENT).
    """
    bits, places = records["bits"], records["phy_offset"]
    row = np.searchsorted(places, offsets, side="right") - 1
    within = offsets - places[row]
    stands_in = (bits[row] & STAND_IN) != 0
    classes[order[stands_in & (within < records["size"][row])]] = LOST
    own = (within == 0) & ~stands_in & ((bits[row] & BIT_GHOST) == 0)
    number, row = order[own], row[own]
    keys = records["hashes"].astype(np.int64)
    first = np.cumsum(keys) - keys
    is_found = np.unpackbits(found, bitorder="little").astype(bool)
    # most stand in the order of the keys
    place = first[row] + _rank(row)
    at = np.minimum(place, max(hashes.size - 1, 0))
    takes = (place < (first + keys)[row]) & (hashes[at] == units[number, 0]) & ~is_found[at]
    is_found[place[takes]] = True
    named, rest = takes.copy(), np.flatnonzero(~takes)
    if rest.size:
        # a key of a record and a unit with its place and hash have one code
        codes = np.repeat(np.arange(keys.size), keys) << 32 | hashes.view(np.uint32)
        asked = row[rest] << 32 | units[number[rest], 0].view(np.uint32)
        named[rest] = np.isin(asked, codes)
        free = np.flatnonzero(~is_found[: codes.size])
        free = free[np.argsort(codes[free], kind="stable")]
        order = np.argsort(asked, kind="stable")
        place = np.searchsorted(codes[free], asked[order]) + _rank(asked[order])
        fits = place < np.searchsorted(codes[free], asked[order], side="right")
        takes[rest[order[fits]]] = True
        is_found[free[place[fits]]] = True
    found[:] = np.packbits(is_found, bitorder="little")
    kinds = np.where(takes, RIGHT, np.where(named, DUPLICATE, OTHER_KEY)).astype(np.uint8)
    late = named & (number > 1) & (units[number, 3] != _time_diffs(begin, records["store_timestamp"][row]))
    classes[number] = kinds | np.where(late, WRONG_TIME, 0).astype(np.uint8)
    newest = np.zeros(keys.size, dtype=np.int64)
    newest[row[named]] = number[named]
    return _tag_states(units, end, records, row[np.r_[True, row[1:] != row[:-1]][: row.size]], newest, is_found)


def _rank(values: Rows) -> Rows:
    """How many of the equal ones, which adjoin, stand before each (int64)."""
    at = np.arange(values.size)
    return at - np.maximum.accumulate(np.where(np.r_[True, values[1:] != values[:-1]][: values.size], at, 0))


def _time_diffs(begin: int, timestamps: Rows) -> Rows:
    """`time_diff` of each timestamp (int64)."""
    return np.clip((timestamps - begin) // 1000, 0, MAX_TIME_DIFF) if begin > 0 else np.zeros_like(timestamps)


def _tag_states(units: Rows, end: int, records: Rows, rows: Rows, newest: Rows, is_found: Rows) -> Rows:
    """Whether records of these rows have their tag's unit; `newest` is the last number with a key of each row.

    Unknown where the place at which it would be holds something broken.
    """
    places, keys = records["phy_offset"], records["hashes"].astype(np.int64)
    has_tags = (records["bits"] & BIT_HAS_TAGS != 0) & (keys > 0)
    rows = rows[has_tags[rows]]
    stops = np.cumsum(keys)[rows]
    counted = np.r_[0, np.cumsum(is_found, dtype=np.int64)]
    states = np.full(keys.size, TAG_UNKNOWN, dtype=np.uint8)
    present = is_found[stops - 1]
    states[rows[present]] = TAG_PRESENT
    whole = counted[stops - 1] - counted[stops - keys[rows]] == keys[rows] - 1
    rows = rows[~present & whole & (newest[rows] > 0) & (newest[rows] + 1 < end)]
    following = phy_offsets(units[newest[rows] + 1])
    # up to the next record that has a unit whatever becomes of tags
    nobody = np.iinfo(np.int64).max
    wanted = np.where((keys > has_tags) & (records["bits"] & UNINDEXED == 0), places, nobody)
    limit = np.minimum.accumulate(np.r_[wanted, nobody][::-1])[::-1][rows + 1]
    at = np.minimum(np.searchsorted(places, following), places.size - 1)
    absent = (following > places[rows]) & ((limit == nobody) | ((following <= limit) & (places[at] == following)))
    states[rows[absent]] = TAG_ABSENT
    return states


def tag_runs(records: Rows, states: Rows) -> list[TagRun]:
    """What `match_units` learnt of the tags of one split, in runs."""
    if states.size and states.min() == states.max():
        kind, first = int(states[0]), int(records["phy_offset"][0])
        return [] if kind == TAG_UNKNOWN else [TagRun(first, states.size, kind == TAG_PRESENT)]
    known = np.flatnonzero(states != TAG_UNKNOWN)
    if not known.size:
        return []
    values = states[known]
    starts = np.r_[0, np.flatnonzero(values[1:] != values[:-1]) + 1]
    stops = np.r_[starts[1:], known.size]
    return [
        TagRun(int(records["phy_offset"][known[start]]), int(stop - start), bool(values[start] == TAG_PRESENT))
        for start, stop in zip(starts, stops, strict=True)
    ]


class KeyNumbers:
    """Every key that belongs into the index, numbered from 0 in the order in which a broker puts them."""

    def __init__(self, stream: IndexStream) -> None:
        self.stream = stream
        counts = [int(stream.wanted(number).sum()) for number in range(len(stream.splits))]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        self._open: tuple[int, Rows] = (-1, np.empty(0, dtype=np.int64))

    @property
    def total(self) -> int:
        """How many keys there are."""
        return int(self._starts[-1])

    def place(self, number: int) -> Place:
        """Where key `number` (below `total`) stands."""
        split = int(np.searchsorted(self._starts, number, side="right")) - 1
        inside = number - int(self._starts[split])
        ends = self._ends(split)
        row = int(np.searchsorted(ends, inside, side="right"))
        hashes = self.stream.splits[split].records["hashes"]
        return Place(split, row, inside - _before(ends, row), int(hashes[:row].sum(dtype=np.int64)))

    def find(self, phy_offset: int, key_hash: int) -> int | None:
        """The number of a record's first key with that hash; None without one."""
        place = self.stream.place(phy_offset, key_hash)
        if place is None:
            return None
        ends = self._ends(place.split)
        number = _before(ends, place.row) + place.key
        return int(self._starts[place.split]) + number if number < int(ends[place.row]) else None

    def timestamp(self, number: int) -> int:
        """Store timestamp (ms) of the record of a key."""
        place = self.place(number)
        return int(self.stream.splits[place.split].records["store_timestamp"][place.row])

    def missing(self) -> Rows:
        """Ranges [start, stop) of keys that no file has, int64 of shape (n, 2), ascending."""
        parts = [self._missing_of(number) for number in range(len(self.stream.splits))]
        return _joined(np.concatenate([np.empty((0, 2), dtype=np.int64), *parts]))

    def _missing_of(self, split: int) -> Rows:
        asked = asked_of(self.stream.splits[split].records, self.stream.take(split))
        found = np.unpackbits(self.stream.found(split), bitorder="little")[: asked.size].astype(bool)
        missing = np.flatnonzero(~found[asked]) + self._starts[split]
        return _joined(np.stack([missing, missing + 1], axis=1))

    def _ends(self, split: int) -> Rows:
        if self._open[0] != split:
            self._open = split, np.cumsum(self.stream.wanted(split))
        return self._open[1]


def _before(ends: Rows, row: int) -> int:
    return int(ends[row - 1]) if row else 0


def _joined(ranges: Rows) -> Rows:
    """Ascending ranges, neighbours made one."""
    if not ranges.size:
        return ranges
    joins = np.flatnonzero(ranges[1:, 0] != ranges[:-1, 1]) + 1
    firsts, lasts = np.r_[0, joins], np.r_[joins - 1, len(ranges) - 1]
    return np.stack([ranges[firsts, 0], ranges[lasts, 1]], axis=1)
