"""What every test may use: private copies of real stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from fixtures.lab.toolchain import available
from tests.support.stores import real_store

# Machines are noisy, and the first example of a kernel's test compiles it: no example is timed.
settings.register_profile("mqtool", deadline=None)
settings.load_profile("mqtool")


@pytest.fixture
def store(tmp_path: Path) -> Callable[[str], Path]:
    """`store("clean-5.3.3")` gives the root of a private copy; a second call of one name gives a second copy."""
    copies = 0

    def copy(name: str) -> Path:
        nonlocal copies
        copies += 1
        return real_store(name, tmp_path / f"copy-{copies}")

    return copy


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what this machine cannot run, so that a green line is not mistaken for more than it is."""
    if reason := available():
        terminalreporter.write_line(f"NOT RUN: make test-deep, make test-brokers ({reason})")
