"""How options and arguments are declared: in groups that commands share; `mqtool.grammar` hands them to typer."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter as Given
from inspect import signature
from typing import Any, NamedTuple, get_type_hints

from msgspec import Struct, structs

FLAG = " "  # what stands after the name of a flag in the help: nothing
REQUIRED = Given.empty


class Option(NamedTuple):
    """An option: its name (`--on/--off` for a switch), help, panel of the help, and what its value must be."""

    name: str
    help: str
    panel: str
    metavar: str | None = None
    parser: Callable[[str], Any] | None = None
    min: int | None = None
    short: str | None = None


class Argument(NamedTuple):
    """A word that stands without a name. `complete`: what a shell may offer for its beginning."""

    metavar: str
    help: str
    complete: Callable[[str], list[str]] | None = None


class Parameter(NamedTuple):
    """One parameter of a command. `kind` is `X`, `X | None` or `list[X] | None`; `default` may be REQUIRED."""

    name: str
    kind: Any
    default: Any
    declared: Option | Argument


class Layout(NamedTuple):
    """The parameters of a command, flat; which groups they are gathered to again; which are its own."""

    parameters: tuple[Parameter, ...]
    groups: dict[str, type[Any]]
    own: tuple[str, ...]


def option(
    name: str, help: str, panel: str, *, metavar: str | None = None, parser: Callable[[str], Any] | None = None,
    min: int | None = None, short: str | None = None,
) -> Any:
    """Declare an option within `Annotated`; `short` is a second spelling such as -o."""
    return Option(name, help, panel, metavar, parser, min, short)


def argument(metavar: str, help: str, complete: Callable[[str], list[str]] | None = None) -> Any:
    """Declare an argument within `Annotated`."""
    return Argument(metavar, help, complete)


def layout_of(function: Callable[..., int], last: type[Any]) -> Layout:
    """What a function of (Printer, groups of options, own parameters) takes, the group `last` after it."""
    hints = get_type_hints(function, include_extras=True)
    flat: list[Parameter] = []
    groups: dict[str, type[Any]] = {}
    own: list[str] = []
    for name, given in list(signature(function).parameters.items())[1:]:
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, Struct):
            groups[name] = hint
            flat += _of_group(hint)
        else:
            own.append(name)
            flat.append(_parameter(name, hint, given.default))
    flat += _of_group(last)
    return Layout(tuple(flat), groups, tuple(own))


def _of_group(group: type[Struct]) -> list[Parameter]:
    return [_parameter(item.name, item.type, REQUIRED if item.required else item.default)
            for item in structs.fields(group)]


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    return Parameter(name, hint.__origin__, default, hint.__metadata__[0])
