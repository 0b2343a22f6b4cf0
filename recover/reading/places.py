"""The right place of an intact record with one wrong field that no checksum covers: topic, queue id, queue offset,
transaction bits of the sysFlag, or the properties that name LMQ queues.

Everything that names a place for a record is a claim: the record itself, units of queues, the neighbours of the place
in its queue, and elimination: no other place is left for it. Elimination applies to misnumbered records, which fit
nowhere in the queue that they name, and to records whose queue offset is missing in a queue that differs in one field.
The log outranks its queues: a unit that disagrees with a record is wrong unless the log supports it and the record's
own place has fewer claims. Such a record is reported; what derives from the log is checked against its right place
(`recover.reading.accepting`); only --mend-bits writes the field.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby, islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from formats import sysflag
from formats.record import Record
from formats.record.rows import BIT_MISNUMBERED, BIT_STALE, BIT_SUPERSEDED, EXPECTED
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey, lmq_targets
from recover.log.generations import with_place
from recover.log.judge import Claim, LogReader
from recover.log.scan import LogView
from recover.reading.edits import Edit, Place, between, property_bit
from recover.reading.lost import LostPosition, UnexplainedGap, named_by_units
from recover.reading.policy import POLICIES, Explanation
from recover.reading.reading import Reading
from recover.store.columns import Rows
from recover.store.config_files import ALWAYS_LIVE, LMQ_PREFIX

Unit = tuple[int, int, int]
"""Queue offset, phy_offset and size."""
_NO_END = (1 << 63) - 1
"""Greater than any queue offset and any physical offset."""
_LONGEST_GAP = 100
"""Limit of a gap's length (queue offsets): longer ones are not due to single records."""


def named_elsewhere(reading: Reading) -> Iterator[Explanation]:
    """Yield the edits of records that units name at another place than their own."""
    if reading.queues is not None:
        named = [item for item, is_named in _places_left(reading.log, reading.expectation, reading.queues) if is_named]
        yield from _contradicted(reading, reading.queues, named, [])


def only_place_left(reading: Reading) -> Iterator[Explanation]:
    """Yield the edits of records for which only another place is left."""
    if reading.queues is None:
        return
    left: dict[bool, list[LostPosition]] = {False: [], True: []}
    for item, is_named in _places_left(reading.log, reading.expectation, reading.queues):
        left[is_named].append(item)
    # a queue in which exactly this offset is missing is better evidence than one with room for any
    moved = _fits_elsewhere(reading.log, reading.expectation, reading.losses.unexplained)
    fitted = {item.start for item in moved}
    alone = [*moved, *(item for item in left[False] if item.start not in fitted)]
    if alone:
        yield from _contradicted(reading, reading.queues, left[True], alone)


# --- Weighing claims: the record's own place against all others that are named for it.


class _Candidate(NamedTuple):
    """An intact record, the place that it names, those that others name, and whether it is misnumbered."""

    record: Record
    own: Place
    others: list[Place]
    misnumbered: bool


class _PlaceFit(NamedTuple):
    """How a place of a queue suits one record by the log. `neighbours`: number of adjacent places that hold records in
    order (at least 1 between two records further away); -1 if another record holds the place, or this one would be out
    of log order there. `later`: the record before the place was stored after it."""

    neighbours: int
    later: bool


def _contradicted(
    reading: Reading, queues: ConsumeQueueReport, named: Collection[LostPosition], alone: Collection[LostPosition],
) -> Iterator[Explanation]:
    """Yield the edits of all records that may belong to another place than one of their fields states, ascending.

    `named`: misnumbered records whose only remaining place has a unit that names them. `alone`: records with only one
    place left, for which no unit had enough claims: such a unit no longer counts, as recover removes it.
    """
    log, expectation = reading.log, reading.expectation
    said, by_lmq, units = _claims(queues, named, alone)
    asked: list[_Candidate] = []
    wanted = np.array(sorted({*said, *by_lmq}), dtype=np.int64)
    with LogReader(log.queue) as reader:
        for row in _rows_at(log, wanted):
            phy_offset, size = int(row["phy_offset"]), int(row["size"])
            own = said.get(phy_offset) or by_lmq[phy_offset]
            stored = log.written.get(phy_offset)
            record = stored or reader.find(phy_offset, size) if all(each.size == size for each in own) else None
            # a property CRC covers the whole record, so no field is wrong
            if record is not None and record.property_crc is None:
                place = expectation.keys[int(row["queue"])], int(row["queue_offset"])
                others = [*dict.fromkeys(each.place for each in own)]
                asked.append(_Candidate(record, place, others, bool(int(row["bits"]) & BIT_MISNUMBERED)))
    beside = _place_fits(expectation, asked)
    topics = ALWAYS_LIVE.union(expectation.topics.configured or ())
    for item in asked:
        at = item.record.phy_offset
        if at in said:
            yield from _by_claims(item, beside, queues, units, topics)
        elif all(beside[place, at].neighbours >= 0 for place in item.others):
            # no other record names these places, and this one fits their order
            yield from _of_lmq(item, expectation, queues)


def _wrong_place(item: _Candidate, edit: Edit, claims: Iterable[Claim[Any]], says: Any, stored: Any) -> Explanation:
    start = item.record.phy_offset
    return Explanation("wrong-place", edit, (*claims,), says, stored, where=(start, start + item.record.total_size))


def _claims(
    queues: ConsumeQueueReport, named: Collection[LostPosition], alone: Collection[LostPosition]
) -> tuple[dict[int, list[LostPosition]], dict[int, list[LostPosition]], set[tuple[Place, int]]]:
    """Return the claims on records, by phy_offset: of units of ordinary queues and `alone`; of units of LMQ queues; and
    the (place, phy_offset) of all these units. Empty if there are too many."""
    said: dict[int, list[LostPosition]] = defaultdict(list)
    by_lmq: dict[int, list[LostPosition]] = defaultdict(list)
    wrong = [*named_by_units(queues, "wrong")]
    places = {item.place for item in wrong}
    # two adjacent wrong units indicate a wrong queue
    single = [item for item in wrong
              if places.isdisjoint(((item.key, item.queue_offset - 1), (item.key, item.queue_offset + 1)))]
    for item in single:
        (by_lmq if item.key.topic.startswith(LMQ_PREFIX) else said)[item.start].append(item)
    units = {(item.place, item.start) for item in (*single, *named)}
    for item in alone:
        said.pop(item.start, None)
    for item in (*named, *alone):
        said[item.start].append(item)
    if len(by_lmq) > POLICIES["lmq"].limit:
        by_lmq.clear()
    return ({}, {}, units) if len(said) > POLICIES["place"].limit else (said, by_lmq, units)


def _rows_at(log: LogView, places: Rows) -> Iterator[np.void]:
    for split in log.splits():
        if not (split.size and ((places >= split.first) & (places <= split.last)).any()):
            continue
        rows = split.records[(split.records["bits"] & BIT_STALE) == 0]
        yield from rows[np.isin(rows["phy_offset"], places)]


def _by_claims(
    asked: _Candidate, beside: dict[tuple[Place, int], _PlaceFit], queues: ConsumeQueueReport,
    units: set[tuple[Place, int]], topics: Collection[str],
) -> Iterator[Explanation]:
    """Yield the edits that move a record to each place that is claimed for it, if one field does so."""
    at, own = asked.record.phy_offset, asked.own
    claims = [*_claims_of_own(asked, beside[own, at], queues, units, topics)]
    for place in {own, *asked.others}:
        claims += _claims_of_place(place, own, beside[place, at], named=(place, at) in units)
    for place in asked.others:
        edit = moved(asked.record, *place) if place != own else None
        if edit is not None:
            yield _wrong_place(asked, edit, claims, place, own)
    if asked.record.sys_flag & sysflag.TRANSACTION_PREPARED:
        # half messages as brokers store them have no prepared bits
        flag = asked.record.sys_flag ^ sysflag.TRANSACTION_PREPARED
        right = structs.replace(asked.record, sys_flag=flag)
        values = f"{asked.record.sys_flag:#x}", f"{flag:#x}"
        told = {claim.source for claim in claims if claim.weight and claim.says == own}
        edit = between("place", asked.record, right, "sys_flag", values, (own,))
        place_is_right = [Claim(source, True) for source in ("unit", "neighbours") if source in told]
        yield _wrong_place(asked, edit, (Claim("record", False), *place_is_right), True, False)


def _claims_of_own(
    asked: _Candidate, fit: _PlaceFit, queues: ConsumeQueueReport, units: Collection[tuple[Place, int]],
    topics: Collection[str],
) -> Iterator[Claim[Place]]:
    """Yield what speaks for the place that a record names, but for a unit of which `units` knows."""
    own = asked.own
    yield Claim("record", own)
    if own[0].topic in topics and not any(place[0].topic in topics for place in asked.others):
        yield Claim("topics.json", own)
    if not asked.misnumbered:
        yield Claim("neighbours", own, max(0, fit.neighbours))
        if fit.neighbours >= 0 and _has_unit(queues, *own) and (own, asked.record.phy_offset) not in units:
            yield Claim("unit", own)


def _claims_of_place(place: Place, own: Place, fit: _PlaceFit, *, named: bool) -> Iterator[Claim[Place]]:
    """Yield what speaks for a place, which a unit may name (`named`), beside the record itself."""
    if named:
        yield Claim("unit", place, place == own or (fit.neighbours >= 0 and not fit.later))
    elif place != own and not fit.later:
        yield Claim("elimination", place, fit.neighbours >= 0)
    if place != own and not fit.later:
        yield Claim("neighbours", place, max(0, fit.neighbours))


def moved(record: Record, key: QueueKey, queue_offset: int) -> Edit | None:
    """Return the edit that moves a record to this place; None if not exactly one field has to change."""
    fields = {
        "topic": (record.topic_name, key.topic), "queue_id": (record.queue_id, key.queue_id),
        "queue_offset": (record.queue_offset, queue_offset),
    }
    differing = [(name, stored, told) for name, (stored, told) in fields.items() if stored != told]
    if len(differing) != 1:
        return None
    ((name, stored, told),) = differing
    right = structs.replace(record, **{name: key.topic.encode() if name == "topic" else told})
    if len(right.topic) != len(record.topic):
        return None
    return between("place", record, right, name, (str(stored), str(told)), ((key, queue_offset),))


def _place_fits(expectation: Expectation, asked: list[_Candidate]) -> dict[tuple[Place, int], _PlaceFit]:
    """Return how each place named for a record suits it, by (place, phy_offset of the record)."""
    wanted: dict[QueueKey, set[tuple[int, int, int]]] = defaultdict(set)
    for item in asked:
        for key, queue_offset in (item.own, *item.others):
            wanted[key].add((queue_offset, item.record.phy_offset, item.record.store_timestamp))
    found = {}
    for key, rows in _rows_by_queue(expectation, wanted):
        numbers, places, times = rows["queue_offset"], rows["phy_offset"], rows["store_timestamp"]
        for queue_offset, phy_offset, time in wanted[key]:
            first, stop = (int(np.searchsorted(numbers, queue_offset, side)) for side in ("left", "right"))
            before = first - 1 - (first > 0 and places[first - 1] == phy_offset)
            behind = stop + (stop < numbers.size and places[stop] == phy_offset)
            follows, is_followed = before >= 0, behind < numbers.size
            neighbours = int(queue_offset == 0) + int(follows and numbers[before] == queue_offset - 1)
            neighbours += int(is_followed and numbers[behind] == queue_offset + 1)
            if follows and is_followed:
                neighbours = max(1, neighbours)  # between two records of its queue, even if adjacent ones are damaged
            fits = (not follows or places[before] < phy_offset) and (not is_followed or phy_offset < places[behind])
            fits &= all(place == phy_offset for place in places[first:stop].tolist())
            later = bool(follows and times[before] > time)
            found[(key, queue_offset), phy_offset] = _PlaceFit(neighbours if fits else -1, later)
    return found


def _rows_by_queue(expectation: Expectation, wanted: Collection[QueueKey]) -> Iterator[tuple[QueueKey, Rows]]:
    """Yield the rows of each of these queues, including those without rows."""
    left = dict.fromkeys(wanted)
    for key, rows in expectation.grouped(set(wanted)):
        del left[key]
        yield key, rows
    yield from ((key, np.empty(0, dtype=EXPECTED)) for key in left)


def _has_unit(queues: ConsumeQueueReport, key: QueueKey, queue_offset: int) -> bool:
    """Whether a message is expected at this place and a unit names it."""
    verdict = queues.verdicts.get(key)
    if verdict is None or not verdict.expected:
        return False
    return not verdict.misses(queue_offset) and queue_offset not in {index for index, _, _ in verdict.wrong}


def _of_lmq(asked: _Candidate, expectation: Expectation, queues: ConsumeQueueReport) -> Iterator[Explanation]:
    """Yield the edit of a record that fills all LMQ queues whose units name it, if one bit explains why it does not."""
    record = asked.record
    named = lmq_targets(record)
    unknown = [place for place in named if place[0] not in queues.verdicts]
    rows = expectation.lmq_rows[expectation.lmq_rows["phy_offset"] == record.phy_offset]
    # a place that a later record also names belongs to that record
    its_own = {(expectation.keys[row["queue"]], int(row["queue_offset"])) for row in rows}
    stands = [place for place in named if place in its_own and _has_unit(queues, *place)]
    edit = names_again(record, asked.others, stands, unknown)
    if edit is not None:
        yield _wrong_place(asked, edit, (
            Claim("record", False), Claim("unit", True, len(asked.others)), Claim("one bit", True)), True, False)


def names_again(
    record: Record, claimed: Collection[Place], right: Collection[Place], unknown: Collection[Place] = ()
) -> Edit | None:
    """Return the edit of the one property bit that makes a record name every place that units claim for it.

    It must still name the places of the stored record at which its units are (`right`), and may name those of queues
    that do not exist (`unknown`), but no others.
    """
    needed = set(claimed) | set(right)
    allowed = needed | set(unknown)
    return property_bit("lmq", record, lambda one: needed <= set(lmq_targets(one)) <= allowed, tuple(claimed))


# --- Misnumbered records in the queue that they name: the only place left for them there.


def misnumbered(log: LogView, expectation: Expectation) -> dict[QueueKey, list[Unit]]:
    """Return misnumbered records by the queue that they name, in log order: stated queue offset, phy_offset, size."""
    found: dict[QueueKey, list[Unit]] = {}
    for split in log.splits(BIT_MISNUMBERED) if log.tally.bits & BIT_MISNUMBERED else ():
        for row in split.records[(split.records["bits"] & BIT_MISNUMBERED) != 0]:
            found.setdefault(expectation.keys[int(row["queue"])], []).append(_unit_of(row))
    return found


def _unit_of(row: np.void) -> Unit:
    """Return the unit that would be at the place a row states; rows are RECORD or EXPECTED."""
    return int(row["queue_offset"]), int(row["phy_offset"]), int(row["size"])


def _places_left(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport
) -> Iterator[tuple[LostPosition, bool]]:
    """Yield every misnumbered record with a place left in its queue, between the records around it, after the last one
    or, if the log is complete from its start, before the first one; and whether a unit names it there.

    Without a unit, records follow in order on the one before while no damage intervenes, else precede the one after.
    """
    wrong = misnumbered(log, expectation)
    damaged = [damage.start for damage in log.damaged]
    for key, rows in expectation.grouped(set(wrong)):
        verdict = queues.verdicts.get(key)
        units = sorted([*verdict.wrong, *verdict.lost]) if verdict is not None else []
        for before, group in groupby(wrong[key], key=lambda unit: int(np.searchsorted(rows["phy_offset"], unit[1]))):
            if before == 0 and log.min_offset > 0:
                continue
            # a log that is complete from its start holds the start of its queues
            last, first = (int(rows[name][before - 1]) if before else -1 for name in ("queue_offset", "phy_offset"))
            ends = before == rows.size
            end, stop = (_NO_END if ends else int(rows[name][before]) for name in ("queue_offset", "phy_offset"))
            between_them = damaged[bisect_left(damaged, first) : bisect_left(damaged, stop)]
            own = units[bisect_left(units, (last + 1,)) : bisect_left(units, (end,))]
            for unit in placed([*group], range(last + 1, end), own, between_them):
                yield LostPosition(key, *unit), unit in own


def placed(records: list[Unit], places: range, units: list[Unit], damaged: list[int]) -> list[Unit]:
    """Return the misnumbered records of one gap in a queue with their places; empty if these would be out of log order.

    `units`: units at some of the `places`, of any record; `damaged`: where messages may have been lost, ascending.
    """
    own = {phy_offset for _, phy_offset, _ in records}
    found = [unit for unit in units if unit[1] in own]
    named = {phy_offset for _, phy_offset, _ in found}
    left = [record for record in records if record[1] not in named]
    taken = {queue_offset for queue_offset, _, _ in units}
    if len(left) <= len(places) - len(units):
        last = damaged[-1] if damaged and places.stop < _NO_END else _NO_END
        behind = bisect_right([phy_offset for _, phy_offset, _ in left], last)
        found += _filled(places, taken, left[:behind])
        found += _filled(reversed(places), taken, [*reversed(left[behind:])])
    found.sort()
    return found if all(one[1] < other[1] and one[0] < other[0] for one, other in pairwise(found)) else []


def _filled(places: Iterable[int], taken: set[int], records: list[Unit]) -> Iterator[Unit]:
    free = islice((place for place in places if place not in taken), len(records))
    return ((place, phy_offset, size) for place, (_, phy_offset, size) in zip(free, records, strict=False))


# --- Records whose queue offset is missing in another queue: topic or queue id is wrong.


def _fits_elsewhere(
    log: LogView, expectation: Expectation, gaps: Collection[UnexplainedGap]
) -> list[LostPosition]:
    """Return each record that is the only one for a missing offset which is its only fit.

    A record that fits nowhere else may also continue a queue at its end.
    """
    wrong = [LostPosition(key, *unit) for key, units in misnumbered(log, expectation).items() for unit in units]
    # in a log from its start no queue begins in mid-log; one that has a message 0 has just begun
    headless = log.min_offset == 0
    alone = list(_single_records(log, expectation)) if gaps or headless else []
    odd = [*wrong, *(alone if headless else ())]
    gaps = [gap for gap in gaps if gap.last - gap.first < _LONGEST_GAP and not gap.key.topic.startswith(LMQ_PREFIX)]
    ends = list(_next_places(expectation, [item.key for item in odd]))
    found = _fitting(gaps, [*wrong, *alone]) + _fitting(ends, odd)
    matched = {item.place for item in found}
    # of two records with the same offset in one queue, the other one may be wrong there
    twins = list(_holders_of_places(expectation, wrong))
    found += (item for item in _fitting([*gaps, *ends], twins) if item.place not in matched)
    of_place = Counter(item.place for item in found)
    of_record = Counter(item.start for item in found)
    return [item for item in found if of_place[item.place] == 1 == of_record[item.start]]


def _fitting(gaps: Iterable[UnexplainedGap], records: Iterable[LostPosition]) -> list[LostPosition]:
    """Return every missing offset of a queue with each record of that offset that is at the right place of the log, in
    a queue that differs in one field."""
    of_number: dict[int, list[LostPosition]] = defaultdict(list)
    for item in records:
        of_number[item.queue_offset].append(item)
    return [
        structs.replace(item, key=gap.key)
        for gap in gaps
        for number in range(gap.first, gap.last + 1)
        for item in of_number.get(number, ())
        if gap.before < item.start < gap.behind
        and (item.key.topic == gap.key.topic) != (_id_and_topic_size(item.key) == _id_and_topic_size(gap.key))
    ]


def _id_and_topic_size(key: QueueKey) -> tuple[int, int]:
    return key.queue_id, len(key.topic.encode())


def _single_records(log: LogView, expectation: Expectation) -> Iterator[LostPosition]:
    """Yield records that are alone in the queue that they name, even of an unknown topic; not the first of a queue.

    This includes a single remaining record of an older queue of that name, unless an earlier record of the log holds
    its place: then it is an old record past the log's end.
    """
    alone = (log.tally.positions == 1) & (log.tally.least > 0)
    older = np.zeros(len(log.queues), dtype=np.int64)
    for split in log.splits(BIT_SUPERSEDED) if log.superseded else ():
        older += np.bincount(split.records["queue"][_is_older(split.records)], minlength=older.size)
    left: list[LostPosition] = []
    for split in (split for split in log.splits() if not split.lacks(alone | (older == 1))):
        rows, queues, is_older = split.records, split.records["queue"], _is_older(split.records)
        found = (alone[queues] & with_place(rows)) | ((older[queues] == 1) & is_older & (rows["queue_offset"] > 0))
        for at in np.flatnonzero(found).tolist():
            named = LostPosition(expectation.keys[int(queues[at])], *_unit_of(rows[at]))
            if is_older[at]:
                left.append(named)
            else:
                yield named
    before = {item.place: item.start for item in _holders_of_places(expectation, left)}
    yield from (item for item in left if before.get(item.place, item.start) >= item.start)


def _is_older(rows: Rows) -> Rows:
    return np.asarray((rows["bits"] & BIT_SUPERSEDED) != 0)


def _holders_of_places(expectation: Expectation, records: list[LostPosition]) -> Iterator[LostPosition]:
    """Yield the records that hold the places that these name."""
    numbers: dict[QueueKey, list[int]] = defaultdict(list)
    for item in records:
        numbers[item.key].append(item.queue_offset)
    for key, rows in expectation.grouped(set(numbers)):
        held = np.isin(numbers[key], rows["queue_offset"])
        at = np.searchsorted(rows["queue_offset"], np.array(numbers[key])[held])
        yield from (LostPosition(key, *_unit_of(row)) for row in rows[at])


def _next_places(expectation: Expectation, named: Collection[QueueKey]) -> Iterator[UnexplainedGap]:
    """Yield the next place of each queue that differs from one of these in one field."""
    topics, others = {key.topic for key in named}, {_id_and_topic_size(key) for key in named}
    wanted = {key for key in expectation.keys if key.topic in topics or _id_and_topic_size(key) in others}
    for key, rows in expectation.grouped(wanted):
        number = int(rows["queue_offset"][-1]) + 1
        yield UnexplainedGap(key, number, number, int(rows["phy_offset"][-1]), _NO_END)
