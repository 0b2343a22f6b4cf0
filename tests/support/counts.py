"""Counts that long suites print when all is done, however many processes worked on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

PREFIX = "counted: "
Count = Callable[[str, int], None]
"""Called with what was counted and how many."""


def counted(reports: Iterable[Any]) -> Counter[str]:
    """The sums of what the tests of these reports have counted."""
    sums: Counter[str] = Counter()
    for report in reports:
        for name, number in getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ():
            if name.startswith(PREFIX):
                sums[name.removeprefix(PREFIX)] += int(number)
    return sums
