"""The entry point: who reads the command line, and one way out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mqtool import exits
from mqtool.commands import COMMANDS
from mqtool.exits import StdoutClosedError
from mqtool.output import OutputOptions, Printer


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing else decides one."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    printer = Printer()
    printer.arguments = arguments
    try:
        with exits.signals():
            code = _guarded(arguments, printer)
    except exits.Stopped as error:  # a signal while the end was being printed
        code = exits.failure_of(error).code
    _say_slow()
    return _flush(code)


def _say_slow() -> None:
    """One line where no compiled code could run: the answer is the same, and took longer."""
    library = sys.modules.get("formats.native.library")
    for reason in () if library is None else library.SLOW[:1]:
        with suppress(OSError, ValueError):
            print(f"mqtool: {reason}: the reference code was used, which takes many times as long", file=sys.stderr)


def _guarded(arguments: list[str], printer: Printer) -> int:
    try:
        return _invoke(arguments, printer)
    except StdoutClosedError:
        return _silence(printer.findings.bits)
    except SystemExit as ending:
        # shell completion of the CLI library ends this way; in a command it would be a bug
        if printer.command:
            return _failed(ending, arguments, printer)
        return exits.USAGE if ending.code else exits.CLEAN
    except BaseException as error:
        return _failed(error, arguments, printer)


def _invoke(arguments: list[str], printer: Printer) -> int:
    completing = any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ)
    from mqtool import grammar

    return grammar.invoke(arguments, printer, completing=completing)


def _failed(error: BaseException, arguments: list[str], printer: Printer) -> int:
    # rich turns a closed stdout into SystemExit while help is printed
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        return _silence(printer.findings.bits)
    failure = exits.failure_of(_explained(error, printer), printer.findings.bits)
    if not printer.command and arguments and arguments[0] in COMMANDS:
        printer.command = arguments[0]
        printer.options = OutputOptions(json="--json" in arguments)
    try:
        return printer.fail(failure)
    except (StdoutClosedError, BrokenPipeError):
        return _silence(failure.code)
    except OSError as second:
        printer.options = OutputOptions()
        return failure.code | printer.fail(exits.failure_of(second))


def _explained(error: BaseException, printer: Printer) -> BaseException:
    """What broke a check may have been a file that changed between two looks at it: then that is what to say."""
    if printer.store is None or not exits.failure_of(error).code & exits.BUG:
        return error
    from recover.findings.refusal import Refusal
    from recover.store.memo import changed_since

    changed = changed_since(Path(printer.store), printer.began_ns)
    if changed is None:
        return error
    return Refusal(f"{changed} changed while the store was read",
                   "Stop what writes to it, or look at a copy of the store.", file=changed)


def _silence(code: int) -> int:
    """Nobody reads stdout: keep the interpreter from failing over it at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass
    return code


def _flush(code: int) -> int:
    """Flush here, where a failure still becomes a code of ours."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return _silence(code)
    except OSError as error:
        _silence(code)
        print(f"mqtool: stdout: {error.strerror}", file=sys.stderr)
        return code | exits.OPERATIONAL
    return code
