"""The tables of the config files, from real brokers and from hands that slipped."""

from __future__ import annotations

import pytest
from hypothesis import given

from formats.config import tables as config
from formats.config.json import Json, loads, salvage
from tests.formats.test_fastjson import VALUES
from tests.support.stores import STORES, unpacked


def value_of(store: str, name: str) -> Json:
    return loads((unpacked(store) / "config" / name).read_bytes())


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


def test_consumer_offsets_of_a_4x_store() -> None:
    offsets = config.read_consumer_offsets(value_of("clean-4.5.1", "consumerOffset.json"))
    assert offsets.offsets["TopicA", "CG_retry"] == {0: 131, 1: 137, 2: 131, 3: 124}
    assert offsets.rejected == []


@pytest.mark.parametrize("name", ["clean-5.3.3", "killed-5.5.0"])
def test_with_light_queues_all_offsets_are_in_the_other_file(name: str) -> None:
    assert not (unpacked(name) / "config" / "consumerOffset.json").exists()
    offsets = config.read_consumer_offsets(value_of(name, "lmqConsumerOffset.json"))
    assert ("TopicA", "CG_retry") in offsets.offsets
    assert offsets.lmq_offsets == {}
    assert offsets.rejected == []


def test_a_5_5_0_broker_keeps_what_was_pulled_too() -> None:
    offsets = config.read_consumer_offsets(value_of("killed-5.5.0", "lmqConsumerOffset.json"))
    consumed, pulled = offsets.offsets["TopicA", "CG_retry"], offsets.pull_offsets["TopicA", "CG_retry"]
    assert consumed.keys() == pulled.keys()
    assert all(pulled[queue] >= consumed[queue] for queue in consumed)


def test_delay_levels_of_both_layouts() -> None:
    assert config.read_delay_offsets(value_of("clean-4.5.1", "delayOffset.json")).levels == {1: 40, 3: 57, 4: 20, 5: 6}
    assert config.read_delay_offsets(value_of("killed-5.5.0", "delayOffset.json")).levels == {1: 40, 3: 95}


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


def test_a_value_without_its_table_says_so() -> None:
    assert config.missing_keys(config.BY_NAME["topics.json"], {}) == ("topicConfigTable",)
    assert config.missing_keys(config.BY_NAME["topics.json"], None) == ("topicConfigTable",)
    assert config.read_delay_offsets({"offsetTable": [1]}).rejected == ["offsetTable"]


def test_every_known_file_says_what_its_loss_means() -> None:
    assert all(file.lost and file.keeper for file in config.CONFIG_FILES)
    assert len(config.BY_NAME) == len(config.CONFIG_FILES)


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
    ("consumerOffset.json", '{"offsetTable":[1],"groupTopicMap":{"a":["b"]}}', None),
    ("lmqConsumerOffset.json", '{"lmqOffsetTable":{"a@b":1,"c@d":"e"}}', {"lmqOffsetTable": {"a@b": 1}}),
    ("topics.json", '{"topicConfigTable":{"a":{"perm":"x"}}}', None),
])
def test_offsets_that_are_no_numbers_are_left_out(name: str, text: str, left: Json) -> None:
    value = loads(text.encode())
    found = config.readable_offsets(name, value)
    assert found is value if left is None else found == left
