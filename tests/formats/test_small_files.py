"""Formats of few lines: files of a few fields, checksums, compressed bodies."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from formats import checkpoint, consumequeue, dledger, index, legacy_transaction, sysflag, timer
from formats.basics import FormatError, crc31, hash32, index_key_hash
from formats.checkpoint import Checkpoint
from formats.config import properties_text as javaproperties
from formats.record.message import DEFAULT_MAX_SIZE, MissingCodecError, crc_digits, decompress
from tests.support.stores import STORES, unpacked

# --- abort, lock, epochFileCheckpoint, Java properties, the 3.x transaction table.


@pytest.mark.parametrize(("store", "name", "pid"), [
    ("killed-5.5.0", "abort", 9300), ("killed-v2-ipv6-5.3.3", "abort", 26101), ("clean-5.3.3", "abort.bak", None),
])
def test_real_abort_files_are_reproduced(store: str, name: str, pid: int | None) -> None:
    content = (unpacked(store) / name).read_bytes()
    assert checkpoint.process_id(content) == pid


@pytest.mark.parametrize("content", [b"x", b"-1", b"1 2", b"1" * 11, bytes(4096), "\u0661".encode()])
def test_an_abort_file_with_something_else_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        checkpoint.process_id(content)
    assert caught.value.reason == "bad-abort"


ENTRIES = [(7, 7000), (8, 8000)]


def test_identity_of_a_broker_with_a_controller() -> None:
    assert dledger.decode_identity(b"DefaultCluster#lab#1") == ("DefaultCluster", "lab", 1)
    for text, reason in ((b"DefaultClu", "short"), (b"", "short"), (bytes(20), "short"), (b"a#b#x", "no-number")):
        with pytest.raises(FormatError) as told:
            dledger.decode_identity(text)
        assert told.value.reason == reason


def test_the_checksum_of_an_epoch_file_is_the_brokers() -> None:
    assert dledger.decode_epochs(b"2\n773307083\n7-7000\n8-8000\n") == ENTRIES


def test_a_checksum_of_zero_is_not_checked_and_any_other_is() -> None:
    assert dledger.decode_epochs(b"2\n0\n7-7000\n8-8000\n") == ENTRIES
    with pytest.raises(FormatError) as caught:
        dledger.decode_epochs(b"2\n773307084\n7-7000\n8-8000\n")
    assert (caught.value.reason, caught.value.offset) == ("bad-crc", 2)


@pytest.mark.parametrize(("text", "reason"), [
    (b"", "short"), (b"1\n", "short"), (b"3\n0\n7-7000\n", "bad-count"), (b"x\n0\n", "no-number"),
    (b"1\n0\nseven\n", "bad-epoch"), (b"1\n0\n" + b"9" * 5000 + b"-1\n", "bad-epoch"),
])
def test_each_kind_of_bad_epoch_file_has_its_reason(text: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        dledger.decode_epochs(text)
    assert caught.value.reason == reason


@pytest.mark.parametrize(("text", "pairs"), [
    (b"", {}), (b"# c\n! d\n\n \t\n", {}), (b"a=b", {"a": "b"}), (b"a=1\na=2", {"a": "2"}), (b"h", {"h": ""}),
    (b"a = b \r\nc:d\re f", {"a": "b ", "c": "d", "e": "f"}), (b"a\\=b=c", {"a=b": "c"}),
    (b"a=b\\\n   c", {"a": "bc"}), (b"a=\\u0041\\t", {"a": "A\t"}), (b"a=b\\", {"a": "b"}),
    (b"path=/a\\\\b", {"path": "/a\\b"}), (b"\xe4=\xf6", {"\u00e4": "\u00f6"}),
])
def test_java_properties_are_read_as_java_reads_them(text: bytes, pairs: dict[str, str]) -> None:
    assert javaproperties.loads(text) == pairs


def test_a_broken_escape_in_java_properties_is_refused() -> None:
    with pytest.raises(FormatError):
        javaproperties.loads(b"a=\\u00g0")


def test_a_state_of_the_3x_table_has_24_bytes() -> None:
    unit = legacy_transaction.StateUnit(100, 200, 1_700_000_000, 2598919, legacy_transaction.STATE_COMMIT)
    encoded = legacy_transaction.STATE_UNIT.encode(unit)
    assert encoded.hex() == "0000000000000064" "000000c8" "6553f100" "0027a807" "00000008"
    assert legacy_transaction.STATE_UNIT.decode(encoded) == unit
    assert legacy_transaction.is_valid(unit)
    assert not legacy_transaction.is_valid(unit._replace(state=0))
    assert not legacy_transaction.is_valid(unit._replace(size=0))


# --- formats/test_checkpoint.py


I64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("name", STORES)
def test_every_real_checkpoint_is_reproduced(name: str) -> None:
    content = (unpacked(name) / "checkpoint").read_bytes()
    assert len(content) == checkpoint.FILE_SIZE
    assert checkpoint.encode(checkpoint.decode(content)) == content
    assert checkpoint.rest_is_zero(content)


def test_the_minimum_is_three_seconds_early_as_in_the_brokers_own_test() -> None:
    values = checkpoint.EMPTY._replace(physic_msg_timestamp=0xAABB, logics_msg_timestamp=0xAABC)
    assert checkpoint.min_timestamp(values) == 0xAABB - 3000
    assert checkpoint.min_timestamp(checkpoint.EMPTY) == 0


@given(st.builds(Checkpoint, I64, I64, I64, I64, I64, I64))
def test_checkpoints_round_trip(values: Checkpoint) -> None:
    assert checkpoint.decode(checkpoint.encode(values)) == values


def test_bytes_of_a_younger_version_survive_a_rewrite() -> None:
    base = bytes(48) + b"\7" * 8 + bytes(checkpoint.FILE_SIZE - 56)
    written = checkpoint.encode(checkpoint.EMPTY._replace(physic_msg_timestamp=5), base)
    assert written[48:56] == b"\7" * 8
    assert not checkpoint.rest_is_zero(written)


def test_a_short_file_is_an_error_unless_read_as_a_broker_would() -> None:
    content = checkpoint.encode(checkpoint.EMPTY._replace(physic_msg_timestamp=9))[:12]
    with pytest.raises(FormatError) as caught:
        checkpoint.decode(content)
    assert caught.value.reason == "short"
    assert checkpoint.decode(content, extend=True) == checkpoint.EMPTY._replace(physic_msg_timestamp=9)


# --- formats/test_timer.py


WITH_TIMERS = ("clean-5.3.3", "killed-5.5.0")
UNIT = timer.TimerLogUnit(52, -1, timer.MAGIC_DEFAULT, 1_000_000, 2500, 77, 118, 5, 0)


def timer_log(name: str) -> list[tuple[int, timer.TimerLogUnit]]:
    with (unpacked(name) / "timerlog" / "00000000000000000000").open("rb") as file:
        content = file.read(64 * 1024)
    found = [(at, timer.decode(content, at)) for at in range(0, 1040, timer.TIMER_LOG_UNIT.size)]
    assert b"".join(timer.TIMER_LOG_UNIT.encode(unit) for _, unit in found) == content[:1040]
    with pytest.raises(FormatError):
        timer.decode(content, 1040)
    return found


@pytest.mark.parametrize("name", WITH_TIMERS)
def test_real_timer_logs_are_reproduced_and_hang_in_the_wheel(name: str) -> None:
    found = timer_log(name)
    assert len(found) == 20
    wheel = np.frombuffer((unpacked(name) / "timerwheel").read_bytes(), dtype=timer.TIMER_WHEEL_SLOT.dtype)
    seconds = [(unit.write_timestamp + unit.delay) // 1000 for _, unit in found]
    newest = {instant: position for instant, (position, _) in zip(seconds, found, strict=True)}
    for instant, position in newest.items():
        slot = wheel[instant % timer.WHEEL_SLOTS]
        assert (slot["instant"], slot["last_position"]) == (instant, position)
        assert slot["unit_count"] == seconds.count(instant)
    assert (wheel["instant"] != 0).sum() == len(newest)
    assert {unit.topic_hash for _, unit in found} == {hash32("TopicTimer")}


@pytest.mark.parametrize("name", WITH_TIMERS)
def test_real_timer_checkpoints_are_reproduced(name: str) -> None:
    content = (unpacked(name) / "config" / "timercheck").read_bytes()
    check = timer.TIMER_CHECK.decode(content)
    assert timer.TIMER_CHECK.encode(check).ljust(4096, b"\0") == content
    assert check.last_timer_log_flush_position == 1040
    assert check.last_timer_queue_offset == 20


def test_a_timer_log_file_ends_in_a_blank() -> None:
    with pytest.raises(FormatError) as caught:
        timer.decode(timer.TIMER_LOG_BLANK.encode(timer.TimerLogBlank(16, 0, timer.MAGIC_BLANK)))
    assert caught.value.reason == "end"


@pytest.mark.parametrize(("content", "reason"), [
    (bytes(52), "unwritten"), (timer.TIMER_LOG_UNIT.encode(UNIT._replace(size=51)), "bad-size"),
    (timer.TIMER_LOG_UNIT.encode(UNIT._replace(magic=16)), "bad-magic"),
    (timer.TIMER_LOG_UNIT.encode(UNIT._replace(magic=-1)), "bad-magic"), (bytes(8), "short"),
    (timer.TIMER_LOG_UNIT.encode(UNIT)[:51], "short"),
])
def test_each_kind_of_bad_unit_has_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        timer.decode(content)
    assert caught.value.reason == reason


# --- formats/test_dledger.py


HEAD = dledger.DLedgerEntryHead(1, 48 + 5, 7, 2, 1000, 0, 99, 0, 5)


def entry(**changes: int) -> bytes:
    return dledger.DLEDGER_ENTRY_HEAD.encode(HEAD._replace(**changes)) + b"hello"


def test_an_entry_is_read_in_its_place() -> None:
    assert dledger.decode(b"xx" + entry(), 2, 1000) == HEAD


@pytest.mark.parametrize(("content", "reason"), [
    (dledger.DLEDGER_BLANK.encode(dledger.DLedgerBlank(-1, 500)), "end"), (bytes(60), "unwritten"),
    (entry(magic=2), "bad-magic"), (entry(position=999), "bad-position"), (entry(size=54), "bad-size"),
    (entry(body_size=-1, size=47), "bad-size"), (entry()[:-1], "short"), (entry()[:20], "short"), (b"", "short"),
])
def test_each_kind_of_bad_entry_has_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        dledger.decode(content, 0, 1000)
    assert caught.value.reason == reason


# --- compaction


def test_an_underscore_in_a_topic_is_not_the_one_before_the_queue() -> None:
    assert consumequeue.decode_positions(b'{"queueOffsetMap":{"a_1_b_2":30}}') == {("a_1_b", 2): 30}


@pytest.mark.parametrize("text", [b"[]", b"{}", b'{"queueOffsetMap":{"a":1}}', b'{"queueOffsetMap":{"a_b":1}}',
                                  b'{"queueOffsetMap":{"a_1":"x"}}', b'{"queueOffsetMap":{"a_1":true}}'])
def test_other_text_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        consumequeue.decode_positions(text)
    assert caught.value.reason == "bad-positions"


# --- Index files: what a header and units say, and where they stand.


SMALL = index.IndexGeometry(100, 400)


def test_sizes_and_places_of_the_small_and_the_default_geometry() -> None:
    assert SMALL.size == 8440
    assert SMALL.capacity == 399
    assert index.DEFAULT_GEOMETRY.size == 420_000_040
    assert SMALL.slot_of(index_key_hash("A#K0")) == 23


def test_the_hash_of_a_key_is_the_brokers() -> None:
    assert index_key_hash("A#K0") == 1972423


def test_time_differences_are_whole_seconds_and_never_negative() -> None:
    assert index.time_diff(1000, 4999) == 3
    assert index.time_diff(5000, 4999) == 0
    assert index.time_diff(0, 10**15) == 0
    assert index.time_diff(1, 2**62) == index.MAX_TIME_DIFF


# --- The 31-bit checksum and the digits of the property CRC.


@pytest.mark.parametrize(("content", "value"), [
    (b"", 0),
    (b"hello", 907060870),
    (b"123456789", 1274296614),
])
def test_known_values(content: bytes, value: int) -> None:
    assert crc31(content) == value


def test_digits_come_lowest_first() -> None:
    assert crc_digits(crc31(b"123456789")) == b"4166924721"


# --- Bodies as their producers wrote them.


BODY = b"a body that is worth it " * 200


def _lz4(body: bytes) -> bytes:
    return bytes(importlib.import_module("lz4.frame").compress(body))


def _zstd(body: bytes) -> bytes:
    return bytes(importlib.import_module("zstandard").ZstdCompressor().compress(body))


TYPES = [
    pytest.param(sysflag.COMPRESSION_LEGACY_ZLIB, zlib.compress, id="zlib-before-5.0"),
    pytest.param(sysflag.COMPRESSION_ZLIB, zlib.compress, id="zlib"),
    pytest.param(sysflag.COMPRESSION_LZ4, _lz4, id="lz4"),
    pytest.param(sysflag.COMPRESSION_ZSTD, _zstd, id="zstd"),
]


def _reason(body: bytes, sys_flag: int, max_size: int = DEFAULT_MAX_SIZE) -> str:
    with pytest.raises(FormatError) as caught:
        decompress(body, sys_flag, max_size)
    return caught.value.reason


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_each_type_is_read_back(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert decompress(compress(BODY), sysflag.COMPRESSED | kind, len(BODY)) == BODY


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_a_cut_stream_is_damage(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert _reason(compress(BODY)[:-3], sysflag.COMPRESSED | kind) == "bad-compressed-body"


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_other_bytes_are_damage(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert _reason(b"no stream of any kind", sysflag.COMPRESSED | kind) == "bad-compressed-body"


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_a_body_beyond_the_limit_is_refused(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert _reason(compress(BODY), sysflag.COMPRESSED | kind, len(BODY) - 1) == "body-too-large"


def test_an_unknown_type_is_named() -> None:
    assert _reason(BODY, sysflag.COMPRESSED | 0x700) == "bad-compression-type"


@pytest.mark.parametrize(("kind", "package"), [
    (sysflag.COMPRESSION_LZ4, "lz4"),
    (sysflag.COMPRESSION_ZSTD, "zstandard"),
])
def test_a_missing_package_is_named_and_is_no_damage(kind: int, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lz4", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingCodecError, match=package):
        decompress(BODY, sysflag.COMPRESSED | kind)
