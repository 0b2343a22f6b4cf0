"""The messages that a damaged log lost: positions shown by units or by jumps in queue offsets, also past its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, chain, islice, zip_longest
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from formats.record import MIN_RECORD_SIZE
from formats.record.rows import BIT_INNER_BATCH, BIT_STALE
from recover.derived.expected import ConsumeQueueReport, Expectation, QueueKey
from recover.log.scan import Damage, LogView
from recover.store.columns import Rows
from recover.store.config_files import LMQ_PREFIX


class Neighbour(NamedTuple):
    """The relevant facts of a record next to a range: its store timestamp (ms) and its bits."""

    store_timestamp: int
    bits: int


Pair = tuple[Neighbour | None, Neighbour | None]


class Surroundings:
    """The records around the damaged ranges of one log."""

    def __init__(self, log: LogView) -> None:
        self._splits = [split for split in log.splits() if split.size]
        self._ends = [split.last for split in self._splits]
        self._live = lru_cache(maxsize=2)(self._live_in)

    def of(self, damage: Damage) -> Pair:
        """Return the last live record before a range and the first after it; None where there is none."""
        first, last = (bisect_left(self._ends, place) for place in (damage.start, damage.stop))
        before = (self._row(number, damage.start, -1) for number in range(min(first, len(self._ends) - 1), -1, -1))
        behind = (self._row(number, damage.stop, 0) for number in range(last, len(self._ends)))
        return next(filter(None, before), None), next(filter(None, behind), None)

    def times(self, damage: Damage) -> tuple[int, int]:
        """Return the store timestamps (ms) of these two; if one is missing, the other's twice; 0 if both are."""
        before, behind = (0 if neighbour is None else neighbour.store_timestamp for neighbour in self.of(damage))
        return before or behind, behind or before

    def _row(self, number: int, place: int, step: int) -> Neighbour | None:
        """Return the live record of a split `step` rows from the first one at or after `place`."""
        live, offsets = self._live(number)
        at = int(np.searchsorted(offsets, place)) + step
        return neighbour_in(live, at) if 0 <= at < offsets.size else None

    def _live_in(self, number: int) -> tuple[Rows, Rows]:
        rows = self._splits[number].records
        live = rows[(rows["bits"] & BIT_STALE) == 0]
        return live, live["phy_offset"].copy()


def neighbour_in(rows: Rows, at: int) -> Neighbour:
    """Return the record in row `at` as a neighbour."""
    return Neighbour(int(rows["store_timestamp"][at]), int(rows["bits"][at]))


_GAP_LIMIT = 10_000_000


class LostPosition(Struct, frozen=True):
    """One lost message: its place in a queue, and the place of its record if a unit still names it."""

    key: QueueKey
    queue_offset: int
    phy_offset: int | None
    size: int | None

    @property
    def place(self) -> tuple[QueueKey, int]:
        return self.key, self.queue_offset

    @property
    def start(self) -> int:
        """The physical offset of its record, -1 if no unit names it."""
        return -1 if self.phy_offset is None else self.phy_offset

    @property
    def stop(self) -> int:
        """The physical offset of its record's end, -1 if no unit names it."""
        return -1 if self.phy_offset is None else self.phy_offset + (self.size or 0)


class UnexplainedGap(NamedTuple):
    """Queue offsets that are missing in the log and that no damage explains; phy_offset of the queue's records before
    (-1 at its beginning) and after (`behind`) them."""

    key: QueueKey
    first: int
    last: int
    before: int
    behind: int


class Losses(Struct):
    """Lost positions of each damaged range: `by_damage[i]` belongs to `LogView.damaged[i]`.

    `unexplained`: jumps in queue offsets that no damage explains. `unproven`: positions past the end of the log that
    only queue units name; `indexed`: number of further messages there that only the index names. `again`: messages of
    a topic that was deleted and created again, lost in the i-th range, while an intact older message has their place.
    `jumps`: (first, stop, count) of messages without a known place in the log: in which ranges they may have been, of
    which the first ones have them in `by_damage`.
    """

    by_damage: list[list[LostPosition]]
    again: list[list[LostPosition]] = field(default_factory=list)
    unexplained: list[UnexplainedGap] = field(default_factory=list)
    unproven: list[LostPosition] = field(default_factory=list)
    indexed: int = 0
    jumps: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of positions in damaged ranges; several of them can belong to one record."""
        return sum(map(len, self.by_damage))

    @property
    def all_by_damage(self) -> list[list[LostPosition]]:
        """All messages that each damaged range is known to have held."""
        return [[*lost, *again] for lost, again in zip_longest(self.by_damage, self.again, fillvalue=())]


INDEXED = "indexed"
"""Key of a fact of damaged ranges: the number of messages there according to the index."""


def record_count(positions: Iterable[LostPosition]) -> int:
    """Return how many records these positions stand for: a record that also fills LMQ queues has several of them."""
    named: set[int] = set()
    unnamed = 0
    in_queue: Counter[QueueKey] = Counter()
    for position in positions:
        lmq = position.key.topic.startswith(LMQ_PREFIX)
        if lmq:
            in_queue[position.key] += 1
        if position.phy_offset is not None:
            named.add(position.phy_offset)
        elif not lmq:
            unnamed += 1
    return max(len(named) + unnamed, *in_queue.values(), 0)


def lost_positions(
    log: LogView, expectation: Expectation, queues: ConsumeQueueReport | None, behind: Iterable[LostPosition] = (),
) -> Losses:
    """Collect the positions that units name in each damaged range, then those that only jumps in queue offsets show.

    `behind`: positions past the end of the log that units name.
    """
    losses = Losses([[] for _ in log.damaged])
    if not log.damaged and queues is None:
        return losses
    named: dict[QueueKey, list[int]] = defaultdict(list)
    starts = [damage.start for damage in log.damaged]
    for position in chain(named_by_units(queues, "lost"), behind):
        at = bisect_right(starts, position.start) - 1
        if at >= 0 and position.start < log.damaged[at].stop:
            named[position.key].append(position.queue_offset)
            losses.by_damage[at].append(position)
        elif position.start >= log.log_end:
            losses.unproven.append(position)
    for places in named.values():
        places.sort()
    _add_jumps(losses, log, expectation, named)
    losses.again = [*_made_again(log, losses, queues)]
    for positions in losses.by_damage:
        positions.sort(key=lambda position: position.place)
    return losses


def _add_jumps(losses: Losses, log: LogView, expectation: Expectation, named: dict[QueueKey, list[int]]) -> None:
    """Add the positions that only jumps in queue offsets show; `named`: those that units name, ascending.

    A jump is assigned to the damaged range between its two records; if there are several, the first one takes as many
    as fit.
    """
    starts = [damage.start for damage in log.damaged]
    fits = [(damage.stop - damage.start) // MIN_RECORD_SIZE for damage in log.damaged]
    room = [0, *accumulate(fits)]
    for gap in _unexplained_gaps(log, expectation):
        known = _between(named[gap.key], gap.first, gap.last)
        missing = gap.last - gap.first + 1
        if missing <= len(known):
            continue
        first, stop = bisect_right(starts, gap.before), bisect_left(starts, gap.behind)
        if room[max(first, stop)] - room[first] < missing:
            # the damage is too small to have taken them
            losses.unexplained.append(gap)
            continue
        if not gap.key.topic.startswith(LMQ_PREFIX):
            losses.jumps.append((first, stop, missing - len(known)))
        own = {*known}
        wanted = (at for at in range(gap.first, min(gap.last + 1, gap.first + _GAP_LIMIT)) if at not in own)
        for number in range(first, stop):
            found = islice(wanted, fits[number])
            losses.by_damage[number].extend(LostPosition(gap.key, place, None, None) for place in found)


def _made_again(log: LogView, losses: Losses, queues: ConsumeQueueReport | None) -> Iterator[list[LostPosition]]:
    """Yield per damaged range what wrong units name in it: they adjoin other messages there, or its edges, and no
    jump shows a lost message of their queue, which would be the same one."""
    starts = [damage.start for damage in log.damaged]
    found: list[dict[int, LostPosition]] = [{} for _ in starts]
    for position in named_by_units(queues, "wrong") if starts else ():
        at = bisect_right(starts, position.start) - 1
        if at >= 0 and position.start < position.stop <= log.damaged[at].stop:
            found[at].setdefault(position.start, position)
    for damage, lost, again in zip(log.damaged, losses.by_damage, found, strict=True):
        named = [*lost, *again.values()]
        begins = {damage.stop, *(position.start for position in named)}
        ends = {damage.start, *(position.stop for position in named)}
        known = {position.start for position in lost} | {
            position.start for position in again.values() if position.start not in ends and position.stop not in begins}
        unnamed = {position.key for position in lost if position.phy_offset is None}
        yield [position for position in again.values() if position.start not in known and position.key not in unnamed]


def named_by_units(queues: ConsumeQueueReport | None, *kinds: str) -> Iterator[LostPosition]:
    """Yield what the units of these kinds (`lost`, `beyond`, `wrong` as in `QueueVerdict`) name."""
    for key, verdict in queues.verdicts.items() if queues is not None else ():
        for kind in kinds:
            for unit in getattr(verdict, kind):
                yield LostPosition(key, *unit)


def not_held(expectation: Expectation, named: Iterable[LostPosition]) -> list[LostPosition]:
    """Return those of `named` whose place in their queue no record of the log holds, ascending by phy_offset."""
    left: dict[QueueKey, list[LostPosition]] = defaultdict(list)
    for position in named:
        left[position.key].append(position)
    for key, rows in expectation.grouped(set(left)):
        held = np.isin([position.queue_offset for position in left[key]], rows["queue_offset"]).tolist()
        left[key] = [position for position, is_held in zip(left[key], held, strict=True) if not is_held]
    return sorted(chain(*left.values()), key=lambda position: (position.start, position.place))


def _between(places: list[int], first: int, last: int) -> list[int]:
    return places[bisect_left(places, first) : bisect_right(places, last)]


def _unexplained_gaps(log: LogView, expectation: Expectation) -> Iterator[UnexplainedGap]:
    """Yield the missing offsets of all queues; in a log without damage, not those of queues that only LMQ records
    fill."""
    tally, counts = log.tally, expectation.counts
    may = np.full(counts.size, bool(log.damaged))
    if not tally.bits & BIT_INNER_BATCH:
        may[: tally.gapped.size] = tally.gapped | ((tally.least > 0) & (log.min_offset == 0))
    for key, rows in expectation.of(np.flatnonzero(may & (counts > 0)).tolist()):
        offsets, places = rows["queue_offset"], rows["phy_offset"]
        if log.min_offset == 0 and offsets[0] > 0:
            yield UnexplainedGap(key, 0, int(offsets[0]) - 1, -1, int(places[0]))
        for at in np.flatnonzero(np.diff(offsets) > 1).tolist():
            yield UnexplainedGap(
                key, int(offsets[at]) + 1, int(offsets[at + 1]) - 1, int(places[at]), int(places[at + 1])
            )
