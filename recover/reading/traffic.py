"""Messages over time, by topic and by queue, and the damaged parts of the log, in a bounded size.

Counts are of intact live records that are messages. Times are store timestamps in ms.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field, structs

from formats.record.rows import NO_MESSAGE
from recover.derived.expected import ConsumeQueueReport, QueueKey, QueueVerdict
from recover.log.scan import MISSING_FILE, LogView
from recover.reading.lost import Losses, Surroundings
from recover.store.columns import Rows
from recover.store.config_files import topic_text

BINS = 60
_TOPICS = 15
_QUEUES = 20
_ROWS = 24
_PARTS = 400


class QueueTraffic(Struct):
    """One queue: its messages and lost positions by bin, and its missing and wrong units."""

    topic: str
    queue: int
    messages: list[int]
    lost: list[int]
    expected: int = 0
    missing: int = 0
    wrong: int = 0


class Traffic(Struct):
    """Messages and bytes by bin of `step` ms from `begin` on; the largest topics as (topic, messages, bytes); the
    queues with the most lost, missing and wrong positions, then the largest. `more_*`: number of those left out."""

    begin: int = 0
    step: int = 1
    messages: list[int] = field(default_factory=lambda: [0] * BINS)
    sizes: list[int] = field(default_factory=lambda: [0] * BINS)
    topics: list[tuple[str, int, int]] = field(default_factory=list)
    more_topics: int = 0
    queues: list[QueueTraffic] = field(default_factory=list)
    more_queues: int = 0

    def json(self) -> dict[str, Any]:
        return structs.asdict(self) | {"queues": [structs.asdict(queue) for queue in self.queues]}


class Stretch(Struct):
    """Bytes [start, stop) of the log: one file, or several shown as one. `end`: where records end in it.

    `damaged`: ranges in it as (start, stop, reason); ranges too close together to be shown apart are joined.
    """

    start: int
    stop: int
    files: int
    end: int
    damaged: list[tuple[int, int, str]] = field(default_factory=list)


def traffic(log: LogView, losses: Losses, queues: ConsumeQueueReport | None) -> Traffic:
    """Collect the traffic of a log in two passes over its rows."""
    result = Traffic(begin=min((int(rows["store_timestamp"].min()) for rows in _messages(log)), default=0))
    result.step = max(0, log.tally.newest_timestamp - result.begin) // BINS + 1
    cells = np.zeros((len(log.queues), BINS), dtype=np.int64)
    sizes, taken = np.zeros(BINS, dtype=np.int64), np.zeros(len(log.queues), dtype=np.int64)
    for rows in _messages(log):
        at = (rows["store_timestamp"] - result.begin) // result.step
        np.add.at(cells, (rows["queue"], at), 1)
        np.add.at(sizes, at, rows["size"])
        np.add.at(taken, rows["queue"], rows["size"])
    result.messages, result.sizes = cells.sum(axis=0).tolist(), sizes.tolist()
    names = [QueueKey(topic_text(topic), queue) for topic, queue in log.queues]
    held: Counter[str] = Counter()
    of_topic: Counter[str] = Counter()
    for (topic, _), own, size in zip(names, cells.sum(axis=1).tolist(), taken.tolist(), strict=True):
        held[topic] += own
        of_topic[topic] += size
    ranked = sorted(+held, key=lambda topic: (-held[topic], topic))
    result.topics = [(topic, held[topic], of_topic[topic]) for topic in ranked[:_TOPICS]]
    result.more_topics = max(0, len(ranked) - _TOPICS)
    messages = dict(zip(names, cells, strict=True))
    _choose_queues(result, messages, _lost_times(log, losses), {} if queues is None else queues.verdicts)
    return result


def _messages(log: LogView) -> Iterator[Rows]:
    for split in log.live():
        rows = split.records[(split.records["bits"] & NO_MESSAGE) == 0]
        if rows.size:
            yield rows


def _lost_times(log: LogView, losses: Losses) -> dict[QueueKey, list[int]]:
    """Return the approximate store time of each queue's lost positions: the middle of the times around their range."""
    found: dict[QueueKey, list[int]] = defaultdict(list)
    surroundings = Surroundings(log)
    for damage, positions in zip(log.damaged, losses.by_damage, strict=True):
        begin, end = surroundings.times(damage) if positions else (0, 0)
        for position in positions:
            found[position.key].append((begin + end) // 2)
    for position in losses.unproven:
        found[position.key].append(log.tally.last_timestamp)
    return found


def _choose_queues(
    result: Traffic, messages: dict[QueueKey, Rows], lost: dict[QueueKey, list[int]],
    verdicts: dict[QueueKey, QueueVerdict],
) -> None:
    """Set the queues to show; `messages` of each by bin."""
    bad: Counter[QueueKey] = Counter({key: len(times) for key, times in lost.items()})
    bad.update({key: verdict.missing + len(verdict.wrong) for key, verdict in verdicts.items()})
    none = np.zeros(BINS, dtype=np.int64)
    total = {key: int(own.sum()) for key, own in messages.items()}
    keys = sorted({*messages, *+bad}, key=lambda key: (-bad[key], -total.get(key, 0), key.topic, key.queue_id))
    for key in keys[:_QUEUES]:
        known = verdicts.get(key, QueueVerdict(key))
        facts = known.expected, known.missing, len(known.wrong)
        bins = (np.array(lost.get(key, ()), dtype=np.int64) - result.begin) // result.step
        missed = np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS).tolist()
        result.queues.append(QueueTraffic(*key, messages.get(key, none).tolist(), missed, *facts))
    result.more_queues = max(0, len(keys) - _QUEUES)


def stretches(log: LogView) -> list[Stretch]:
    """Return the log in files, or in equal parts of several files each, so few that all can be shown."""
    files = log.queue.files
    start = log.queue.min_offset
    stop = max((file.end for file in files), default=start)
    if start == stop:
        return []
    size = log.queue.file_size or max(file.length for file in files) or 1
    step = size * -(-(stop - start) // (size * _ROWS))
    found = [Stretch(at, min(at + step, stop), 0, min(max(at, log.log_end), at + step))
             for at in range(start, stop, max(1, step))]
    for file in files:
        found[min((file.file_from_offset - start) // step, len(found) - 1)].files += 1
    ranges = [(damage.start, damage.stop, damage.reason) for damage in log.damaged]
    for stretch in found:
        stretch.damaged = list(_joined(ranges, stretch))
    return found


def _joined(ranges: Iterable[tuple[int, int, str]], stretch: Stretch) -> Iterator[tuple[int, int, str]]:
    near = (stretch.stop - stretch.start) // _PARTS
    held: tuple[int, int, str] | None = None
    for start, stop, reason in ranges:
        start, stop = max(start, stretch.start), min(stop, stretch.stop)
        if start >= stop:
            continue
        if held is not None and start - held[1] <= near and (reason == MISSING_FILE) == (held[2] == MISSING_FILE):
            held = (held[0], stop, held[2] if held[2] == reason else "several reasons")
            continue
        if held is not None:
            yield held
        held = (start, stop, reason)
    if held is not None:
        yield held


