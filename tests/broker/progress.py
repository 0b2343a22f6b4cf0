"""How far the services of a broker that keep messages for later have come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fixtures.lab.observe import reference
from formats.config.json import salvage
from formats.config.tables import read_delay_offsets
from formats.timer import TIMER_CHECK


def end_of(store: str, queue: str) -> int:
    sound = reference(store).after_start
    assert sound is not None
    return sound.queues[queue][1]


def await_offset(offset: Callable[[], int], end: int, seconds: float = 60.0) -> int:
    """The offset once it has reached the end, or where it stands when the time is up."""
    until = time.monotonic() + seconds
    while (reached := offset()) < end and time.monotonic() < until:
        time.sleep(0.5)
    return reached


def taken_up(path: Path) -> int:
    """The offset up to which the timer has taken messages from its queue."""
    content = path.read_bytes() if path.exists() else b""
    return TIMER_CHECK.decode(content).last_timer_queue_offset if len(content) >= TIMER_CHECK.size else 0


def delivered(path: Path, level: int) -> int:
    """The offset of a delay level, 0 where a broker has just begun to write the file."""
    content = path.read_bytes() if path.exists() else b""
    return read_delay_offsets(salvage(content).value).get(level, 0)
