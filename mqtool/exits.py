"""The exit code: a bitmask, so that a runbook can test for single conditions.

Commands return bits and errors are mapped to bits here; Python's own 1 and the CLI library's 2 never escape.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import typer

from mqtool import version
from recover.findings.code import (
    BUG,
    CLEAN,
    CORRECTED,
    DERIVED,
    INTERRUPTED,
    MESSAGES,
    N_,
    OPERATIONAL,
    UNSUPPORTED,
    USAGE,
    Refusal,
    remedy_of,
)
from recover.findings.phrase import Phrase


class ExitBit(NamedTuple):
    """One bit of the exit code: its value, a short name, and its meaning for users."""

    bit: int
    name: str
    meaning: str


TABLE: tuple[ExitBit, ...] = (
    ExitBit(CLEAN, "clean", "clean, or nothing to do"),
    ExitBit(CORRECTED, "corrected", "problems were found and corrected"),
    ExitBit(DERIVED, "derived", "problems that affect no message (dirty tail, queues, index, checkpoint, "
            "abort, config)"),
    ExitBit(MESSAGES, "messages", "messages are damaged or missing"),
    ExitBit(OPERATIONAL, "refused", "refused, or an operational error (broker running, no permission, I/O)"),
    ExitBit(USAGE, "usage", "the command line is wrong, or there is no store at that path"),
    ExitBit(INTERRUPTED, "interrupted", "stopped by a signal; a changing command can be resumed"),
    ExitBit(UNSUPPORTED, "unsupported", "a part that the question needs could not be read by this version"),
    ExitBit(BUG, "bug", "a bug in mqtool"),
)


class Stopped(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP arrived. Not an `Exception`, so that no handler takes it for damage."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Failure(NamedTuple):
    """The report of an error: the exit bits, a kind, a message, a remedy."""

    code: int
    kind: str
    message: str
    remedy: str = ""
    detail: str = ""


def names(code: int) -> list[str]:
    """The names of the bits of an exit code; `clean` for 0."""
    return [row.name for row in TABLE if row.bit & code] or [TABLE[0].name]


def failure_of(error: BaseException, found: int = 0) -> Failure:
    """Map any error to its exit code and message; `found` are the bits of findings so far."""
    if isinstance(error, Refusal):
        kind = {OPERATIONAL: "refused", USAGE: "usage", INTERRUPTED: "interrupted"}.get(error.exit_code, "refused")
        bits = found if error.exit_code == OPERATIONAL else 0
        return Failure(error.exit_code | bits, kind, error.message, error.remedy)
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        by = signal.Signals(error.number).name if isinstance(error, Stopped) else None
        return Failure(INTERRUPTED, "interrupted", Phrase("stopped by {by}" if by else "stopped", by=by), N_(
            "`mqtool resume {store}` completes the change that had begun, `mqtool undo {store}` reverts it."))
    if isinstance(error, MemoryError):
        return Failure(OPERATIONAL | found, "memory", N_("there is not enough memory"),
                       N_("Lower --threads, or set --memory below the free memory."))
    if isinstance(error, OSError):
        where = f"{os.fspath(error.filename)!s}: " if error.filename else ""
        return Failure(OPERATIONAL | found, "io", Phrase("{where}{error}", where=where, error=error.strerror or error),
                       remedy_of(error))
    return Failure(BUG, "bug", f"{type(error).__name__}: {error}", detail=bug_report(error))


def bug_report(error: BaseException) -> str:
    """The text of a bug report: versions, command and traceback."""
    trace = "".join(traceback.format_exception(error))
    return (
        "This is a bug in mqtool, not a verdict on your store. A change that had begun is in the journal: `mqtool "
        "journal STORE` shows it,\n`mqtool undo STORE` reverts it. Please report the lines below.\n\n"
        f"mqtool {version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n"
        f"command: {' '.join(sys.argv[1:2])}\n{trace}"
    )


_waiting: list[int] = []
"""Not empty while steps run: a signal is then queued here until the end of the step; the first item is a
placeholder."""


@contextmanager
def signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Stopped`, once; a third SIGINT ends the process with 32 at once.

    While the first is handled, later ones do not interrupt. A signal that the caller ignores (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0
    _waiting.clear()

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 1 and _waiting:
            _waiting.append(number)
        elif seen == 1:
            raise Stopped(number)
        if seen >= 3 and number == signal.SIGINT:
            os._exit(INTERRUPTED)  # the journal is written to survive exactly this

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """Let a signal wait for the end of a step; the yielded callable returns whether one arrived."""
    _waiting[:] = [0]
    try:
        yield lambda: len(_waiting) > 1
    finally:
        came = _waiting[1:]
        _waiting.clear()
    if came:
        raise Stopped(came[0])
