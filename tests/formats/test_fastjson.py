"""Texts of config files as fastjson reads them, and the tables that they hold."""

from __future__ import annotations

import importlib
import pkgutil
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

import formats
from formats.basics import FormatError, Layout
from formats.config import json as fastjson, tables as config
from formats.config.json import Json, Style, detect_style, dumps, loads, salvage
from tests.support.formats import FORMATS, Format, refusal
from tests.support.stores import STORES, unpacked

# --- The dialect of config files: real files byte for byte, torn ones, hostile ones.


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
    told = refusal(loads, data)
    return told.reason, told.offset


@pytest.mark.parametrize("name", STORES)
def test_every_real_config_file_is_reproduced_byte_for_byte(name: str) -> None:
    for path in config_files(name):
        content = path.read_bytes()
        assert dumps(loads(content), detect_style(content)) == content, path


def test_unquoted_integer_keys_are_integers_and_quoted_ones_are_not() -> None:
    assert loads(b'{0:250,-1:1,"2":3,word:4}') == {0: 250, -1: 1, "2": 3, "word": 4}


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
    told = refusal(loads, b'{"a":1,' + bytes(500))
    assert (told.reason, told.offset, told.facts["zeros"]) == ("truncated", 7, 500)


def test_zeros_behind_the_value_are_told_apart_from_garbage() -> None:
    parsed = salvage(b'{"a":1}\n' + bytes(9))
    assert (parsed.end, parsed.trailing) == (7, "zeros")
    assert salvage(b'{"a":1} \n').trailing == ""
    assert salvage(b'{"a":1}\n"b"').trailing == "garbage"


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    assert loads(b'{"a":"\xe4\xf6"}') == {"a": "\ufffd\ufffd"}


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


# --- Members that are read in one go: the same as with a comment between any two pieces, which keeps them from it.


NAMES = st.sampled_from([
    b'"a"', b'"0"', b'""', b"0", b"-0", b"01", b"-7", b"9" * 19, b"k", b'"\\u0041"', b'"\xff"', b"'a'",
])
PLAIN = st.sampled_from([
    b'"v"', b"0", b"-0", b"01", b"1.5", b"-0.0", b"1e3", b"1e999", b"9" * 500, b"null", b"true", b"nul", b"NaN",
    b"{}", b"[1]", b"{1:2}", b'"\xc3\xa9"', b'"\xff"', b'"\\n"', b"\f7", b"",
])
MEMBERS = st.lists(st.tuples(NAMES, st.just(b":"), PLAIN, st.sampled_from([b",", b",", b",", b"", b"}"])), max_size=5)


@given(MEMBERS)
def test_plain_members_are_read_as_all_others_are(members: list[tuple[bytes, ...]]) -> None:
    pieces = [b"{", *(piece for member in members for piece in member), b"}"]
    found, right = (salvage(between.join(pieces)) for between in (b" ", b" /**/ "))
    assert (repr(found.value), found.trailing) == (repr(right.value), right.trailing)
    assert (found.error and found.error.reason) == (right.error and right.error.reason)


# --- The tables of the config files, from real brokers and from hands that slipped.


@pytest.mark.parametrize("name", STORES)
def test_every_real_file_is_known_and_has_its_keys(name: str) -> None:
    folder = unpacked(name) / "config"
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name == "timercheck":
            continue
        known = config.BY_NAME[path.name.removesuffix(config.BACKUP_SUFFIX)]
        value = loads(path.read_bytes())
        assert config.missing_keys(known, value) == ()
        assert isinstance(value, dict)
        assert {str(key) for key in value} <= {*known.required, *known.optional}


def test_one_bad_member_does_not_hide_the_others() -> None:
    offsets = config.read_consumer_offsets(loads(
        b'{"offsetTable":{"T@G":{0:1,"1":2,"x":3,2:null},"nogroup":{0:1},"a@b@c":{},"T@H":7},'
        b'"lmqOffsetTable":{"q@g":5,"q":1}}'))
    assert offsets.offsets == {("T", "G"): {0: 1, 1: 2}}
    assert offsets.lmq_offsets == {("q", "g"): 5}
    assert offsets.rejected == ["offsetTable/T@G/x", "offsetTable/T@G/2", "offsetTable/nogroup", "offsetTable/a@b@c",
                                "offsetTable/T@H", "lmqOffsetTable/q"]


@given(VALUES)
def test_no_value_makes_a_reader_raise(value: Json) -> None:
    nested: Json = dict.fromkeys(("offsetTable", "pullOffsetTable", "lmqOffsetTable"), value)
    for each in (value, nested):
        config.read_consumer_offsets(each)
        config.read_delay_offsets(each)


@pytest.mark.parametrize(("text", "place"), [
    (b'{"offsetTable":{}}', None),
    (b'{"offsetTabme":{}}', (11, 0)),
    (b'{ "dataVersion" : {}, "\xefffsetTable":{"a@b":{0:1}}}', (23, 7)),
    (b"{}", None),
    (b'{"offset":{}}', None),
    (b'{"offsetTaboe":{}}', None),  # two bits away
    (b'{"offsetTabme":{},"nffsetTable":{}}', None),  # which of the two
    (b'{"offsetTabme":{},"x":"offsetTabme"}', None),
    (b"[]", None),
])
def test_the_bit_that_gives_a_table_its_name_is_found_if_there_is_just_one(
    text: bytes, place: tuple[int, int] | None
) -> None:
    assert config.flipped_name(config.BY_NAME["delayOffset.json"], text, salvage(text).value) == place


def test_each_bit_of_a_tables_name_is_found() -> None:
    for known in config.CONFIG_FILES:
        for name in known.required if len(known.required) == 1 else ():
            text = f'{{"{name}":{{}}}}'.encode()
            for number in range(8 * len(name)):
                at, bit = 2 + number // 8, number % 8
                flipped = text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :]
                parsed = salvage(flipped)
                if parsed.error is None and not parsed.trailing:
                    assert config.flipped_name(known, flipped, parsed.value) == (at, bit)


@pytest.mark.parametrize(("name", "text", "left"), [
    ("delayOffset.json", '{"offsetTable":{1:2,"3":"4"},"dataVersion":{"x":"y"}}', None),
    ("delayOffset.json", '{"offsetTable":{1:2,q:3,4:"5x"}}', {"offsetTable": {1: 2}}),
    ("consumerOffset.json", '{"offsetTable":{"a":{0:1,1:true},"b@c":{0:-1}}}',
     {"offsetTable": {"a": {0: 1}, "b@c": {0: -1}}}),
    ("consumerOffset.json", '{"offsetTable":{"a":{0:1}},"pullOffsetTable":{"a":{p:1}}}',
     {"offsetTable": {"a": {0: 1}}, "pullOffsetTable": {"a": {}}}),
    ("consumerOffset.json", '{"offsetTable":[1],"groupTopicMap":{"a":["b"]}}',
     {"offsetTable": {}, "groupTopicMap": {"a": ["b"]}}),
    ("consumerOffset.json", '{"offsetTable":null,"groupTopicMap":{"a":["b"]}}', None),
    ("consumerOffset.json", '{"offsetTable":{"a":null,"b":5,"c":{0:1}}}', {"offsetTable": {"c": {0: 1}}}),
    ("consumerOffset.json", '{"offsetTable":{},"dataVersion":{"counter":"x"}}', {"offsetTable": {}, "dataVersion": {}}),
    ("lmqConsumerOffset.json", '{"lmqOffsetTable":{"a@b":1,"c@d":"e"}}', {"lmqOffsetTable": {"a@b": 1}}),
    ("consumerOffset.json", '{"offsetTable":{"a":{0:9223372036854775807,1:9223372036854775808,4294967296:1}}}',
     {"offsetTable": {"a": {0: 2**63 - 1}}}),
    ("delayOffset.json", '{"offsetTable":{1:"99999999999999999999",2:7}}', {"offsetTable": {2: 7}}),
    ("consumerOffset.json", '{"offsetTable":{"a":{0:1.5}}}', None),
    ("topics.json", '{"topicConfigTable":{"a":{"perm":"x"},"b":null,"c":5,"d":{"perm":6}}}',
     {"topicConfigTable": {"d": {"perm": 6}}}),
    ("topics.json", '{"topicConfigTable":{"a":{"order":"x"},"b":{"attributes":"x"},"c":{"perm":4294967296}}}',
     {"topicConfigTable": {}}),
    ("topics.json", '{"topicConfigTable":{"a":{"perm":"6","order":"true","attributes":null,"topicName":5}}}', None),
    ("topics.json", '{"topicConfigTable":null}', {"topicConfigTable": {}}),
    ("topics.json", '{"topicConfigTable":{},"dataVersion":5}', {"topicConfigTable": {}, "dataVersion": {}}),
    ("subscriptionGroup.json", '{"subscriptionGroupTable":{"a":{"brokerId":4294967296},"b":{"retryMaxTimes":"x"}}}',
     {"subscriptionGroupTable": {"a": {"brokerId": 1 << 32}}}),
    ("subscriptionGroup.json", '{"subscriptionGroupTable":{"a":null},"forbiddenTable":{"b":{"c":1},"d":{"e":"x"}}}',
     {"subscriptionGroupTable": {}, "forbiddenTable": {"b": {"c": 1}}}),
    ("consumerFilter.json", '{"filterDataByTopic":[1]}', None),
    ("delayOffset.json", '{"$ref":"$","offsetTable":{1:2}}', None),
    ("delayOffset.json", '{"@type":"a.B","offsetTable":{1:2,"$ref":"$"}}', {"offsetTable": {1: 2}}),
    ("consumerOffset.json", '{"offsetTable":{"a":{"@type":"a.B",0:1}}}', {"offsetTable": {"a": {0: 1}}}),
    ("topics.json", '{"topicConfigTable":{"a":{"@type":"a.B","perm":6}},"dataVersion":{"$ref":"$"}}',
     {"topicConfigTable": {"a": {"perm": 6}}, "dataVersion": {}}),
])
def test_members_that_no_broker_reads_are_left_out(name: str, text: str, left: Json) -> None:
    value = loads(text.encode())
    found = config.readable_members(name, value)
    assert found is value if left is None else found == left


# --- A format that is not in the registry is not in the docs either, so none may be forgotten.


MODULES = sorted(m.name for m in pkgutil.walk_packages(formats.__path__, "formats.")
                 if "kernel" not in m.name and m.name != "formats.basics")


@pytest.mark.parametrize("module", MODULES)
def test_every_layout_of_every_module_is_registered(module: str) -> None:
    registered = {id(entry.layout(name)) for entry in FORMATS for name in entry.layouts}
    members = vars(importlib.import_module(module)).items()
    assert [name for name, value in members if isinstance(value, Layout) and id(value) not in registered] == []


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_every_registered_format_has_a_module_and_notes_on_every_field(entry: Format) -> None:
    assert importlib.import_module(entry.module).__doc__
    for name in entry.layouts:
        layout = entry.layout(name)
        assert layout.record.__doc__
        assert all(field.note for field in layout.fields)
        assert layout.dtype.itemsize == layout.size
        assert [layout.dtype.fields[f.name][1] for f in layout.fields] == [f.offset for f in layout.fields]
        assert layout.arrow_schema.names == [f.name for f in layout.fields]
