"""The entry point: a registry of commands, each imported when it is called, and one way out."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperGroup

from mqtool import exits, version
from mqtool.exits import StdoutClosedError
from mqtool.output import OutputOptions, Printer

READING = "Reading (never writes, takes no lock)"
CHANGING = "Changing (shows a plan, asks, keeps what it replaces)"
HELP = "Help"


class Entry(NamedTuple):
    """One command: the module with its `run`, one line of help, its panel."""

    module: str
    help: str
    panel: str


COMMANDS: dict[str, Entry] = {
    "inspect": Entry("inspect", "One screen about a store, or the records of one file.", READING),
    "verify": Entry("verify", "Every byte against every other; never stops at the first problem.", READING),
    "predict": Entry("predict", "What the start of a broker version would do to this store.", READING),
    "query": Entry("query", "Messages as a broker would find them.", READING),
    "journal": Entry("journal", "What was done to this store, when, and what is unfinished.", READING),
    "recover": Entry("recover", "Bring the store to where brokers start and no intact message is lost.", CHANGING),
    "truncate": Entry("truncate", "Cut the log at a record boundary, and all that derives from it.", CHANGING),
    "rebuild": Entry("rebuild", "Consume queues, index and checkpoint from the log.", CHANGING),
    "rebuild-consumequeue": Entry("rebuild_consumequeue", "Consume queues from the log.", CHANGING),
    "rebuild-index": Entry("rebuild_index", "Index files from the log.", CHANGING),
    "apply": Entry("apply", "Run a saved plan.", CHANGING),
    "resume": Entry("resume", "Complete a run that was killed.", CHANGING),
    "undo": Entry("undo", "Take the last applied plan back, bit for bit.", CHANGING),
    "explain": Entry("explain", "What a finding means and what to do about it.", HELP),
    "exit-codes": Entry("exit_codes", "The table of exit codes.", HELP),
}


class LazyGroup(TyperGroup):
    """Lists commands from the registry and imports the one that is called."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of the registry."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, or only its line of help while the list is printed."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return stub(cmd_name, entry) if self._listing else load(cmd_name, entry)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands without importing one of them."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def stub(name: str, entry: Entry) -> Any:
    """A command that has a name and a line of help."""
    app = typer.Typer(add_completion=False)
    app.command(name, help=entry.help, rich_help_panel=entry.panel)(lambda: None)
    return typer.main.get_command(app)


def load(name: str, entry: Entry) -> Any:
    """Import a command and give its help the examples and the exit codes."""
    run = importlib.import_module(f"mqtool.commands.{entry.module}").run
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(name, help=run.__doc__ or entry.help, short_help=entry.help, epilog=_epilog(name, run.info),
                rich_help_panel=entry.panel)(run)
    return typer.main.get_command(app)


def _epilog(name: str, info: Any) -> str:
    from rich.markup import escape

    lines = ["[bold]Examples[/bold]"]
    for arguments, what in info.examples:
        lines += [escape(f"  mqtool {name} {arguments}".rstrip()), f"      {escape(what)}"]
    lines += ["", "[bold]Exit codes[/bold] (a bitmask)"]
    lines += [f"  {row.bit:>3}  {escape(row.meaning)}" for row in exits.TABLE if row.bit in info.bits]
    return "\n".join(lines)


app = typer.Typer(
    cls=LazyGroup, rich_markup_mode="rich", pretty_exceptions_enable=False,
    epilog="[bold]Start with[/bold]\n  mqtool inspect STORE\n  mqtool verify STORE\n"
    "Exit codes are a bitmask: mqtool exit-codes",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mqtool {version()}")
        raise typer.Exit


@app.callback(invoke_without_command=False)
def root(
    ctx: typer.Context,
    show_version: Annotated[bool, typer.Option(
        "--version", help="Print the version and end.", is_eager=True, callback=_print_version, metavar=" ")] = False,
) -> None:
    """Forensics and recovery for Apache RocketMQ stores: look, verify, recover, rebuild, undo."""


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
    return _flush(code)


def _guarded(arguments: list[str], printer: Printer) -> int:
    try:
        return _invoke(arguments, printer)
    except StdoutClosedError:
        return _silence(printer.findings.bits)
    except typer.Exit as ending:
        return ending.exit_code
    except SystemExit as ending:
        # shell completion of the CLI library ends this way; in a command it would be a bug
        if printer.command:
            return _failed(ending, arguments, printer)
        return exits.USAGE if ending.code else exits.CLEAN
    except BaseException as error:
        return _failed(error, arguments, printer)


def _invoke(arguments: list[str], printer: Printer) -> int:
    command = typer.main.get_command(app)
    if any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ):
        command.main(args=arguments, prog_name="mqtool", standalone_mode=False)
    with command.make_context("mqtool", arguments or ["--help"], obj={"printer": printer}) as context:
        return cast(int, command.invoke(context))


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
    from recover.errors import Refusal
    from recover.seen import changed_since

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
