"""Memory for what is touched at random: zeros like any other, from the beginning of a huge page on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ours import anonymous_bytes
from recover.memory.fresh_memory import HUGE_PAGE
from recover.memory.huge_pages import scattered

STATUS = Path("/proc/self/status")


@pytest.mark.parametrize("count", [0, 1, 524_287, 524_288, 5_000_000])
def test_it_is_zero_and_nobody_elses(count: int) -> None:
    one, other = scattered(count, np.int32), scattered(count, np.int32)
    one[:] = 7
    assert (one.size, one.dtype, one.flags.carray) == (count, np.dtype(np.int32), True)
    assert not other.any()


def test_it_begins_with_a_huge_page_and_is_given_back() -> None:
    before = anonymous_bytes(STATUS)
    heads = scattered(5_000_000, np.int32)
    assert heads.ctypes.data % HUGE_PAGE == 0
    heads[::1024] = 1
    assert anonymous_bytes(STATUS) - before >= heads.nbytes
    del heads
    assert anonymous_bytes(STATUS) - before < 5 << 20
