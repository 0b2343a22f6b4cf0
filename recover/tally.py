"""What a pass over all rows of a log counts, queue by queue and in all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from formats.tally_kernels import (
    BITS,
    FILLERS,
    FLAGS,
    LAST_TIME,
    MARKERS,
    MESSAGES,
    NEWEST_TIME,
    TOTALS,
    tally_rows,
)
from recover.columns import Rows
from recover.scan import FileScan


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over the live rows of a log, those without ghosts and superseded records.

    One a queue: `positions` (int64) in it, `least` and `most` its queue offsets (int64, `most` -1 where it has none),
    `fallen` (bool) whether they fall back somewhere along the log. `bits` and `flags` are those of all rows, or-ed.
    Fillers, markers and times (ms) are also those of superseded records.
    """

    positions: Rows = field(compare=False)
    least: Rows = field(compare=False)
    most: Rows = field(compare=False)
    fallen: Rows = field(compare=False)
    messages: int
    fillers: int
    markers: int
    last_timestamp: int
    newest_timestamp: int
    bits: int
    flags: int


def tally(scans: Iterable[FileScan], queues: int) -> Tally:
    """Count the rows of these scans, whose rows number `queues` queues."""
    last_offset = np.full(queues, -1, dtype=np.int64)
    fallen = np.zeros(queues, dtype=np.bool_)
    positions = np.zeros(queues, dtype=np.int64)
    least = np.full(queues, np.iinfo(np.int64).max)
    most = np.full(queues, -1, dtype=np.int64)
    totals = np.zeros(TOTALS, dtype=np.int64)
    for scan in scans:
        for split in scan.splits:
            tally_rows(np.asarray(split.records), last_offset, fallen, positions, least, most, totals)
    return Tally(
        positions, least, most, fallen, *(int(totals[at]) for at in (
            MESSAGES, FILLERS, MARKERS, LAST_TIME, NEWEST_TIME, BITS, FLAGS,
        )),
    )
