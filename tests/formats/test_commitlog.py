"""Records and blanks of the commitlog: encode, decode, and each reason to refuse one."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from formats.record import Record, decode, delay_level, encode, make_record
from formats.record.layout import HEAD, HEAD_SIZE
from formats.record.message import TAG_JOIN, decode_blank, encode_blank, inner_batch, iter_index_keys, with_property_crc
from tests.support.commitlog import placed_records
from tests.support.formats import refusal
from tests.support.stores import EXPECTED, STORES

# --- Records and blanks, bytes to values and back.


IPV6_A = bytes.fromhex("20010db8000000000000000000000001")
IPV6_B = bytes.fromhex("20010db8000000000000000000000002")

# Written by the broker's own encoder (5.3 and later).
PROPERTY_CRC_RECORD = bytes.fromhex(
    "00000083 daa320a7 3610a686 00000003 00000000 0000000000000000 0000000000000000 00000000"
    "000001a1f7191573 7f000001000004d2 000001a1f71915d4 0a00000100002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 01 54 0022"
    "70017602 54414753015461674102 5f5f43524333322301 35353033303030353731 02"
)
BATCH_RECORD = bytes.fromhex(
    "00000072 daa320a7 71beeff9 00000000 00000000 0000000000000001 0000000000000072 00000000"
    "0000000000000001 7f00000100000001 000001a1f719268d 7f00000100000002 00000000 0000000000000000"
    "00000001 62 02 4254 0014 57414954017472756502 544147530174616731 02"
)
IPV6_RECORD = bytes.fromhex(
    "0000008f daa320a7 77065916 00000000 00000000 0000000000000000 0000000000000186 00000030"
    "000001a1f7191639 20010db800000000000000000000000100000005 000001a1f719163a"
    "20010db800000000000000000000000200000006 00000000 0000000000000000"
    "00000002 7636 02 5436 0018 70017602 5f5f43524333322301 31363136353035313032 02"
)
BARE_RECORD = bytes.fromhex(
    "00000073 daa320a7 6aa225ea 00000000 00000000 0000000000000000 0000000000000215 00000000"
    "000001a1f719163a 7f000001000004d2 000001a1f719163a 0a00000100002a9f 00000000 0000000000000000"
    "00000002 6e70 02 544e 0014 5f5f43524333322301 38323336333634303631 02"
)
CLIENT = (b"\x7f\x00\x00\x01", 1234)
BROKER = (b"\x0a\x00\x00\x01", 10911)

MADE = [
    pytest.param(PROPERTY_CRC_RECORD, make_record(
        "T", b"hello", b"p\x01v\x02TAGS\x01TagA\x02", queue_id=3, born_timestamp=0x1A1F7191573,
        store_timestamp=0x1A1F71915D4, born_host=CLIENT, store_host=BROKER, property_crc=True), id="property-crc"),
    pytest.param(BATCH_RECORD, make_record(
        "BT", b"b", b"WAIT\x01true\x02TAGS\x01tag1\x02", queue_offset=1, phy_offset=114, born_timestamp=1,
        store_timestamp=0x1A1F719268D, born_host=(CLIENT[0], 1), store_host=(CLIENT[0], 2)), id="of-a-batch"),
    pytest.param(IPV6_RECORD, make_record(
        "T6", b"v6", b"p\x01v", phy_offset=390, born_timestamp=0x1A1F7191639, store_timestamp=0x1A1F719163A,
        born_host=(IPV6_A, 5), store_host=(IPV6_B, 6), property_crc=True), id="ipv6"),
    pytest.param(BARE_RECORD, make_record(
        "TN", b"np", phy_offset=533, store_timestamp=0x1A1F719163A, born_host=CLIENT, store_host=BROKER,
        property_crc=True), id="no-properties-but-crc"),
]


def _reason(content: bytes) -> str:
    return refusal(decode, content).reason


@pytest.mark.parametrize(("content", "record"), MADE)
def test_a_made_record_is_the_one_that_the_broker_encodes(content: bytes, record: Record) -> None:
    assert encode(record) == content
    assert decode(content) == record


def test_a_topic_longer_than_127_makes_a_v2_record() -> None:
    record = make_record("%RETRY%" + "g" * 130, b"v2body", b"p\x01v", store_timestamp=1, property_crc=True)
    content = encode(record)
    assert (record.version, len(content), record.body_crc) == (2, 259, 0x4DB47037)
    assert content[4:8].hex() == "daa320ab"
    assert content[88 + 6:88 + 8].hex() == "0089"
    assert decode(content) == record


@pytest.mark.parametrize("name", STORES)
def test_every_record_of_a_real_store_is_written_back(name: str) -> None:
    placed = placed_records(name)
    assert len(placed) == EXPECTED[name]["records"]
    assert [it.phy_offset for it in placed if encode(it.record) != it.raw] == []


@pytest.mark.parametrize("name", STORES)
def test_keys_of_a_real_store_are_as_many_as_its_index_entries(name: str) -> None:
    tags = EXPECTED[name]["broker"] >= "5.4.0"
    keys = [key for it in placed_records(name) for key in iter_index_keys(it.record) if tags or TAG_JOIN not in key]
    assert len(keys) == EXPECTED[name]["index_entries"]


i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.tuples(st.sampled_from([4, 16]).flatmap(lambda n: st.binary(min_size=n, max_size=n)), i32)
records = st.builds(
    make_record,
    st.binary(max_size=200), st.binary(max_size=300), st.binary(max_size=200),
    store_timestamp=i64, queue_id=i32, queue_offset=i64, phy_offset=i64, flag=i32, sys_flag=i32, born_timestamp=i64,
    born_host=hosts, store_host=hosts, reconsume_times=i32, prepared_transaction_offset=i64, property_crc=st.booleans(),
)


@given(records, st.binary(max_size=20), st.binary(max_size=20))
def test_any_record_is_read_back_from_the_middle_of_a_buffer(record: Record, before: bytes, behind: bytes) -> None:
    content = before + encode(record) + behind
    assert decode(content, len(before)) == record
    assert decode(memoryview(content), len(before)) == record
    assert decode(bytearray(content), len(before)) == record


@given(records, st.data())
def test_a_cut_record_is_short_and_nothing_else(record: Record, data: st.DataObject) -> None:
    content = encode(record)
    cut = data.draw(st.integers(0, len(content) - 1))
    assert _reason(content[:cut]) == "short"


def test_a_body_crc_is_checked_over_the_stored_body() -> None:
    content = encode(structs.replace(decode(BATCH_RECORD), body_crc=1))
    assert _reason(content) == "bad-body-crc"
    assert decode(content, check_crc=False).body == b"b"


def test_the_crc_of_an_empty_body_is_not_checked() -> None:
    content = encode(structs.replace(make_record("T", store_timestamp=1), body_crc=4711))
    assert decode(content).body_crc == 4711


def test_a_property_crc_covers_head_and_topic() -> None:
    content = bytearray(PROPERTY_CRC_RECORD)
    content[HEAD.offset("queue_id") + 3] ^= 1
    assert _reason(bytes(content)) == "bad-property-crc"


def test_property_crc_digits_that_are_none_are_damage() -> None:
    assert _reason(PROPERTY_CRC_RECORD[:-3] + b"xx\x02") == "bad-property-crc"


@pytest.mark.parametrize("name", ["queue_offset", "phy_offset", "store_timestamp"])
def test_a_changed_record_can_get_its_property_crc_again(name: str) -> None:
    change: dict[str, Any] = {name: 4711}
    changed = structs.replace(decode(PROPERTY_CRC_RECORD), **change)
    assert _reason(encode(changed)) == "bad-property-crc"
    content = encode(with_property_crc(changed))
    assert getattr(decode(content), name) == 4711


def test_negative_lengths_are_named() -> None:
    content = bytearray(encode(make_record("T", b"body", b"k\x01v\x02", store_timestamp=1)))
    for at, reason in ((HEAD.offset("body_length"), "bad-body-length"), (HEAD_SIZE + 4, "bad-topic"),
                       (HEAD_SIZE + 4 + 2, "bad-properties")):
        patched = bytearray(content)
        patched[at] = 0xFF
        assert _reason(bytes(patched)) == reason


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("at", [
    HEAD.offset("total_size") + 3, HEAD.offset("body_length") + 3, HEAD_SIZE + 4, HEAD_SIZE + 4 + 1 + 1 + 1,
])
def test_lengths_that_do_not_add_up_are_a_bad_sum(at: int, change: int) -> None:
    content = bytearray(encode(make_record("T", b"body", b"k\x01v\x02", store_timestamp=1)) + bytes(200))
    content[at] += change
    assert _reason(bytes(content)) == "bad-length-sum"


def test_a_stale_size_is_not_written() -> None:
    assert refusal(encode, structs.replace(decode(BATCH_RECORD), body=b"longer")).reason == "bad-length-sum"


@pytest.mark.parametrize("size", [8, 91, 1024])
def test_a_blank_is_read_and_written_back(size: int) -> None:
    content = encode_blank(size)
    assert content == struct.pack(">i", size) + bytes.fromhex("cbd43194")
    assert decode_blank(content + b"stale") == size
    assert _reason(content) == "blank"


# --- What follows from the fields of a record: keys, tags, delay levels.


def _record(topic: str = "T", sys_flag: int = 0, **properties: str) -> Record:
    return make_record(topic, b"", properties, sys_flag=sys_flag, store_timestamp=1)


def test_index_keys_are_the_unique_key_then_the_words_then_the_tags() -> None:
    record = _record(KEYS="a b", TAGS="x||y", UNIQ_KEY="U")
    assert list(iter_index_keys(record)) == ["T#U", "T#a", "T#b", "T#T#x||y"]


def test_words_are_split_at_single_spaces_with_duplicates_kept_and_empty_ones_skipped() -> None:
    record = _record(KEYS=" b  a\tc b ")
    assert list(iter_index_keys(record)) == ["T#b", "T#a\tc", "T#b"]


@pytest.mark.parametrize(("kind", "count"), [(0x0, 1), (0x4, 1), (0x8, 1), (0xC, 0)])
def test_only_rolled_back_transactions_are_not_indexed(kind: int, count: int) -> None:
    record = _record(UNIQ_KEY="U", sys_flag=kind)
    assert record.transaction_type == kind
    assert len(list(iter_index_keys(record))) == count


@pytest.mark.parametrize(("topic", "properties", "level"), [
    ("SCHEDULE_TOPIC_XXXX", {"DELAY": "3"}, 3),
    ("SCHEDULE_TOPIC_XXXX", {"DELAY": "-1"}, -1),
    ("SCHEDULE_TOPIC_XXXX", {}, None),
    ("T", {"DELAY": "3"}, None),
])
def test_delay_level_needs_the_topic_and_the_property(topic: str, properties: dict[str, Any], level: int) -> None:
    assert delay_level(_record(topic, **properties)) == level


@pytest.mark.parametrize("text", ["x", " 1", "1 ", "1_0", "2147483648", "-", "0x1", "1.0"])
def test_a_delay_that_java_cannot_parse_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="Java number"):
        delay_level(_record("SCHEDULE_TOPIC_XXXX", DELAY=text))


@pytest.mark.parametrize(("base", "count", "found"), [
    ("0", "1", (0, 1)), (str(2**63 - 1), "-1", (2**63 - 1, -1)), (None, "x", None), ("x", None, None),
    ("x", "1", "Java number"), (str(2**63), "1", "64 bits"), ("0", "32768", "16 bits"), ("0", "", "Java number"),
])
def test_an_inner_batch_needs_two_numbers(base: str | None, count: str | None, found: Any) -> None:
    values = {name: text for name, text in (("INNER_BASE", base), ("INNER_NUM", count)) if text is not None}
    if not isinstance(found, str):
        assert inner_batch(values) == found
        return
    with pytest.raises(ValueError, match=found):
        inner_batch(values)
