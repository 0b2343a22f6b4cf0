"""What the tests of one run share, and what they leave for its summary."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.lab import STARTED
from tests.broker.observations import Observations
from tests.support.brokers import require_lab

_BEFORE = pytest.StashKey[Counter[str]]()


@pytest.fixture(scope="session")
def observations(tmp_path_factory: pytest.TempPathFactory) -> Observations:
    """The starts of this run, seen by all of its workers."""
    base = tmp_path_factory.getbasetemp()
    shared: Path = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Observations(shared / "observations")


@pytest.fixture(autouse=True)
def lab() -> None:
    """Skip, or fail, where no broker can be run."""
    require_lab()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Name the case in the report: the summary counts by it."""
    asked: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    case = {name: value for name, value in asked.items() if isinstance(value, str)}
    item.user_properties.append(("broker_case", {"kind": item.name.partition("[")[0], **case}))
    item.stash[_BEFORE] = STARTED.copy()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """And how often brokers were started for it."""
    if call.when == "call":
        item.user_properties.append(("starts", dict(STARTED - item.stash[_BEFORE])))
