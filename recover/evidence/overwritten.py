"""Messages whose bytes are whole records of something else now: older ones of this log, or those of another log.

The scan finds nothing wrong with such records. What tells are the queue units of the messages that stood there: they
name places that no record of the log holds, in bytes that speak for nothing else. One unit alone may be what is wrong,
so there have to be two claims: an older record repeats the place of one before it in the log; in a file of another log
units of different queues adjoin, more of them than lead to its records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

import numpy as np
from msgspec import Struct, structs

from formats.record.rows import BIT_STRAY, BIT_SUPERSEDED
from recover.claims import Claim, believed
from recover.derived.expected import ConsumeQueueReport, Expectation
from recover.evidence.lost import LostPosition
from recover.log.file_scan import FileScan, Hole
from recover.log.scan import OVERWRITTEN, LogView, assemble
from recover.store.columns import ColumnStore, Rows, Split
from recover.store.mapped_files import MappedFile

Range = tuple[int, int]


class ForeignFile(Struct, frozen=True):
    """A log file with records of another log, and the messages that units name in it, ascending by their place."""

    mapped_file: MappedFile
    lost: list[LostPosition]


def unheld(expectation: Expectation, queues: ConsumeQueueReport) -> list[LostPosition]:
    """What units name that lead to no message of theirs, of places that no record of the log holds; by phy_offset."""
    wrong = {key: verdict.wrong for key, verdict in queues.verdicts.items() if verdict.wrong}
    if not wrong:
        return []
    held = {key: rows["queue_offset"].copy() for key, rows in expectation.grouped(set(wrong))}
    found = [
        LostPosition(key, *unit) for key, units in wrong.items()
        for unit, taken in zip(units, np.isin([unit[0] for unit in units], held.get(key, ())), strict=True) if not taken
    ]
    return sorted(found, key=lambda position: (position.start, position.key, position.queue_offset))


def older_in_place(log: LogView, expectation: Expectation, named: Collection[LostPosition]) -> list[Range]:
    """Stretches of the log with older records where `named` messages stood, ascending."""
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
    for scan in log.files:
        own = [part for part in stretches if scan.mapped_file.file_from_offset <= part[0] < scan.file_end]
        copy = FileScan(scan.mapped_file, scan.file_size)
        copy.queues, copy.blank, copy.blank_size, copy.end = log.queues, scan.blank, scan.blank_size, scan.end
        copy.unreadable, copy.over_record = scan.unreadable, scan.over_record
        holes = [Hole(start, stop, OVERWRITTEN, "record", True, stop, {"size": stop - start}) for start, stop in own]
        copy.holes = sorted([*scan.holes, *holes], key=lambda hole: hole.start)
        copy.splits = [_cut(split, own, columns) for split in scan.splits]
        copy.set_aside = [*scan.set_aside, *(_within(split, own) for split in scan.splits if own)]
        scans.append(copy)
    view = assemble(log.queue, scans)
    return structs.replace(view, written=log.written, has_keys=log.has_keys)


def _within(split: Split, stretches: Iterable[Range]) -> Split:
    inside = np.zeros(split.records.size, dtype=bool)
    for start, stop in stretches:
        inside |= (split.records["phy_offset"] >= start) & (split.records["phy_offset"] < stop)
    return Split(split.records[inside], split.hashes[:0])


def _cut(split: Split, stretches: Iterable[Range], columns: ColumnStore) -> Split:
    keep = np.ones(split.records.size, dtype=bool)
    for start, stop in stretches:
        keep &= (split.records["phy_offset"] < start) | (split.records["phy_offset"] >= stop)
    counts = split.records["hashes"].astype(np.int64)
    hashes = split.hashes[np.repeat(keep, counts)] if split.hashes.size else split.hashes
    kept = columns.keep(split.records[keep], hashes)
    kept.records["bits"] &= np.uint16(~(BIT_SUPERSEDED | BIT_STRAY) & 0xFFFF)
    return kept


def foreign_files(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport, named: Collection[LostPosition]
) -> list[ForeignFile]:
    """Log files in which units of several queues name messages, one after another, that are not there.

    `named` are those that the log does not hold elsewhere. Where no unit leads to any file, the queues are another
    log's.
    """
    with_records = [scan for scan in log.files if scan.record_count]
    units = [LostPosition(key, *unit) for key, verdict in queues.verdicts.items() for unit in verdict.wrong]
    led_to: dict[int, int] = {}
    found = []
    for scan in with_records if named else ():
        base, stop = scan.mapped_file.file_from_offset, scan.file_end
        inside = [position for position in named if base <= position.start < stop]
        adjoin = sum(1 for one, other in pairwise(inside) if one.stop == other.start and one.key != other.key)
        if not adjoin:
            continue
        led_to = led_to or _led_to(expectation, queues, with_records)
        claims = [Claim("file", "own"), Claim("units", "own", led_to[base]), Claim("units", "another", adjoin)]
        if believed(claims, "own") == "another":
            lost = [unit for unit in units if base <= unit.start < stop]
            found.append(ForeignFile(scan.mapped_file, sorted(lost, key=lambda unit: unit.start)))
    return found if len(with_records) == 1 or any(led_to.values()) else []


def _led_to(expectation: Expectation, queues: ConsumeQueueReport, scans: list[FileScan]) -> dict[int, int]:
    """How many records of each file, by its first offset, units lead to."""
    bases = np.array([scan.mapped_file.file_from_offset for scan in scans])
    total = np.zeros(bases.size, dtype=np.int64)
    for key, rows in expectation.grouped():
        verdict = queues.verdicts.get(key)
        if verdict is None:
            continue
        missing = verdict.missing_offsets
        lacks = np.arange(missing.start, missing.stop) if isinstance(missing, range) else missing
        wrong = [unit[0] for unit in verdict.wrong]
        unled = np.isin(rows["queue_offset"], lacks) | np.isin(rows["queue_offset"], wrong)
        files = np.searchsorted(bases, rows["phy_offset"][~unled], "right") - 1
        total += np.bincount(files, minlength=bases.size)
    return dict(zip(bases.tolist(), total.tolist(), strict=True))
