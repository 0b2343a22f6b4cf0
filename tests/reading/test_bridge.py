"""Bridges: exact lengths, records that every check accepts, markers where they do no harm."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, strategies as st

from formats.record import BLANK_SIZE, HEAD, HEADS, Record, check_strict, decode_blank, encode
from formats.record.grammar import is_served
from formats.record.message import TOPIC_HALF, TOPIC_ROCKSDB_HALF
from formats.record.rows import is_filler
from formats.sysflag import HOSTS_V6
from recover.derived.expected import QueueKey
from recover.findings.code import Refusal
from recover.reading.edits import Edit
from recover.reading.lost import LostPosition
from recover.reading.restore import restore
from recover.repair import bridge as bridge_module
from recover.repair.bridge import PIECE, Bridge, BridgeRange
from tests.support.commitlog import Placed, placed_records

START = 1 << 20


def _lost(topic: str, queue_offset: int, queue_id: int = 0) -> LostPosition:
    return LostPosition(QueueKey(topic, queue_id), queue_offset, None, None)


def _walk(bridge: Bridge, stop: int) -> list[Record]:
    """Every record of a bridge, as the strictest reader takes it."""
    own = b"".join(bridge.content.chunks())
    content = own + bytes(BLANK_SIZE)
    records, at, end = [], 0, len(own) - (BLANK_SIZE if bridge.blank is not None else 0)
    while at < end:
        record = check_strict(content, at, len(content), START + at)
        records.append(record)
        at += record.total_size
    assert at == end
    if bridge.blank is not None:
        assert decode_blank(own, at) == stop - START - at
    return records


@given(
    length=st.integers(92, 20_000), crc=st.booleans(), to_end=st.booleans(),
    lost=st.lists(
        st.tuples(st.sampled_from(["T", "Orders-2026", "%RETRY%g", "L" * 140]), st.integers(0, 2**40)), max_size=8
    ),
)
def test_a_bridge_is_exactly_as_long_as_its_gap(
    length: int, crc: bool, to_end: bool, lost: list[tuple[str, int]]
) -> None:
    where = BridgeRange(START, START + length, to_end, 1_700_000_000_000, crc)
    bridge = Bridge(where, [_lost(topic, offset) for topic, offset in lost])
    records = _walk(bridge, where.stop)
    if not to_end:
        assert sum(record.total_size for record in records) == length
    places = iter(lost)
    for record in bridge.markers:
        assert (record.topic_name, record.queue_offset) in places  # in their order
        assert record.property_map()["MQTOOL_LOST"] == "1"
        assert record.version == (2 if len(record.topic) > 127 else 1)
        assert record.body and not any(record.body)  # 4.x consumers drop a whole answer for one empty body
    assert all(is_filler(record) for record in bridge.filler)
    assert all(record.store_timestamp == 1_700_000_000_000 for record in records)


def test_a_gap_between_records_that_no_record_fits_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        Bridge(BridgeRange(START, START + 60, False, 5, False), [])
    assert refused.value.exit_code == 8


def test_a_narrow_end_of_a_file_gets_a_blank_alone() -> None:
    bridge = Bridge(BridgeRange(START, START + 8, True, 5, False), [_lost("T", 1)])
    assert (bridge.markers, bridge.filler, bridge.blank) == ((), (), START)


def test_a_bridge_over_wide_damage_is_not_in_memory() -> None:
    tracemalloc.start()
    try:
        bridge = Bridge(BridgeRange(START, START + 20 * PIECE, True, 5, True), [_lost("T", 4)])
        wide = Bridge(BridgeRange(START, START + 20 * PIECE, False, 5, True), [_lost("T", 4)])
        size = sum(len(chunk) for chunk in wide.content.chunks())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (size, wide.content.size) == (20 * PIECE, 20 * PIECE)
    assert bridge.content.size < 1000
    assert most < 6 * PIECE


def test_a_part_of_a_wide_bridge_is_read_without_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard reads each record of a planned bridge: it took minutes where all was encoded for every read."""
    bridge = Bridge(BridgeRange(START, START + 6 * PIECE, True, 5, True), [_lost("T", at) for at in range(3)])
    wide = Bridge(BridgeRange(START, START + 6 * PIECE, False, 5, True), [_lost("T", at) for at in range(3)])
    for content in (bridge.content, wide.content):
        whole = b"".join(content.chunks())
        for start, length in ((0, 8), (100, 500), (PIECE - 5, 10), (4 * PIECE, PIECE), (len(whole) - 5, 9), (0, 0)):
            assert content.part(start, start + length) == whole[start : start + length]
    made: list[Record] = []
    monkeypatch.setattr(bridge_module, "encode", lambda record: made.append(record) or encode(record))
    assert wide.content.part(5 * PIECE, 5 * PIECE + 8) and len(made) == 1


def test_lmq_queues_get_filler_only() -> None:
    bridge = Bridge(BridgeRange(START, START + 900, False, 5, False), [_lost("%LMQ%light", 4)])
    assert not bridge.markers and bridge.filler


def test_a_lost_timer_message_is_due_at_once_to_a_topic_of_nobody() -> None:
    """TimerMessageStore takes a unit up again and again whose record has no time, no real topic or no real queue."""
    bridge = Bridge(BridgeRange(START, START + 900, False, 5, False), [_lost("rmq_sys_wheel_timer", 4)])
    properties = bridge.markers[0].property_map()
    assert properties["TIMER_OUT_MS"] == "5"
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("MQTOOL_FILLER", "0")


@pytest.mark.parametrize("topic", [TOPIC_HALF, TOPIC_ROCKSDB_HALF])
def test_a_marker_of_a_half_message_names_a_topic(topic: str) -> None:
    (record,) = Bridge(BridgeRange(START, START + 900, False, 5, False), [_lost(topic, 4, 0)]).markers
    assert is_served(record)


def test_a_marker_of_a_delay_level_names_a_topic_to_deliver_to() -> None:
    where = BridgeRange(START, START + 900, False, 5, False)
    (record,) = Bridge(where, [_lost("SCHEDULE_TOPIC_XXXX", 4, 2)]).markers
    values = record.property_map()
    assert (values["DELAY"], values["REAL_TOPIC"], values["REAL_QID"]) == ("3", "MQTOOL_FILLER", "0")


def _restored(placed: Placed, damaged: bytearray) -> Edit | None:
    """The edit that restores a damaged record whose place its queue lacks."""
    record = placed.record
    key = QueueKey(record.topic_name, record.queue_id)
    return restore(bytes(damaged), placed.phy_offset, [LostPosition(key, record.queue_offset, record.phy_offset, None)])


@pytest.mark.parametrize("field", ["total_size", "magic", "phy_offset", "queue_id", "queue_offset", "body_length"])
def test_a_field_of_the_head_is_restored_to_the_very_bytes(field: str) -> None:
    for placed in placed_records("clean-5.3.3")[5:200:13]:
        record = placed.record
        layout = HEADS[record.sys_flag & HOSTS_V6] if field == "body_length" else HEAD
        at = layout.offset(field)
        size = layout.field(field).size
        damaged = bytearray(placed.raw)
        damaged[at : at + size] = b"\xfe" * size
        restored = _restored(placed, damaged)
        assert restored is not None and restored.field == field
        assert encode(restored.record) == placed.raw


@pytest.mark.parametrize("bit", [16, 23, 31])
@pytest.mark.parametrize("field", ["born_port", "store_port"])
def test_a_port_is_restored_from_what_no_port_has(field: str, bit: int) -> None:
    for placed in placed_records("clean-5.3.3")[5:200:13]:
        record = placed.record
        at = HEADS[record.sys_flag & HOSTS_V6].offset(field)
        damaged = bytearray(placed.raw)
        damaged[at + 3 - bit // 8] ^= 1 << bit % 8
        restored = _restored(placed, damaged)
        assert restored is not None and restored.field == field
        assert encode(restored.record) == placed.raw


def test_a_damaged_body_is_not_guessed() -> None:
    placed = placed_records("clean-5.3.3")[50]
    damaged = bytearray(placed.raw)
    damaged[100] ^= 1
    assert _restored(placed, damaged) is None
