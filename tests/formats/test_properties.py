"""The property text as the two generations of brokers read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import properties as props
from formats.properties import PARSER_NEW, PARSER_OLD, Parser

words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
maps = st.dictionaries(words, words)


@given(maps, st.booleans(), st.sampled_from(Parser))
def test_what_is_joined_is_parsed_back(values: dict[str, str], trailing: bool, generation: Parser) -> None:
    assert props.parse(props.join(values, trailing=trailing), generation) == values


@pytest.mark.parametrize("generation", Parser)
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
def test_both_generations_agree(generation: Parser, content: bytes, values: dict[str, str]) -> None:
    assert props.parse(content, generation) == values


@pytest.mark.parametrize(("content", "old", "new"), [
    (b"k\x01a\x01b\x02", {}, {"k": "a\x01b"}),
    (b"k\x01a\x01\x02", {"k": "a"}, {"k": "a\x01"}),
    (b"k\x01\x01b\x02", {}, {"k": "\x01b"}),
    (b"\x01v\x02", {"": "v"}, {}),
])
def test_a_name_value_separator_in_the_value_divides_the_generations(
    content: bytes, old: dict[str, str], new: dict[str, str],
) -> None:
    assert props.parse(content, PARSER_OLD) == old
    assert props.parse(content, PARSER_NEW) == new


def test_joining_nothing_writes_nothing() -> None:
    assert props.join({}) == b"" == props.join({}, trailing=False)


def test_joined_text_ends_as_asked() -> None:
    assert props.join({"a": "1", "b": "2"}) == b"a\x011\x02b\x012\x02"
    assert props.join({"a": "1", "b": "2"}, trailing=False) == b"a\x011\x02b\x012"


@given(maps, st.booleans())
def test_text_that_a_broker_joined_is_well_formed(values: dict[str, str], trailing: bool) -> None:
    content = props.join({name.replace("\x00", "n"): value + "." for name, value in values.items()}, trailing=trailing)
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
