"""Private copies of stores, in memory where that is possible: changing commands sync a lot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.plans import quick_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, gone after the test."""
    with quick_folder() as path:
        yield path
