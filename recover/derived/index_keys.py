"""The keys that index files should hold, in log order: which of them were found, and how they are numbered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
from msgspec import Struct

from formats.native.index import (
    TAG_PRESENT,
    TAG_UNKNOWN,
    TAKE_ALL,
    TAKE_KEYS,
    TAKE_NOTHING,
    UNINDEXED,
    wanted_of,
)
from formats.record.rows import BIT_GHOST, BIT_HAS_TAGS
from recover.log.engine import Result, side_by_side
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

    `splits` are those of a scan with keys, in log order; so many `threads` look at them. `excluded`: numbers of the
    log's queues whose messages need no unit.
    """

    def __init__(self, splits: Iterable[Split], excluded: Collection[int] = (), threads: int = 1) -> None:
        self.threads = threads
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

    def each(self, look: Callable[[int], Result]) -> Iterator[Result]:
        """The result of `look` for each split by its number, in their order."""
        return side_by_side(look, len(self.splits), self.threads)

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


def tag_runs(records: Rows, states: Rows) -> list[TagRun]:
    """What `match_records` learnt of the tags of one split, in runs."""
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
        counts = [*stream.each(lambda number: int(stream.wanted(number).sum()))]
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
