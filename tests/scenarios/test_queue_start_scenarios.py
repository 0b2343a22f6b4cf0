"""T24: queues that begin after their own end, because a file of theirs was renamed, or is not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.damage import walk
from fixtures.damage.patch import flip_bit
from tests.scenarios.conftest import Start
from tests.scenarios.drill import Drill, body_at, file_name, queue_bytes

PLAIN = "clean-plain-4.9.7"


def queue_folder(store: Drill, topic: str, queue: int) -> Path:
    return store.root / "consumequeue" / topic / str(queue)


def begins_at_0(store: Drill, topic: str, queue: int, units: int) -> None:
    for version in store.brokers:
        assert store.run("predict", "--broker", version).document["queues"][f"{topic}/{queue}"] == [0, units]


@pytest.mark.parametrize("how", ["renamed", "renamed, and zeros now", "zeros far behind"])
def test_t24_first_offset_behind_the_last(drill: Start, how: str) -> None:
    store = drill(PLAIN)
    before = queue_bytes(store.root)
    folder = queue_folder(store, "Orders", 1)
    units = len(walk.units(next(q for q in walk.queues(store.root) if (q.topic, q.queue_id) == ("Orders", 1))))
    (folder / file_name(0)).rename(folder / file_name(2000 if how == "renamed, and zeros now" else 4000))
    if how != "renamed":
        next(folder.iterdir()).write_bytes(bytes(2000))
    assert units < 100
    missing = store.finds("consumequeue-missing-units", exit_code=2)
    assert (missing["file"], missing["offset"]) == ("consumequeue/Orders/1", None)
    facts = missing["facts"]
    assert (facts["topic"], facts["queue"], facts["first"], facts["count"]) == ("Orders", 1, 0, units)
    with store.recovered():
        assert queue_bytes(store.root) == before
        begins_at_0(store, "Orders", 1, units)


@pytest.mark.parametrize("hit", [10, -1])
def test_t24_renamed_file_of_a_queue_with_a_bridge(drill: Start, hit: int) -> None:
    store = drill(PLAIN)
    record = [r for r in store.records() if (r.record.topic_name, r.record.queue_id) == ("Orders", 1)][hit]
    flip_bit(store.root, record.file.path, body_at(record), 3)
    assert store.run("recover", "--yes").code == 5
    bridged = Drill.of(store.root, store.brokers)
    before = queue_bytes(store.root)
    folder = queue_folder(store, "Orders", 1)
    (folder / file_name(0)).rename(folder / file_name(4000))
    with bridged.recovered():
        assert queue_bytes(store.root) == before
        begins_at_0(store, "Orders", 1, sum(m[:2] == ("Orders", 1) for m in store.messages))


def test_t24_renamed_file_of_a_single_unit_denies_no_record(drill: Start) -> None:
    store = drill("clean-5.3.3")
    before = queue_bytes(store.root)
    folder = queue_folder(store, "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
    (folder / file_name(0)).rename(folder / file_name(40_000))
    assert store.finds("consumequeue-missing-units", exit_code=2)["facts"]["count"] == 1
    with store.recovered() as done:
        assert done["bridged"] == []
        assert queue_bytes(store.root) == before


@pytest.mark.parametrize("queue", [0, 1])
def test_t24_file_of_zeros_in_front_goes_and_a_queue_without_a_message_left_keeps_its_file(
    drill: Start, queue: int
) -> None:
    store = drill("clean-expired-4.5.1")
    before = queue_bytes(store.root)
    (queue_folder(store, "Old", queue) / file_name(0)).write_bytes(bytes(2000))
    with store.recovered():
        assert queue_bytes(store.root) == before
