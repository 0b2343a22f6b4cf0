"""abort, lock, epochFileCheckpoint, Java properties, the 3.x transaction table."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import abort, epoch, legacy_transaction, lock
from formats.config import properties_text as javaproperties
from formats.errors import FormatError
from tests.support.stores import STORES, unpacked


@pytest.mark.parametrize(("store", "name", "pid"), [
    ("killed-5.5.0", "abort", 9300), ("killed-v2-ipv6-5.3.3", "abort", 26101), ("clean-5.3.3", "abort.bak", None),
])
def test_real_abort_files_are_reproduced(store: str, name: str, pid: int | None) -> None:
    content = (unpacked(store) / name).read_bytes()
    assert abort.decode(content) == pid
    assert abort.encode(pid) == content


@pytest.mark.parametrize("content", [b"x", b"-1", b"1 2", b"1" * 11, bytes(4096), "\u0661".encode()])
def test_an_abort_file_with_something_else_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        abort.decode(content)
    assert caught.value.reason == "bad-abort"


@pytest.mark.parametrize("name", STORES)
def test_every_real_lock_file_holds_the_word(name: str) -> None:
    assert (unpacked(name) / lock.FILE_NAME).read_bytes() == lock.CONTENT


ENTRIES = [epoch.EpochEntry(7, 7000), epoch.EpochEntry(8, 8000)]


def test_the_checksum_of_an_epoch_file_is_the_brokers() -> None:
    text = b"2\n773307083\n7-7000\n8-8000\n"
    assert epoch.encode(ENTRIES) == text
    assert epoch.decode(text) == ENTRIES


def test_a_checksum_of_zero_is_not_checked_and_any_other_is() -> None:
    assert epoch.decode(b"2\n0\n7-7000\n8-8000\n") == ENTRIES
    with pytest.raises(FormatError) as caught:
        epoch.decode(b"2\n773307084\n7-7000\n8-8000\n")
    assert (caught.value.reason, caught.value.offset) == ("bad-crc", 2)


@pytest.mark.parametrize(("text", "reason"), [
    (b"", "short"), (b"1\n", "short"), (b"3\n0\n7-7000\n", "bad-count"), (b"x\n0\n", "bad-count"),
    (b"1\n0\nseven\n", "bad-epoch"), (b"1\n0\n" + b"9" * 5000 + b"-1\n", "bad-epoch"),
])
def test_each_kind_of_bad_epoch_file_has_its_reason(text: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        epoch.decode(text)
    assert caught.value.reason == reason


@given(st.lists(st.builds(epoch.EpochEntry, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=5))
def test_epochs_round_trip(entries: list[epoch.EpochEntry]) -> None:
    assert epoch.decode(epoch.encode(entries)) == entries


@given(st.binary(max_size=60))
def test_any_bytes_are_epochs_or_a_format_error(text: bytes) -> None:
    with contextlib.suppress(FormatError):
        epoch.decode(text)


@pytest.mark.parametrize(("text", "pairs"), [
    (b"", {}), (b"# c\n! d\n\n \t\n", {}), (b"a=b", {"a": "b"}), (b"a=1\na=2", {"a": "2"}), (b"h", {"h": ""}),
    (b"a = b \r\nc:d\re f", {"a": "b ", "c": "d", "e": "f"}), (b"a\\=b=c", {"a=b": "c"}),
    (b"a=b\\\n   c", {"a": "bc"}), (b"a=\\u0041\\t", {"a": "A\t"}), (b"a=b\\", {"a": "b"}),
    (b"path=/a\\\\b", {"path": "/a\\b"}), (b"\xe4=\xf6", {"\u00e4": "\u00f6"}),
])
def test_java_properties_are_read_as_java_reads_them(text: bytes, pairs: dict[str, str]) -> None:
    assert javaproperties.loads(text) == pairs


def test_a_broken_escape_in_java_properties_is_refused() -> None:
    with pytest.raises(FormatError):
        javaproperties.loads(b"a=\\u00g0")


@given(st.binary(max_size=80))
def test_any_bytes_are_java_properties_or_a_format_error(text: bytes) -> None:
    try:
        javaproperties.loads(text)
    except FormatError as error:
        assert error.reason == "bad-escape"


def test_a_state_of_the_3x_table_has_24_bytes() -> None:
    unit = legacy_transaction.StateUnit(100, 200, 1_700_000_000, 2598919, legacy_transaction.STATE_COMMIT)
    encoded = legacy_transaction.STATE_UNIT.encode(unit)
    assert encoded.hex() == "0000000000000064" "000000c8" "6553f100" "0027a807" "00000008"
    assert legacy_transaction.STATE_UNIT.decode(encoded) == unit
    assert legacy_transaction.is_valid(unit)
    assert not legacy_transaction.is_valid(unit._replace(state=0))
    assert not legacy_transaction.is_valid(unit._replace(size=0))
