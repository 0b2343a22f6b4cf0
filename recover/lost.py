"""Which messages a damaged log has lost: queue positions that a unit or a step in the queue offsets names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from formats.commitlog import MIN_RECORD_SIZE
from recover.columns import Rows
from recover.expected import Expectation, QueueKey
from recover.log import LogView
from recover.verify.consumequeue import ConsumeQueueReport

_GAP_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True)
class LostPosition:
    """One message that is gone: its place in a queue, and where its record stood if a unit still says so."""

    key: QueueKey
    queue_offset: int
    phy_offset: int | None
    size: int | None


@dataclass(slots=True)
class Losses:
    """Lost positions of each damaged range (`by_damage[i]` belongs to `LogView.damaged[i]`), and queue offset
    steps that no damage explains: (queue, first missing, last missing, phy_offset of the record behind)."""

    by_damage: list[list[LostPosition]]
    unexplained: list[tuple[QueueKey, int, int, int]]

    @property
    def total(self) -> int:
        return sum(len(positions) for positions in self.by_damage)


def lost_positions(log: LogView, expectation: Expectation, queues: ConsumeQueueReport | None) -> Losses:
    """Collect what the units name in each damaged range, then what only the queue offsets give away.

    A step in a queue's offsets belongs to a damaged range that lies between its two records; with several, the
    first one takes it.
    """
    losses = Losses([[] for _ in log.damaged], [])
    if not log.damaged and queues is None:
        return losses
    known: dict[QueueKey, dict[int, LostPosition]] = {}
    starts = [damage.start for damage in log.damaged]
    if queues is not None:
        for key, verdict in queues.verdicts.items():
            for queue_offset, phy_offset, size in verdict.lost:
                at = int(np.searchsorted(starts, phy_offset, side="right")) - 1
                if at >= 0 and phy_offset < log.damaged[at].stop:
                    position = LostPosition(key, queue_offset, phy_offset, size)
                    known.setdefault(key, {})[queue_offset] = position
                    losses.by_damage[at].append(position)
    if log.damaged:
        for key, rows in expectation.grouped():
            _take_gaps(losses, log, key, rows, known.get(key, {}))
    for positions in losses.by_damage:
        positions.sort(key=lambda p: (p.key.topic, p.key.queue_id, p.queue_offset))
    return losses


def _take_gaps(losses: Losses, log: LogView, key: QueueKey, rows: Rows, known: dict[int, LostPosition]) -> None:
    for first, last, before, behind in _gaps(log, rows):
        wanted = [offset for offset in _bounded(first, last) if offset not in known]
        if not wanted:
            continue
        between = [i for i, damage in enumerate(log.damaged) if before < damage.start < behind]
        room = {i: (log.damaged[i].stop - log.damaged[i].start) // MIN_RECORD_SIZE for i in between}
        if sum(room.values()) < last - first + 1:
            # more offsets are missing than records fit: the damage is not what took them
            losses.unexplained.append((key, first, last, behind))
            continue
        for i in between:
            taken, wanted = wanted[: room[i]], wanted[room[i] :]
            losses.by_damage[i].extend(LostPosition(key, offset, None, None) for offset in taken)


def _bounded(first: int, last: int) -> range:
    return range(first, min(last + 1, first + _GAP_LIMIT))


def _gaps(log: LogView, rows: Rows) -> Iterator[tuple[int, int, int, int]]:
    """(first missing, last missing, phy_offset of the record in front, of the one behind) of one queue."""
    offsets, places = rows["queue_offset"], rows["phy_offset"]
    if offsets.size and log.min_offset == 0 and offsets[0] > 0:
        yield 0, int(offsets[0]) - 1, -1, int(places[0])
    for at in np.flatnonzero(np.diff(offsets) > 1).tolist():
        yield int(offsets[at]) + 1, int(offsets[at + 1]) - 1, int(places[at]), int(places[at + 1])
