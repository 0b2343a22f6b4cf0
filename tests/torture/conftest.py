"""What the torture tests share: a folder that costs no syncs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.plans import quick_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder in memory, where there is one."""
    with quick_folder() as path:
        yield path
