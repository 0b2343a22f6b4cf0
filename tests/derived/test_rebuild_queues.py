"""Queues and ext files computed from the log: as the broker wrote them, and repaired where something is wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.damage import damage
from fixtures.lab.packed import WHOLE_BROKER, made, settings
from formats.basics import offset_to_name
from formats.consumequeue import CQ_UNIT, CqExtUnit, decode_ext, encode_ext, ext_address
from formats.record.message import TOPIC_HALF, TOPIC_ROCKSDB_HALF
from formats.record.rows import BIT_MARKER, EXPECTED
from recover.change.carry_out import apply_plan
from recover.change.content import LazyContent, Spool, padded
from recover.change.model import Plan, Step
from recover.change.preconditions import seal
from recover.derived.expected import QueueKey
from recover.derived.queues import QueueBuilder, queue_steps
from recover.findings.model import Finding
from recover.reading.doubts import read
from recover.reading.facts import Facts, ScanOptions
from recover.reading.reading import Reading
from recover.repair.rebuild import RebuildOptions, plan_rebuild
from recover.store.derived_files import QueueFiles
from recover.store.store import Store
from tests.support.analysed import analysed, opened
from tests.support.sparse import data_chunks
from tests.support.stores import write_at

# --- Queues computed from the log: the broker's own where nothing is wrong, and repaired where something is.


Copy = Callable[[str], Path]
STORES = (*WHOLE_BROKER, *made())
#: One store for each thing that queues can have: ext files, LMQ, delays, several files, expired units.
KINDS = ("clean-5.3.3", "clean-expired-4.5.1", "killed-ext-5.5.0", "killed-lmq-4.9.7", "killed-manyfiles-5.5.0")


def builder(analysis: Reading) -> QueueBuilder:
    return QueueBuilder(analysis.store, analysis.delays, analysis.log.min_offset, analysis.log.log_end)


def queue_tree(root: Path) -> dict[str, bytes]:
    """Every file of the queues and their ext files, those without any unit left out."""
    files = {}
    for path in root.glob("consumequeue*/*/*/*"):
        with path.open("rb") as file:
            content = b"".join(b"%d:" % offset + chunk for offset, chunk in data_chunks(file.fileno()))
        if content:
            files[path.relative_to(root).as_posix()] = b"%d " % path.stat().st_size + content
    return files


def rebuild(root: Path, *, include_deleted: bool = False, **options: object) -> int:
    """Rebuild queues in place, knowing the broker's settings; how many steps it took."""
    conf = {name: str(value) for name, value in settings(root.name).items()}
    scan = ScanOptions(include_deleted=include_deleted)
    store = opened(root, settings=conf)
    made = plan_rebuild(store, RebuildOptions(scan, ("consumequeue",), **options))  # type: ignore[arg-type]
    apply_plan(root, seal(made.plan, root))
    return len(made.plan.steps)


def judged(root: Path) -> dict[str, int]:
    """What verify counts in the queues."""
    _, analysis = analysed(root, **{name: str(value) for name, value in settings(root.name).items()})
    assert analysis.queues is not None
    return analysis.queues.json()


@pytest.mark.parametrize("name", STORES)
def test_queues_built_from_nothing_are_the_broker_s_from_the_first_live_unit_on(name: str, store: Copy) -> None:
    root = store(name)
    opened_store, analysis = analysed(root)
    live = analysis.log.min_offset
    for key, rows in analysis.expectation.grouped():
        for base, content in builder(analysis).fresh(key, rows).files(opened_store.queue_file_size):
            path = opened_store.consumequeue_dir / key.topic / str(key.queue_id) / offset_to_name(base)
            ours = np.frombuffer(bytes(content).ljust(opened_store.queue_file_size, b"\0"), dtype=CQ_UNIT.dtype)
            theirs = np.frombuffer(path.read_bytes(), dtype=CQ_UNIT.dtype)
            gone = (theirs["phy_offset"] < live) & (theirs["size"] > 0)
            assert (ours[~gone] == theirs[~gone]).all(), path
            assert (ours["size"][gone] == 0x7FFFFFFF).all(), path


@pytest.mark.parametrize("topic", ["TopicA", TOPIC_HALF, TOPIC_ROCKSDB_HALF])
@pytest.mark.parametrize("visible", [False, True])
def test_parts_of_a_queue_are_the_whole_of_it(visible: bool, topic: str, store: Copy) -> None:
    """Wherever messages are missing or lost, a whole part long, or at the beginning: the unit beside them stands for
    them."""
    rng = np.random.default_rng(7)
    _, analysis = analysed(store("killed-manyfiles-5.5.0"))
    made, key = QueueBuilder(analysis.store, analysis.delays, 0, 1 << 40, visible=visible), QueueKey(topic, 9)
    places = 2 * made.file_cells
    torn = 0
    for case in range(60):
        rows = np.zeros(int(rng.integers(1, 9 * places)), dtype=EXPECTED)
        start, steps = int(rng.integers(0, 3 * places)), np.ones(rows.size, dtype=np.int64)
        steps[rng.integers(0, rows.size, case % 4)] += rng.integers(0, 3 * places, case % 4)
        rows["queue_offset"] = start + np.cumsum(steps)
        rows["phy_offset"], rows["size"], rows["tags_code"] = 1000 * np.arange(rows.size), 1000, np.arange(rows.size)
        lost, stop = rng.integers(0, rows.size, 2)
        rows["bits"][: lost if case % 3 else 0] = BIT_MARKER
        rows["bits"][lost : stop if case % 5 else rows.size] = BIT_MARKER
        number = rows["queue_offset"] // places
        parts = {part: rows[number == part] for part in np.unique(number).tolist()}
        whole = made.fresh(key, rows)
        beside = made.beside(key, places, {part: made.ends(key, own) for part, own in parts.items()})
        cells = [made.fresh(key, own, beside=beside[part]) for part, own in parts.items()]
        assert [queue.first_index for queue in cells[1:]] == [part * places for part in [*parts][1:]]
        assert cells[0].first_index == whole.first_index
        assert (np.concatenate([queue.cells for queue in cells]) == whole.cells).all(), case
        torn += len(parts) > 1 and any(before.size and before["bits"][0] for before, _ in beside.values())
    assert torn > 10


@pytest.mark.parametrize("name", ["clean-expired-4.5.1", "clean-expired-5.5.0"])
def test_a_rebuild_never_removes_a_queue_nor_lowers_its_end(name: str, store: Copy) -> None:
    root = store(name)
    before = ends(root)
    damage("queues-behind", root, seed=2)
    assert ends(root) != before
    rebuild(root)
    assert ends(root) == before
    assert {item.topic for item in before} == {item.topic for item in ends(root)}


def ends(root: Path) -> dict[QueueKey, int]:
    """Queue offset after the last unit of each queue."""
    queues = analysed(root)[1].queues
    assert queues is not None
    return {key: verdict.end for key, verdict in queues.verdicts.items()}


@pytest.mark.parametrize("newer_table", [False, True])
def test_an_lmq_queue_comes_back_unless_a_newer_table_shows_that_it_was_deleted(newer_table: bool, store: Copy) -> None:
    root = store("killed-lmq-4.9.7")
    before = queue_tree(root)
    damage("lmq-queue-missing", root, seed=1)
    if newer_table:
        topics = root / "config" / "topics.json"
        topics.write_text(topics.read_text().replace("1700000000000", "4000000000000"))
        assert rebuild(root) == 0
    assert rebuild(root, include_deleted=newer_table) == 2
    assert queue_tree(root) == before


def test_lost_positions_repeat_the_unit_in_front(store: Copy) -> None:
    """The log is damaged in the middle: what lies after keeps its queue offset."""
    root = store("clean-5.3.3")
    done = damage("bit-in-body", root, seed=4)
    _, analysis = analysed(root)
    lost = [position for positions in analysis.losses.by_damage for position in positions]
    assert [position.phy_offset for position in lost] == list(done.lost)
    key, index = lost[0].key, lost[0].queue_offset
    shutil.rmtree(root / "consumequeue" / key.topic / str(key.queue_id))
    rebuild(root)
    _, after = analysed(root)
    assert after.queues is not None
    verdict = after.queues.verdicts[key]
    assert [item.code for item in verdict.findings if item.severity != "info"] == []
    cells = np.frombuffer(
        (root / "consumequeue" / key.topic / str(key.queue_id) / offset_to_name(0)).read_bytes(), dtype=CQ_UNIT.dtype
    )
    neighbour = index - 1 if index else index + 1
    assert cells[index] == cells[neighbour]
    assert verdict.missing == 0


def test_zeros_do_not_stand_in_for_content_that_comes_up_short() -> None:
    content = Spool(in_memory=0).padded(b"unit" + bytes(4), 64)
    assert b"".join(content.chunks()) == b"unit" + bytes(60)
    short = LazyContent(4, lambda: [b"un"])
    with pytest.raises(RuntimeError, match="2 bytes instead of 4"):
        list(padded(short, 64))


# --- Ext files of a queue: as the broker wrote them, and repaired where something broke them.


QUEUE = QueueKey("Orders", 1)
MAP = b"\x81\x00\x00\x00\x00\x00\x00\x18"


def analysed_at(root: Path) -> Reading:
    return read(Facts.of(Store.open(root)))


def steps(analysis: Reading) -> list[Step]:
    """What puts every queue of the store right."""
    found: list[Step] = []
    for key, rows in analysis.expectation.grouped():
        cells = builder(analysis).repaired(QueueFiles(analysis.store, *key), rows)
        assert cells is not None
        found += queue_steps(QueueFiles(analysis.store, *key), cells, Spool())
    return found


def repair(root: Path) -> Reading:
    """Apply those steps; the store afterwards."""
    apply_plan(root, seal(Plan("rebuild", list(steps(analysed_at(root)))), root))
    return analysed_at(root)


def queue_findings(analysis: Reading, *codes: str) -> list[Finding]:
    assert analysis.queues is not None
    found = [item for item in analysis.queues.findings if item.severity != "info"]
    return [item for item in found if item.code in (codes or (item.code,))]


def ext_file(root: Path, key: QueueKey = QUEUE, base: int = 0) -> Path:
    return root / "consumequeue_ext" / key.topic / str(key.queue_id) / offset_to_name(base)


def cells_of(root: Path, key: QueueKey = QUEUE) -> list[tuple[Path, int]]:
    """File and byte position of each unit of a queue."""
    folder = root / "consumequeue" / key.topic / str(key.queue_id)
    return [
        (path, number * CQ_UNIT.size)
        for path in sorted(folder.iterdir())
        for number, unit in enumerate(CQ_UNIT.decode_all(path.read_bytes())) if unit.size > 0
    ]


def units_at(path: Path) -> list[tuple[int, CqExtUnit]]:
    content, position, found = path.read_bytes(), 0, []
    while content[position : position + 2] not in (b"", b"\0\0", b"\xff\xff"):
        unit, size = decode_ext(content, position)
        found.append((position, unit))
        position += size
    return found


def give_maps(root: Path, key: QueueKey = QUEUE) -> None:
    """Give every third ext unit of a queue of one ext file a filter bit map, addresses and all."""
    path = ext_file(root, key)
    size = path.stat().st_size
    content = b""
    for number, ((file, position), (_, unit)) in enumerate(zip(cells_of(root, key), units_at(path), strict=True)):
        write_at(file, position + 12, ext_address(len(content)).to_bytes(8, "big", signed=True))
        content += encode_ext(unit._replace(bit_map=MAP if number % 3 == 0 else b""))
    path.write_bytes(content.ljust(size, b"\0"))


def maps(root: Path) -> int:
    return sum(bool(unit.bit_map) for _, unit in units_at(ext_file(root)))


def test_bit_maps_of_a_sound_queue_are_kept(store: Copy) -> None:
    root = store("killed-ext-5.5.0")
    give_maps(root)
    analysis = analysed_at(root)
    assert queue_findings(analysis) == []
    assert steps(analysis) == []


@pytest.mark.parametrize("damage", [b"\0" * 20, b"\x7f" * 20, b"\0\x14" + b"\x01" * 8], ids=["zeros", "size", "tags"])
@pytest.mark.parametrize("with_maps", [False, True])
def test_one_broken_ext_unit_is_found_and_made_again(damage: bytes, with_maps: bool, store: Copy) -> None:
    root = store("killed-ext-5.5.0")
    if with_maps:
        give_maps(root)
    before, kept = ext_file(root).read_bytes(), maps(root)
    position, _ = units_at(ext_file(root))[10]
    write_at(ext_file(root), position, damage)
    found = queue_findings(analysed_at(root), "consumequeue-ext-broken")
    assert [(item.file, item.offset) for item in found[:1]] == [(ext_file(root).relative_to(root).as_posix(), position)]
    assert queue_findings(analysed_at(root), "consumequeue-wrong-units") == []
    assert queue_findings(repair(root)) == []
    assert ext_file(root).read_bytes() == before
    assert maps(root) == kept


def test_a_broken_unit_with_a_map_costs_that_map_alone(store: Copy) -> None:
    root = store("killed-ext-5.5.0")
    give_maps(root)
    before = maps(root)
    position, unit = units_at(ext_file(root))[12]
    assert unit.bit_map
    write_at(ext_file(root), position, b"\x7f" * 20)
    after = repair(root)
    assert queue_findings(after) == []
    assert steps(after) == []
    assert maps(root) == before - 1


def test_tags_code_without_address_is_right_where_the_broker_wrote_it(store: Copy) -> None:
    """The switch was turned on while the queue was in use."""
    root = store("killed-ext-5.5.0")
    for (path, position), (_, unit) in list(zip(cells_of(root), units_at(ext_file(root)), strict=True))[:5]:
        write_at(path, position + 12, unit.tags_code.to_bytes(8, "big", signed=True))
    analysis = analysed_at(root)
    assert queue_findings(analysis) == []
    assert steps(analysis) == []


@pytest.mark.parametrize("cut", [0, 7, 39_000])
def test_ext_file_of_a_wrong_length_is_found_and_replaced(cut: int, store: Copy) -> None:
    root = store("killed-ext-5.5.0")
    before = ext_file(root).read_bytes()
    os.truncate(ext_file(root), cut)
    assert "consumequeue-bad-file-length" in {item.code for item in queue_findings(analysed_at(root))}
    assert queue_findings(repair(root)) == []
    assert ext_file(root).read_bytes() == before


def test_ext_files_alone_tell_that_a_missing_queue_had_them(store: Copy) -> None:
    root = store("killed-ext-5.5.0")
    give_maps(root)
    before = {path: path.read_bytes() for path in root.glob("consumequeue*/Orders/1/*")}
    for path in (root / "consumequeue" / "Orders" / "1").iterdir():
        path.unlink()
    assert queue_findings(repair(root)) == []
    assert {path: path.read_bytes() for path in root.glob("consumequeue*/Orders/1/*")} == before
