"""The end of a log: messages past it that only units and the index still name, files that are missing there, and old
records that end it.

Other bytes, or no file, in the place of a named message mean that the log was damaged. Zeros there, as if nothing had
been written, leave one queue's claim alone; it counts if units of another queue adjoin its own, the checkpoint knows a
later message, or the index names one at the same place. Without such a witness the queue may as well be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np

from formats.checkpoint import Checkpoint
from formats.consumequeue import CQ_UNIT
from formats.record import BLANK_SIZE, MAGIC_BLANK, MIN_RECORD_SIZE
from formats.record.rows import BIT_FILLER, BIT_SUPERSEDED, NOT_LIVE
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.log.file_scan import FileScan, Gap
from recover.log.judge import Claim
from recover.log.scan import MISSING_FILE, STALE_RECORDS, Damage, LogView, dead_ranges
from recover.reading.lost import INDEXED, Losses, LostPosition, named_by_units, not_held
from recover.store.columns import Rows, within

Witnessed = tuple[Damage, tuple[Claim[bool], ...]]
TORN_RECORD = "torn-record"
ZEROED = "zeroed"
NOWHERE = np.empty(0, dtype=np.int64)


def named_after_end(log: LogView, expectation: Expectation, queues: ConsumeQueueReport) -> list[LostPosition]:
    """Return the messages that units name after the last record of the log, ascending by phy_offset.

    A unit counts if a broker can have written it: the log holds no message for its queue offset, and a record of its
    size fits at its place, at most one file size away from other known messages.
    """
    if not log.files or log.queue.file_size <= 0:
        return []
    # a unit that repeats the one before fills in for a message that was lost earlier
    found: dict[tuple[QueueKey, int], LostPosition] = {}
    for position in not_held(expectation, named_by_units(queues, "beyond")):
        if _fits(log, position.start, position.stop - position.start):
            found.setdefault((position.key, position.start), position)
    positions = list(found.values())
    return list(compress(positions, _in_reach(log, _column(positions, "start"))))


def indexed_after_end(
    log: LogView, index_ends: Iterable[tuple[int, int]], units: Callable[[], Rows]
) -> Rows:
    """Return the physical offsets of messages after the last record of the log that the index names, ascending.

    `index_ends` as in `file_named_elsewhere`; `units` returns the offsets that index units name there. Both must name a
    message.
    """
    if not log.files or log.queue.file_size <= 0:
        return NOWHERE
    newest = log.tally.newest_timestamp
    ends = [place for place, time in index_ends if time >= newest and _fits(log, place, MIN_RECORD_SIZE)]
    places = units() if ends else NOWHERE
    places = places[(places <= max(ends, default=0)) & _fits(log, places, MIN_RECORD_SIZE)]
    return np.asarray(places[_in_reach(log, places)])


def named_by_index_alone(by_index: Rows, log: LogView, losses: Losses) -> int:
    """Return how many of `indexed_after_end` are in no damaged range and in no queue."""
    in_damage = within(by_index, _column(log.damaged, "start"), _column(log.damaged, "stop"))
    return int(np.count_nonzero(~in_damage & ~np.isin(by_index, _column(losses.unproven, "start"))))


def _fits(log: LogView, phy_offset: Any, size: int) -> Any:
    """Whether a record of that size fits at `phy_offset` (one or an array), with room for a blank after it in its
    file."""
    room = log.queue.file_size - BLANK_SIZE - (
        phy_offset - log.files[-1].mapped_file.file_from_offset) % log.queue.file_size
    return (phy_offset >= log.log_end) & (size >= MIN_RECORD_SIZE) & (size <= room)


def _in_reach(log: LogView, places: Rows) -> Rows:
    """Which of these ascending offsets are in no intact part of a file, up to the first that is too far from all others
    (bool array)."""
    gaps = [gap for _, gap in _gaps_past_end(log)]
    files = np.array([(scan.mapped_file.file_from_offset, scan.file_end) for scan in log.files], dtype=np.int64)
    possible = within(places, _column(gaps, "start"), _column(gaps, "stop")) | ~within(places, *files.T)
    kept = places[possible]
    reach = np.maximum(np.append(files[-1, 1], kept[:-1]), files[-1, 1]) + log.queue.file_size
    far = kept[kept > reach[: kept.size]]
    return np.asarray(possible & (places < far[0]) if far.size else possible)


def _column(items: Sequence[Any], name: str) -> Rows:
    """Return one field of each item (int64 array)."""
    return np.array([getattr(item, name) for item in items], dtype=np.int64)


def damage_after_end(
    log: LogView, by_queues: list[LostPosition], by_index: Rows, last_time: int
) -> list[Witnessed]:
    """Return the ranges past the log's end that may have held messages and are not noted as damage, and who says so.

    `last_time`: store timestamp (ms) of the last message that the checkpoint knows of.
    """
    in_queues = _column(by_queues, "start")
    said = [
        Claim("unit" if by_queues else "index", True),
        Claim("checkpoint", True, last_time > log.tally.newest_timestamp),
        Claim("adjoining units", True, _queues_adjoin(by_queues)),
        Claim("index", True, bool(np.isin(in_queues, by_index).any())),
    ]
    starts = np.concatenate([in_queues, by_index])
    # for a message that only the index names, assume the minimum size
    stops = np.concatenate([_column(by_queues, "stop"), by_index + MIN_RECORD_SIZE])
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    found = [(damage, (*said, Claim("bytes", True, written)))
             for damage, written in _ranges_in_files(log, starts, stops)]
    end = log.files[-1]
    ends = stops[starts >= end.file_end]
    if ends.size and not any(each.stop > end.file_end for each in log.damaged):
        # without an end mark the last file was not full, so no file followed it
        full = Claim("end mark", True, end.blank is not None)
        found.append((_missing_files(end, int(ends.max()) - 1), (*said, full)))
    for damage, _ in found:
        first, last = np.searchsorted(by_index, [damage.start, damage.stop]).tolist()
        damage.facts |= {INDEXED: last - first} if last > first else {}
    return found


def _queues_adjoin(named: list[LostPosition]) -> bool:
    """Whether a unit ends where that of another queue begins: one wrong queue alone cannot produce that."""
    ends = {position.stop: position.key for position in named}
    return any(ends.get(position.start, position.key) != position.key for position in named)


def _gaps_past_end(log: LogView) -> Iterator[tuple[FileScan, Gap]]:
    for scan in log.files:
        if scan.file_end > log.log_end:
            yield from ((scan, gap) for gap in dead_ranges(scan, stale=log.stale > 0) if gap.stop > log.log_end)


def _ranges_in_files(log: LogView, starts: Rows, stops: Rows) -> Iterator[tuple[Damage, bool]]:
    """Yield damaged ranges past the log's end in existing files, and whether other bytes, or a file that only they can
    have begun, show that something was there; `starts` (ascending), `stops`: of the named messages."""
    behind = [damage for damage in log.damaged if damage.stop > log.log_end]
    for scan, gap in _gaps_past_end(log):
        start = max([gap.start, *(d.stop for d in behind if d.start < gap.stop and d.stop > gap.start)])
        first, last = np.searchsorted(starts, [start, gap.stop]).tolist()
        if first >= last:
            continue
        begin, stop = int(starts[first]), min(int(stops[first:last].max()), scan.file_end)
        facts = dict(gap.facts) if start == gap.start else {}
        if begin < gap.last_data:
            yield Damage(start, stop, TORN_RECORD, 0, "record", False, scan.mapped_file, facts), True
        else:
            yield Damage(begin, stop, ZEROED, 0, "record", False, scan.mapped_file), not scan.record_count


def file_named_elsewhere(
    files: Sequence[FileScan], newest: int, index_ends: Iterable[tuple[int, int]], checkpoint: Checkpoint | None
) -> Damage | None:
    """Return the missing log files after the last of `files`, if index or checkpoint know of messages there; else None.

    `newest`: highest store timestamp (ms) in the log. `index_ends`: (phy offset, store timestamp in ms) of each index
    file's last message. The log must support it by an end mark in its last file, after which a broker creates the next
    file at once; without one, no other evidence counts.
    """
    if not files or files[-1].blank is None:
        return None
    said = [place for _, place in said_behind(files[-1].file_end, newest, index_ends, checkpoint)]
    # the number of missing files is uncertain: take the nearest, as a wrong offset may name one far away
    return _missing_files(files[-1], min(said)) if said else None


def said_behind(
    start: int, newest: int, index_ends: Iterable[tuple[int, int]], checkpoint: Checkpoint | None
) -> Iterator[tuple[str, int]]:
    """Yield each source that knows of messages at `start` or behind it, where the log ends, and the place that it names
    or `start`; see `file_named_elsewhere`."""
    yield from (("index", place) for place, time in index_ends if place >= start and time > newest)
    if checkpoint is not None:
        times = (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp)
        yield from (("checkpoint", start) for time in times if time > newest)
        if checkpoint.logics_physical_offset >= start:
            yield "checkpoint", checkpoint.logics_physical_offset


def _missing_files(end: FileScan, last: int) -> Damage:
    """Return the damage of the files after `end`, the last existing one, up to the file with physical offset `last`."""
    start, size = end.file_end, end.file_size
    return Damage(start, start + ((last - start) // size + 1) * size, MISSING_FILE, 0, "next-file", False, None)


def old_end(log: LogView, queue_file_size: int) -> int | None:
    """Return the physical offset of a run of old records at the very end of the log if a queue in it ends with a full
    file.

    A start dispatches them: 5.3.3 and 5.4.0 create a next file for such a queue, put nothing into it, and fail on that.
    The run may include stale records, and filler for damaged old ones. None without such a run.
    """
    if not log.superseded:
        return None
    full = (log.tally.most >= 0) & ((log.tally.most + 1) * CQ_UNIT.size % queue_file_size == 0)
    for scan in reversed(log.files):
        rows = [split.records for split in scan.splits if split.records.size]
        if not rows:
            continue
        records = np.concatenate(rows)
        live = np.flatnonzero((records["bits"] & (NOT_LIVE | BIT_FILLER)) == 0)
        run = records[live[-1] + 1 if live.size else 0 :]
        chained = run[(run["bits"] & BIT_SUPERSEDED) != 0]
        if not live.size or not full[chained["queue"]].any():
            return None
        start = int(run["phy_offset"][0])
        return None if any(damage.stop > start and damage.reason != STALE_RECORDS for damage in log.damaged) else start
    return None


def is_end_mark_only(damage: Damage, lost: int, proven: bool) -> bool:
    """Whether a damaged range is the end mark of a file and held no message.

    Either the remains show it (magic, size, or no room for a record), or, with `proven`, the queues do: they are
    complete and lost no position there.
    """
    if damage.ended_by != "file-end" or damage.has_frame or lost or damage.mapped_file is None:
        return False
    room = damage.stop - damage.start
    shows = (
        room < MIN_RECORD_SIZE + BLANK_SIZE or damage.facts.get("size") == room
        or damage.facts.get("magic") == MAGIC_BLANK or damage.reason == "bad-blank-size"
    )
    return shows or proven
