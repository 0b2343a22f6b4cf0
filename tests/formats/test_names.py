"""Names, hashes, message IDs and properties, as Java writes them."""

from __future__ import annotations

import datetime
import re
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from formats import basics, properties as props
from formats.basics import FormatError, hash32, index_key_hash, java_string
from formats.record.message import offset_id, parse_offset_id
from tests.support.formats import refusal
from tests.support.stores import STORES, unpacked

BERLIN = ZoneInfo("Europe/Berlin")


@given(st.integers(0, basics.MAX_OFFSET))
def test_offsets_round_trip_in_twenty_digits(offset: int) -> None:
    name = basics.offset_to_name(offset)
    assert len(name) == 20
    assert basics.offset_in_name(name) == offset


@pytest.mark.parametrize("name", STORES)
def test_every_real_file_name_parses(name: str) -> None:
    for path in (unpacked(name) / "commitlog").iterdir():
        offset = basics.offset_in_name(path.name)
        assert offset is not None and basics.offset_to_name(offset) == path.name
    for path in (unpacked(name) / "index").iterdir():
        assert basics.index_name(basics.parse_index_name(path.name, BERLIN), BERLIN) == path.name


@pytest.mark.parametrize("name", [
    "", "0", "00000000000000000000.bak", "-0000000000000000001", "+0000000000000000001", "0000000000000000000_",
    "000000000000000000 0", "99999999999999999999", "0000000000000000000a", "000000000000000000000",
])
def test_no_other_name_is_a_mapped_file(name: str) -> None:
    assert basics.offset_in_name(name) is None


def test_digits_of_another_script_are_digits() -> None:
    assert basics.offset_in_name("\N{ARABIC-INDIC DIGIT ZERO}" * 19 + "\N{ARABIC-INDIC DIGIT FOUR}") == 4


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_offsets_beyond_an_i64_have_no_name(offset: int) -> None:
    with pytest.raises(FormatError):
        basics.offset_to_name(offset)


def test_index_names_are_local_time_with_milliseconds() -> None:
    moment = datetime.datetime(2025, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    timestamp = int(moment.timestamp()) * 1000 + 678
    assert basics.index_name(timestamp, datetime.UTC) == "20250102030405678"
    assert basics.index_name(timestamp, BERLIN) == "20250102040405678"
    assert basics.parse_index_name("20250102040405678", BERLIN) == timestamp


def test_of_the_hour_that_comes_twice_the_first_is_meant() -> None:
    first = basics.parse_index_name("20251026023000000", BERLIN)
    assert basics.index_name(first, BERLIN) == basics.index_name(first + 3600 * 1000, BERLIN)


@given(st.integers(0, 253402300799999))
def test_times_round_trip_in_a_zone_without_folds(timestamp: int) -> None:
    assert basics.parse_index_name(basics.index_name(timestamp, datetime.UTC), datetime.UTC) == timestamp


NAME = re.compile(r"(\d{4}|20\d\d)([01]\d|\d\d)([0-3]\d|\d\d)([012]\d|\d\d)([0-6]\d)([0-6]\d)\d{3}", re.ASCII)


@given(st.from_regex(NAME, fullmatch=True))
def test_digits_are_an_index_name_where_they_are_a_date(name: str) -> None:
    try:
        expected = datetime.datetime.strptime(name[:14], "%Y%m%d%H%M%S").replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        assert not basics.is_index_name(name)
    else:
        assert basics.parse_index_name(name, datetime.UTC) == round(expected) * 1000 + int(name[14:])


@pytest.mark.parametrize("name", ["", "20251301000000000", "2025010203040567", "20250102030405678.bak",
                                  "2025 102030405678", "0" * 17, "20250102 30405678",
                                  "\N{ARABIC-INDIC DIGIT TWO}0250102030405678"])
def test_what_is_no_date_is_no_index_name(name: str) -> None:
    assert not basics.is_index_name(name)


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "a.b", "\N{GREEK SMALL LETTER ALPHA}", "a\0"])
def test_topics_that_a_broker_refuses(topic: str) -> None:
    assert not basics.is_legal_topic(topic)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b", "a\nb", "a\\b", "x" * 256, "\u00e4" * 128])
def test_names_that_would_lead_elsewhere_are_unsafe(name: str) -> None:
    assert not basics.is_safe_directory_name(name)


# --- Java's `String.hashCode` and its reading of UTF-8.


@pytest.mark.parametrize(("text", "value"), [
    ("", 0),
    ("TagA", 2598919),
    ("TagB", 2598920),
    ("TagA||TagB", 1789476431),
    ("polygenelubricants", -2147483648),
    ("TopicTest#KEY1", -1656969516),
    ("A#K0", 1972423),
    ("\U0001f600", 1772899),
])
def test_hash_of_a_java_string(text: str, value: int) -> None:
    assert hash32(text) == value


@pytest.mark.parametrize(("text", "value"), [
    ("TopicTest#KEY1", 1656969516),
    ("A#K0", 1972423),
    ("polygenelubricants", 0),
])
def test_index_key_hash_is_never_negative(text: str, value: int) -> None:
    assert index_key_hash(text) == value


@given(st.text(), st.text())
def test_hash_of_a_concatenation(head: str, tail: str) -> None:
    units = len(tail.encode("utf-16-le")) // 2
    joined = (hash32(head) * pow(31, units, 1 << 32) + hash32(tail)) & 0xFFFFFFFF
    assert hash32(head + tail) & 0xFFFFFFFF == joined


@pytest.mark.parametrize(("content", "text"), [
    (b"a\xffb", "a\ufffdb"),
    (b"\xc3\x01", "\ufffd\x01"),
    (b"\xe4\xbd\x02", "\ufffd\x02"),
    (b"x\xed\xa0\x80y", "x\ufffdy"),
    (b"x\xed\xbf\xbfy", "x\ufffdy"),
    (b"x\xed\xa0", "x\ufffd"),
    (b"\xed\x9f\xbf\xff", "\ud7ff\ufffd"),
])
def test_malformed_utf8_is_replaced_as_java_does(content: bytes, text: str) -> None:
    assert java_string(content) == text


# --- Offset message ids and the unique keys of clients.


IPV6 = bytes.fromhex("20010db8000000000000000000000001")


def test_offset_id_of_an_ipv6_store_has_56_digits() -> None:
    assert offset_id(IPV6, 5, 390) == "20010DB8000000000000000000000001" "00000005" "0000000000000186"


@given(st.sampled_from([4, 16]).flatmap(lambda n: st.binary(min_size=n, max_size=n)),
       st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_id_is_read_back(ip: bytes, port: int, phy_offset: int) -> None:
    text = offset_id(ip, port, phy_offset)
    assert parse_offset_id(text) == parse_offset_id(text.lower()) == (ip, port, phy_offset)


def test_address_of_another_length_is_no_host() -> None:
    assert refusal(offset_id, b"\x7f", 1, 1).reason == "bad-host"


# --- The property text as the two generations of brokers read it.


words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
maps = st.dictionaries(words, words)


@given(maps, st.booleans(), st.booleans())
def test_what_is_joined_is_parsed_back(values: dict[str, str], trailing: bool, old: bool) -> None:
    text = props.join(values)
    assert props.parse(text if trailing else text[:-1], old=old) == values


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(("content", "values"), [
    (b"", {}),
    (b"k\x01v", {"k": "v"}),
    (b"k\x01v\x02", {"k": "v"}),
    (b"k\x01v\x02\x02\x02l\x01w", {"k": "v", "l": "w"}),
    (b"k\x01first\x02k\x01last\x02", {"k": "last"}),
    (b"k\x02l\x01w\x02", {"l": "w"}),
    (b"k\x01\x02l\x01w\x02", {"l": "w"}),
    (b"\x00" * 20, {}),
])
def test_both_generations_agree(old: bool, content: bytes, values: dict[str, str]) -> None:
    assert props.parse(content, old=old) == values


@pytest.mark.parametrize(("content", "old", "new"), [
    (b"k\x01a\x01b\x02", {}, {"k": "a\x01b"}),
    (b"k\x01a\x01\x02", {"k": "a"}, {"k": "a\x01"}),
    (b"k\x01\x01b\x02", {}, {"k": "\x01b"}),
    (b"\x01v\x02", {"": "v"}, {}),
])
def test_a_name_value_separator_in_the_value_divides_the_generations(
    content: bytes, old: dict[str, str], new: dict[str, str],
) -> None:
    assert props.parse(content, old=True) == old
    assert props.parse(content) == new


@given(maps, st.booleans())
def test_text_that_a_broker_joined_is_well_formed(values: dict[str, str], trailing: bool) -> None:
    text = props.join({name.replace("\x00", "n"): value + "." for name, value in values.items()})
    content = text if trailing else text[:-1]
    assert props.structure_problem(content) is None


@pytest.mark.parametrize("content", [
    pytest.param(b"k\x01\x02", id="empty value"),
    pytest.param(b"k\x01v\x02\x02l\x01w", id="empty item"),
    pytest.param(b"k\x01a\x01b\x02", id="0x01 in a value"),
    pytest.param(b"k\x01a\x02b\x02", id="0x02 in a value"),
    pytest.param(b"k\x01a\x00b\x02", id="0x00 in a value"),
    pytest.param(b"k\x01\xff\xfe\x02", id="not UTF-8"),
    pytest.param("键\x01值\x02".encode(), id="not ASCII"),
])
def test_text_that_a_client_may_send_is_no_damage(content: bytes) -> None:
    assert props.structure_problem(content) is None


@pytest.mark.parametrize(("content", "problem"), [
    (b"\x00" * 40, "no property name"),
    (b"\xff" * 40, "no property name"),
    (b"\x01" * 40, "no property name"),
    (b"TAGS", "no property name"),
    (b"TAGS\x01A\x02KEYS\x01k\x00\x00\x00", "zero bytes at the end"),
    (b"TAGS\x01A\x02\x00\x00\x00", "zero bytes at the end"),
    (b"\x00\x00\x00AGS\x01A\x02", "zero byte in a property name"),
    (b"\x00\x00\x00A\x02KEYS\x01k\x02", "zero byte in a property name"),
])
def test_text_that_no_writer_leaves_is_damage(content: bytes, problem: str) -> None:
    assert props.structure_problem(content) == problem
