"""Index files computed from the log, as a broker would write them: header, slots, chains, byte for byte."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator

from msgspec import Struct

from formats.index import IndexGeometry
from recover.change.model import Install, Retire, Step
from recover.derived.index_build import FileBuilder, RebuiltIndexFile
from recover.derived.index_check import check_index
from recover.derived.index_file_check import IndexReport
from recover.derived.index_layout import KeyNumbers, Layout, Names, fresh_layout, layout_in_place, zone_of
from recover.derived.maker import Maker
from recover.findings.refusal import Refusal
from recover.log.scan import LogView
from recover.store.store import Store


class IndexRebuild(Struct, frozen=True):
    """What rebuilding the index comes to. `kept` files stay as they are, `retired` ones have nothing to hold.

    `zone` is where new names come from: None is this machine's local time. `end_timestamp` is that
    of the newest message in any file, 0 without one; a start after a kill deletes files that end
    after the checkpoint's index time.
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
    counts_entries: bool | None = None, maker: Maker | None = None,
) -> IndexRebuild:
    """Plan the index files that `log` calls for; nothing is written.

    In place (not `fresh`), sound files stay and others keep their name and where they begin. `fresh`
    builds all of them. `report` is a check of this store and log, made here if not given.
    `zone` names new files; without it the broker's own, as far as its files tell. `tags` and
    `counts_entries` (the header counts units instead of slots: brokers up to 4.7.0) decide where
    the files on disk do not. `maker` makes the files, if given. `Refusal` when a file cannot be read, or nothing tells
    the sizes.
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
    builder = FileBuilder(report.stream, numbers, geometry, _counts_entries(report, counts_entries), log.min_offset)
    files = tuple(builder.describe(target) for target in layout.targets)
    if maker is not None:
        files = tuple(maker.index_files(builder, layout.targets, files))
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
