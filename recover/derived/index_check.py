"""The index against the log, both ways: every unit judged, every key looked for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from formats.checkpoint import CHECKPOINT, Checkpoint, decode
from formats.errors import FormatError
from formats.index import IndexGeometry
from recover.broker.versions import TAG_INDEX, BrokerVersion
from recover.derived.index_file_check import IndexFileVerdict, IndexReport, check_file, follow_file
from recover.derived.index_files import IndexFileName, index_geometry, list_index_files, read_words
from recover.derived.index_stream import IndexStream, TagHistory
from recover.findings.code import BY_HAND
from recover.findings.model import Finding, finding
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.mapped_files import OddName
from recover.store.reader import FileReader, ReadFailure, read_small
from recover.store.reading import FILE
from recover.store.store import Store

if TYPE_CHECKING:
    from recover.derived.index_file_check import IndexReport


def odd_index_name(store: Store, odd: OddName) -> Finding:
    """What does not belong in the index folder. A broker passes over a file with another name."""
    file, name = store.relative(odd.path), odd.path.name
    if odd.kind == FILE:
        return finding("index-odd-name", file, name=name, why="the name is not 17 digits")
    return finding("index-odd-name", file, severity="warning", name=name, why=f"it is {odd.kind}",
                   remedy="mqtool recover {store} --dry-run" if odd.is_directory else BY_HAND)


def look_for_missing(report: IndexReport, store: Store) -> None:
    """Count what is expected and what is missing of it into the report, with a finding for each run of messages."""
    wanted = None if report.verdicts or report.unreadable else report.stream.all_wanted()
    if wanted is None:
        _look_at_each(report, store)
        return
    report.expected, records, first, last = wanted
    if records:
        report.missing = report.expected
        report.findings.append(_missing_units(None, first, last, records, report.expected))


def _look_at_each(report: IndexReport, store: Store) -> None:
    stream = report.stream
    blind = _blind_ranges(report)
    spans = _Spans(report.verdicts)
    run = _MissingRun(report, store)
    for number, (expected, missing) in enumerate(stream.each(stream.missing)):
        report.expected += expected
        if missing is None:
            if expected:
                run.close()
            continue
        offsets = stream.splits[number].records["phy_offset"]
        for low, high in blind:
            missing[(offsets >= low) & (offsets <= high)] = 0
        asked = np.flatnonzero(stream.wanted(number, stream.take(number)))
        run.extend(offsets[asked], missing[asked], spans.of(offsets[asked]))
    run.close()


def _blind_ranges(report: IndexReport) -> list[tuple[int, int]]:
    """What files that could not be read may cover: from the file before to the file after."""
    verdicts = report.verdicts
    ranges = []
    for place in report.unreadable.values():
        before = [v.last_right for v in verdicts[:place] if v.last_right is not None]
        behind = [v.first_right[1] for v in verdicts[place:] if v.first_right is not None]
        ranges.append((max(before, default=0), min(behind, default=1 << 62)))
    return ranges


class _Spans:
    """Which index file covers a phy offset, by the messages that its units name."""

    def __init__(self, verdicts: list[IndexFileVerdict]) -> None:
        with_units = [(v.first_right[1], i) for i, v in enumerate(verdicts) if v.first_right is not None]
        with_units.sort()
        self.numbers = np.array([i for _, i in with_units], dtype=np.int64)
        self.lows = np.array([low for low, _ in with_units], dtype=np.int64)
        last = (max(verdicts[i].last_right or 0, verdicts[i].header.end_phy_offset) for _, i in with_units)
        self.highs = np.array(list(last), dtype=np.int64)

    def of(self, offsets: Rows) -> Rows:
        """Numbers of the verdicts (int64), -1 where no file covers the offset."""
        if not self.lows.size:
            return np.full(offsets.size, -1, dtype=np.int64)
        at = np.searchsorted(self.lows, offsets, side="right") - 1
        inside = (at >= 0) & (offsets <= self.highs[np.maximum(at, 0)])
        return np.where(inside, self.numbers[np.maximum(at, 0)], -1)


def _missing_units(name: str | None, first: int, last: int, records: int, count: int) -> Finding:
    return finding("index-missing-units", name, None, first=first, last=last, records=records, count=count)


class _MissingRun:
    """Merges neighbouring messages that lack units, over all splits."""

    def __init__(self, report: IndexReport, store: Store) -> None:
        self.report = report
        self.store = store
        self.open = False
        self.file = -1
        self.first = self.last = self.records = self.count = 0

    def extend(self, offsets: Rows, missing: Rows, files: Rows) -> None:
        """Take messages in log order: phy offset, how many units each lacks, the file that covers each."""
        if not offsets.size:
            return
        lacking = missing > 0
        if not lacking.any():
            self.close()
            return
        key = np.where(lacking, files, -2)
        cuts = np.flatnonzero(key[1:] != key[:-1]) + 1
        for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), offsets.size], strict=True):
            if not lacking[start]:
                self.close()
                continue
            if self.open and self.file != int(files[start]):
                self.close()
            if not self.open:
                self.open, self.file, self.first = True, int(files[start]), int(offsets[start])
            self.last = int(offsets[stop - 1])
            self.records += stop - start
            self.count += int(missing[start:stop].sum())

    def close(self) -> None:
        """Report the run that is open, if one is."""
        if self.open:
            covering = None if self.file < 0 else self.report.verdicts[self.file].file.path
            name = None if covering is None else self.store.relative(covering)
            self.report.missing += self.count
            self.report.findings.append(_missing_units(name, self.first, self.last, self.records, self.count))
        self.open = False
        self.records = self.count = 0


_NEAR_EMPTY_PART = 100
_NEAR_EMPTY_FILES = 3


def check_index(
    store: Store, log: LogView, *, excluded: Collection[int] = (), tags: bool | None = None,
    tick: Callable[[], None] | None = None, threads: int = 1,
) -> IndexReport:
    """Judge every index file of the store, one in memory at a time.

    `excluded` are numbers of `log.queues` whose messages need no unit; `tags` says whether tag units are
    expected where no file tells (None: what the store says of its broker). `tick` is called after each file.
    """
    assert log.has_keys, "units are made of keys"
    listing = list_index_files(store.index_dir)
    stream = IndexStream(log.splits(), excluded, threads)
    report = IndexReport(listing, index_geometry(store, listing), stream)
    checkpoint = _checkpoint(store.checkpoint_path)
    if tags is None:
        tags = _writes_tag_units(store, checkpoint)
    _Check(store, log, report, tick).run(tags, None if checkpoint is None else checkpoint.index_msg_timestamp)
    return report


def _checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint's fields; None without one that can be read."""
    try:
        return decode(read_small(path, CHECKPOINT.size), extend=True)
    except (OSError, FormatError):
        return None


def _writes_tag_units(store: Store, checkpoint: Checkpoint | None) -> bool:
    """Whether the store's broker seems to be one that indexes tags: the one named, else by traces of 5.4 and later."""
    if store.options.broker is not None:
        return BrokerVersion.parse(store.options.broker).has(TAG_INDEX)
    # 5.4.0 and later make this folder in every store
    traces = (store.root / "rocksdbstore").is_dir()
    return traces or (checkpoint is not None and checkpoint.logics_physical_offset != 0)


class _Check:
    def __init__(
        self, store: Store, log: LogView, report: IndexReport, tick: Callable[[], None] | None
    ) -> None:
        self.store = store
        self.log = log
        self.report = report
        self.tick = tick
        self.stream = report.stream
        self.folder = store.relative(report.listing.directory)

    def run(self, tags: bool, checkpoint_time: int | None) -> None:
        report = self.report
        report.findings += [odd_index_name(self.store, odd) for odd in report.listing.odd]
        for file in report.listing.files:
            if not file.is_time:
                report.findings.append(odd_index_name(self.store, OddName(file.path, FILE, file.length)))
            self._check_file(file)
            if self.tick is not None:
                self.tick()
        runs = [run for verdict in report.verdicts for run in verdict.tag_runs]
        self.stream.tags = TagHistory.infer(runs, tags)
        if not report.listing.files and checkpoint_time == 0 and self.stream.has_units:
            report.switched_off = True
            report.findings.append(finding("index-switched-off", self.folder))
        else:
            look_for_missing(report, self.store)
        if report.geometry is None:
            report.findings.append(finding("index-sizes-unknown", self.folder))
        self._note_near_empty()
        if self.store.has_abort:
            self._note_newer(checkpoint_time or 0)
        for verdict in report.verdicts:
            report.findings.extend(verdict.findings)

    def _add(self, path: Path, code: str, offset: int | None, **facts: Any) -> None:
        self.report.findings.append(finding(code, self.store.relative(path), offset, **facts))

    def _check_file(self, file: IndexFileName) -> None:
        geometry, report = self.report.geometry, self.report
        if geometry is None:
            return
        previous = report.verdicts[-1] if report.verdicts else None
        try:
            with FileReader(file.path) as reader:
                verdict, failure = self._follow(file, reader, geometry, previous)
                image = None if verdict is not None else read_words(reader, geometry)
        except OSError as error:
            report.unreadable[file.name] = len(report.verdicts)
            self._add(file.path, "index-unreadable", 0, wanted=file.length, error=error.strerror)
            return
        if image is not None and failure is not None and not image.failures:
            # what could not be read once is not sound, even if it can be read now
            image.failures.append(failure)
        if image is not None and image.failures:
            report.unreadable[file.name] = len(report.verdicts)
            for failure in image.failures:
                self._add(file.path, "index-unreadable", failure.offset, wanted=failure.wanted, error=failure.strerror)
            return
        if verdict is None:
            assert image is not None
            verdict = check_file(file, self.store.relative(file.path), image, self.log, self.stream, previous)
        if file.length != geometry.size:
            verdict.findings.append(finding(
                "index-file-length", self.store.relative(file.path), min(file.length, geometry.size),
                length=file.length, expected=geometry.size, slots=geometry.slots, entries=geometry.entries,
            ))
        report.verdicts.append(verdict)

    def _follow(
        self, file: IndexFileName, reader: FileReader, geometry: IndexGeometry, previous: IndexFileVerdict | None
    ) -> tuple[IndexFileVerdict | None, ReadFailure | None]:
        try:
            return follow_file(file, reader, geometry, self.stream, previous), None
        except ReadFailure as failure:
            return None, failure

    def _note_near_empty(self) -> None:
        geometry = self.report.geometry
        if geometry is None:
            return
        empty = [v for v in self.report.verdicts[:-1] if v.units * _NEAR_EMPTY_PART < geometry.capacity]
        if len(empty) >= _NEAR_EMPTY_FILES:
            self._add(empty[0].file.path, "index-near-empty-files", None, first=empty[0].file.name,
                      last=empty[-1].file.name, count=len(empty), bytes=sum(v.file.length for v in empty))

    def _note_newer(self, checkpoint_time: int) -> None:
        newer = [v for v in self.report.verdicts if v.header.end_timestamp > checkpoint_time]
        if newer:
            self._add(newer[0].file.path, "index-newer-than-checkpoint", None, first=newer[0].file.name,
                      last=newer[-1].file.name, count=len(newer), more=len(newer) - 1, checkpoint=checkpoint_time)
