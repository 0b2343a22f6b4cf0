"""Contested places: which candidate belongs where it says, by witnesses other than its own words.

1. A place that an intact record of the log holds is not contested: dead ranges alone are filled.
2. The witnesses of a candidate: a queue unit that names it (offset, size, and place in the queue); that its file is the
   one that has this place, or that it stands at the same position of another log file, as a write to the wrong file
   leaves it; the candidates next to it in the one file; the intact records, or the end mark, between which its run fits
   without a gap; its queue, which lacks just this message there, or the index, if the log has no
   message of its queue. A property CRC and a second copy are none: a producer can send both in a body.
3. Two are needed. A file outside the log is not a witness itself, nor is a candidate from it one for another:
   there a unit must name one of the run, or the run must fill its place exactly.
4. A unit that names other bytes of the place denies the candidate, unless one names it, or one after it in its run:
   logs part once and never meet again. Of a further log, the records around the place have the last word
   (`further.py`); if they say nothing, such a unit is needed.
5. Two candidates for one place: the one with more witnesses; the same bytes count once; a tie leaves the place dead.

A record in two parts is not a candidate, and stays damage. Nor is a message placed that nothing names, alone among
foreign bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from msgspec import Struct

from formats.native.rows import numbered
from recover.log.scan import LogView
from recover.reading.candidates import AGAINST, FOR, Candidates, Dead
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.derived_files import read_units
from recover.store.reader import ReadFailure
from recover.store.store import Store

_UNIT = np.dtype([("phy_offset", "<i8"), ("size", "<i8"), ("queue_offset", "<i8"), ("queue", "<i4")])


class Decision(Struct):
    """The candidates that are placed, ascending by place, and those that are not although their place is dead."""

    placed: Rows
    left: Rows


def decide(
    found: Candidates, dead: Dead, log: LogView, store: Store | None, indexed: Callable[[], Rows]
) -> Decision:
    """Return the candidates that belong where they say. `store`: the one whose queues are witnesses; `indexed`: the
    offsets that the index names in damaged ranges."""
    rows, size = found.rows, log.queue.file_size
    named = _named(found, dead, store)
    matched, denied = _by_units(rows, named)
    reached = _reached(rows, matched)
    # what the same bytes on both sides vouch for outranks a queue
    keep = (reached | ~denied | (rows["beside"] == FOR)) & (rows["beside"] != AGAINST)
    left = [rows[~keep & (rows["beside"] != AGAINST)]]
    rows, matched, reached = rows[keep], matched[keep], reached[keep]
    further = found.of_further(rows)
    # those of further logs: what the records around say counts for two, and so does a unit
    vouched = 2 * (rows["beside"] == FOR) + 2 * reached
    weights: Rows = np.where(further, vouched, _weights(found, rows, matched, dead, size))
    doubted = np.flatnonzero((weights == 1) & (rows["queue"] >= 0) & ~further)
    weights[doubted] += _fits_queue(found, rows[doubted], log)
    unknown = [number for number, key in enumerate(found.queues) if key not in {*log.queues}]
    alone = doubted[np.isin(rows["queue"][doubted], unknown)]
    weights[alone] += np.isin(rows["phy_offset"][alone], indexed() if alone.size else alone)
    left.append(rows[weights < 2])
    rows, weights = rows[weights >= 2], weights[weights >= 2]
    order = np.argsort(rows["phy_offset"], kind="stable")
    wins = winners(found, rows[order], weights[order])
    left.append(rows[order][~wins])
    return Decision(rows[order][wins], np.concatenate(left))


def _named(found: Candidates, dead: Dead, store: Store | None) -> Rows:
    """The units that name a dead place, ascending by it; `queue` as in the candidates, -2 for any other."""
    numbers = {(topic_text(topic), queue_id): number for number, (topic, queue_id) in enumerate(found.queues)}
    parts = [np.empty(0, dtype=_UNIT)]
    failures: list[ReadFailure] = []
    with suppress(OSError):
        for folder, files in store.list_queues() if store is not None and found.rows.size else ():
            for file in files.files:
                units = read_units(file, files.file_size, failures)
                inside = np.flatnonzero((units["size"] > 0) & (dead.at(units["phy_offset"].astype(np.int64)) >= 0))
                part = np.zeros(inside.size, dtype=_UNIT)
                for name in ("phy_offset", "size"):
                    part[name] = units[name][inside]
                part["queue_offset"] = file.file_from_offset // units.dtype.itemsize + inside
                part["queue"] = numbers.get((folder.topic, folder.queue_id), -2)
                parts.append(part)
    units = np.concatenate(parts)
    return units[np.argsort(units["phy_offset"], kind="stable")]


def _by_units(rows: Rows, named: Rows) -> tuple[Rows, Rows]:
    """Which candidates a unit names, and of which one names other bytes (two bool arrays)."""
    first, stop = (np.searchsorted(named["phy_offset"], rows["phy_offset"] + more) for more in (0, rows["size"]))
    matched, denied = np.zeros((2, rows.size), dtype=bool)
    for at in (stop - first == 1).nonzero():
        units, own = named[first[at]], rows[at]
        same = (units["phy_offset"] == own["phy_offset"]) & (units["size"] == own["size"])
        matched[at] = same & (units["queue"] == own["queue"]) & (units["queue_offset"] == own["queue_offset"])
        denied[at] = ~same
    for at in np.flatnonzero(stop - first > 1).tolist():
        units, own = named[first[at] : stop[at]], rows[at]
        same = (units["phy_offset"] == own["phy_offset"]) & (units["size"] == own["size"])
        matched[at] = (same & (units["queue"] == own["queue"]) & (units["queue_offset"] == own["queue_offset"])).any()
        denied[at] = not same.all()
    return matched, denied


def _weights(found: Candidates, rows: Rows, matched: Rows, dead: Dead, file_size: int) -> Rows:
    """The number of witnesses of each candidate: those of its run, since what adjoins in source and log was moved as
    one; 0 where the rules of its source demand more."""
    if not rows.size:
        return np.zeros(0, dtype=np.int64)
    starts = np.append(0, _turns(rows))
    last = np.append(starts[1:], rows.size) - 1
    run = np.repeat(np.arange(starts.size), last - starts + 1)
    lengths, named = last - starts + 1, np.add.reduceat(matched.astype(np.int64), starts)
    begin, end = rows["phy_offset"][starts], rows["phy_offset"][last] + rows["size"][last]
    ranges = dead.at(begin)
    before = begin == dead.starts[ranges]
    behind = (end == dead.stops[ranges]) | (rows["queue"][last] < 0)
    bases = np.array([-1 if source.base is None else source.base for source in found.sources], dtype=np.int64)
    base = bases[rows["source"][starts]]
    own = base == begin // file_size * file_size
    level = (base >= 0) & (rows["position"][starts] == begin % file_size)
    units = np.minimum(named, 2) + (named > 0)
    weight = units + (own | level) + before + behind + (own & (lengths > 1))
    weight[~own & ~level & (named == 0) & ~(before & behind)] = 0
    return np.asarray(weight[run])


def _reached(rows: Rows, matched: Rows) -> Rows:
    """Which candidates a unit names, or one after it in its run (bool array)."""
    starts = np.append(0, _turns(rows))[: rows.size]
    number = np.arange(rows.size)
    last = np.maximum.reduceat(np.where(matched, number, -1), starts) if rows.size else number
    return np.asarray(number <= np.repeat(last, np.diff(np.append(starts, rows.size))))


def _turns(rows: Rows) -> Rows:
    """Where a candidate does not adjoin the one before it, in source and log."""
    adjoins = (rows["source"][1:] == rows["source"][:-1]) & (
        rows["position"][1:] == rows["position"][:-1] + rows["size"][:-1]) & (
        rows["phy_offset"][1:] == rows["phy_offset"][:-1] + rows["size"][:-1])
    return np.flatnonzero(~adjoins) + 1


def _fits_queue(found: Candidates, rows: Rows, log: LogView) -> Rows:
    """Which candidates stand between two messages of their queue that leave their queue offset free, or after the last
    one (bool array)."""
    fits = np.zeros(rows.size, dtype=bool)
    of_log = {key: number for number, key in enumerate(log.queues)}
    numbers = np.array([of_log.get(key, -1) for key in found.queues], dtype=np.int64)[rows["queue"]]
    asked = sorted({*numbers.tolist()} - {-1})
    parts = [np.empty((3, 0), dtype=np.int64)]
    for split in log.splits_of(asked) if asked else ():
        own = split.records[np.isin(split.records["queue"], asked) & numbered(split.records)]
        parts.append(np.stack([own[name].astype(np.int64) for name in ("queue", "phy_offset", "queue_offset")]))
    queues, places, offsets = np.concatenate(parts, axis=1)
    for number in asked:
        own = queues == number
        at = np.flatnonzero(numbers == number)
        behind = np.searchsorted(places[own], rows["phy_offset"][at])
        around = np.concatenate([[-1], offsets[own], [np.iinfo(np.int64).max]])
        fits[at] = (around[behind] < rows["queue_offset"][at]) & (rows["queue_offset"][at] < around[behind + 1])
    return fits


def winners(found: Candidates, rows: Rows, weights: Rows) -> Rows:
    """Which of these candidates, ascending by place, have it to themselves, or more witnesses than all others there
    (bool array)."""
    wins = np.ones(rows.size, dtype=bool)
    if not rows.size:
        return wins
    ends = np.maximum.accumulate(rows["phy_offset"] + rows["size"])
    cuts = np.flatnonzero(rows["phy_offset"][1:] >= ends[:-1]) + 1
    starts = np.append(0, cuts)
    sizes = np.append(cuts, rows.size) - starts
    for start, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        group = slice(start, start + size)
        wins[group] = _contest(found, rows[group], weights[group])
    return wins


def _contest(found: Candidates, rows: Rows, weights: Rows) -> Rows:
    """`winners` of candidates that overlap one another."""
    wins = np.zeros(rows.size, dtype=bool)
    denied = np.zeros(rows.size, dtype=bool)
    end = rows["phy_offset"] + rows["size"]
    for at in np.argsort(-weights, kind="stable").tolist():
        rivals = (rows["phy_offset"] < end[at]) & (end > rows["phy_offset"][at])
        better = rivals & (weights > weights[at])
        if (better & (wins | denied)).any():
            continue
        equal = np.flatnonzero(rivals & (weights == weights[at]))
        same = all((rows["phy_offset"][one], rows["size"][one]) == (rows["phy_offset"][at], rows["size"][at])
                   and found.content(rows[one]) == found.content(rows[at]) for one in equal.tolist() if one != at)
        if same:
            wins[at] = not (rivals & wins).any()
        else:
            denied[equal] = True
    return wins & ~denied
