"""A queue's part of recovery: which units are read, truncated and put, release by release."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from formats.consumequeue import CQ_UNIT, PRE_BLANK
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.predict.queues import BrokenStartError, QueueFile, QueueState
from recover.store.columns import Rows

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
    assert (state.max_offset, state.appended, state.misaligned) == (3, 3, 0)


def test_append_ahead_lands_at_the_current_place_and_stays_off_from_there() -> None:
    state = queue([])
    put(state, (0, 0, 100), (2, 200, 100), (3, 300, 100))
    assert (state.max_offset, state.misaligned) == (3, 2)
    assert state.units(1, 3)["phy_offset"].tolist() == [200, 300]


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
    assert [unit.item() for unit in state.units(10, 13)] == [tuple(PRE_BLANK)] * 3


def test_append_opens_a_file_behind_a_full_one() -> None:
    state = queue([])
    put(state, *[(i, i * 100, 100) for i in range(25)])
    assert [queue_file.start for queue_file in state.files] == [0, FILE, 2 * FILE]
    assert state.units(0, 25)["phy_offset"].tolist() == [i * 100 for i in range(25)]


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
