"""Several parties at the same job, in turn, so that what slows the machine slows all; times and goals as tables."""

from __future__ import annotations

import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUNS = 5
_MEMORY = 1 << 30
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14
_SAMPLE_SECONDS = 0.005


@dataclass(slots=True)
class Times:
    """Seconds of each run of one party, in order."""

    name: str
    seconds: list[float] = field(default_factory=list)

    @property
    def least(self) -> float:
        """The quickest run: what the work takes where nothing disturbs it."""
        return min(self.seconds)


def in_turn(
    parties: Mapping[str, Callable[[], float]], runs: int = RUNS, *, cached: Sequence[Path] = ()
) -> dict[str, Times]:
    """Run every party once, then all again, `runs` times; one turn before that is not counted.

    A party is a function that does the job and returns the seconds that count. Every other turn goes backwards, so that
    nobody always comes after the same one. Before each, the `cached` files are read: some systems drop from the page
    cache what nobody read for some seconds, and the party after a slow one would pay for that.
    """
    times = {name: Times(name) for name in parties}
    for turn in range(runs + 1):
        for name, run in list(parties.items())[:: -1 if turn % 2 else 1]:
            note(f"{'warm-up' if turn == 0 else f'run {turn} of {runs}'}: {name}")
            _read_all(cached)
            _warm_memory()
            seconds = run()
            if turn:
                times[name].seconds.append(seconds)
    return times


def _read_all(paths: Iterable[Path]) -> None:
    """Bring files into the page cache."""
    buffer = bytearray(1 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _warm_memory() -> None:
    """Make the host of a virtual machine give back as much memory as any party asks for.

    It takes back what nobody uses for some seconds, and 0.6 ms for each MB to give it again. A party after one that
    held much memory, or ran for long, would wait 0.3 s for that, and another would not.
    """
    with mmap.mmap(-1, _MEMORY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory, suppress(OSError):
        memory.madvise(_POPULATE_WRITE)


def note(text: str) -> None:
    """A line that the next one replaces, at a terminal."""
    if sys.stderr.isatty():
        print(f"\r  {text:<75}\r", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: wall seconds of the process, the highest RssAnon seen (bytes, 0 if not watched), exit code, output."""

    seconds: float
    anonymous: int
    code: int
    output: str

    def json(self) -> dict[str, Any]:
        """The document of a run with --json."""
        document: dict[str, Any] = json.loads(self.output)
        return document


def mqtool(*arguments: object, expect: int | None = 0, module: str = "mqtool", watched: bool = False) -> Ran:
    """Run a command line in a process of its own. RuntimeError if it ends with another code than `expect` (None: any).

    Only if `watched` is its memory sampled all the while: that takes from the cores that it runs on.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    # an installation has its bytecode; without it a start compiles 150 modules
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        peak = 0
        status = Path(f"/proc/{process.pid}/status")
        while True:
            peak = max(peak, _anonymous_bytes(status)) if watched else 0
            try:
                output, errors = process.communicate(timeout=_SAMPLE_SECONDS if watched else None)
                break
            except subprocess.TimeoutExpired:
                continue
        seconds = time.perf_counter() - begin
    if expect is not None and process.returncode != expect:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {(errors + output)[-2000:]}")
    return Ran(seconds, peak, process.returncode, output)


def _anonymous_bytes(status: Path) -> int:
    """RssAnon of a process in bytes; 0 after its end."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


@dataclass(frozen=True, slots=True)
class Goal:
    """One promise, what came out, and whether it holds: a line of the table of goals."""

    what: str
    goal: str
    measured: str
    met: bool

    def row(self) -> tuple[str, ...]:
        """As cells."""
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
    return markdown(("", "min s", "median s", "ratio"), [
        (t.name, f"{t.least:.2f}", f"{statistics.median(t.seconds):.2f}", f"{t.least / own:.2f}")
        for t in times.values()
    ])
