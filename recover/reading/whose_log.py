"""Doubts about whose log it is: messages overwritten by whole records of something else.

These are older records of this log, or those of another log.

The scan finds nothing wrong with such records. The evidence is the queue units of the messages that were there: they
point at places where the log holds no record for them, and nothing else supports the bytes there. A single unit may
itself be wrong, so there must be a second claim: the older record repeats the place of one before it in the log; or, in
a file of another log, units of different queues adjoin and outnumber those that lead to its records. If no unit leads
to any record of a file, the index decides, if it names other messages all over the file and is right about others; or
the other files do, if they are in order of time without this one only, or queues skip more offsets to it than there is
room for, and its queues do not continue in them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct

from formats.record import BLANK_SIZE, MIN_RECORD_SIZE
from formats.record.rows import BIT_STALE, BIT_SUPERSEDED, NO_MESSAGE, NOT_LIVE
from recover.derived.expected import RIGHT, ConsumeQueueReport, Expectation, QueueKey
from recover.derived.index_check import IndexFileVerdict, IndexReport
from recover.findings.code import N_
from recover.log.file_scan import FileScan, Gap
from recover.log.judge import Claim
from recover.log.scan import OTHER_LOG, OVERWRITTEN, LogView, tally
from recover.reading.accepting import GoesOn, Struck
from recover.reading.lost import INDEXED, LostPosition, named_by_units, not_held
from recover.reading.policy import INDEX_OUTWEIGHED, Explanation
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX, topic_text
from recover.store.mapped_files import MappedFile

if TYPE_CHECKING:
    from recover.reading.reading import Reading

Range = tuple[int, int]


class ForeignFile(Struct, frozen=True):
    """A log file with `messages` of another log, treated as damage in an analysis.

    Or one whose messages have no support: no queue unit, no index entry, and not all queues continue in the files next
    to it. `indexed`: number of other messages that the index names in it, if the index is, or may be, the witness; the
    index may itself belong to another log.
    """

    mapped_file: MappedFile
    extent: Range
    messages: int
    witness: str
    indexed: int

    def holds(self, phy_offset: int) -> bool:
        """Whether the file holds this physical offset."""
        return self.extent[0] <= phy_offset < self.extent[1]


class Ownership:
    """What units, index and the other files say of whose records are where in one log; each asked when a doubt needs
    it."""

    def __init__(
        self, log: LogView, expectation: Expectation, queues: ConsumeQueueReport, index: Callable[[], IndexReport]
    ) -> None:
        self.log, self.expectation, self.queues, self._index = log, expectation, queues, index

    @cached_property
    def index(self) -> IndexReport:
        return self._index()

    @cached_property
    def unheld(self) -> list[LostPosition]:
        """The messages that wrong units name and no record holds, ascending."""
        return not_held(self.expectation, named_by_units(self.queues, "wrong"))

    @cached_property
    def _named(self) -> tuple[list[LostPosition], list[LostPosition]]:
        """What units without a right record name, ascending: all, and those that lead to old records."""
        named = sorted(named_by_units(self.queues, "wrong", "beyond", "lost"), key=lambda each: (each.start, each.key))
        old = _old_records(self.log) if named else set()
        return named, [position for position in named if position in old]

    @property
    def led_to_old(self) -> list[int]:
        """The starts of old records to which units lead."""
        return [position.start for position in self._named[1]]

    @property
    def ends(self) -> dict[int, int]:
        """The end of each message that units without a right record name, by its start."""
        return {position.start: position.stop for position in self._named[0]}

    @cached_property
    def named(self) -> list[LostPosition]:
        """The messages that units name where the log holds no record for them, not even an old one; ascending."""
        taken = {*self.led_to_old}
        return [position for position in self._named[0] if position.start not in taken]

    @cached_property
    def odd(self) -> int | None:
        return _out_of_time(self._scans)

    @property
    def _scans(self) -> list[FileScan]:
        return [scan for scan in self.log.files if scan.record_count]

    @cached_property
    def files(self) -> list[_File]:
        """All files with records if one may be of another log; else none."""
        told = (self.queues.total(RIGHT) or self.named or self.odd is not None or self.log.tally.gapped.any()
                or self.index.verdicts)
        return _files_in_doubt(self.log, self._scans, self.expectation, self.queues, self.led_to_old,
                               contradicted=bool(_adjoining(self.named))) if told else []

    @cached_property
    def silent(self) -> list[_File]:
        """The files to whose records no unit leads, except those that queues or the index support.

        If all queues continue across the edges of a file, the file is right, whatever the index says.
        """
        return [file for file in self.files if not file.led_to and not (file.unbroken and not file.broken)
                and not any(_covers(verdict, file) for verdict in self.index.verdicts)]

    @cached_property
    def believable(self) -> list[IndexFileVerdict]:
        """The index files that contradict no log file that the queues support: others may be of another log."""
        borne_out = {file.base for file in self.files if file.led_to}
        return [verdict for verdict in self.index.verdicts if not any(
            base in borne_out and wrong > right for base, (right, wrong) in verdict.by_log_file.items())]

    @cached_property
    def alone(self) -> list[ForeignFile]:
        """The files that may belong to another log: nothing supports them, though units support others."""
        if not self.queues.total(RIGHT):
            return []
        found = [(file, *_count_indexed(file, self.believable)) for file in self.silent]
        return [_foreign(file, "", wrong, messages) for file, right, wrong, _ in found
                if not right and (messages := _messages(file.scan, self.expectation))]


# --- The doubts.


def turned_clock(reading: Reading) -> Iterator[Explanation]:
    """Records that are older only by their clock: units fill the gap before them."""
    found = reading.ownership
    for gap in _bridged_by_units(found.log, found.ends, {*found.led_to_old}) if found is not None else ():
        yield Explanation("turned-clock", GoesOn(gap), (
            Claim("record", False), Claim("unit", True), Claim("second unit", True)))


def other_log(reading: Reading) -> Iterator[Explanation]:
    """Log files of another log."""
    found = reading.ownership
    if found is not None:
        yield from _by_units(found)
        yield from _by_others(found)


def older_in_place(reading: Reading) -> Iterator[Explanation]:
    """Older records where units name messages that no record holds."""
    found = reading.ownership
    for start, stop in _older_in_place(found.log, found.expectation, found.unheld) if found is not None else ():
        gap = Gap(start, stop, OVERWRITTEN, "record", True, stop, {"size": stop - start})
        yield Explanation("older-in-place", Struck(gap), (
            Claim("record", False), Claim("unit", True), Claim("earlier record", True)), where=(start, stop))


def _of_other_log(found: Ownership, file: ForeignFile, claims: Iterable[Claim[bool]]) -> Explanation:
    start, stop = file.extent
    facts = {"size": stop - start, **({INDEXED: file.indexed} if file.indexed else {})}
    gap = Gap(start, stop, OTHER_LOG, "file-end", True, stop, facts)
    return Explanation(
        "other-log", Struck(gap, whole=True), (*claims,), where=file.extent, among=len(found.files), about=file)


def _bridged_by_units(log: LogView, named: dict[int, int], led_to_old: Collection[int]) -> Iterator[Gap]:
    """Yield the gaps from whose first byte to whose last units name messages, and the record after them, which is stale
    only by its time: the clock went back.

    `named`: the end of each message that units name by its start; `led_to_old`: starts of old records to which units
    lead. Units of an earlier generation name no message that begins where the log ended later. At the end of a file,
    the next message must have been too long for the bytes left over.
    """
    run: list[Gap] = []
    at = -1
    for scan in log.files if log.stale else ():
        for gap in scan.gaps:
            if gap.start != at:
                run, at = [], gap.start
            run.append(gap)
            while at in named and at < gap.stop:
                at = named[at]
            if at < gap.stop == scan.file_end and named.get(gap.stop, 0) - gap.stop + BLANK_SIZE > gap.stop - at:
                at = gap.stop
            if at == gap.stop and at in led_to_old:
                yield from (each for each in run if not each.bridged_by_units)


def _older_in_place(log: LogView, expectation: Expectation, named: Collection[LostPosition]) -> Iterator[Range]:
    """Yield the ranges of the log with older records in place of `named` messages (ascending) that no record holds.

    An earlier record of the log must hold the place in its queue that such a record names.
    """
    starts = np.array([position.start for position in named], dtype=np.int64)

    def named_in(start: Any, stop: Any) -> Any:
        return np.searchsorted(starts, start) < np.searchsorted(starts, stop)

    for split in log.splits(BIT_SUPERSEDED) if log.superseded and named else ():
        rows = split.records[(split.records["bits"] & BIT_SUPERSEDED) != 0]
        if named_in(rows["phy_offset"], rows["phy_offset"] + rows["size"]).any():
            rows = rows[_repeats(rows, expectation)]
            cuts = np.flatnonzero(rows["phy_offset"][1:] != (rows["phy_offset"] + rows["size"])[:-1]) + 1
            runs = [(int(run["phy_offset"][0]), int(run["phy_offset"][-1] + run["size"][-1]))
                    for run in np.split(rows, cuts) if run.size]
            yield from (run for run in runs if named_in(*run))


def _repeats(rows: Rows, expectation: Expectation) -> Rows:
    """Which of these rows name places in their queues that earlier records of the log hold (bool array)."""
    repeats = np.zeros(rows.size, dtype=bool)
    numbers = {expectation.keys[number]: number for number in np.unique(rows["queue"]).tolist()}
    for key, held in expectation.grouped(set(numbers)):
        own = np.flatnonzero(rows["queue"] == numbers[key])
        holder = held[np.minimum(np.searchsorted(held["queue_offset"], rows["queue_offset"][own]), held.size - 1)]
        repeats[own] = ((holder["queue_offset"] == rows["queue_offset"][own])
                        & (holder["phy_offset"] < rows["phy_offset"][own]))
    return repeats


# --- Files of another log.


class _File(NamedTuple):
    """A log file with records: how many of them units lead to, how many queues continue or break across its edges,
    whether store times go back there, and how many queues skip more offsets to it than there is room for."""

    scan: FileScan
    led_to: int
    unbroken: int
    broken: int
    times_fall: bool
    leaps: int

    @property
    def base(self) -> int:
        return self.scan.mapped_file.file_from_offset


def _files_in_doubt(
    log: LogView, scans: list[FileScan], expectation: Expectation, queues: ConsumeQueueReport, old: Collection[int], *,
    contradicted: bool,
) -> list[_File]:
    """Return all files with records (`scans`) if there may be a file of another log: `contradicted`, or units lead to
    so few records that one file may have none.

    `old`: places of old records to which units lead.
    """
    right = sum(verdict.counts.get(RIGHT, 0) for key, verdict in queues.verdicts.items()
                if not key.topic.startswith(LMQ_PREFIX))
    unled = sum(scan.record_count for scan in scans) - right
    if not contradicted and unled < min((scan.record_count for scan in scans), default=unled + 1):
        return []
    tallies = [tally([scan], len(log.queues)).queues for scan in scans]
    led_to = _referenced(expectation, queues, scans, tallies, old)
    falls = _time_falls(scans)
    starts = [scan.mapped_file.file_from_offset for scan in scans]
    return [
        _File(scan, led_to[starts[at]], *steps, times_fall=any(falls[max(0, at - 1) : at + 1]),
              leaps=_leaps(tallies[at - 1], tallies[at], scan.file_end - starts[at - 1]) if at else 0)
        for at, (scan, steps) in enumerate(zip(scans, _numbering(scans, tallies, log), strict=True))
    ]


def _leaps(before: Rows, own: Rows, room: int) -> int:
    """Return how many queues skip more offsets from one file to the next than `room` bytes can hold."""
    return int(((before["last"] >= 0) & (own["first"] - before["last"] > room // MIN_RECORD_SIZE)).sum())


def _out_of_time(scans: list[FileScan]) -> int | None:
    """Return the place of the only file without which the others are in order of time; None if all are with it."""
    falls = [at for at, fall in enumerate(_time_falls(scans)) if fall]
    odd = [at for at in range(falls[-1], falls[0] + 2) if not any(_time_falls([*scans[:at], *scans[at + 1 :]]))
           ] if falls else []
    return scans[odd[0]].mapped_file.file_from_offset if len(odd) == 1 else None


def _time_falls(scans: list[FileScan]) -> list[bool]:
    """Return for each file but the first whether it begins earlier than the one before it ends."""
    return [one > other for one, other in pairwise(chain(*map(_times, scans)))][1::2]


def _times(scan: FileScan) -> tuple[int, int]:
    """Return the store timestamps (ms) of the first and the last record of a file."""
    splits = [split for split in scan.splits if split.size]
    return splits[0].edge_times()[0], splits[-1].edge_times()[1]


def _by_units(found: Ownership) -> Iterator[Explanation]:
    """Yield log files of another log: adjoining units of several queues name other messages in them.

    They must outnumber the units that lead to the file's records. Records that continue more queues of adjacent files
    than they break are not denied; if no queue breaks, the named messages must be in no other file.
    """
    starts = [position.start for position in found.named]
    nowhere = {position.place for position in found.unheld}
    for file in found.files:
        if file.unbroken and file.broken <= file.unbroken:
            continue
        # only units that name bytes of the file's records contradict these: a gap may have held anything
        stretch = bisect_left(starts, file.base), bisect_left(starts, file.scan.file_end)
        inside = _inside_records(file.scan, found.named[slice(*stretch)])
        if not file.broken:
            inside = [position for position in inside if position.place in nowhere]
        if pairs := _adjoining(inside):
            yield _of_other_log(found, _foreign(file), (
                Claim("file name", False), Claim("unit", False, file.led_to), Claim("adjoining units", True, pairs)))


def _by_others(found: Ownership) -> Iterator[Explanation]:
    """Yield files without a unit that leads to their records which the index or the other files deny.

    The other files do if this one alone is out of order of time, or else is the only one to which queues leap and that
    no queue continues to. If it makes files after it stale, each of these contradicts it.
    """
    stale = sum(any(split.has(BIT_STALE) for split in file.scan.splits) for file in found.files)
    leapt_to = [file.base for file in found.files if file.leaps and not file.unbroken]
    odd = leapt_to[0] if found.odd is None and len(leapt_to) == 1 else found.odd
    for file in found.silent:
        right, wrong, trusted = _count_indexed(file, found.believable)
        contradicts = wrong > max(1, right * INDEX_OUTWEIGHED)
        is_odd = file.base == odd and not right and (file.broken > file.unbroken or not file.unbroken)
        claims = [
            Claim("file name", False), Claim("record", False),
            Claim("numbering", file.unbroken <= file.broken, file.unbroken != file.broken),
            Claim("times", True, file.times_fall), Claim("index", True, contradicts),
            Claim("index right elsewhere", True, contradicts and trusted),
            Claim("files after it", True, stale * is_odd),
            # the first of the queues is in the numbering
            Claim("leaps", True, max(0, file.leaps - 1) * is_odd),
        ]
        if contradicts or is_odd:
            witness = "entries of the index" if contradicts else "the queues of the other files"
            yield _of_other_log(found, _foreign(file, witness, wrong), claims)


def _covers(verdict: IndexFileVerdict, file: _File) -> bool:
    """Whether an index file that is right from end to end reaches into a log file."""
    if verdict.first_right is None or verdict.last_right is None or verdict.by_log_file:
        return False
    return bool(verdict.first_right[1] < file.scan.file_end and verdict.last_right >= file.base)


def _count_indexed(file: _File, verdicts: list[IndexFileVerdict]) -> tuple[int, int, bool]:
    """Return how many messages in a log file the index names rightly and wrongly, and whether most of the wrong ones
    are of index files that are right about another log file."""
    right = wrong = trusted = 0
    for verdict in verdicts:
        own_right, own_wrong = verdict.by_log_file.get(file.base, (0, 0))
        right, wrong = right + own_right, wrong + own_wrong
        if any(others for base, (others, _) in verdict.by_log_file.items() if base != file.base):
            trusted += own_wrong
    return right, wrong, trusted * 2 > wrong


def _messages(scan: FileScan, expectation: Expectation) -> int:
    """Return how many messages of a file queues should lead to."""
    return sum(int((((rows["bits"] & NO_MESSAGE) == 0) & ~expectation.skipped[rows["queue"]]).sum())
               for rows in (split.records for split in scan.splits))


def _foreign(
    file: _File, witness: str = N_("entries of several queues"), indexed: int = 0, messages: int | None = None
) -> ForeignFile:
    count = file.scan.record_count if messages is None else messages
    return ForeignFile(file.scan.mapped_file, (file.base, file.scan.file_end), count, witness, indexed)


def _inside_records(scan: FileScan, positions: list[LostPosition]) -> list[LostPosition]:
    """Return the positions that begin inside a record of the file."""
    splits = [split for split in scan.splits if split.size]
    firsts = [split.first for split in splits]
    found = []
    for position in positions:
        at = bisect_right(firsts, position.start) - 1
        if at >= 0:
            row = splits[at].records[np.searchsorted(splits[at].records["phy_offset"], position.start, "right") - 1]
            found += [position] if position.start < int(row["phy_offset"]) + int(row["size"]) else []
    return found


def _adjoining(positions: list[LostPosition]) -> int:
    """Return how many of these messages, ascending, begin where one of another queue ends."""
    return sum(one.stop == other.start and one.key != other.key for one, other in pairwise(positions))


def _numbering(scans: list[FileScan], tallies: list[Rows], log: LogView) -> Iterator[tuple[int, int]]:
    """Yield for each file how many queues continue across its start and end without a break, and how many do not.

    A queue that skips offsets next to damage may have lost messages there, which is not a break.
    """
    if not scans:
        return
    nothing = np.full(len(log.queues), -1, dtype=np.int64)
    edges = [(each["first"], each["last"]) for each in tallies]
    before, behind = [nothing], [nothing]
    for _, last in edges[:-1]:
        before.append(np.where(last >= 0, last, before[-1]))
    for first, _ in reversed(edges[1:]):
        behind.append(np.where(first >= 0, first, behind[-1]))
    for at, ((first, last), earlier, later) in enumerate(zip(edges, before, reversed(behind), strict=True)):
        steps = np.concatenate([
            (other - one)[(one >= 0) & (other >= 0)] for one, other in ((earlier, first), (last, later))
        ])
        start, stop = scans[max(0, at - 1)].mapped_file.file_from_offset, scans[min(at + 1, len(scans) - 1)].file_end
        damaged = any(damage.start < stop and damage.stop > start for damage in log.damaged)
        yield int((steps == 1).sum()), int((steps < 1).sum() if damaged else (steps != 1).sum())


def _old_records(log: LogView) -> set[LostPosition]:
    """Return what units of the old records would name: a newer file may be the wrong one."""
    keys = [QueueKey(topic_text(topic), queue_id) for topic, queue_id in log.queues]
    return {
        LostPosition(keys[row["queue"]], int(row["queue_offset"]), int(row["phy_offset"]), int(row["size"]))
        for split in (log.splits(NOT_LIVE) if log.stale or log.superseded else ())
        for row in split.records[(split.records["bits"] & NOT_LIVE) != 0]
    }


def _referenced(
    expectation: Expectation, queues: ConsumeQueueReport, scans: list[FileScan], tallies: list[Rows],
    more: Collection[int],
) -> dict[int, int]:
    """Return how many records of each file, by its first offset, units lead to; `more`: places of additional ones."""
    bases = np.array([scan.mapped_file.file_from_offset for scan in scans])
    total = np.bincount(np.searchsorted(bases, [*more], "right") - 1, minlength=bases.size)
    some = {key for key, verdict in queues.verdicts.items() if verdict.missing < verdict.expected}
    # for complete queues without other units, the tallies give the number of records in each file
    whole = np.array([
        key in some and queues.verdicts[key].counts.get(RIGHT) == count and expectation.tally_of(number) is not None
        for number, (key, count) in enumerate(zip(expectation.keys, expectation.counts.tolist(), strict=True))
    ], dtype=bool)
    total += np.array([each["positions"][whole[: each.size]].sum() for each in tallies], dtype=np.int64)
    for key, rows in expectation.grouped(some - {expectation.keys[number] for number in np.flatnonzero(whole)}):
        verdict = queues.verdicts[key]
        wrong = [unit[0] for unit in (*verdict.wrong, *verdict.beyond, *verdict.lost)]
        led = ~np.isin(rows["queue_offset"], [*verdict.missing_offsets.tolist(), *wrong])
        files = np.searchsorted(bases, rows["phy_offset"][led], "right") - 1
        total += np.bincount(files, minlength=bases.size)
    return dict(zip(bases.tolist(), total.tolist(), strict=True))
