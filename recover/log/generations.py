"""Earlier generations of records: stale ones after a break, and queue offsets that were assigned twice.

Truncation zeroes nothing, so records of an earlier generation may follow the end of the log. A queue that lost its
units may number its messages again from a lower offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from formats.native.rows import note_last, numbered
from formats.record import MIN_RECORD_SIZE
from formats.record.rows import BIT_MISNUMBERED, BIT_STALE, BIT_SUPERSEDED, NOT_IN_QUEUE, RECORD
from recover.log.file_scan import FileScan
from recover.log.judge import LogReader, without_own_offset
from recover.store.columns import Rows, Split, ask, joined
from recover.store.mapped_files import MappedFileQueue

_RESUMED = 3
"""Number of consecutive live records after a break with which the log resumes."""
_RUN = 3
"""Longest run of consecutive records of a queue that may all be misnumbered."""


def counted(records: Rows) -> Rows:
    """Which rows count in a queue by their queue offset; stale ones do not (bool array)."""
    return np.asarray(numbered(records) & ((records["bits"] & BIT_STALE) == 0))


def with_place(records: Rows) -> Rows:
    """Which rows hold a position of their queue: not stale, superseded or misnumbered (bool array)."""
    return np.asarray(numbered(records) & ((records["bits"] & NOT_IN_QUEUE) == 0))


def misnumbered_among(offsets: Rows, times: Rows) -> Rows:
    """Which records leave the order of a queue between two neighbours in order, or at its end (bool array).

    `times`: their store times (ms), which say which of two neighbours with one offset belongs there.
    """
    wrong = np.zeros(offsets.size, dtype=bool)
    if offsets.size < 3:
        return wrong
    values = offsets.tolist()
    stands_before_older = np.append((offsets[:-1] == offsets[1:]) & (times[1:] < times[:-1]), False)
    stands_before_older[:-2] &= times[:-2] <= times[2:]
    before = values[0]
    at = 1
    while at < len(values) - 1:
        in_place = values[at] == before + 1 and bool(stands_before_older[at])
        run = 0 if in_place else _misnumbered_run(values, at, before)
        wrong[at : at + run] = True
        if not run:
            before = values[at]
        at += run or 1
    # nothing follows the last record to decide; a new generation begins at 0, a damaged offset rarely does
    wrong[-1] = 0 < offsets[-1] <= offsets[-2] and not wrong[-2]
    wrong[0] = offsets[0] >= offsets[1] and offsets[1] + 1 == offsets[2] and offsets[1] != 0
    return wrong


def _misnumbered_run(values: list[int], at: int, before: int) -> int:
    """Return how many records from `at` are out of an order that continues after them from `before`; 0 if none.

    In a run of several no two may be consecutive, as they would be in a new generation.
    """
    in_order = before < values[at] < values[at + 1]
    if before < values[at + 1] and not in_order and not _is_repeated(values, at, before):
        return 1
    for run in range(2, min(_RUN, len(values) - 2 - at) + 1) if values[at] != before + 1 else ():
        own, behind = values[at : at + run + 1], values[at + run]
        goes_on = before < behind <= before + 1 + 2 * run and behind < values[at + run + 1]
        numbered_anew = any(a + 1 == b for a, b in pairwise(own)) or all(a < b for a, b in pairwise(own))
        if goes_on and not numbered_anew and not any(before < one < behind for one in own):
            return run
    return 0


def _jumps(places: Rows, offsets: Rows) -> Rows:
    """Which of a queue's last records, at most _RUN, skip more offsets than the log had room for (bool array)."""
    jump = np.zeros(offsets.size, dtype=bool)
    for run in range(min(_RUN, offsets.size - 1), 0, -1):
        room = (places[-run:] - places[-run - 1]) // MIN_RECORD_SIZE
        if (offsets[-run:] - offsets[-run - 1] > room + 1).all() and (np.diff(offsets[-run:]) != 1).all():
            jump[-run:] = True
            break
    return jump


def _is_repeated(values: list[int], at: int, before: int) -> bool:
    """Whether the first of two equal offsets is right: it follows `before`, and the next is skipped or none is left."""
    number = values[at]
    return number == before + 1 and values[at + 1 : at + 3] in ([number], [number, number + 2])


def mark_jumps(scans: list[FileScan], gapped: Rows) -> int:
    """Set BIT_MISNUMBERED on the last records of queues that skip more offsets than the log before them had room for.

    `gapped`: which queues skip any (bool array). Returns the number of records marked.
    """
    return mark(scans, [places[_jumps(places, offsets)] for places, offsets in _ends(scans, gapped)], BIT_MISNUMBERED)


def _ends(scans: list[FileScan], queues: Rows) -> Iterator[tuple[Rows, Rows]]:
    """Yield phy and queue offsets (int64) of the last _RUN + 1 rows with a place, for each of these queues (bool
    array)."""
    left = np.where(queues, _RUN + 1, 0)
    ends: dict[int, list[Rows]] = {}
    for split in (split for scan in reversed(scans) for split in reversed(scan.splits)):
        if split.lacks(left > 0):
            continue
        own = split.records[left[split.records["queue"]] > 0]
        own = own[with_place(own)]
        own = own[np.argsort(own["queue"], kind="stable")]
        numbers, starts = np.unique(own["queue"], return_index=True)
        for queue, (start, stop) in zip(numbers.tolist(), pairwise([*starts.tolist(), own.size]), strict=True):
            rows = own[max(start, stop - int(left[queue])) : stop]
            ends.setdefault(queue, []).insert(0, rows)
            left[queue] -= rows.size
    for parts in ends.values():
        rows = np.concatenate(parts)
        yield rows["phy_offset"].astype(np.int64), rows["queue_offset"].astype(np.int64)


def mark(scans: list[FileScan], parts: list[Rows], bit: int) -> int:
    """Set a bit of the records at these phy offsets (arrays); return their number."""
    places = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
    for split in (split for scan in scans for split in scan.splits if split.size):
        first, stop = np.searchsorted(places, [split.first, split.last + 1])
        if first < stop:
            split.records["bits"][np.searchsorted(split.records["phy_offset"], places[first:stop])] |= bit
    return int(places.size)


_PLACED = ("phy_offset", "queue_offset", "store_timestamp", "size")
_AT_ONCE = 1 << 21
"""Rows of queues that are sorted together."""


def mark_stale(scans: list[FileScan], queues: int) -> int:
    """Set BIT_STALE on records after a break that are older than the log before it; return their number.

    A record after a break is stale if its queue was further ahead and it was not stored later than the last three
    records before the break; or if its store timestamp precedes those of the last two records (three if these two are
    out of order), or only that of the last one if another record after the break, with an offset its queue had reached,
    also precedes it. A single record proves nothing: one wrong bit in its queue offset or time, which no checksum
    covers, would make everything after it stale. The log resumes with three consecutive live records, or with a file
    whose first record is live: after them the clock may go back.
    """
    if not _is_broken(scans):
        return 0
    before = _Before(queues)
    broken, total = False, 0
    for scan in scans:
        breaks = [gap.start for gap in scan.gaps if not gap.bridged_by_units]
        # a stretch without a break is compared with what precedes it, however its rows are divided
        for number, runs in groupby(_runs(scan, breaks), key=itemgetter(0)):
            stretch = [part for _, part in runs]
            stale = before.stale_in(stretch) if number > 0 or broken else {}
            broken = 0 in stale and bool(stale[0][0])
            total += sum(before.note(part, stale.get(at)) for at, part in enumerate(stretch))
        ends = scan.blank is not None or (bool(scan.gaps) and scan.gaps[-1].bridged_by_units)
        broken |= not ends or (bool(breaks) and not scan.splits)
    return total


class _Before:
    """What the live log before a stretch shows: the last and the highest queue offset of each queue, and the store
    timestamps (ms) of its last three records."""

    def __init__(self, queues: int) -> None:
        self.last = np.full(queues, -1, dtype=np.int64)
        self.reached = self.last.copy()
        self.times = [0, 0, 0]

    def stale_in(self, stretch: list[Rows | Split]) -> dict[int, Rows]:
        """Return which rows of a stretch after a break are stale (bool arrays), for each part in doubt."""
        doubted = {at: _rows_of(part) for at, part in enumerate(stretch)
                   if not (isinstance(part, Split) and self._is_older_than(part))}
        stale = dict(zip(doubted, self._stale([*doubted.values()]), strict=True))
        _resume(stretch, stale)
        return stale

    def note(self, part: Rows | Split, stale: Rows | None) -> int:
        """Mark the stale rows of a part, and go on to after the others; return the number of stale ones."""
        times = self._note_sums(part) if isinstance(part, Split) and stale is None else None
        count = 0
        if times is None:
            live = records = _rows_of(part)
            if stale is not None and stale.any():
                records["bits"] |= np.where(stale, BIT_STALE, 0).astype(np.uint16)
                count, live = int(stale.sum()), records[~stale]
            note_last(np.asarray(live), self.last, self.reached)
            times = live["store_timestamp"][-3:].tolist()
        self.times = [*self.times, *times][-3:]
        return count

    def _is_older_than(self, split: Split) -> bool:
        """Whether the summary of a split proves that none of its rows is stale."""
        return not split.is_here and split.is_later(max(self.times), self.reached)

    def _note_sums(self, split: Split) -> tuple[int, ...] | None:
        """Go on to after a split by its summary; return the store timestamps of its last rows.

        None, with nothing noted, if a queue skips an offset or falls back: then the rows are needed.
        """
        if (summary := split.summary) is None:
            return None
        own, numbers = summary.queues, split.numbers
        some, first, last = own["last"] != -1, own["first"], own["last"]
        if (some & (own["fallen"] | (last - first + 1 != own["positions"]))).any():
            return None
        follows = (first - 1 <= self.reached[numbers]) | (first - 1 == self.last[numbers]) | (own["positions"] > 1)
        self.reached[numbers] = np.where(some & follows, last, self.reached[numbers])
        self.last[numbers] = np.where(some, last, self.last[numbers])
        return summary.last_times

    def _stale(self, stretch: list[Rows]) -> list[Rows]:
        """Return which rows of a stretch after a break are stale (bool arrays)."""
        times, reached = self.times, self.reached
        borne_out = any(
            (numbered(records) & (records["queue_offset"] <= reached[records["queue"]])
             & (records["store_timestamp"] < times[-1])).any() for records in stretch
        )
        in_order = times[-2] <= times[-1]
        latest = times[-1] if borne_out else min(times[-2:] if in_order else times)
        # a recreated topic begins at 0, too, but later than everything before it
        return [
            np.asarray((records["store_timestamp"] < latest)
                       | (numbered(records) & (records["queue_offset"] < reached[records["queue"]])
                          & (records["store_timestamp"] <= max(times))))
            for records in stretch
        ]


def _rows_of(part: Rows | Split) -> Rows:
    return part.records if isinstance(part, Split) else part


def _resume(stretch: list[Rows | Split], stale: dict[int, Rows]) -> None:
    """Clear `stale` (bool arrays of some parts of the stretch) after the first three consecutive live rows."""
    live = 0
    for at, part in enumerate(stretch):
        mask = stale.get(at)
        if mask is None:
            live += part.size
        elif live < _RESUMED:
            before = np.concatenate([np.zeros(live, dtype=bool), mask])
            runs = np.convolve(~before, np.ones(_RESUMED, dtype=np.int64), "valid") == _RESUMED
            if runs.any():
                mask[max(0, int(runs.argmax()) - live) :], live = False, _RESUMED
            else:
                live = int(np.argmax(before[::-1])) if before.any() else before.size
        else:
            mask[:] = False


def _is_broken(scans: list[FileScan]) -> bool:
    """Whether a record follows a break: a gap, or a file without an end mark."""
    last = max((split.last for scan in scans for split in scan.splits if split.size), default=-1)
    broken = [scan for scan in scans if scan.gaps or scan.blank is None]
    return any((scan.gaps[0].start if scan.gaps else scan.file_end) <= last for scan in broken)


def _runs(scan: FileScan, breaks: list[int]) -> Iterator[tuple[int, Rows | Split]]:
    """Yield each split, cut where a gap separates its rows, with the number of the file's gaps before it."""
    for split in scan.splits:
        if not split.is_here and bisect_left(breaks, split.first) == bisect_left(breaks, split.last):
            yield bisect_left(breaks, split.first), split
            continue
        offsets = split.records["phy_offset"]
        cuts = sorted({0, *np.searchsorted(offsets, breaks).tolist(), len(offsets)})
        for start, stop in pairwise(cuts):
            yield bisect_left(breaks, int(offsets[start])), split.records[start:stop]


def mark_superseded(scans: list[FileScan], queues: Rows) -> int:
    """Set BIT_SUPERSEDED on records whose queue offset a later record of their queue took; return their number.

    `queues`: their QUEUE_TALLY, with those whose offsets fall back somewhere in the log. A record that leaves its
    queue's order while its neighbours go on is not a new generation: its own queue offset is wrong, and it gets
    BIT_MISNUMBERED.
    """
    wrong: list[Rows] = []
    older: list[Rows] = []
    fallen = np.flatnonzero(queues["fallen"]).tolist()
    for places, offsets, times, sizes in _sequences(scans, fallen, queues["positions"]):
        lap = _earlier_lap(offsets, times)
        lap[_copies(scans, places, np.stack([offsets, times, sizes]))] = True
        older.append(places[lap])
        places, offsets, times = places[~lap], offsets[~lap], times[~lap]
        misnumbered = misnumbered_among(offsets, times)
        wrong.append(places[misnumbered])
        places, offsets = places[~misnumbered], offsets[~misnumbered]
        older.append(places[_reassigned(offsets)])
    mark(scans, wrong, BIT_MISNUMBERED)
    return mark(scans, older, BIT_SUPERSEDED)


def _reassigned(offsets: Rows) -> Rows:
    """Which records of a queue, in log order, have an offset that it reached again after it fell back (bool array)."""
    falls = np.flatnonzero(np.diff(offsets) <= 0) + 1
    # of all restarts after a record, the one from the lowest offset supersedes the most
    lowest = np.append(np.minimum.accumulate(offsets[falls][::-1])[::-1], np.iinfo(np.int64).max)
    return np.asarray(lowest[np.searchsorted(falls, np.arange(offsets.size), side="right")] <= offsets)


def _earlier_lap(offsets: Rows, times: Rows) -> Rows:
    """Which records of a queue, in log order, remain from an earlier generation (bool array).

    They have offsets that their queue had passed, and were stored earlier: old bytes that line up with the log's end.
    The records they would displace were stored later and are the newer generation. A misnumbered one shows neither.
    """
    lap = np.zeros(offsets.size, dtype=bool)
    in_order = np.flatnonzero(~misnumbered_among(offsets, times))
    if in_order.size > 1:
        highest, latest = (np.maximum.accumulate(each[in_order]) for each in (offsets, times))
        before = np.searchsorted(in_order, np.arange(offsets.size)) - 1
        lap = (before >= 0) & (offsets <= highest[before]) & (times < latest[before])
    return lap


def _copies(scans: list[FileScan], places: Rows, facts: Rows) -> list[int]:
    """Return which records of a queue, in log order, repeat an earlier one, byte for byte except for their place.

    `facts`: their queue offsets, store times and sizes. Equal facts alone prove nothing: many messages are stored in
    one millisecond, and a queue offset may be damaged.
    """
    _, kind, count = np.unique(facts, axis=1, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    first: dict[int, bytes] = {}
    found = []
    with LogReader(MappedFileQueue((), scans[0].file_size, [scan.mapped_file for scan in scans])) as reader:
        for at in np.flatnonzero(count[kind] > 1).tolist():
            try:
                content = without_own_offset(reader.read(int(places[at]), int(facts[2, at])))
            except OSError:
                continue
            if content and first.get(int(kind[at])) == content:
                found.append(at)
            first.setdefault(int(kind[at]), content)
    return found


def _sequences(scans: list[FileScan], queues: list[int], counts: Rows) -> Iterator[tuple[Rows, Rows, Rows, Rows]]:
    """Yield phy offsets, queue offsets, store times and sizes (int64) of the counted rows of each of these queues, in
    log order. `counts`: of the rows of every queue."""
    splits = [split for scan in scans for split in scan.splits]
    for some in batches(queues, counts, _AT_ONCE):
        chosen = np.zeros(counts.size, dtype=bool)
        chosen[some] = True
        asked = [(split, split.numbering(counts.size)) for split in splits if not split.lacks(chosen)]
        parts = [np.empty(0, dtype=RECORD)]
        for (_, numbers), own in zip(asked, ask([
            (split, partial(_of_queues, chosen[numbers])) for split, numbers in asked
        ]), strict=True):
            own["queue"] = numbers[own["queue"]]
            parts.append(own)
        rows = joined(parts)
        rows = rows[np.argsort(rows["queue"], kind="stable")]
        for start, stop in pairwise(np.searchsorted(rows["queue"], [*some, some[-1] + 1]).tolist()):
            own = rows[start:stop]
            yield tuple(own[name].astype(np.int64) for name in _PLACED)


def _of_queues(chosen: Rows, split: Split) -> Rows:
    """The counted rows of a split in the `chosen` queues (bool array)."""
    records = split.records
    own = records[np.append(chosen, False)[records["queue"]]]
    return own[counted(own)]


def batches(queues: Iterable[int], counts: Rows, most: int) -> Iterator[list[int]]:
    """Group queues, in order, into batches of at most `most` rows, or one queue; `counts` has the rows of each."""
    batch: list[int] = []
    total = 0
    for queue in queues:
        if batch and total + int(counts[queue]) > most:
            yield batch
            batch, total = [], 0
        batch.append(queue)
        total += int(counts[queue])
    if batch:
        yield batch
