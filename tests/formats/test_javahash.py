"""Java's `String.hashCode` and its reading of UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.javahash import hash32, index_key_hash, java_string, tags_code


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


def test_the_hash_counts_utf16_units_and_not_code_points() -> None:
    assert hash32("\U0001f600") == hash32("\ud83d\ude00")


@pytest.mark.parametrize("tags", [None, ""])
def test_tags_code_without_tags_is_zero(tags: str | None) -> None:
    assert tags_code(tags) == 0


def test_tags_code_takes_several_tags_as_one_text_and_keeps_the_sign() -> None:
    assert tags_code("TagA||TagB") == 1789476431
    assert tags_code("polygenelubricants") == -2147483648


@given(st.text(), st.text())
def test_hash_of_a_concatenation(head: str, tail: str) -> None:
    units = len(tail.encode("utf-16-le")) // 2
    joined = (hash32(head) * pow(31, units, 1 << 32) + hash32(tail)) & 0xFFFFFFFF
    assert hash32(head + tail) & 0xFFFFFFFF == joined


@given(st.text())
def test_well_formed_text_is_read_as_it_is(text: str) -> None:
    assert java_string(text.encode()) == text


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


@given(st.binary())
def test_no_bytes_are_an_error(content: bytes) -> None:
    # Separators are ASCII, so replacing malformed bytes can neither make nor eat one.
    assert java_string(content).count("\x01") == content.count(b"\x01")
