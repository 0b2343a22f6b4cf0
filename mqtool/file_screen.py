"""The screen of `mqtool inspect FILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqtool import exits
from mqtool.fields import body_text, field_text, hex_dump, time_of
from mqtool.next_steps import Step
from mqtool.screens import facts, table
from mqtool.shown import Text
from mqtool.text import clean, count, exact_size, human_time

if TYPE_CHECKING:
    from mqtool.output import Printer
    from recover.look.record import Check, FileReport, Item

_MARKS = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("-", "dim")}


def show_file(out: Printer, report: FileReport, *, chosen: bool, hexadecimal: bool) -> int:
    """Show a file; `chosen` says that the user named the offset. Returns the exit bits."""
    out.answer(**report.json())
    pairs: list[tuple[str, object]] = [("file", report.path), ("kind", f"{report.title} (by {report.why})"),
                                       ("length", exact_size(report.length))]
    if report.base is not None:
        pairs.append(("starts at", f"{report.base:,}"))
    pairs += [(name.replace("_", " "), _fact(value)) for name, value in report.facts.items()]
    out.show(facts("", pairs))
    if len(report.items) == 1 or chosen:
        for item in report.items:
            _detail(out, item)
    elif report.items:
        if report.items[0].kind == "header":
            _detail(out, report.items[0])
        out.show(Text(""), _list(report, [item for item in report.items if item.kind != "header"]))
    if hexadecimal:
        for item in report.items:
            cut = f", the first {len(item.raw)} bytes" if len(item.raw) < item.size else ""
            out.show(Text(f"\n{item.kind} at {item.offset:,}{cut}", style="bold"))
            out.show(Text(hex_dump(item.raw, item.offset)))
    bad = [item for item in report.items if not item.ok]
    misplaced = chosen and bool(bad) and bad[0] is report.items[0] and not _stands_here(bad[0])
    steps = [] if report.complete else [
        Step(out.given.line("inspect", "--offset", report.next_offset, "--limit", "20"), "the items after these")]
    at_damage = chosen and bool(bad) and bad[0] is report.items[0]
    out.summary(_misplaced(report) if at_damage else _summary(report, bad), steps)
    return _bits(report, bad[1:] if misplaced else bad)


def _stands_here(item: Item) -> bool:
    """Whether an item is what its place says, and not the inside of something, at which the user pointed."""
    own = [check.ok for check in item.checks if check.name == "own offset"]
    return item.kind != "damage" or own == [True]


def _bits(report: FileReport, bad: list[Item]) -> int:
    """A record that nobody can read, and damage with one after it, cost messages; after the last it may be a tail."""
    bits = 0
    for item in bad:
        goes_on = item.kind == "damage" and item.offset + item.size < report.length
        lost = report.kind == "commitlog" and (item.kind == "record" or goes_on)
        bits |= exits.MESSAGES if lost else exits.DERIVED
    return bits


def _summary(report: FileReport, bad: list[Item]) -> str:
    shown = count(len(report.items), "item") if report.items else "looked at"
    wrong = f", {len(bad)} not as it should be: {', '.join(sorted(set(map(_what, bad))))}"
    return f"{report.title}: {shown}{wrong if bad else ', nothing wrong with what is shown'}"


def _what(item: Item) -> str:
    return item.reason or ", ".join(check.name for check in item.checks if check.ok is False)


def _misplaced(report: FileReport) -> str:
    first = report.items[0]
    if first.kind != "damage":
        return _summary(report, [first])
    end = first.offset + first.size
    behind = f"the next one stands at {end:,}" if end < report.length else "and none follows in this file"
    return f"{report.title}: no intact record starts at {first.offset:,} ({first.reason}); {behind}"


def _fact(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) if isinstance(value, int) else value


def _list(report: FileReport, items: list[Item]) -> Any:
    if report.kind in ("commitlog", "compaction-log"):
        columns = [">at", ">offset", ">size", "what", "topic", ">queue", ">queue offset", "stored", "*body"]
        return table("", columns, (_record_row(item) for item in items))
    names = [field.name for field in max(items, key=lambda item: len(item.fields)).fields
             if field.name not in ("reserved",)]
    columns = [">at", "what", ">number", *(">" + name.replace("_", " ") for name in names)]
    return table("", columns, (_unit_row(item, names) for item in items))


def _record_row(item: Item) -> list[object]:
    what = Text(item.kind if item.ok else f"{item.kind}: {item.reason or _failed(item)}",
                style="" if item.ok else "bold red")
    if item.kind != "record":
        return [item.offset, item.number, item.size, what, *[Text("")] * 5]
    return [item.offset, item.number, item.size, what, item.value("topic"), item.value("queue_id"),
            item.value("queue_offset"), human_time(item.value("store_timestamp")), body_text(item.value("body"), 30)]


def _unit_row(item: Item, names: list[str]) -> list[object]:
    kind = item.kind if item.ok else f"{item.kind}: {item.reason or _failed(item)}"
    if item.kind == "zeros":
        kind = f"zeros to {item.offset + item.size:,}"
    values = {field.name: field for field in item.fields}
    cells: list[object] = [item.offset, Text(kind, style="" if item.ok else "bold red"), item.number]
    for name in names:
        field = values.get(name)
        stamp = None if field is None else time_of(field)
        cells.append(Text("") if field is None else field_text(field) if stamp is None else human_time(stamp))
    return cells


def _failed(item: Item) -> str:
    return ", ".join(check.name for check in item.checks if check.ok is False)


def _detail(out: Printer, item: Item) -> None:
    verdict = "" if item.ok else f": {item.reason or _failed(item)}"
    where = f" (log offset {item.number:,})" if item.number is not None else ""
    out.show(Text(f"\n{item.kind} at {item.offset:,}{where}, {exact_size(item.size)} bytes{verdict}",
                  style="bold" if item.ok else "bold red"))
    if item.fields:
        rows = [(field.offset, field.size, field.name, Text(field_text(field)), field.note) for field in item.fields]
        out.show(table("", [">at", ">bytes", "field", "*value", "*meaning"], rows))
    if item.checks:
        out.show(table("", ["check", "verdict", "*detail"], (_check_row(check) for check in item.checks)))


def _check_row(check: Check) -> list[object]:
    word, style = _MARKS[check.ok]
    return [check.name, Text(word, style=style), clean(check.detail)]
