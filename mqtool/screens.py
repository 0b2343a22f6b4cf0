"""Tables and colours, one look for all commands; every cell is made harmless when it is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqtool import exits
from mqtool.next_steps import Given
from mqtool.shown import Table, Text
from mqtool.text import clean
from recover.findings.model import Finding

SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]] = ()) -> Table:
    """A table; a column named `>x` is right-aligned, `*x` takes the room that is left.

    Cells may be `Text` (taken as they are) or anything else (cleaned, integers grouped).
    """
    return Table(title, columns, rows)


def rest(hidden: int, columns: int) -> list[list[object]]:
    """The last row of a table that leaves `hidden` rows out: how many, and how to see them; none where it shows all."""
    words = Text(f"… {hidden:,} more: --json shows all", style="dim")
    return [[words, *[Text("")] * (columns - 1)]] if hidden > 0 else []


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> Table:
    """Names on the left, values on the right, no rules."""
    return Table(title, (), pairs)


def severity_text(severity: str, text: str = "") -> Text:
    """A word in the colour of a severity."""
    return Text(clean(text or severity), style=SEVERITY_STYLES[severity])


def findings_table(findings: Iterable[Finding], given: Given, most: int | None = None) -> Table:
    """Findings, those of a code one below the other: how bad, which code, where, what it is, what to do.

    With `most`, of each code only so many, and how many more there are.
    """
    rows: list[Sequence[object]] = []
    for items in _by_code(findings):
        # one more takes no more room than to say so
        shown = items if most is None or len(items) <= most + 1 else items[:most]
        for item in shown:
            what = Text(clean(given.fill(item.message)))
            if item.remedy:
                what.append("\n→ " + clean(given.fill(item.remedy)), style="dim")
            rows.append((severity_text(item.severity), severity_text(item.severity, item.code), _place(item), what))
        if len(shown) < len(items):
            rows.append(("", Text(items[0].code, style="dim"), Text(f"… {len(items) - len(shown):,} more", style="dim"),
                         Text(f"the last: {_place(items[-1])}\n--max-findings N or --findings-out FILE shows all",
                              style="dim")))
    return table("findings", ["", "code", "where", "*problem and remedy"], rows)


def findings_by_code(findings: Iterable[Finding], given: Given) -> Table:
    """One line a code: how often, and the first of them in words."""
    rows = []
    for items in _by_code(findings):
        more = f" (and {len(items) - 1:,} more)" if len(items) > 1 else ""
        rows.append((Text(items[0].code, style="dim"), Text(clean(given.fill(items[0].message)) + more, style="dim")))
    return table("notes", ["code", "*"], rows)


def _by_code(findings: Iterable[Finding]) -> Iterable[list[Finding]]:
    """Those of one severity and code, in the order in which these first come."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for item in findings:
        groups.setdefault((item.severity, item.code), []).append(item)
    return groups.values()


def _place(item: Finding) -> str:
    return clean(item.file or "the store") + ("" if item.offset is None else f" @ {item.offset:,}")


def style_of(code: int) -> str:
    """The colour of a summary line."""
    if code & ~(exits.CORRECTED | exits.DERIVED):
        return "bold red"
    return "bold yellow" if code & exits.DERIVED else "bold green"
