"""Units that the log calls for and no index file has: which messages lack them, and which file should have had them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recover.files.store import Store
from recover.findings import Finding, finding
from recover.memory.columns import Rows
from recover.verify.index_file import IndexFileVerdict

if TYPE_CHECKING:
    from recover.verify.index_report import IndexReport


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
    """What files that could not be read may cover: from the file before to the file behind."""
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
