"""`mqtool trace`: every record of a message, in order, with where it stands; counted by the plain reader."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
from tests.cli.test_groups import committed
from tests.support import plain_reader as plain
from tests.support.stores import unpacked
from tests.support.trees import assert_unchanged

STORES = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0")
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@cache
def records(name: str) -> tuple[plain.Record, ...]:
    return tuple(
        record for base, file in plain.log_files(unpacked(name)).items() for record in plain.chain(file, base))


@cache
def by_key(name: str) -> dict[str, list[plain.Record]]:
    found = defaultdict(list)
    for record in records(name):
        found[record.properties.get("UNIQ_KEY", "")].append(record)
    return found


def shapes(name: str) -> dict[tuple[str, ...], str]:
    """One unique key of each row of topics that messages of the store went through."""
    found: dict[tuple[str, ...], str] = {}
    for key, held_by in by_key(name).items():
        if key:
            found.setdefault(tuple(record.topic for record in held_by), key)
    return found


def traced(root: Path, name: str, *more: object, code: int = 0) -> list[dict[str, Any]]:
    with assert_unchanged(root):
        result = mqtool("trace", name, root, *more, "--json")
    assert result.code == code, result.stderr
    held(result.document, "trace")
    return result.document["lives"]


@pytest.mark.parametrize("way", [(), ("--scan",)], ids=["index", "scan"])
@pytest.mark.parametrize("name", STORES)
def test_a_life_has_every_record_of_its_unique_key_and_every_kind_of_life_is_told(
    name: str, way: tuple[str, ...],
) -> None:
    root = unpacked(name)
    every = shapes(name)
    assert len(every) >= 8
    for topics, key in list(every.items())[:: 3 if way else 1]:
        (life,) = traced(root, key, *way)
        events = [event for event in life["events"] if event["stage"] != "op"]
        assert [tuple(event[word] for word in ("topic", "phy_offset", "queue_offset", "store_time"))
                for event in events] == [
            (record.topic, record.phy_offset, record.queue_offset, record.store_time) for record in by_key(name)[key]]
        last = topics[-1]
        if HALF in topics and not {"TopicTx"} & set(topics):
            assert life["ended"].startswith(("rolled back", "open"))
        elif last.startswith("SCHEDULE") or last == "rmq_sys_wheel_timer":
            assert life["ended"].startswith("waiting for its delivery")
        elif any(topic.startswith("%RETRY%") for topic in topics):
            assert life["ended"].startswith("given to group CG_")
        else:
            ends = "delivered" if len(set(topics)) > 1 else "sent"
            assert life["ended"] == ("committed" if "TopicTx" in topics else ends)


@pytest.mark.parametrize("name", STORES)
def test_a_transaction_is_ended_by_the_op_message_that_names_its_half_message(name: str) -> None:
    ops: dict[int, int] = {}
    for record in records(name):
        if record.topic == OP:
            for number in filter(None, record.body.decode().split(",")):
                ops.setdefault(int(number), record.phy_offset)
    seen = set()
    for key, held_by in list(by_key(name).items()):
        halves = [record for record in held_by if record.topic == HALF]
        if not halves:
            continue
        ended = any(record.queue_offset in ops for record in halves)
        committed_too = any(record.topic == "TopicTx" for record in held_by)
        state = ended, committed_too
        if state in seen:
            continue
        seen.add(state)
        (life,) = traced(unpacked(name), key)
        found = {event["phy_offset"] for event in life["events"] if event["stage"] == "op"}
        assert found == {ops[record.queue_offset] for record in halves if record.queue_offset in ops}
        if not committed_too:
            assert life["ended"].startswith("rolled back" if ended else "open")
    assert len(seen) >= 3, "committed, rolled back and open ones"


@pytest.mark.parametrize("name", STORES)
def test_a_waiting_message_names_the_time_that_its_unit_holds(name: str) -> None:
    for topics, key in shapes(name).items():
        if topics[0] != "SCHEDULE_TOPIC_XXXX" or len(topics) == 1:
            continue
        (life,) = traced(unpacked(name), key)
        waits, arrives = life["events"][:2]
        assert (waits["stage"], arrives["stage"]) == ("waiting", "delivered")
        level = int(by_key(name)[key][0].properties["DELAY"])
        assert waits["due"] - waits["store_time"] == level * 1000, "the writer's table has level N at N seconds"
        assert arrives["store_time"] >= waits["due"] - 100


@pytest.mark.parametrize("name", STORES)
def test_committed_offsets_tell_whether_a_group_has_it(name: str) -> None:
    offsets = committed(unpacked(name))
    states = set()
    newest = {(held_by[-1].topic, held_by[-1].queue_id): key for key, held_by in by_key(name).items() if key}
    for key in {newest[topic, queue] for _, topic, queue in offsets if (topic, queue) in newest}:
        (life,) = traced(unpacked(name), key)
        rows = {(row["group"], row["topic"], row["queue"], row["queue_offset"]): row for row in life["consumers"]}
        due = {(group, record.topic, record.queue_id, record.queue_offset): offset
               for record in by_key(name)[key] for (group, topic, queue), offset in offsets.items()
               if (topic, queue) == (record.topic, record.queue_id) and record.topic not in (HALF, OP)
               and not record.topic.startswith(("SCHEDULE", "rmq_sys"))}
        assert {place: row["committed"] for place, row in rows.items()} == due
        assert all(row["consumed"] == (row["committed"] > row["queue_offset"]) for row in rows.values())
        states |= {row["consumed"] for row in rows.values()}
    assert True in states


def test_a_key_of_several_messages_gives_each_its_life_and_an_id_gives_one() -> None:
    name = "clean-5.3.3"
    root = unpacked(name)
    words = defaultdict(set)
    for record in records(name):
        for word in record.properties.get("KEYS", "").split():
            words[word].add(record.properties["UNIQ_KEY"])
    word, keys = next((word, keys) for word, keys in words.items() if 2 <= len(keys) <= 5)
    assert {life["unique_key"] for life in traced(root, word)} == keys
    assert {life["unique_key"] for life in traced(root, word, "--scan")} == keys
    (life,) = traced(root, sorted(keys)[0])
    (same,) = traced(root, life["events"][-1]["msg_id"])
    assert same == life
    (same,) = traced(root, life["events"][-1]["msg_id"], "--scan")
    assert same == life


def test_without_an_index_it_says_to_scan_and_what_is_not_there_leads_to_a_scan(
    store: Callable[[str], Path],
) -> None:
    root = store("clean-5.3.3")
    none = mqtool("trace", "no-such-key", root, "--json")
    assert (none.code, none.document["lives"]) == (0, [])
    assert none.document["next"][0]["command"] == f"mqtool trace {root} no-such-key --scan"
    shutil.rmtree(root / "index")
    result = mqtool("trace", "tx12", root, "--json")
    assert result.code == 8
    assert "--scan" in result.document["error"]["remedy"]
    assert len(traced(root, "tx12", "--scan")) == 1


def test_what_is_not_read_is_told() -> None:
    result = mqtool("trace", "key-5", unpacked("kinds/clean-rocksdb-5.5.0"), "--json")
    assert result.code == 8
    assert "--scan" in result.document["error"]["remedy"]
    (life,) = traced(unpacked("kinds/clean-rocksdb-5.5.0"), "key-5", "--scan")
    assert life["ended"] == "sent"
    for way in ((), ("--scan",)):
        result = mqtool("trace", "key-5", unpacked("kinds/clean-dledger-5.3.3"), *way, "--json")
        assert (result.code, result.document["complete"]) == (8, False)
        assert "dledger-n0" in result.document["notes"][-1]


@pytest.mark.parametrize("recipe", [
    "bit-in-body", "page-random", "index-torn", "queue-file-garbage", "all-queues-missing",
])
def test_damage_is_passed_over_and_told(recipe: str, store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    damage(recipe, root, 3)
    whole = by_key("clean-5.3.3")
    for key in ("tx12", "tx1", "tm0"):
        result = mqtool("trace", key, root, "--json")
        assert result.code in (0, 8)
        held(result.document, "trace")
        for life in result.document.get("lives", ()):
            assert {event["phy_offset"] for event in life["events"] if event["stage"] != "op"} <= {
                record.phy_offset for record in whole[life["unique_key"]]}
