"""What recover does to the commitlog itself: end marks, restored fields, bridges, and the dirty end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct, field, structs

from formats.names import offset_to_name
from formats.record import encode, encode_blank
from formats.record.rows import BIT_STALE
from recover.change.content import LazyContent, padded
from recover.change.model import InPlace, Install, Retire, Step, WriteRange, ZeroRange, changed_file, zeroes
from recover.check.survey import Survey
from recover.evidence.edits import POLICIES, UNASKED, Edit, by_record
from recover.evidence.lost import LostPosition, Surroundings
from recover.evidence.restore import content_of, put_back
from recover.findings.model import count
from recover.findings.refusal import Refusal, UsageRefusal
from recover.log.judge import LogReader
from recover.log.scan import Damage, LogView, dead_ranges
from recover.repair.after import Replaced
from recover.repair.bridge import Bridge, BridgeRange, build_bridge, range_between
from recover.store.mapped_files import MappedFile
from recover.store.store import Store

Lost = Literal["repeat", "visible", "gap"]
_MOST_FILES = 10_000


class LogChanges(Struct):
    """Steps on commitlog files, and the log that they leave. `bridged` is what the reports show of each range.

    `edited`: starts of messages that are edited though their checksums are right.
    `cuts_only`: what is before `cut_from` stays as it is, damage included.
    """

    steps: list[Step] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
    bridged: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    cut_from: int = 0
    cuts_only: bool = False
    edited: set[int] = field(default_factory=set)


def keep_everything(
    look: Survey, *, lost: Lost = "repeat", bridge: bool = True, mend_bits: bool = False,
    edits: Iterable[Edit] = (),
) -> LogChanges:
    """The changes after which every broker passes over the damage; no intact record is touched but by `edits`.

    Those of them that nobody does unasked are done with `mend_bits`; so are bits that explain a damage.
    `Refusal` (8) without `bridge` where damage has intact messages after it, and where no bridge fits.
    """
    log = look.log
    changes = LogChanges(cut_from=end_of_live_log(log) if look.old_end is None else look.old_end)
    surroundings = Surroundings(log)
    with LogReader(log.queue) as reader:
        for number, damage in enumerate(log.damaged):
            # the last message of the log stays if it can be restored; else it is a part of the dirty end
            is_last = damage.start == changes.cut_from
            if damage.start > changes.cut_from or (damage.mapped_file is None and (is_last or not bridge)):
                continue
            if not is_last and damage.mapped_file is not None:
                _check_allowed(damage, bridge)
                if number in look.end_marks:
                    _write_end_mark(look.store, changes, damage, damage.mapped_file)
                    continue
            positions = look.losses.by_damage[number]
            restored = _restore(reader, damage, positions, mend_bits)
            if restored:
                _write_edits(look, changes, damage.start, damage.stop, restored)
                changes.cut_from = damage.stop if is_last else changes.cut_from
            elif not is_last:
                where = range_between(
                    damage.start, damage.stop, surroundings.of(damage), to_file_end=damage.ended_by == "file-end")
                lay = _lay_files if damage.mapped_file is None else _lay
                lay(look, changes, where, positions, with_markers=lost != "gap")
    done = (edit for edit in edits if mend_bits or POLICIES[edit.kind].done == UNASKED)
    for start, own in by_record(done).items():
        _write_edits(look, changes, start, own[0].stop, own)
    changes.steps += _dirty_end(look, changes.cut_from)
    _drop_after_missing(look.store, log, changes)
    _mend_files(look.store, log, changes)
    for mapped_file, right in look.misnamed:
        _rename(look.store, changes, mapped_file, right)
    return changes


def end_of_live_log(log: LogView) -> int:
    """Where the next record would go after the last live one: its end, or the next file if an end mark follows it."""
    for scan in log.files:
        if scan.mapped_file.file_from_offset <= log.log_end <= scan.file_end and scan.blank is not None:
            behind = any(gap.start >= log.log_end for gap in scan.gaps)
            return log.log_end if behind else scan.file_end
    return log.log_end


def _check_allowed(damage: Damage, bridge: bool) -> None:
    if not bridge and damage.intact_after:
        raise Refusal(
            f"the log is damaged from {damage.start} to {damage.stop}, and bridging is switched off: a cut there would "
            f"lose {count(damage.intact_after, 'intact message')} after it",
            "`mqtool recover {store} --dry-run` bridges it; mqtool truncate with --max-loss cuts the log.",
            start=damage.start, stop=damage.stop, intact_after=damage.intact_after,
        )


def _restore(
    reader: LogReader, damage: Damage, positions: list[LostPosition], mend_bits: bool
) -> list[Edit]:
    """The edits of all records that stood in a damage, if that can be told of each of them."""
    content = content_of(reader, damage) if positions or mend_bits else None
    return [] if content is None else put_back(content, damage.start, positions, bits=mend_bits)


def _write_end_mark(store: Store, changes: LogChanges, damage: Damage, mapped_file: MappedFile) -> None:
    position = damage.start - mapped_file.file_from_offset
    content = encode_blank(damage.stop - damage.start)
    changes.steps.append(WriteRange(store.relative(mapped_file.path), position, content))
    changes.replaced.append(Replaced(mapped_file, damage.start, damage.stop, (), blank=damage.start))
    changes.bridged.append({"start": damage.start, "stop": damage.stop, "kind": "end-mark", "markers": 0, "fillers": 0})


def _write_edits(look: Survey, changes: LogChanges, start: int, stop: int, edits: list[Edit]) -> None:
    """Write what edits make of the records in [start, stop), which are all that stands there."""
    mapped_file = look.log.queue.find(start)
    assert mapped_file is not None
    records = []
    for at, own in by_record(edits).items():
        record = own[-1].record
        first = min(edit.position for edit in own)
        last = max(edit.position + len(edit.content) for edit in own)
        begin = at - mapped_file.file_from_offset + first
        content = encode(record)[first:last]
        changes.steps.append(WriteRange(look.store.relative(mapped_file.path), begin, content))
        changes.bridged += map(_edited, own)
        records.append(record)
    changes.edited |= {edit.start for edit in edits if not POLICIES[edit.kind].of_damage}
    changes.replaced.append(Replaced(mapped_file, start, stop, tuple(records)))


def _edited(edit: Edit) -> dict[str, Any]:
    """What reports show of an edit."""
    policy = POLICIES[edit.kind]
    (topic, queue), queue_offset = edit.place
    told = {} if policy.of_damage else {"before": edit.before, "after": edit.after}
    return {
        "start": edit.start, "stop": edit.stop, "kind": "restored" if policy.is_loss else "property",
        "field": edit.field, "markers": 0, "fillers": 0, "topic": topic, "queue": queue, "queue_offset": queue_offset,
        **told,
    }


def _lay(
    look: Survey, changes: LogChanges, where: BridgeRange, positions: list[LostPosition], *, with_markers: bool
) -> None:
    mapped_file = look.log.queue.find(where.start)
    assert mapped_file is not None
    bridge = build_bridge(where, positions if with_markers else ())
    file, base = look.store.relative(mapped_file.path), mapped_file.file_from_offset
    changes.steps.append(WriteRange(file, where.start - base, bridge.content))
    end = where.start + bridge.content.size
    if end < where.stop and not where.to_file_end:
        raise AssertionError("a bridge between records must fill its range")
    if end < where.stop:
        # after the blank nothing counts, but old records there must not be found again
        changes.steps.append(ZeroRange(file, end - base, where.stop - base))
    _note(changes, mapped_file, where, bridge, positions)


def _lay_files(
    look: Survey, changes: LogChanges, where: BridgeRange, positions: list[LostPosition], *, with_markers: bool
) -> None:
    """New files in the place of missing ones: markers of what was in them, filler, and an end mark."""
    size = look.log.queue.file_size
    before = next(scan.mapped_file for scan in reversed(look.log.files) if scan.file_end <= where.start)
    starts = range(where.start, where.stop, size)
    if len(starts) > _MOST_FILES:
        raise Refusal(
            f"{len(starts)} log files are missing from {where.start} to {where.stop}",
            "Look at the names of the log files: one of them may be wrong.", start=where.start, stop=where.stop,
        )
    for start in starts:
        own = [position for position in positions if start <= max(where.start, position.start) < start + size]
        file = structs.replace(where, start=start, stop=start + size, to_file_end=True)
        bridge = build_bridge(file, own if with_markers else ())
        path = before.path.with_name(offset_to_name(start))
        content = LazyContent(size, partial(padded, bridge.content, size), allocated=bridge.content.size)
        changes.steps.append(Install(look.store.relative(path), content))
        _note(changes, MappedFile(path, start, size), file, bridge, own)


def _note(
    changes: LogChanges, mapped_file: MappedFile, where: BridgeRange, bridge: Bridge, positions: list[LostPosition]
) -> None:
    """Note what a bridge makes of its range, and what the reports show of it."""
    changes.replaced.append(Replaced(mapped_file, where.start, where.stop, bridge.records, bridge.blank))
    changes.bridged.append({
        "start": where.start, "stop": where.stop, "kind": "bridge", "markers": len(bridge.markers),
        "fillers": len(bridge.filler), "lost": [
            {"topic": p.key.topic, "queue": p.key.queue_id, "queue_offset": p.queue_offset, "phy_offset": p.phy_offset}
            for p in positions[:1000]
        ], "lost_count": len(positions),
    })


def _dirty_end(look: Survey, cut_from: int) -> Iterator[Step]:
    """Zeroes for all after the live log that is not zero already: stale records, end marks and what follows those."""
    for scan in look.log.files:
        base = scan.mapped_file.file_from_offset
        start = max(base, cut_from)
        old = look.old_end is not None and base <= look.old_end < scan.file_end
        if old or any(dead.last_data > max(dead.start, start) for dead in dead_ranges(scan)):
            yield from zeroes(look.store.relative(scan.mapped_file.path), scan.mapped_file.path, start - base)


def _drop_after_missing(store: Store, log: LogView, changes: LogChanges) -> None:
    """Files without any data after missing ones at the log's end: left in place the log would lack these for ever."""
    missing = [stop for start, stop in log.queue.missing_ranges() if start >= changes.cut_from]
    for scan in log.files if missing else ():
        mapped_file = scan.mapped_file
        if mapped_file.file_from_offset >= min(missing) and not scan.written:
            changes.steps.append(Retire(store.relative(mapped_file.path)))
            changes.dropped.append(str(mapped_file.path))


def _mend_files(store: Store, log: LogView, changes: LogChanges) -> None:
    """Full lengths, and nothing in the folders that is no log file."""
    size = log.queue.file_size
    for mapped_file in log.queue.wrong_lengths():
        name = store.relative(mapped_file.path)
        if str(mapped_file.path) in changes.dropped:
            continue
        if mapped_file.length == 0 and mapped_file == log.queue.files[-1]:
            changes.steps.append(Retire(name))
            changes.dropped.append(str(mapped_file.path))
        elif mapped_file.length < size:
            ends = [step.stop for step in changes.steps if isinstance(step, InPlace) and step.file == name]
            reached = max([mapped_file.length, *ends])
            if reached < size:
                changes.steps.append(ZeroRange(name, reached, size))
        else:
            _write_anew(changes, name, name, mapped_file.path, size)
    for odd in log.queue.odd:
        if odd.is_file:
            changes.steps.append(Retire(store.relative(odd.path)))
    for twin in log.queue.duplicates:
        changes.steps.append(Retire(store.relative(twin.path)))


def _rename(store: Store, changes: LogChanges, mapped_file: MappedFile, right: int) -> None:
    name = store.relative(mapped_file.path)
    target = store.relative(mapped_file.path.with_name(offset_to_name(right)))
    if any(step.file == name and not isinstance(step, InPlace) for step in changes.steps):
        if mapped_file.length == store.mapped_file_size:
            raise Refusal(
                f"{name} belongs under the name {target}, and another file that has a wrong name under its own",
                "Exchange the names by hand, as verify gives them: mqtool verify {store}", file=name,
            )
        raise Refusal(
            f"{name} has a wrong name and a wrong length",
            f"Rename it to {offset_to_name(right)} in a copy of the store, then run recover on that.", file=name,
        )
    _write_anew(changes, name, target, mapped_file.path, store.mapped_file_size)
    changes.steps.append(Retire(name))


def _write_anew(changes: LogChanges, name: str, target: str, path: Path, size: int) -> None:
    """One new file in the place of the changes within the old one."""
    within = [step for step in changes.steps if isinstance(step, InPlace) and step.file == name]
    others = [step for step in changes.steps if not (isinstance(step, InPlace) and step.file == name)]
    changes.steps = [*others, Install(target, changed_file(path, size, within))]


def cut_log(look: Survey, offset: int, *, anywhere: bool = False) -> LogChanges:
    """Zero the log from `offset` to its file's end and put later files aside.

    `UsageRefusal` (16) when no record starts or ends there, naming the nearest two boundaries; with
    `anywhere` (a broker's own cut) every offset is taken, and a file that begins there stays, as zeros
    (MappedFileQueue.truncateDirtyFiles): the log goes on in it.
    """
    log = look.log
    if not anywhere:
        _check_boundary(log, offset)
    changes = LogChanges(cut_from=offset, cuts_only=True)
    for scan in log.files:
        mapped_file = scan.mapped_file
        begins = mapped_file.file_from_offset
        stays = begins < offset or begins == log.min_offset or (anywhere and begins == offset)
        if not stays:
            changes.steps.append(Retire(look.store.relative(mapped_file.path)))
            changes.dropped.append(str(mapped_file.path))
        elif scan.file_end > offset:
            name = look.store.relative(mapped_file.path)
            changes.steps += zeroes(name, mapped_file.path, max(0, offset - begins))
    return changes


def _check_boundary(log: LogView, offset: int) -> None:
    """Boundaries are starts and ends of live records, and starts of files."""
    below, above = log.min_offset, log.log_end
    for scan in log.files:
        start = scan.mapped_file.file_from_offset
        if start == offset:
            return
        below = max(below, start) if start < offset else below
        above = min(above, start) if start > offset else above
    for split in log.splits():
        rows = split.records[(split.records["bits"] & BIT_STALE) == 0]
        edges = np.unique(np.concatenate([rows["phy_offset"], rows["phy_offset"] + rows["size"]]))
        at = int(np.searchsorted(edges, offset))
        if at < edges.size and edges[at] == offset:
            return
        if at > 0:
            below = max(below, int(edges[at - 1]))
        if at < edges.size:
            above = min(above, int(edges[at]))
    raise UsageRefusal(
        f"{offset} is no record boundary; the nearest are {below} and {above}",
        f"Use --to {below} or --to {above}.", below=below, above=above,
    )
