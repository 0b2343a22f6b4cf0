"""Changes of the commitlog by recover: end marks, restored fields, bridges, the dirty tail.

Derived files are judged against the log as an analysis would see it after the plan: what a plan rebuilds is what the
changed log needs, and an ordinary verify afterwards proves it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import structs

from formats.basics import offset_to_name
from formats.record import Record, encode, encode_blank
from formats.record.rows import BIT_PROP_CRC, BIT_STALE, BIT_SUPERSEDED
from recover.change.content import LazyContent, padded
from recover.change.model import InPlace, Install, Retire, Step, WriteRange, ZeroRange, changed_file, zeroes
from recover.derived.expected import QueueKey
from recover.findings.code import Refusal, UsageRefusal
from recover.findings.model import Phrase
from recover.log.judge import LogReader
from recover.log.scan import Damage, LogView, dead_ranges
from recover.reading.accepting import Becomes, Cut, Dropped, Replaced
from recover.reading.candidates import on_disk
from recover.reading.edits import Edit, by_record
from recover.reading.lost import LostPosition, Neighbour, Surroundings
from recover.reading.policy import POLICIES, UNASKED, Explanation
from recover.reading.reading import Reading
from recover.reading.restore import content_of, copies_beside, place_of, restoring_edits
from recover.repair.bridge import Bridge, BridgeRange, range_between
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.mapped_files import MappedFile
from recover.store.source import origin_of

Lost = Literal["repeat", "visible", "gap"]
_MOST_FILES = 10_000


class LogChanges:
    """Steps on commitlog files, and the log that they leave. `bridged` lists each range for reports.

    Files in `dropped` (paths) are removed, all others have full length; from `cut_from` on everything is zero.
    `edited`: starts of messages that are edited although their checksums are right.
    `cuts_only`: everything before `cut_from` stays as it is, damage included. `bridged_queues`: queues with a position
    in a bridge. `without_markers`: bridges get only the markers without which superseded records would be live again.
    `placed`: where displaced records come from, for reports.
    """

    def __init__(
        self, analysis: Reading, cut_from: int, *, cuts_only: bool = False, without_markers: bool = False,
        old_end: int | None = None,
    ) -> None:
        self.analysis, self.cut_from, self.cuts_only, self.old_end = analysis, cut_from, cuts_only, old_end
        self._taken = set(_places_of_older(analysis.log)) if without_markers else None
        self.steps: list[Step] = []
        self.replaced: list[Replaced] = []
        self.bridged: list[dict[str, Any]] = []
        self.dropped: list[str] = []
        self.edited: set[int] = set()
        self.bridged_queues: set[QueueKey] = set()
        self.placed: list[dict[str, Any]] = []

    def after(self) -> Reading:
        """Return the reading of the log that the steps leave, with nothing compared with it yet."""
        found: list[Becomes] = [*self.replaced, *map(Dropped, self.dropped), Cut(self.cut_from)]
        return self.analysis.accepting([Explanation("plan", each) for each in found])

    def _name(self, mapped_file: MappedFile) -> str:
        """The path of a file as plans write it."""
        return self.analysis.store.relative(mapped_file.path)

    def drop(self, mapped_file: MappedFile) -> None:
        """Remove a file."""
        self.steps.append(Retire(self._name(mapped_file)))
        self.dropped.append(str(mapped_file.path))

    def zero(self, mapped_file: MappedFile, start: int) -> None:
        """Zero a file from `start` on, where it is not zero already."""
        self.steps += zeroes(self._name(mapped_file), mapped_file.path, start)

    def write_end_mark(self, damage: Damage, mapped_file: MappedFile) -> None:
        start, stop = damage.start, damage.stop
        position = start - mapped_file.file_from_offset
        self.steps.append(WriteRange(self._name(mapped_file), position, encode_blank(stop - start)))
        self.replaced.append(Replaced(mapped_file, start, stop, (), blank=start))
        self.bridged.append({"start": start, "stop": stop, "kind": "end-mark", "markers": 0, "fillers": 0})

    def write_edits(self, start: int, stop: int, edits: list[Edit]) -> None:
        """Write the edited records of [start, stop), which holds nothing else."""
        mapped_file = self.analysis.log.queue.find(start)
        assert mapped_file is not None
        records = []
        for at, own in by_record(edits).items():
            record = own[-1].record
            first = min(edit.position for edit in own)
            last = max(edit.position + len(edit.content) for edit in own)
            begin = at - mapped_file.file_from_offset + first
            self.steps.append(WriteRange(self._name(mapped_file), begin, encode(record)[first:last]))
            self.bridged += map(_edited, own)
            records.append(record)
        self.edited |= {edit.start for edit in edits if not POLICIES[edit.kind].of_damage}
        self.replaced.append(Replaced(mapped_file, start, stop, tuple(records)))

    def write_copies(self, mapped_file: MappedFile, records: list[Record]) -> None:
        """Write adjacent records that another file of this name holds."""
        start, content = records[0].phy_offset, b"".join(map(encode, records))
        self.steps.append(WriteRange(self._name(mapped_file), start - mapped_file.file_from_offset, content))
        self.replaced.append(Replaced(mapped_file, start, start + len(content), tuple(records)))
        self.bridged += [{
            "start": record.phy_offset, "stop": record.phy_offset + record.total_size, "kind": "copied", "markers": 0,
            "fillers": 0, "topic": record.topic_name, "queue": record.queue_id, "queue_offset": record.queue_offset,
        } for record in records]

    def _marked(self, positions: list[LostPosition]) -> list[LostPosition]:
        """The positions that get a marker."""
        taken = self._taken
        return positions if taken is None else [position for position in positions if position.place in taken]

    def place_bridge(self, where: BridgeRange, positions: list[LostPosition]) -> None:
        """Bridge a range of a file."""
        mapped_file = self.analysis.log.queue.find(where.start)
        assert mapped_file is not None
        bridge = Bridge(where, self._marked(positions))
        file, base = self._name(mapped_file), mapped_file.file_from_offset
        self.steps.append(WriteRange(file, where.start - base, bridge.content))
        end = where.start + bridge.content.size
        if end < where.stop and not where.to_file_end:
            raise AssertionError("a bridge between records must fill its range")
        if end < where.stop:
            # after the blank nothing counts, but old records there must not be found again
            self.steps.append(ZeroRange(file, end - base, where.stop - base))
        self._note(mapped_file, where, bridge, positions)

    def place_in_new_files(self, where: BridgeRange, positions: list[LostPosition]) -> None:
        """Recreate missing files: markers for their messages, filler, and an end mark."""
        size = self.analysis.log.queue.file_size
        before = next(scan.mapped_file for scan in reversed(self.analysis.log.files) if scan.file_end <= where.start)
        starts = range(where.start, where.stop, size)
        if len(starts) > _MOST_FILES:
            raise Refusal(Phrase("{n} log files are missing from {start} to {stop}", n=len(starts), start=where.start,
                                 stop=where.stop), "Check the names of the log files: one of them may be wrong.",
                          start=where.start, stop=where.stop)
        for start in starts:
            own = [position for position in positions if start <= max(where.start, position.start) < start + size]
            file = structs.replace(where, start=start, stop=start + size, to_file_end=True)
            bridge = Bridge(file, self._marked(own))
            made = MappedFile(on_disk(before.path).with_name(offset_to_name(start)), start, size)
            content = LazyContent(size, partial(padded, bridge.content, size), allocated=bridge.content.size)
            self.steps.append(Install(self._name(made), content))
            self._note(made, file, bridge, own)

    def _note(
        self, mapped_file: MappedFile, where: BridgeRange, bridge: Bridge, positions: list[LostPosition]
    ) -> None:
        """Record the new content of a bridged range, and its entry in the reports."""
        self.replaced.append(Replaced(mapped_file, where.start, where.stop, bridge.records, bridge.blank))
        self.bridged_queues |= {position.key for position in positions}
        lost = [{"topic": p.key.topic, "queue": p.key.queue_id, "queue_offset": p.queue_offset,
                 "phy_offset": p.phy_offset} for p in positions[:1000]]
        self.bridged.append({
            "start": where.start, "stop": where.stop, "kind": "bridge", "markers": len(bridge.markers),
            "fillers": len(bridge.filler), "lost": lost, "lost_count": len(positions),
        })

    def place_displaced(self) -> None:
        """Write displaced records to their place; what is written into them or after them besides is left to its own
        step."""
        others: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for step in self.steps:
            if isinstance(step, InPlace):
                others[step.file].append((step.start, step.stop))
        for spans in others.values():
            spans.sort()
        for run in self.analysis.placed:
            name, base = self._name(run.mapped_file), run.mapped_file.file_from_offset
            at, end, spans = run.start - base, run.stop - base, others[name]
            first = bisect_right(spans, at, key=itemgetter(1))
            for start, stop in [*spans[first : bisect_left(spans, (end, end))], (end, end)]:
                if at < start:
                    self.steps.append(run.step(name, at + base, start + base))
                at = stop
            source, position = origin_of(run.source, run.position)
            self.placed.append({
                "start": run.start, "stop": run.stop, "source": self.analysis.store.relative(source),
                "position": position, "records": run.records,
            })

    def zero_dirty_end(self) -> None:
        """Zero all nonzero bytes after the live log: stale records, end marks and what follows them."""
        for scan in self.analysis.log.files:
            base = scan.mapped_file.file_from_offset
            start = max(base, self.cut_from)
            old = self.old_end is not None and base <= self.old_end < scan.file_end
            if old or any(dead.last_data > max(dead.start, start) for dead in dead_ranges(scan)):
                self.zero(scan.mapped_file, start - base)

    def mend_files(self) -> None:
        """Repair lengths and names, and remove everything in the folders that is not a log file."""
        queue = self.analysis.log.queue
        self._drop_empty_end()
        for mapped_file in queue.wrong_lengths():
            if str(mapped_file.path) not in self.dropped:
                self._mend_length(mapped_file)
        for made in (file for file in queue.files if not on_disk(file.path).exists()):
            self._write_anew(self._name(made), self._name(made), made.path)
        self.steps += [Retire(self.analysis.store.relative(odd.path)) for odd in queue.odd if odd.is_file]
        self.steps += [Retire(self._name(twin)) for twin in queue.duplicates]
        self._rename_files()

    def _drop_empty_end(self) -> None:
        """Remove empty files after missing ones at the end of the log: if they stayed, the log would lack the missing
        ones for ever."""
        missing = [stop for start, stop in self.analysis.log.queue.missing_ranges() if start >= self.cut_from]
        for scan in self.analysis.log.files if missing else ():
            if scan.mapped_file.file_from_offset >= min(missing) and not scan.written:
                self.drop(scan.mapped_file)

    def _mend_length(self, mapped_file: MappedFile) -> None:
        """Give a file the length of log files; an empty last one goes."""
        queue, name = self.analysis.log.queue, self._name(mapped_file)
        if mapped_file.length == 0 and mapped_file == queue.files[-1]:
            self.drop(mapped_file)
        elif mapped_file.length > queue.file_size:
            self._write_anew(name, name, mapped_file.path)
        else:
            reached = max([mapped_file.length, *(step.stop for step in self._within(name))])
            if reached < queue.file_size:
                self.steps.append(ZeroRange(name, reached, queue.file_size))

    def _rename_files(self) -> None:
        """Give misnamed files the names that their records imply; two files may have swapped names."""
        store, misnamed = self.analysis.store, self.analysis.misnamed
        targets = [store.relative(file.path.with_name(offset_to_name(right))) for file, right in misnamed]
        written = {step.file for step in self.steps if not isinstance(step, InPlace)}
        for (mapped_file, right), target in zip(misnamed, targets, strict=True):
            name = self._name(mapped_file)
            if name in written:
                raise Refusal(Phrase("{name} has a wrong name and a wrong length", name=name),
                              Phrase("Rename it to {right} in a copy of the store, then run recover on that.",
                                     right=offset_to_name(right)), file=name)
            self._write_anew(name, target, mapped_file.path)
            if name not in targets:
                self.steps.append(Retire(name))

    def _within(self, name: str) -> list[InPlace]:
        return [step for step in self.steps if isinstance(step, InPlace) and step.file == name]

    def _write_anew(self, name: str, target: str, path: Path) -> None:
        """Replace the in-place changes of a file by one new file."""
        within = self._within(name)
        others = [step for step in self.steps if not (isinstance(step, InPlace) and step.file == name)]
        self.steps = [*others, Install(target, changed_file(path, self.analysis.store.mapped_file_size, within))]


def keep_everything(
    analysis: Reading, *, lost: Lost = "repeat", bridge: bool = True, mend_bits: bool = False,
    edits: Iterable[Edit] = (), old_end: int | None = None,
) -> LogChanges:
    """Return the changes after which every broker passes over the damage; no intact record is touched except by
    `edits`.

    Edits that their policy does not allow unasked are made only with `mend_bits`; so are bit flips that explain a
    damage. `old_end`: where old records end the log, if only a plan shows it.

    `Refusal` (8) for damage before intact messages if `bridge` is False, and where no bridge fits.
    """
    log, edits = analysis.log, list(edits)
    old_end = analysis.old_end if old_end is None else old_end
    end = end_of_live_log(log) if old_end is None else old_end
    copies = [[copy.record for copy in own] for own in copies_beside(log, analysis.losses)]
    # what another file has after the end of the log continues it
    ends = [record.phy_offset + record.total_size for records in copies for record in records[-1:]]
    changes = LogChanges(analysis, max([end, *ends]), without_markers=lost == "gap", old_end=old_end)
    with LogReader(log.queue) as reader:
        filling = _Filling(changes, reader, copies, bridge=bridge, mend_bits=mend_bits)
        for number, damage in enumerate(log.damaged):
            filling.fill(number, damage)
    done = (edit for edit in edits if mend_bits or POLICIES[edit.kind].done == UNASKED)
    for start, own in by_record(done).items():
        changes.write_edits(start, own[0].stop, own)
    if old_end is None and log.superseded:
        # damage hid that old records end the log: drop them too, as a second run would
        old = changes.after().old_end
        if old is not None:
            return keep_everything(analysis, lost=lost, bridge=bridge, mend_bits=mend_bits, edits=edits, old_end=old)
    changes.zero_dirty_end()
    changes.place_displaced()
    changes.mend_files()
    return changes


class _Filling:
    """What takes the place of each damaged range: its end mark, the records as they were, or a bridge around copies."""

    def __init__(
        self, changes: LogChanges, reader: LogReader, copies: list[list[Record]], *, bridge: bool, mend_bits: bool
    ) -> None:
        self._changes, self._reader, self._copies, self._bridge = changes, reader, copies, bridge
        self._mend_bits, self._analysis = mend_bits, changes.analysis
        self._surroundings = Surroundings(changes.analysis.log)

    def fill(self, number: int, damage: Damage) -> None:
        """Add what fills one damaged range up to where the log is cut."""
        # the last message of the log stays if it can be restored; otherwise it belongs to the dirty tail
        is_last = damage.start == self._changes.cut_from
        if damage.start > self._changes.cut_from or (damage.mapped_file is None and (is_last or not self._bridge)):
            return
        if not is_last and damage.mapped_file is not None:
            _check_allowed(damage, self._bridge)
            if number in self._analysis.end_marks:
                self._changes.write_end_mark(damage, damage.mapped_file)
                return
        positions = self._analysis.losses.by_damage[number]
        if not self._restores(damage, positions, is_last=is_last):
            self._build(damage, positions, self._copies[number])

    def _restores(self, damage: Damage, positions: list[LostPosition], *, is_last: bool) -> bool:
        """Restore all records that stood there, if every one of them can be determined; return whether it can."""
        content = content_of(self._reader, damage) if positions or self._mend_bits else None
        restored = [] if content is None else restoring_edits(
            content, damage.start, positions, bits=self._mend_bits)
        if restored:
            self._changes.write_edits(damage.start, damage.stop, restored)
            self._changes.cut_from = damage.stop if is_last else self._changes.cut_from
        return bool(restored)

    def _build(self, damage: Damage, positions: list[LostPosition], copied: list[Record]) -> None:
        """Write the copies that another file has, and bridges between them."""
        size = self._analysis.log.queue.file_size
        starts, places = {record.phy_offset for record in copied}, {place_of(record) for record in copied}
        left = [each for each in positions if each.place not in places and each.start not in starts]
        before, behind = self._surroundings.of(damage)
        for start, stop, records in _pieces(damage, copied):
            if records and damage.mapped_file is not None:
                self._changes.write_copies(damage.mapped_file, records)
                before = Neighbour(records[-1].store_timestamp, BIT_PROP_CRC if records[-1].property_crc else 0)
            elif start < self._changes.cut_from:
                at_end = damage.ended_by == "file-end" and stop == damage.stop and stop % size == 0
                where = range_between(start, stop, (before, behind), to_file_end=at_end)
                # places of unknown position are marked as early as possible
                lost_here = [each for each in left if each.start < stop or stop == damage.stop]
                left = [each for each in left if each not in lost_here]
                in_file = damage.mapped_file is not None
                place_bridge = self._changes.place_bridge if in_file else self._changes.place_in_new_files
                place_bridge(where, lost_here)


def _pieces(damage: Damage, copies: list[Record]) -> Iterator[tuple[int, int, list[Record]]]:
    """Cut a damaged range into runs of adjacent copied records, and ranges between them without any."""
    at, run = damage.start, list[Record]()
    for record in copies:
        if record.phy_offset > at:
            if run:
                yield run[0].phy_offset, at, run
            yield at, record.phy_offset, []
            run = []
        run.append(record)
        at = record.phy_offset + record.total_size
    if run:
        yield run[0].phy_offset, at, run
    if at < damage.stop:
        yield at, damage.stop, []


def end_of_live_log(log: LogView) -> int:
    """The position of the next record after the last live one: the log's end, or the next file after an end mark."""
    for scan in log.files:
        if scan.mapped_file.file_from_offset <= log.log_end <= scan.file_end and scan.blank is not None:
            behind = any(gap.start >= log.log_end for gap in scan.gaps)
            return log.log_end if behind else scan.file_end
    return log.log_end


def _places_of_older(log: LogView) -> Iterator[tuple[QueueKey, int]]:
    """The places before the first live record of a queue, or in one without any, that superseded records name."""
    live = np.where(log.tally.most < 0, np.iinfo(np.int64).max, log.tally.least)
    for split in log.splits(BIT_SUPERSEDED) if log.superseded else ():
        rows = split.records[(split.records["bits"] & BIT_SUPERSEDED) != 0]
        for queue, offset in rows[rows["queue_offset"] < live[rows["queue"]]][["queue", "queue_offset"]].tolist():
            topic, queue_id = log.queues[queue]
            yield QueueKey(topic_text(topic), queue_id), offset


def _check_allowed(damage: Damage, bridge: bool) -> None:
    if not bridge and damage.intact_after:
        raise Refusal(Phrase("the log is damaged from {start} to {stop}, and bridging is switched off: a cut there "
                             "would lose {intact_after:intact message} after it", start=damage.start, stop=damage.stop,
                             intact_after=damage.intact_after),
                      "`mqtool recover {store} --dry-run` bridges it; mqtool truncate with --max-loss cuts the log.",
                      start=damage.start, stop=damage.stop, intact_after=damage.intact_after)


def _edited(edit: Edit) -> dict[str, Any]:
    """The entry of an edit in reports."""
    policy = POLICIES[edit.kind]
    (topic, queue), queue_offset = edit.place
    told = {} if policy.of_damage else {"before": edit.before, "after": edit.after}
    return {
        "start": edit.start, "stop": edit.stop, "kind": "restored" if policy.is_loss else "property",
        "field": edit.field, "markers": 0, "fillers": 0, "topic": topic, "queue": queue, "queue_offset": queue_offset,
        **told,
    }


def cut_log(analysis: Reading, offset: int, *, anywhere: bool = False) -> LogChanges:
    """Zero the log from `offset` to the end of its file and remove later files.

    `UsageRefusal` (16) if `offset` is not a record boundary, naming the nearest two. With `anywhere` (a broker's own
    cut) any offset is accepted, and a file that begins there stays, zeroed, and takes the next records
    (MappedFileQueue.truncateDirtyFiles).
    """
    log = analysis.log
    if not anywhere:
        _check_boundary(log, offset)
    changes = LogChanges(analysis, offset, cuts_only=True)
    for scan in log.files:
        begins = scan.mapped_file.file_from_offset
        if not (begins < offset or begins == log.min_offset or (anywhere and begins == offset)):
            changes.drop(scan.mapped_file)
        elif scan.file_end > offset:
            changes.zero(scan.mapped_file, max(0, offset - begins))
    return changes


def _check_boundary(log: LogView, offset: int) -> None:
    """Boundaries are the starts and ends of live records and of the log, and the starts of files."""
    below, above = log.min_offset, log.log_end
    for edges in _boundaries(log):
        at = int(np.searchsorted(edges, offset))
        if at < edges.size and edges[at] == offset:
            return
        below = max(below, int(edges[at - 1])) if at else below
        above = min(above, int(edges[at])) if at < edges.size else above
    one = below == above
    raise UsageRefusal(Phrase("{offset} is not a record boundary; the nearest is {below}" if one else
                              "{offset} is not a record boundary; the nearest are {below} and {above}",
                              offset=offset, below=below, above=above),
                       Phrase("Use --to {below}." if one else "Use --to {below} or --to {above}.", below=below,
                              above=above), below=below, above=above)


def _boundaries(log: LogView) -> Iterator[Rows]:
    """Ascending offsets: those of files and of the log's ends, then those of the records of each split."""
    yield np.array(sorted({log.min_offset, log.log_end, *(scan.mapped_file.file_from_offset for scan in log.files)}))
    for split in log.splits():
        rows = split.records[(split.records["bits"] & BIT_STALE) == 0]
        yield np.unique(np.concatenate([rows["phy_offset"], rows["phy_offset"] + rows["size"]]))
