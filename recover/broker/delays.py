"""Delay levels: what a unit of the schedule topic carries instead of a tags code."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from formats.javahash import java_long
from formats.record.rows import BIT_DELAY
from recover.findings.refusal import UsageRefusal
from recover.store.columns import Rows

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MISSING_LEVEL_MS = 1000
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_levels(text: str) -> dict[int, int]:
    """`messageDelayLevel` as level -> ms; `UsageRefusal` when the broker could not parse it."""
    table = {}
    for level, item in enumerate(text.split(), start=1):
        number, unit = item[:-1], item[-1:]
        if unit not in _UNITS or not number.isdecimal():
            raise UsageRefusal(f"messageDelayLevel: {item!r} is no delay", "Write it like the broker: 1s 5s 10m 2h.")
        table[level] = int(number) * _UNITS[unit]
    return table


class DelayTable:
    """The delays of a store: the given table, corrected by what its own units agree on.

    A broker computes deliver time = store timestamp + delay(level). Where every unit of a level
    shows the same other delay, the store was written with another table, and that one counts.
    """

    def __init__(self, levels: dict[int, int]) -> None:
        self.levels = dict(levels)
        self.observed: dict[int, int] = {}

    def delay(self, level: int) -> int:
        """Milliseconds of a level; beyond the table its highest level, missing inside it one second."""
        if level in self.observed:
            return self.observed[level]
        highest = max(self.levels, default=0)
        return self.levels.get(min(level, highest), MISSING_LEVEL_MS)

    def learn(self, rows: Rows, deliver_times: Rows) -> None:
        """Take the delays that `deliver_times` (tags codes of the units of `rows`) agree on, level by level."""
        seen: dict[int, Counter[int]] = defaultdict(Counter)
        delayed = is_delayed(rows)
        for level, delta in zip(
            rows["tags_code"][delayed].tolist(),
            (deliver_times[delayed] - rows["store_timestamp"][delayed]).tolist(),
            strict=True,
        ):
            seen[level][delta] += 1
        for level, deltas in seen.items():
            delta, count = deltas.most_common(1)[0]
            if delta != self.delay(level) and delta > 0 and count > 1 and count * 2 > sum(deltas.values()):
                self.observed[level] = delta

    def tags_codes(self, rows: Rows) -> Rows:
        """The tags code that each row's unit should carry, int64."""
        codes = rows["tags_code"].copy()
        delayed = np.flatnonzero(is_delayed(rows))
        for at in delayed:
            codes[at] = java_long(int(rows["store_timestamp"][at]) + self.delay(int(rows["tags_code"][at])))
        return np.asarray(codes)


def is_delayed(rows: Rows) -> Rows:
    """Positions whose unit carries a deliver time instead of the tags code (bool array)."""
    return np.asarray((rows["bits"] & BIT_DELAY) != 0)
