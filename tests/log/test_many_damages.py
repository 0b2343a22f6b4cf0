"""Much damage: what is found out in one pass over the rows is what each damage by itself would be told, and work that
damage makes grows with it, not with its square."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fixtures.damage import damage
from formats.record import Record, encode
from formats.record.rows import (
    BIT_FILLER,
    BIT_GHOST,
    BIT_MARKER,
    BIT_MISNUMBERED,
    BIT_PROP_CRC,
    BIT_SUPERSEDED,
    NO_MESSAGE,
    RECORD,
)
from recover.check.survey import ScanOptions, survey
from recover.derived.expected import QueueKey
from recover.evidence import restore as restoring
from recover.evidence.lost import LostPosition, Surroundings
from recover.evidence.restore import restore
from recover.log import generations
from recover.log.file_scan import FileScan
from recover.log.scan import Damage, _intact_behind
from recover.log.split_scan import one_split
from recover.repair.after import Replaced, after_replacing
from recover.repair.after import _Ranges as ReplacedRanges
from recover.repair.log_changes import keep_everything
from recover.store.columns import Rows, Split
from recover.store.mapped_files import MappedFile
from recover.store.store import Store
from tests.support.commitlog import placed_records

FILE = 1000
ROWS = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(0, 6), st.integers(0, 2),
        st.sampled_from([0, 0, 0, 0, BIT_GHOST, BIT_FILLER, BIT_MARKER, BIT_PROP_CRC]),
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


@given(ROWS, CUTS, PLACES)
def test_neighbours_of_many_ranges_are_those_of_each(
    rows: list[tuple[int, int, int, int, int]], cuts: set[int], places: set[int]
) -> None:
    records, scans = scans_of(rows, cuts)
    damaged = damages(places)
    log: Any = SimpleNamespace(damaged=damaged, splits=lambda: (split for scan in scans for split in scan.splits))
    surroundings = Surroundings(log)
    live = [row for row in records.tolist() if not row[RECORD.names.index("bits")] & BIT_GHOST]
    for each in damaged:
        before = [row for row in live if row[0] < each.start][-1:]
        behind = [row for row in live if row[0] >= each.stop][:1]
        seen = [None if neighbour is None else neighbour.store_timestamp for neighbour in surroundings.of(each)]
        assert seen == [row[0][RECORD.names.index("store_timestamp")] if row else None for row in (before, behind)]
        assert surroundings.times(each) == (seen[0] or seen[1] or 0, seen[1] or seen[0] or 0)


@given(ROWS, CUTS, PLACES)
def test_messages_behind_many_places_are_those_behind_each(
    rows: list[tuple[int, int, int, int, int]], cuts: set[int], places: set[int]
) -> None:
    records, scans = scans_of(rows, cuts)
    good = records[(records["bits"] & NO_MESSAGE) == 0]
    ordered = sorted(places)
    assert _intact_behind(scans, ordered) == [int((good["phy_offset"] >= place).sum()) for place in ordered]


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


@given(ROWS, CUTS)
def test_ends_of_queues_are_the_last_rows_of_each(rows: list[tuple[int, int, int, int, int]], cuts: set[int]) -> None:
    records, scans = scans_of(rows, cuts)
    records = records[generations.with_place(records)]
    expected = []
    for queue in range(3):
        own = records[records["queue"] == queue][-generations._RUN - 1 :]
        if own.size:
            expected.append((own["phy_offset"].tolist(), own["queue_offset"].tolist()))
    found = [(places.tolist(), offsets.tolist()) for places, offsets in generations._ends(scans, [0, 1, 2])]
    assert found == expected


@given(PLACES, st.lists(st.integers(0, 2000), max_size=30))
def test_what_lies_in_a_replaced_range_is_found(places: set[int], offsets: list[int]) -> None:
    file = MappedFile(Path("0"), 0, FILE)
    changes = [Replaced(file, damage.start, damage.stop, ()) for damage in damages(places)]
    found = ReplacedRanges(changes).hold(np.array(offsets, dtype=np.int64)).tolist()
    assert found == [any(change.start <= at < change.stop for change in changes) for at in offsets]


@pytest.mark.parametrize("name", ["killed-5.5.0", "killed-v2-ipv6-5.3.3"])
def test_the_log_as_it_will_be_is_the_same_from_memory_and_from_disk(store: Callable[[str], Path], name: str) -> None:
    root = store(name)
    for seed in range(6):
        damage("bit-in-body", root, seed)
    look = survey(Store.open(root), ScanOptions())
    changes = keep_everything(look)
    one, other = (
        after_replacing(look.log, changes.replaced, cut_from=changes.cut_from, memory=memory) for memory in (1 << 30, 0)
    )
    assert changes.replaced and one.messages > 0
    assert structs.replace(one, files=[]) == structs.replace(other, files=[])
    for rows in ("records", "hashes"):
        assert getattr(one_split(one.splits()), rows).tolist() == getattr(one_split(other.splits()), rows).tolist()


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each record that the reference codec is asked about."""
    asked: list[int] = []
    check = restoring.check_strict

    def counted(content: bytes, *arguments: Any) -> Record:
        asked.append(len(content))
        return check(content, *arguments)

    monkeypatch.setattr(restoring, "check_strict", counted)
    return asked


def test_a_range_in_which_many_records_stood_is_tried_once(tries: list[int]) -> None:
    placed = placed_records("clean-5.3.3")[:200]
    positions = [
        LostPosition(QueueKey(p.record.topic_name, p.record.queue_id), p.record.queue_offset, p.phy_offset, None)
        for p in placed
    ]
    content = b"".join(p.raw for p in placed)
    damaged = content[:4] + bytes(4) + content[8:]
    for start in (bytes(1000), damaged[:1000]):
        assert restore(start + damaged[1000:], placed[0].phy_offset, positions) is None
    assert len(tries) <= 2


def test_a_body_in_which_everything_looks_like_a_topic_is_given_up(
    tries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = placed_records("clean-5.3.3")[50]
    record = placed.record
    body = (bytes([len(record.topic)]) + record.topic) * 3000
    full = encode(structs.replace(
        record, body=body, body_crc=zlib.crc32(body) & 0x7FFFFFFF,
        total_size=record.total_size - len(record.body) + len(body),
    ))
    position = LostPosition(QueueKey(record.topic_name, record.queue_id), record.queue_offset, None, None)
    damaged = full[:12] + b"\x7f" + full[13:]
    whole = restore(damaged, placed.phy_offset, [position])
    assert whole is not None and (whole.field, encode(whole.record)) == ("queue_id", full)
    assert len(tries) > 3000
    monkeypatch.setattr(restoring, "_MOST_WORK", 100 * len(full))
    tries.clear()
    # one that fits was found, but not that it is the only one
    assert restore(damaged, placed.phy_offset, [position]) is None
    assert len(tries) <= 100
