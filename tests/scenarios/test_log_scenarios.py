"""T02 to T07: records that are torn, flipped, zeroed or moved."""

from __future__ import annotations

import shutil
import tracemalloc

import pytest
from msgspec import structs

from fixtures.damage.patch import flip_bit, overwrite
from fixtures.damage.walk import Located
from formats.record import HEAD, encode
from tests.scenarios.conftest import Start
from tests.scenarios.drill import body_at, bridged, file_name, messages, position

PLAIN, MANY_FILES, KILLED = "clean-plain-4.9.7", "clean-manyfiles-5.3.3", "killed-plain-4.5.1"


def appended(last: Located) -> bytes:
    """The record that the broker was about to put after the last one."""
    return encode(structs.replace(
        last.record, phy_offset=last.record.phy_offset + last.record.total_size,
        queue_offset=last.record.queue_offset + 1, store_timestamp=last.record.store_timestamp + 1,
    ))


# --- T02: kill -9 ----------------------------------------------------------------------------------


def test_t02_killed_store_is_only_unclean(drill: Start) -> None:
    store = drill(KILLED)
    assert store.verify().code == 2
    assert store.found("abort-present")[0]["file"] == "abort"
    with store.recovered():
        assert not (store.root / "abort").exists()
        assert messages(store.root) == store.messages


@pytest.mark.parametrize("kept", [1, 4, 8, 60, 95])
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


@pytest.mark.parametrize("name", [PLAIN, "killed-lmq-4.9.7"])
@pytest.mark.parametrize("field", ["total_size", "magic", "phy_offset"])
def test_t02_last_record_of_which_only_one_field_is_damaged_is_put_back(drill: Start, name: str, field: str) -> None:
    store = drill(name)
    last = store.records()[-1]
    flip_bit(store.root, last.file.path, last.position + HEAD.field(field).offset + 1, 3)
    store.struck()
    assert store.verify().document["commitlog"]["damaged_messages"] == len(store.lost) == 1
    with store.recovered() as done:
        assert (done["damaged_messages"], done["plan"]["loss"], done["bridged"][0]["field"]) == (0, [], field)
        assert messages(store.root) == store.messages


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


@pytest.mark.parametrize("recipe", [
    "size-zero", "size-negative", "size-huge", "size-one-more", "size-one-less", "size-of-file",
])
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


def test_t05_huge_body_length_is_never_believed(drill: Start) -> None:
    store = drill(PLAIN)
    facts = store.strike("body-length-huge").facts
    store.finds("commitlog-damaged-range", *store.place(facts["phy_offset"]), exit_code=4)
    with store.recovered():
        pass


@pytest.mark.parametrize("seed", [0, 3])
def test_t06_zeroed_page_is_listed_by_queue_and_offset(drill: Start, seed: int) -> None:
    store = drill(MANY_FILES)
    store.strike("page-zeroed", seed)
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


# --- T04: a bit that no checksum covers -------------------------------------------------------------


@pytest.mark.parametrize("queues", ["kept", "gone"])
@pytest.mark.parametrize("field", ["born_port", "store_port"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_t04_ports_that_are_none_are_put_back_beside_one_another(
    drill: Start, count: int, field: str, queues: str
) -> None:
    store = drill(PLAIN)
    hits = store.records()[300 : 300 + count]
    for hit in hits:
        flip_bit(store.root, hit.file.path, hit.position + HEAD.offset(field), 7)
    if queues == "gone":
        shutil.rmtree(store.root / "consumequeue")
    store.struck()
    log = store.verify().document["commitlog"]
    assert [damage["reason"] for damage in log["damaged"]] == [f"bad-{field.replace('_', '-')}"]
    assert log["damaged_messages"] == count
    with store.recovered() as done:
        assert [(bridge["kind"], bridge["field"]) for bridge in done["bridged"]] == [("restored", field)] * count
        assert (done["damaged_messages"], done["plan"]["loss"]) == (0, [])
        assert messages(store.root) == store.messages
