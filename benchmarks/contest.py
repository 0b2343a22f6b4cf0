"""Several parties at the same job, in turn, so that what slows the machine slows all of them."""

from __future__ import annotations

import mmap
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

RUNS = 5
_MEMORY = 1 << 30
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14


@dataclass(slots=True)
class Times:
    """Seconds of each run of one party, in order."""

    name: str
    seconds: list[float] = field(default_factory=list)

    @property
    def least(self) -> float:
        """The quickest run: what the work takes where nothing disturbs it."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.seconds)


def in_turn(
    parties: Mapping[str, Callable[[], float]], runs: int = RUNS, *, cached: Sequence[Path] = ()
) -> dict[str, Times]:
    """Let every party run once, then all again, `runs` times; one turn before that is not counted.

    A party is a function that does the job and returns the seconds that count. Every other turn goes backwards, so that
    nobody always comes after the same one. Before each, the `cached` files are read: some systems drop from the page
    cache what nobody read for some seconds, and whoever comes after a slow party would pay for that.
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
    """Have files in the page cache."""
    buffer = bytearray(1 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _warm_memory() -> None:
    """Have the host of a virtual machine back so much memory as any party asks for.

    It takes back what nobody uses for some seconds, and 0.6 ms for each MB to give it again. A party after one that
    held much memory, or ran for long, would wait 0.3 s for that, and another would not.
    """
    with mmap.mmap(-1, _MEMORY, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory, suppress(OSError):
        memory.madvise(_POPULATE_WRITE)


def note(text: str) -> None:
    """A line that the next one replaces, for whoever waits at a terminal."""
    if sys.stderr.isatty():
        print(f"\r  {text:<75}\r", end="", file=sys.stderr, flush=True)
