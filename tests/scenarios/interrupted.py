"""Stopping a recover half way: where, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from tests.cli.runner import mqtool
from tests.scenarios.drill import Drill
from tests.support.plans import count_operations
from tests.support.stores import copy_store


def recovering(root: Path) -> Callable[[], object]:
    """What is killed or fails: a whole recover, in this process."""
    return lambda: mqtool("recover", root, "--yes")


def points(store: Drill, count: int, names: Collection[str] = ()) -> list[int]:
    """Numbers of operations (of those names, where some are given), spread over a whole run, at which to stop one."""
    copy = store.root.with_name("to-count")
    copy_store(store.root, copy)
    numbers = [number for number, operation in enumerate(count_operations(recovering(copy)))
               if not names or operation.name in names]
    assert len(numbers) > 4 * count
    return [numbers[len(numbers) * (2 * n + 1) // (2 * count)] for n in range(count)]
