"""A small store to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plans import small_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return small_store(tmp_path / "s")
