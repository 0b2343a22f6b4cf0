"""Progress on stderr: bytes, records, rate, and after some seconds an estimate."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from mqtool.text import clean, human_seconds, human_size

if TYPE_CHECKING:
    from rich.live import Live

_WARM_UP = 3.0
_PLAIN_EVERY = 2.0


class Line:
    """One line on stderr that is redrawn, from any thread. `wanted` None: only where stderr is a terminal. Asked for
    where nothing can be redrawn (a log file, a pipe), it is a plain line every few seconds."""

    def __init__(self, wanted: bool | None, console: Callable[[], Console]) -> None:
        stream = sys.stderr
        self.active = wanted if wanted is not None else bool(stream is not None and stream.isatty())
        self._console = console
        self._live: Live | None = None
        self._plain = -math.inf

    def __enter__(self) -> Self:
        if self.active and (console := self._console()).is_terminal:
            from rich.live import Live

            self._live = Live(Text(""), console=console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, line: str) -> None:
        if self._live is not None:
            self._live.update(Text(clean(line)), refresh=True)
        elif self.active and (now := time.monotonic()) - self._plain >= _PLAIN_EVERY:
            self._plain = now
            self._console().print(Text(clean(line)))


class Progress(Line):
    """A scan of `total` bytes; call it with the bytes and records done since the last call."""

    def __init__(self, title: str, wanted: bool | None, console: Callable[[], Console], total: int) -> None:
        super().__init__(wanted, console)
        self.title, self.total = title, total
        self._start, self._shown = time.monotonic(), 0.0
        self._done = self._records = self._queues = 0
        self._lock = threading.Lock()

    def __call__(self, size: int, records: int) -> None:
        """Add what was done; redraws at most five times a second."""
        with self._lock:
            self._done += size
            self._records += records
            now = time.monotonic()
            if now - self._shown >= 0.2 or self._done >= self.total:
                self._shown = now
                self.show(self.line(now))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._queues and self.active and self._live is None:
            # a log file ends with all of them, however few seconds they took
            self._plain = -math.inf
            self._show_queues()
        super().__exit__(kind)

    def queue(self) -> None:
        with self._lock:
            self._queues += 1
            now = time.monotonic()
            if now - self._shown >= 0.2:
                self._shown = now
                self._show_queues()

    def _show_queues(self) -> None:
        self.show(f"{self.title}  {self._queues:,} queues checked")

    def line(self, now: float) -> str:
        """What the line says at `now` (monotonic seconds)."""
        elapsed = max(now - self._start, 1e-6)
        share = f"{100 * self._done / self.total:3.0f} %  " if self.total else ""
        parts = [f"{self.title}  {share}{human_size(self._done)} of {human_size(self.total)}",
                 f"{human_size(int(self._done / elapsed))}/s"]
        if self._records:
            parts.append(f"{self._records:,} records")
        if elapsed >= _WARM_UP and 0 < self._done < self.total:
            parts.append(f"about {human_seconds(elapsed * (self.total - self._done) / self._done)} left")
        return " · ".join(parts)
