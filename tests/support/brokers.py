"""Real brokers for tests: skipped with the reason where they cannot run, failed instead where that was asked for."""

from __future__ import annotations

import functools
import os
from typing import NoReturn

import pytest

from fixtures.lab.lab import Oracle
from fixtures.lab.toolchain import VERSIONS, LabUnavailable, available

__all__ = ["VERSIONS", "oracle", "require_lab"]


def require_lab() -> None:
    """Skip the calling test, saying why, unless JDK and Maven are here; with MQTOOL_DEEP=1 fail it."""
    reason = available()
    if reason is not None:
        give_up(reason)


def oracle(version: str) -> Oracle:
    """The oracle of that version, or a skip (a failure with MQTOOL_DEEP=1) that says what is missing."""
    require_lab()
    try:
        return _oracle(version)
    except LabUnavailable as error:
        give_up(str(error))


@functools.cache
def _oracle(version: str) -> Oracle:
    return Oracle(version)


def give_up(reason: str) -> NoReturn:
    if os.environ.get("MQTOOL_DEEP") == "1":
        pytest.fail(f"NOT RUN: {reason}")
    pytest.skip(f"NOT RUN: {reason}")
