"""Messages after the end of the log: nothing but queue units names them any more.

Where they stood are other bytes, or no file at all: then the log was damaged. Or zeros, as if nothing had ever been
written there: then it is one queue's word, until another queue's units adjoin its own, the checkpoint knows of a later
message, or the index of one at that very place. Without such a witness the queue may as well be what is wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from formats.checkpoint import Checkpoint
from formats.record import BLANK_SIZE, MIN_RECORD_SIZE
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.evidence.lost import LostPosition, named_by_units, not_held
from recover.log.file_scan import FileScan, Hole
from recover.log.scan import MISSING_FILE, Damage, LogView, Tail, dead_ranges

TORN_RECORD = "torn-record"
ZEROED = "zeroed"


def named_behind(log: LogView, expectation: Expectation, queues: ConsumeQueueReport) -> list[LostPosition]:
    """Messages that units name after the last record of the log, ascending by phy_offset.

    A unit counts if a broker can have written it: the log holds no message for its queue offset, and a record of its
    size fits at its place, which is no more than a file away from anything else that is known.
    """
    if not log.files or log.queue.file_size <= 0:
        return []
    # a unit that repeats the one before stands for a message that was lost before
    found: dict[tuple[QueueKey, int], LostPosition] = {}
    for position in not_held(expectation, named_by_units(queues, "beyond")):
        if _fits(log, position.start, position.stop - position.start):
            found.setdefault((position.key, position.start), position)
    return list(_in_reach(log, found.values()))


def _fits(log: LogView, phy_offset: int, size: int) -> bool:
    """Whether a record of that size can stand there, with the room for a blank after it in its file."""
    inside = (phy_offset - log.files[-1].mapped_file.file_from_offset) % log.queue.file_size
    return phy_offset >= log.log_end and MIN_RECORD_SIZE <= size <= log.queue.file_size - inside - BLANK_SIZE


def _in_reach(log: LogView, positions: Iterable[LostPosition]) -> Iterator[LostPosition]:
    """Those that stand in no file that goes on in another way, up to the first that is too far from all others."""
    holes = [(hole.start, hole.stop) for _, hole in _holes_behind(log)]
    files = [(scan.mapped_file.file_from_offset, scan.file_end) for scan in log.files]
    reach = log.files[-1].file_end + log.queue.file_size
    for position in positions:
        if position.start > reach:
            return
        if _is_in(holes, position.start) or not _is_in(files, position.start):
            reach = max(reach, position.start + log.queue.file_size)
            yield position


def _is_in(ranges: list[tuple[int, int]], offset: int) -> bool:
    """Whether an offset lies in one of these ranges [start, stop), which are ascending."""
    at = bisect_right(ranges, offset, key=lambda found: found[0]) - 1
    return at >= 0 and offset < ranges[at][1]


def note_damage_behind(log: LogView, named: list[LostPosition], last_time: int, last_indexed: int | None) -> bool:
    """Add to `log.damaged` the ranges after its end in which messages were; whether there are any.

    `last_time` is the store timestamp (ms) of the last message that the checkpoint knows of, `last_indexed` the
    phy offset of the last one of the index.
    """
    indexed = any(position.start == last_indexed for position in named)
    witness = indexed or last_time > log.newest_timestamp or _queues_adjoin(named)
    # without an end mark before it there was no file after the last one
    may_be_missing = witness or log.files[-1].blank is not None
    ends = [position.stop for position in named if position.start >= log.files[-1].file_end and may_be_missing]
    found = [*_ranges_in_files(log, named, witness), *([_missing_files(log.files[-1], max(ends) - 1)] if ends else ())]
    for damage in found:
        tail = log.tail
        if tail is not None and tail.mapped_file == damage.mapped_file and damage.start <= tail.start < damage.stop:
            rest = Tail(damage.stop, tail.stop, tail.reason, tail.mapped_file)
            log.tail = rest if damage.stop < tail.stop else None
    log.damaged = sorted([*log.damaged, *found], key=lambda damage: damage.start)
    return bool(found)


def _queues_adjoin(named: list[LostPosition]) -> bool:
    """True when a unit ends where that of another queue begins: no queue alone can make that up."""
    ends = {position.stop: position.key for position in named}
    return any(ends.get(position.start, position.key) != position.key for position in named)


def _holes_behind(log: LogView) -> Iterator[tuple[FileScan, Hole]]:
    for scan in log.files:
        if scan.file_end > log.log_end:
            yield from ((scan, hole) for hole in dead_ranges(scan, ghosts=log.ghosts > 0) if hole.stop > log.log_end)


def _ranges_in_files(log: LogView, named: list[LostPosition], witness: bool) -> Iterator[Damage]:
    behind = [damage for damage in log.damaged if damage.stop > log.log_end]
    for scan, hole in _holes_behind(log):
        start = max([hole.start, *(d.stop for d in behind if d.start < hole.stop and d.stop > hole.start)])
        first, last = (bisect_left(named, offset, key=lambda position: position.start) for offset in (start, hole.stop))
        own = named[first:last]
        if not own:
            continue
        facts = dict(hole.facts) if start == hole.start else {}
        stop = min(max(position.stop for position in own), scan.file_end)
        if own[0].start < hole.last_data:
            yield Damage(start, stop, TORN_RECORD, 0, "record", False, scan.mapped_file, facts)
        elif not scan.record_count or witness:
            yield Damage(own[0].start, stop, ZEROED, 0, "record", False, scan.mapped_file)


def file_named_elsewhere(
    files: Sequence[FileScan], newest: int, index_ends: Iterable[tuple[int, int]], checkpoint: Checkpoint | None
) -> Damage | None:
    """The log files after the last one of `files`, if index or checkpoint know of messages there; else None.

    `newest`: the highest store timestamp (ms) in the log. `index_ends`: (phy offset, store timestamp in ms) of each
    index file's last message. The log itself says so, too, by an end mark without a file after it: a broker makes that
    file at once. Without one nothing else is believed.
    """
    if not files or files[-1].blank is None:
        return None
    start = files[-1].file_end
    said = [phy_offset for phy_offset, time in index_ends if phy_offset >= start and time > newest]
    if checkpoint is not None:
        times = (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp)
        said += [start for time in times if time > newest]
        said += [place for place in (checkpoint.logics_physical_offset,) if place >= start]
    if not said:
        return None
    # how many files are missing nobody can say for sure: a wrong offset names one far away
    return _missing_files(files[-1], min(said))


def _missing_files(end: FileScan, last: int) -> Damage:
    """The files after `end`, the last one that is there, up to the one with the physical offset `last`."""
    start, size = end.file_end, end.file_size
    return Damage(start, start + ((last - start) // size + 1) * size, MISSING_FILE, 0, "next-file", False, None)
