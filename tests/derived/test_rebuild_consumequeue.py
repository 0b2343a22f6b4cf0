"""Queues computed from the log: the broker's own where nothing is wrong, and repaired where something is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.damage import damage
from fixtures.lab.packed import WHOLE_BROKER, made, settings
from formats.consumequeue import CQ_UNIT
from formats.names import offset_to_name
from recover.change.carry_out import apply_plan
from recover.change.content import LazyContent, Spool, padded
from recover.change.preconditions import seal
from recover.check.survey import ScanOptions, Survey
from recover.derived.expected import QueueKey
from recover.derived.queues import QueueBuilder
from recover.repair.rebuild import RebuildOptions, plan_rebuild
from tests.support.looks import looked_at, opened
from tests.support.sparse import data_chunks

Copy = Callable[[str], Path]
STORES = (*WHOLE_BROKER, *made())
#: One store for each thing that queues can have: ext files, LMQ, delays, several files, expired units.
KINDS = ("clean-5.3.3", "clean-expired-4.5.1", "killed-ext-5.5.0", "killed-lmq-4.9.7", "killed-manyfiles-5.5.0")


def builder(seen: Survey) -> QueueBuilder:
    return QueueBuilder(seen.store, seen.delays, seen.log.min_offset, seen.log.log_end)


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
    scan = ScanOptions(settings=conf, include_deleted=include_deleted)
    store = opened(root, settings=conf)
    made = plan_rebuild(store, RebuildOptions(scan, ("consumequeue",), **options))  # type: ignore[arg-type]
    apply_plan(root, seal(made.plan, root))
    return len(made.plan.steps)


def judged(root: Path) -> dict[str, int]:
    """What verify counts in the queues."""
    _, seen = looked_at(root, **{name: str(value) for name, value in settings(root.name).items()})
    assert seen.queues is not None
    return seen.queues.json()


@pytest.mark.parametrize("name", STORES)
def test_queues_built_from_nothing_are_the_broker_s_from_the_first_live_unit_on(name: str, store: Copy) -> None:
    root = store(name)
    opened_store, seen = looked_at(root)
    live = seen.log.min_offset
    for key, rows in seen.expectation.grouped():
        for base, content in builder(seen).fresh(key, rows).files(opened_store.queue_file_size):
            path = opened_store.consumequeue_dir / key.topic / str(key.queue_id) / offset_to_name(base)
            ours = np.frombuffer(bytes(content).ljust(opened_store.queue_file_size, b"\0"), dtype=CQ_UNIT.dtype)
            theirs = np.frombuffer(path.read_bytes(), dtype=CQ_UNIT.dtype)
            gone = (theirs["phy_offset"] < live) & (theirs["size"] > 0)
            assert (ours[~gone] == theirs[~gone]).all(), path
            assert (ours["size"][gone] == 0x7FFFFFFF).all(), path


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
    queues = looked_at(root)[1].queues
    assert queues is not None
    return {key: verdict.end for key, verdict in queues.verdicts.items()}


def test_an_lmq_queue_comes_back_when_deleted_ones_are_wanted(store: Copy) -> None:
    root = store("killed-lmq-4.9.7")
    before = queue_tree(root)
    damage("lmq-queue-missing", root, seed=1)
    assert rebuild(root) == 0
    assert rebuild(root, include_deleted=True) == 2
    assert queue_tree(root) == before


def test_one_queue_alone(store: Copy) -> None:
    root = store("clean-5.3.3")
    before = queue_tree(root)
    shutil.rmtree(root / "consumequeue" / "TopicA")
    assert rebuild(root, topic="TopicA", queue=2) == 1
    after = queue_tree(root)
    assert {path for path in before if path not in after} == {
        f"consumequeue/TopicA/{number}/{offset_to_name(0)}" for number in (0, 1, 3)
    }
    assert rebuild(root, topic="TopicA") == 3
    assert queue_tree(root) == before


def test_lost_positions_repeat_the_unit_in_front(store: Copy) -> None:
    """The log is damaged in the middle: what lies after keeps its queue offset."""
    root = store("clean-5.3.3")
    done = damage("bit-in-body", root, seed=4)
    _, seen = looked_at(root)
    lost = [position for positions in seen.losses.by_damage for position in positions]
    assert [position.phy_offset for position in lost] == list(done.lost)
    key, index = lost[0].key, lost[0].queue_offset
    shutil.rmtree(root / "consumequeue" / key.topic / str(key.queue_id))
    rebuild(root)
    _, after = looked_at(root)
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
