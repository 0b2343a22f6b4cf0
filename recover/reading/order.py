"""Doubts about the order of a queue's records: which of them are older, and which have a wrong queue offset.

The scan knows the order of the log alone. Units and damage know more:

1. `false_restart`: a topic that is deleted and created again begins at 0, so a last record with queue offset 0 makes
   all before it those of the older topic. A damaged queue offset can be 0 as well. Then the unit at the place after the
   previous record names it; a queue that was really created again has no such unit.
2. `confirmed_place`: a record out of the order of its queue is damaged, unless a unit is at the very place that it
   names: then a broker continued from there, or began again after a single message, and the record is right. Without
   units, it began again if the record stands between those with 0 and 1, which leave it no other place.
3. `named_by_unit`: a record after a gap counts as older if it was stored earlier than what precedes the gap. One bit in
   its store time, which no checksum covers, can be the reason. Its own unit, and the next one of its queue, which leads
   to a live record behind it, outweigh a time.
4. `older_topic`: the records of a deleted topic are older if damage took the first message after the topic was created
   again. A unit names that message in the damage (`Losses.again`), and none leads to a record of its queue before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from formats.basics import is_safe_directory_name
from formats.consumequeue import CqUnit
from formats.native.rows import numbered
from formats.record.rows import BIT_MISNUMBERED, BIT_STALE, BIT_SUPERSEDED, NOT_IN_QUEUE, NOT_LIVE
from recover.log.judge import Claim
from recover.log.scan import LogView
from recover.reading.accepting import GoesOn, Relabel
from recover.reading.policy import Explanation
from recover.reading.reading import Reading
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX, topic_text
from recover.store.derived_files import unit_of
from recover.store.store import Store

_NONE = np.empty(0, dtype=np.int64)


def false_restart(reading: Reading) -> Iterator[Explanation]:
    """Undo restarts at 0 of single records that the unit at the previous record's next place names."""
    log, store = reading.log, reading.store
    if not (log.superseded and reading.facts.with_queues):
        return
    alone = np.flatnonzero((log.tally.positions == 1) & (log.tally.most == 0)).tolist()
    older: dict[int, np.void] = {}
    newer: dict[int, np.void] = {}
    for split in log.splits_of(alone):
        records = split.records[np.isin(split.records["queue"], alone) & numbered(split.records)]
        records = records[(records["bits"] & (BIT_STALE | BIT_MISNUMBERED)) == 0]
        stale = (records["bits"] & BIT_SUPERSEDED) != 0
        for rows, last in ((records[stale], older), (records[~stale], newer)):
            # the last row of each queue in the split
            queues, from_end = np.unique(rows["queue"][::-1], return_index=True)
            last.update(zip(queues.tolist(), rows[::-1][from_end], strict=True))
    false = {
        queue: int(row["phy_offset"]) for queue, row in newer.items()
        if queue in older and _is_named(log, store, row, int(older[queue]["queue_offset"]) + 1)
    }
    if false:
        parts = [_NONE]
        for split in log.splits_of(false):
            rows = split.records[np.isin(split.records["queue"], [*false])]
            parts.append(rows["phy_offset"][(rows["bits"] & BIT_SUPERSEDED) != 0])
        claims = Claim("record", False), Claim("unit", True), Claim("neighbours", True)
        yield Explanation("false-restart", Relabel(np.concatenate(parts), loses=BIT_SUPERSEDED), claims)
        starts = np.array(sorted(false.values()), dtype=np.int64)
        yield Explanation("false-restart", Relabel(starts, gains=BIT_MISNUMBERED), claims)


def confirmed_place(reading: Reading) -> Iterator[Explanation]:
    """Clear misnumbered records that the unit at their own place confirms, or that begin their queue again, and
    supersede others with that place."""
    log, store = reading.log, reading.store
    if not (log.tally.bits & BIT_MISNUMBERED and reading.facts.with_queues):
        return
    holders: dict[tuple[int, int], int] = {}
    confirmed: list[int] = []
    by_units = False
    for split in log.splits(BIT_MISNUMBERED):
        for row in split.records[(split.records["bits"] & BIT_MISNUMBERED) != 0]:
            is_named = _is_named(log, store, row, int(row["queue_offset"]))
            holder = int(row["phy_offset"]) if is_named else _begun_again(log, store, row, confirmed)
            if holder is not None:
                holders[int(row["queue"]), int(row["queue_offset"])] = holder
                confirmed.append(int(row["phy_offset"]))
                by_units |= is_named
    if confirmed:
        # a unit there or, if it began its queue again, the only place that its neighbours leave
        claims = Claim("neighbours", False), Claim("record", True), Claim("unit" if by_units else "elimination", True)
        starts = np.array(sorted(confirmed), dtype=np.int64)
        yield Explanation("confirmed-place", Relabel(starts, loses=BIT_MISNUMBERED), claims)
        if (older := _others_there(log, holders, confirmed)).size:
            yield Explanation("confirmed-place", Relabel(older, gains=BIT_SUPERSEDED), claims)


def named_by_unit(reading: Reading) -> Iterator[Explanation]:
    """Go on over a gap before a record that is older only by its time, while its queue names it and goes on behind."""
    log, store = reading.log, reading.store
    for scan in log.files if log.stale and reading.facts.with_queues else ():
        gaps = {gap.stop: gap for gap in scan.gaps}
        for split in (split for split in scan.splits if split.has(BIT_STALE)):
            rows = split.records
            behind_gap = np.isin(rows["phy_offset"], [*gaps]) & ((rows["bits"] & BIT_STALE) != 0) & numbered(rows)
            for row in rows[behind_gap]:
                place = int(row["queue_offset"])
                if _is_named(log, store, row, place) and _goes_on(log, store, row, place + 1):
                    yield Explanation("named-by-unit", GoesOn(gaps[int(row["phy_offset"])]), (
                        Claim("record", False), Claim("unit", True), Claim("second unit", True)))


def _goes_on(log: LogView, store: Store, row: np.void, place: int) -> bool:
    """Whether the unit at a place of a record's queue leads to a live record behind that record."""
    unit = _unit_of(log, store, row, place)
    if unit is None or unit.phy_offset <= int(row["phy_offset"]):
        return False
    for split in log.splits_of([int(row["queue"])]):
        at = int(np.searchsorted(split.records["phy_offset"], unit.phy_offset)) if split.size else 0
        if at < split.size and int(split.records["phy_offset"][at]) == unit.phy_offset:
            other = split.records[at]
            return bool(other["size"] == unit.size and not other["bits"] & NOT_LIVE and other["queue"] == row["queue"])
    return False


def _others_there(log: LogView, holders: dict[tuple[int, int], int], confirmed: Collection[int]) -> Rows:
    """Return the starts of other records that name the places of `holders`."""
    offsets = [offset for _, offset in holders]
    parts = [_NONE]
    for split in log.splits_of({queue for queue, _ in holders}):
        records = split.records
        near = np.isin(records["queue_offset"], offsets) & numbered(records)
        near &= ((records["bits"] & NOT_IN_QUEUE) == 0) | np.isin(records["phy_offset"], [*confirmed])
        places = records[["queue", "queue_offset", "phy_offset"]][near].tolist()
        parts.append(np.array([start for queue, offset, start in places
                               if holders.get((queue, offset), start) != start], dtype=np.int64))
    return np.concatenate(parts)


def _begun_again(log: LogView, store: Store, row: np.void, confirmed: Collection[int]) -> int | None:
    """Return the place of the last record with queue offset 0 if a record with it stands between those with 0 and 1 of
    its queue, and no unit names the first one; else None. `confirmed`: starts of records that are not misnumbered."""
    if row["queue_offset"]:
        return None
    own = np.concatenate([_in_place(split.records, int(row["queue"]), confirmed)
                          for split in log.splits_of([int(row["queue"])])])
    at = int(np.searchsorted(own["phy_offset"], row["phy_offset"]))
    if own["queue_offset"][max(0, at - 1) : at + 1].tolist() != [0, 1] or _is_named(log, store, own[at - 1], 0):
        return None
    return int(max(row["phy_offset"], own["phy_offset"][own["queue_offset"] == 0][-1]))


def _in_place(records: Rows, queue: int, confirmed: Collection[int]) -> Rows:
    """Return the rows of a queue that are neither stale nor misnumbered."""
    own = records[(records["queue"] == queue) & numbered(records)]
    bits = own["bits"]
    is_right = ((bits & BIT_MISNUMBERED) == 0) | np.isin(own["phy_offset"], [*confirmed])
    return own[((bits & BIT_STALE) == 0) & is_right]


def _is_named(log: LogView, store: Store, row: np.void, place: int) -> bool:
    """Whether the unit at a place of a record's queue names this record; false if none can be read."""
    unit = _unit_of(log, store, row, place)
    return unit is not None and (unit.phy_offset, unit.size) == (int(row["phy_offset"]), int(row["size"]))


def _unit_of(log: LogView, store: Store, row: np.void, place: int) -> CqUnit | None:
    """The unit at a place of a record's queue; None if none can be read."""
    topic, queue_id = log.queues[int(row["queue"])]
    name = topic_text(topic)
    return unit_of(store, name, queue_id, place) if is_safe_directory_name(name) else None


def older_topic(reading: Reading) -> Iterator[Explanation]:
    """Supersede the records of a topic before damage that took the first message after it was created again."""
    log, queues, losses = reading.log, reading.queues, reading.losses
    if queues is None:
        return
    begins = {position.key: damage.start for damage, again in zip(log.damaged, losses.again, strict=False)
              for position in again if not position.queue_offset and not position.key.topic.startswith(LMQ_PREFIX)}
    older = [_NONE]
    for key, rows in reading.expectation.grouped(set(begins)):
        before = rows[rows["phy_offset"] < begins[key]]
        unled = [*queues.verdicts[key].missing_offsets.tolist(), *(unit[0] for unit in queues.verdicts[key].wrong)]
        if np.isin(before["queue_offset"], unled).all():
            older.append(before["phy_offset"].copy())
    starts = np.sort(np.concatenate(older))
    if starts.size:
        claims = Claim("record", False), Claim("unit", True), Claim("no unit", True)
        yield Explanation("older-topic", Relabel(starts, gains=BIT_SUPERSEDED), claims)
