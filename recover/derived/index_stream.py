"""The keys that index files should hold, in log order, split by split, and which of them were found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import numpy as np
from msgspec import Struct

from formats.native.index import (
    SPAN,
    SPAN_FIRST,
    SPAN_LAST,
    SPAN_RECORDS,
    SPAN_UNITS,
    TAG_PRESENT,
    TAG_UNKNOWN,
    TAKE_ALL,
    TAKE_KEYS,
    TAKE_NOTHING,
    UNINDEXED,
    add_wanted,
    count_missing,
)
from formats.record.rows import BIT_GHOST, BIT_HAS_TAGS
from recover.log.engine import Result, side_by_side
from recover.store.columns import Rows, Split

_CHANGE_COST = 0.5


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

    `splits` are those of a scan with keys, in log order; so many `threads` look at them.
    """

    def __init__(self, splits: Iterable[Split], excluded: Collection[int] = (), threads: int = 1) -> None:
        self.threads = threads
        self._given = splits
        self._found: dict[int, Rows] = {}
        self._excluded = np.array(sorted(excluded), dtype=np.int32)
        self.tags = TagHistory([(0, False)])
        self._units: tuple[TagHistory, list[int]] | None = None

    @cached_property
    def splits(self) -> list[Split]:
        """The splits with a row."""
        return [split for split in self._given if split.records.size]

    @cached_property
    def _first(self) -> Rows:
        return np.array([int(split.records["phy_offset"][0]) for split in self.splits], dtype=np.int64)

    @cached_property
    def _last(self) -> Rows:
        return np.array([int(split.records["phy_offset"][-1]) for split in self.splits], dtype=np.int64)

    @property
    def has_units(self) -> bool:
        """Some record has a key or tags."""
        return any(split.hashes.size for split in self.splits)

    @property
    def excluded(self) -> tuple[int, ...]:
        """Numbers of the log's queues whose messages need no unit."""
        return tuple(self._excluded.tolist())

    def found(self, number: int) -> Rows:
        """The bits (uint8) of split `number`, one a hash."""
        bits = self._found.get(number)
        if bits is None:
            bits = self._found[number] = np.zeros(self.splits[number].hashes.size // 8 + 1, dtype=np.uint8)
        return bits

    def forget(self, before: Mapping[int, Rows]) -> None:
        """Put the bits of some splits back to what they were."""
        self._found.update(before)

    def overlapping(self, low: int, high: int) -> range:
        """Numbers of the splits that hold records with phy offsets in [low, high]."""
        start = int(np.searchsorted(self._last, low, side="left"))
        return range(start, max(start, int(np.searchsorted(self._first, high, side="right"))))

    @property
    def rule(self) -> int | None:
        """TAKE_KEYS or TAKE_ALL where one of them is right for all records that are indexed at all."""
        if self._excluded.size or len(self.tags.changes) > 1:
            return None
        return TAKE_ALL if self.tags.changes[0][1] else TAKE_KEYS

    def take(self, number: int) -> Rows:
        """What to index of each record of a split, or of all of them (uint8 TAKE_NOTHING, TAKE_KEYS or TAKE_ALL).

        Of records that brokers never index, it does not say so.
        """
        if self.rule is not None:
            return np.array([self.rule], dtype=np.uint8)
        records = self.splits[number].records
        take = np.where(self.tags.at(records["phy_offset"]), TAKE_ALL, TAKE_KEYS).astype(np.uint8)
        if self._excluded.size:
            take[np.isin(records["queue"], self._excluded)] = TAKE_NOTHING
        return take

    def wanted(self, number: int, take: Rows) -> Rows:
        """How many units each record of a split should have, under `take` (int64)."""
        records = self.splits[number].records
        wanted = records["hashes"].astype(np.int64)
        wanted -= (take == TAKE_KEYS) & ((records["bits"] & BIT_HAS_TAGS) != 0) & (wanted > 0)
        wanted[(take == TAKE_NOTHING) | ((records["bits"] & UNINDEXED) != 0)] = 0
        return wanted

    def units(self) -> list[int]:
        """How many units each split should have."""
        if self._units is None or self._units[0] is not self.tags:
            self._count()
        assert self._units is not None
        return self._units[1]

    def all_wanted(self) -> tuple[int, int, int, int] | None:
        """Units that the whole log should have, records with any, phy offsets of the first and the last of these.

        None where one rule does not tell it of all records.
        """
        if self.rule is None:
            return None
        units, records, first, last = self._count().tolist()
        return units, records, first, last

    def _count(self) -> Rows:
        spans = np.array([*self.each(self._span)], dtype=np.int64).reshape(-1, SPAN)
        self._units = self.tags, spans[:, SPAN_UNITS].tolist()
        ends = spans[spans[:, SPAN_RECORDS] > 0]
        first, last = (ends[0, SPAN_FIRST], ends[-1, SPAN_LAST]) if len(ends) else (-1, -1)
        return np.array([*spans[:, :SPAN_FIRST].sum(axis=0), first, last])

    def each(self, look: Callable[[int], Result]) -> Iterator[Result]:
        """What `look` says of each split by its number, in their order."""
        return side_by_side(look, len(self.splits), self.threads)

    def _span(self, number: int) -> Rows:
        span = np.array([0, 0, -1, -1], dtype=np.int64)
        add_wanted(np.asarray(self.splits[number].records), self.take(number), span)
        return span

    def missing(self, number: int) -> tuple[int, Rows | None]:
        """How many units a split should have; how many of each record were not found (int32), None for none at all."""
        records = np.asarray(self.splits[number].records)
        missing = np.zeros(records.size, dtype=np.int32)
        expected = int(count_missing(records, self.found(number), self.take(number), missing))
        return expected, missing if missing.any() else None

    def find(self, phy_offset: int) -> tuple[int, int] | None:
        """(split number, row) of the intact record that starts at `phy_offset`; None without one."""
        for number in self.overlapping(phy_offset, phy_offset):
            records = self.splits[number].records
            row = int(np.searchsorted(records["phy_offset"], phy_offset))
            if row < records.size and int(records["phy_offset"][row]) == phy_offset:
                return None if int(records["bits"][row]) & BIT_GHOST else (number, row)
        return None

    def timestamp(self, phy_offset: int) -> int | None:
        """Store timestamp (ms) of the record that starts there."""
        place = self.find(phy_offset)
        return None if place is None else int(self.splits[place[0]].records["store_timestamp"][place[1]])


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
