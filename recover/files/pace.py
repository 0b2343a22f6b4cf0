"""How fast files are read, for a machine that has other work to do: one limit for all threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_BURST_SECONDS = 0.05


class Pace:
    """Lets at most `rate` bytes a second be read; None for no limit. `clock` and `sleep` are those of `time`."""

    def __init__(
        self, rate: int | None = None, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether reads have to be told of."""
        return self._rate is not None

    def spend(self, size: int) -> None:
        """Say that `size` bytes were read; returns when the next may be."""
        if self._rate is None or size <= 0:
            return
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + size / self._rate
            wait = self._free_at - now
        if wait > _BURST_SECONDS:
            self._sleep(wait)


_pace = Pace()


def set_rate(rate: int | None) -> None:
    """Limit the reads of this process to `rate` bytes a second from now on; None lifts the limit."""
    global _pace
    _pace = Pace(rate)


def is_limited() -> bool:
    """Whether the reads of this process have to be told of."""
    return _pace.is_limited


def spend(size: int) -> None:
    """Say that `size` bytes of a store were read."""
    _pace.spend(size)
