"""Index files computed from the log, as a broker would write them: header, slots, chains, byte for byte."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from formats.index import INDEX_UNIT, IndexGeometry, IndexHeader
from formats.index_kernels import (
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
from recover.columns import Rows
from recover.content import LazyContent
from recover.errors import Refusal
from recover.index_image import IndexWords, blank_words, file_chunks, load_words
from recover.index_layout import KeyNumbers, Layout, Target, fresh_layout, layout_in_place
from recover.index_names import Names, zone_of
from recover.index_stream import IndexStream
from recover.log import LogView
from recover.plan import Install, Retire, Step
from recover.store import Store
from recover.verify.index import IndexReport, check_index
from recover.verify.index_file import IndexFileVerdict, is_expired


@dataclass(frozen=True, slots=True)
class RebuiltIndexFile:
    """One index file to write. Its bytes are made when they are asked for, one file in memory at a time.

    `first` and `last` are the phy offsets of the messages of its first and last unit,
    `begin_timestamp` and `end_timestamp` (ms) their times. `replaces`: a file of that name is there.
    """

    name: str
    content: LazyContent
    units: int
    first: int
    last: int
    begin_timestamp: int
    end_timestamp: int
    replaces: bool


@dataclass(frozen=True, slots=True)
class IndexRebuild:
    """What rebuilding the index comes to. `kept` files stay as they are, `retired` ones have nothing to hold.

    `zone` is where new names come from: None is this machine's local time. `end_timestamp` is that
    of the newest message in any file, 0 without one; a start after a kill deletes files that end
    behind the checkpoint's index time.
    """

    geometry: IndexGeometry
    files: tuple[RebuiltIndexFile, ...]
    kept: tuple[str, ...]
    retired: tuple[str, ...]
    zone: datetime.tzinfo | None
    end_timestamp: int

    @property
    def nothing_to_do(self) -> bool:
        """True when the files on disk are what a rebuild would write."""
        return not self.files and not self.retired

    def steps(self, store: Store) -> Iterator[Step]:
        """The steps that change `store` in place."""
        for name in self.retired:
            yield Retire(store.relative(store.index_dir / name))
        for file in self.files:
            yield Install(store.relative(store.index_dir / file.name), file.content)


def rebuild_index(
    store: Store, log: LogView, *, fresh: bool = False, report: IndexReport | None = None,
    zone: datetime.tzinfo | None = None, excluded: Collection[int] = (), tags: bool | None = None,
    counts_entries: bool | None = None,
) -> IndexRebuild:
    """Plan the index files that `log` calls for; nothing is written.

    In place (not `fresh`), sound files stay and others keep their name and where they begin. `fresh`
    builds all of them. `report` is a check of this store and log, made here if not given.
    `zone` names new files; without it the broker's own, as far as its files tell. `tags` and
    `counts_entries` (the header counts units instead of slots: brokers up to 4.7.0) decide where
    the files on disk do not. `Refusal` when a file cannot be read, or nothing tells the sizes.
    """
    report = report or check_index(store, log, excluded=excluded, tags=tags)
    geometry = report.geometry
    if geometry is None:
        raise Refusal("nothing tells how many slots and entries the index files have",
                      "Say it: --index-slots N --index-entries N")
    if report.unreadable and not fresh:
        raise Refusal(f"index files that cannot be read cannot be rebuilt: {', '.join(report.unreadable)}",
                      "Move them out of the store, or rebuild with --output.")
    numbers = KeyNumbers(report.stream)
    zone = zone or zone_of(report.verdicts)
    layout = _layout(report, numbers, geometry, zone, fresh)
    builder = _FileBuilder(report.stream, numbers, geometry, _counts_entries(report, counts_entries))
    files = tuple(builder.describe(target) for target in layout.targets)
    kept = [v for v in report.verdicts if v.file.name in layout.kept and v.units]
    ends = [file.end_timestamp for file in files] + [v.header.end_timestamp for v in kept]
    return IndexRebuild(geometry, files, tuple(layout.kept), tuple(layout.retired), zone, max(ends, default=0))


def _layout(
    report: IndexReport, numbers: KeyNumbers, geometry: IndexGeometry, zone: datetime.tzinfo | None, fresh: bool
) -> Layout:
    if fresh:
        return fresh_layout(numbers, geometry.capacity, Names(zone))
    taken = [file.name for file in report.listing.files] + [odd.path.name for odd in report.listing.odd]
    layout = layout_in_place(numbers, geometry.capacity, Names(zone, taken), report.verdicts)
    # files that no size could be told for have no verdict; beside new files they would be wrong ones
    judged = {verdict.file.name for verdict in report.verdicts}
    layout.retired += [file.name for file in report.listing.files if file.name not in judged]
    return layout


def _counts_entries(report: IndexReport, given: bool | None) -> bool:
    """What hash_slot_count counts: as most files have it."""
    seen = [verdict.counts_entries for verdict in report.verdicts if verdict.counts_entries is not None]
    if seen:
        return seen.count(True) * 2 > len(seen)
    return bool(given)


class _FileBuilder:
    def __init__(
        self, stream: IndexStream, numbers: KeyNumbers, geometry: IndexGeometry, counts_entries: bool
    ) -> None:
        self.stream = stream
        self.numbers = numbers
        self.geometry = geometry
        self.counts_entries = counts_entries

    def describe(self, target: Target) -> RebuiltIndexFile:
        """The file that a target stands for, its content not yet made."""
        expired = self._expired(target)
        units = target.stop - target.start + len(expired)
        used = self.geometry.units_offset + (units + 1) * INDEX_UNIT.size
        content = LazyContent(self.geometry.size, lambda: file_chunks(self.build(target, expired)), allocated=used)
        numbers, last = self.numbers, target.stop - 1
        return RebuiltIndexFile(
            target.name, content, units, numbers.phy_offset(target.start), numbers.phy_offset(last),
            numbers.timestamp(target.start), numbers.timestamp(last), target.replaces,
        )

    def _expired(self, target: Target) -> Rows:
        """The units to keep, read now: when the file is built, the old one may be gone."""
        if target.expired_from is None:
            return np.empty((0, 5), dtype=np.int32)
        old = load_words(target.expired_from.file.path, self.geometry).units[1 : target.expired_from.end]
        return np.array(old[is_expired(old, self.stream.log.min_offset)][: target.expired_from.expired_in_front])

    def _put_expired(self, image: IndexWords, old: IndexFileVerdict, expired: Rows, state: Rows) -> None:
        """Put the units that are kept of the old file, as they were but for their chains."""
        count = len(expired)
        image.units[1 : count + 1] = expired
        state[STATE_USED_SLOTS] = link_units(image.units, count + 1, image.slots)
        state[STATE_NUMBER], state[STATE_BEGIN] = count + 1, old.header.begin_timestamp
        state[STATE_BEGIN_OFFSET] = (int(expired[0, 1]) << 32) | (int(expired[0, 2]) & 0xFFFFFFFF)

    def build(self, target: Target, expired: Rows) -> IndexWords:
        """Put the keys of one file, behind the units kept of the old one."""
        image = blank_words(self.geometry)
        place = self.numbers.place(target.start)
        state = np.zeros(STATE_SIZE, dtype=np.int64)
        state[STATE_NUMBER], state[STATE_BEGIN] = 1, target.previous_end
        if target.expired_from is not None:
            self._put_expired(image, target.expired_from, expired, state)
        state[STATE_RECORD], state[STATE_KEY], state[STATE_HASH] = place.row, place.key, place.first_hash
        limit = int(state[STATE_NUMBER]) + target.stop - target.start
        for number in range(place.split, len(self.stream.splits)):
            split = self.stream.splits[number]
            put_keys(
                image.units, image.slots, np.asarray(split.records), np.asarray(split.hashes), self.stream.take(number),
                limit, state,
            )
            if state[STATE_NUMBER] >= limit:
                break
            state[STATE_RECORD] = state[STATE_KEY] = state[STATE_HASH] = 0
        units = int(state[STATE_NUMBER]) - 1
        image.header = IndexHeader(
            int(state[STATE_BEGIN]), int(state[STATE_END]),
            int(state[STATE_BEGIN_OFFSET]), int(state[STATE_END_OFFSET]),
            units if self.counts_entries else int(state[STATE_USED_SLOTS]), units + 1,
        )
        return image
