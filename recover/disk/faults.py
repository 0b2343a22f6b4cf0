"""The fault point that every operation on a disk passes before it happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct


class Operation(Struct, frozen=True):
    """One operation on a disk: what, on which path; `offset`, `length` and `data` in bytes where they apply."""

    name: str
    path: str
    target: str = ""
    offset: int = 0
    length: int = 0
    data: bytes | memoryview = b""


def _nothing(operation: Operation) -> None:
    """The fault point outside of tests."""


_hook: Callable[[Operation], None] = _nothing


def set_hook(hook: Callable[[Operation], None] | None) -> None:
    """Have each operation announced to `hook` (None: to nobody). For tests: it may kill, fail or record."""
    global _hook
    _hook = hook or _nothing


def fault(
    name: str, path: Path, target: str = "", *, offset: int = 0, length: int = 0, data: bytes | memoryview = b""
) -> None:
    """Announce an operation that comes next; the hook may raise or never return."""
    _hook(Operation(name, str(path), target, offset, length, data))
