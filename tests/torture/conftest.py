"""What the torture tests share: a folder that costs no syncs, and counts that are printed when all is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.counts import PREFIX, Count, counted
from tests.support.plans import quick_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder in memory, where there is one."""
    with quick_folder() as path:
        yield path


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Count:
    """`count("inputs fuzzed", 500)`: a number for the summary behind the whole run."""
    return lambda name, number: record_property(PREFIX + name, number)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The sums of what the tests counted."""
    for name, number in sorted(counted(terminalreporter.stats.get("passed", [])).items()):
        terminalreporter.write_line(f"{number:9,} {name}")
