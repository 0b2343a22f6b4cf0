"""One flipped bit: in what a checksum covers, it names the bit; in properties, other witnesses do."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st
from msgspec import structs

from fixtures.damage import damage
from fixtures.damage.patch import flip_bit
from formats.basics import FormatError, hash32, index_key_hash
from formats.record import HEAD, HEAD_SIZE, PROPERTY_CRC_SIZE, Record, decode, encode, make_record, tags_code
from recover.derived.expected import QueueKey
from recover.reading.edits import between, one_bit_variants
from recover.reading.lost import LostPosition
from recover.reading.restore import flipped_back
from tests.cli.runner import mqtool
from tests.scenarios.drill import log_options
from tests.support.commitlog import Placed, is_intact, placed_records
from tests.support.sampling import few
from tests.support.stores import copy_store, log_place, real_store, unpacked
from tests.support.trees import assert_same_tree, contents, tree_digest

# --- One flipped bit in a message: its checksum names the bit, verify tells of it, recover --mend-bits turns it
# back.


LOG = "commitlog/00000000000000000000"


def _flipped(content: bytes, number: int) -> bytes:
    changed = bytearray(content)
    changed[number // 8] ^= 1 << number % 8
    return bytes(changed)


def _record(body: bytes, *, property_crc: bool) -> Record:
    return make_record(b"TopicA", body, queue_id=1, queue_offset=7, phy_offset=1000, store_timestamp=1,
                       property_crc=property_crc, properties=b"TAGS\x01TagA\x02" if property_crc else b"TAGS\x01TagA")


@given(st.binary(min_size=1, max_size=300), st.booleans(), st.data())
def test_a_flipped_bit_that_a_checksum_covers_is_turned_back(
    body: bytes, property_crc: bool, data: st.DataObject
) -> None:
    record = _record(body, property_crc=property_crc)
    stored = encode(record)
    number = data.draw(st.integers(0, 8 * len(stored) - 1))
    damaged = _flipped(stored, number)
    assume(not is_intact(damaged, 1000))
    restored = flipped_back(damaged, 1000, [])
    if restored is None:
        # the lengths, its own place, and what no checksum covers
        in_body = 0 <= number // 8 - HEAD_SIZE < len(body)
        assert not in_body and (not property_crc or not _has_frame(damaged))
        return
    assert encode(restored.record) == stored
    assert restored.position == number // 8 and restored.content == stored[number // 8 : number // 8 + 1]


def _has_frame(damaged: bytes) -> bool:
    """Whether lengths add up, so that there is a checksum to look at."""
    try:
        record = decode(damaged, check_crc=False)
    except FormatError:
        return False
    return record.total_size == len(damaged) and record.phy_offset == 1000 and record.property_crc is not None


@given(st.binary(min_size=4, max_size=300), st.booleans(), st.data())
def test_more_than_one_flipped_bit_is_left_alone(body: bytes, property_crc: bool, data: st.DataObject) -> None:
    stored = encode(_record(body, property_crc=property_crc))
    inside = st.integers(8 * HEAD_SIZE, 8 * (HEAD_SIZE + len(body)) - 1)
    numbers = data.draw(st.sets(inside, min_size=2, max_size=3))
    damaged = stored
    for number in numbers:
        damaged = _flipped(damaged, number)
    # without the bit that brokers drop, three bits may look like one, once in millions
    restored = flipped_back(damaged, 1000, [])
    assert restored is None or len(numbers) == 3


def test_where_other_damage_may_well_look_like_one_bit_nothing_is_said() -> None:
    for size, is_sure in ((200 << 10, True), (300 << 10, False)):
        stored = encode(_record(bytes(size), property_crc=False))
        restored = flipped_back(_flipped(stored, 8 * HEAD_SIZE + 77), 1000, [])
        assert (restored is not None) == is_sure


def test_a_message_whose_place_is_not_lost_is_left_alone() -> None:
    stored = encode(_record(b"body of the message", property_crc=False))
    damaged = _flipped(stored, 8 * (stored.index(b"body") + 2) + 3)
    here, elsewhere = (LostPosition(QueueKey("TopicA", 1), number, 1000, len(stored)) for number in (7, 8))
    assert flipped_back(damaged, 1000, [elsewhere]) is None
    assert flipped_back(damaged, 1000, [elsewhere, here]) is not None


@few("name", ["clean-4.5.1", "killed-v2-ipv6-5.3.3"], quick=(1,))
def test_recover_puts_the_very_bytes_back_when_asked_to(name: str, tmp_path: Path) -> None:
    store = real_store(name, tmp_path)
    mqtool("recover", store, "--yes")
    sound = contents(store)
    choice = random.Random(name)
    records = placed_records(name)
    first = choice.choice([n for n in range(200, 400) if all(it.record.body for it in records[n : n + 2])])
    hit = [*records[first : first + 2], records[-1]]  # two beside one another, and the last one
    for it in hit:
        log, at = log_place(store, it.phy_offset + it.raw.index(it.record.body) + choice.randrange(len(it.record.body)))
        flip_bit(store, log, at, choice.randrange(8))
    damaged = tree_digest(store)

    told = mqtool("verify", store, "--json")
    assert told.code & 4 and len(told.document["commitlog"]["damaged"]) == 2
    flips = told.found("commitlog-flipped-bit")
    assert sorted(item["facts"]["start"] for item in flips) == sorted(it.phy_offset for it in hit)
    assert all(item["severity"] == "info" and item["facts"]["field"] == "body" for item in flips)

    unasked = mqtool("recover", store, "--dry-run", "--json").document
    assert {item["kind"] for item in unasked["bridged"]} == {"bridge"} and unasked["damaged_messages"] == 3
    assert "3 damaged messages lost (--mend-bits would restore 3)" in unasked["summary"]

    planned = mqtool("recover", store, "--dry-run", "--json", "--plan-out", tmp_path / "plan.json").document
    first, second = (step["command"] for step in planned["next"])
    # what saves messages comes first
    assert "--mend-bits --dry-run" in first and second.startswith("mqtool apply ")

    result = mqtool("recover", store, "--mend-bits", "--yes", "--json")
    assert result.code == 1
    assert result.document["damaged_messages"] == result.document["lost_messages"] == 0
    assert [item["kind"] for item in result.document["bridged"]] == ["restored"] * 3
    assert mqtool("verify", store).code == 0
    assert contents(store) == sound
    assert mqtool("undo", store, "--yes").code == 0
    assert_same_tree(damaged, tree_digest(store))


def test_inspect_names_the_bit_of_a_damaged_record(tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    hit = next(it for it in placed_records("clean-4.5.1") if len(it.record.body) > 20)
    at = hit.phy_offset + hit.raw.index(hit.record.body) + 9
    whole = mqtool("inspect", store / LOG, "--offset", hit.phy_offset, "--limit", 1, "--json").document
    flip_bit(store, store / LOG, at, 6)
    damaged = mqtool("inspect", store / LOG, "--offset", hit.phy_offset, "--limit", 1, "--json").document
    hints = [
        [check["detail"] for check in document["items"][0]["checks"] if check["name"] == "one flipped bit"]
        for document in (whole, damaged)
    ]
    assert hints[0] == [] and hints[1][0].startswith(f"bit 6 at {at} (body) flipped back")


# --- One flipped bit in a record's tag or key, which no checksum covers: units remember them.


STORE = "clean-4.5.1"
CODE = "commitlog-flipped-property"
NAMES = st.text(st.sampled_from("abcXYZ019_-"), min_size=1, max_size=12)


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
    (right,) = [it for it in one_bit_variants(changed) if tags_code(it) == tags_code(record)]
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
    (item,) = told.found(CODE)
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


def test_a_message_with_another_tag_and_other_keys_than_its_units_is_damaged(tmp_path: Path) -> None:
    store, hit = real_store(STORE, tmp_path), _with("KEYS")
    at = hit.phy_offset + len(hit.raw) - len(hit.record.properties)
    foreign = (b"KEYS\x01" + b"customer 12 in stock 33 " * 40)[: len(hit.record.properties)]
    with (store / LOG).open("r+b") as log:
        log.seek(at)
        log.write(foreign)

    told = mqtool("verify", store, "--json")
    (item,) = told.found("commitlog-contradicted-properties")
    assert told.code == 6 and told.document["commitlog"]["damaged_messages"] == 1
    assert (item["file"], item["offset"], item["facts"]["start"]) == (LOG, at, hit.phy_offset)
    # its units are made to match it, and with them the last trace is gone
    assert mqtool("recover", store, "--dry-run").code == 6
    made = mqtool("recover", store, "--yes", "--json")
    assert (made.code, made.document["damaged_messages"]) == (5, 1)
    assert mqtool("verify", store).code == 0


@pytest.mark.parametrize(("name", "seed"), [("clean-5.3.3", 1), ("killed-5.5.0", 1), ("killed-lmq-4.9.7", 1)])
def test_properties_that_are_no_text_and_lack_the_keys_of_the_index_are_damaged(
    name: str, seed: int, tmp_path: Path
) -> None:
    """Their queue entries have no tag, or keep it in an extension file: they contradict nothing."""
    root = copy_store(unpacked(name), tmp_path / "s")
    start = damage("properties-destroyed", root, seed).facts["phy_offset"]
    told = mqtool("verify", root, *log_options(root), "--json")
    (item,) = told.found("commitlog-contradicted-properties")
    assert told.code & 4 and item["facts"]["start"] == start
    made = mqtool("recover", root, *log_options(root), "--yes", "--json").document
    assert (made["damaged_messages"], sum(entry["messages"] for entry in made["plan"]["loss"])) == (1, 1)


@few(("fields", "after_its_end"), [
    (("TAGS", "KEYS"), b""), (("TAGS", "queue_offset"), b""), (("KEYS", "queue_offset", "TAGS"), b""),
    (("body", "queue_offset"), b""), (("TAGS",), b"something after the end of the file, which is written anew"),
], quick=(2, 4))
def test_several_wrong_bits_of_one_record_take_one_run(
    fields: tuple[str, ...], after_its_end: bytes, tmp_path: Path
) -> None:
    store = real_store(STORE, tmp_path)
    sound, hit = contents(store), _with("KEYS")
    places = {"queue_offset": hit.phy_offset + HEAD.offset("queue_offset") + 6, "body": hit.phy_offset + HEAD.size + 2}
    for field in fields:
        flip_bit(store, store / LOG, places.get(field) or _value_at(hit, field) + 1, 1)
    with (store / LOG).open("ab") as log:
        log.write(after_its_end)
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert contents(store) == sound


def test_a_tag_and_a_key_whose_hashes_are_one_bit_off_are_contradicted_by_two_witnesses(tmp_path: Path) -> None:
    """Either unit alone could as well be wrong."""
    store = real_store(STORE, tmp_path)
    sound, hit = contents(store), _with("KEYS")

    def flip(name: str, hash_of: Callable[[str], int]) -> None:
        text = hit.record.get_property(name) or ""
        variants = [f"{text[:-1]}{chr(ord(text[-1]) ^ 1 << bit)}" for bit in range(5)]
        bit = [(hash_of(text) ^ hash_of(one)).bit_count() for one in variants].index(1)
        flip_bit(store, store / LOG, _value_at(hit, name) + len(text.encode()) - 1, bit)

    flip("TAGS", hash32)
    one = mqtool("verify", store, "--json")
    assert (one.code, one.found(CODE)) == (2, [])
    flip("KEYS", lambda text: index_key_hash(f"{hit.record.topic_name}#{text.split()[-1]}"))
    told = mqtool("verify", store, "--json")
    assert {item["facts"]["name"] for item in told.found(CODE)} == {"TAGS", "KEYS"}
    assert "--mend-bits" in told.document["next"][0]["command"]
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert contents(store) == sound


@pytest.mark.parametrize("position", [0, 2, 7])
def test_the_name_of_a_property_crc_is_restored_by_the_checksum_after_it(position: int, tmp_path: Path) -> None:
    """5.3.3 with forceVerifyPropCRC cuts there after a crash (seen); all others deliver the message."""
    store = real_store("clean-propcrc-5.3.3", tmp_path)
    sound, records = contents(store), placed_records("clean-propcrc-5.3.3")
    hit = next(it for it in records[len(records) // 2 :] if it.record.property_crc)
    path, place = log_place(store, hit.phy_offset)
    flip_bit(store, path, place + len(hit.raw) - PROPERTY_CRC_SIZE + position, 0)

    told = mqtool("verify", store, "--json")
    (item,) = told.found(CODE)
    assert (told.code, item["severity"], item["facts"]["value"]) == (2, "warning", "__CRC32#")
    assert "--mend-bits" in told.document["next"][0]["command"]
    plain = mqtool("recover", store, "--yes", "--json")
    assert (plain.code, plain.document["applied"]) == (2, False)
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert contents(store) == sound


@pytest.mark.parametrize("recipe", ["index-unit-hash", "queue-unit-tags"])
@pytest.mark.parametrize("seed", range(2))
def test_a_wrong_hash_of_the_index_or_tag_of_a_unit_is_not_the_fault_of_its_record(
    seed: int, recipe: str, tmp_path: Path
) -> None:
    store = real_store(STORE, tmp_path)
    damage(recipe, store, seed)
    sound = (store / LOG).read_bytes()
    assert mqtool("verify", store, "--json").found(CODE) == []
    assert mqtool("recover", store, "--mend-bits", "--yes").code == 1
    assert (store / LOG).read_bytes() == sound


def test_a_tag_that_cannot_be_led_back_by_one_bit_is_left_alone(tmp_path: Path) -> None:
    store = real_store(STORE, tmp_path)
    at = _value_at(_with("TAGS"), "TAGS")
    choice = random.Random(5)
    for number in choice.sample(range(16), 3):
        flip_bit(store, store / LOG, at + number // 8, number % 5)
    assert mqtool("verify", store, "--json").found(CODE) == []
