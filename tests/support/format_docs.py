"""The generated parts of docs/format.md: layout tables, record rules, config files and the list of formats.

`python -m tests.support.format_docs` rewrites them in place; a test fails if they are stale.
"""

from __future__ import annotations

import re
from pathlib import Path

from formats.config.tables import CONFIG_FILES
from formats.record.grammar import EVERYTHING, RULES, SERVICE
from recover.broker.versions import BY_NAME as BEHAVIOURS
from tests.support.formats import BY_NAME, FORMATS

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "format.md"

_BLOCK = re.compile(
    r"<!-- (?P<what>layout:[a-z-]+(?:/[A-Z0-9_]+)?|config-files|format-list|record-rules) -->\n.*?<!-- end -->",
    re.DOTALL,
)


def layout_blocks(text: str) -> set[tuple[str, str]]:
    """Return the (format, layout) of every layout table in the text."""
    found = set()
    for match in _BLOCK.finditer(text):
        kind, _, target = match["what"].partition(":")
        if kind == "layout":
            name, _, one = target.partition("/")
            found |= {(name, layout) for layout in ([one] if one else BY_NAME[name].layouts)}
    return found


def render(text: str) -> str:
    """Return the text with every generated block brought up to date; `KeyError` for an unknown format."""
    return _BLOCK.sub(lambda match: f"<!-- {match['what']} -->\n{_block(match['what'])}\n<!-- end -->", text)


def _block(what: str) -> str:
    kind, _, target = what.partition(":")
    if kind == "config-files":
        return _config_files()
    if kind == "format-list":
        return _format_list()
    if kind == "record-rules":
        return _rules()
    name, _, one = target.partition("/")
    return "\n\n".join(_layout(name, layout) for layout in ([one] if one else BY_NAME[name].layouts))


def _rules() -> str:
    """Return the table of the record rules."""
    rows = ["| rule | field | must be | reason if not | covered by | checked by brokers |", "|---|---|---|---|---|---|"]
    for rule in RULES:
        must = rule.bounds if rule.test is None else rule.must
        reason = f"`{rule.reason}`" if rule.reason else "reported" if rule.kind == SERVICE else ""
        behaviour = BEHAVIOURS.get(rule.broker)
        broker = rule.broker if behaviour is None else f"from {behaviour.since} (`{rule.broker}`)"
        covered = ", ".join(
            sums.name for sums in RULES if sums.covers in (EVERYTHING, rule.where) and sums.where != rule.where)
        rows.append(f"| {rule.name} | `{rule.where}` | {must} | {reason} | {covered} | {broker} |")
    return "\n".join(rows)


def _layout(name: str, layout_name: str) -> str:
    layout = BY_NAME[name].layout(layout_name)
    size = "1 byte" if layout.size == 1 else f"{layout.size} bytes"
    rows = ["| offset | type | field | meaning |", "|---|---|---|---|"]
    rows += [f"| {f.offset} | {f.wire.label} | `{f.name}` | {f.note} |" for f in layout.fields]
    return "\n".join([f"`{layout.record.__name__}`, {size}:", "", *rows])


def _config_files() -> str:
    rows = ["| file | written by | since | required keys | optional keys | lost with the file |",
            "|---|---|---|---|---|---|"]
    for file in CONFIG_FILES:
        required, optional = (", ".join(f"`{key}`" for key in keys) for keys in (file.required, file.optional))
        rows.append(f"| `{file.name}` | {file.keeper} | {file.since} | {required} | {optional} | {file.lost} |")
    return "\n".join(rows)


def _format_list() -> str:
    rows = ["| format | found in | read by |", "|---|---|---|"]
    rows += [f"| {entry.name} | {entry.found_in} | `{entry.module}` |" for entry in FORMATS]
    return "\n".join(rows).replace("<", "&lt;").replace(">", "&gt;")


if __name__ == "__main__":
    REFERENCE.write_text(render(REFERENCE.read_text()))
