"""Config text read by Python's own parser: only where the reference reader says exactly the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.config import json as fastjson
from formats.config.json import MAX_DEPTH, NotPlainError, Parsed, Style, dumps, salvage
from formats.config.json import read_plain as plain
from tests.formats.test_fastjson import FRAGMENTS, KEYS, VALUES, config_files
from tests.support.stores import STORES

# the keys and values of real files, and what stands between them
PIECES = st.lists(st.sampled_from([
    b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b'"a"', b'"0"', b'""', b"0", b"-0", b"01", b"-7", b"1.5", b"-0.0",
    b"1e3", b"1e999", b"null", b"true", b"NaN", b"Infinity", b"0:", b"-1:", b"00:", b'"k":', b"'", b"/*", b"\x01",
    b"\x02", b"\xc3\xa9", b"\xff", b"\\", b"\\u0041", b"\t", b"\f", b"\0", b"\xef\xbb\xbf", b"9" * 19 + b":",
]), max_size=14).map(b"".join)


def agree(data: bytes) -> Parsed:
    """What both say; types, order and signs of zero included."""
    found, right = salvage(data), fastjson._read(data)
    assert (repr(found.value), found.end, found.trailing) == (repr(right.value), right.end, right.trailing)
    assert (repr(found.error), found.malformed_utf8) == (repr(right.error), right.malformed_utf8)
    return found


@given(st.one_of(st.binary(max_size=60), FRAGMENTS, PIECES, PIECES.map(lambda inner: b"{" + inner + b"}")))
def test_any_bytes_are_read_as_the_reference_reads_them(data: bytes) -> None:
    agree(data)


@given(st.dictionaries(KEYS, VALUES, max_size=6), st.sampled_from(Style), st.data())
def test_values_and_what_a_changed_byte_makes_of_them(value: fastjson.Json, style: Style, data: st.DataObject) -> None:
    text = dumps(value, style)
    agree(text)
    at = data.draw(st.integers(0, len(text) - 1))
    agree(text[:at] + data.draw(st.binary(max_size=2)) + text[at + 1 :])


@pytest.mark.parametrize("name", STORES)
def test_every_real_config_file_is_plain(name: str) -> None:
    for path in config_files(name):
        content = path.read_bytes()
        if b"\\" not in content:
            assert plain(content) == agree(content).value, path


@pytest.mark.parametrize(("text", "value"), [
    ('{"a":{"b":[]}} \r\n', {"a": {"b": []}}),
    ('{0:1,"0":2,00:3}', {0: 3, "0": 2}),
    ('{01:"a",1:"b",01:"c",-0:1,0:2,-0:3}', {1: "c", 0: 3}),
    ('{ 7 :[{-1 : null}] , "x" : {1:2} }', {7: [{-1: None}], "x": {1: 2}}),
    ('{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
    ('{"{1:":"[2:,3:"}', {"{1:": "[2:,3:"}),
    ('"a\nb"', "a\nb"),
    ("null", None),
])
def test_what_is_plain(text: str, value: object) -> None:
    assert repr(plain(text.encode())) == repr(value) == repr(agree(text.encode()).value)


@pytest.mark.parametrize("data", [
    b"", b"{", b'{"a":1}x', b"\0\0", b'\xef\xbb\xbf{"a":1}', b'{"a":"\xff"}', rb'{"a":"\n"}', b"{'a':1}", b"{a:1}",
    b'{"a":1,}', b"{/**/}", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1e999}', b'{"a":01}', b'{"a":1.}', b'"\x01"',
    b'"\x02"', b'{"a":' + b"1" * 400 + b"}", b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), b"[{" * 33 + b"}]" * 33,
    b"[1:2]", b"[0,1:2]", b"{" + b"1" * 19 + b":2}", b"[" * 100_000,
])
def test_what_is_left_to_the_reference(data: bytes) -> None:
    with pytest.raises(NotPlainError):
        plain(data)
    agree(data)


def test_what_would_take_much_memory_in_pieces_is_left_to_the_reference() -> None:
    for begin, item, end, items in (
        (b"[", b" ", b"1]", 16 << 20), (b"[", b'"",', b"1]", 8 << 20), (b"{", b"1:1,", b"1:1}", 2 << 20)
    ):
        assert plain(begin + item * 1000 + end)
        with pytest.raises(NotPlainError):
            plain(begin + item * items + end)


@pytest.mark.parametrize("depth", range(1, MAX_DEPTH + 4))
def test_nothing_nested_deeper_than_the_limit_is_plain(depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")):
        levels = depth * opening.count(b"[") + depth * opening.count(b"{")
        data = opening * depth + b"0" + closing * depth
        try:
            plain(data)
        except NotPlainError:
            continue
        finally:
            agree(data)
        assert levels <= MAX_DEPTH


def test_ten_thousand_topics_and_their_consumers_are_plain() -> None:
    topics = {"topicConfigTable": {f"T{i}": {"attributes": {}, "topicName": f"T{i}", "perm": 6} for i in range(10_000)}}
    text = json.dumps(topics, indent=1).encode()
    assert plain(text) == topics == salvage(text).value
    offsets: fastjson.Json = {"offsetTable": {f"T{i}@g": {number: i for number in range(8)} for i in range(10_000)}}
    text = dumps(offsets, Style.FASTJSON1)
    assert plain(text) == offsets == salvage(text).value
