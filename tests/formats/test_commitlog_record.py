"""What follows from the fields of a record: keys, tags, delay levels."""

from __future__ import annotations

from typing import Any

import pytest

from formats.properties import PARSER_NEW, PARSER_OLD
from formats.record import Record, delay_level, iter_index_keys, make_record, tags_code
from formats.record.message import host_text, inner_batch, java_number


def _record(topic: str = "T", sys_flag: int = 0, **properties: str) -> Record:
    return make_record(topic, b"", properties, sys_flag=sys_flag, store_timestamp=1)


def test_index_keys_are_the_unique_key_then_the_words_then_the_tags() -> None:
    record = _record(KEYS="a b", TAGS="x||y", UNIQ_KEY="U")
    assert list(iter_index_keys(record, tags=True)) == ["T#U", "T#a", "T#b", "T#T#x||y"]


def test_tags_are_no_index_key_before_5_4_0() -> None:
    assert list(iter_index_keys(_record(TAGS="x", UNIQ_KEY="U"), tags=False)) == ["T#U"]


def test_words_are_split_at_single_spaces_with_duplicates_kept_and_empty_ones_skipped() -> None:
    record = _record(KEYS=" b  a\tc b ")
    assert list(iter_index_keys(record, tags=False)) == ["T#b", "T#a\tc", "T#b"]


def test_a_record_without_properties_has_no_index_keys() -> None:
    assert list(iter_index_keys(_record(), tags=True)) == []


@pytest.mark.parametrize(("kind", "count"), [(0x0, 1), (0x4, 1), (0x8, 1), (0xC, 0)])
def test_only_rolled_back_transactions_are_not_indexed(kind: int, count: int) -> None:
    record = _record(UNIQ_KEY="U", sys_flag=kind)
    assert record.transaction_type == kind
    assert len(list(iter_index_keys(record, tags=True))) == count


def test_generations_of_brokers_see_different_keys_in_the_same_bytes() -> None:
    record = _record(KEYS="a\x01b", TAGS="x\x01y")
    assert list(iter_index_keys(record, True, PARSER_OLD)) == []
    assert list(iter_index_keys(record, True, PARSER_NEW)) == ["T#a\x01b", "T#T#x\x01y"]
    assert tags_code(record, PARSER_OLD) == 0 != tags_code(record, PARSER_NEW)


def test_tags_code_is_the_hash_of_the_whole_text() -> None:
    assert tags_code(_record(TAGS="TagA||TagB")) == 1789476431
    assert tags_code(_record()) == 0


def test_a_name_inside_another_property_is_not_that_property() -> None:
    record = _record(x="TAGS", KEYSET="k")
    assert (record.tags, record.keys, record.uniq_key) == (None, None, None)


@pytest.mark.parametrize(("topic", "properties", "level"), [
    ("SCHEDULE_TOPIC_XXXX", {"DELAY": "3"}, 3),
    ("SCHEDULE_TOPIC_XXXX", {"DELAY": "-1"}, -1),
    ("SCHEDULE_TOPIC_XXXX", {}, None),
    ("T", {"DELAY": "3"}, None),
])
def test_delay_level_needs_the_topic_and_the_property(topic: str, properties: dict[str, Any], level: int) -> None:
    assert delay_level(_record(topic, **properties)) == level


@pytest.mark.parametrize("text", ["x", " 1", "1 ", "1_0", "2147483648", "-", "0x1", "1.0"])
def test_a_delay_that_java_cannot_parse_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="Java number"):
        delay_level(_record("SCHEDULE_TOPIC_XXXX", DELAY=text))


@pytest.mark.parametrize(("base", "count", "found"), [
    ("0", "1", (0, 1)), (str(2**63 - 1), "-1", (2**63 - 1, -1)), (None, "x", None), ("x", None, None),
    ("x", "1", "Java number"), (str(2**63), "1", "64 bits"), ("0", "32768", "16 bits"), ("0", "", "Java number"),
])
def test_an_inner_batch_needs_two_numbers(base: str | None, count: str | None, found: Any) -> None:
    values = {name: text for name, text in (("INNER_BASE", base), ("INNER_NUM", count)) if text is not None}
    if not isinstance(found, str):
        assert inner_batch(values) == found
        return
    with pytest.raises(ValueError, match=found):
        inner_batch(values)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("+7", 7), ("-2147483648", -(2**31)), ("007", 7)])
def test_java_ints(text: str, value: int) -> None:
    assert java_number(text) == value


def test_hosts_are_shown_with_their_ports() -> None:
    assert host_text((b"\x7f\x00\x00\x01", 10911)) == "127.0.0.1:10911"
    assert host_text((bytes(15) + b"\x01", 10911)) == "[::1]:10911"
