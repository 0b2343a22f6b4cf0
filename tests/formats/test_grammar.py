"""The verdict on a record: one test for each thing that makes it damage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from formats import sysflag
from formats.basics import FormatError
from formats.native.library import library
from formats.native.walk import QUEUE_COLUMNS, walk_records
from formats.record import Record, check_strict, encode, grammar, make_record
from formats.record.grammar import ALWAYS, NEVER, Rule
from formats.record.layout import BLANK_SIZE, HEAD, HEAD_SIZE, HEADS, OFFSET_PHY_OFFSET
from formats.record.message import encode_blank
from formats.record.rows import RECORD
from recover.broker.versions import BEHAVIOURS
from tests.support.commitlog import Placed, placed_records
from tests.support.formats import refusal
from tests.support.stores import STORES

POSITION = 4096
GOOD = make_record(
    "TopicTest", b"hello", {"KEYS": "a b", "TAGS": "TagA"}, queue_id=1, queue_offset=7, phy_offset=POSITION,
    born_timestamp=1, store_timestamp=2,
)


def _check(content: bytes, room: int | None = None) -> Record:
    limit = len(content) + BLANK_SIZE if room is None else room
    return check_strict(content + bytes(1000), 0, limit, POSITION)


def _error(record: Record | bytes, room: int | None = None) -> FormatError:
    return refusal(_check, encode(record) if isinstance(record, Record) else record, room)


def _reason(record: Record | bytes, room: int | None = None) -> str:
    return _error(record, room).reason


def _with_properties(properties: bytes) -> Record:
    size = GOOD.total_size - len(GOOD.properties) + len(properties)
    return structs.replace(GOOD, properties=properties, total_size=size)


def _named(topic: str) -> Record:
    return make_record(topic, b"hello", phy_offset=POSITION, store_timestamp=2)


def test_magic_of_neither_version_is_damage() -> None:
    assert _reason(encode(GOOD)[:4] + b"\xda\xa3\x20\xa8" + encode(GOOD)[8:]) == "bad-magic"


def test_a_blank_is_no_record() -> None:
    assert _reason(encode_blank(100)) == "blank"


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 90])
def test_size_below_the_smallest_record_is_damage(size: int) -> None:
    assert _reason(size.to_bytes(4, "big", signed=True) + encode(GOOD)[4:]) == "bad-size"


def test_a_blank_must_fit_behind_the_record() -> None:
    assert _check(encode(GOOD), GOOD.total_size + 8) == GOOD
    assert _reason(GOOD, GOOD.total_size + 7) == "bad-size"


def test_no_room_for_size_and_magic_is_short() -> None:
    assert _reason(GOOD, 7) == "short"


@pytest.mark.parametrize("kept", [0, 7, 8, 40, HEAD_SIZE, GOOD.total_size - 1])
def test_a_record_that_the_buffer_does_not_hold_is_short_and_not_damage(kept: int) -> None:
    assert refusal(check_strict, encode(GOOD)[:kept], 0, 2000, POSITION).reason == "short"


def test_a_head_alone_shows_that_the_record_belongs_elsewhere() -> None:
    assert refusal(check_strict, encode(GOOD)[:HEAD_SIZE], 0, 2000, POSITION + 1).reason == "bad-phy-offset"


@pytest.mark.parametrize("change", [-1, 1])
def test_size_off_by_one_is_damage(change: int) -> None:
    content = encode(GOOD)
    assert _reason((GOOD.total_size + change).to_bytes(4, "big") + content[4:], 2000) == "bad-length-sum"


def test_own_offset_of_another_place_is_damage() -> None:
    error = _error(structs.replace(GOOD, phy_offset=POSITION + 1))
    assert (error.reason, error.offset) == ("bad-phy-offset", OFFSET_PHY_OFFSET)
    assert error.facts == {"stored": POSITION + 1, "expected": POSITION}


@pytest.mark.parametrize(("field", "value", "reason"), [
    ("queue_id", -1, "bad-queue-id"),
    ("queue_offset", -1, "bad-queue-offset"),
])
def test_a_value_that_no_broker_writes_is_damage(field: str, value: int, reason: str) -> None:
    change: dict[str, Any] = {field: value}
    error = _error(structs.replace(GOOD, **change))
    assert (error.reason, error.offset) == (reason, HEAD.offset(field))


@pytest.mark.parametrize("field", ["born_timestamp", "store_timestamp"])
@pytest.mark.parametrize("value", [0, -1, -(1 << 63)])
def test_any_time_is_intact_because_brokers_deliver_the_message(field: str, value: int) -> None:
    change: dict[str, Any] = {field: value}
    record = structs.replace(GOOD, **change)
    assert _check(encode(record)) == record


@pytest.mark.parametrize("port", [0x10000, -1, -0x80000000])
@pytest.mark.parametrize("host", ["born", "store"])
@pytest.mark.parametrize("address", [bytes(4), bytes(16)])
def test_a_port_that_is_none_is_damage(host: str, port: int, address: bytes) -> None:
    flag = sysflag.BORNHOST_V6 if host == "born" else sysflag.STOREHOST_V6
    change: dict[str, Any] = {f"{host}_host": (address, port), "sys_flag": flag if len(address) == 16 else 0}
    record = structs.replace(GOOD, total_size=GOOD.total_size + len(address) - 4, **change)
    error = _error(record)
    layout = HEADS[record.sys_flag & sysflag.HOSTS_V6]
    assert (error.reason, error.offset) == (f"bad-{host}-port", layout.offset(f"{host}_port"))
    for right in (0, 0xFFFF):
        change[f"{host}_host"] = (address, right)
        assert _check(encode(structs.replace(record, **change))) == structs.replace(record, **change)


def test_empty_topic_is_damage() -> None:
    assert _reason(_named("")) == "bad-topic"


@pytest.mark.parametrize("topic", ["Topic Test", "Topic\x00est", "Topiç", "a.b", "a+b", "a/b", "Topic\n", "%RETRY%a b"])
def test_topic_that_no_broker_stores_under_is_damage(topic: str) -> None:
    assert _reason(_named(topic)) == "bad-topic"


@pytest.mark.parametrize("topic", [
    "T", "%DLQ%group", "a|b", "Orders-2026_x", "t" * 200,
    "%RETRY%group+topic", "%RETRY%my.group", "rmq_sys_REVIVE_LOG_my.cluster", "my.cluster_REPLY_TOPIC",
])
def test_topic_that_a_broker_made_is_accepted(topic: str) -> None:
    assert _check(encode(_named(topic))).topic_name == topic


def test_zeroed_properties_are_damage_although_the_body_crc_is_good() -> None:
    error = _error(_with_properties(bytes(len(GOOD.properties))))
    assert (error.reason, error.offset) == ("bad-properties", GOOD.total_size - len(GOOD.properties))


@pytest.mark.parametrize("kept", range(len(GOOD.properties)))
def test_properties_lost_from_any_byte_on_are_damage(kept: int) -> None:
    lost = len(GOOD.properties) - kept
    assert _reason(_with_properties(GOOD.properties[:kept] + bytes(lost))) == "bad-properties"


@pytest.mark.parametrize("properties", [b"", b"k\x01v", b"k\x01v\x02", b"k\x01\x02l\x01v\x02", b"k\x01a\x02b\x02"])
def test_properties_that_a_broker_stores_are_accepted(properties: bytes) -> None:
    assert _check(encode(_with_properties(properties))).properties == properties


def test_delay_level_that_is_no_number_is_damage_as_for_the_broker() -> None:
    record = make_record("SCHEDULE_TOPIC_XXXX", b"", {"DELAY": "x"}, phy_offset=POSITION, store_timestamp=2)
    assert _reason(record) == "bad-properties"


@pytest.mark.parametrize("bit", range(8))
def test_one_flipped_bit_in_the_body_is_damage(bit: int) -> None:
    content = bytearray(encode(GOOD))
    content[HEAD_SIZE + 2] ^= 1 << bit
    error = _error(bytes(content))
    assert (error.reason, error.offset) == ("bad-body-crc", HEAD.offset("body_crc"))


@pytest.mark.parametrize("at", [HEAD.offset("flag"), HEAD.offset("reconsume_times"), HEAD_SIZE + 5 + 1])
def test_bytes_that_only_the_property_crc_covers_are_damage(at: int) -> None:
    record = make_record("TopicTest", b"hello", {"a": "b"}, phy_offset=POSITION, store_timestamp=2, property_crc=True)
    assert _check(encode(record)) == record
    content = bytearray(encode(record))
    content[at] ^= 1
    assert _reason(bytes(content)) == "bad-property-crc"


@pytest.mark.parametrize("v6", [0x10, 0x20, 0x30])
def test_offsets_of_ipv6_records_are_reported_where_they_are(v6: int) -> None:
    hosts = [(bytes(16 if v6 & bit else 4), 1) for bit in (0x10, 0x20)]
    record = make_record("T", b"x", phy_offset=POSITION, born_timestamp=1, store_timestamp=1,
                         born_host=hosts[0], store_host=(hosts[1][0], -1))
    error = _error(record)
    assert (error.reason, error.offset) == ("bad-store-port", HEADS[v6].offset("store_port"))
    assert record.sys_flag == v6


@pytest.mark.parametrize("name", STORES)
def test_no_real_record_survives_a_torn_write(name: str) -> None:
    for it in placed_records(name)[::200]:
        for lost in range(1, it.record.total_size - BLANK_SIZE, 13):
            assert _lost_tail(it, lost) != "", f"{lost} zero bytes at the end of {it.phy_offset}"


def _lost_tail(it: Placed, lost: int) -> str:
    """The verdict on a record whose last bytes never reached the disk."""
    content = it.raw[:-lost] + bytes(lost) + bytes(BLANK_SIZE)
    return refusal(check_strict, content, 0, len(content), it.phy_offset).reason


# --- One row is a rule everywhere.


@pytest.mark.parametrize("rule", grammar.RULES, ids=lambda rule: rule.name)
def test_what_brokers_look_at_is_a_behaviour_of_theirs(rule: Rule) -> None:
    assert rule.broker in {ALWAYS, NEVER, *(behaviour.name for behaviour in BEHAVIOURS)}


@pytest.mark.parametrize("offset", [-1, HEAD_SIZE - 3, 1 << 40])
def test_a_range_outside_of_the_head_is_never_read(offset: int) -> None:
    table = np.array([[4, 0, 1, offset, offset, offset, offset]], np.int64)
    out = [np.zeros(1, RECORD), np.zeros(9, np.int32), np.full(8, -1, np.int32), np.zeros(99, np.uint8),
           np.zeros((2, QUEUE_COLUMNS), np.int64), 7, np.zeros(4, np.int64)]
    data = np.frombuffer(encode(GOOD) + bytes(BLANK_SIZE), np.uint8).copy()
    walk_records(data, 0, data.size, POSITION, POSITION + data.size, *out, True, data.size, table)
    assert not out[6][0] or not library()
