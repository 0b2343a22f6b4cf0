"""CRC-32C from the module that computes it: that of its package, however it is found."""

from __future__ import annotations

from importlib.machinery import PathFinder

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover import crc


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_sums_are_those_of_the_package(one: bytes, other: bytes) -> None:
    assert crc.crc32c(memoryview(other), crc.crc32c(one)) == package.crc32c(one + other)


def test_a_package_that_is_laid_out_otherwise_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    monkeypatch.setattr(crc, "find_spec", lambda _: None)
    assert crc._run.__wrapped__() is package.crc32c
    assert crc._run.__wrapped__()(b"123456789") == 0xE3069283
