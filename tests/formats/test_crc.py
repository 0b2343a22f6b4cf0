"""The 31-bit checksum and the digits of the property CRC."""

from __future__ import annotations

import pytest

from formats.crc import crc31
from formats.record.message import property_crc_digits


@pytest.mark.parametrize(("content", "value"), [
    (b"", 0),
    (b"hello", 907060870),
    (b"123456789", 1274296614),
])
def test_known_values(content: bytes, value: int) -> None:
    assert crc31(content) == value


def test_digits_come_lowest_first() -> None:
    assert property_crc_digits(b"123456789") == b"4166924721"
