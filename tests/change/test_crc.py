"""The checksum of what we write."""

from __future__ import annotations

import crc32c as package
from hypothesis import given
from hypothesis import strategies as st

from recover.store import reading as crc


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_sums_are_those_of_the_package(one: bytes, other: bytes) -> None:
    assert crc.crc32c(memoryview(other), crc.crc32c(one)) == package.crc32c(one + other)
