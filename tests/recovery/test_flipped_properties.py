"""One flipped bit in a record's tag or key, which no checksum covers: units remember them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from fixtures.damage import damage
from fixtures.damage.patch import flip_bit
from formats.commitlog import make_record, tags_code
from recover.flipped_properties import _a_bit_away, _hashes
from tests.cli.runner import Result, mqtool
from tests.support.commitlog import Placed, placed_records
from tests.support.stores import real_store
from tests.support.trees import tree_digest

LOG = "commitlog/00000000000000000000"
STORE = "clean-4.5.1"
CODE = "commitlog-flipped-property"
NAMES = st.text(st.sampled_from("abcXYZ019_-"), min_size=1, max_size=12)


def _told(result: Result) -> list[dict[str, object]]:
    return [item for item in result.document["findings"] if item["code"] == CODE]


def _contents(store: Path) -> dict[str, str]:
    return {path: node.sha256 for path, node in tree_digest(store).items()}


def _tagged() -> Placed:
    """A record with a tag of some length, of a queue that is neither delayed nor one of half messages."""
    records = [it for it in placed_records(STORE) if it.record.topic_name == "TopicA" and it.phy_offset < 1 << 20]
    return next(it for it in records[50:] if len(it.record.get_property("TAGS") or "") > 2)


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
    found = [it for it in _a_bit_away(changed) if tags_code(it[0]) == tags_code(record)]
    ((right, position, bit),) = found
    assert right == record
    assert (position - record.total_size + len(record.properties), bit) == (number // 8, number % 8)


@given(NAMES, st.lists(NAMES, min_size=1, max_size=3, unique=True), st.data())
def test_hashes_of_keys_lead_back_to_the_one_bit(unique: str, keys: list[str], data: st.DataObject) -> None:
    record = make_record("T", b"body", {"KEYS": " ".join(keys), "UNIQ_KEY": unique, "WAIT": "true"}, store_timestamp=1)
    number = data.draw(st.integers(0, 8 * len(record.properties) - 1))
    content = bytearray(record.properties)
    content[number // 8] ^= 1 << number % 8
    changed = structs.replace(record, properties=bytes(content))
    assume(_hashes(record) - _hashes(changed))
    allowed = _hashes(record) | _hashes(changed)
    found = [it[0] for it in _a_bit_away(changed) if _hashes(record) <= _hashes(it[0]) <= allowed]
    assert found == [record] or record in found


def test_a_flipped_tag_is_told_and_put_back_when_asked_for(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    sound, hit = _contents(store), _tagged()
    tag = (hit.record.get_property("TAGS") or "").encode()
    at = hit.phy_offset + hit.raw.rindex(b"TAGS\x01" + tag) + len(b"TAGS\x01")
    flip_bit(store, store / LOG, at, 1)

    told = mqtool("verify", store, "--json")
    assert told.code == 2
    (item,) = _told(told)
    assert (item["file"], item["offset"], item["severity"]) == (LOG, at, "info")
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert _contents(store) == sound
    assert mqtool("undo", store, "--yes").code == 0

    # unasked, the log is left as it is
    log = (store / LOG).read_bytes()
    assert mqtool("recover", store, "--yes").code == 1
    assert (store / LOG).read_bytes() == log
    assert mqtool("verify", store).code == 0


def test_a_flipped_key_is_told_by_the_index_and_put_back_when_asked_for(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    hit = next(it for it in placed_records(STORE)[90:] if " " in (it.record.get_property("KEYS") or ""))
    sound = _contents(store)
    at = hit.phy_offset + hit.raw.rindex(b"KEYS\x01") + len(b"KEYS\x01") + 1
    flip_bit(store, store / LOG, at, 2)

    told = mqtool("verify", store, "--json")
    assert told.code == 2
    (item,) = _told(told)
    assert (item["file"], item["offset"], item["severity"]) == (LOG, at, "info")
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert _contents(store) == sound


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


def test_a_tag_that_cannot_be_led_back_by_one_bit_is_left_alone(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    hit = _tagged()
    at = hit.phy_offset + hit.raw.rindex(b"TAGS\x01") + len(b"TAGS\x01")
    choice = random.Random(5)
    for number in choice.sample(range(16), 3):
        flip_bit(store, store / LOG, at + number // 8, number % 5)
    assert _told(mqtool("verify", store, "--json")) == []
