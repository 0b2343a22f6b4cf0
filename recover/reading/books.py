"""The books: every message that any byte of the input witnesses is delivered, stated lost, or proven gone.

Records, units and gaps between queue offsets are counted in `lost`. Here are the rest, and the sum:

1. `Account`: how many messages each damaged range held, by whoever names most of them: units and gaps, or these and the
   entries of the index, also of files without a head.
2. `claimed_after_end`: progress (committed offsets, delay levels) witnesses messages after the end of a queue, if a
   second source says that they were there: the checkpoint knows of a later message, a level of another file is ahead,
   too, or another group has read as far. An offset alone can be set by hand.
3. `missing_end`: that, and entries of the index that name places after the end of the log, for a prediction, which has
   no other evidence.
4. `unread_before_begin`: progress that stops before the first message of the log witnesses messages that nobody has
   read yet. Retention takes such messages, too: it counts only where retention cannot have deleted them.

Not protected: messages of which no byte is left outside the log's lost end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from msgspec import Struct

from formats.config.tables import read_consumer_offsets, read_delay_offsets
from formats.record import MIN_RECORD_SIZE, TOPIC_SCHEDULE
from recover.derived.expected import QueueKey
from recover.derived.index_check import check_index
from recover.findings.code import N_
from recover.findings.model import Finding, Phrase, few, finding
from recover.log.scan import MISSING_FILE, Damage, LogView
from recover.reading.end import ZEROED, indexed_after_end
from recover.reading.lost import INDEXED, Losses, LostPosition, record_count
from recover.store.columns import Rows, within
from recover.store.config_files import LMQ_PREFIX, Topics, topic_text
from recover.store.mapped_files import MappedFileQueue
from recover.store.store import COMMITLOG, Store, last_unit
from recover.store.unread import held_elsewhere

_DELAYS = "delayOffset.json"
_MOST = 10_000_000
"""Messages that one offset can claim: a larger one does not count messages that were there."""


class Account(Struct, frozen=True, eq=False, dict=True):
    """What the log has lost by all witnesses: `losses` by units and gaps, and `by_index`, the physical offsets (int64,
    ascending) that the index names in damaged ranges. `end_marks`: the numbers of ranges that held no message."""

    log: LogView
    losses: Losses
    end_marks: set[int]
    by_index: Rows

    def in_range(self, number: int) -> int:
        """Return how many messages a damaged range held according to the evidence; at least one if it ends at a record
        or the next file, even if nothing names one."""
        damage = self.log.damaged[number]
        least = damage.has_frame or damage.ended_by in ("record", "blank", "next-file")
        return max(self._named[number], int(least))

    def untold(self, number: int) -> int:
        """Return how many of these have no known place in a queue."""
        return self.in_range(number) - record_count(self.losses.all_by_damage[number])

    def damaged(self, before: int | None = None) -> int:
        """Return how many messages all damaged ranges (that begin before `before`) held."""
        return sum(self.in_range(number) for number, damage in enumerate(self.log.damaged)
                   if number not in self.end_marks and (before is None or damage.start < before))

    def missing(self) -> int:
        """Return how many of these were in log files that are missing."""
        return sum(self.in_range(number) for number, damage in enumerate(self.log.damaged)
                   if number not in self.end_marks and damage.reason == MISSING_FILE)

    def touched(self, ranges: Collection[tuple[int, int]]) -> int:
        """Return how many messages the damaged ranges held that meet one of these."""
        return sum(self.in_range(number) for number, damage in enumerate(self.log.damaged)
                   if any(start < damage.stop and damage.start < stop for start, stop in ranges))

    def named_in(self, start: int, stop: int) -> int:
        """Return how many messages anything names in the damaged ranges that begin in a part of the log."""
        return sum(count for count, damage in zip(self._named, self.log.damaged, strict=True)
                   if start <= damage.start < stop)

    @property
    def total(self) -> int:
        """The number of lost messages that anything names, with those after the end of the log."""
        return sum(self._named) + self.after_end

    @property
    def by_units(self) -> int:
        """The number of those that queues name, or that are missing between the records of a queue."""
        return sum(map(record_count, [*self.losses.all_by_damage, self.losses.unproven]))

    @property
    def after_end(self) -> int:
        """The number of messages that units or the index name after the end of the log, where no damage is noted."""
        return record_count(self.losses.unproven) + self.losses.indexed

    @cached_property
    def _named(self) -> list[int]:
        """How many messages anything names in each damaged range.

        An entry of the index names a message of a jump if that may have been there: of several, the one whose ranges
        end first.
        """
        found, open_jumps, jumps = [], list[tuple[int, int]](), sorted(self.losses.jumps, reverse=True)
        for number, (damage, positions) in enumerate(
            zip(self.log.damaged, self.losses.all_by_damage, strict=True)
        ):
            while jumps and jumps[-1][0] <= number:
                _, stop, count = jumps.pop()
                heappush(open_jumps, (stop, count))
            by_units = record_count(positions)
            # of LMQ queues, nothing tells which of their messages are those of others
            known = {position.phy_offset for position in positions if position.phy_offset is not None}
            left = self._by_index_alone(damage, positions) - max(0, by_units - len(known) - sum(
                position.phy_offset is None and not position.key.topic.startswith(LMQ_PREFIX)
                for position in positions))
            while left > 0 and open_jumps:
                stop, count = heappop(open_jumps)
                if stop > number:
                    left, count = max(0, left - count), count - left
                    if count > 0:
                        heappush(open_jumps, (stop, count))
            found.append(by_units + max(0, left))
        return found

    def _by_index_alone(self, damage: Damage, positions: list[LostPosition]) -> int:
        """Return how many records in a range only the index names. An entry that leads into a record that a unit names,
        or into the one before it, is a wrong one."""
        first, last = np.searchsorted(self.by_index, [damage.start, damage.stop]).tolist()
        placed = sorted((position.start, position.stop) for position in positions if position.phy_offset is not None)
        starts, stops = np.array(placed, dtype=np.int64).reshape(-1, 2).T
        alone = self.by_index[first:last]
        alone = alone[~within(alone, starts, np.maximum.accumulate(stops))]
        return int((np.diff(alone, prepend=-MIN_RECORD_SIZE) >= MIN_RECORD_SIZE).sum())


class Claimed(Struct, frozen=True):
    """Messages with the queue offsets [first, stop) of which only progress is left; `sources`: groups, delay levels,
    and the checkpoint."""

    key: QueueKey
    first: int
    stop: int
    sources: tuple[str, ...]

    @property
    def messages(self) -> int:
        return self.stop - self.first


def claimed_after_end(store: Store, log: LogView, topics: Topics) -> list[Claimed]:
    """Return what supported progress claims after the ends of queues, by queue. `OSError` if queues cannot be listed.

    A queue ends after its last record or unit, so what units name there is not claimed again.
    """
    if COMMITLOG in held_elsewhere(store) or not log.files:
        return []
    ahead = _ahead(store, log, topics)
    checkpoint = store.checkpoint()
    later = checkpoint is not None and log.tally.newest_timestamp < max(
        checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
    others = {"the checkpoint"} if later else set()
    others |= {key.topic for key in ahead if key.topic == TOPIC_SCHEDULE}
    numbers = {QueueKey(topic_text(topic), queue_id): number for number, (topic, queue_id) in enumerate(log.queues)}
    found = []
    for key, (end, offsets) in sorted(ahead.items()):
        names = sorted(offsets, key=lambda name: offsets[name], reverse=True)
        support = others - {key.topic}
        # without another source: what two groups have read, in a queue that did not begin anew
        stop = offsets[names[0]] if support else offsets[names[min(1, len(names) - 1)]]
        if support or (len(names) > 1 and _is_first_life(log, numbers.get(key))):
            found.append(Claimed(key, end, min(stop, end + _MOST), (*names, *sorted(support))))
    return found


def unread_before_begin(store: Store, log: LogView, topics: Topics) -> list[Claimed]:
    """Return the messages before the first one of the log that are not consumed or delivered yet, by queue, and whose
    progress says so. `OSError` if queues cannot be listed."""
    if COMMITLOG in held_elsewhere(store) or not log.min_offset:
        return []
    tally = log.tally
    begins = {QueueKey(topic_text(topic), queue_id): int(least)
              for (topic, queue_id), least, most in zip(log.queues, tally.least, tally.most, strict=True) if most >= 0}
    behind: dict[QueueKey, dict[str, int]] = defaultdict(dict)
    queues: dict[QueueKey, MappedFileQueue] | None = None
    for key, source, offset in _progress(topics):
        if key not in begins:
            # of a queue without a message left, its last entry says how many there were
            queues = queues or {QueueKey(folder.topic, folder.queue_id): queue for folder, queue in store.list_queues()}
            end, unit = last_unit(queues[key].files, []) if key in queues else (0, None)
            begins[key] = end if unit is not None and unit.phy_offset < log.min_offset else 0
        if 0 <= offset < begins[key]:
            behind[key][source] = offset
    return [Claimed(key, min(said.values()), begins[key], tuple(sorted(said))) for key, said in sorted(behind.items())]


def _ahead(store: Store, log: LogView, topics: Topics) -> dict[QueueKey, tuple[int, dict[str, int]]]:
    """Return each queue with progress after its end: that end, and the offsets by who says so."""
    ends = {QueueKey(topic_text(topic), queue_id): int(most) + 1
            for (topic, queue_id), most in zip(log.queues, log.tally.most, strict=True)}
    said: dict[QueueKey, dict[str, int]] = defaultdict(dict)
    for key, source, offset in _progress(topics):
        if offset > ends.get(key, 0):
            said[key][source] = offset
    if not said:
        return {}
    known = topics.folders | {key.topic for key in ends} | (topics.configured or {}).keys()
    for folder, queue in store.list_queues():
        key = QueueKey(folder.topic, folder.queue_id)
        if key in said:
            ends[key] = max(ends.get(key, 0), last_unit(queue.files, [])[0])
    return {
        key: (end, above) for key, offsets in said.items() if key.topic in known
        if (above := {source: offset for source, offset in offsets.items() if offset > (end := ends.get(key, 0))})
    }


def _progress(topics: Topics) -> Iterator[tuple[QueueKey, str, int]]:
    """Yield queue, who says it, and the offset of the next message to read. Batch and static topics count otherwise."""
    chosen = {pair.name: pair.chosen for pair in topics.pairs if pair.chosen is not None}
    mapped = chosen.get("topicQueueMapping.json")
    otherwise = topics.batch | (set() if mapped is None else set(mapped.table))
    for name, text in chosen.items():
        if name.endswith("onsumerOffset.json"):
            read = read_consumer_offsets(text.value)
            for (topic, group), queues in read.offsets.items():
                for queue_id, offset in queues.items() if topic not in otherwise else ():
                    yield QueueKey(topic, queue_id), Phrase("group {group}", group=group), offset
            for (topic, group), offset in read.lmq_offsets.items():
                yield QueueKey(topic, 0), Phrase("group {group}", group=group), offset
        elif name == _DELAYS:
            for level, offset in read_delay_offsets(text.value).items():
                yield QueueKey(TOPIC_SCHEDULE, level - 1), Phrase("delay level {level}", level=level), offset


def _is_first_life(log: LogView, number: int | None) -> bool:
    """Whether a queue of the log was never deleted and created again, after which its groups are ahead of it."""
    if number is None or log.superseded or log.tally.most[number] < 0:
        return False
    return log.min_offset == 0 or int(log.tally.least[number]) > 0


def left_to_claim(claimed: Iterable[Claimed], account: Account) -> list[Claimed]:
    """Return the claims without those of messages that units or the index name after the end of the log, too."""
    named = account.after_end + sum(account.in_range(number) for number, damage in enumerate(account.log.damaged)
                                    if damage.stop > account.log.log_end)
    claimed = [*claimed]
    return claimed if sum(each.messages for each in claimed) > named else []


def claimed_findings(claimed: list[Claimed], indexed: int) -> Iterator[Finding]:
    """Yield the finding of all claims, and of the messages after the end that the index alone names."""
    named = {source for each in claimed for source in each.sources}
    sources = sorted(named | ({N_("the index")} if indexed else set()))
    if sources:
        yield finding(
            "commitlog-end-missing", COMMITLOG, None, by=few(sources),
            count=max(sum(each.messages for each in claimed), indexed),
            queues={f"{each.key.topic}/{each.key.queue_id}": [each.first, each.stop] for each in claimed},
        )


def missing_end(
    store: Store, log: LogView, topics: Topics, index_ends: Iterable[tuple[int, int]]
) -> list[Finding]:
    """Findings about messages after the end of the log, for those who have nothing but the scan. `index_ends` as in
    `file_named_elsewhere`: the entries are read only if it speaks of later messages. `OSError` if the index cannot be
    listed."""
    readable = log.has_keys and COMMITLOG not in held_elsewhere(store)
    indexed = indexed_after_end(log, index_ends if readable else (), lambda: check_index(store, log).behind)
    # an analysis has found damage in their place already
    count = indexed.size + sum(damage.facts.get(INDEXED, 0) for damage in log.damaged if damage.reason == ZEROED)
    return [*claimed_findings(claimed_after_end(store, log, topics), count)]
