"""An empty cache of kernels for who asks for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.compiled import cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for this test alone."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "mqtool"
