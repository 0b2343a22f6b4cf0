"""Messages kept for later that no longer say where they are to go, or when: services of brokers stop at them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from fixtures.damage.patch import flip_bit
from fixtures.synth import StoreWriter
from formats.basics import offset_to_name
from formats.record import OFFSET_SYS_FLAG, TOPIC_HALF, TOPIC_SCHEDULE, TOPIC_TIMER, Record, make_record
from formats.record.grammar import NEEDED, is_served, unserved
from formats.record.message import TOPIC_ROCKSDB_HALF
from recover.derived.expected import QueueKey
from recover.reading.bits import served_again
from tests.cli.runner import mqtool
from tests.reading.test_rejected_flags import BIT, told_and_put_back
from tests.support.commitlog import Placed, placed_records
from tests.support.stores import STORES, real_store
from tests.support.trees import assert_same_tree, contents, tree_digest

CODE = "commitlog-unserved-message"
STORE = {TOPIC_SCHEDULE: "clean-4.5.1", TOPIC_HALF: "clean-4.5.1", TOPIC_TIMER: "clean-5.3.3"}
PROPERTIES = [(topic, name) for topic in STORE for name in NEEDED[topic]]
VALUES = {"REAL_TOPIC": "TopicA", "REAL_QID": "3", "TIMER_OUT_MS": "1700000000000"}


def _some(topic: str) -> Placed:
    found = [it for it in placed_records(STORE[topic]) if it.record.topic_name == topic]
    return found[len(found) // 2]


def _value_at(hit: Placed, name: str) -> int:
    """Where in its file the value of a property begins."""
    return hit.offset + hit.raw.rindex(f"{name}\x01".encode()) + len(name) + 1


def _record(topic: str, **changed: str | None) -> Record:
    values = {name: value for name, value in {**VALUES, **changed}.items() if value is not None}
    return make_record(topic, b"body", {"KEYS": "a", **values, "TAGS": "b"}, store_timestamp=1_700_000_000_000)


@pytest.mark.parametrize("store", STORES)
def test_services_can_deliver_what_brokers_stored_for_them(store: str) -> None:
    kept = [it.record for it in placed_records(store) if it.record.topic_name in NEEDED]
    assert bool(kept) == ("v2" not in store)
    assert all(is_served(record) and not unserved(record) for record in kept)


@pytest.mark.parametrize(("topic", "name"), PROPERTIES)
@pytest.mark.parametrize("value", [None, "", "a b", "3x", "9" * 40])
def test_a_property_that_a_service_cannot_read_is_named(topic: str, name: str, value: str | None) -> None:
    record = _record(topic, **{name: value})
    right = name == "REAL_TOPIC" and value in ("3x", "9" * 40)
    assert unserved(record) == ([] if right else [name]) and is_served(record) == right


@given(st.sampled_from(sorted(STORE)), st.data())
def test_the_bit_that_is_turned_back_is_the_one_or_there_is_none(topic: str, data: st.DataObject) -> None:
    record = _record(topic)
    number = data.draw(st.integers(0, 8 * len(record.properties) - 1))
    content = bytearray(record.properties)
    content[number // 8] ^= 1 << number % 8
    changed = structs.replace(record, properties=bytes(content))
    if unserved(changed):
        found = served_again(changed, {QueueKey("TopicA", 3)})
        assert found is None or found.record == record


@pytest.mark.parametrize(("topic", "name", "part"), [
    pytest.param(topic, name, part, marks=() if (name, part) == (max(NEEDED[topic]), "value") else pytest.mark.long)
    for topic, name in PROPERTIES for part in ("value", "name")
])
def test_a_flipped_bit_is_told_and_put_back(topic: str, name: str, part: str, tmp_path: Path) -> None:
    store, hit = real_store(STORE[topic], tmp_path), _some(topic)
    sound = contents(store)
    log, at, bit = f"commitlog/{offset_to_name(hit.file_from_offset)}", _value_at(hit, name), 0
    if part == "name":
        at -= 4
    else:
        bit = 7 if name == "REAL_TOPIC" else 6
    flip_bit(store, store / log, at, bit)
    item, _, mended = told_and_put_back(store, sound, CODE, log, at, bit)
    assert item["facts"]["queue_offset"] == hit.record.queue_offset and name in item["message"]
    assert mended["before"] != mended["after"] == mended["value"] == hit.record.get_property(name)


def test_a_message_that_is_rejected_twice_is_mended_in_one_run(tmp_path: Path) -> None:
    store, hit = real_store("clean-4.5.1", tmp_path), _some(TOPIC_SCHEDULE)
    sound, log = contents(store), store / "commitlog" / offset_to_name(hit.file_from_offset)
    flip_bit(store, log, hit.offset + OFFSET_SYS_FLAG + 3, 0)
    flip_bit(store, log, _value_at(hit, "REAL_QID"), 6)
    told = mqtool("verify", store, "--json")
    assert len(told.found(CODE)) == 1 and len(told.found(BIT)) == 2
    assert told.found(CODE)[0]["remedy"] == f"mqtool recover {store} --mend-bits --dry-run"
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert contents(store) == sound


@pytest.mark.parametrize("topic", [TOPIC_HALF, TOPIC_ROCKSDB_HALF])
def test_what_no_single_bit_explains_is_left(topic: str, tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s")
    for number in range(20):
        queue = {} if number == 7 else {"REAL_QID": "0"}
        writer.put(topic, b"half", {"REAL_TOPIC": "T", **queue, "TRAN_MSG": "true"})
    writer.close()
    before = tree_digest(tmp_path / "s")
    assert mqtool("verify", tmp_path / "s", "--json").found(CODE)[0]["remedy"] == f"mqtool explain {CODE}"
    result = mqtool("recover", tmp_path / "s", "--yes")
    assert result.code == 4 and "1 damaged message left" in " ".join(result.stdout.split())
    assert_same_tree(before, tree_digest(tmp_path / "s"))
