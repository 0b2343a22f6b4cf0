"""T02 to T12: damage in the log, and records of every shape."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

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
from tests.scenarios.drill import KILLED, MANY_FILES, PLAIN, Drill, body_at, bridged, file_name, messages, position
from tests.support.trees import assert_unchanged

# --- T02 to T05: records that are torn or flipped; T03, T06 and T07 are rows of DAMAGES in test_every_store.


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


# --- T04, T05: damage in the middle ------------------------------------------------------------------


def test_t05_a_huge_size_takes_no_memory(drill: Start) -> None:
    store = drill(PLAIN)
    store.strike("size-huge")
    tracemalloc.start()
    try:
        store.verify()
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


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


KINDS: dict[str, tuple[str, Callable[[commitlog.Record], bool]]] = {
    "long topic": ("clean-v2-5.5.0", _v2), "IPv6": ("clean-v2-5.5.0", _v6),
    "long topic, IPv6": ("clean-v2-5.5.0", lambda r: _v2(r) and _v6(r)),
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
