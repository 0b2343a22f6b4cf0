"""Much damage: what is found out in one pass over the rows is what each damage by itself would be told, and work that
damage makes grows with it, not with its square."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from formats.record.rows import BIT_FILLER, BIT_MARKER, BIT_MISNUMBERED, BIT_PROP_CRC, BIT_STALE, BIT_SUPERSEDED, RECORD
from recover.log import generations
from recover.log.file_scan import FileScan
from recover.log.scan import Damage
from recover.store.columns import Rows, Split
from recover.store.mapped_files import MappedFile

FILE = 1000
ROWS = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(0, 6), st.integers(0, 2),
        st.sampled_from([0, 0, 0, 0, BIT_STALE, BIT_FILLER, BIT_MARKER, BIT_PROP_CRC]),
        st.sampled_from([0, 0, 0, 8, 12]),
    ), max_size=60,
)
CUTS = st.sets(st.integers(0, 60), max_size=8)
PLACES = st.sets(st.integers(0, 2000), max_size=16)


def scans_of(rows: list[tuple[int, int, int, int, int]], cuts: set[int]) -> tuple[Rows, list[FileScan]]:
    """All rows, and scans of files of 1,000 bytes over them, cut into splits; each row a step after the one before."""
    records = np.zeros(len(rows), dtype=RECORD)
    for number, (step, queue_offset, queue, bits, sys_flag) in enumerate(rows):
        records[number]["phy_offset"] = step + (records[number - 1]["phy_offset"] if number else 0)
        records[number]["store_timestamp"] = 1000 + number
        for name, value in (("queue_offset", queue_offset), ("queue", queue), ("bits", bits), ("sys_flag", sys_flag)):
            records[number][name] = value
    scans = []
    for base in range(0, 3 * FILE, FILE):
        scan = FileScan(MappedFile(Path(f"{base:020d}"), base, FILE), FILE)
        inside = np.flatnonzero(records["phy_offset"] // FILE == base // FILE)
        borders = sorted({*inside[:1].tolist(), *(inside[-1:] + 1).tolist(), *(cuts & {*inside.tolist()})})
        scan.splits = [
            Split(records[start:stop], np.empty(0, dtype=np.int32))
            for start, stop in pairwise(borders)
        ]
        scans.append(scan)
    return records, scans


def damages(places: set[int]) -> list[Damage]:
    """Ranges between every second of these places and the next."""
    ordered = sorted(places)
    return [
        Damage(start, stop, "bad-magic", 0, "record", False, None)
        for start, stop in zip(ordered[::2], ordered[1::2], strict=False)
    ]


@given(ROWS, CUTS, st.sampled_from([1, 7, 1 << 21]))
def test_old_generations_are_those_of_each_queue_by_itself(
    rows: list[tuple[int, int, int, int, int]], cuts: set[int], at_once: int
) -> None:
    records, scans = scans_of(rows, cuts)
    expected = records["bits"].copy()
    counted = generations.counted(records)
    for queue in range(3):
        own = np.flatnonzero(counted & (records["queue"] == queue))
        stray = generations.misnumbered_among(records["queue_offset"][own])
        expected[own[stray]] |= BIT_MISNUMBERED
        own = own[~stray]
        offsets = records["queue_offset"][own].tolist()
        for at, offset in enumerate(offsets):
            restarts = [i for i in range(at + 1, len(offsets)) if offsets[i] <= offsets[i - 1]]
            if any(offsets[i] <= offset for i in restarts):
                expected[own[at]] |= BIT_SUPERSEDED
    with mock.patch.object(generations, "_AT_ONCE", at_once):
        marked = generations.mark_superseded(scans, [0, 1, 2])
    assert records["bits"].tolist() == expected.tolist()
    assert marked == int(((expected & BIT_SUPERSEDED) != 0).sum())
