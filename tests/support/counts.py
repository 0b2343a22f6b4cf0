"""Counts that long suites print when all is done, however many processes worked on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

PREFIX = "counted: "
NOTE = "noted: "
Count = Callable[[str, int], None]
"""Called with what was counted and how many."""
Note = Callable[[str], None]
"""Called with a line that the summary repeats, such as a damage that was missed."""

_OUTCOMES = ("passed", "failed", "skipped")


def counted(reports: Iterable[Any]) -> Counter[str]:
    """The sums of what the tests of these reports have counted."""
    sums: Counter[str] = Counter()
    for name, number in _properties(reports):
        if name.startswith(PREFIX):
            sums[name.removeprefix(PREFIX)] += int(number)
    return sums


def lines(stats: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    """The sums over all tests, one a line, and then what was noted; nothing if nothing was counted."""
    reports = [report for outcome in _OUTCOMES for report in stats.get(outcome, ())]
    for name, number in sorted(counted(reports).items()):
        yield f"{number:9,} {name}"
    yield from sorted({name.removeprefix(NOTE) for name, _ in _properties(reports) if name.startswith(NOTE)})


def _properties(reports: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for report in reports:
        if getattr(report, "when", "") == "call":
            yield from getattr(report, "user_properties", ())
