from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import names
from formats.errors import FormatError
from tests.support.stores import STORES, unpacked

BERLIN = ZoneInfo("Europe/Berlin")


@given(st.integers(0, names.MAX_OFFSET))
def test_offsets_round_trip_in_twenty_digits(offset: int) -> None:
    name = names.offset_to_name(offset)
    assert len(name) == 20
    assert names.offset_in_name(name) == offset


@pytest.mark.parametrize("name", STORES)
def test_every_real_file_name_parses(name: str) -> None:
    for path in (unpacked(name) / "commitlog").iterdir():
        offset = names.offset_in_name(path.name)
        assert offset is not None and names.offset_to_name(offset) == path.name
    for path in (unpacked(name) / "index").iterdir():
        assert names.index_name(names.parse_index_name(path.name, BERLIN), BERLIN) == path.name


@pytest.mark.parametrize("name", [
    "", "0", "00000000000000000000.bak", "-0000000000000000001", "+0000000000000000001", "0000000000000000000_",
    "000000000000000000 0", "99999999999999999999", "0000000000000000000a", "000000000000000000000",
])
def test_no_other_name_is_a_mapped_file(name: str) -> None:
    assert names.offset_in_name(name) is None


def test_digits_of_another_script_are_digits() -> None:
    assert names.offset_in_name("\N{ARABIC-INDIC DIGIT ZERO}" * 19 + "\N{ARABIC-INDIC DIGIT FOUR}") == 4


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_offsets_beyond_an_i64_have_no_name(offset: int) -> None:
    with pytest.raises(FormatError):
        names.offset_to_name(offset)


def test_index_names_are_local_time_with_milliseconds() -> None:
    moment = datetime.datetime(2025, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    timestamp = int(moment.timestamp()) * 1000 + 678
    assert names.index_name(timestamp, datetime.UTC) == "20250102030405678"
    assert names.index_name(timestamp, BERLIN) == "20250102040405678"
    assert names.parse_index_name("20250102040405678", BERLIN) == timestamp


def test_the_hour_that_comes_twice_needs_the_fold() -> None:
    first = names.parse_index_name("20251026023000000", BERLIN)
    second = names.parse_index_name("20251026023000000", BERLIN, fold=1)
    assert second - first == 3600 * 1000
    assert names.index_name(first, BERLIN) == names.index_name(second, BERLIN)


@given(st.integers(0, 253402300799999))
def test_times_round_trip_in_a_zone_without_folds(timestamp: int) -> None:
    assert names.parse_index_name(names.index_name(timestamp, datetime.UTC), datetime.UTC) == timestamp


@given(st.from_regex(r"(\d{4}|20\d\d)([01]\d|\d\d)([0-3]\d|\d\d)([012]\d|\d\d)([0-6]\d)([0-6]\d)\d{3}", fullmatch=True))
def test_digits_are_an_index_name_where_they_are_a_date(name: str) -> None:
    if not name.isascii():
        assert not names.is_index_name(name)
        return
    try:
        expected = datetime.datetime.strptime(name[:14], "%Y%m%d%H%M%S").replace(tzinfo=datetime.UTC).timestamp()
    except ValueError:
        assert not names.is_index_name(name)
    else:
        assert names.parse_index_name(name, datetime.UTC) == round(expected) * 1000 + int(name[14:])


@pytest.mark.parametrize("name", ["", "20251301000000000", "2025010203040567", "20250102030405678.bak",
                                  "2025 102030405678", "0" * 17, "20250102 30405678"])
def test_what_is_no_date_is_no_index_name(name: str) -> None:
    assert not names.is_index_name(name)


@given(st.text(max_size=20))
def test_any_text_is_an_index_name_or_a_format_error(name: str) -> None:
    names.is_index_name(name)


def test_a_time_that_no_calendar_has_is_refused() -> None:
    with pytest.raises(FormatError):
        names.index_name(2**62, datetime.UTC)


@pytest.mark.parametrize("topic", ["TopicA", "%RETRY%CG_retry", "a-b_c|d", "x" * 300])
def test_legal_topics(topic: str) -> None:
    assert names.is_legal_topic(topic)


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "a.b", "\N{GREEK SMALL LETTER ALPHA}", "a\0"])
def test_topics_that_a_broker_refuses(topic: str) -> None:
    assert not names.is_legal_topic(topic)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b", "a\nb", "a\\b", "x" * 256, "\u00e4" * 128])
def test_names_that_would_lead_elsewhere_are_unsafe(name: str) -> None:
    assert not names.is_safe_directory_name(name)


@pytest.mark.parametrize("name", ["%LMQ%one", "a.b", "...", "x" * 255])
def test_names_that_stay_where_they_are_put_are_safe(name: str) -> None:
    assert names.is_safe_directory_name(name)
