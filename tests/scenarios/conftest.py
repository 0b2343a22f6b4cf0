"""Private copies of stores to break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.drill import Drill

Start = Callable[[str], Drill]


@pytest.fixture
def drill(folder: Path) -> Start:
    """`drill("clean-plain-4.9.7")`: a copy of that store to break and to recover."""
    copies = 0

    def start(name: str) -> Drill:
        nonlocal copies
        copies += 1
        return Drill.start(name, folder / f"copy-{copies}")

    return start


@pytest.fixture
def broken(drill: Start) -> Drill:
    """A store with something to recover in every part."""
    store = drill("clean-plain-4.9.7")
    for recipe in ("index-unit-hash", "queue-behind", "checkpoint-zero", "abort-added", "bit-in-body"):
        store.strike(recipe)
    return store
