"""Releases: what differs between them, and what each refuses of a record."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from fixtures.synth import StoreWriter
from formats.basics import crc31, tags_code
from formats.record import BLANK_SIZE, HEAD, MAGIC_BLANK, MAGIC_V2, TOPIC_SCHEDULE, Record, encode, make_record
from formats.record.grammar import ALWAYS, INNER_BATCH, NEVER, Candidate, results
from formats.record.message import with_property_crc
from recover.broker.record_check import LARGEST_JAVA_ARRAY, Checked, CheckRules, check_message
from recover.broker.settings import BrokerSettings, canonical, every_name, load_settings
from recover.broker.versions import (
    BY_NAME,
    LAST_THREE_FILES,
    NEWEST_COMPARED,
    NORMAL_DISPATCHES,
    OLDEST_COMPARED,
    REPUT_FROM_QUEUES,
    BrokerVersion,
    boundaries,
    generation_of,
)
from recover.findings.code import UsageRefusal
from tests.cli.runner import mqtool
from tests.support.commitlog import is_intact, kinds, uncovered
from tests.support.stores import STORES

# --- Broker releases, their behaviours, and the settings that decide a start.


V = BrokerVersion.parse


def check_bytes(content: bytes, some: CheckRules) -> Checked:
    """The verdict on what begins in a buffer that is all that is readable."""
    return check_message(lambda at, length: content[at : at + length], 0, len(content), some)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("5.3.3", (5, 3, 3)), ("5.3", (5, 3, 0)), (" v4.9.7 ", (4, 9, 7)), ("rocketmq-all-4.5.1", (4, 5, 1)),
        ("V5_3_3", (5, 3, 3)), ("4.1.0-incubating", (4, 1, 0)), ("5.0.0-ALPHA", (5, 0, 0)),
    ],
)
def test_release_names_are_understood(text: str, parts: tuple[int, int, int]) -> None:
    version = V(text)
    assert (version.major, version.minor, version.patch) == parts


@pytest.mark.parametrize("text", ["", "5", "newest", "5.x", "5.3.3.3.3 or so"])
def test_other_words_are_no_release(text: str) -> None:
    with pytest.raises(UsageRefusal):
        V(text)


def test_behaviours_hold_from_their_release_up_to_the_next_change() -> None:
    assert not V("4.4.0").has(REPUT_FROM_QUEUES)
    assert V("4.5.0").has(REPUT_FROM_QUEUES) and V("4.9.8").has(REPUT_FROM_QUEUES)
    assert not V("5.0.0").has(REPUT_FROM_QUEUES)
    assert V("5.3.1").has(LAST_THREE_FILES) and not V("5.3.2").has(LAST_THREE_FILES)
    assert not V("5.3.1").has(NORMAL_DISPATCHES) and V("5.5.0").has(NORMAL_DISPATCHES)


def test_generations_begin_where_behaviours_change() -> None:
    firsts = boundaries()
    assert list(firsts) == sorted(set(firsts))
    assert {V("4.5.0"), V("5.0.0"), V("5.1.3"), V("5.3.2"), V("5.4.0"), V("5.5.0")} <= set(firsts)
    assert generation_of(V("5.3.3")) == V("5.3.2")
    assert generation_of(BrokerVersion(3, 5, 8)) == OLDEST_COMPARED and generation_of(NEWEST_COMPARED) == V("5.5.0")


def test_newest_release_is_known_and_starts_as_the_one_before_it() -> None:
    assert NEWEST_COMPARED == V("5.5.1") == V("5.5.1").nearest
    assert generation_of(V("5.5.1")) == generation_of(V("5.5.0"))
    assert {"correctMinOffsetMadviseEnable", "popRocksdbBlockCacheSize", "enableLiteEventMode"} <= every_name()


def test_old_spelling_of_mapped_counts() -> None:
    settings = load_settings(V("4.5.1"), sets=["mapedFileSizeCommitLog=1048576"])
    assert canonical("mapedFileSizeConsumeQueue") == "mappedFileSizeConsumeQueue"
    assert settings.stated_number("mappedFileSizeCommitLog") == 1048576


def test_options_win_over_the_file_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# a broker\nbrokerName = a\nmessageIndexSafe=true\nflushDiskType : SYNC_FLUSH\n")
    settings = load_settings(V("5.3.3"), conf, ["messageIndexSafe=false", "checkCRCOnRecover=FALSE"])
    assert not settings.flag("messageIndexSafe") and not settings.flag("checkCRCOnRecover")
    assert settings.text("flushDiskType") == "SYNC_FLUSH"
    assert settings.unknown == {"brokerName"}


def test_a_setting_that_came_later_is_ignored_and_named() -> None:
    settings = load_settings(V("4.9.7"), sets=["forceVerifyPropCRC=true", "commitLogRecoverMaxNum=3"])
    assert not settings.flag("forceVerifyPropCRC") and settings.number("commitLogRecoverMaxNum") == 10
    assert set(settings.too_new) == {"forceVerifyPropCRC", "commitLogRecoverMaxNum"}


@pytest.mark.parametrize("option", ["checkCRCOnRecover", "=true", "messageDelayLevel=1s 2x"])
def test_options_without_a_meaning_are_refused(option: str) -> None:
    with pytest.raises(UsageRefusal):
        load_settings(V("5.3.3"), sets=[option])


# --- What verify takes for intact is a message to every release: with bits turned over everywhere but in the body.


VERSIONS = ("4.5.1", "4.9.7", "5.0.0", "5.1.4", "5.3.3", "5.5.0")
RULES = [
    CheckRules.of(BrokerSettings(BrokerVersion.parse(version)), recovering=recovering)
    for version in VERSIONS for recovering in (True, False)
]
BATCH = {"INNER_BASE": "1200", "INNER_NUM": "16", "KEYS": "a"}


def _struck(content: bytes, record: Record, bits: int) -> Iterator[bytes]:
    """With each of so many bits of each byte turned over, another one each time."""
    for number, place in enumerate(uncovered(record)):
        for bit in ((number * bits + k) % 8 for k in range(bits)):
            yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def _refused(content: bytes, record: Record, bits: int) -> list[tuple[bytes, str]]:
    """Of all that verify takes for intact, what a broker that takes the record as it was refuses, and why."""
    room = bytes(BLANK_SIZE)
    able = [rules for rules in RULES if check_bytes(content + room, rules).ok]
    assert able
    intact = [some for some in _struck(content, record, bits) if is_intact(some, record.phy_offset)]
    assert intact
    judged = [(some, check_bytes(some + room, rules)) for some in intact for rules in able]
    return [(some, found.reason) for some, found in judged if not found.ok or found.size != len(content)]


@pytest.mark.parametrize("store", [
    pytest.param(name, marks=() if name == "killed-v2-ipv6-5.3.3" else pytest.mark.long)
    for name in STORES
])
def test_no_release_refuses_what_verify_takes_for_intact(store: str) -> None:
    for it in kinds(store):
        assert _refused(it.raw, it.record, 1) == []


@pytest.mark.parametrize(("name", "value"), [
    ("INNER_NUM", "x"), ("INNER_NUM", "32768"), ("INNER_BASE", "1e9"), ("INNER_BASE", "9" * 19),
])
def test_a_batch_inside_without_a_number_is_damage_as_5_x_cuts_the_log_there(
    name: str, value: str, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    writer = StoreWriter(root)
    for number in range(20):
        wrong = {name: value} if number == 7 else {}
        writer.put("T", b"body", {**BATCH, "INNER_BASE": str(number), **wrong})
    writer.close()
    found = mqtool("verify", root, "--json").document
    assert [item["facts"]["reason"] for item in found["findings"] if item["code"] == "commitlog-damaged-record"] == [
        "bad-properties"
    ]
    assert mqtool("predict", root, "--broker", "5.3.3").code == 4
    assert mqtool("recover", root, "--yes").code == 5
    assert mqtool("verify", root).code == mqtool("predict", root, "--broker", "5.3.3").code == 0


# --- Each clause of the broker's record check, release by release.


ROOM = bytes(8)
STORED = 1_700_000_000_000


def rules(version: str, recovering: bool = True, **settings: str) -> CheckRules:
    return CheckRules.of(BrokerSettings(BrokerVersion.parse(version), settings), recovering=recovering)


def record(**fields: object) -> bytes:
    given = {"topic": "T", "body": b"hello", "properties": {"TAGS": "TagA"}, "store_timestamp": STORED, **fields}
    return encode(make_record(**given))  # type: ignore[arg-type]


def verdict(content: bytes, version: str, **settings: str) -> tuple[int, bool]:
    found = check_bytes(content + ROOM, rules(version, True, **settings))
    return found.size, found.ok


def patched(content: bytes, offset: int, value: bytes) -> bytes:
    return content[:offset] + value + content[offset + len(value) :]


ALL = ("4.5.1", "4.9.7", "5.0.0", "5.3.1", "5.3.2", "5.5.0")
FAILS, ENDS, PASSES = (-1, False), (0, True), (None, True)
"""What a check returns: size and whether it is sound. A message that passes has its own size, a blank has 0."""


def blank(size: int) -> bytes:
    return struct.pack(">ii", size, MAGIC_BLANK)


def everywhere(expected: tuple[int | None, bool]) -> dict[str, tuple[int | None, bool]]:
    return dict.fromkeys(ALL, expected)


BODY_LENGTH, HOST = HEAD.offset("body_length"), (bytes(range(16)), 10911)
WITH_CRC = record(property_crc=True)
DUPLICATED, FORCED = {"duplicationEnable": "true"}, {"forceVerifyPropCRC": "true"}
#: The body's own checksum is wrong, that of the properties right.
WRONG_BODY_CRC = encode(with_property_crc(structs.replace(
    make_record("T", b"hello", store_timestamp=STORED, property_crc=True), body_crc=crc31(b"hullo"))))
CHECKED: dict[str, tuple[bytes, dict[str, str], dict[str, tuple[int | None, bool]]]] = {
    "size larger than what is left fails before the magic from 5.3.2": (
        blank(4096), {}, {"5.3.1": ENDS, "5.3.2": FAILS}),
    "blank larger than remaining is failure from 5.3.2": (blank(17), {}, {"5.3.2": FAILS}),
    "blank as large as remaining is an end of file": (blank(16), {}, {"5.3.2": ENDS}),
    "blank smaller than remaining is an end of file": (blank(3), {}, everywhere(ENDS)),
    "blank of a negative size is an end of file": (blank(-3), {}, everywhere(ENDS)),
    "v2 is a message from 5.1.0": (record(topic="t" * 200), {}, {"5.0.0": FAILS, "5.1.0": PASSES}),
    "v2 with a short topic": (record(magic=MAGIC_V2), {}, {"5.1.0": PASSES}),
    "ipv6 hosts are read from 4.6.0": (
        record(born_host=HOST, store_host=HOST), {}, {"4.5.1": FAILS, "4.6.0": PASSES}),
    "body longer than the record fails": (
        patched(record(), BODY_LENGTH, struct.pack(">i", 5000)) + bytes(6000), {}, everywhere(FAILS)),
    "body crc decides": (patched(record(), 90, b"X"), {}, everywhere(FAILS)),
    "body crc that is switched off": (
        patched(record(), 90, b"X"), {"checkCRCOnRecover": "false"}, everywhere(PASSES)),
    "empty body has no crc": (patched(record(body=b""), 8, b"\0\0\0\1"), {}, everywhere(PASSES)),
    "negative body length counts as no body": (
        patched(record(body=b""), BODY_LENGTH, struct.pack(">i", -1)), {}, everywhere(PASSES)),
    "negative topic length fails": (patched(record(body=b""), 88, b"\xff"), {}, everywhere(FAILS)),
    **{f"dup info {text!r} in 5.x": (
        record(properties={"DUP_INFO": text}), DUPLICATED, {"5.3.3": PASSES if passes else FAILS, "4.9.7": PASSES})
       for text, passes in (("a_b", True), ("_b", True), ("a_b_", True), ("a_", False), ("a__b", False), ("a", False),
                            ("_", False))},
    "dup info is not asked of records without properties": (record(properties=b""), DUPLICATED, {"5.3.3": PASSES}),
    "dup info is asked of records with properties": (record(), DUPLICATED, {"5.3.3": FAILS}),
    "forced property crc": (WITH_CRC, FORCED, {"5.3.3": PASSES}),
    "forced property crc covers the head": (patched(WITH_CRC, 12, b"\1"), FORCED, {"5.3.3": FAILS}),
    "property crc is not looked at unless forced": (patched(WITH_CRC, 12, b"\1"), {}, {"5.3.3": PASSES}),
    "forced property crc replaces that of the body": (WRONG_BODY_CRC, FORCED, {"5.3.3": PASSES}),
    "body crc beside a property crc": (WRONG_BODY_CRC, {}, {"5.3.3": FAILS}),
}


@pytest.mark.parametrize("clause", CHECKED)
def test_each_release_takes_or_refuses_what_it_looks_at(clause: str) -> None:
    content, given, expected = CHECKED[clause]
    for version, (size, passes) in expected.items():
        found = check_bytes(content + ROOM, rules(version, True, **given))
        assert found.ok is passes, version
        assert found.size == (size if size is not None else len(content)), version


SCHEDULED = {"topic": TOPIC_SCHEDULE}
DELAYED = record(**SCHEDULED, properties={"DELAY": "3", "TAGS": "TagA"})


@pytest.mark.parametrize(("content", "some", "expected"), [
    pytest.param(DELAYED, rules("5.3.3"), STORED + 10_000, id="delay level gives the deliver time"),
    pytest.param(DELAYED, rules("5.3.3", messageDelayLevel="7s"), STORED + 7_000, id="by the broker's own table"),
    pytest.param(record(**SCHEDULED, properties={"DELAY": "0", "TAGS": "TagA"}), rules("5.3.3"), tags_code("TagA"),
                 id="level 0 is none"),
    pytest.param(DELAYED, rules("4.9.7"), tags_code("TagA"), id="recovery of 4.9 has no delay table yet"),
    pytest.param(DELAYED, rules("4.9.7", recovering=False), STORED + 10_000, id="dispatch of 4.9 has it"),
    pytest.param(DELAYED, rules("4.5.1"), STORED + 10_000, id="recovery of 4.5 has it"),
    pytest.param(record(properties=b"TAGS\x01Tag\x01A\x02"), rules("4.9.0"), 0,
                 id="old parser drops values with a separator up to 4.9.0"),
    pytest.param(record(properties=b"TAGS\x01Tag\x01A\x02"), rules("4.9.1"), tags_code("Tag\x01A"), id="from 4.9.1"),
])
def test_tags_code_of_a_unit(content: bytes, some: CheckRules, expected: int) -> None:
    assert check_bytes(content + ROOM, some).tags_code == expected


def test_four_bytes_are_no_room_from_5_3_2_and_an_underflow_before() -> None:
    for version in ("5.3.1", "5.3.2"):
        found = check_bytes(b"\0\0\0\7", rules(version))
        assert (found.size, found.ok) == FAILS


def test_size_beyond_any_array_kills_brokers_up_to_5_3_1() -> None:
    content = patched(record(), 0, struct.pack(">i", 0x7FFFFFFF)) + ROOM
    assert check_bytes(content, rules("5.3.1")).fatal
    assert check_bytes(content, rules("4.5.1")).fatal
    assert not check_bytes(content, rules("5.3.2")).fatal


def test_large_size_kills_a_small_heap_only() -> None:
    content = patched(record(), 0, struct.pack(">i", 1 << 30)) + ROOM
    assert check_bytes(content, rules("4.9.7")) == structs.replace(
        check_bytes(content, rules("4.9.7")), size=1 << 30, ok=False, fatal=False
    )
    assert check_bytes(content, structs.replace(rules("4.9.7"), heap=1 << 29)).fatal
    assert rules("4.9.7").heap == LARGEST_JAVA_ARRAY


def test_dispatch_skips_the_body_instead_of_reading_it() -> None:
    damaged = record(body=b"hello")[:88] + b"jello" + record()[93:]
    assert not check_bytes(damaged + ROOM, rules("5.3.3")).ok
    assert check_bytes(damaged + ROOM, rules("5.3.3", recovering=False)).ok


@pytest.mark.parametrize("version", ALL)
def test_topic_characters_and_own_offset_are_not_looked_at(version: str) -> None:
    content = record(topic="T/\x07 x", phy_offset=123456789)
    found = check_bytes(content + ROOM, rules(version))
    assert found.ok and found.topic == "T/\x07 x" and found.phy_offset == 123456789


@pytest.mark.parametrize("version", ALL)
def test_negative_properties_length_counts_as_none(version: str) -> None:
    content = record(properties=b"")
    found = check_bytes(patched(content, len(content) - 2, b"\x80\x00") + ROOM, rules(version))
    assert found.ok and found.properties is None


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("change", [-1, 1])
def test_lengths_that_do_not_add_up_are_a_half_message(version: str, change: int) -> None:
    content = record()
    size = len(content) + change
    found = check_bytes(patched(content, 0, struct.pack(">i", size)) + ROOM, rules(version))
    assert (found.size, found.ok, found.reason) == (size, False, "bad-length-sum")
    assert found.consumed == len(content)


def test_forced_property_crc_fails_where_there_is_none() -> None:
    found = check_bytes(record() + ROOM, rules("5.3.3", forceVerifyPropCRC="true"))
    assert (found.size, found.reason) == (-1, "no-property-crc")
    assert verdict(record(), "4.9.7", forceVerifyPropCRC="true")[1]


def _head_field(name: str, value: int) -> bytes:
    field = HEAD.field(name)
    return patched(record(), field.offset, value.to_bytes(field.size, "big", signed=True))


BREAKING_ONE_RULE = {
    "magic": patched(record(), 4, b"\xda\xa3\x20\xa8"),
    "own offset": record(phy_offset=7),
    "length sum": patched(record(), 0, (len(record()) - 1).to_bytes(4, "big")),
    "queue id": _head_field("queue_id", -1), "queue offset": _head_field("queue_offset", -1),
    "born port": _head_field("born_port", 1 << 16), "store port": _head_field("store_port", -1),
    "topic": record(topic="a b"), "properties": record(properties=b"no name"),
    "DELAY": record(topic=TOPIC_SCHEDULE, properties={"DELAY": "soon", "REAL_TOPIC": "T", "REAL_QID": "0"}),
    INNER_BATCH: record(properties={"INNER_BASE": "0", "INNER_NUM": "x"}),
    "body CRC": patched(record(), 90, b"X"),
    "body as flagged": _head_field("sys_flag", 1),
    "can be delivered": record(topic=TOPIC_SCHEDULE, properties={"REAL_TOPIC": "T", "REAL_QID": "x"}),
}


@pytest.mark.parametrize("name", BREAKING_ONE_RULE)
def test_a_release_refuses_what_the_grammar_says_that_it_looks_at(name: str) -> None:
    content = BREAKING_ONE_RULE[name]
    candidate = Candidate(content + ROOM, 0, len(content + ROOM), 0)
    broken = [rule for rule, found in results(candidate) if found.ok is False]
    assert [rule.name for rule in broken] == [name]
    for version in ALL:
        looked_at = broken[0].broker == ALWAYS or (
            broken[0].broker != NEVER and BrokerVersion.parse(version).has(BY_NAME[broken[0].broker]))
        assert verdict(content, version)[1] is not looked_at, version
