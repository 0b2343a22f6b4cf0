"""Draws what a screen shows. Imported once there is something to draw, for rich takes its time to import."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from rich import box
from rich import table as rich_table
from rich import text as rich_text
from rich.console import Console

from mqtool.exits import StdoutClosedError
from mqtool.shown import Shown, Table, Text
from mqtool.text import clean

_PIPE_WIDTH = 120


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise StdoutClosedError


def make_console(color: str, *, stderr: bool = False) -> Console:
    """A console that follows --color, NO_COLOR and the terminal, and never reads markup."""
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream is not None and stream.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _PIPE_WIDTH
    forced = {"always": True, "never": False}.get(color)
    return _Console(
        stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False,
        force_terminal=True if forced else None, no_color=True if forced is False else (False if forced else None),
    )


def draw(console: Console, *things: Shown, soft_wrap: bool | None = None) -> None:
    """Draw one below the other; `soft_wrap` leaves it to the terminal to break lines."""
    console.print(*(_text(item) if isinstance(item, Text) else _table(item) for item in things), soft_wrap=soft_wrap)


def _text(text: Text) -> rich_text.Text:
    result = rich_text.Text(text.words, style=text.style)
    for words, style in text.more:
        result.append(words, style or None)
    return result


def _table(table: Table) -> rich_table.Table:
    if not table.columns:
        return _facts(table)
    result = rich_table.Table(title=table.title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
                              header_style="bold", pad_edge=False, show_edge=False)
    for name in table.columns:
        result.add_column(name.lstrip(">*"), justify="right" if name.startswith(">") else "left", overflow="fold",
                          ratio=1 if name.startswith("*") else None)
    for row in table.rows:
        result.add_row(*(_cell(value) for value in row))
    return result


def _facts(table: Table) -> rich_table.Table:
    result = rich_table.Table(title=table.title or None, title_justify="left", title_style="bold", box=None,
                              show_header=False, pad_edge=False)
    result.add_column(style="dim", no_wrap=True)
    result.add_column(overflow="fold", ratio=1)
    for name, value in table.rows:
        result.add_row(clean(name), _cell(value))
    return result


def _cell(value: object) -> rich_text.Text:
    """One value as a harmless cell."""
    if isinstance(value, Text):
        return _text(value)
    if value is None:
        return rich_text.Text("-", style="dim")
    if isinstance(value, bool):
        return rich_text.Text("yes" if value else "no")
    return rich_text.Text(f"{value:,}" if isinstance(value, int) else clean(value))
