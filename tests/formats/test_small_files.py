"""Formats of few lines: files of a few fields, checksums, compressed bodies."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from formats import checkpoint, consumequeue, dledger, index, legacy_transaction, sysflag, timer
from formats.basics import FormatError, crc31, hash32, index_key_hash
from formats.checkpoint import Checkpoint
from formats.config import properties_text as javaproperties
from formats.record.message import DEFAULT_MAX_SIZE, ZSTD, MissingCodecError, crc_digits, decompress, parse_offset_id
from tests.support.formats import refusal
from tests.support.sampling import few
from tests.support.stores import STORES, unpacked

# --- abort, lock, epochFileCheckpoint, Java properties, the 3.x transaction table.


@pytest.mark.parametrize(("store", "name", "pid"), [
    ("killed-5.5.0", "abort", 9300), ("killed-v2-ipv6-5.3.3", "abort", 26101), ("clean-5.3.3", "abort.bak", None),
])
def test_real_abort_files_are_reproduced(store: str, name: str, pid: int | None) -> None:
    content = (unpacked(store) / name).read_bytes()
    assert checkpoint.process_id(content) == pid


ENTRIES = [(7, 7000), (8, 8000)]


def test_identity_of_a_broker_with_a_controller() -> None:
    assert dledger.decode_identity(b"DefaultCluster#lab#1") == ("DefaultCluster", "lab", 1)


def test_the_checksum_of_an_epoch_file_is_the_brokers() -> None:
    assert dledger.decode_epochs(b"2\n773307083\n7-7000\n8-8000\n") == ENTRIES


def test_a_checksum_of_zero_is_not_checked_and_any_other_is() -> None:
    assert dledger.decode_epochs(b"2\n0\n7-7000\n8-8000\n") == ENTRIES
    told = refusal(dledger.decode_epochs, b"2\n773307084\n7-7000\n8-8000\n")
    assert (told.reason, told.offset) == ("bad-crc", 2)


@pytest.mark.parametrize(("text", "pairs"), [
    (b"", {}), (b"# c\n! d\n\n \t\n", {}), (b"a=b", {"a": "b"}), (b"a=1\na=2", {"a": "2"}), (b"h", {"h": ""}),
    (b"a = b \r\nc:d\re f", {"a": "b ", "c": "d", "e": "f"}), (b"a\\=b=c", {"a=b": "c"}),
    (b"a=b\\\n   c", {"a": "bc"}), (b"a=\\u0041\\t", {"a": "A\t"}), (b"a=b\\", {"a": "b"}),
    (b"path=/a\\\\b", {"path": "/a\\b"}), (b"\xe4=\xf6", {"\u00e4": "\u00f6"}),
])
def test_java_properties_are_read_as_java_reads_them(text: bytes, pairs: dict[str, str]) -> None:
    assert javaproperties.loads(text) == pairs


def test_a_state_of_the_3x_table_has_24_bytes() -> None:
    unit = legacy_transaction.StateUnit(100, 200, 1_700_000_000, 2598919, legacy_transaction.STATE_COMMIT)
    encoded = legacy_transaction.STATE_UNIT.encode(unit)
    assert encoded.hex() == "0000000000000064" "000000c8" "6553f100" "0027a807" "00000008"
    assert legacy_transaction.STATE_UNIT.decode(encoded) == unit
    assert legacy_transaction.is_valid(unit)
    assert not legacy_transaction.is_valid(unit._replace(state=0))
    assert not legacy_transaction.is_valid(unit._replace(size=0))


# --- The checkpoint.


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
    assert refusal(checkpoint.decode, content).reason == "short"
    assert checkpoint.decode(content, extend=True) == checkpoint.EMPTY._replace(physic_msg_timestamp=9)


# --- The timer's log and wheel.


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


# --- Entries of DLedger, positions of a compaction.


HEAD = dledger.DLedgerEntryHead(1, 48 + 5, 7, 2, 1000, 0, 99, 0, 5)


def entry(**changes: int) -> bytes:
    return dledger.DLEDGER_ENTRY_HEAD.encode(HEAD._replace(**changes)) + b"hello"


def entry_at_1000(content: bytes) -> object:
    return dledger.decode(content, 0, 1000)


def test_an_entry_is_read_in_its_place() -> None:
    assert dledger.decode(b"xx" + entry(), 2, 1000) == HEAD


def test_an_underscore_in_a_topic_is_not_the_one_before_the_queue() -> None:
    assert consumequeue.decode_positions(b'{"queueOffsetMap":{"a_1_b_2":30}}') == {("a_1_b", 2): 30}


# --- Index files: what a header and units say, and where they stand.


SMALL = index.IndexGeometry(100, 400)


def test_sizes_and_places_of_the_small_and_the_default_geometry() -> None:
    assert SMALL.size == 8440
    assert SMALL.capacity == 399
    assert index.DEFAULT_GEOMETRY.size == 420_000_040
    assert SMALL.slot_of(index_key_hash("A#K0")) == 23


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


TYPES = [
    pytest.param(sysflag.COMPRESSION_LEGACY_ZLIB, zlib.compress, id="zlib-before-5.0"),
    pytest.param(sysflag.COMPRESSION_ZLIB, zlib.compress, id="zlib"),
    pytest.param(sysflag.COMPRESSION_LZ4, lambda body: bytes(import_module("lz4.frame").compress(body)), id="lz4"),
    pytest.param(sysflag.COMPRESSION_ZSTD,
                 lambda body: bytes(import_module(ZSTD).compress(body)), id="zstd"),
]


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_each_type_is_read_back_and_cut_or_other_or_too_many_bytes_are_not(
    kind: int, compress: Callable[[bytes], bytes]
) -> None:
    flag, content = sysflag.COMPRESSED | kind, compress(BODY)
    assert decompress(content, flag, len(BODY)) == BODY
    for damaged in (content[:-3], b"no stream of any kind"):
        assert refusal(decompress, damaged, flag, DEFAULT_MAX_SIZE).reason == "bad-compressed-body"
    assert refusal(decompress, content, flag, len(BODY) - 1).reason == "body-too-large"


@pytest.mark.parametrize(("kind", "compress"), TYPES[2:])
def test_frames_one_after_the_other_are_one_body_as_for_a_java_client(
    kind: int, compress: Callable[[bytes], bytes]
) -> None:
    flag, content = sysflag.COMPRESSED | kind, compress(BODY)
    assert decompress(content + content, flag) == BODY + BODY
    assert refusal(decompress, content + b"garbage!!", flag, DEFAULT_MAX_SIZE).reason == "bad-compressed-body"


def test_what_follows_an_lz4_frame_has_to_be_a_whole_frame() -> None:
    content = bytes(import_module("lz4.frame").compress(BODY))
    for tail in (content[:-3], b"x", b"xxxx"):
        assert refusal(decompress, content + tail, 0x101, DEFAULT_MAX_SIZE).reason == "bad-compressed-body"


def test_bytes_after_a_zstd_frame_are_read_as_java_clients_read_them() -> None:
    """Bytes too few for a frame are skipped, unless the stream reads once more after the frame ended."""
    compress, noise = import_module(ZSTD).compress, random.Random(1).randbytes(131_063)
    content, long = bytes(compress(BODY)), bytes(compress(noise))
    assert len(long) == 131_075
    for tail in (b"x", b"\0\0\0", b"xxxx", content[:4], content[:20], content[:-3]):
        assert decompress(content + tail, 0x201) == BODY
        assert refusal(decompress, long + tail, 0x201, DEFAULT_MAX_SIZE).reason == "bad-compressed-body"
    assert refusal(decompress, content + b"xxxxx", 0x201, DEFAULT_MAX_SIZE).reason == "bad-compressed-body"


@pytest.mark.parametrize(("kind", "compress"), TYPES)
def test_an_empty_body_is_not_compressed_whatever_its_flag(kind: int, compress: Callable[[bytes], bytes]) -> None:
    assert decompress(b"", sysflag.COMPRESSED | kind) == b""


@few(("kind", "compress"), TYPES, quick=(0, 2, 3))
def test_a_bomb_is_refused_before_it_fills_the_memory(kind: int, compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(bytes(DEFAULT_MAX_SIZE + 1))
    assert len(bomb) < 1 << 20
    assert refusal(decompress, bomb, sysflag.COMPRESSED | kind, DEFAULT_MAX_SIZE).reason == "body-too-large"
    assert DEFAULT_MAX_SIZE <= 128 << 20


def test_an_unknown_type_is_named() -> None:
    assert refusal(decompress, BODY, sysflag.COMPRESSED | 0x700, DEFAULT_MAX_SIZE).reason == "bad-compression-type"


@pytest.mark.parametrize(("kind", "package"), [
    (sysflag.COMPRESSION_LZ4, "lz4"),
    (sysflag.COMPRESSION_ZSTD, ZSTD),
])
def test_a_missing_package_is_named_and_is_no_damage(kind: int, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lz4", "lz4.frame", ZSTD):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingCodecError, match=package):
        decompress(BODY, sysflag.COMPRESSED | kind)


# --- What is none of these, and why.


REFUSED: dict[Callable[..., object], dict[str, list[Any]]] = {
    checkpoint.process_id: {"bad-abort": [b"x", b"-1", b"1 2", b"1" * 11, bytes(4096), "\u0661".encode()]},
    dledger.decode_identity: {"short": [b"DefaultClu", b"", bytes(20)], "no-number": [b"a#b#x"]},
    dledger.decode_epochs: {"short": [b"", b"1\n"], "bad-count": [b"3\n0\n7-7000\n"], "no-number": [b"x\n0\n"],
                            "bad-epoch": [b"1\n0\nseven\n", b"1\n0\n" + b"9" * 5000 + b"-1\n"]},
    timer.decode: {
        "end": [timer.TIMER_LOG_BLANK.encode(timer.TimerLogBlank(16, 0, timer.MAGIC_BLANK))], "unwritten": [bytes(52)],
        "bad-size": [timer.TIMER_LOG_UNIT.encode(UNIT._replace(size=51))],
        "bad-magic": [timer.TIMER_LOG_UNIT.encode(UNIT._replace(magic=magic)) for magic in (16, -1)],
        "short": [bytes(8), timer.TIMER_LOG_UNIT.encode(UNIT)[:51]]},
    entry_at_1000: {
        "end": [dledger.DLEDGER_BLANK.encode(dledger.DLedgerBlank(-1, 500))], "unwritten": [bytes(60)],
        "bad-magic": [entry(magic=2)], "bad-position": [entry(position=999)],
        "bad-size": [entry(size=54), entry(body_size=-1, size=47)], "short": [entry()[:-1], entry()[:20], b""]},
    consumequeue.decode_positions: {"bad-positions": [
        b"[]", b"{}", b'{"queueOffsetMap":{"a":1}}', b'{"queueOffsetMap":{"a_b":1}}',
        b'{"queueOffsetMap":{"a_1":"x"}}', b'{"queueOffsetMap":{"a_1":true}}']},
    consumequeue.decode_ext: {
        "end": [b"\xff\xff"], "unwritten": [bytes(20)], "short": [b"\0\x15" + bytes(16) + b"\0\1", b"\0", b"\0\x14"],
        "bad-size": [b"\0\x14" + bytes(16) + b"\0\1", b"\0\x15" + bytes(18), b"\xff\xfe" + bytes(18)]},
    parse_offset_id: {"bad-message-id": [
        "", "order-4711", "7F00", "7F 00" * 8, "G" * 32, "7F000001000000020000000000000072" * 2]},
    javaproperties.loads: {"bad-escape": [b"a=\\u00g0"]},
}


@pytest.mark.parametrize(("read", "content", "reason"), [
    pytest.param(read, content, reason, id=f"{read.__name__}-{reason}-{number}")
    for read, reasons in REFUSED.items() for reason, contents in reasons.items()
    for number, content in enumerate(contents)
])
def test_what_is_none_of_a_format_is_refused_with_the_reason(
    read: Callable[..., object], content: Any, reason: str
) -> None:
    assert refusal(read, content).reason == reason
