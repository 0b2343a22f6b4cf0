"""`mqtool query`: every way to a message, and the difference between not there and not looked at."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from formats.message_id import offset_id
from formats.names import offset_to_name
from recover.log.judge import LogReader
from recover.log.scan import scan_log
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.commitlog import placed_records
from tests.support.stores import STORES, real_store, unpacked
from tests.support.trees import assert_unchanged

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
    log = scan_log(store.commitlog)
    with LogReader(store.commitlog) as reader:
        rows = [row for split in log.splits() for row in split.records][::step]
        return [reader.record(int(row["phy_offset"]), int(row["size"])) for row in rows]


@pytest.mark.parametrize("name", STORES)
def test_every_sampled_message_is_found_in_every_way(name: str) -> None:
    store = unpacked(name)
    with assert_unchanged(store):
        for record in sample(name, 397):
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


@pytest.mark.parametrize("name", STORES)
def test_index_and_scan_agree_on_keys(name: str) -> None:
    store = unpacked(name)
    for record in sample(name, 801):
        if record.uniq_key:
            options = (store, "--topic", record.topic_name, "--key", record.uniq_key)
            by_index = {item["phy_offset"] for item in found(*options)}
            assert by_index == {item["phy_offset"] for item in found(*options, "--scan")}


def test_unique_key_is_found_without_a_topic() -> None:
    (hit,) = found(unpacked(STORE), *KEY)
    places = {item["phy_offset"] for item in found(unpacked(STORE), "--msg-id", hit["uniq_key"])}
    assert hit["phy_offset"] in places


def test_key_with_other_letters_than_ascii() -> None:
    assert found(unpacked(STORE), "--topic", "TopicA", "--key", "订单365")


def test_time_window_is_kept() -> None:
    (hit,) = found(unpacked(STORE), *KEY)
    stored = hit["store_timestamp"]
    assert found(unpacked(STORE), *KEY, "--begin", stored - 5000, "--end", stored + 5000) == [hit]
    assert found(unpacked(STORE), *KEY, "--begin", stored + 5000) == []
    assert found(unpacked(STORE), *KEY, "--end", stored - 5000) == []


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


def test_lmq_queue_leads_to_the_record_of_its_topic() -> None:
    result = mqtool("query", unpacked(STORE), "--topic", "%LMQ%one", "--queue", "0", "--offset", "3", "--json")
    assert result.document["messages"][0]["topic"] == "TopicLmq"
    assert any("TopicLmq" in note for note in result.document["notes"])


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


def test_chain_that_loops_ends_and_is_told(tmp_path: Path) -> None:
    from formats.index import INDEX_SLOT, INDEX_UNIT, IndexGeometry
    from formats.javahash import index_key_hash

    store = real_store(STORE, tmp_path)
    geometry = IndexGeometry(500, 2000)
    newest = max((store / "index").iterdir())
    content = bytearray(newest.read_bytes())
    slot = geometry.slot_offset(geometry.slot_of(index_key_hash("TopicA#key-751")))
    head = INDEX_SLOT.decode(content, slot).number
    assert head > 1
    at = geometry.unit_offset(head)
    unit = INDEX_UNIT.decode(content, at)
    other = head - 1
    content[at : at + INDEX_UNIT.size] = INDEX_UNIT.encode(unit._replace(previous=other))
    at = geometry.unit_offset(other)
    content[at : at + INDEX_UNIT.size] = INDEX_UNIT.encode(INDEX_UNIT.decode(content, at)._replace(previous=head))
    newest.write_bytes(content)
    result = mqtool("query", store, *KEY, "--json")
    assert result.code == 8
    assert any("does not end" in note for note in result.document["notes"])


def test_body_is_decompressed() -> None:
    for name in STORES:
        for record in sample(name, 97):
            (hit,) = found(unpacked(name), "--phy-offset", record.phy_offset, "--body")
            assert "body_problem" not in hit
            assert hit["body"] is not None or "body_base64" in hit


def test_ghosts_are_shown_only_when_asked_for(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    assert found(store, "--include-ghosts") == []
    path = store / "commitlog" / "00000000000000000000"
    document = mqtool("inspect", path, "--limit", "0", "--json").document
    blank = next(item for item in document["items"] if item["kind"] == "blank")
    old = document["items"][5]
    # an old record after a hole at the very end of the log
    last = sorted((store / "commitlog").iterdir())[-1]
    content = bytearray(last.read_bytes())
    base = int(last.name)
    end = mqtool("inspect", store, "--json").document["offsets"]["log_end"] - base
    raw = bytearray(path.read_bytes()[old["offset"] : old["offset"] + old["size"]])
    place = end + 64
    raw[28:36] = (base + place).to_bytes(8, "big")
    content[end : end + 64] = b"\x55" * 64
    content[place : place + len(raw)] = raw
    last.write_bytes(content)
    assert blank["kind"] == "blank"
    (ghost,) = found(store, "--include-ghosts")
    assert ghost["phy_offset"] == base + place
    assert ghost["ghost"] is True


@pytest.mark.parametrize("line", [
    (), ("--key", "x"), ("--queue", "0"), ("--topic", "T", "--offset", "1"),
    ("--topic", "T", "--key", "x", "--msg-id", "y"), ("--msg-id", "y", "--begin", "1"), ("--msg-id", ""),
])
def test_searches_that_make_no_sense_are_16(line: tuple[str, ...]) -> None:
    assert mqtool("query", unpacked(STORE), *line).code == 16


def test_limit_says_that_there_is_more() -> None:
    result = mqtool("query", unpacked(STORE), "--key", "key-751", "--scan", "--limit", "1", "--json")
    assert len(result.document["messages"]) == 1
    assert result.document["more"] is True


@pytest.mark.parametrize("way", ["phy-offset", "queue", "msg-id", "key"])
def test_a_damaged_message_is_said_to_be_damaged_and_where(way: str, tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    record = next(it for it in placed_records("clean-5.3.3") if it.record.topic_name == "TopicA" and it.record.uniq_key)
    path = store / "commitlog" / offset_to_name(record.file_from_offset)
    content = bytearray(path.read_bytes())
    content[record.offset + content[record.offset:].index(record.record.body)] ^= 4
    path.write_bytes(content)
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
    inspect, verify = result.document["next"]
    assert mqtool(*shlex.split(inspect["command"])[1:]).code == 4
    assert verify["command"] == f"mqtool verify {store}"


def test_a_topic_alone_lists_its_messages_in_log_order() -> None:
    store = unpacked("clean-5.3.3")
    records = [record for base, file in plain.log_files(store).items() for record in plain.chain(file, base)]
    due = [r for r in records if "TopicA" in (r.topic, r.properties.get("REAL_TOPIC"))
           or (r.topic.startswith("%") and r.properties.get("RETRY_TOPIC") == "TopicA")]
    with assert_unchanged(store):
        assert [m["phy_offset"] for m in found(store, "--topic", "TopicA")] == [r.phy_offset for r in due]
        one = found(store, "--topic", "TopicA", "--queue", 1)
    stored = [r for r in due if r.topic == "TopicA"]
    assert [m["phy_offset"] for m in one if m["topic"] == "TopicA"] == [
        r.phy_offset for r in stored if r.queue_id == 1]
    since, until = stored[10].store_time, stored[-10].store_time
    times = [m["store_timestamp"] for m in found(store, "--topic", "TopicA", "--since", since, "--until", until)]
    assert times == [r.store_time for r in due if since <= r.store_time < until]


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


@pytest.mark.parametrize("line", [
    ("--since", "-2h"), ("--topic", "TopicA", "--since", "yesterday"), ("--topic", "%LMQ%one"),
    ("--topic", "TopicA", "--key", "key-751", "--since", "-2h"), ("--topic", "TopicA", "--begin", 5),
    ("--topic", "TopicA", "--since", 10, "--until", 5), ("--topic", "TopicA", "--include-ghosts", "--since", 10),
])
def test_lists_that_make_no_sense_are_16(line: tuple[object, ...]) -> None:
    assert mqtool("query", unpacked(STORE), *line).code == 16
