"""Queues put beside the rows of the log are those that the builder of single queues makes, or are left to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fixtures.damage import NotApplicable, damage, of_area
from fixtures.lab.packed import WHOLE_BROKER, made, settings
from fixtures.synth import synth_store
from formats.consumequeue import PRE_BLANK
from formats.native.queues import LEFT_OUT, put_blanks, put_plain
from formats.record.rows import BIT_DELAY, BIT_GHOST, BIT_MARKER, RECORD
from recover.change.content import Spool
from recover.change.model import Step
from recover.check.survey import Survey
from recover.derived import plain_queues as module
from recover.derived.plain_queues import consumequeue_steps, fresh_queues, plain_queues, plain_steps
from recover.derived.queue_check import check_consumequeue
from recover.derived.queues import QueueBuilder, QueueCells, queue_steps
from recover.log.scan import tally
from tests.support.looks import looked_at

Copy = Callable[[str], Path]
STORES = (*WHOLE_BROKER, *made())


def _builder(seen: Survey, **options: object) -> QueueBuilder:
    return QueueBuilder(seen.store, seen.delays, seen.log.min_offset, seen.log.log_end, **options)  # type: ignore[arg-type]


def _bare(root: Path) -> Survey:
    """A look at a store whose queues are gone."""
    for name in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(root / name, ignore_errors=True)
    conf = settings(root.name) if root.name in STORES else {}
    return looked_at(root, **{name: str(value) for name, value in conf.items()})[1]


def _one_by_one(seen: Survey) -> dict[object, QueueCells]:
    builder = _builder(seen)
    return {key: builder.fresh(key, rows.copy()) for key, rows in seen.expectation.grouped()}


def _assert_same(queue: QueueCells, other: QueueCells) -> None:
    assert queue.first_index == other.first_index
    assert queue.cells.tobytes() == other.cells.tobytes()
    assert other.ext is None or not list(other.ext.files())


@pytest.mark.parametrize("name", STORES)
def test_plain_queues_are_those_that_are_built_one_by_one(name: str, store: Copy) -> None:
    seen = _bare(store(name))
    expected = _one_by_one(seen)
    plain = {queue.key: queue for queue in plain_queues(_builder(seen), seen.expectation, None)}
    assert plain or not expected
    for key, queue in plain.items():
        _assert_same(queue, expected[key])


@pytest.mark.parametrize("recipe", sorted(of_area("log", "crash", "files")))
def test_what_is_not_plain_is_left_to_the_builder_of_single_queues(recipe: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=600, mapped_file_size=64 * 1024, queue_file_size=400)
    try:
        damage(recipe, root, 5)
    except NotApplicable:
        pytest.skip("the store lacks what this damages")
    seen = _bare(root)
    expected = _one_by_one(seen)
    found = {queue.key: queue for queue in fresh_queues(_builder(seen), seen.expectation, None)}
    assert found.keys() == expected.keys()
    for key, queue in found.items():
        _assert_same(queue, expected[key])


def test_as_many_passes_as_their_room_calls_for_make_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth_store(tmp_path / "s", messages=900, topics=5, queues=6)
    seen = _bare(tmp_path / "s")
    expected = _one_by_one(seen)
    monkeypatch.setattr(module, "_AT_ONCE", 2000)
    found = list(plain_queues(_builder(seen), seen.expectation, None))
    assert len(found) == 30
    for queue in found:
        _assert_same(queue, expected[queue.key])


def test_only_wanted_queues_are_made(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=200)
    seen = _bare(tmp_path / "s")
    wanted = {key for key in seen.expectation.queues() if key.queue_id == 1}
    assert {queue.key for queue in plain_queues(_builder(seen), seen.expectation, wanted)} == wanted
    assert {queue.key for queue in fresh_queues(_builder(seen), seen.expectation, wanted)} == wanted


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue_ext"])
def test_a_queue_with_a_folder_is_not_plain(tmp_path: Path, folder: str) -> None:
    synth_store(tmp_path / "s", messages=200)
    seen = _bare(tmp_path / "s")
    (tmp_path / "s" / folder / "Topic1" / "2").mkdir(parents=True)
    left_out = set(seen.expectation.queues()) - {
        queue.key for queue in plain_queues(_builder(seen), seen.expectation, None)
    }
    assert {(key.topic, key.queue_id) for key in left_out} == {("Topic1", 2)}


def _files(steps: Iterable[Step]) -> dict[str, bytes]:
    return {step.file: b"".join(map(bytes, step.content.chunks())) for step in steps if step.content is not None}


def _put_counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that units are made."""
    made: list[int] = []
    put = module._put
    monkeypatch.setattr(module, "_put", lambda log, batch: (made.append(len(batch)), put(log, batch))[1])
    return made


@pytest.mark.parametrize("name", STORES)
def test_steps_for_plain_queues_write_the_files_of_those_built_one_by_one(name: str, store: Copy) -> None:
    seen = _bare(store(name))
    expected = _one_by_one(seen)
    steps = dict(plain_steps(_builder(seen), seen.expectation, None, Spool()))
    assert steps or not expected
    for key, own in steps.items():
        assert _files(own) == _files(queue_steps(seen.store, expected[key], Spool()))


def test_units_are_made_when_they_are_written_once_for_all_queues_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    synth_store(tmp_path / "s", messages=900, topics=4, queues=6, queue_file_size=400)
    for topic in range(1, 4):
        # those of the first topic stay, and tell how long a file is
        shutil.rmtree(tmp_path / f"s/consumequeue/Topic{topic}")
    seen = looked_at(tmp_path / "s")[1]
    expected = _one_by_one(seen)
    made = _put_counted(monkeypatch)
    monkeypatch.setattr(module, "_AT_ONCE", 4600)
    steps = dict(plain_steps(_builder(seen), seen.expectation, None, Spool()))
    assert len(steps) == 18 and not made
    for _ in range(2):
        for key, own in steps.items():
            assert len(own) > 1 and _files(own) == _files(queue_steps(seen.store, expected[key], Spool()))
    assert made == [6, 6, 6] * 2


def test_two_who_write_at_once_both_get_their_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synth_store(tmp_path / "s", messages=900, topics=5, queues=6)
    seen = _bare(tmp_path / "s")
    expected = {key: _files(queue_steps(seen.store, queue, Spool())) for key, queue in _one_by_one(seen).items()}
    monkeypatch.setattr(module, "_AT_ONCE", 2000)
    steps = dict(plain_steps(_builder(seen), seen.expectation, None, Spool()))
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(steps, pool.map(_files, steps.values()), strict=True))
    assert found == expected


def test_rows_that_are_no_longer_what_was_counted_are_not_written(tmp_path: Path) -> None:
    synth_store(tmp_path / "s", messages=200)
    seen = _bare(tmp_path / "s")
    steps = [step for _, own in plain_steps(_builder(seen), seen.expectation, None, Spool()) for step in own]
    for split in seen.log.splits():
        split.records["queue_offset"][5] += 1
    with pytest.raises(RuntimeError, match="not as they were counted"):
        _files(steps)


@pytest.mark.parametrize(("bit", "taken"), [(BIT_DELAY, 7), (BIT_MARKER, 0)])
def test_where_counts_do_not_prove_it_units_are_made_to_see_which_queues_are_plain(
    bit: int, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    synth_store(tmp_path / "s", messages=200, topics=2, queues=4)
    seen = _bare(tmp_path / "s")
    expected = _one_by_one(seen)
    made = _put_counted(monkeypatch)
    next(iter(seen.log.splits())).records["bits"][0] |= bit
    seen.log.tally = tally(seen.log.files, len(seen.log.queues))
    steps = dict(plain_steps(_builder(seen), seen.expectation, None, Spool()))
    assert len(steps) == taken and made == [8] * bool(taken)
    for key, own in steps.items():
        assert _files(own) == _files(queue_steps(seen.store, expected[key], Spool()))


def _rows(*places: tuple[int, int, int]) -> np.ndarray[object, np.dtype[np.void]]:
    """Rows of 100 bytes each with queue, queue offset and bits."""
    rows = np.zeros(len(places), dtype=RECORD)
    for number, (queue, queue_offset, bits) in enumerate(places):
        rows[number]["phy_offset"], rows[number]["size"] = 100 * number, 100
        rows[number]["queue"], rows[number]["queue_offset"], rows[number]["bits"] = queue, queue_offset, bits
    return rows


@pytest.mark.parametrize(
    ("last", "taken"),
    [
        ((0, 2, 0), True), ((0, 3, 0), False), ((0, 1, 0), False), ((0, 2, BIT_MARKER), False),
        ((0, 2, BIT_DELAY), False), ((1, 2, 0), True), ((0, 9, BIT_GHOST), True),
    ],
)
def test_a_queue_is_left_out_from_the_first_row_on_that_is_not_plain(last: tuple[int, int, int], taken: bool) -> None:
    units = np.zeros(60, dtype=np.uint8)
    at, stops, due = (np.array(numbers, dtype=np.int64) for numbers in ([0, LEFT_OUT], [60, 0], [0, 0]))
    put_plain(_rows((0, 0, 0), (0, 1, 0), last), at, stops, due, units)
    assert (at[0] != LEFT_OUT) == taken and at[1] == LEFT_OUT


def test_no_unit_is_put_behind_the_room_of_its_queue() -> None:
    for room, stop in ((60, 40), (50, 60)):
        units = np.full(room, 7, dtype=np.uint8)
        at, stops, due = (np.array([number], dtype=np.int64) for number in (0, stop, 0))
        put_plain(_rows((0, 0, 0), (0, 1, 0), (0, 2, 0)), at, stops, due, units)
        assert at[0] == LEFT_OUT and (units[40:] == 7).all()
    put_blanks(units, 0, 9)
    assert (units[40:] == 7).all() and units[:40].tobytes() == _blank() * 2


def _blank() -> bytes:
    offset, size, tags = PRE_BLANK
    return offset.to_bytes(8, "big") + size.to_bytes(4, "big") + tags.to_bytes(8, "big", signed=True)


def test_steps_stand_in_the_order_of_the_log_s_queues_whoever_makes_them(tmp_path: Path) -> None:
    root = tmp_path / "s"
    synth_store(root, messages=200)
    seen = _bare(root)
    (root / "consumequeue" / "Topic1" / "2").mkdir(parents=True)
    steps = list(consumequeue_steps(
        seen.store, seen.log, seen.expectation, check_consumequeue(seen.store, seen.log, seen.expectation, seen.delays),
        Spool(),
    ))
    queues = [Path(step.file).parts[1:3] for step in steps]
    assert queues == [(key.topic, str(key.queue_id)) for key in seen.expectation.keys]
