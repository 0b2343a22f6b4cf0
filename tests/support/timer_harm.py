"""What can happen to the files of the timer: each harm changes a store in place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from formats import timer

UNIT = timer.TIMER_LOG_UNIT.size
CHECK = "config/timercheck"
_HOUR_MS = 3600_000


def _gone(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _check(root: Path, change: Callable[[timer.TimerCheck], timer.TimerCheck]) -> None:
    path = root / CHECK
    path.write_bytes(timer.encode_check(change(timer.TIMER_CHECK.decode(path.read_bytes()))))


def _in_log(root: Path, change: Callable[[bytearray], None]) -> None:
    path = root / "timerlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def _bits(content: bytearray) -> None:
    for number in (5, 9, 20):
        content[number * UNIT + timer.TIMER_LOG_UNIT.offset("phy_offset") + 6] ^= 4


def _cut(content: bytearray) -> None:
    content[20 * UNIT:] = bytes(len(content) - 20 * UNIT)


def _wrong_wheel(root: Path) -> None:
    path = root / "timerwheel"
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), timer.TIMER_WHEEL_SLOT.size):
        if any(content[at:at + 8]):
            content[at + 7] ^= 1
    path.write_bytes(content)


HARMS: dict[str, Callable[[Path], None]] = {
    "timerlog-gone": lambda root: _gone(root, "timerlog"),
    "wheel-gone": lambda root: _gone(root, "timerwheel"),
    "wheel-wrong": _wrong_wheel,
    "timercheck-gone": lambda root: _gone(root, CHECK),
    "timercheck-ahead": lambda root: _check(
        root, lambda was: was._replace(last_read_timestamp=was.last_read_timestamp + 24 * _HOUR_MS)),
    "timercheck-behind": lambda root: _check(root, lambda was: was._replace(
        last_read_timestamp=was.last_read_timestamp - _HOUR_MS, last_timer_log_flush_position=0,
        last_timer_queue_offset=0, master_timer_queue_offset=0)),
    "bits-in-units": lambda root: _in_log(root, _bits),
    "log-cut": lambda root: _in_log(root, _cut),
    "all-gone": lambda root: _gone(root, "timerlog", "timerwheel", CHECK),
}
