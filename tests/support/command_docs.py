"""The generated parts of docs/commands/: examples, options and exit codes, read from the commands.

`python -m tests.support.command_docs` rewrites them in place; a test fails if they are stale.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mqtool import exits
from mqtool.cli import load
from mqtool.commands import COMMANDS, command_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = DOCS / "commands"

_BLOCK = re.compile(r"<!-- (?P<what>examples|options|exit-codes) -->\n.*?<!-- end -->", re.DOTALL)


def page(name: str) -> Path:
    """Return the path of a command's page."""
    return PAGES / f"{name}.md"


def render(name: str, text: str) -> str:
    """Return the page's text with its generated blocks brought up to date."""
    return _BLOCK.sub(lambda match: f"<!-- {match['what']} -->\n{block(name, match['what'])}\n<!-- end -->", text)


def block(name: str, what: str) -> str:
    """Return one generated block of a command's page."""
    return {"examples": _examples, "options": _options, "exit-codes": _exit_codes}[what](name)


def exit_table(bits: tuple[int, ...] | None = None) -> str:
    """Return the table of the exit codes in `bits`, by default of all."""
    rows = ["| code | name | meaning |", "|---|---|---|"]
    rows += [f"| {row.bit} | {row.name} | {row.meaning} |" for row in exits.TABLE if bits is None or row.bit in bits]
    return "\n".join(rows)


def parameters(name: str) -> list[Any]:
    """Return the parameters of a command, except `--help`."""
    return [item for item in load(name, COMMANDS[name]).params if "--help" not in item.opts]


def _examples(name: str) -> str:
    lines = []
    for arguments, what in command_of(COMMANDS[name]).examples:
        lines += [f"# {what}", f"mqtool {name} {arguments}".rstrip()]
    return "\n".join(["```console", *lines, "```"])


def _exit_codes(name: str) -> str:
    return exit_table(command_of(COMMANDS[name]).bits)


def _options(name: str) -> str:
    panels: dict[str, list[str]] = {}
    for item in parameters(name):
        option = bool(item.opts) and item.opts[0].startswith("-")
        panel = (getattr(item, "rich_help_panel", None) or "Options") if option else "Arguments"
        panels.setdefault(panel, []).append(f"| {_spelling(item, option)} | {_cell(getattr(item, 'help', '') or '')} |")
    return "\n\n".join(f"**{panel}**\n\n| | |\n|---|---|\n" + "\n".join(rows) for panel, rows in panels.items())


def _spelling(item: Any, option: bool) -> str:
    if not option:
        return f"`{item.metavar or item.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in [*item.opts, *item.secondary_opts])
    value = "|".join(getattr(item.type, "choices", ())) or item.metavar or ""
    return f"{names} {_cell(value)}".strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Bring the page of every registered command up to date."""
    for name in COMMANDS:
        path = page(name)
        path.write_text(render(name, path.read_text()))


if __name__ == "__main__":
    main()
