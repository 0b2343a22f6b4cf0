"""T02 to T12: damage in the log, and records of every shape."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from fixtures import shapes
from fixtures.damage import walk
from fixtures.damage.patch import flip_bit, overwrite
from fixtures.damage.walk import Located
from formats import record as commitlog, sysflag
from formats.basics import crc31
from formats.consumequeue import CQ_UNIT
from formats.record import encode
from tests.scenarios.conftest import Start
from tests.scenarios.drill import (
    KILLED,
    MANY_FILES,
    PLAIN,
    Drill,
    body_at,
    bridged,
    counts,
    file_name,
    messages,
    position,
    queue_bytes,
)
from tests.support.trees import assert_unchanged

# --- T02 to T07: records that are torn, flipped, zeroed or moved.


def appended(last: Located) -> bytes:
    """The record that the broker was about to put after the last one."""
    return encode(structs.replace(
        last.record, phy_offset=last.record.phy_offset + last.record.total_size,
        queue_offset=last.record.queue_offset + 1, store_timestamp=last.record.store_timestamp + 1,
    ))


# --- T02: kill -9 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 8, 95])
def test_t02_killed_store_with_a_partial_record_behind_the_last(drill: Start, kept: int) -> None:
    store = drill(KILLED)
    last = store.records()[-1]
    overwrite(store.root, last.file.path, last.end, appended(last)[:kept].rstrip(b"\0") or b"\1", "torn")
    found = store.finds("commitlog-torn-tail", *store.place(last.record.phy_offset + last.record.total_size),
                        exit_code=2)
    assert found["facts"]["start"] == last.record.phy_offset + last.record.total_size
    with store.recovered() as done:
        assert (done["damaged_messages"], done["plan"]["loss"]) == (0, [])
        assert messages(store.root) == store.messages
        assert done["valid_to"] == done["verify"]["commitlog"]["log_end"] == found["facts"]["start"]


@pytest.mark.parametrize("recipe", ["torn-tail", "torn-tail-in-head", "torn-tail-in-properties"])
def test_t02_torn_record_that_a_queue_names_is_a_lost_message(drill: Start, recipe: str) -> None:
    store = drill(KILLED)
    last = store.records()[-1].record
    store.strike(recipe)
    whole = recipe == "torn-tail-in-properties"
    code = "commitlog-damaged-record" if whole else "commitlog-damaged-range"
    store.finds(code, *store.place(last.phy_offset), exit_code=6)
    with store.recovered() as done:
        assert done["damaged_messages"] == 1
        (loss,) = done["plan"]["loss"]
        assert (loss["topic"], loss["queue"], loss["first_offset"], loss["last_offset"], loss["messages"]) == (
            last.topic_name, last.queue_id, last.queue_offset, last.queue_offset, 1)
        assert messages(store.root) == store.intact


# --- T03 to T07: damage in the middle ---------------------------------------------------------------


def test_t03_properties_zeroed_behind_a_good_body(drill: Start) -> None:
    store = drill(PLAIN)
    facts = store.strike("properties-zeroed").facts
    found = store.finds("commitlog-damaged-record", *store.place(facts["phy_offset"]), exit_code=4)
    assert "properties" in found["facts"]["reason"]
    with store.recovered() as done:
        assert bridged(done) == [(facts["topic"], facts["queue_id"], facts["queue_offset"])]
        assert len(messages(store.root)) == len(store.messages) - 1


def test_t04_one_bit_flipped_in_a_body_of_the_middle_file(drill: Start) -> None:
    store = drill(MANY_FILES)
    everything = store.records()
    hit = store.records(7)[20]
    flip_bit(store.root, hit.file.path, body_at(hit) + 3, 2)
    store.struck()
    found = store.finds("commitlog-damaged-record", f"commitlog/{file_name(7 * 65536)}", hit.position, exit_code=4)
    assert found["facts"]["reason"] == "bad-body-crc"
    assert found["facts"]["intact_after"] == sum(r.record.phy_offset > hit.record.phy_offset for r in everything)
    record = hit.record
    with store.recovered() as done:
        assert bridged(done) == [(record.topic_name, record.queue_id, record.queue_offset)]
        assert messages(store.root) == store.intact
        for offset in (record.queue_offset - 1, record.queue_offset + 1):
            answer = store.run("query", "--topic", record.topic_name, "--queue", record.queue_id, "--offset", offset)
            assert [item["queue_offset"] for item in answer.document["messages"]] == [offset]


@pytest.mark.parametrize("recipe", ["size-zero", "size-negative", "size-huge", "size-one-less"])
def test_t05_bad_size_is_never_believed(drill: Start, recipe: str) -> None:
    store = drill(PLAIN)
    facts = store.strike(recipe).facts
    tracemalloc.start()
    try:
        found = store.finds("commitlog-damaged-range", *store.place(facts["phy_offset"]), exit_code=4)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert found["facts"]["stop"] == facts["phy_offset"] + facts["size"]
    with store.recovered() as done:
        assert len(done["bridged"]) == 1
        if done["bridged"][0]["kind"] == "restored":
            assert messages(store.root) == store.messages


def test_t06_zeroed_page_is_listed_by_queue_and_offset(drill: Start) -> None:
    store = drill(MANY_FILES)
    store.strike("page-zeroed", 3)
    first = min(store.lost, key=lambda message: message.phy_offset)
    found = store.finds("commitlog-damaged-range", *store.place(first.phy_offset), exit_code=4)
    assert found["facts"]["lost_positions"] == len(store.lost)
    with store.recovered() as done:
        assert bridged(done) == sorted(map(position, store.lost))
        assert done["damaged_messages"] == sum(row["messages"] for row in done["plan"]["loss"]) == len(store.lost)
        assert {(row["topic"], row["queue"]) for row in done["plan"]["loss"]} == {
            (message.topic, message.queue_id) for message in store.lost}
        assert all(0 < row["begin"] <= row["end"] for row in done["plan"]["loss"])


def test_t07_swapped_pages_do_not_stand_where_they_say(drill: Start) -> None:
    store = drill(MANY_FILES)
    facts = store.strike("pages-swapped").facts
    for page in (facts["phy_offset"], facts["other"]):
        first = min(m.phy_offset for m in store.lost if page - 4096 < m.phy_offset < page + 4096)
        store.finds("commitlog-damaged-range", *store.place(first), exit_code=4)
    with store.recovered() as done:
        assert bridged(done) == sorted(map(position, store.lost))


# --- T08: stale bytes ---------------------------------------------------------------------------------


def test_t08_stale_records_in_their_own_place_are_shown_only_when_asked_for(drill: Start) -> None:
    store = drill(PLAIN)
    facts = store.strike("ghosts-behind-tail").facts
    found = store.finds("commitlog-ghosts", *store.place(facts["phy_offset"]), exit_code=2)
    assert found["facts"]["count"] == facts["stale"]
    document = store.look().document["commitlog"]
    assert (document["ghosts"], document["messages"]) == (facts["stale"], len(store.messages))
    assert messages(store.root) == store.messages
    stale = store.run("query", "--include-ghosts").document["messages"]
    assert next(item["phy_offset"] for item in stale) == facts["phy_offset"]
    assert len(stale) == facts["stale"]
    with store.recovered():
        assert store.run("query", "--include-ghosts").document["messages"] == []


@pytest.mark.parametrize("cut", [65536, 40000], ids=["whole", "with its end mark after zeros"])
def test_t08_reused_file_full_of_old_records_is_empty(drill: Start, cut: int) -> None:
    store = drill(MANY_FILES)
    files = walk.log_files(store.root)
    reused = store.root / "commitlog" / file_name(files[-1].file_from_offset + 65536)
    content = files[2].read()
    reused.write_bytes(content if cut == 65536 else bytes(cut) + content[cut:])
    result = store.look()
    assert result.code == 2
    assert result.document["commitlog"]["messages"] == len(store.messages)
    warned = {item["file"] for item in result.document["findings"] if item["severity"] == "warning"}
    assert warned == {f"commitlog/{reused.name}"}
    with store.recovered() as done:
        assert messages(store.root) == store.messages
        assert (done["damaged_messages"], done["plan"]["loss"]) == (0, [])
        assert not any(reused.read_bytes())


# --- T09: blanks ----------------------------------------------------------------------------------------


def test_t09_blanks_of_every_size_are_accepted(folder: Path) -> None:
    made = shapes.every_blank(folder / "s")
    store = Drill.of(folder / "s")
    result = store.look()
    assert (result.code, result.document["commitlog"]["messages"]) == (0, made.records)
    assert result.document["commitlog"]["blanks"] == made.files - 1
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code == 0


def test_t09_old_bytes_behind_a_blank_are_accepted(folder: Path) -> None:
    made = shapes.stale_blank_rest(folder / "s")
    result = Drill.of(folder / "s").look()
    assert (result.code, result.document["commitlog"]["messages"]) == (0, made.records)


@pytest.mark.parametrize("recipe", ["blank-zeroed", "blank-bad-magic", "blank-too-large", "blank-too-small"])
def test_t09_damaged_blank_costs_no_message(drill: Start, recipe: str) -> None:
    store = drill(MANY_FILES)
    facts = store.strike(recipe).facts
    store.finds("commitlog-damaged-end-mark", *store.place(facts["phy_offset"]), exit_code=2)
    with store.recovered() as done:
        assert done["damaged_messages"] == 0
        assert messages(store.root) == store.messages


def short_of_a_blank(store: Drill, left: int) -> Located:
    """Lengthen the last record of the first file so that only `left` bytes follow it; its unit knows of it."""
    hit = store.records(0)[-1]
    old, room = hit.record, hit.file.path.stat().st_size - hit.position
    body = old.body + b"x" * (room - left - old.total_size)
    record = structs.replace(old, body=body, body_crc=crc31(body), total_size=room - left)
    overwrite(store.root, hit.file.path, hit.position, encode(record) + bytes(left), "longer")
    for queue in walk.queues(store.root):
        for unit in walk.units(queue):
            if unit.unit.phy_offset == old.phy_offset:
                content = CQ_UNIT.encode(unit.unit._replace(size=record.total_size))
                overwrite(store.root, unit.file.path, unit.position, content, "longer")
    return hit


@pytest.mark.parametrize("left", [1, 4, 7])
def test_t09_rest_too_small_for_a_blank_is_damage(drill: Start, left: int) -> None:
    store = drill(PLAIN)
    hit = short_of_a_blank(store, left)
    store.struck()
    found = store.finds("commitlog-damaged-range", *store.place(hit.record.phy_offset), exit_code=4)
    assert (found["facts"]["reason"], found["facts"]["stop"]) == ("bad-size", hit.file.path.stat().st_size)
    with store.recovered() as done:
        # No broker passes such a record: its place is needed for a blank.
        assert bridged(done) == [(hit.record.topic_name, hit.record.queue_id, hit.record.queue_offset)]
        assert messages(store.root) == store.intact


# --- T10 to T12: unusual, and fine -----------------------------------------------------------------------


@pytest.mark.parametrize("crc", [0, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_t10_extreme_checksums_are_accepted(drill: Start, crc: int) -> None:
    store = drill(PLAIN)
    hit = next(r for r in store.records() if len(r.record.body) > 20)
    body = shapes.body_with_crc(hit.record.body[:-4], crc)
    record = structs.replace(hit.record, body=body, body_crc=crc31(body))
    assert record.body_crc == crc & 0x7FFFFFFF
    overwrite(store.root, hit.file.path, hit.position, encode(record), "body")
    result = store.look()
    assert (result.code, result.document["commitlog"]["messages"]) == (0, len(store.messages))
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code == 0


def _v2(record: commitlog.Record) -> bool:
    return record.magic == commitlog.MAGIC_V2 and len(record.topic) > 127


def _v6(record: commitlog.Record) -> bool:
    return bool(record.sys_flag & sysflag.HOSTS_V6)


@pytest.mark.parametrize("wanted", [
    _v2, _v6, lambda record: _v2(record) and _v6(record),
], ids=["long topic", "IPv6", "both"])
def test_t11_v2_and_ipv6_records_are_read_and_bridged(drill: Start, wanted: Callable[[commitlog.Record], bool]) -> None:
    store = drill("clean-v2-5.5.0")
    result = store.look()
    assert (result.code, result.document["commitlog"]["messages"]) == (0, counts("clean-v2-5.5.0")["records"])
    hit = [r for r in store.records() if wanted(r.record)][5]
    flip_bit(store.root, hit.file.path, body_at(hit), 0)
    store.struck()
    store.finds("commitlog-damaged-record", *store.place(hit.record.phy_offset), exit_code=4)
    with store.recovered() as done:
        names = {(lost["topic"], lost["queue_offset"]) for b in done["bridged"] for lost in b["lost"]}
        assert (hit.record.topic_name, hit.record.queue_offset) in names


KINDS: dict[str, tuple[str, Callable[[commitlog.Record], bool]]] = {
    "compressed": ("killed-compressed-5.3.3", lambda r: bool(r.sys_flag & sysflag.COMPRESSED)),
    "half": ("clean-4.5.1", lambda r: r.topic == b"RMQ_SYS_TRANS_HALF_TOPIC"),
    "delayed": (PLAIN, lambda r: r.topic == b"SCHEDULE_TOPIC_XXXX"),
    "lmq": ("killed-lmq-4.9.7", lambda r: b"INNER_MULTI_DISPATCH" in r.properties),
    "batch": (PLAIN, lambda r: b"bulk" in r.properties),
    "timer": ("clean-5.3.3", lambda r: r.topic == b"rmq_sys_wheel_timer"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_t12_every_kind_of_message_is_decoded_and_bridged(drill: Start, kind: str) -> None:
    name, wanted = KINDS[kind]
    store = drill(name)
    hits = [r for r in store.records()[:-1] if wanted(r.record) and r.record.body]
    assert hits
    record = hits[len(hits) // 2].record
    shown = store.run("query", "--phy-offset", record.phy_offset, "--body").document["messages"]
    assert [(item["topic"], item["queue_offset"], item["body_crc"]) for item in shown] == [
        (record.topic_name, record.queue_offset, record.body_crc)]
    hit = hits[len(hits) // 2]
    flip_bit(store.root, hit.file.path, body_at(hit), 4)
    store.struck()
    store.finds("commitlog-damaged-record", *store.place(record.phy_offset), exit_code=4)
    with store.recovered() as done:
        assert position(next(iter(store.lost))) in bridged(done)
        assert messages(store.root) == store.intact


@pytest.mark.parametrize("recipe", ["bit-in-size", "bit-in-properties-length"])
def test_t12_message_put_back_stands_in_all_its_lmq_queues_again(drill: Start, recipe: str) -> None:
    store = drill("killed-lmq-4.9.7")
    before = queue_bytes(store.root)
    store.strike(recipe)
    (lost,) = store.broken.lost
    assert b"INNER_MULTI_DISPATCH" in store.contents[lost]
    with store.recovered() as done:
        assert [bridge["kind"] for bridge in done["bridged"]] == ["restored"]
        assert (done["damaged_messages"], done["plan"]["loss"]) == (0, [])
        assert messages(store.root) == store.messages
        assert queue_bytes(store.root) == before


def test_t12_damaged_carrier_of_lmq_queues_is_one_message_with_a_place_in_each_of_them(drill: Start) -> None:
    store = drill("killed-lmq-4.9.7")
    hits = [hit for hit in store.records()[:-1] if KINDS["lmq"][1](hit.record) and hit.record.body]
    hit = hits[len(hits) // 2]
    flip_bit(store.root, hit.file.path, body_at(hit), 4)
    store.struck()
    targets = hit.record.property_map()["INNER_MULTI_DISPATCH"].split(",")
    assert store.look().document["commitlog"]["damaged_messages"] == 1
    with store.recovered() as done:
        assert done["damaged_messages"] == 1
        assert {(row["topic"], row["messages"]) for row in done["plan"]["loss"]} == {
            (topic, 1) for topic in (hit.record.topic_name, *targets)}


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd", "plain"])
def test_t12_bodies_are_shown_decompressed(drill: Start, kind: str) -> None:
    store = drill("killed-compressed-5.3.3")
    answer = store.run("query", "--topic", f"Zip-{kind}", "--queue", 0, "--offset", 1, "--body").document
    (shown,) = answer["messages"]
    assert len(shown["body"].encode()) > 1000
    assert shown["sys_flag"] & sysflag.COMPRESSED
