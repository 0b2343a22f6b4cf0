"""How options are declared for typer, and those of the output, which every command has.

Light: `--help` and the report of a usage error import no more than this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from msgspec import Struct

from recover.findings.phrase import Phrase

_OUTPUT = "Output"
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)


def option(name: str, help: str, panel: str, *, short: str = "", **more: Any) -> Any:
    """An option for `Annotated`: its name (`--on/--off` for a switch), its help, and the panel in the help."""
    names = [name, short] if short else [name]
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


def flag(name: str, help: str, panel: str) -> Any:
    """An option without a value; the help shows only its name."""
    return option(name, help, panel, metavar=" ")


def argument(metavar: str, help: str, names: Iterable[str] = ()) -> Any:
    """A positional argument for `Annotated`. `names`: offered by shell completion."""

    def begun(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return typer.Argument(metavar=metavar, help=help, autocompletion=begun if names else None, show_default=False)


def parse_size(text: str) -> int:
    """`65536`, `64K`, `1M`, `1G` (powers of 1,024) in bytes; a usage error (16) for anything else."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise typer.BadParameter(Phrase("invalid size {text}: write bytes, or 64K, 1M, 1G", text=repr(text)))
    power: int = " kmgt".index(match[2].lower() or " ")
    return int(match[1]) << 10 * power


class OutputOptions(Struct, frozen=True, kw_only=True):
    """The form of the output."""

    json: Annotated[bool, flag("--json", "One JSON document on stdout.", _OUTPUT)] = False
    quiet: Annotated[bool, flag("--quiet", "Print only the summary line.", _OUTPUT)] = False
    progress: Annotated[bool | None, flag(
        "--progress/--no-progress", "Progress on stderr (default: if that is a terminal).", _OUTPUT)] = None
    color: Annotated[Literal["auto", "always", "never"], option(
        "--color", "Colour; NO_COLOR is honoured too.", _OUTPUT)] = "auto"
    lang: Annotated[Literal["en", "zh_CN"] | None, option(
        "--lang", "Language of screens (default: that of the locale); documents are English.", _OUTPUT)] = None
    max_findings: Annotated[int | None, option(
        "--max-findings", "Print at most N findings (default: 10,000 in JSON, 5 per code on a screen).", _OUTPUT,
        metavar="N", min=0)] = None
    findings_out: Annotated[Path | None, option(
        "--findings-out", "Write every finding as a line of JSON to a file outside the store.", _OUTPUT,
        metavar="FILE")] = None
