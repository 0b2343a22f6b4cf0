"""The dialect of config files: real files byte for byte, torn ones, hostile ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.config import json as fastjson
from formats.config.json import Json, Style, detect_style, dumps, loads, parse, salvage
from formats.errors import FormatError
from tests.support.stores import STORES, unpacked

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
KEYS = st.one_of(TEXT, st.integers(-(2**63), 2**63 - 1))
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=15,
)
FRAGMENTS = st.lists(st.sampled_from([
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"'", b"\\", b"\\u12", b"\\u0041", b"//", b"/*", b"*/", b"\n", b"a", b"-",
    b"1", b"1e9", b"true", b"nul", b"\0", b"\xff", b'"k":', b"0:", b" ",
]), max_size=40).map(b"".join)


def config_files(name: str) -> list[Path]:
    folder = unpacked(name) / "config"
    files = [path for path in folder.iterdir() if path.name != "timercheck"] if folder.is_dir() else []
    return sorted(files)


def reason(data: bytes) -> tuple[str, int]:
    with pytest.raises(FormatError) as caught:
        loads(data)
    return caught.value.reason, caught.value.offset


@pytest.mark.parametrize("name", STORES)
def test_every_real_config_file_is_reproduced_byte_for_byte(name: str) -> None:
    for path in config_files(name):
        content = path.read_bytes()
        assert dumps(loads(content), detect_style(content)) == content, path


def test_the_styles_are_those_of_the_brokers() -> None:
    def style(store: str, file: str) -> Style:
        return detect_style((unpacked(store) / "config" / file).read_bytes())

    assert style("clean-4.5.1", "consumerOffset.json") is Style.FASTJSON1
    assert style("clean-5.3.3", "delayOffset.json") is Style.FASTJSON1
    assert style("killed-5.5.0", "delayOffset.json") is Style.FASTJSON2
    assert style("killed-5.5.0", "timermetrics") is Style.COMPACT


def test_unquoted_integer_keys_are_integers_and_quoted_ones_are_not() -> None:
    assert loads(b'{0:250,-1:1,"2":3,word:4}') == {0: 250, -1: 1, "2": 3, "word": 4}


def test_of_equal_keys_the_last_wins() -> None:
    assert loads(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}


@pytest.mark.parametrize(("data", "value"), [
    (b"\xef\xbb\xbf{}", {}), (b"{'a':'b\"c'}", {"a": 'b"c'}), (b"[1,2,]", [1, 2]), (b'{"a":1,}', {"a": 1}),
    (b"/* x */ {//y\n1:2}", {1: 2}), (b"undefined", None), (b"-1.5e3", -1500.0), (b"12", 12),
    (b'"\\u4e2d\\n\\/\\x41\\7"', "\u4e2d\n/A\7"), (b'"\\ud83d\\ude00"', "\U0001f600"), (b'"\\ud83d"', "\ufffd"),
])
def test_what_fastjson_takes_is_taken(data: bytes, value: Json) -> None:
    assert loads(data) == value


@pytest.mark.parametrize(("data", "expected"), [
    (b"", ("empty", 0)), (b" \n\t", ("empty", 0)), (bytes(100), ("zero-filled", 0)),
    (b'{"a":', ("truncated", 5)), (b'{"a":12', ("truncated", 5)), (b'{"a":tru', ("truncated", 5)),
    (b'{"a":"xyz', ("truncated", 5)), (b'{"a":"x\\', ("truncated", 5)), (b'{"a":"\\u00', ("truncated", 5)),
    (b"{", ("truncated", 1)), (b"[1,", ("truncated", 3)), (b"/* x", ("truncated", 0)), (b'{"a"', ("truncated", 4)),
    (b'{"a":1}x', ("trailing-garbage", 7)), (b"{}{}", ("trailing-garbage", 2)), (b"{,}", ("unexpected-character", 1)),
    (b'{"a":1 "b":2}', ("unexpected-character", 7)), (b"{]", ("unexpected-character", 1)),
    (b"-x", ("unexpected-character", 1)), (b"[1e999]", ("bad-number", 1)),
    (b"[" + b"9" * 500 + b"]", ("bad-number", 1)),
    (b'"\\q"', ("bad-escape", 1)), (b'"\\uzzzz"', ("bad-escape", 1)), (b"wrong", ("unexpected-character", 0)),
])
def test_each_kind_of_damage_has_its_reason_and_place(data: bytes, expected: tuple[str, int]) -> None:
    assert reason(data) == expected


def test_a_file_that_turns_into_zeros_is_truncated_there() -> None:
    with pytest.raises(FormatError) as caught:
        loads(b'{"a":1,' + bytes(500))
    assert (caught.value.reason, caught.value.offset) == ("truncated", 7)
    assert caught.value.facts["zeros"] == 500


def test_zeros_behind_the_value_are_told_apart_from_garbage() -> None:
    parsed = parse(b'{"a":1}\n' + bytes(9))
    assert (parsed.end, parsed.trailing) == (7, "zeros")
    assert parse(b'{"a":1} \n').trailing == ""
    assert parse(b'{"a":1}\n"b"').trailing == "garbage"


def test_bytes_that_are_not_utf_8_are_replaced_and_their_place_is_kept() -> None:
    parsed = parse(b'{"a":"\xe4\xf6"}')
    assert parsed.value == {"a": "\ufffd\ufffd"}
    assert parsed.malformed_utf8 == 5
    assert parse('{"ä":1}'.encode()).malformed_utf8 is None


def test_depth_is_limited() -> None:
    inside = fastjson.MAX_DEPTH
    assert loads(b"[" * inside + b"]" * inside) is not None
    assert reason(b"[" * (inside + 1)) == ("too-deep", inside)
    assert reason(b"[" * 1_000_000) == ("too-deep", inside)


@pytest.mark.parametrize("data", [
    b'"' + b"\\\\" * 500_000, b"/**/" * 250_000, b"{" + b'"a":1,' * 150_000, b" " * 1_000_000 + b"x",
    b'"' + b"a" * 1_000_000, b"/*" * 500_000, b"[" + b"1," * 500_000, bytes(1_000_000) + b"x", b"'" * 999_999,
])
def test_a_megabyte_of_anything_is_read_in_linear_time(data: bytes) -> None:
    began = time.process_time()
    salvage(data)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["clean-4.5.1", "killed-5.5.0"])
def test_every_cut_of_a_real_file_is_named_truncated_and_keeps_whole_members(name: str) -> None:
    content = (unpacked(name) / "config" / "topics.json").read_bytes()
    whole = loads(content)
    assert isinstance(whole, dict) and isinstance(whole["topicConfigTable"], dict)
    seen = set()
    for cut in range(1, len(content), 7):
        saved = salvage(content[:cut])
        assert saved.error is not None and saved.error.reason == "truncated"
        assert saved.end <= cut
        assert isinstance(saved.value, dict)
        table = saved.value.get("topicConfigTable", {})
        assert isinstance(table, dict)
        names = list(table)
        for topic in names[:-1]:
            assert table[topic] == whole["topicConfigTable"][topic]
        seen.add(len(names))
    assert max(seen) == len(whole["topicConfigTable"])


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), FRAGMENTS))
def test_any_bytes_give_a_value_or_a_format_error_within_them(data: bytes) -> None:
    saved = salvage(data)
    assert 0 <= saved.end <= len(data)
    try:
        value = loads(data)
    except FormatError as error:
        assert 0 <= error.offset <= len(data)
    else:
        assert saved.error is None
        assert saved.value == value
        dumps(value, Style.FASTJSON1)


@given(VALUES, st.sampled_from(Style))
def test_values_round_trip_in_every_style(value: Json, style: Style) -> None:
    assert loads(dumps(value, style)) == value


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), TEXT),
                    lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXT, inner)), max_leaves=10))
def test_json_proper_is_read_as_json(value: Json) -> None:
    assert loads(json.dumps(value).encode()) == value
