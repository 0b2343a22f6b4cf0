"""The keys that index files should hold, in log order: which of them were found, and their numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, structs

from formats.index import INDEX_UNIT, MAX_TIME_DIFF
from formats.native import index as native
from formats.record.rows import BIT_HAS_TAGS, BIT_STALE, STAND_IN
from recover.log.scan import SEED
from recover.store.columns import Asking, Rows, Split, Wanted, ask

_CHANGE_COST = 0.5
_WORD = 1 << 64
PLACE = [native.STATE_RECORD, native.STATE_KEY, native.STATE_HASH]
"""Where a `Place` is in the state of `put_keys` and `sum_keys`."""
RULES = {rule: np.array([rule], dtype=np.uint8) for rule in (native.TAKE_KEYS, native.TAKE_ALL)}
"""The rule for all records of a split, as kernels take it."""
UNITS = (2 << 20) // INDEX_UNIT.size
"""Units per block."""

_ENDS = [native.STATE_END_OFFSET, native.STATE_END, native.STATE_TAGGED, native.STATE_FIRST_TAGGED,
         native.STATE_LAST_TAGGED]
"""What `sum_keys` leaves in its state for a `SpanSum`."""
KeyPart = tuple[Rows, Rows, Rows]
"""RECORD rows, their hashes, and the take rule of each row, or one for all."""


class Place(NamedTuple):
    """A key in its split: row, key of that record, and the place of the record's first hash."""

    row: int
    key: int
    first_hash: int


START = Place(0, 0, 0)


class Head(NamedTuple):
    """Where an index file begins in a split: the store timestamp (ms) of the record, and how many keys of the split
    come before, without those of tags and with them."""

    timestamp: int
    keys: int
    every: int

    @property
    def before(self) -> tuple[int, int]:
        return self.keys, self.every


class Span(Struct, frozen=True):
    """`count` consecutive keys that a `rule` takes of a split; `first` others come before them.

    In their file times count from `begin` (ms). `seconds`: the time difference of the first unit if that is the file's
    unit 1, as it counts from the end of another file; else -1. `end_offset` is the last record that the file names.
    `seed` is that of the sum.
    """

    rule: int
    first: int
    count: int
    begin: int
    seconds: int
    end_offset: int
    seed: int


Marks = tuple[Rows | None, list[Span]]
"""What was found of a split: bits (uint8), one a hash, None before the first; and spans that were found besides."""


class UnitSum(NamedTuple):
    """The two sums that `follow_units` makes, without a sign."""

    plain: int = 0
    by_number: int = 0

    @classmethod
    def of(cls, plain: int, by_number: int) -> UnitSum:
        return cls(plain % _WORD, by_number % _WORD)

    def plus(self, more: UnitSum, first: int = 0) -> UnitSum:
        """Return the sum of both, where the numbers of `more` were counted from `first` too low."""
        return self.of(self.plain + more.plain, self.by_number + more.by_number + first * more.plain)


class SpanSum(Struct, frozen=True):
    """The units of a span: their sum, with numbers from 0, phy offset and store timestamp (ms) of the last record; the
    phy offset of the first record with tags, and the number of such records."""

    sum: UnitSum
    end_offset: int
    end_timestamp: int
    first_tagged: int
    tagged: int


def put_units(parts: Iterable[KeyPart], slots: Rows, state: Rows, stop: int) -> Iterator[Rows]:
    """Yield the units of keys as a file holds them, up to number `stop`, in blocks that are valid until the next.

    `state` is that of `put_keys`: the first key's place in the first part, and its number.
    """
    base = int(state[native.STATE_NUMBER])
    # reused for each block: putting units into uncached memory is slower than copying them there
    block = np.zeros((min(stop - base, UNITS), INDEX_UNIT.size // 4), dtype=np.int32)
    for records, hashes, take in parts:
        while state[native.STATE_NUMBER] < stop:
            limit = min(stop, base + len(block))
            native.put_keys(block, base, slots, records, hashes, take, limit, state)
            if state[native.STATE_NUMBER] == limit:
                yield block[: limit - base]
                base = limit
            if state[native.STATE_RECORD] == records.size:
                break
        if state[native.STATE_NUMBER] == stop:
            return
        state[native.STATE_RECORD] = state[native.STATE_KEY] = state[native.STATE_HASH] = 0


class SplitKeys:
    """The keys of one split, by their numbers under each rule."""

    def __init__(self, split: Split) -> None:
        self.records, self.hashes = np.asarray(split.records), np.asarray(split.hashes)
        self._ends: dict[bytes, Rows] = {}

    @cached_property
    def _first_hash(self) -> Rows:
        """The place of each record's first hash, and their number last (int64)."""
        return np.r_[0, np.cumsum(self.records["hashes"], dtype=np.int64)]

    def ends(self, take: Rows) -> Rows:
        """Return the number of keys up to each record, 0 first (int64)."""
        rule = take.tobytes()
        if rule not in self._ends:
            self._ends[rule] = np.r_[0, np.cumsum(native.wanted_of(self.records, take))]
        return self._ends[rule]

    def up_to(self, phy_offset: int, take: Rows) -> int:
        """Return the number of keys of the records up to the one at `phy_offset`."""
        return int(self.ends(take)[np.searchsorted(self.records["phy_offset"], phy_offset, side="right")])

    def find(self, phy_offset: int, key_hash: int) -> tuple[int, int] | None:
        """Return row and key of the record, of the first key with that hash of the intact record at `phy_offset`; None
        if there is none."""
        row = row_at(phy_offset, self.records)
        if row is None:
            return None
        keys = np.flatnonzero(self.hashes[slice(*self._first_hash[row : row + 2])] == key_hash)
        return (row, int(keys[0])) if keys.size else None

    def place(self, number: int, take: Rows) -> Place:
        """Return the place of key `number`."""
        ends = self.ends(take)
        row = int(np.searchsorted(ends, number, side="right")) - 1
        return Place(row, number - int(ends[row]), int(self._first_hash[row]))

    def head(self, phy_offset: int, key_hash: int) -> Head | None:
        """Return the time of a key's record, and how many keys come before it; None if there is none."""
        found = self.find(phy_offset, key_hash)
        if found is None:
            return None
        row, key = found
        before = [int(self.ends(rule)[row]) + key for rule in RULES.values()]
        return Head(int(self.records["store_timestamp"][row]), before[0], before[1])

    def sum(self, span: Span) -> SpanSum:
        """Return sum and end of the units that a span's keys produce.

        A record with tags belongs to the span in which its tag unit ends. Where tags have no unit, the file's last
        record is left out: its tag unit might still have followed.
        """
        state, take = np.zeros(native.SUM_STATE_SIZE, dtype=np.int64), RULES[span.rule]
        state[PLACE] = self.place(span.first, take) if span.first else START
        state[native.STATE_BEGIN] = span.begin
        total = native.sum_keys(self.records, self.hashes, take, span.count, span.seconds, span.seed, state)
        end_offset, end, tagged, first_tagged, last_tagged = state[_ENDS].tolist()
        tagged -= tagged and span.rule == native.TAKE_KEYS and last_tagged == span.end_offset
        return SpanSum(UnitSum.of(*total), end_offset, end, first_tagged, tagged)


def row_at(phy_offset: int, records: Rows) -> int | None:
    """Return the row of the intact record at `phy_offset`; None if there is none."""
    row = int(np.searchsorted(records["phy_offset"], phy_offset))
    is_there = row < records.size and int(records["phy_offset"][row]) == phy_offset
    return row if is_there and not int(records["bits"][row]) & BIT_STALE else None


def head_of(phy_offset: int, key_hash: int, split: Split) -> Head | None:
    """Return `SplitKeys.head` of a split."""
    return SplitKeys(split).head(phy_offset, key_hash)


def sum_of(span: Span, split: Split) -> SpanSum:
    """Return `SplitKeys.sum` of a split."""
    return SplitKeys(split).sum(span)


def number_of(phy_offset: int, key_hash: int, take: Rows, split: Split) -> int | None:
    """Return how many keys of a split come before the first one with that hash of the record at `phy_offset`; None if
    `take` leaves it out, or there is none."""
    keys = SplitKeys(split)
    found = keys.find(phy_offset, key_hash)
    if found is None:
        return None
    row, key = found
    start, stop = keys.ends(take)[row : row + 2].tolist()
    return start + key if start + key < stop else None


def times_of(numbers: Rows, take: Rows, split: Split) -> list[int]:
    """Return the store timestamp (ms) of the record of each of these keys of a split."""
    keys = SplitKeys(split)
    rows = np.searchsorted(keys.ends(take), numbers, side="right") - 1
    return list(keys.records["store_timestamp"][rows].tolist())


# --- What will be asked about sound files, answered while the log is scanned: their heads say where they begin.


class Stretch(Struct, frozen=True):
    """The keys of one index file, by its head: from the key of the record at `phy_offset` that has this hash on, to
    those of the record at `end_offset`. `begin` (ms) and `seconds` as those of its first `Span`."""

    phy_offset: int
    key_hash: int
    begin: int
    seconds: int
    end_offset: int


class Foreseen(Struct, frozen=True):
    """Answers of a split about `stretches`, by question: `SplitKeys.head` by phy offset and key hash, and
    `SplitKeys.sum`."""

    stretches: tuple[Stretch, ...] = ()
    heads: dict[tuple[int, int], Head] = {}
    sums: dict[Span, SpanSum] = {}


_NOTHING = Foreseen()


class Stretches:
    """The stretches of all index files, asked of each split while it is scanned.

    One ends where the next begins: however many files name the same keys, none is added up twice.
    """

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self.stretches = sorted(stretches, key=lambda it: it.phy_offset)

    def between(self, start: int, stop: int) -> tuple[Stretch, ...]:
        """Return those that may have keys of records between these phy offsets."""
        first = bisect_left(self.stretches, start, key=lambda it: it.phy_offset)
        last = bisect_left(self.stretches, stop, key=lambda it: it.phy_offset)
        return tuple(self.stretches[max(0, first - 1) : last])

    def within(self, start: int, stop: int) -> Callable[[Split], Foreseen] | None:
        """Return the question to a split of records between these phy offsets, which can be pickled; None if no file
        names any."""
        own = self.between(start, stop)
        return partial(foreseen, own, SEED) if own else None


def foreseen(stretches: tuple[Stretch, ...], seed: int, split: Split) -> Foreseen:
    """Return what a split tells of these stretches, ascending, of which only the first may begin before it."""
    keys, heads = SplitKeys(split), dict[tuple[int, int], Head]()
    begun: list[tuple[tuple[int, int], Stretch]] = []
    for it in stretches:
        head = keys.head(it.phy_offset, it.key_hash)
        if head is not None:
            heads[it.phy_offset, it.key_hash] = head
            begun.append((head.before, it))
        elif it.phy_offset < split.first:
            begun.append(((0, 0), structs.replace(it, seconds=-1)))
    begun.sort(key=lambda each: each[0])
    sums: dict[Span, SpanSum] = {}
    stops = [*(before for before, _ in begun[1:]), split.key_counts()]
    for (firsts, it), nexts in zip(begun, stops, strict=True) if begun else ():
        for rule, first, stop in zip(RULES, firsts, nexts, strict=True):
            # most files end in another split, and then nothing is counted here
            count = min(stop, keys.up_to(it.end_offset, RULES[rule]) if it.end_offset < split.last else stop) - first
            if count > 0:
                span = Span(rule, first, count, it.begin, it.seconds, it.end_offset, seed)
                sums[span] = keys.sum(span)
    return Foreseen(stretches, heads, sums)


class TagRun(Struct, frozen=True):
    """Consecutive tagged records in one index file: all with their tag unit, or all without."""

    first: int
    count: int
    present: bool


class TagHistory:
    """The phy offsets at which units for tags start and stop: no broker up to 5.3.3 writes them."""

    def __init__(self, changes: Sequence[tuple[int, bool]]) -> None:
        self.changes = tuple(changes)
        self.starts = np.array([start for start, _ in changes], dtype=np.int64)
        self._present = np.array([present for _, present in changes], dtype=bool)

    def at(self, phy_offsets: Rows) -> Rows:
        """Whether a tag unit belongs to the record at each offset (bool array)."""
        if len(self.changes) == 1:
            return np.full(phy_offsets.shape, self._present[0])
        return np.asarray(self._present[np.maximum(np.searchsorted(self.starts, phy_offsets, side="right") - 1, 0)])

    @classmethod
    def infer(cls, runs: Sequence[TagRun], default: bool) -> TagHistory:
        """Infer the history with the fewest contradictions; a change must explain at least one record."""
        ordered = sorted(runs, key=lambda run: run.first)
        if not ordered:
            return cls([(0, default)])
        # for each mode the best history that ends in it: its cost, and its changes as a linked list, last one first
        best: list[tuple[float, Any]] = [(0.0, ()), (0.0, ())]
        for run in ordered:
            was, best = best, []
            for mode in (False, True):
                costs = [cost + _CHANGE_COST * (before != mode) for before, (cost, _) in enumerate(was)]
                before = costs[1] < costs[0]
                changes = was[before][1]
                if not changes or changes[1] != mode:
                    changes = (run.first if changes else 0), mode, changes
                best.append((costs[before] + run.count * (run.present != mode), changes))
        changes, found = best[best[1][0] < best[0][0]][1], []
        while changes:
            *change, changes = changes
            found.append(tuple(change))
        return cls(found[::-1])


class IndexStream:
    """The records of the log as index files see them. Keeps one found bit a key hash, and references to the splits.

    `splits` are those of a scan with keys, in log order.
    """

    def __init__(self, splits: Iterable[Split]) -> None:
        self.tags = TagHistory([(0, False)])
        self._given = splits
        self._found: dict[int, Rows] = {}
        self._marked: dict[int, list[Span]] = {}
        self._counts: dict[int, tuple[int, int]] = {}
        self._answers: dict[int, Foreseen] = {}
        self.foresight: Callable[[], Stretches] | None = None
        """What to ask all splits elsewhere about, once, when the first file needs it."""

    @cached_property
    def splits(self) -> list[Split]:
        """The splits that have a row."""
        return [split for split in self._given if split.size]

    @cached_property
    def _first(self) -> Rows:
        return np.array([split.first for split in self.splits], dtype=np.int64)

    @cached_property
    def _last(self) -> Rows:
        return np.array([split.last for split in self.splits], dtype=np.int64)

    @cached_property
    def by_rule(self) -> dict[int, KeyNumbers]:
        """The keys that each rule, TAKE_KEYS or TAKE_ALL, takes of the whole log."""
        return {rule: KeyNumbers(self, rule) for rule in (native.TAKE_KEYS, native.TAKE_ALL)}

    @property
    def has_units(self) -> bool:
        """Whether some record has a key or tags."""
        return any(split.hash_count for split in self.splits)

    def start(self, number: int) -> int:
        """Return the phy offset at which a split begins; for the number after the last, int64's maximum."""
        return int(self._first[number]) if number < self._first.size else np.iinfo(np.int64).max

    def overlapping(self, low: int, high: int) -> range:
        """Return the numbers of the splits that hold records with phy offsets in [low, high]."""
        start = int(np.searchsorted(self._last, low, side="left"))
        return range(start, max(start, int(np.searchsorted(self._first, high, side="right"))))

    def find(self, phy_offset: int) -> tuple[int, int] | None:
        """Return (split number, row) of the intact record at `phy_offset`; None if there is none."""
        for number in self.overlapping(phy_offset, phy_offset):
            row = row_at(phy_offset, self.splits[number].records)
            if row is not None:
                return number, row
        return None

    def timestamp(self, phy_offset: int) -> int | None:
        """Return the store timestamp (ms) of the record at `phy_offset`; None if there is none."""
        place = self.find(phy_offset)
        return None if place is None else int(self.splits[place[0]].records["store_timestamp"][place[1]])

    def take(self, number: int) -> Rows:
        """Return the rule for each record of a split, or one for all (uint8 TAKE_KEYS or TAKE_ALL).

        Records that brokers never index are not excluded here.
        """
        rule = self._rule(number)
        if rule is not None:
            return RULES[rule]
        tags = self.tags.at(self.splits[number].records["phy_offset"])
        return np.where(tags, native.TAKE_ALL, native.TAKE_KEYS).astype(np.uint8)

    def _rule(self, number: int) -> int | None:
        """Return the rule for all records of a split; None if it changes within the split."""
        split = self.splits[number]
        if any(split.first < start <= split.last for start, _ in self.tags.changes):
            return None
        return native.TAKE_ALL if self.tags.at(np.array([split.first]))[0] else native.TAKE_KEYS

    def parts(self, first: int) -> Iterator[KeyPart]:
        """Yield the keys of each split from number `first` on."""
        for number, split in enumerate(self.splits[first:], first):
            yield np.asarray(split.records), np.asarray(split.hashes), self.take(number)

    def expected(self, number: int) -> int:
        """Return how many units a split should have."""
        rule = self._rule(number)
        return int(self.wanted(number).sum()) if rule is None else self.key_count(number, rule)

    def wanted(self, number: int) -> Rows:
        """Return how many units each record of a split should have (int64)."""
        return np.asarray(native.wanted_of(self.splits[number].records, self.take(number)))

    def found(self, number: int) -> Rows:
        """Return the found bits (uint8) of split `number`, one a hash, to be set in place."""
        found = self._found[number] = found_bits(self.splits[number], self.marks(number))
        self._marked.pop(number, None)
        return found

    def marks(self, number: int) -> Marks:
        """Return what was found of split `number`."""
        return self._found.get(number), self._marked.get(number, [])

    def head(self, phy_offset: int, key_hash: int) -> Asking[tuple[int, Head] | None]:
        """Return the number of the split that holds the record at `phy_offset`, and the `head_of` it."""
        for number in self.overlapping(phy_offset, phy_offset):
            found = self._foreseen(number).heads.get((phy_offset, key_hash))
            if found is None and self.foresight is not None and not self.splits[number].is_here:
                stretches, self.foresight = self.foresight(), None
                self._foresee(stretches)
                found = self._foreseen(number).heads.get((phy_offset, key_hash))
            if found is None:
                (found,) = yield [(self.splits[number], partial(head_of, phy_offset, key_hash))]
            return None if found is None else (number, found)
        return None

    def _foresee(self, stretches: Stretches) -> None:
        """Ask those splits about stretches whose rows are elsewhere, and that were not asked with the scan."""
        asked = [(number, (split, question)) for number, split in enumerate(self.splits)
                 if self._foreseen(number).stretches != stretches.between(split.first, split.end)
                 and not split.is_here and (question := stretches.within(split.first, split.end)) is not None]
        self._answers |= zip((number for number, _ in asked), ask([question for _, question in asked]), strict=True)

    def _foreseen(self, number: int) -> Foreseen:
        """Return what split `number` told about stretches."""
        return self._answers.get(number) or self.splits[number].foreseen or _NOTHING

    def key_count(self, number: int, rule: int) -> int:
        """Return how many units a rule, TAKE_KEYS or TAKE_ALL, takes of a split."""
        if number not in self._counts:
            self._counts[number] = self.splits[number].key_counts()
        return self._counts[number][rule - native.TAKE_KEYS]

    def knows(self, spans: Sequence[tuple[int, Span]]) -> bool:
        """Whether no row has to be read for the sums of these spans."""
        return all(span in self._foreseen(split).sums for split, span in spans)

    def sums(self, spans: Sequence[tuple[int, Span]]) -> Asking[list[SpanSum]]:
        """Return sum and end of each span's units."""
        known = [self._foreseen(split).sums.get(span) for split, span in spans]
        asked = [(self.splits[split], partial(sum_of, span))
                 for (split, span), found in zip(spans, known, strict=True) if found is None]
        more = iter((yield asked) if asked else ())
        return [next(more) if found is None else found for found in known]

    def mark(self, spans: Iterable[tuple[int, Span]]) -> None:
        """Mark the keys of spans as found."""
        for split, span in spans:
            self._marked.setdefault(split, []).append(span)

    def covered(self, number: int) -> int | None:
        """Return how many units a split should have if the marked spans cover all of them; None if its rows must be
        read to decide."""
        rule = self._rule(number)
        if number in self._found or rule is None:
            return None
        wanted, stop = self.key_count(number, rule), 0
        spans = sorted(self._marked.get(number, []), key=lambda span: span.first)
        for span in spans:
            if span.first > stop:
                return None
            stop = max(stop, span.first + span.count)
        rules = {span.rule for span in spans}
        whole = len(rules) == 1 and wanted <= self.key_count(number, rules.pop()) <= stop
        return wanted if whole or not wanted else None

    def unfound(self, number: int) -> Wanted | None:
        """Return the units of a split of which none was found, if that is known without its rows."""
        rule, (found, spans) = self._rule(number), self.marks(number)
        return None if rule is None or found is not None or spans else self.splits[number].wanted(rule)

    def asked(self, number: int) -> Rows:
        """Return which hashes of a split should have a unit (int64, ascending)."""
        return np.flatnonzero(asked_of(self.splits[number].records, self.take(number)))


def asked_of(records: Rows, take: Rows) -> Rows:
    """Which hashes of some records should have a unit, under `take` (bool array)."""
    hashes, wanted = records["hashes"].astype(np.int64), native.wanted_of(records, take)
    asked: Rows = np.repeat(wanted > 0, hashes)
    asked[np.cumsum(hashes)[(wanted > 0) & (wanted < hashes)] - 1] = False  # the tag hash is a record's last
    return asked


def found_bits(split: Split, marks: Marks) -> Rows:
    """Return what was found of a split as bits (uint8), one a hash; the array of the marks if no span adds to it."""
    found, spans = marks
    found = np.zeros(split.hashes.size // 8 + 1, dtype=np.uint8) if found is None else found
    for span in spans:
        asked = np.flatnonzero(asked_of(split.records, np.array([span.rule], dtype=np.uint8)))
        bits = np.zeros(8 * found.size, dtype=bool)
        bits[asked[span.first : span.first + span.count]] = True
        found = found | np.packbits(bits, bitorder="little")
    return found


def lacking(split: Split, take: Rows, marks: Marks) -> tuple[Rows, Rows]:
    """Return which hashes of a split should have a unit (int64, ascending), and the places among them of those not
    found."""
    asked = np.flatnonzero(asked_of(split.records, take))
    return asked, np.flatnonzero(~np.unpackbits(found_bits(split, marks), bitorder="little").view(bool)[asked])


def missing_of(split: Split, take: Rows, marks: Marks) -> Rows:
    """Return how many of the units that each record of a split should have were not found (int64)."""
    found, spans = marks
    if found is None and not spans:
        return native.wanted_of(split.records, take)
    asked, places = lacking(split, take, marks)
    ends = np.cumsum(split.records["hashes"], dtype=np.int64)
    return np.bincount(np.searchsorted(ends, asked[places], side="right"), minlength=split.size)


def match_units(
    units: Rows, end: int, order: Rows, offsets: Rows, records: Rows, hashes: Rows, found: Rows, classes: Rows,
    begin: int,
) -> list[TagRun]:
    """Classify the units of numbers `order` that name records of one split; their phy `offsets` ascend.

    Each takes a key of its record that no other has, and sets its bit in `found`. Units that match no record keep their
    class; numbers below `end` are in use. Returns which records have their tag unit.
    """
    bits, places = records["bits"], records["phy_offset"]
    row: Rows = np.searchsorted(places, offsets, side="right") - 1
    within = offsets - places[row]
    stands_in = (bits[row] & STAND_IN) != 0
    classes[order[stands_in & (within < records["size"][row])]] = native.LOST
    own = (within == 0) & ~stands_in & ((bits[row] & BIT_STALE) == 0)
    number, row = order[own], row[own]
    keys = records["hashes"].astype(np.int64)
    first = np.cumsum(keys) - keys
    is_found = np.unpackbits(found, bitorder="little").astype(bool)
    # most units are in the order of the keys
    place = first[row] + _rank(row)
    takes = place < (first + keys)[row]
    at = place[takes]
    takes[takes] = (hashes[at] == units[number[takes], 0]) & ~is_found[at]
    is_found[place[takes]] = True
    named, rest = takes.copy(), np.flatnonzero(~takes)
    if rest.size:
        # one code for record and hash, the same for a key and for a unit that names it
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
    kinds = np.where(takes, native.RIGHT, np.where(named, native.DUPLICATE, native.OTHER_KEY)).astype(np.uint8)
    late = named & (number > 1) & (units[number, 3] != _time_diffs(begin, records["store_timestamp"][row]))
    classes[number] = kinds | np.where(late, native.WRONG_TIME, 0).astype(np.uint8)
    newest = np.zeros(keys.size, dtype=np.int64)
    newest[row[named]] = number[named]
    return _tag_runs(units, end, records, row[np.r_[True, row[1:] != row[:-1]][: row.size]], newest, is_found)


def _rank(values: Rows) -> Rows:
    """Return how many equal values precede each; equal ones are adjacent (int64)."""
    at = np.arange(values.size)
    return at - np.maximum.accumulate(np.where(np.r_[True, values[1:] != values[:-1]][: values.size], at, 0))


def _time_diffs(begin: int, timestamps: Rows) -> Rows:
    """Return `time_diff` of each timestamp (int64)."""
    return np.clip((timestamps - begin) // 1000, 0, MAX_TIME_DIFF) if begin > 0 else np.zeros_like(timestamps)


def _tag_runs(units: Rows, end: int, records: Rows, rows: Rows, newest: Rows, is_found: Rows) -> list[TagRun]:
    """Return runs of records among these rows that have, or lack, their tag unit; `newest`: last unit with a key of
    each.

    Records whose tag unit may be hidden by a broken unit are left out.
    """
    places, keys = records["phy_offset"], records["hashes"].astype(np.int64)
    has_tags = (records["bits"] & BIT_HAS_TAGS != 0) & (keys > 0)
    rows = rows[has_tags[rows]]
    stops = np.cumsum(keys)[rows]
    counted = np.r_[0, np.cumsum(is_found, dtype=np.int64)]
    has_unit = np.full(keys.size, -1, dtype=np.int8)
    present = is_found[stops - 1]
    has_unit[rows[present]] = 1
    whole = counted[stops - 1] - counted[stops - keys[rows]] == keys[rows] - 1
    rows = rows[~present & whole & (newest[rows] > 0) & (newest[rows] + 1 < end)]
    following = native.phy_offsets(units[newest[rows] + 1])
    # up to the next record that has a unit whatever the rule for tags
    nobody = np.iinfo(np.int64).max
    wanted = np.where((keys > has_tags) & (records["bits"] & native.UNINDEXED == 0), places, nobody)
    limit = np.minimum.accumulate(np.r_[wanted, nobody][::-1])[::-1][rows + 1]
    at = np.minimum(np.searchsorted(places, following), places.size - 1)
    absent = (following > places[rows]) & ((limit == nobody) | ((following <= limit) & (places[at] == following)))
    has_unit[rows[absent]] = 0
    known = np.flatnonzero(has_unit >= 0)
    runs = np.split(known, np.flatnonzero(np.diff(has_unit[known])) + 1) if known.size else []
    return [TagRun(int(places[run[0]]), run.size, bool(has_unit[run[0]])) for run in runs]


class KeyNumbers:
    """Numbers for every key that belongs in the index, from 0 in the order in which a broker puts them; with a `rule`,
    for every key that it takes."""

    def __init__(self, stream: IndexStream, rule: int | None = None) -> None:
        self.stream = stream
        counts = [stream.expected(number) if rule is None else stream.key_count(number, rule)
                  for number in range(len(stream.splits))]
        self.starts = np.cumsum([0, *counts], dtype=np.int64)
        self._open: tuple[int, SplitKeys | None] = (-1, None)

    @property
    def total(self) -> int:
        return int(self.starts[-1])

    def place(self, number: int) -> tuple[int, Place]:
        """Return the split number and place of key `number` (below `total`)."""
        split = int(np.searchsorted(self.starts, number, side="right")) - 1
        at, keys = self._open
        if keys is None or at != split:  # small files begin in one split by the hundred
            keys = SplitKeys(self.stream.splits[split])
            self._open = split, keys
        return split, keys.place(number - int(self.starts[split]), self.stream.take(split))

    def find(self, keys: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return the number of the first key of a record with a hash, by (phy offset, hash), where there is one."""
        asked = [(split, key) for key in keys for split in self.stream.overlapping(key[0], key[0])]
        found = ask([(self.stream.splits[split], partial(number_of, *key, self.stream.take(split)))
                     for split, key in asked])
        return {key: int(self.starts[split]) + number for (split, key), number in zip(asked, found, strict=True)
                if number is not None}

    def times(self, numbers: Iterable[int]) -> dict[int, int]:
        """Return the store timestamp (ms) of each key's record, by number."""
        times: dict[int, int] = {}
        every = np.unique(np.array([*numbers], dtype=np.int64))
        cuts = np.searchsorted(every, self.starts).tolist()
        asked = [(split, every[first:stop]) for split, (first, stop) in enumerate(pairwise(cuts)) if first < stop]
        found = ask([(self.stream.splits[split], partial(times_of, own - self.starts[split], self.stream.take(split)))
                     for split, own in asked])
        for (_, own), answer in zip(asked, found, strict=True):
            times |= zip(own.tolist(), answer, strict=True)
        return times

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the splits that hold keys [start, stop), each with the range [first, last) of its own keys."""
        for split in range(int(np.searchsorted(self.starts, start, side="right")) - 1, len(self.stream.splits)):
            base, end = self.starts[split : split + 2].tolist()
            if base >= stop:
                break
            if base < end:
                yield split, max(start - base, 0), min(stop, end) - base

    def unit_spans(
        self, rule: int, start: int, count: int, begin: int, seconds: int, end_offset: int
    ) -> list[tuple[int, Span]]:
        """Return the spans, by split, of `count` keys from number `start` on, which are units of one file; the rest as
        in the first `Span`."""
        found: list[tuple[int, Span]] = []
        for split, first, stop in self.spans(start, start + count):
            found.append((split, Span(rule, first, stop - first, begin, -1 if found else seconds, end_offset, SEED)))
        return found

    def lacks(self, start: int, stop: int) -> bool:
        """Whether a key in [start, stop) is in no file."""
        for split, first, last in self.spans(start, stop):
            if self.stream.covered(split) is None:
                _, places = lacking(self.stream.splits[split], self.stream.take(split), self.stream.marks(split))
                if np.searchsorted(places, first) < np.searchsorted(places, last):
                    return True
        return False
