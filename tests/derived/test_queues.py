"""Queues: the class of each cell, the verdict of sums, and what a broker's recovery leaves of them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.synth import synth_store
from formats.consumequeue import CQ_UNIT, PRE_BLANK
from formats.record.rows import BIT_MARKER, EXPECTED
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.derived.expected import (
    BEYOND_LOG,
    EXPIRED,
    LOST,
    NOTHING,
    PRE_BLANK_UNIT,
    RIGHT,
    WRONG,
    Expectation,
    QueueKey,
    QueueVerdict,
)
from recover.derived.queue_check import classify_units
from recover.predict.queues import BrokenStartError, QueueFile, QueueState
from recover.reading.doubts import read
from recover.reading.facts import Facts
from recover.store.columns import Rows
from recover.store.store import Store
from tests.support.sampling import few

# --- The class that a cell of a queue gets from the log, clause by clause.


Cell = tuple[int, int, int]
GOOD: Cell = (1_100, 100, 7)
BLANK: Cell = (0, 0, 0)


def classes(
    *cells: Cell, rows: tuple[tuple[int, int, int], ...] = (), bridged: bool = False,
    bridge: tuple[int, int] | None = None,
) -> tuple[list[int], list[bool]]:
    """Of cells from queue offset 5 on, in a log of [1000, 2000) with damage in [1500, 1600)."""
    units = np.array(cells, dtype=np.int64)
    expected = np.zeros(len(rows), dtype=EXPECTED)
    for row, (place, offset, bits) in zip(expected, rows, strict=True):
        row["queue_offset"], row["phy_offset"], row["size"], row["bits"] = place, offset, 100, bits
    tags = np.full(len(rows), 7, dtype=np.int64)
    bounds = 1000, 2000, np.array([1500]), np.array([1600])
    found, missing = classify_units(
        5, units[:, 0], units[:, 1].astype(np.int32), units[:, 2], expected, tags, bounds, bridged=bridged,
        bridge=bridge,
    )
    return found.tolist(), missing.tolist()


@pytest.mark.parametrize(("cell", "kind", "is_missing"), [
    (GOOD, RIGHT, False),
    ((1_100, 100, 8), WRONG, False),
    ((1_100, 101, 7), WRONG, False),
    ((1_200, 100, 7), WRONG, False),
    ((-1, 100, 7), WRONG, False),
    ((900, 100, 7), WRONG, False),
    ((1_550, 100, 7), WRONG, False),
    ((1_950, 100, 7), BEYOND_LOG, False),
    (PRE_BLANK, PRE_BLANK_UNIT, True),
    (BLANK, NOTHING, True),
])
def test_cell_of_an_expected_message(cell: Cell, kind: int, is_missing: bool) -> None:
    assert classes(cell, rows=((5, 1_100, 0),)) == ([kind], [is_missing])


@pytest.mark.parametrize(("cell", "kind"), [
    (GOOD, WRONG), ((900, 100, 7), EXPIRED), ((1_550, 100, 7), LOST), ((1_901, 100, 7), BEYOND_LOG),
    (PRE_BLANK, PRE_BLANK_UNIT),
])
def test_cell_that_no_message_claims(cell: Cell, kind: int) -> None:
    assert classes(cell) == ([kind], [])


def test_cell_of_a_lost_message_names_its_marker_or_repeats_a_neighbour() -> None:
    rows = (5, 1_100, 0), (6, 1_200, BIT_MARKER)
    for cell, kind in (((1_200, 100, 0), LOST), (GOOD, LOST), ((1_300, 100, 7), WRONG)):
        assert classes(GOOD, cell, rows=rows) == ([RIGHT, kind], [False, False])


def test_repetition_stands_for_a_lost_message_between_live_ones_or_where_the_log_was_bridged() -> None:
    last = (5, 1_100, 0)
    assert classes(GOOD, GOOD, rows=(last,))[0] == [RIGHT, WRONG]
    assert classes(GOOD, GOOD, rows=(last,), bridged=True)[0] == [RIGHT, LOST]
    assert classes(GOOD, GOOD, (1_300, 100, 7), rows=(last, (7, 1_300, 0)))[0] == [RIGHT, LOST, RIGHT]


def test_unit_in_a_queue_without_any_message_left_names_the_bridge() -> None:
    assert classes(GOOD, bridged=True)[0] == [WRONG]
    assert classes(GOOD, bridged=True, bridge=GOOD[:2])[0] == [LOST]
    assert classes((1_100, 101, 7), bridged=True, bridge=GOOD[:2])[0] == [WRONG]


def test_unit_of_an_expired_message_between_live_ones_is_wrong() -> None:
    rows = (5, 1_100, 0), (7, 1_300, 0)
    assert classes(GOOD, (900, 100, 7), (1_300, 100, 7), rows=rows)[0] == [RIGHT, WRONG, RIGHT]


def test_nothing_counts_after_the_first_cell_without_a_unit() -> None:
    rows = (5, 1_100, 0), (6, 1_200, 0), (9, 1_300, 0)
    assert classes(GOOD, BLANK, (1_200, 100, 7), rows=rows) == ([RIGHT, NOTHING, NOTHING], [False, True, True])


# --- Queues whose units have the sum that the log calls for: the verdict is that of a look at each unit.


FEW = ("clean-plain-4.9.7", "killed-expired-5.3.3", "clean-expired-5.5.0", "killed-lmq-4.9.7", "killed-ext-5.5.0")
StoreCopy = Callable[[str], Path]


def plain(verdict: QueueVerdict) -> dict[str, Any]:
    """All of a verdict but the way to it."""
    fields = {name: getattr(verdict, name) for name in QueueVerdict.__slots__ if name != "live"}
    return fields | {"missing_offsets": verdict.missing_offsets.tolist()}


def verdicts(root: Path) -> list[dict[str, Any]]:
    """What verify says of each queue, in its order."""
    queues = read(Facts.of(Store.open(root))).queues
    assert queues is not None
    return [plain(verdict) for verdict in queues.verdicts.values()]


def one_by_one(root: Path) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Expectation, "tally_of", lambda *_: None)
        return verdicts(root)


@few("name", FEW, quick=3)
def test_any_changed_byte_gets_the_verdict_of_a_look(name: str, store: StoreCopy) -> None:
    root, choice = store(name), random.Random(name)
    files = [path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()]
    for _ in range(10):
        path = choice.choice(files)
        before = path.read_bytes()
        written = max(CQ_UNIT.size, len(before.rstrip(b"\0")))
        content = bytearray(before)
        content[choice.randrange(min(len(before), written + 2 * CQ_UNIT.size))] ^= 1 << choice.randrange(8)
        path.write_bytes(content)
        assert verdicts(root) == one_by_one(root), path
        path.write_bytes(before)


def test_a_changed_unit_of_an_expired_message_gets_the_verdict_of_a_look(store: StoreCopy) -> None:
    root = store("clean-expired-5.5.0")
    path = root / "consumequeue/Orders/0" / f"{0:020}"  # its first units are of expired messages
    content = path.read_bytes()
    for at in range(CQ_UNIT.size):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
        assert verdicts(root) == one_by_one(root), at


@pytest.mark.parametrize("stands_there", ["nothing", "an empty folder"])
@pytest.mark.parametrize("of", ["queue", "topic"])
def test_a_queue_without_files_lacks_all_its_units_whatever_stands_in_its_place(
    tmp_path: Path, of: str, stands_there: str
) -> None:
    synth_store(tmp_path, messages=40, topics=2, queues=2)
    folder = tmp_path / "consumequeue" / "Topic1"
    if of == "queue":
        folder /= "1"
    shutil.rmtree(folder)
    if stands_there == "an empty folder":
        folder.mkdir()
    queues = read(Facts.of(Store.open(tmp_path))).queues
    assert queues is not None
    gone = ["1"] if of == "queue" else ["0", "1"]
    assert [(item.code, item.file, item.offset, item.facts["count"]) for item in queues.findings] == [
        ("consumequeue-missing-units", f"consumequeue/Topic1/{number}", None, 10) for number in gone
    ]
    lacking = {key: (found.missing, found.expected) for key, found in queues.verdicts.items() if found.missing}
    assert lacking == {QueueKey("Topic1", int(number)): (10, 10) for number in gone}


# --- A queue's part of recovery: which units are read, truncated and put, release by release.


FILE = 10 * CQ_UNIT.size


def units(*triples: tuple[int, int]) -> Rows:
    return np.array([(phy, size, 0) for phy, size in triples], dtype=CQ_UNIT.dtype)


def on_disk(folder: Path, *contents: Rows, first: int = 0) -> list[QueueFile]:
    files = []
    for number, content in enumerate(contents):
        path = folder / f"{first + number * FILE:020d}"
        path.write_bytes(content.tobytes().ljust(FILE, b"\0"))
        files.append(QueueFile(first + number * FILE, FILE, path))
    return files


def queue(files: list[QueueFile], version: str = "5.3.3") -> QueueState:
    state = QueueState("T", 0, FILE, files, BrokerSettings(BrokerVersion.parse(version), {}))
    state.recover()
    return state


def put(state: QueueState, *messages: tuple[int, int, int]) -> None:
    """(queue offset, phy offset, size) each."""
    state.append(np.array([m[0] for m in messages]), units(*[(m[1], m[2]) for m in messages]))


def held(state: QueueState) -> list[int]:
    """Where in the log the units of a queue lead, in its order."""
    return [at for queue_file in state.files for at in queue_file.valid()["phy_offset"].tolist()]


def test_recovery_of_a_queue_ends_at_the_first_invalid_unit(tmp_path: Path) -> None:
    full = units(*[(i * 100, 100) for i in range(10)])
    state = queue(on_disk(tmp_path, full, units((1000, 100), (1100, 0), (1200, 100)), full))
    assert (state.max_offset, state.max_physic) == (11, 1100)
    assert [queue_file.start for queue_file in state.deleted] == [2 * FILE]


def test_recovery_of_a_queue_reads_three_files_only(tmp_path: Path) -> None:
    full = units(*[(i * 100, 100) for i in range(10)])
    broken = units((0, 100))
    assert queue(on_disk(tmp_path, broken, full, full, full)).max_offset == 40


def test_truncation_keeps_a_unit_that_only_begins_before_the_end(tmp_path: Path) -> None:
    state = queue(on_disk(tmp_path, units((0, 100), (100, 100), (200, 100))))
    state.truncate(150)
    assert (state.max_offset, state.max_physic) == (2, 200)


def test_truncation_drops_files_that_begin_behind_the_end(tmp_path: Path) -> None:
    full = units(*[(i * 100, 100) for i in range(10)])
    state = queue(on_disk(tmp_path, full, units((1000, 100))))
    state.truncate(1000)
    assert state.max_offset == 10 and len(state.deleted) == 1
    state.truncate(0)
    assert (state.max_offset, state.max_physic, len(state.deleted)) == (0, 0, 2)


def test_truncation_of_a_zero_file_leaves_a_phantom_unit(tmp_path: Path) -> None:
    state = queue(on_disk(tmp_path, units()))
    state.truncate(500)
    assert (state.max_offset, state.max_physic) == (1, 0)


def test_append_passes_over_what_the_queue_has_reached() -> None:
    state = queue([])
    put(state, (0, 0, 100), (1, 100, 100))
    put(state, (0, 0, 100), (1, 100, 100), (2, 200, 100))
    assert (state.max_offset, held(state), state.misaligned) == (3, [0, 100, 200], 0)


def test_append_ahead_lands_at_the_current_place_and_stays_off_from_there() -> None:
    state = queue([])
    put(state, (0, 0, 100), (2, 200, 100), (3, 300, 100))
    assert (state.max_offset, state.misaligned) == (3, 2)
    assert held(state) == [0, 200, 300]


def test_append_behind_is_a_repetition_but_for_queue_offset_zero() -> None:
    state = queue([])
    put(state, (0, 0, 100), (1, 100, 100), (2, 200, 100), (1, 300, 100))
    assert state.max_offset == 3
    put(state, (0, 400, 100))
    assert (state.max_offset, state.misaligned) == (4, 1)


def test_queue_offsets_that_only_damage_makes_do_no_harm() -> None:
    state = queue([])
    put(state, (0, 0, 100), (-3, 100, 100), (1 << 62, 200, 100), (1, 300, 100))
    assert state.max_offset == 2


def test_new_queue_is_filled_with_pre_blanks_up_to_its_first_message() -> None:
    state = queue([])
    put(state, (13, 5000, 100))
    assert [queue_file.start for queue_file in state.files] == [FILE]
    assert (state.min_offset, state.max_offset) == (13, 14)
    assert [unit.item() for unit in state.files[0].valid()[:3]] == [tuple(PRE_BLANK)] * 3


def test_append_opens_a_file_behind_a_full_one() -> None:
    state = queue([])
    put(state, *[(i, i * 100, 100) for i in range(25)])
    assert [queue_file.start for queue_file in state.files] == [0, FILE, 2 * FILE]
    assert held(state) == [i * 100 for i in range(25)]


def test_append_goes_over_stale_units_and_truncation_reads_what_lies_behind(tmp_path: Path) -> None:
    state = queue(on_disk(tmp_path, units((0, 100), (100, 100), (0, 0), (300, 100))))
    assert state.max_offset == 2
    put(state, (2, 200, 100))
    state.truncate(10_000)
    assert state.max_offset == 4


def test_releases_up_to_4_4_compare_the_start_of_the_last_message() -> None:
    for version, reached in (("4.4.0", 0), ("4.5.1", 100)):
        state = queue([], version)
        put(state, (0, 0, 100))
        assert state.max_physic == reached


def test_min_is_the_first_live_unit_of_the_first_file(tmp_path: Path) -> None:
    full = units(*[(i * 100, 100) for i in range(10)])
    for version in ("4.9.7", "5.3.3"):
        state = queue(on_disk(tmp_path, full, units((1000, 100))), version)
        state.correct_min(350)
        assert state.min_offset == 4


def test_min_of_an_expired_queue_is_its_max_from_5_0_0(tmp_path: Path) -> None:
    for version, low in (("4.9.7", 0), ("5.0.0", 2)):
        state = queue(on_disk(tmp_path, units((0, 100), (100, 100))), version)
        state.correct_min(5000)
        assert state.min_offset == low


def test_last_file_without_a_unit_breaks_the_start_from_5_0_0_to_5_4_0(tmp_path: Path) -> None:
    full = units(*[(i * 100, 100) for i in range(10)])
    files = on_disk(tmp_path, full, full, full, units())
    for version in ("5.0.0", "5.3.3", "5.4.0"):
        with pytest.raises(BrokenStartError):
            queue(files, version).correct_min(0)
    for version in ("4.9.7", "5.5.0"):
        state = queue(files, version)
        state.correct_min(0)
        assert (state.min_offset, state.max_offset) == (0, 30)


def test_content_of_a_queue_file_is_not_changed_on_disk(tmp_path: Path) -> None:
    files = on_disk(tmp_path, units((0, 100)))
    before = os.stat(files[0].path or "").st_mtime_ns, (tmp_path / files[0].path.name).read_bytes()  # type: ignore[union-attr]
    state = queue(files)
    put(state, (1, 100, 100))
    state.truncate(50)
    assert (os.stat(files[0].path or "").st_mtime_ns, (files[0].path or tmp_path).read_bytes()) == before
