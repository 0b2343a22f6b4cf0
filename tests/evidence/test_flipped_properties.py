"""One flipped bit in a record's tag or key, which no checksum covers: units remember them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from fixtures.damage import damage
from fixtures.damage.patch import flip_bit
from formats.record import HEAD, make_record, tags_code
from recover.evidence.edits import a_bit_away, between
from tests.cli.runner import Result, mqtool
from tests.support.commitlog import Placed, placed_records
from tests.support.stores import real_store
from tests.support.trees import contents

LOG = "commitlog/00000000000000000000"
STORE = "clean-4.5.1"
CODE = "commitlog-flipped-property"
NAMES = st.text(st.sampled_from("abcXYZ019_-"), min_size=1, max_size=12)


def _told(result: Result) -> list[dict[str, Any]]:
    return [item for item in result.document["findings"] if item["code"] == CODE]


def _with(name: str) -> Placed:
    """A record of an ordinary queue in which the value of this property has some length."""
    records = [it for it in placed_records(STORE) if it.record.topic_name == "TopicA" and it.phy_offset < 1 << 20]
    return next(it for it in records[50:] if len(it.record.get_property(name) or "") > 2)


def _value_at(hit: Placed, name: str) -> int:
    start = name.encode() + b"\x01"
    return hit.phy_offset + hit.raw.rindex(start) + len(start)


@given(NAMES, NAMES, st.data())
def test_the_one_bit_that_leads_back_to_the_tag_is_found_or_nothing_is_said(
    tag: str, key: str, data: st.DataObject
) -> None:
    record = make_record("T", b"body", {"KEYS": key, "TAGS": tag, "WAIT": "true"}, store_timestamp=1)
    number = data.draw(st.integers(0, 8 * len(record.properties) - 1))
    content = bytearray(record.properties)
    content[number // 8] ^= 1 << number % 8
    changed = structs.replace(record, properties=bytes(content))
    assume(tags_code(changed) != tags_code(record))
    (right,) = [it for it in a_bit_away(changed) if tags_code(it) == tags_code(record)]
    assert right == record
    edit = between("tag", changed, right, "TAGS")
    assert (edit.position - record.total_size + len(record.properties), edit.bit) == (number // 8, number % 8)


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "UNIQ_KEY"])
def test_a_flipped_property_is_told_and_put_back_when_asked_for(name: str, tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    sound, hit = contents(store), _with(name)
    at = _value_at(hit, name) + 1
    flip_bit(store, store / LOG, at, 1)

    told = mqtool("verify", store, "--json")
    assert told.code == 2
    (item,) = _told(told)
    assert (item["file"], item["offset"], item["severity"]) == (LOG, at, "info")
    assert item["facts"]["name"] == name and item["facts"]["value"] == hit.record.get_property(name)
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert contents(store) == sound
    assert mqtool("undo", store, "--yes").code == 0

    # unasked, the log is left as it is
    log = (store / LOG).read_bytes()
    assert mqtool("recover", store, "--yes").code == 1
    assert (store / LOG).read_bytes() == log
    assert mqtool("verify", store).code == 0


@pytest.mark.parametrize("fields", [("TAGS", "KEYS"), ("TAGS", "queue_offset"), ("KEYS", "queue_offset", "TAGS"),
                                    ("body", "queue_offset")])
def test_several_wrong_bits_of_one_record_take_one_run(fields: tuple[str, ...], tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    sound, hit = contents(store), _with("KEYS")
    places = {"queue_offset": hit.phy_offset + HEAD.offset("queue_offset") + 6, "body": hit.phy_offset + HEAD.size + 2}
    for field in fields:
        flip_bit(store, store / LOG, places.get(field) or _value_at(hit, field) + 1, 1)
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert contents(store) == sound


@pytest.mark.parametrize("seed", range(4))
def test_a_unit_of_the_index_with_a_wrong_hash_is_not_the_fault_of_its_record(seed: int, tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    damage("index-unit-hash", store, seed)
    sound = (store / LOG).read_bytes()
    assert _told(mqtool("verify", store, "--json")) == []
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert (store / LOG).read_bytes() == sound


@pytest.mark.parametrize("seed", range(4))
def test_a_unit_with_a_wrong_tag_is_not_the_fault_of_its_record(seed: int, tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    damage("queue-unit-tags", store, seed)
    assert _told(mqtool("verify", store, "--json")) == []
    sound = (store / LOG).read_bytes()
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert (store / LOG).read_bytes() == sound


def test_a_flipped_tag_is_put_back_in_a_file_that_is_written_anew(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    sound, at = contents(store), _value_at(_with("TAGS"), "TAGS") + 1
    flip_bit(store, store / LOG, at, 1)
    with (store / LOG).open("ab") as log:
        log.write(b"something after the end of the file")
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert contents(store) == sound


def test_a_tag_that_cannot_be_led_back_by_one_bit_is_left_alone(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    at = _value_at(_with("TAGS"), "TAGS")
    choice = random.Random(5)
    for number in choice.sample(range(16), 3):
        flip_bit(store, store / LOG, at + number // 8, number % 5)
    assert _told(mqtool("verify", store, "--json")) == []
