"""What is known of one consume queue, and of all of them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from formats.native.queues import BEYOND_LOG, EXPIRED, HOLE, LOST, RIGHT, WRONG
from recover.broker.delays import DelayTable
from recover.evidence.expected import QueueKey
from recover.findings import Finding
from recover.memory.columns import Rows


class QueueVerdict(Struct):
    """What one queue holds. `end` is the queue offset behind its last unit, `min_index` that of its first
    file's start; `sound` is false when a rebuild would change it. `lost` lists its (queue offset, phy_offset,
    size) units in damaged ranges, `beyond` those behind the log's end, `wrong`
    those that name no right record, and `wrong_tags` the tags codes of the last; `missing_offsets` (int64,
    ascending, or a range) are the positions without a unit."""

    key: QueueKey
    units: int = 0
    expected: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    missing: int = 0
    end: int = 0
    min_index: int = 0
    lost: list[tuple[int, int, int]] = field(default_factory=list)
    beyond: list[tuple[int, int, int]] = field(default_factory=list)
    wrong: list[tuple[int, int, int]] = field(default_factory=list)
    wrong_tags: list[int] = field(default_factory=list)
    missing_offsets: Rows | range = range(0)
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True when nothing in the queue needs to change."""
        return all(item.severity == "info" for item in self.findings)

    def misses(self, queue_offset: int) -> bool:
        """True when no unit stands at this position, and one should."""
        missing = self.missing_offsets
        if isinstance(missing, range):
            return queue_offset in missing
        at = int(np.searchsorted(missing, queue_offset))
        return at < missing.size and bool(missing[at] == queue_offset)


class ConsumeQueueReport(Struct):
    """All queues. Counts are units (cells in use) and expected positions."""

    queues: int
    verdicts: dict[QueueKey, QueueVerdict]
    delays: DelayTable
    findings: list[Finding]

    def total(self, kind: int) -> int:
        """Units of one class over all queues."""
        return sum(v.counts.get(kind, 0) for v in self.verdicts.values())

    def json(self) -> dict[str, int]:
        """The `consumequeue` object of the verify document."""
        units = expected = missing = 0
        of_kind = [0] * (WRONG + 1)
        for verdict in self.verdicts.values():
            units += verdict.units
            expected += verdict.expected
            missing += verdict.missing
            for kind, count in verdict.counts.items():
                of_kind[kind] += count
        return {
            "queues": self.queues, "units": units, "expected": expected, "missing": missing, "right": of_kind[RIGHT],
            "wrong": of_kind[WRONG], "beyond_log": of_kind[BEYOND_LOG], "expired": of_kind[EXPIRED],
            "lost": of_kind[LOST], "holes": of_kind[HOLE],
        }
