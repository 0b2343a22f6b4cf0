"""The books: every message that any byte of the input witnesses is delivered, stated lost, or proven gone.

Other modules count what records, units, the index and gaps between queue offsets witness. Here are the rest:

1. `claimed_after_end`: progress (committed offsets, delay levels) witnesses messages after the end of a queue, if a
   second source says that they were there: the checkpoint knows of a later message, a level of another file is ahead,
   too, or another group has read as far. An offset alone can be set by hand.
2. `missing_end`: that, and entries of the index that name places after the end of the log, for a prediction, which has
   no other evidence.
3. `unread_before_begin`: progress that stops before the first message of the log witnesses messages that nobody has
   read yet. Retention takes such messages, too: it counts only where retention cannot have deleted them.

Not protected: messages of which no byte is left outside the log's lost end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct

from formats.config.tables import read_consumer_offsets, read_delay_offsets
from formats.record import TOPIC_SCHEDULE
from recover.derived.expected import QueueKey
from recover.derived.index_check import check_index
from recover.findings.model import Finding, few, finding
from recover.log.scan import LogView
from recover.reading.end import ZEROED, indexed_after_end
from recover.reading.lost import INDEXED, Losses, record_count
from recover.store.config_files import Topics, topic_text
from recover.store.mapped_files import MappedFileQueue
from recover.store.store import COMMITLOG, Store, last_unit
from recover.store.unread import held_elsewhere

_DELAYS = "delayOffset.json"
_MOST = 10_000_000
"""Messages that one offset can claim: a larger one is no count of messages that were there."""


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
                    yield QueueKey(topic, queue_id), f"group {group}", offset
            for (topic, group), offset in read.lmq_offsets.items():
                yield QueueKey(topic, 0), f"group {group}", offset
        elif name == _DELAYS:
            for level, offset in read_delay_offsets(text.value).items():
                yield QueueKey(TOPIC_SCHEDULE, level - 1), f"delay level {level}", offset


def _is_first_life(log: LogView, number: int | None) -> bool:
    """Whether a queue of the log was never deleted and created again, after which its groups are ahead of it."""
    if number is None or log.superseded or log.tally.most[number] < 0:
        return False
    return log.min_offset == 0 or int(log.tally.least[number]) > 0


def left_to_claim(claimed: Iterable[Claimed], log: LogView, losses: Losses) -> list[Claimed]:
    """Return the claims without those of messages that units or the index name after the end of the log, too."""
    named = losses.indexed + record_count(losses.unproven) + sum(
        max(record_count(lost), damage.facts.get(INDEXED, 0))
        for damage, lost in zip(log.damaged, losses.all_by_damage, strict=True) if damage.stop > log.log_end)
    claimed = [*claimed]
    return claimed if sum(each.messages for each in claimed) > named else []


def claimed_findings(claimed: list[Claimed], indexed: int) -> Iterator[Finding]:
    """Yield the finding of all claims, and of the messages after the end that the index alone names."""
    sources = sorted({source for each in claimed for source in each.sources} | ({"the index"} if indexed else set()))
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
