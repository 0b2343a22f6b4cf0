"""Freed memory is kept where the C library can be told so, and nothing fails where it cannot."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from mqtool import freed_memory

_FAULTS = """
import resource, sys
import numpy as np
from mqtool import freed_memory
if sys.argv[1] == "keep":
    freed_memory.keep()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    np.ones(1 << 20, dtype=np.uint8)[:] = 2
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_pages_are_used_again() -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("NOT RUN: no glibc")
    done = subprocess.run([sys.executable, "-c", _FAULTS, "keep"], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * (1 << 20) // 4096


def test_another_c_library_goes_on_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    freed_memory.keep()
