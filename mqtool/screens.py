"""Tables and colours, one look for all commands; every cell is made harmless here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from mqtool import exits
from mqtool.advice import with_store
from mqtool.text import clean
from recover.findings import Finding

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]] = ()) -> Table:
    """A table; a column named `>x` is right-aligned, `*x` takes the room that is left.

    Cells may be `Text` (taken as they are) or anything else (cleaned, integers grouped).
    """
    result = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
                   header_style="bold", pad_edge=False, show_edge=False)
    for name in columns:
        result.add_column(name.lstrip(">*"), justify="right" if name.startswith(">") else "left", overflow="fold",
                          ratio=1 if name.startswith("*") else None)
    for row in rows:
        result.add_row(*(cell(value) for value in row))
    return result


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> Table:
    """Names on the left, values on the right, no rules."""
    result = Table(title=title or None, title_justify="left", title_style="bold", box=None, show_header=False,
                   pad_edge=False)
    result.add_column(style="dim", no_wrap=True)
    result.add_column(overflow="fold", ratio=1)
    for name, value in pairs:
        result.add_row(clean(name), cell(value))
    return result


def cell(value: object) -> Text:
    """One value as a harmless cell."""
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    return Text(f"{value:,}" if isinstance(value, int) else clean(value))


def severity_text(severity: str, text: str = "") -> Text:
    """A word in the colour of a severity."""
    return Text(clean(text or severity), style=SEVERITY_STYLES[severity])


def findings_table(findings: Iterable[Finding], store: str | None) -> Table:
    """Findings: how bad, which code, where, what it is, what to do."""
    rows = []
    for item in findings:
        where = clean(item.file or "the store") + ("" if item.offset is None else f" @ {item.offset:,}")
        what = Text(clean(with_store(item.message, store)))
        if item.remedy:
            what.append("\n→ " + clean(with_store(item.remedy, store)), style="dim")
        rows.append((severity_text(item.severity), severity_text(item.severity, item.code), where, what))
    return table("findings", ["", "code", "where", "*what it is, and what to do"], rows)


def findings_by_code(findings: Iterable[Finding]) -> Table:
    """One line a code: how often, and the first of them in words."""
    groups: dict[str, list[Finding]] = {}
    for item in findings:
        groups.setdefault(item.code, []).append(item)
    rows = []
    for code, items in groups.items():
        more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
        rows.append((Text(code, style="dim"), Text(clean(items[0].message) + more, style="dim")))
    return table("worth knowing (nothing is wrong here)", ["code", "*"], rows)


def style_of(code: int) -> str:
    """The colour of a summary line."""
    if code & ~(exits.CORRECTED | exits.DERIVED):
        return "bold red"
    return "bold yellow" if code & exits.DERIVED else "bold green"
