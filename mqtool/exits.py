"""The one place where the end of a command becomes an exit code.

The code is a bitmask, so that a runbook can test for what it cares about. Nothing else decides
one: commands return bits, errors are mapped here, and neither Python's own 1 nor the CLI
library's 2 can escape.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, NoReturn

from recover.findings.refusal import Refusal

CLEAN = 0
CORRECTED = 1
DERIVED = 2
MESSAGES = 4
OPERATIONAL = 8
USAGE = 16
INTERRUPTED = 32
UNSUPPORTED = 64
BUG = 128


class ExitBit(NamedTuple):
    """One bit of the exit code: its value, a short name, and what a person should know."""

    bit: int
    name: str
    meaning: str


TABLE: tuple[ExitBit, ...] = (
    ExitBit(CLEAN, "clean", "clean, or nothing to do"),
    ExitBit(CORRECTED, "corrected", "problems were found and corrected"),
    ExitBit(DERIVED, "derived", "problems are left that lose no intact message (dirty tail, queues, index, checkpoint, "
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


class StdoutClosedError(Exception):
    """Nobody reads the answer any more."""


class Failure(NamedTuple):
    """What a person and a script are told of an error: the exit bits, a kind, a message, a remedy."""

    code: int
    kind: str
    message: str
    remedy: str = ""
    detail: str = ""


def names(code: int) -> list[str]:
    """The names of the bits of an exit code; `clean` for 0."""
    return [row.name for row in TABLE if row.bit & code] or [TABLE[0].name]


def failure_of(error: BaseException, found: int = 0) -> Failure:
    """Map any error to what the command ends with; `found` are the bits of findings so far."""
    if isinstance(error, Refusal):
        kind = {OPERATIONAL: "refused", USAGE: "usage", INTERRUPTED: "interrupted"}.get(error.exit_code, "refused")
        bits = found if error.exit_code == OPERATIONAL else 0
        return Failure(error.exit_code | bits, kind, error.message, error.remedy)
    if isinstance(error, KeyboardInterrupt):
        return _stopped(error)
    if isinstance(error, MemoryError):
        return Failure(OPERATIONAL | found, "memory", "there is not enough memory",
                       "Lower --threads, or set --memory below what is free.")
    if isinstance(error, OSError):
        return Failure(OPERATIONAL | found, "io", _os_error_text(error), _os_error_remedy(error))
    return _of_library(error) or Failure(BUG, "bug", f"{type(error).__name__}: {error}", detail=bug_report(error))


def _of_library(error: BaseException) -> Failure | None:
    """What the CLI library raised over a command line, if it did; where it was never imported, it did not."""
    typer = sys.modules.get("typer")
    if typer is None:
        return None
    # The base of everything that it raises has moved between its modules; the subclass BadParameter is public.
    usage_errors: type[Exception] = typer.BadParameter.__mro__[2]
    if isinstance(error, usage_errors):
        return _usage_failure(error)
    return _stopped(error) if isinstance(error, typer.Abort) else None


def _stopped(error: BaseException) -> Failure:
    return Failure(INTERRUPTED, "interrupted", _stopped_text(error), "The change that had begun is completed by: "
                   "mqtool resume {store}   (or taken back by: mqtool undo {store})")


def _stopped_text(error: BaseException) -> str:
    if isinstance(error, Stopped):
        return f"stopped by {signal.Signals(error.number).name}"
    return "stopped"


def _usage_failure(error: Exception) -> Failure:
    format_message = getattr(error, "format_message", None)
    message = format_message() if callable(format_message) else str(error)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mqtool"
    return Failure(USAGE, "usage", " ".join(message.split()), f"See `{path} --help`.")


def _os_error_text(error: OSError) -> str:
    where = f"{os.fspath(error.filename)!s}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _os_error_remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "Run as the user that the broker runs as, or as root."
    if isinstance(error, (IsADirectoryError, NotADirectoryError)):
        return "A file stands where a folder belongs, or the other way round; move it away first."
    return ""


def bug_report(error: BaseException) -> str:
    """The text to send us: versions, command and traceback."""
    import platform
    import traceback

    from mqtool import version

    trace = "".join(traceback.format_exception(error))
    return (
        "This is a bug in mqtool, not a verdict on your store. A change that had begun is journalled: `mqtool journal "
        "STORE` shows it,\n`mqtool undo STORE` takes it back. Please report the lines below.\n\n"
        f"mqtool {version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n"
        f"command: {' '.join(sys.argv[1:2])}\n{trace}"
    )


@contextmanager
def signals() -> Iterator[None]:
    """Turn the three polite signals into `Stopped` once; a third SIGINT ends at once with 32.

    While the first is being answered (files closed, journal synced) later ones must not break
    in. A signal that the caller ignores, as nohup does, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0
    _polite.clear()

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 1 and _polite:
            _polite.append(number)
        elif seen == 1:
            raise Stopped(number)
        if seen >= 3 and number == signal.SIGINT:
            leave_now(INTERRUPTED)

    wanted = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in wanted}
    taken = [number for number in wanted if before[number] != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


_polite: list[int] = []
"""While not empty, a signal waits here for the next step's end; its first item is a placeholder."""


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """Let a signal wait for the end of a step; the callable yielded says whether one came."""
    _polite[:] = [0]
    try:
        yield lambda: len(_polite) > 1
    finally:
        came = _polite[1:]
        _polite.clear()
    if came:
        raise Stopped(came[0])


def leave_now(code: int) -> NoReturn:
    """End the process without another word; the journal is written to survive exactly this."""
    os._exit(code)
