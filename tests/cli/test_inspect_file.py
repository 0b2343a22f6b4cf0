"""`mqtool inspect FILE`: kinds, items, fields, checks, and what is no file of ours."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.damage.patch import flip_bit
from formats import sysflag
from formats.errors import FormatError
from formats.legacy_transaction import STATE_PREPARED, STATE_UNIT, StateUnit
from formats.names import offset_to_name
from formats.record import BLANK_SIZE, HEADS
from formats.record.grammar import unserved
from recover.log.judge import judge
from recover.look.record import record_item
from tests.cli.runner import mqtool
from tests.support.commitlog import placed_records
from tests.support.sampling import chosen
from tests.support.stores import STORES, real_store, unpacked
from tests.support.trees import assert_unchanged

LOG = "commitlog/00000000000000000000"


@pytest.mark.parametrize(("path", "kind"), [
    (LOG, "commitlog"), ("checkpoint", "checkpoint"), ("lock", "lock"), ("config/topics.json", "config"),
    ("config/timercheck", "timercheck"), ("timerwheel", "timerwheel"), ("timerlog/00000000000000000000", "timerlog"),
    ("consumequeue/TopicA/0/00000000000000000000", "consumequeue"), ("abort.bak", "abort"),
    ("consumequeue_ext/TopicA/0/00000000000000000000", "consumequeue-ext"), ("config/timermetrics", "config"),
])
def test_every_part_is_recognised_and_sound(path: str, kind: str) -> None:
    store = unpacked("clean-5.3.3")
    with assert_unchanged(store):
        result = mqtool("inspect", store / path, "--json")
    assert result.code == 0
    assert result.document["kind"] == kind
    assert all(item["ok"] for item in result.document["items"])
    assert mqtool("inspect", store / path).code == 0


@pytest.mark.parametrize(("name", "file"), chosen([(name, file) for name in STORES for file in (0, -1)], quick=4))
def test_all_records_of_a_log_file_are_sound(name: str, file: int) -> None:
    path = sorted((unpacked(name) / "commitlog").iterdir())[file]
    result = mqtool("inspect", path, "--limit", "0", "--json")
    assert result.code == 0
    kinds = {item["kind"] for item in result.document["items"]}
    assert kinds <= {"record", "blank", "zeros"}


@pytest.mark.parametrize(("path", "kind"), [
    (LOG, "commitlog"), ("checkpoint", "checkpoint"), ("config/topics.json", "config"),
    ("consumequeue/TopicA/0/00000000000000000000", "consumequeue"),
    ("consumequeue_ext/TopicA/0/00000000000000000000", "consumequeue-ext"),
    ("timerlog/00000000000000000000", "timerlog"),
])
def test_content_tells_the_kind_of_a_file_out_of_place(path: str, kind: str, tmp_path: Path) -> None:
    copy = tmp_path / "evidence.bin"
    copy.write_bytes((unpacked("clean-5.3.3") / path).read_bytes()[: 1 << 20])
    assert mqtool("inspect", copy, "--json").document["kind"] == kind


def test_index_file_shows_header_and_entries() -> None:
    path = sorted((unpacked("killed-5.5.0") / "index").iterdir())[0]
    document = mqtool("inspect", path, "--limit", "0", "--json").document
    assert document["facts"] == {"slots": 500, "entries": 2000}
    assert [item["kind"] for item in document["items"][:2]] == ["header", "entry"]
    assert all(item["ok"] for item in document["items"])


def test_one_record_field_by_field_with_every_check() -> None:
    path = unpacked("killed-v2-ipv6-5.3.3") / LOG
    for where in ("0",):
        result = mqtool("inspect", path, "--offset", where, "--hex", "--json")
        (record,) = result.document["items"]
    names = [field["name"] for field in record["fields"]]
    assert {"total_size", "magic", "born_ip", "body", "topic", "properties"} <= set(names)
    verdicts = {check["name"]: check["ok"] for check in record["checks"]}
    assert verdicts["body CRC"] is True
    assert verdicts["own offset"] is True
    screen = mqtool("inspect", path, "--offset", "0", "--hex")
    assert "da a3 20 ab" in screen.stdout


def test_physical_offset_and_offset_in_the_file_mean_the_same() -> None:
    path = unpacked("killed-5.5.0") / "commitlog" / "00000000000001048576"
    inside = mqtool("inspect", path, "--offset", "709", "--json").document["items"]
    physical = mqtool("inspect", path, "--offset", str(1048576 + 709), "--json").document["items"]
    assert inside == physical
    assert inside[0]["number"] == 1048576 + 709


def test_flipped_body_bit_is_named_and_costs_bit_4(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    path = store / LOG
    second = mqtool("inspect", path, "--json").document["items"][1]
    body = next(field for field in second["fields"] if field["name"] == "body")
    content = bytearray(path.read_bytes())
    content[body["offset"]] ^= 1
    path.write_bytes(content)
    result = mqtool("inspect", path, "--json")
    damaged = result.document["items"][1]
    assert result.code == 4
    assert (damaged["kind"], damaged["offset"], damaged["size"]) == ("damage", second["offset"], second["size"])
    assert [check["name"] for check in damaged["checks"] if check["ok"] is False] == ["body CRC"]
    assert "bad-body-crc" in mqtool("inspect", path).stdout


@pytest.mark.parametrize(("topic", "field", "bit", "check"), [
    ("TopicA", "sys_flag", 0, "body as flagged"), ("SCHEDULE_TOPIC_XXXX", "REAL_QID", 6, "can be delivered"),
])
def test_a_record_that_nobody_can_read_costs_bit_4(
    topic: str, field: str, bit: int, check: str, tmp_path: Path
) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    place, hit = next(it for it in enumerate(placed_records("clean-4.5.1")) if it[1].record.topic_name == topic)
    in_record = 39 if field == "sys_flag" else hit.raw.rindex(f"{field}\x01".encode()) + len(field) + 1
    log = store / "commitlog" / offset_to_name(hit.file_from_offset)
    flip_bit(store, log, hit.offset + in_record, bit)
    whole = mqtool("inspect", log, "--limit", place + 2)
    assert whole.code == 4 and check in whole.stdout
    one = mqtool("inspect", log, "--offset", hit.offset, "--limit", 1, "--json")
    (item,) = one.document["items"]
    assert [each["name"] for each in item["checks"] if each["ok"] is False] == [check]


@pytest.mark.parametrize(("field", "value", "check"), [
    ("born_port", 1 << 16, "born port"), ("store_port", -1, "store port"), ("queue_offset", -1, "queue offset"),
])
def test_a_field_that_verify_refuses_fails_its_check(field: str, value: int, check: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    hit = placed_records("clean-4.5.1")[3]
    layout = HEADS[hit.record.sys_flag & sysflag.HOSTS_V6]
    log = store / "commitlog" / offset_to_name(hit.file_from_offset)
    content = bytearray(log.read_bytes())
    size = next(item.size for item in layout.fields if item.name == field)
    at = hit.offset + layout.offset(field)
    content[at : at + size] = value.to_bytes(size, "big", signed=True)
    log.write_bytes(content)
    (item,) = mqtool("inspect", log, "--offset", hit.offset, "--json").document["items"]
    assert [each["name"] for each in item["checks"] if each["ok"] is False] == [check]


@pytest.mark.parametrize("name", ["clean-5.3.3", "killed-v2-ipv6-5.3.3", "clean-propcrc-5.3.3"])
@given(data=st.data())
@settings(max_examples=120)
def test_a_check_of_inspect_fails_if_and_only_if_the_verdict_refuses(name: str, data: st.DataObject) -> None:
    hit = data.draw(st.sampled_from(placed_records(name)[:400]))
    content = bytearray(hit.raw) + bytes(BLANK_SIZE)
    number = b"%s\x0112" % data.draw(st.sampled_from([b"DELAY", b"INNER_NUM", b"INNER_BASE", b"TIMER_OUT_MS"]))
    kind = data.draw(st.sampled_from(["bit", "bytes", "property", "nothing"]))
    at = data.draw(st.integers(0, hit.record.total_size - 1))
    if kind == "bit":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "bytes":
        changed = data.draw(st.binary(min_size=1, max_size=min(12, hit.record.total_size - at)))
        content[at : at + len(changed)] = changed
    elif kind == "property" and len(hit.record.properties) > len(number):
        start = hit.record.total_size - len(hit.record.properties)
        content[start : start + len(number)] = number

    def read(position: int, size: int) -> bytes:
        return bytes(content[position : position + size])

    end = hit.phy_offset + len(content)
    try:
        record = judge(read, 0, hit.phy_offset, end)
        reason = "" if not unserved(record) and (
            record.property_crc is not None or not sysflag.contradicted_by(record.sys_flag, record.body)
        ) else "rejected"
        item = record_item(read, 0, hit.phy_offset, end, "")
    except FormatError as error:
        reason = error.reason
        item = record_item(read, 0, hit.phy_offset, end, reason)
    failed = [check.name for check in item.checks if check.ok is False]
    assert bool(failed) == bool(reason), (reason, failed)
    assert "verdict" not in failed, reason


def test_the_state_table_of_3x_counts_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "transaction" / "statetable" / offset_to_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(STATE_UNIT.encode(StateUnit(8, 9, 1_400_000_000, 1, STATE_PREPARED)) * 3)
    for options in ((), ("--offset", 0)):
        assert "2014-05-13" in mqtool("inspect", path, *options).stdout


def test_magic_that_is_text_is_shown_as_text(tmp_path: Path) -> None:
    store = real_store("clean-5.3.3", tmp_path)
    path = store / LOG
    content = bytearray(path.read_bytes())
    content[4:8] = b"inMs"
    path.write_bytes(content)
    result = mqtool("inspect", path, "--offset", "0")
    assert '696E4D73 is the text "inMs"' in result.stdout
    assert "no intact record starts at 0" in result.stdout
    assert result.code == 4


def test_t38_what_is_no_store_file_is_16(tmp_path: Path) -> None:
    kafka = struct.pack(">qiibI", 0, 500, 0, 2, 7) + bytes(400)
    cases = {
        "random": (random.Random(38).randbytes(1 << 20), "nothing in it is known"),
        "zeros": (bytes(1 << 20), "nothing but zeros"),
        "kafka": (kafka, "Kafka"),
        "gzip": (gzip.compress(b"x" * 100), "gzip"),
        "empty": (b"", "empty"),
        "text": (b"hello\n", "like text"),
        "json": (b'{"a": 1}', "like text"),
    }
    for name, (content, word) in cases.items():
        (tmp_path / name).write_bytes(content)
        result = mqtool("inspect", tmp_path / name)
        assert result.code == 16, name
        assert word in result.stderr


def test_offset_outside_of_the_file_is_16() -> None:
    assert mqtool("inspect", unpacked("clean-5.3.3") / LOG, "--offset", "99999999").code == 16


def test_missing_path_is_16(tmp_path: Path) -> None:
    assert mqtool("inspect", tmp_path / "nowhere").code == 16


def test_random_bytes_in_a_log_file_neither_crash_nor_hang(tmp_path: Path) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    for seed in range(5):
        path = folder / "00000000000000000000"
        path.write_bytes(b"\xda\xa3\x20\xa7".join(random.Random(seed).randbytes(5000) for _ in range(20)))
        result = mqtool("inspect", path, "--limit", "0", "--json")
        assert result.code in (2, 4)
        assert sum(item["size"] for item in result.document["items"]) == path.stat().st_size
