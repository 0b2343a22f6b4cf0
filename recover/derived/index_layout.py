"""Which keys of the log go into which index file: numbers of keys in log order, and files as ranges of them."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from formats.errors import FormatError
from formats.names import index_name, parse_index_name
from recover.derived.index_file_check import IndexFileVerdict
from recover.derived.index_stream import IndexStream
from recover.store.columns import Rows

_QUARTER_HOUR = 900_000
_WIDEST_ZONE = 4 * 18


class Names:
    """Names for new index files, unique and sorting where they belong."""

    def __init__(self, zone: datetime.tzinfo | None, taken: Iterable[str] = ()) -> None:
        self.zone = zone
        self.taken = set(taken)

    def new(self, timestamp: int, after: str | None, before: str | None) -> str:
        """A name made at `timestamp` (ms), moved by as many ms as it takes to lie between two others in order."""
        name = self._at(timestamp)
        if before is not None and after is not None and after >= before:
            before = None
        if before is not None and name >= before:
            name = self._later(before, -1)
        if after is not None and name <= after:
            name = self._later(after, 1)
        while name in self.taken:
            name = self._later(name, 1)
        self.taken.add(name)
        return name

    def _at(self, timestamp: int) -> str:
        try:
            return index_name(timestamp, self._zone(timestamp))
        except FormatError:
            return index_name(0, datetime.UTC)

    def _zone(self, timestamp: int) -> datetime.tzinfo:
        if self.zone is not None:
            return self.zone
        try:
            local = datetime.datetime.fromtimestamp(timestamp / 1000).astimezone().tzinfo
        except (OverflowError, OSError, ValueError):
            local = None
        return local or datetime.UTC

    @staticmethod
    def _later(name: str, by: int) -> str:
        try:
            return index_name(parse_index_name(name, datetime.UTC) + by, datetime.UTC)
        except FormatError:
            return str(max(0, int(name) + by)).zfill(len(name))


def zone_of(verdicts: Iterable[IndexFileVerdict]) -> datetime.tzinfo | None:
    """The broker's distance from UTC, from the names of its files and the times in them; None if nothing tells."""
    votes: Counter[int] = Counter()
    for verdict in verdicts:
        if verdict.sound and verdict.units and verdict.file.is_time:
            made = parse_index_name(str(int(verdict.file.name)), datetime.UTC)
            distance = round((made - verdict.header.begin_timestamp) / _QUARTER_HOUR)
            if abs(distance) <= _WIDEST_ZONE:
                votes[distance] += 1
    if not votes:
        return None
    return datetime.timezone(datetime.timedelta(milliseconds=votes.most_common(1)[0][0] * _QUARTER_HOUR))


class Place(Struct, frozen=True):
    """One key: split, row in it, key of that record, and the record's first hash in the split."""

    split: int
    row: int
    key: int
    first_hash: int


class KeyNumbers:
    """Every key that belongs into the index, numbered from 0 in the order in which a broker puts them."""

    def __init__(self, stream: IndexStream) -> None:
        self.stream = stream
        self._starts = np.concatenate([[0], np.cumsum(stream.units(), dtype=np.int64)]).astype(np.int64)
        self._open: tuple[int, Rows] = (-1, np.empty(0, dtype=np.int64))

    @property
    def total(self) -> int:
        """How many keys there are."""
        return int(self._starts[-1])

    def place(self, number: int) -> Place:
        """Where key `number` (below `total`) stands."""
        split = int(np.searchsorted(self._starts, number, side="right")) - 1
        ends = self._ends(split)
        inside = number - int(self._starts[split])
        row = int(np.searchsorted(ends, inside, side="right"))
        before = int(ends[row - 1]) if row else 0
        hashes = self.stream.splits[split].records["hashes"]
        return Place(split, row, inside - before, int(hashes[:row].sum(dtype=np.int64)))

    def find(self, phy_offset: int, key_hash: int) -> int | None:
        """The number of a record's first key with that hash; None without one."""
        found = self.stream.find(phy_offset)
        if found is None:
            return None
        split, row = found
        ends = self._ends(split)
        before = int(ends[row - 1]) if row else 0
        part = self.stream.splits[split]
        first = int(part.records["hashes"][:row].sum(dtype=np.int64))
        keys = np.flatnonzero(part.hashes[first : first + int(ends[row]) - before] == key_hash)
        return int(self._starts[split]) + before + int(keys[0]) if keys.size else None

    def timestamp(self, number: int) -> int:
        """Store timestamp (ms) of the record of a key."""
        place = self.place(number)
        return int(self.stream.splits[place.split].records["store_timestamp"][place.row])

    def phy_offset(self, number: int) -> int:
        """Where the record of a key starts."""
        place = self.place(number)
        return int(self.stream.splits[place.split].records["phy_offset"][place.row])

    def missing(self) -> Rows:
        """Ranges [start, stop) of keys that no file has, int64 of shape (n, 2), ascending."""
        parts = [self._runs(number) for number in range(len(self.stream.splits))]
        ranges = np.concatenate([part for part in parts if part.size] or [np.empty((0, 2), dtype=np.int64)])
        return _joined(ranges)

    def _runs(self, split: int) -> Rows:
        if not self.stream.found(split).any():
            first, last = self._starts[split], self._starts[split + 1]
            return np.array([[first, last]] if last > first else [], dtype=np.int64).reshape(-1, 2)
        hashes = self.stream.splits[split].records["hashes"].astype(np.int64)
        wanted = self.stream.wanted(split, self.stream.take(split))
        found = np.unpackbits(self.stream.found(split), bitorder="little")[: int(hashes.sum())].astype(bool)
        place_in_record = np.arange(found.size) - np.repeat(np.cumsum(hashes) - hashes, hashes)
        counts = place_in_record < np.repeat(wanted, hashes)
        missing = np.flatnonzero(~found[counts]) + self._starts[split]
        return _joined(np.stack([missing, missing + 1], axis=1))

    def _ends(self, split: int) -> Rows:
        if self._open[0] != split:
            self._open = split, np.cumsum(self.stream.wanted(split, self.stream.take(split)))
        return self._open[1]


def _joined(ranges: Rows) -> Rows:
    """Ascending ranges, neighbours made one."""
    if not ranges.size:
        return ranges
    joins = np.flatnonzero(ranges[1:, 0] != ranges[:-1, 1]) + 1
    firsts, lasts = np.r_[0, joins], np.r_[joins - 1, len(ranges) - 1]
    return np.stack([ranges[firsts, 0], ranges[lasts, 1]], axis=1)


class Target(Struct, frozen=True):
    """One file to build: keys [start, stop). `previous_end` is the end time (ms) of the file before, 0 for none.

    `expired_from` is a file whose first units, of messages that the log lost to its retention, come first.
    """

    name: str
    start: int
    stop: int
    previous_end: int
    replaces: bool = False
    expired_from: IndexFileVerdict | None = None


class Layout(Struct):
    """Files to build in order, names of files that stay as they are, names of files that nothing is left for."""

    targets: list[Target]
    kept: list[str]
    retired: list[str]


def fresh_layout(numbers: KeyNumbers, capacity: int, names: Names) -> Layout:
    """All keys from the first on, each file filled before the next begins."""
    builder = _Builder(numbers, capacity, names)
    builder.fill(0, numbers.total, [], None, None)
    return Layout(builder.targets, [], [])


def layout_in_place(
    numbers: KeyNumbers, capacity: int, names: Names, verdicts: list[IndexFileVerdict]
) -> Layout:
    """Sound files stay; others are built again from where they began; what no file covers gets files of its own."""
    return _InPlace(numbers, capacity, names, verdicts).run()


class _Builder:
    def __init__(self, numbers: KeyNumbers, capacity: int, names: Names) -> None:
        self.numbers = numbers
        self.capacity = capacity
        self.names = names
        self.targets: list[Target] = []

    def add(
        self, name: str, start: int, stop: int, *, replaces: bool, previous_end: int = 0,
        expired_from: IndexFileVerdict | None = None,
    ) -> None:
        """One file of the keys [start, stop)."""
        if start > 0:
            previous_end = self.numbers.timestamp(start - 1)
        self.targets.append(Target(name, start, stop, previous_end, replaces, expired_from))

    def fill(
        self, start: int, stop: int, spare: list[IndexFileVerdict], after: str | None, before: str | None
    ) -> None:
        """Files for the keys [start, stop): first those of `spare` anew (they are used up), then new ones."""
        while start < stop:
            old = spare.pop(0) if spare else None
            kept = old.expired_in_front if old is not None and old.expired_in_front < self.capacity else 0
            end = min(stop, start + self.capacity - kept)
            after = old.file.name if old else self.names.new(self.numbers.timestamp(start), after, before)
            self.add(after, start, end, replaces=old is not None, expired_from=old if kept else None)
            start = end


class _Anchor(Struct):
    """A file whose place in the log is known, and those between the anchor before and it, free to be built anew."""

    verdict: IndexFileVerdict
    start: int
    spare: list[IndexFileVerdict]


class _InPlace:
    def __init__(
        self, numbers: KeyNumbers, capacity: int, names: Names, verdicts: list[IndexFileVerdict]
    ) -> None:
        self.numbers = numbers
        self.capacity = capacity
        self.verdicts = verdicts
        self.missing = numbers.missing()
        self.builder = _Builder(numbers, capacity, names)
        self.layout = Layout(self.builder.targets, [], [])

    def run(self) -> Layout:
        anchors, spare = self._anchors()
        position = 0
        after: str | None = None
        for number, anchor in enumerate(anchors):
            name = anchor.verdict.file.name
            self.builder.fill(position, anchor.start, anchor.spare, after, name)
            self._leave(anchor.spare)
            last = number + 1 == len(anchors)
            limit = self.numbers.total if last else anchors[number + 1].start
            position = self._place(anchor, limit)
            after = name
        self.builder.fill(position, self.numbers.total, spare, after, None)
        self._leave(spare)
        return self.layout

    def _anchors(self) -> tuple[list[_Anchor], list[IndexFileVerdict]]:
        """Files in the order of their messages, which is not that of the names where clocks went back."""
        anchors: dict[int, _Anchor] = {}
        spare: list[IndexFileVerdict] = []
        for verdict in self.verdicts:
            start = self._start(verdict)
            if start is not None and start not in anchors:
                anchors[start] = _Anchor(verdict, start, spare)
                spare = []
            elif verdict.units == 0 or not verdict.sound:
                spare.append(verdict)
            else:
                self.layout.kept.append(verdict.file.name)
        return [anchors[start] for start in sorted(anchors)], spare

    def _start(self, verdict: IndexFileVerdict) -> int | None:
        if verdict.first_right is None:
            return None
        _, phy_offset, key_hash = verdict.first_right
        number = self.numbers.find(phy_offset, key_hash)
        return None if number is None else max(0, number - verdict.wrong_in_front)

    def _place(self, anchor: _Anchor, limit: int) -> int:
        """Keep or build the anchor's file; the number of the key that comes next."""
        verdict, start = anchor.verdict, anchor.start
        covered = start + verdict.right
        full = verdict.units >= self.capacity
        if verdict.sound and not self._lacks(start, covered) and (covered >= limit or full):
            self.layout.kept.append(verdict.file.name)
            return max(covered, start)
        stop = min(limit, start + self.capacity - verdict.expired_in_front)
        self.builder.add(
            verdict.file.name, start, stop, replaces=True, previous_end=self._end_before(verdict),
            expired_from=verdict if verdict.expired_in_front else None,
        )
        return stop

    def _lacks(self, start: int, stop: int) -> bool:
        """Whether a key in [start, stop) is missing from all files."""
        if not self.missing.size:
            return False
        at = int(np.searchsorted(self.missing[:, 1], start, side="right"))
        return at < len(self.missing) and int(self.missing[at, 0]) < stop

    def _end_before(self, verdict: IndexFileVerdict) -> int:
        """End time of the file that a broker had before this one; counts only when its messages are gone."""
        before = self.verdicts[: self.verdicts.index(verdict)]
        return before[-1].header.end_timestamp if before and before[-1].sound else 0

    def _leave(self, spare: list[IndexFileVerdict]) -> None:
        """Files that were not needed: an empty one can stay, a broken one has to go."""
        for verdict in spare:
            (self.layout.kept if verdict.sound else self.layout.retired).append(verdict.file.name)
        spare.clear()
