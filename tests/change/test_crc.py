"""CRC-32C from the module that computes it: that of its package, however it is found."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ExtensionFileLoader, PathFinder
from pathlib import Path
from types import SimpleNamespace

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.store import reading as crc

ROOT = Path(__file__).parents[2]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_sums_are_those_of_the_package(one: bytes, other: bytes) -> None:
    assert crc.crc32c(memoryview(other), crc.crc32c(one)) == package.crc32c(one + other)


def test_what_computes_is_loaded_without_its_package() -> None:
    script = ("import sys\nfrom recover.store.reading import crc32c\nassert crc32c(b'123456789') == 0xE3069283\n"
              "print(sorted({'crc32c', 'importlib.metadata'} & sys.modules.keys()))")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("lacking", ["package", "module", "function"])
def test_a_package_that_is_laid_out_otherwise_is_imported(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "package":
        monkeypatch.setattr(crc, "find_spec", lambda _: None)
    elif lacking == "module":
        monkeypatch.setattr(PathFinder, "find_spec", lambda *_: None)
    else:
        monkeypatch.setattr(crc, "module_from_spec", lambda _: SimpleNamespace())
        monkeypatch.setattr(ExtensionFileLoader, "exec_module", lambda *_: None)
    assert crc._run.__wrapped__() is package.crc32c
