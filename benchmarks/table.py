"""What was measured, as tables that a page of documentation can quote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.contest import Times


@dataclass(frozen=True, slots=True)
class Goal:
    """One promise, what came out, and whether it holds."""

    what: str
    goal: str
    measured: str
    met: bool

    def row(self) -> tuple[str, ...]:
        """As a line of the table of goals."""
        return self.what, self.goal, self.measured, "yes" if self.met else "no"


def at_least(what: str, goal: float, ratio: float) -> Goal:
    """A ratio that has to reach `goal`: so many times faster."""
    return Goal(what, f">= {goal:g} x", f"{ratio:.2f} x", ratio >= goal)


def at_most(what: str, goal: float, value: float, unit: str) -> Goal:
    """A figure that must not be above `goal`."""
    return Goal(what, f"<= {goal:.3g} {unit}", f"{value:.3g} {unit}", value <= goal)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown whose columns also line up as text; all columns but the first are set to the right."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(cells, widths, strict=True)))
        return "| " + " | ".join([first, *rest]) + " |"

    dashes = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    rule = "| " + " | ".join(dashes) + " |"
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])])


def times_table(times: dict[str, Times], ours: str) -> str:
    """Least and median of each party, and how many times longer than ours it took (least by least)."""
    own = times[ours].least
    return markdown(
        ("", "min s", "median s", "ratio"),
        [(t.name, f"{t.least:.2f}", f"{t.median:.2f}", f"{t.least / own:.2f}") for t in times.values()],
    )
