"""Stopping a recover half way: where, and how."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cli.runner import mqtool
from tests.scenarios.drill import Drill
from tests.support.plans import count_operations


def recovering(root: Path) -> Callable[[], object]:
    """What is killed or fails: a whole recover, in this process."""
    return lambda: mqtool("recover", root, "--yes")


def points(store: Drill, count: int) -> list[int]:
    """Numbers of operations, spread over a whole run, at which to stop one."""
    copy = store.root.with_name("to-count")
    shutil.copytree(store.root, copy, symlinks=True)
    total = len(count_operations(recovering(copy)))
    assert total > 4 * count
    return [total * (2 * n + 1) // (2 * count) for n in range(count)]
