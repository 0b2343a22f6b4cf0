"""The command line, as typer reads it: commands, their options, help, completion, words for mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from mqtool import exits, version
from mqtool.commands import COMMANDS, Entry, command_of
from mqtool.declared import REQUIRED, Argument, Parameter
from mqtool.options import Command
from mqtool.output import Printer


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
    command = command_of(entry)
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(name, help=command.__doc__ or entry.help, short_help=entry.help, epilog=_epilog(name, command.info),
                rich_help_panel=entry.panel)(_function_of(command))
    return typer.main.get_command(app)


def _function_of(command: Command) -> Callable[..., int]:
    """A function with the parameters of a command as the library wants them declared."""

    def run(ctx: typer.Context, **values: Any) -> int:
        return command(ctx.obj["printer"], str(ctx.info_name), values)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    taken = [context, *(_given(item) for item in command.parameters)]
    run.__signature__ = inspect.Signature(taken, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in taken}
    return run


def _given(item: Parameter) -> inspect.Parameter:
    declared, default = item.declared, item.default
    how: Any
    if isinstance(declared, Argument):
        how = typer.Argument(metavar=declared.metavar, help=declared.help, autocompletion=declared.complete,
                             show_default=False)
    else:
        names = [declared.name, *([declared.short] if declared.short else [])]
        how = typer.Option(*names, help=declared.help, rich_help_panel=declared.panel, show_default=False,
                           metavar=declared.metavar, parser=declared.parser, min=declared.min)
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[item.kind, how],
                             default=inspect.Parameter.empty if default is REQUIRED else default)


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
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version, metavar=" ")] = False,
) -> None:
    """Forensics and recovery for Apache RocketMQ stores: look, verify, recover, rebuild, undo."""


def invoke(arguments: list[str], printer: Printer, *, completing: bool = False) -> int:
    """Let the library read a command line and run the command; the exit code.

    Errors of the library are raised (`mqtool.exits` knows them), and completion ends with SystemExit.
    """
    command = typer.main.get_command(app)
    if completing:
        command.main(args=arguments, prog_name="mqtool", standalone_mode=False)
    try:
        with command.make_context("mqtool", arguments or ["--help"], obj={"printer": printer}) as context:
            return cast(int, command.invoke(context))
    except typer.Exit as ending:
        return ending.exit_code
