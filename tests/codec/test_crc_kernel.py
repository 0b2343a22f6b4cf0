"""The compiled CRC: hardware and tables agree with zlib, and neither reads outside of its array."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.synth import synth_store
from formats.kernels import crc as crc_kernel
from formats.kernels.crc import crc32_kernel, crc_address, crc_name, crc_tables
from recover.scan import file_scan as scan_module
from recover.scan.log_scan import scan_log
from tests.support.looks import opened


@given(data=st.binary(max_size=600), start=st.integers(0, 600), length=st.integers(0, 600))
def test_both_ways_agree_with_zlib(data: bytes, start: int, length: int) -> None:
    array = np.frombuffer(data, dtype=np.uint8)
    inside = start + length <= len(data)
    expected = zlib.crc32(data[start : start + length]) if inside else 0
    for address in {0, crc_address()}:
        assert int(crc32_kernel(address, crc_tables(), array, start, length)) == expected


@pytest.mark.parametrize(("start", "length"), [(-1, 4), (0, -1), (0, 65), (64, 1), (2**62, 2**62)])
def test_a_range_outside_of_the_array_is_not_read(start: int, length: int) -> None:
    array = np.full(64, 7, dtype=np.uint8)
    for address in {0, crc_address()}:
        assert int(crc32_kernel(address, crc_tables(), array, start, length)) == 0


def test_the_report_says_which_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crc_name() == ("isal" if crc_address() else "portable")
    monkeypatch.setattr(crc_kernel, "crc_address", lambda: 0)
    assert crc_name() == "portable"


def test_a_scan_without_the_hardware_crc_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = synth_store(tmp_path / "s", messages=300)
    queue = opened(tmp_path / "s").commitlog
    fast = scan_log(queue)
    monkeypatch.setattr(scan_module, "crc_address", lambda: 0)
    slow = scan_log(queue)
    assert slow.messages == fast.messages == written.records
    for one, other in zip(fast.splits(), slow.splits(), strict=True):
        assert one.records.tolist() == other.records.tolist()
