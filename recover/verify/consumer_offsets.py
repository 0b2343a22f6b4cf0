"""Consumer offsets and delay offsets against the queues they count in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from formats.config import read_consumer_offsets, read_delay_offsets
from formats.native.queues import EXPIRED
from recover.broker.delays import SCHEDULE_TOPIC
from recover.evidence.expected import QueueKey
from recover.files.config_files import ConfigPair
from recover.files.store import Store
from recover.files.topics import LMQ_PREFIX, topic_text
from recover.findings import Finding, finding
from recover.scan.log import LogView

if TYPE_CHECKING:
    from recover.verify.survey import Survey

OFFSET_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")
DELAY_FILE = "delayOffset.json"
MAPPING_FILE = "topicQueueMapping.json"
_SHOWN = 8


class QueueRange(Struct, frozen=True):
    """Queue offsets of one queue: that of the first message left, and the one after the last."""

    first: int
    end: int


class AboveMax(Struct, frozen=True):
    """An offset after the end of its queue: where it stands (file, table, member, queue id), and the queue's end.

    For delay offsets `member` is empty and `queue_id` the delay level.
    """

    file: str
    table: str
    member: str
    queue_id: int
    offset: int
    end: int


class OffsetReport(Struct):
    """What the offsets say: findings, and each offset that --clamp-offsets would lower."""

    above: list[AboveMax]
    findings: list[Finding]


def queue_ranges(look: Survey) -> dict[QueueKey, QueueRange]:
    """Each queue's range as it will be once the queues agree with the log."""
    ranges = _of_log(look.log)
    for key, verdict in (look.queues.verdicts if look.queues else {}).items():
        if not verdict.units:
            continue
        end = verdict.end
        beyond = {queue_offset for queue_offset, _, _ in verdict.beyond}
        while end - 1 in beyond:
            end -= 1
        known = ranges.get(key)
        first = verdict.min_index + verdict.counts.get(EXPIRED, 0)
        if known is not None:
            first, end = min(first, known.first) if verdict.lost else known.first, max(end, known.end)
        ranges[key] = QueueRange(min(first, end), end)
    return ranges


def _of_log(log: LogView) -> dict[QueueKey, QueueRange]:
    least, most = log.tally.least, log.tally.most
    return {
        QueueKey(topic_text(topic), queue_id): QueueRange(int(least[number]), int(most[number]) + 1)
        for number, (topic, queue_id) in enumerate(log.queues) if most[number] >= 0
    }


def check_offsets(store: Store, look: Survey, pairs: Iterable[ConfigPair]) -> OffsetReport:
    """Judge the offsets of the copies that recover would keep; batch and static topics count otherwise."""
    report = OffsetReport([], [])
    by_name = {pair.name: pair for pair in pairs}
    if not store.commitlog.files:
        return report
    judge = _Judge(store, look, by_name, queue_ranges(look))
    for name in OFFSET_FILES:
        pair = by_name[name]
        if pair.chosen is not None:
            judge.groups(pair, report)
    pair = by_name[DELAY_FILE]
    if pair.chosen is not None:
        judge.delays(pair, report)
    return report


class _Judge:
    def __init__(
        self, store: Store, look: Survey, pairs: Mapping[str, ConfigPair], ranges: dict[QueueKey, QueueRange]
    ) -> None:
        self.store = store
        self.ranges = ranges
        topics = look.topics
        self.known = {key.topic for key in ranges} | set(topics.folders) | set(topics.configured or {}) | topics.batch
        mapping = pairs[MAPPING_FILE].main
        self.counted_otherwise = topics.batch | set(mapping.table)

    def groups(self, pair: ConfigPair, report: OffsetReport) -> None:
        assert pair.chosen is not None
        offsets = read_consumer_offsets(pair.chosen.value)
        for (topic, group), queues in offsets.offsets.items():
            self._member(report, pair, "offsetTable", topic, group, queues)
        for (topic, group), offset in offsets.lmq_offsets.items():
            self._member(report, pair, "lmqOffsetTable", topic, group, {0: offset})

    def _member(
        self, report: OffsetReport, pair: ConfigPair, table: str, topic: str, group: str, queues: dict[int, int]
    ) -> None:
        if topic in self.counted_otherwise:
            return
        file = self.store.relative(pair.main.path)
        facts: dict[str, Any] = {"topic": topic, "group": group}
        if topic not in self.known:
            if not topic.startswith(LMQ_PREFIX) and any(queues.values()):
                facts["offsets"] = {str(queue_id): offset for queue_id, offset in queues.items()}
                report.findings.append(finding("consumer-offset-unknown-topic", file, **facts))
            return
        above: dict[int, tuple[int, int]] = {}
        below: dict[int, tuple[int, int]] = {}
        for queue_id, offset in queues.items():
            found = self.ranges.get(QueueKey(topic, queue_id), QueueRange(0, 0))
            if offset > found.end:
                above[queue_id] = (offset, found.end)
                report.above.append(AboveMax(file, table, f"{topic}@{group}", queue_id, offset, found.end))
            elif 0 <= offset < found.first:
                below[queue_id] = (offset, found.first)
        if above:
            report.findings.append(finding(
                "consumer-offset-above-max", file, **facts, count=len(above), detail=_detail(above, "ends at"),
                queues={str(q): {"offset": o, "max": end} for q, (o, end) in above.items()},
                effect="the consumer is sent elsewhere: back to the first message on 4.x if the queue begins at 0, "
                "else to its end",
            ))
        if below:
            report.findings.append(finding(
                "consumer-offset-below-min", file, **facts, count=len(below), detail=_detail(below, "begins at"),
                queues={str(q): {"offset": o, "min": first} for q, (o, first) in below.items()},
                effect="the consumer goes on at the first message left; those before it have expired",
            ))

    def delays(self, pair: ConfigPair, report: OffsetReport) -> None:
        assert pair.chosen is not None
        file = self.store.relative(pair.main.path)
        for level, offset in read_delay_offsets(pair.chosen.value).levels.items():
            end = self.ranges.get(QueueKey(SCHEDULE_TOPIC, level - 1), QueueRange(0, 0)).end
            if offset > end:
                report.above.append(AboveMax(file, "offsetTable", "", level, offset, end))
                report.findings.append(finding(
                    "delay-offset-above-max", file, level=level, value=offset, end=end,
                    effect="new delayed messages of this level may not be delivered until the queue has grown that far",
                ))


def _detail(queues: dict[int, tuple[int, int]], verb: str) -> str:
    return ", ".join(_parts(queues, verb))


def _parts(queues: dict[int, tuple[int, int]], verb: str) -> Iterator[str]:
    for number, (queue_id, (offset, limit)) in enumerate(sorted(queues.items())):
        if number == _SHOWN:
            yield f"and {len(queues) - _SHOWN} more"
            return
        yield f"queue {queue_id} {verb} {limit}, the offset is {offset}"
