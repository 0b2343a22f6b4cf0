"""Index files computed from the log: which keys go into which file, its name, and its bytes as a broker writes them.

In place, sound files stay, others are rebuilt from the key they began with, and keys that no file covers get new files.
"""

from __future__ import annotations

import datetime
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
from msgspec import Struct

from formats.basics import Buffer, FormatError, index_name, parse_index_name
from formats.index import DEFAULT_GEOMETRY, INDEX_HEADER, INDEX_UNIT, IndexGeometry, IndexHeader
from formats.native import index as native
from recover.change.content import Content, LazyContent
from recover.change.model import Install, Retire, Step
from recover.derived.expected import Producer
from recover.derived.index_check import IndexFileVerdict, IndexReport, check_index, is_expired
from recover.derived.index_files import load_words
from recover.derived.index_keys import PLACE, START, UNITS, KeyNumbers, KeyPart, Place, put_units
from recover.findings.code import Refusal
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.reading import Piece, in_order, zeros
from recover.store.store import Store

# --- The bytes of one index file, as a broker puts its keys in order: units, chains, slots, header. ------------------


CHUNK = 2 << 20


class FileHead(Struct, frozen=True):
    """The state of a file before its own keys.

    `expired`: kept units of expired messages (int32, shape (n, 5)); `begin_timestamp`: begin time (ms) of their file.
    Without them the first unit counts from `previous_end`, the end time (ms) of the previous file; 0 without one.
    """

    previous_end: int = 0
    expired: Rows = np.empty((0, 5), dtype=np.int32)
    begin_timestamp: int = 0


def image_of(
    geometry: IndexGeometry, head: FileHead, parts: Iterable[KeyPart], count: int, first: Place = START, *,
    counts_entries: bool = False,
) -> Iterator[Piece]:
    """Yield one file in pieces of at most `CHUNK` bytes: its head, then `count` keys of `parts`, read once.

    `first` is the place of the first key in the first part. Header and slots come last, as they depend on the units.
    `counts_entries`: hash_slot_count counts units instead of used slots.
    """
    slots, state = np.zeros(geometry.slots, dtype=np.int32), np.zeros(native.STATE_SIZE, dtype=np.int64)
    state[native.STATE_NUMBER], state[native.STATE_BEGIN] = 1, head.previous_end
    state[PLACE] = first
    kept = np.concatenate([np.zeros((1, 5), dtype=np.int32), head.expired])  # unit 0 stays zero
    stop = len(kept) + count
    if len(head.expired):
        state[native.STATE_USED_SLOTS] = _link(kept, slots)
        state[native.STATE_NUMBER], state[native.STATE_BEGIN] = len(kept), head.begin_timestamp
        state[native.STATE_BEGIN_OFFSET] = native.phy_offsets(kept[1:2])[0]
    units = chain((kept[at : at + UNITS].astype(">i4") for at in range(0, len(kept), UNITS)),
                  put_units(parts, slots, state, stop))
    yield from in_order((block.tobytes() for block in units), geometry.units_offset)
    end = geometry.unit_offset(stop)
    yield from in_order(zeros(geometry.size - end), end)
    begin, last, begin_offset, last_offset, used, number = state[[
        native.STATE_BEGIN, native.STATE_END, native.STATE_BEGIN_OFFSET, native.STATE_END_OFFSET,
        native.STATE_USED_SLOTS, native.STATE_NUMBER]].tolist()
    header = IndexHeader(begin, last, begin_offset, last_offset, number - 1 if counts_entries else used, number)
    words = (slots[at : at + CHUNK // 4].astype(">i4").tobytes() for at in range(0, slots.size, CHUNK // 4))
    yield from in_order(chain([INDEX_HEADER.encode(header)], words))


def _link(units: Rows, slots: Rows) -> int:
    """Chain the given units, from number 1, into empty slots; return the number of slots in use."""
    heads = np.maximum(units[1:, 0], 0) % slots.size
    order = np.argsort(heads, kind="stable")
    follows = np.r_[False, heads[order[1:]] == heads[order[:-1]]]
    units[order + 1, 4] = np.where(follows, np.r_[0, order[:-1] + 1], 0)
    # of several units in one slot the last assignment, the newest, wins
    slots[heads] = np.arange(1, len(units))
    return int(np.count_nonzero(~follows))


_QUARTER_HOUR = 900_000
_WIDEST_ZONE = 4 * 18
_AHEAD = 4


class Names:
    """Creates names for new index files: unique, and sorting in the right place."""

    def __init__(self, zone: datetime.tzinfo | None, taken: Iterable[str] = ()) -> None:
        self.zone = zone
        self.taken = set(taken)

    def new(self, timestamp: int, after: str | None, before: str | None) -> str:
        """Return a name for `timestamp` (ms), moved by as few ms as needed to sort between two others."""
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
    """Infer the broker's UTC offset from the names of its files and the times in them; None if they do not show it."""
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


class Target(Struct):
    """One file to build, with keys [start, stop). `previous_end`: end time (ms) of the previous file, 0 without one;
    `end`: that of the file.

    `expired_from`: a file whose first units, of messages that retention deleted, precede the keys.
    """

    name: str
    start: int
    stop: int
    previous_end: int
    expired_from: IndexFileVerdict | None = None
    end: int = 0


class _Anchor(Struct):
    """A file with a known place in the log, and the files between it and the previous anchor, free to be rebuilt."""

    verdict: IndexFileVerdict
    start: int
    spare: list[IndexFileVerdict]


class Layout:
    """Files to build, in order (`targets`), and names of those that stay (`kept`) or become empty (`retired`).

    Sound files of `verdicts` stay; others are rebuilt from the key they began with; keys that no file covers get new
    files, each filled before the next begins.
    """

    def __init__(
        self, numbers: KeyNumbers, capacity: int, names: Names, verdicts: list[IndexFileVerdict]
    ) -> None:
        self.targets: list[Target] = []
        self.kept: list[str] = []
        self.retired: list[str] = []
        self._numbers = numbers
        self._capacity = capacity
        self._names = names
        self._verdicts = verdicts
        self._new: list[tuple[str | None, str | None, list[Target]]] = []
        anchors, spare = self._anchors()
        position, after = 0, None
        for anchor, limit in zip(anchors, [*(it.start for it in anchors[1:]), numbers.total], strict=False):
            self._fill(position, anchor.start, anchor.spare, after, anchor.verdict.file.name)
            position, after = self._place(anchor, limit), anchor.verdict.file.name
        self._fill(position, numbers.total, spare, after, None)
        self._set_times()

    def _anchors(self) -> tuple[list[_Anchor], list[IndexFileVerdict]]:
        """Return files in the order of their messages; the order of names differs if the clock went back."""
        anchors: dict[int, _Anchor] = {}
        spare: list[IndexFileVerdict] = []
        found = self._numbers.find(it.first_right[1:] for it in self._verdicts if it.first_right is not None)
        for verdict in self._verdicts:
            number = None if verdict.first_right is None else found.get(verdict.first_right[1:])
            start = None if number is None else max(0, number - verdict.wrong_before)
            if start is not None and start not in anchors:
                anchors[start] = _Anchor(verdict, start, spare)
                spare = []
            elif verdict.units == 0 or not verdict.sound:
                spare.append(verdict)
            else:
                self.kept.append(verdict.file.name)
        return [anchors[start] for start in sorted(anchors)], spare

    def _fill(
        self, start: int, stop: int, spare: list[IndexFileVerdict], after: str | None, before: str | None
    ) -> None:
        """Add files for the keys [start, stop): first reuse those of `spare`, then create new ones, still without a
        name, to sort between the last of those, or `after`, and `before`.

        Of the spare files left over, sound (empty) ones stay and broken ones are retired.
        """
        left, new = iter(spare), list[Target]()
        while start < stop:
            old = next(left, None)
            kept = old.expired_before if old is not None and old.expired_before < self._capacity else 0
            end = min(stop, start + self._capacity - kept)
            target = Target("", start, end, 0, old if kept else None)
            self.targets.append(target)
            if old is None:
                new.append(target)
            else:
                after = target.name = old.file.name
            start = end
        self._new.append((after, before, new))
        for verdict in left:
            (self.kept if verdict.sound else self.retired).append(verdict.file.name)

    def _set_times(self) -> None:
        """Set the times of all targets, in one round of questions to the log, and from them the names of new files."""
        times = self._numbers.times(
            number for it in self.targets for number in (max(0, it.start - 1), it.start, it.stop - 1))
        for after, before, new in self._new:
            for target in new:
                after = target.name = self._names.new(times[target.start], after, before)
        for target in self.targets:
            target.previous_end = times[target.start - 1] if target.start else target.previous_end
            target.end = times[target.stop - 1]

    def _place(self, anchor: _Anchor, limit: int) -> int:
        """Keep or rebuild the anchor's file; return the number of the next key."""
        verdict, start = anchor.verdict, anchor.start
        covered = start + verdict.right
        full = verdict.units >= self._capacity
        if verdict.sound and not self._numbers.lacks(start, covered) and (covered >= limit or full):
            self.kept.append(verdict.file.name)
            return max(covered, start)
        stop = min(limit, start + self._capacity - verdict.expired_before)
        expired_from = verdict if verdict.expired_before else None
        self.targets.append(Target(verdict.file.name, start, stop, self._end_before(verdict), expired_from))
        return stop

    def _end_before(self, verdict: IndexFileVerdict) -> int:
        """Return the end time of the previous file; used only if that file's messages are gone."""
        before = self._verdicts[: self._verdicts.index(verdict)]
        return before[-1].header.end_timestamp if before and before[-1].sound else 0


class RebuiltIndexFile(Struct, frozen=True):
    """One index file to write; its bytes are built on demand, one file in memory at a time.

    `end_timestamp` (ms) is the store timestamp of its last unit's message.
    """

    name: str
    content: Content
    units: int
    end_timestamp: int


class FileBuilder(Struct, frozen=True):
    """Builds index files of one log that begins at `min_offset`. `counts_entries`: hash_slot_count counts units instead
    of used slots."""

    numbers: KeyNumbers
    geometry: IndexGeometry
    counts_entries: bool
    min_offset: int

    def describe(self, target: Target) -> RebuiltIndexFile:
        head = self.head(target)
        units = target.stop - target.start + len(head.expired)
        used = self.geometry.units_offset + (units + 1) * INDEX_UNIT.size
        content = LazyContent(
            self.geometry.size, lambda: self._chunks(target, head), allocated=used,
            pieces=lambda: ahead(self._pieces(target, head)),
        )
        return RebuiltIndexFile(target.name, content, units, target.end)

    def head(self, target: Target) -> FileHead:
        """Return the head of a file; read now, as the old file may be gone when this one is built."""
        old = target.expired_from
        if old is None:
            return FileHead(target.previous_end)
        units = load_words(old.file.path, self.geometry).units[1 : old.end]
        expired = units[is_expired(units, self.min_offset)][: old.expired_before]
        return FileHead(target.previous_end, np.array(expired), old.header.begin_timestamp)

    def _pieces(self, target: Target, head: FileHead) -> Iterator[Piece]:
        split, first = self.numbers.place(target.start)
        return image_of(self.geometry, head, self.numbers.stream.parts(split), target.stop - target.start, first,
                        counts_entries=self.counts_entries)

    def _chunks(self, target: Target, head: FileHead) -> Iterator[Buffer]:
        """Yield the file from its beginning; built twice, as header and slots depend on the units after them."""
        units = self.geometry.units_offset
        yield from (piece for at, piece in self._pieces(target, head) if at < units)
        yield from (piece for at, piece in self._pieces(target, head) if at >= units)


def ahead(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the same pieces, produced ahead on a separate thread."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, pieces, None) for _ in range(_AHEAD))
        try:
            while (piece := waiting.popleft().result()) is not None:
                waiting.append(pool.submit(next, pieces, None))
                yield piece
        finally:
            pool.shutdown(cancel_futures=True)


class IndexRebuild(Struct, frozen=True):
    """The plan of an index rebuild. `kept` files stay as they are, `retired` ones have no unit left."""

    geometry: IndexGeometry
    files: tuple[RebuiltIndexFile, ...]
    kept: tuple[str, ...]
    retired: tuple[str, ...]

    def steps(self, store: Store) -> Iterator[Step]:
        """Yield the steps that change `store` in place."""
        for name in self.retired:
            yield Retire(store.relative(store.index_dir / name))
        for file in self.files:
            yield Install(store.relative(store.index_dir / file.name), file.content)


def rebuild_index(
    store: Store, log: LogView, *, fresh: bool = False, report: IndexReport | None = None,
    zone: datetime.tzinfo | None = None, producer: Producer | None = None,
) -> IndexRebuild:
    """Plan the index files that `log` calls for; nothing is written.

    In place (not `fresh`), sound files stay, and others keep their name and first key. `fresh` builds all of them.
    `report`: a check of this store and log, made here if not given. `zone` is used in the names of new files; without
    it, the broker's own as inferred from its files. `producer`, if given, builds the files. `Refusal` if a file cannot
    be read.
    """
    report = report or check_index(store, log)
    geometry = report.geometry or DEFAULT_GEOMETRY
    if report.unreadable and not fresh:
        raise Refusal(f"index files that cannot be read cannot be rebuilt: {', '.join(report.unreadable)}",
                      "Move them out of the store, or rebuild with --output.")
    numbers = KeyNumbers(report.stream)
    verdicts, listed = ([], []) if fresh else (report.verdicts, [file.name for file in report.listing.files])
    names = Names(zone or zone_of(report.verdicts), listed + [odd.path.name for odd in report.listing.odd])
    layout = Layout(numbers, geometry.capacity, names, verdicts)
    # without a known geometry files have no verdict; left beside new files they would be wrong
    judged = {verdict.file.name for verdict in verdicts}
    layout.retired += [name for name in listed if name not in judged]
    counted = [verdict.counts_entries for verdict in report.verdicts if verdict.counts_entries is not None]
    builder = FileBuilder(numbers, geometry, counted.count(True) * 2 > len(counted), log.min_offset)
    files = tuple(builder.describe(target) for target in layout.targets)
    if producer is not None:
        files = tuple(producer.index_files(builder, layout.targets, files))
    return IndexRebuild(geometry, files, tuple(layout.kept), tuple(layout.retired))
