"""The 31-bit checksum and the digits of the property CRC."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.crc import crc31
from formats.record.codec import property_crc_digits


@pytest.mark.parametrize(("content", "value"), [
    (b"", 0),
    (b"hello", 907060870),
    (b"123456789", 1274296614),
])
def test_known_values(content: bytes, value: int) -> None:
    assert crc31(content) == value


def test_the_top_bit_is_cleared_where_zlib_sets_it() -> None:
    content = b"123456789"
    assert zlib.crc32(content) >> 31 == 1
    assert crc31(content) == zlib.crc32(content) - (1 << 31)


@given(st.binary())
def test_any_buffer_type_gives_the_same_value(content: bytes) -> None:
    assert crc31(content) == crc31(bytearray(content)) == crc31(memoryview(content)) == zlib.crc32(content) & 0x7FFFFFFF


def test_digits_come_lowest_first() -> None:
    assert property_crc_digits(b"123456789") == b"4166924721"


def test_digits_of_a_small_value_are_padded_at_the_end() -> None:
    assert property_crc_digits(b"hello") == b"0780607090"
    assert property_crc_digits(b"") == b"0000000000"
