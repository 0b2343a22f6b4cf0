"""Messages whose bytes are whole records of something else now: older ones of this log, or those of another log.

The scan finds nothing wrong with such records. What tells are the queue units of the messages that stood there: they
name places that no record of the log holds, in bytes that speak for nothing else. One unit alone may be what is wrong,
so there have to be two claims: an older record repeats the place of one before it in the log; in a file of another log
units of different queues adjoin, more of them than lead to its records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np
from msgspec import Struct, structs

from formats.record.rows import BIT_SUPERSEDED, STALE
from recover.claims import Claim, believed
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.derived.index_check import IndexReport
from recover.evidence.lost import LostPosition, named_by_units, not_held
from recover.log.file_scan import FileScan, Hole
from recover.log.generations import numbered
from recover.log.scan import OTHER_LOG, OVERWRITTEN, LogView, assemble, kept_rows
from recover.store.columns import ColumnStore, Rows, Split
from recover.store.config_files import topic_text
from recover.store.mapped_files import MappedFile

Range = tuple[int, int]
_MORE = 10
"""How many wrong units of the index outweigh one that happens to lead to a record."""


class ForeignFile(Struct, frozen=True):
    """A log file with `messages` records of another log; the log of a survey has it as damage."""

    mapped_file: MappedFile
    extent: Range
    messages: int
    witness: str = "units of several queues"

    def holds(self, phy_offset: int) -> bool:
        """Whether the file has this place of the log."""
        return self.extent[0] <= phy_offset < self.extent[1]


def overwritten(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport
) -> tuple[list[ForeignFile], list[Range]]:
    """Files of another log; and all stretches where other records stand than the messages that units name."""
    unheld = not_held(expectation, named_by_units(queues, "wrong"))
    foreign = _foreign_files(log, expectation, queues, unheld)
    return foreign, [*_older_in_place(log, expectation, unheld), *(file.extent for file in foreign)]


def _older_in_place(log: LogView, expectation: Expectation, named: Collection[LostPosition]) -> list[Range]:
    """Stretches of the log with older records where `named` messages stood that no record holds, ascending."""
    starts = np.array([position.start for position in named], dtype=np.int64)
    found: list[Range] = []
    for split in log.splits() if log.superseded and named else ():
        rows = split.records[(split.records["bits"] & BIT_SUPERSEDED) != 0]
        ends = rows["phy_offset"] + rows["size"]
        cuts = np.flatnonzero(ends[:-1] != rows["phy_offset"][1:]) + 1
        for run in np.split(rows, cuts) if rows.size else ():
            stop = int(run["phy_offset"][-1] + run["size"][-1])
            if _holds_one(starts, int(run["phy_offset"][0]), stop):
                found += (part for part in _repeating(run, expectation) if _holds_one(starts, *part))
    return found


def _holds_one(starts: Rows, start: int, stop: int) -> bool:
    return bool(np.searchsorted(starts, start) < np.searchsorted(starts, stop))


def _repeating(rows: Rows, expectation: Expectation) -> Iterator[Range]:
    """The stretches of these rows of records whose own places records before them in the log hold."""
    repeats = np.zeros(rows.size, dtype=bool)
    wanted = {expectation.keys[number] for number in np.unique(rows["queue"]).tolist()}
    for key, held in expectation.grouped(wanted):
        for at in np.flatnonzero(rows["queue"] == expectation.keys.index(key)).tolist():
            place = int(np.searchsorted(held["queue_offset"], rows["queue_offset"][at]))
            same = place < held.size and held["queue_offset"][place] == rows["queue_offset"][at]
            repeats[at] = same and held["phy_offset"][place] < rows["phy_offset"][at]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], repeats, [False]]).astype(np.int8)))
    for first, stop in edges.reshape(-1, 2).tolist():
        yield int(rows["phy_offset"][first]), int(rows["phy_offset"][stop - 1] + rows["size"][stop - 1])


def without(log: LogView, stretches: Collection[Range], *, memory: int) -> LogView:
    """The log with these stretches of records as damage. Its rows are copies, `memory` bytes of them in memory."""
    columns = ColumnStore(memory)
    scans = []
    # without these records an end mark may be believed no more
    for scan in (scan.unweighed or scan for scan in log.files):
        own = [part for part in stretches if scan.mapped_file.file_from_offset <= part[0] < scan.file_end]
        whole = (scan.mapped_file.file_from_offset, scan.file_end) in own
        copy = scan.copied([kept_rows(split, _inside(split, own), columns) for split in scan.splits])
        copy.queues = log.queues
        if whole:
            copy.blank, copy.blank_size, copy.end, copy.doubted = None, 0, scan.mapped_file.file_from_offset, []
        why = (OTHER_LOG, "file-end") if whole else (OVERWRITTEN, "record")
        holes = [Hole(start, stop, *why, True, stop, {"size": stop - start}) for start, stop in own]
        copy.holes = sorted([*([] if whole else scan.holes), *holes], key=lambda hole: hole.start)
        taken = [Split(split.records[_inside(split, own)], split.hashes[:0]) for split in scan.splits if own]
        copy.set_aside = [*scan.set_aside, *taken]
        scans.append(copy)
    view = assemble(log.queue, scans)
    return structs.replace(view, written=log.written, has_keys=log.has_keys)


def _inside(split: Split, stretches: Collection[Range]) -> Rows:
    """Which rows begin in these stretches (bool array)."""
    inside = np.zeros(split.records.size, dtype=bool)
    for start, stop in stretches:
        inside |= (split.records["phy_offset"] >= start) & (split.records["phy_offset"] < stop)
    return inside


def _foreign_files(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport, unheld: Collection[LostPosition]
) -> list[ForeignFile]:
    """Log files of another log: units of several queues name other messages in them, one after another.

    More of these than lead to its records, and the records continue fewer queues of the files beside them than they
    break. Where no queue tells that, the messages named must be in no other file. If all files are contradicted, the
    queues are another log's.
    """
    with_records = [scan for scan in log.files if scan.record_count]
    named = sorted(named_by_units(queues, "wrong", "beyond", "lost"), key=lambda each: (each.start, each.key))
    old = _old_records(log) if named else set()
    led_to_old = [position.start for position in named if position in old]
    taken = set(led_to_old)
    named = [position for position in named if position.start not in taken]
    if not with_records or not _adjoining(named):
        return []
    starts = [position.start for position in named]
    led_to = _led_to(expectation, queues, with_records, led_to_old)
    nowhere = {(position.key, position.queue_offset) for position in unheld}
    found = []
    for scan, (unbroken, broken) in zip(with_records, _numbering(with_records, len(log.queues)), strict=True):
        base = scan.mapped_file.file_from_offset
        # only what names bytes of the file's records contradicts them: a hole may have held anything
        inside = _under_records(scan, named[bisect_left(starts, base) : bisect_left(starts, scan.file_end)])
        if not broken:
            inside = [position for position in inside if (position.key, position.queue_offset) in nowhere]
        claims = [
            Claim("file", "own"), Claim("units", "own", led_to[base]), Claim("units", "another", _adjoining(inside)),
        ]
        if (broken > unbroken or not unbroken) and believed(claims, "own") == "another":
            found.append(ForeignFile(scan.mapped_file, (base, scan.file_end), scan.record_count))
    return found if len(with_records) == 1 or len(found) < len(with_records) else []


def foreign_by_index(log: LogView, index: IndexReport) -> list[ForeignFile]:
    """Log files of another log by the index, where no queue is left to tell: all its units in such a file name others.

    The records continue fewer queues of the files beside them than they break, too: an index file alone may be wrong.
    """
    with_records = [scan for scan in log.files if scan.record_count]
    numbering = _numbering(with_records, len(log.queues)) if index.total("wrong") and len(with_records) > 1 else ()
    found = []
    for scan, (unbroken, broken) in zip(with_records, numbering, strict=True) if numbering else ():
        base = scan.mapped_file.file_from_offset
        counts = [verdict.by_log_file.get(base, (0, 0)) for verdict in index.verdicts]
        right, wrong = (sum(column) for column in zip(*counts, strict=True))
        sound = any(verdict.first_right is not None and verdict.last_right is not None
                    and verdict.first_right[1] < scan.file_end and verdict.last_right >= base
                    for verdict in index.verdicts if not verdict.by_log_file)
        if wrong > max(1, right * _MORE) and not sound and broken > unbroken:
            found.append(ForeignFile(scan.mapped_file, (base, scan.file_end), scan.record_count, "units of the index"))
    return found if len(found) < len(with_records) else []


def _under_records(scan: FileScan, positions: list[LostPosition]) -> list[LostPosition]:
    """Those that begin where a record of the file stands."""
    starts = np.concatenate([split.records["phy_offset"] for split in scan.splits])
    ends = starts + np.concatenate([split.records["size"] for split in scan.splits])
    return [
        position for position in positions
        if (at := int(np.searchsorted(starts, position.start, "right")) - 1) >= 0 and position.start < ends[at]
    ]


def _adjoining(positions: list[LostPosition]) -> int:
    """How many of these messages, ascending, begin where one of another queue ends."""
    return sum(one.stop == other.start and one.key != other.key for one, other in pairwise(positions))


def _numbering(scans: list[FileScan], queues: int) -> Iterator[tuple[int, int]]:
    """For each file, how many queues go on across its beginning and end without a break, and how many do not."""
    nothing = np.full(queues, -1, dtype=np.int64)
    edges = [_edges(scan, nothing) for scan in scans]
    before, behind = [nothing], [nothing]
    for _, last in edges[:-1]:
        before.append(np.where(last >= 0, last, before[-1]))
    for first, _ in reversed(edges[1:]):
        behind.append(np.where(first >= 0, first, behind[-1]))
    for (first, last), earlier, later in zip(edges, before, reversed(behind), strict=True):
        steps = [
            (one[known] + 1 == other[known]) for one, other in ((earlier, first), (last, later))
            for known in [(one >= 0) & (other >= 0)]
        ]
        unbroken = np.concatenate(steps)
        yield int(unbroken.sum()), int((~unbroken).sum())


def _edges(scan: FileScan, nothing: Rows) -> tuple[Rows, Rows]:
    """The first and the last queue offset that records of a file have in each queue, -1 for none."""
    first, last = nothing.copy(), nothing.copy()
    for split in scan.splits:
        rows = split.records[numbered(split.records)]
        last[rows["queue"]] = rows["queue_offset"]
    for split in reversed(scan.splits):
        rows = split.records[numbered(split.records)][::-1]
        first[rows["queue"]] = rows["queue_offset"]
    return first, last


def _old_records(log: LogView) -> set[LostPosition]:
    """What units of the records that count as old would say: a newer file may be wrong."""
    keys = [QueueKey(topic_text(topic), queue_id) for topic, queue_id in log.queues]
    return {
        LostPosition(keys[row["queue"]], int(row["queue_offset"]), int(row["phy_offset"]), int(row["size"]))
        for split in (log.splits() if log.ghosts or log.superseded else ())
        for row in split.records[(split.records["bits"] & STALE) != 0]
    }


def _led_to(
    expectation: Expectation, queues: ConsumeQueueReport, scans: list[FileScan], more: Collection[int]
) -> dict[int, int]:
    """How many records of each file, by its first offset, units lead to; `more` are the places of some of them."""
    bases = np.array([scan.mapped_file.file_from_offset for scan in scans])
    total = np.bincount(np.searchsorted(bases, [*more], "right") - 1, minlength=bases.size)
    for key, rows in expectation.grouped():
        verdict = queues.verdicts.get(key)
        if verdict is None:
            continue
        wrong = [unit[0] for unit in (*verdict.wrong, *verdict.beyond, *verdict.lost)]
        led = ~np.isin(rows["queue_offset"], [*verdict.missing_offsets.tolist(), *wrong])
        files = np.searchsorted(bases, rows["phy_offset"][led], "right") - 1
        total += np.bincount(files, minlength=bases.size)
    return dict(zip(bases.tolist(), total.tolist(), strict=True))
