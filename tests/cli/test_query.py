"""query and trace: messages by key, offset, time and ID, and the life of one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fixtures.synth import StoreWriter
from formats.basics import index_key_hash
from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry
from formats.record import HEAD, Record
from formats.record.message import offset_id
from formats.sysflag import TRANSACTION_COMMIT
from recover.log.judge import LogReader
from recover.log.scan import LocalEngine
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.cli.test_documents import held
from tests.cli.test_groups import committed
from tests.support import plain_reader as plain
from tests.support.commitlog import placed_records
from tests.support.stores import STORES, flip, log_place, real_store, unpacked, write_at
from tests.support.trees import assert_unchanged

# --- `mqtool query`: every way to a message, and the difference between not there and not looked at.


STORE = "killed-5.5.0"
KEY = ("--topic", "TopicA", "--key", "key-751")


def found(*arguments: object) -> list[dict[str, Any]]:
    result = mqtool("query", *arguments, "--json")
    assert result.code == 0, result.stderr
    assert result.document["complete"] is True
    messages = result.document["messages"]
    assert isinstance(messages, list)
    return messages


def sample(name: str, step: int) -> list[Any]:
    """Every `step`-th record of the store."""
    store = Store.open(unpacked(name))
    log = LocalEngine().scan_log(store.commitlog)
    with LogReader(store.commitlog) as reader:
        rows = [row for split in log.splits() for row in split.records][::step]
        return [reader.record(int(row["phy_offset"]), int(row["size"])) for row in rows]


@pytest.mark.parametrize("name", STORES)
def test_every_sampled_message_is_found_in_every_way(name: str) -> None:
    store = unpacked(name)
    with assert_unchanged(store):
        for record in sample(name, 797):
            if record.transaction_type in (0, 8):
                (hit,) = found(store, "--topic", record.topic_name, "--queue", record.queue_id,
                               "--offset", record.queue_offset)
                assert hit["phy_offset"] == record.phy_offset
            (hit,) = found(store, "--phy-offset", record.phy_offset)
            assert hit["queue_offset"] == record.queue_offset
            (by_id,) = found(store, "--msg-id", hit["msg_id"])
            assert by_id == hit
            if record.uniq_key:
                places = [item["phy_offset"] for item in found(store, "--topic", record.topic_name, "--key",
                                                               record.uniq_key)]
                assert record.phy_offset in places


def test_unique_key_is_found_without_a_topic() -> None:
    (hit,) = found(unpacked(STORE), *KEY)
    places = {item["phy_offset"] for item in found(unpacked(STORE), "--msg-id", hit["uniq_key"])}
    assert hit["phy_offset"] in places


def test_a_unique_key_is_found_in_topics_whose_names_have_the_same_hash(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for topic in ("Aa", "BB"):
        writer.put(topic, b"body", {"UNIQ_KEY": "one"})
    writer.close()
    assert {message["topic"] for message in found(tmp_path / "store", "--msg-id", "one")} == {"Aa", "BB"}


def test_key_with_other_letters_than_ascii() -> None:
    assert found(unpacked(STORE), "--topic", "TopicA", "--key", "订单365")


def test_time_window_is_kept() -> None:
    (hit,) = found(unpacked(STORE), *KEY)
    stored = hit["store_timestamp"]
    assert found(unpacked(STORE), *KEY, "--begin", stored - 5000, "--end", stored + 5000) == [hit]
    assert found(unpacked(STORE), *KEY, "--begin", stored + 5000) == []
    assert found(unpacked(STORE), *KEY, "--end", stored - 5000) == []


@pytest.mark.parametrize("way", [(), ("--scan",)], ids=["index", "scan"])
def test_a_time_window_holds_to_the_millisecond_although_the_index_counts_seconds(
    way: tuple[str, ...], tmp_path: Path,
) -> None:
    writer = StoreWriter(tmp_path / "store")
    stored = [writer.start + after for after in (0, 700, 1000, 1999, 2000, 2001, 9999, 10_000, 10_500)]
    for at in stored:
        writer.put("Orders", b"body", {"KEYS": "one"}, store_timestamp=at)
    writer.close()
    for begin in range(0, 10_600, 350):
        for end in (begin, begin + 350, begin + 1650):
            due = {at for at in stored if begin <= at - writer.start <= end}
            hits = found(tmp_path / "store", "--topic", "Orders", "--key", "one", "--begin", writer.start + begin,
                         "--end", writer.start + end, *way)
            assert {hit["store_timestamp"] for hit in hits} == due, (begin, end)


def test_the_first_message_of_a_later_index_file_is_in_its_time_window(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", index_entries=4)
    for number in range(4):
        writer.put("Orders", b"body", {"KEYS": f"key-{number}"}, store_timestamp=writer.start + 60_000 * number)
    writer.close()
    assert len(list((tmp_path / "store" / "index").iterdir())) == 2
    at = writer.start + 180_000
    (hit,) = found(tmp_path / "store", "--topic", "Orders", "--key", "key-3", "--begin", at, "--end", at)
    assert hit["store_timestamp"] == at


@pytest.mark.parametrize("field", ["previous", "time_diff"])
def test_a_chain_of_the_index_that_a_damaged_entry_ends_makes_the_search_incomplete(field: str, tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    for _ in range(3):
        writer.put("Orders", b"body", {"KEYS": "one"})
    writer.close()
    (file,) = (tmp_path / "store" / "index").iterdir()
    geometry = IndexGeometry(writer.index_slots, writer.index_entries)
    content, at = bytearray(file.read_bytes()), geometry.unit_offset(2)
    unit = INDEX_UNIT.decode(content, at)
    content[at : at + INDEX_UNIT.size] = INDEX_UNIT.encode(
        unit._replace(previous=1 << 30) if field == "previous" else unit._replace(time_diff=-1))
    file.write_bytes(content)
    result = mqtool("query", tmp_path / "store", "--topic", "Orders", "--key", "one", "--json")
    assert (result.code, result.document["complete"]) == (8, False)
    assert "damaged" in result.document["notes"][-1]


def test_a_scan_finds_an_id_by_its_place(tmp_path: Path) -> None:
    root = real_store(STORE, tmp_path)
    for record in sample(STORE, 900):
        named = offset_id(*record.store_host, record.phy_offset)
        (hit,) = found(root, "--msg-id", named.lower(), "--scan")
        assert hit["phy_offset"] == record.phy_offset


def test_time_finds_the_first_message_stored_then_or_later() -> None:
    store = unpacked(STORE)
    queue = ("--topic", "TopicA", "--queue", 0)
    for queue_offset in (0, 1, 57, 117):
        (hit,) = found(store, *queue, "--offset", queue_offset)
        (by_time,) = found(store, *queue, "--time", hit["store_timestamp"])
        assert by_time["store_timestamp"] == hit["store_timestamp"]
        assert by_time["queue_offset"] <= queue_offset
        if by_time["queue_offset"]:
            (before,) = found(store, *queue, "--offset", by_time["queue_offset"] - 1)
            assert before["store_timestamp"] < hit["store_timestamp"]
    (first,) = found(store, *queue, "--time", 1)
    assert first["queue_offset"] == 0
    assert found(store, *queue, "--time", 4_000_000_000_000) == []
    for time in (0, 1, hit["store_timestamp"], hit["store_timestamp"] + 1, 4_000_000_000_000):
        assert found(store, *queue, "--time", time, "--scan") == found(store, *queue, "--time", time)


def test_a_release_before_5_1_1_finds_the_message_nearest_to_a_time(tmp_path: Path) -> None:
    """Held against every message of the queue; the second file was changed after the first, and decides by that."""
    root = real_store("clean-plain-4.9.7", tmp_path)
    files = sorted((root / "consumequeue" / "Orders" / "0").iterdir())
    every = found(root, "--topic", "Orders", "--queue", 0, "--limit", 500)
    stored = {hit["queue_offset"]: hit["store_timestamp"] for hit in every}
    first = len(stored) if len(files) == 1 else 100
    changed = stored[first - 1]
    os.utime(files[0], ns=(0, changed * 1_000_000))
    queue = ("--topic", "Orders", "--queue", 0)
    times = sorted(set(stored.values()))
    gaps = [(low + high) // 2 for low, high in pairwise(times)]
    for time in (1, times[0], *gaps[::9], gaps[-1] + 1, times[-1], times[-1] + 10_000):
        inside = [at for at in stored if (at < first) == (time <= changed)] or [*stored]
        nearest = min(abs(stored[at] - time) for at in inside)
        for release in ("4.5.1", "4.9.7", "5.1.0"):
            (hit,) = found(root, *queue, "--time", time, "--broker", release)
            assert abs(hit["store_timestamp"] - time) == nearest and hit["queue_offset"] in inside, (time, release)
        at_or_after = [at for at in stored if stored[at] >= time]
        for release in ("5.1.1", "5.3.3"):
            hits = found(root, *queue, "--time", time, "--broker", release)
            assert [hit["queue_offset"] for hit in hits] == at_or_after[:1], (time, release)


def test_lmq_queue_leads_to_the_record_of_its_topic() -> None:
    result = mqtool("query", unpacked(STORE), "--topic", "%LMQ%one", "--queue", "0", "--offset", "3", "--json")
    assert result.document["messages"][0]["topic"] == "TopicLmq"
    assert any("TopicLmq" in note for note in result.document["notes"])


@pytest.mark.parametrize("id", ["key-421", "FD0000000000000000000000000000023C424E0E2F2A758E73DA01A5"])
def test_a_scan_finds_a_message_in_a_batch_and_names_the_batch(id: str) -> None:
    root, note = unpacked("kinds/clean-batch-5.5.0"), "in the batch at 117100; `mqtool export --unfold` splits it"
    assert found(root, "--topic", "Batched", "--key", id) == []
    for search in (("query", root, "--key", id), ("query", root, "--msg-id", id), ("trace", root, id)):
        document = mqtool(*search, "--scan", "--json").document
        (hit,) = document["messages"] if search[0] == "query" else document["lives"][0]["events"]
        assert (hit["phy_offset"], hit["queue_offset"]) == (117_100, 0)
        assert any(note in line for line in document["notes"])


def test_nothing_found_is_0_and_names_the_scan() -> None:
    result = mqtool("query", unpacked(STORE), "--topic", "TopicA", "--key", "no such key")
    assert result.code == 0
    assert "--scan" in result.stdout
    assert found(unpacked(STORE), "--topic", "TopicA", "--key", "no such key", "--scan") == []
    assert found(unpacked(STORE), "--topic", "TopicA", "--queue", 0, "--offset", 100000) == []
    assert found(unpacked(STORE), "--phy-offset", 5) == []


def test_what_cannot_be_looked_at_is_8(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    assert mqtool("query", store, "--topic", "NoSuch", "--queue", "0", "--offset", "0").code == 8
    for path in (store / "index").iterdir():
        path.unlink()
    result = mqtool("query", store, *KEY, "--json")
    assert result.code == 8
    assert "--scan" in result.stderr
    assert found(store, *KEY, "--scan")


def test_short_index_file_makes_the_search_incomplete(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    newest = max((store / "index").iterdir())
    newest.write_bytes(newest.read_bytes()[:100])
    result = mqtool("query", store, *KEY, "--json")
    assert result.code == 8
    assert result.document["complete"] is False
    assert result.document["messages"]


def _zero_unit(content: bytearray, at: int, number: int) -> None:
    content[at : at + INDEX_UNIT.size] = bytes(INDEX_UNIT.size)


def _loop(content: bytearray, at: int, number: int) -> None:
    content[at : at + INDEX_UNIT.size] = INDEX_UNIT.encode(INDEX_UNIT.decode(content, at)._replace(previous=number))


def _other_slot(content: bytearray, at: int, number: int) -> None:
    unit = INDEX_UNIT.decode(content, at)
    content[at : at + INDEX_UNIT.size] = INDEX_UNIT.encode(unit._replace(key_hash=unit.key_hash ^ 1))


def _zero_header(content: bytearray, at: int, number: int) -> None:
    content[: INDEX_HEADER.size] = bytes(INDEX_HEADER.size)


@pytest.mark.parametrize("harm", [_zero_unit, _loop, _other_slot, _zero_header])
def test_a_damaged_index_makes_the_search_incomplete_and_names_the_scan(
    harm: Callable[[bytearray, int, int], None], tmp_path: Path,
) -> None:
    store = real_store(STORE, tmp_path)
    geometry = IndexGeometry(500, 2000)
    newest = max((store / "index").iterdir())
    content = bytearray(newest.read_bytes())
    slot = geometry.slot_offset(geometry.slot_of(index_key_hash("TopicA#key-751")))
    head = INDEX_SLOT.decode(content, slot).number
    assert head > 1
    harm(content, geometry.unit_offset(head), head)
    newest.write_bytes(content)
    for search in (("query", store, *KEY), ("trace", store, KEY[-1])):
        result = mqtool(*search, "--json")
        assert (result.code, result.document["complete"]) == (8, False)
        assert any("damaged" in note for note in result.document["notes"])
        assert mqtool(*shlex.split(result.document["next"][0]["command"])[1:]).code == 0


@pytest.mark.parametrize("line", [
    (), ("--key", "x"), ("--queue", "0"), ("--topic", "T", "--offset", "1"),
    ("--topic", "T", "--key", "x", "--msg-id", "y"), ("--msg-id", "y", "--begin", "1"), ("--msg-id", ""),
    ("--since", "-2h"), ("--topic", "TopicA", "--since", "yesterday"), ("--topic", "%LMQ%one"),
    ("--topic", "TopicA", "--key", "key-751", "--since", "-2h"), ("--topic", "TopicA", "--begin", 5),
    ("--topic", "TopicA", "--since", 10, "--until", 5), ("--topic", "TopicA", "--include-ghosts", "--since", 10),
])
def test_searches_and_lists_that_make_no_sense_are_16(line: tuple[object, ...]) -> None:
    assert mqtool("query", unpacked(STORE), *line).code == 16


def test_limit_says_that_there_is_more() -> None:
    result = mqtool("query", unpacked(STORE), "--key", "key-751", "--scan", "--limit", "1", "--json")
    assert len(result.document["messages"]) == 1
    assert result.document["more"] is True


@pytest.mark.parametrize("way", ["phy-offset", "queue", "msg-id", "key"])
def test_a_damaged_message_is_said_to_be_damaged_and_where(way: str, tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    record = next(it for it in placed_records("clean-5.3.3") if it.record.topic_name == "TopicA" and it.record.uniq_key)
    flip(*log_place(store, record.phy_offset + record.raw.index(record.record.body)), 4)
    one, place = record.record, record.phy_offset
    search = {
        "phy-offset": ("--phy-offset", place), "key": ("--topic", "TopicA", "--key", one.uniq_key),
        "queue": ("--topic", "TopicA", "--queue", one.queue_id, "--offset", one.queue_offset),
        "msg-id": ("--msg-id", offset_id(*one.store_host, place)),
    }[way]
    result = mqtool("query", store, *search, "--json")
    assert result.code == 0
    (found,) = result.document["damaged"]
    assert (found["phy_offset"], found["reason"]) == (place, "bad-body-crc")
    assert "damaged" in result.document["summary"] and str(place) in result.document["summary"]
    (said,) = [line for line in mqtool("query", store, *search).stdout.splitlines() if "(exit 0" in line]
    assert said.endswith("(exit 0: complete)")
    inspect, verify = result.document["next"]
    assert mqtool(*shlex.split(inspect["command"])[1:]).code == 4
    assert verify["command"] == f"mqtool verify {store}"


def test_a_topic_alone_lists_its_messages_in_log_order() -> None:
    store = unpacked("clean-5.3.3")
    records = plain.records(store)
    due = [r for r in records if "TopicA" in (r.topic, r.properties.get("REAL_TOPIC"))
           or (r.topic.startswith("%") and r.properties.get("RETRY_TOPIC") == "TopicA")]
    with assert_unchanged(store):
        assert [m["phy_offset"] for m in found(store, "--topic", "TopicA")] == [r.phy_offset for r in due]
        one = found(store, "--topic", "TopicA", "--queue", 1)
    stored = [r for r in due if r.topic == "TopicA"]
    assert [m["phy_offset"] for m in one if m["topic"] == "TopicA"] == [r.phy_offset for r in stored if r.queue_id == 1]
    since, until = stored[10].store_time, stored[-10].store_time
    times = [m["store_timestamp"] for m in found(store, "--topic", "TopicA", "--since", since, "--until", until)]
    assert times == [r.store_time for r in due if since <= r.store_time < until]


@pytest.mark.parametrize(("search", "code"), [
    ((), 0), (("--key", "nothing"), 0), (("--queue", 0, "--offset", 0), 8),
])
def test_a_mistyped_topic_is_met_with_the_nearest_one(search: tuple[object, ...], code: int) -> None:
    result = mqtool("query", unpacked(STORE), "--topic", "topica", *search)
    assert result.code == code
    assert "the nearest is TopicA" in result.stderr
    assert "nearest" not in mqtool("query", unpacked(STORE), "--topic", "TopicA", "--since", "-1s").stderr


def test_times_without_a_topic_are_said_to_need_one() -> None:
    result = mqtool("query", unpacked(STORE), "--since", "-2h", "--limit", 3)
    assert result.code == 16
    assert "--since and --until list the messages of one topic" in result.stderr
    assert "`mqtool export` writes those of all topics" in result.stderr


def test_a_list_says_how_many_more_there_are() -> None:
    store = unpacked("clean-5.3.3")
    total = len(found(store, "--topic", "TopicA", "--limit", 0))
    result = mqtool("query", store, "--topic", "TopicA", "--limit", 7, "--json")
    assert result.code == 0
    assert len(result.document["messages"]) == 7
    assert (result.document["more"], result.document["more_messages"]) == (True, total - 7)
    screen = mqtool("query", store, "--topic", "TopicA", "--limit", 7)
    assert f"{total - 7:,} more" in screen.stdout
    assert found(store, "--topic", "NoSuchTopic") == []


# --- `mqtool trace`: every record of a message, in order, with where it stands; counted by the plain reader.


TRACED = ("clean-4.5.1", "killed-5.5.0")
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@cache
def records(name: str) -> tuple[plain.Record, ...]:
    return tuple(plain.records(unpacked(name)))


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
@pytest.mark.parametrize("name", TRACED)
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


@pytest.mark.parametrize("name", TRACED)
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


@pytest.mark.parametrize("name", TRACED)
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


@pytest.mark.parametrize("name", TRACED)
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


def test_a_transaction_that_is_ended_after_thousands_of_others_is_not_open(tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = StoreWriter(root, mapped_file_size=1 << 20)
    writer.put("RMQ_SYS_TRANS_HALF_TOPIC", b"body", {"REAL_TOPIC": "Topic", "REAL_QID": "0", "UNIQ_KEY": "one"})
    for number in range(1, 2_500):
        writer.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", str(number).encode())
    last = writer.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0")
    writer.close()
    (life,) = traced(root, "one")
    assert life["ended"].startswith("rolled back") and life["events"][-1]["phy_offset"] == last.phy_offset
    flip(root / "commitlog" / f"{0:020}", last.phy_offset + HEAD.offset("magic"))
    unsure = mqtool("trace", root, "one", "--json")
    assert unsure.code == 8
    assert "1 message of RMQ_SYS_TRANS_OP_HALF_TOPIC after half message 0 cannot be read" in unsure.stdout
    assert [item["phy_offset"] for item in unsure.document["damaged"]] == [last.phy_offset]
    assert unsure.document["lives"][0]["ended"].startswith("open, unless")


def committed_transaction(root: Path) -> Record:
    """A store with one transaction that was committed and ended; its commit."""
    writer = StoreWriter(root, mapped_file_size=1 << 20)
    writer.put("RMQ_SYS_TRANS_HALF_TOPIC", b"body", {"REAL_TOPIC": "Topic", "REAL_QID": "0", "UNIQ_KEY": "one"})
    commit = writer.put("Topic", b"body", {"UNIQ_KEY": "one"}, sys_flag=TRANSACTION_COMMIT)
    writer.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0")
    writer.close()
    return commit


@pytest.mark.parametrize("way", [(), ("--scan",)], ids=["index", "scan"])
def test_a_transaction_whose_commit_is_damaged_is_not_rolled_back(way: tuple[str, ...], tmp_path: Path) -> None:
    root = tmp_path / "store"
    commit = committed_transaction(root)
    (life,) = traced(root, "one", *way)
    assert life["ended"] == "committed"
    flip(root / "commitlog" / f"{0:020}", commit.phy_offset + HEAD.offset("body_crc"))
    result = mqtool("trace", root, "one", *way, "--json")
    assert result.code == (0 if way else 8), "the search of a damaged log is complete"
    assert [life["ended"] for life in result.document["lives"]] == [
        "ended by an op message: rolled back, or its commit cannot be read"]
    assert result.document["next"][-1]["command"] == f"mqtool verify {root}"


def test_a_commit_that_the_index_lacks_is_found_in_its_queue(tmp_path: Path) -> None:
    root = tmp_path / "store"
    committed_transaction(root)
    (file,) = (root / "index").iterdir()
    content = file.read_bytes()
    # the chain of the key ends with the half message, whose entry is the first
    write_at(file, next(at for at in range(40, len(content), 4) if int.from_bytes(content[at : at + 4]) == 2), bytes(4))
    half = mqtool("query", root, "--topic", "Topic", "--key", "one", "--json")
    assert half.document["messages"] == []
    (life,) = traced(root, "one")
    assert life["ended"] == "committed"


def test_a_scan_finds_the_op_message_that_its_queue_lacks(tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = StoreWriter(root, mapped_file_size=1 << 20)
    writer.put("RMQ_SYS_TRANS_HALF_TOPIC", b"body", {"REAL_TOPIC": "Topic", "REAL_QID": "0", "UNIQ_KEY": "one"})
    writer.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0")
    writer.close()
    (queue,) = (root / "consumequeue" / "RMQ_SYS_TRANS_OP_HALF_TOPIC" / "0").iterdir()
    queue.write_bytes(bytes(queue.stat().st_size))
    (life,) = traced(root, "one", "--scan")
    assert life["ended"].startswith("rolled back")
    assert [event["stage"] for event in life["events"]] == ["half", "op"]


@pytest.mark.parametrize("lost", ["nothing", "op queue", "all queues"])
def test_a_half_message_is_open_where_op_messages_have_no_queue_yet(lost: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    writer = StoreWriter(root, mapped_file_size=1 << 20)
    writer.put(HALF, b"body", {"REAL_TOPIC": "Topic", "REAL_QID": "0", "UNIQ_KEY": "one"})
    writer.close()
    if lost == "op queue":
        offsets = {f"{OP}@CID_RMQ_SYS_TRANS": {"0": 1}}
        (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    elif lost == "all queues":
        (root / "consumequeue" / HALF).rename(tmp_path / "lost")
        (root / "consumequeue" / "Other" / "0").mkdir(parents=True)
    result = mqtool("trace", root, "one", "--json")
    (life,) = result.document["lives"]
    if lost == "nothing":
        assert (result.code, life["ended"]) == (0, "open: neither committed nor rolled back")
    else:
        assert (result.code, life["ended"]) == (
            8, "open, unless the commit or op message that ends it cannot be read")
        assert f"no consume queue {OP}/0" in result.document["notes"][0]


@pytest.mark.parametrize("way", [(), ("--scan",)], ids=["index", "scan"])
def test_a_transaction_in_rocksdb_is_ended_by_the_op_message_that_names_its_place(
    way: tuple[str, ...], tmp_path: Path,
) -> None:
    writer = StoreWriter(tmp_path / "store")
    half = {"REAL_TOPIC": "Topic", "REAL_QID": "0", "PGROUP": "producers"}
    # as a broker of 5.5.0 with transRocksDBEnable=true and transWriteOriginTransHalfEnable=false stores them
    halves = [writer.put("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", b"body", {**half, "UNIQ_KEY": key})
              for key in ("open", "committed", "rolled")]
    writer.put("Topic", b"body", {"UNIQ_KEY": "committed"}, sys_flag=TRANSACTION_COMMIT)
    for ended in halves[1:]:
        writer.put("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", b"\0",
                   {"TRANS_OFFSET": str(ended.phy_offset), "REAL_TOPIC": "Topic", "TAGS": "d"})
    writer.close()
    for key, ended in (("open", "open: neither"), ("committed", "committed"), ("rolled", "rolled back")):
        (life,) = traced(tmp_path / "store", key, *way)
        assert life["ended"].startswith(ended)
        assert (life["topic"], life["events"][0]["stage"]) == ("Topic", "half")


def test_a_transaction_that_the_broker_gave_up_is_not_open(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    half = {"REAL_TOPIC": "Topic", "REAL_QID": "0", "UNIQ_KEY": "one", "PGROUP": "producers"}
    writer.put("RMQ_SYS_TRANS_HALF_TOPIC", b"body", half)
    writer.put("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"7")
    # as a broker of 5.3.3 stores it after transactionCheckMax checks
    writer.put("TRANS_CHECK_MAX_TIME_TOPIC", b"body", {**half, "TRANSACTION_CHECK_TIMES": "15"})
    writer.close()
    (life,) = traced(tmp_path / "store", "one")
    assert life["ended"].startswith("given up by the broker")
    assert [event["stage"] for event in life["events"]] == ["half", "discarded"]


@pytest.mark.parametrize("way", [(), ("--scan",)], ids=["index", "scan"])
def test_a_timer_message_that_its_producer_recalled_is_not_said_to_wait(way: tuple[str, ...], tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    timer = {"REAL_TOPIC": "Topic", "REAL_QID": "0", "TIMER_OUT_MS": "1795729786000", "UNIQ_KEY": "one"}
    writer.put("rmq_sys_wheel_timer", b"body", timer)
    # as a broker of 5.3.3 with recallMessageEnable=true stores it
    writer.put("rmq_sys_wheel_timer", b"0", {**timer, "TIMER_DEL_UNIQKEY": "Topic+one", "TAGS": "_RECALL_TAG_"})
    writer.put("rmq_sys_wheel_timer", b"body", {**timer, "TIMER_ROLL_TIMES": "1"})
    writer.close()
    (life,) = traced(tmp_path / "store", "one", *way)
    assert life["ended"].startswith("recalled by its producer")
    assert [event["stage"] for event in life["events"]] == ["waiting", "recall", "waiting"]


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


def test_without_an_index_it_says_to_scan_and_what_is_not_there_leads_to_a_scan(store: Callable[[str], Path]) -> None:
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
    (step,) = result.document["next"]
    assert step["command"] == f"mqtool trace key-5 {unpacked('kinds/clean-rocksdb-5.5.0')} --scan"
    (life,) = traced(unpacked("kinds/clean-rocksdb-5.5.0"), "key-5", "--scan", code=8)
    assert life["ended"] == "sent"
    result = mqtool("trace", "key-5", unpacked("kinds/clean-rocksdb-5.5.0"), "--scan", "--json")
    assert not result.document["complete"] and "config/consumerOffsets" in result.document["notes"][-1]
    for way in ((), ("--scan",)):
        result = mqtool("trace", "key-5", unpacked("kinds/clean-dledger-5.3.3"), *way, "--json")
        assert (result.code, result.document["complete"]) == (8, False)
        assert "dledger-n0" in result.document["notes"][-1]


def test_a_trace_takes_the_store_first_or_last_or_from_the_configuration(tmp_path: Path) -> None:
    root = unpacked("clean-5.3.3")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={root}\n")
    words = [root, "no-such-key"]
    first, last = (mqtool("trace", *order, "--json").document for order in (words, words[::-1]))
    assert first["store"] == last["store"] == str(root) and first["next"] == last["next"]
    alone = mqtool("trace", "no-such-key", "--broker-conf", conf, "--json")
    assert (alone.code, alone.document["store"]) == (0, str(root))
    for missing in ([root], ["no-such-key"], []):
        assert mqtool("trace", *missing).code == 16
    usage = next(line for line in mqtool("trace", "--help").stdout.splitlines() if "Usage" in line)
    assert usage.split()[-2:] == ["[STORE]", "[ID]"]
