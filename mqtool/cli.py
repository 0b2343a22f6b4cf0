"""The command line as typer reads it, and the single place where an exit code is decided."""

from __future__ import annotations

import inspect
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from formats.basics import FormatError
from mqtool import exits, version
from mqtool.commands import COMMANDS, Entry, command_of
from mqtool.declared import OutputOptions
from mqtool.printer import Printer
from mqtool.words import LANGUAGES, N_, _, language, speaking
from recover.findings.code import Refusal, UsageRefusal
from recover.findings.phrase import Phrase

# --- reading -------------------------------------------------------------------------------------


_HELP = {"help_option_names": ["-h", "--help"]}


class Line(TyperCommand):
    """A command that names the words left over in any language."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return no words; a usage error for those that nothing takes."""
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            ctx.fail(Phrase("Got unexpected extra argument(s) ({words})", words=" ".join(left)))
        return left


class LazyGroup(TyperGroup):
    """Lists the commands by their lines of help, and imports only the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and its arguments; a usage error for an unknown name."""
        if args[0] in COMMANDS:
            return args[0], load(args[0], COMMANDS[args[0]]), args[1:]
        if not args[0].startswith("-"):
            near = tuple(map(repr, get_close_matches(args[0], COMMANDS)))
            ctx.fail(Phrase("No such command {name}. Did you mean {near}?" if near else "No such command {name}.",
                            name=repr(args[0]), near=near))
        return super().resolve_command(ctx, args)


def load(name: str, entry: Entry) -> Any:
    """Return the typer command, with examples and exit codes in its help; built once a process and language."""
    return _built(name, entry, command_of(entry), language())


@cache
def _built(name: str, entry: Entry, command: Any, _in: str) -> Any:
    one = typer.Typer(add_completion=False, rich_markup_mode="rich", context_settings=_HELP)
    lines = [f"[bold]{_('Examples')}[/bold]"]
    for arguments, what in command.examples:
        lines += [escape(f"  mqtool {name} {arguments}".rstrip()), f"      {escape(_(what))}"]
    lines += ["", f"[bold]{_('Exit codes')}[/bold] ({_('a bitmask')})"]
    lines += [f"  {row.bit:>3}  {escape(_(row.meaning))}" for row in exits.TABLE if row.bit in command.bits]
    one.command(name, cls=Line, help=_(inspect.cleandoc(command.__doc__ or entry.help)), short_help=_(entry.help),
                epilog="\n".join(lines), rich_help_panel=_(entry.panel))(command)
    built: Any = typer.main.get_command(one)
    for parameter in built.params:
        for text in ("help", "rich_help_panel"):
            if getattr(parameter, text, None):
                setattr(parameter, text, _(getattr(parameter, text)))
    return built


def _language(arguments: Sequence[str]) -> str | None:
    """The language that a command line asks for; a document is English."""
    if "--json" in arguments:
        return "en"
    given = [word.partition("=")[2] or after for word, after in zip(arguments, [*arguments[1:], ""], strict=False)
             if word == "--lang" or word.startswith("--lang=")]
    return given[-1] if given and given[-1] in LANGUAGES else None


app = typer.Typer(
    cls=LazyGroup, context_settings=_HELP, rich_markup_mode="rich", pretty_exceptions_enable=False,
    epilog="[bold]Start with[/bold]\n  mqtool inspect STORE\n  mqtool verify STORE\n"
    "Exit codes are a bitmask: mqtool exit-codes",
)
for listed, entry in COMMANDS.items():
    app.command(listed, help=entry.help, rich_help_panel=entry.panel)(lambda: None)


@cache
def _translated(_in: str) -> Any:
    """The command that typer builds of all this, its help in the language that is spoken."""
    built: Any = typer.main.get_command(app)
    built.help = _(built.help)
    for one in built.commands.values():
        one.help, one.rich_help_panel = _(one.help), _(one.rich_help_panel)
    return built


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mqtool {version()}")
        raise typer.Exit


@app.callback(invoke_without_command=False)
def root(
    ctx: typer.Context,
    show_version: Annotated[bool, typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version, metavar=" ")] = False,
) -> None:
    """Forensics and recovery for Apache RocketMQ stores: look, verify, recover, rebuild, undo."""


def _invoke(printer: Printer) -> int:
    """Let typer read the command line and run the command; return the exit code."""
    command = _translated(language())
    if any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ):
        command.main(args=printer.arguments, prog_name="mqtool", standalone_mode=False)
    try:
        with command.make_context("mqtool", printer.arguments or ["--help"], obj=printer) as context:
            return cast(int, command.invoke(context))
    except typer.Exit as ending:
        return ending.exit_code


# --- ending --------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no other place decides one."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS") == "0":  # a terminal without a size: rich would print nothing
        del os.environ["COLUMNS"]
    printer = Printer(sys.argv[1:] if argv is None else argv)
    with speaking(_language(printer.arguments)):
        try:
            with exits.signals():
                try:
                    code = _invoke(printer)
                except BaseException as error:
                    code = _failed(error, printer)
        except exits.Stopped as error:  # a signal while the end was being printed
            code = exits.failure_of(error).code
        _say_slow()
        return _flush(code)


def _failed(error: BaseException, printer: Printer) -> int:
    # rich turns a closed stdout into SystemExit while help is printed
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        return _silence(printer.findings.bits)
    # shell completion of the CLI library ends this way; in a command it would be a bug
    if isinstance(error, SystemExit) and not printer.command:
        return exits.USAGE if error.code else exits.CLEAN
    failure = exits.failure_of(_explained(error, printer), printer.findings.bits)
    arguments = printer.arguments
    if not printer.command and arguments and arguments[0] in COMMANDS:
        printer.command = arguments[0]
        printer.options = OutputOptions(json="--json" in arguments)
    try:
        return printer.fail(failure)
    except BrokenPipeError:
        return _silence(failure.code)
    except OSError as second:
        printer.options = OutputOptions()
        return failure.code | printer.fail(exits.failure_of(second))


def _explained(error: BaseException, printer: Printer) -> BaseException:
    """Return the refusal to report for an error of the CLI library, or if bytes that passed their checks do not decode
    and a file has changed meanwhile. Only these errors can come from such a file; any other is a bug, whatever else
    writes to the store."""
    if isinstance(error, typer.TyperException) and not isinstance(error, typer.Abort):
        return _usage(error, printer.arguments)
    if printer.store is None or not isinstance(error, (FormatError, struct.error, EOFError)):
        return error
    from recover.store.memo import changed_since

    changed = changed_since(Path(printer.store), printer.began_ns)
    if changed is None:
        return error
    return Refusal(Phrase("{file} changed while the store was read", file=changed),
                   "Stop the process that writes to it, or use a copy of the store.", file=changed)


_NO_NUMBER = (
    N_("{value} is not a valid int."), N_("{value} is not a valid int range."),
    N_("{value} is not a valid float."), N_("{value} is not a valid float range."),
)


def _usage(error: typer.TyperException, arguments: Sequence[str]) -> UsageRefusal:
    """Return a usage error of the CLI library with its own English. It is told in other languages by the phrase of the
    same facts that says the same; one that no phrase says stays English."""
    said = " ".join(error.format_message().split())
    phrase = next((phrase for phrase in _phrases(error, arguments) if " ".join(phrase.split()) == said), said)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mqtool"
    is_before = path == "mqtool" and hasattr(error, "option_name")
    return UsageRefusal(phrase, Phrase("Options follow the command. See `{path} --help`." if is_before else
                                       "See `{path} --help`.", path=path))


def _phrases(error: typer.TyperException, arguments: Sequence[str]) -> Iterator[Phrase]:
    """What an error may say of the option, the parameter and the value that it is about."""
    if isinstance(error.args[0] if error.args else None, Phrase) and getattr(error, "param", None) is None:
        yield error.args[0]
    if (option := getattr(error, "option_name", None)) is not None:
        near = tuple(sorted(getattr(error, "possibilities", None) or ()))
        yield Phrase("No such option: {option} (Possible options: {near})" if near else "No such option: {option}",
                     option=option, near=near)
        yield Phrase("Option {option} requires an argument.", option=repr(option))
        yield Phrase("Option {option} does not take a value.", option=repr(option))
    if (parameter := getattr(error, "param", None)) is not None:
        hint = parameter.get_error_hint(getattr(error, "ctx", None))
        yield Phrase("Missing argument {name}.", name=hint)
        yield Phrase("Missing option {name}.", name=hint)
        for why in _reasons(error, parameter.type, arguments):
            yield Phrase("Invalid value for {name}: {why}", name=hint, why=why)


def _reasons(error: typer.TyperException, kind: Any, arguments: Sequence[str]) -> Iterator[Phrase]:
    """What may be wrong with the value of a parameter of such a type: any word of the command line may be it."""
    if isinstance(error.args[0] if error.args else None, Phrase):
        yield error.args[0]
    choices = tuple(map(repr, getattr(kind, "choices", ())))
    least, most = getattr(kind, "min", None), getattr(kind, "max", None)
    for word in {*arguments, *(word.partition("=")[2] for word in arguments)}:
        yield Phrase("{value} is not one of {choices}.", value=repr(word), choices=choices)
        for template in _NO_NUMBER:
            yield Phrase(template, value=repr(word))
        for number in (int, float):
            with suppress(ValueError):
                yield Phrase("{value} is not in the range {range}.", value=str(number(word)),
                             range=f"x>={least}" if most is None else f"{least}<=x<={most}")


def _say_slow() -> None:
    """Print one line if no compiled code could run: the answer is the same, but slower."""
    library = sys.modules.get("formats.native.library")
    for reason in () if library is None else library.SLOW[:1]:
        with suppress(OSError, ValueError):
            print(f"mqtool: {reason}: the reference code was used, which is many times slower", file=sys.stderr)


def _silence(code: int) -> int:
    """Stdout has no reader: keep the interpreter from failing over it at exit."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _flush(code: int) -> int:
    """Flush here, where a failure can still become an exit code of ours."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _silence(code)
    except OSError as error:
        _silence(code)
        print(f"mqtool: stdout: {error.strerror}", file=sys.stderr)
        return code | exits.OPERATIONAL
    return code
