"""The page of `mqtool report`: sections of tables, text and drawings, as HTML or as Markdown.

Everything from a store is hostile: control characters become visible escapes, HTML is escaped by the template
engine for every value, Markdown by `_plain`. The page has no script and fetches nothing, and its policy allows
neither.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jinja2

from mqtool.printer import Shown, Text, cell
from mqtool.text import clean, count, human_seconds, human_size, human_time
from mqtool.words import N_, _, language, listed
from recover.reading.traffic import Stretch, Traffic

_MARKS = re.compile(r"([\\`*_\[\]|~$#])")
_STYLES = {"red": "bad", "yellow": "warn", "green": "good", "dim": "dim", "bold": "command"}
_CELLS = 48
_NAME = 40
_BLOCKS = " ▁▂▃▄▅▆▇█"


class Mark(NamedTuple):
    """A range of a row of a drawing, as fractions of its width: `kind` is its class, `title` explains it."""

    start: float
    stop: float
    kind: str
    title: str
    shade: float = 1.0


class Row(NamedTuple):
    """A row of a drawing."""

    name: str
    marks: list[Mark]
    note: str = ""
    bad: bool = False


class Drawing(NamedTuple):
    """A picture: its description, its rows, first and last value of its axis; `key` explains the text form.

    With `bars` the shade of a mark is its height.
    """

    label: str
    key: str
    rows: list[Row]
    axis: tuple[str, str] | None = None
    bars: bool = False

    @property
    def lines(self) -> list[str]:
        return [f"{row.name[:_NAME]:>{_NAME}}  {self._cells(row)}  {row.note}".rstrip() for row in self.rows]

    def _cells(self, row: Row) -> str:
        cells = [" " if self.bars else "."] * _CELLS
        for mark in row.marks:
            char = {"damage": "X", "missing": "?", "free": "."}.get(mark.kind, "#" if mark.shade > 0.6 else "+")
            if self.bars:
                char = _BLOCKS[math.ceil(8 * mark.shade)]
            first = min(round(mark.start * _CELLS), _CELLS - 1)
            for at in range(first, max(first + 1, round(mark.stop * _CELLS))):
                cells[at] = char
        return "".join(cells)


class Section(NamedTuple):
    """A heading, a note, and the content below: `Shown` or `Drawing`."""

    title: str
    note: str
    things: Sequence[Shown | Drawing]


class Page(NamedTuple):
    """The page: `sentence` is what happened, `cards` the three answers, `facts` by whom, with what and when it was
    made."""

    title: str
    sentence: str
    level: str
    cards: list[Section]
    sections: list[Section]
    facts: list[tuple[str, str]]


# --- drawings ------------------------------------------------------------------------------------


def log_drawing(stretches: Sequence[Stretch]) -> Drawing:
    """The log, one row per file or range of files: intact, damaged, missing and unused parts."""
    rows = []
    for item in stretches:
        size = max(1, item.stop - item.start)
        name = f"{item.start:020d}"
        if item.files > 1:
            name += _(" ({files})").format(files=count(item.files, "file"))
        used = max(0, item.end - item.start) / size
        title = _("{file}: records end at {end:,}").format(file=name, end=item.end) if used < 1 else name
        marks = [Mark(0, 1, "free", title)] + ([Mark(0, min(used, 1), "intact", title)] if used else [])
        marks += [Mark((start - item.start) / size, (stop - item.start) / size,
                       "missing" if reason == "missing-file" else "damage",
                       _("{first:,} to {last:,}: {reason}").format(first=start, last=stop, reason=reason))
                  for start, stop, reason in item.damaged]
        bad = sum(stop - start for start, stop, _ in item.damaged)
        rows.append(Row(name, marks, _("{size} damaged").format(size=human_size(bad)) if bad else "", bool(bad)))
    return Drawing(
        _("The log by file: records, damage (red), missing files (dashed), space that is not used yet (grey)"),
        _("# records, X damaged, ? missing, . not used yet"), rows)


def queue_drawing(found: Traffic) -> Drawing:
    """Queues over time: the more messages the darker, and where messages are lost."""
    rows = []
    for queue in found.queues:
        steps, most, marks = len(queue.messages), max([1, *queue.messages]), []
        name = f"{clean(queue.topic)}/{queue.queue}"
        for at, (held, lost) in enumerate(zip(queue.messages, queue.lost, strict=True)):
            since = _("{queue}, from {time}: ").format(queue=name, time=human_time(found.begin + at * found.step))
            where = at / steps, (at + 1) / steps
            if lost:
                marks.append(Mark(*where, "damage", since + _("{messages} lost, {n:,} intact").format(
                    messages=count(lost, "message"), n=held)))
            elif held:
                shade = round(0.25 + 0.75 * held / most, 2)
                marks.append(Mark(*where, "intact", since + count(held, "message"), shade))
        bad = [_(text).format(n=number) for number, text in (
            (sum(queue.lost), N_("{n:,} lost")), (queue.missing, N_("{n:,} missing")), (queue.wrong, N_("{n:,} wrong")),
        ) if number]
        rows.append(Row(name, marks, listed(bad) or f"{sum(queue.messages):,}", bool(bad)))
    label = _("Queues over time: the more messages the darker, lost ones red; {span}").format(span=span(found))
    return Drawing(label, _("# many messages, + some, . none, X lost"), rows, _axis(found))


def traffic_drawing(found: Traffic) -> Drawing:
    steps, most = len(found.messages), max([1, *found.messages])
    marks = [Mark(at / steps, (at + 1) / steps, "intact", _("from {time}: {messages}, {size}").format(
        time=human_time(found.begin + at * found.step), messages=count(held, "message"), size=human_size(size)),
        held / most)
             for at, (held, size) in enumerate(zip(found.messages, found.sizes, strict=True)) if held]
    step = f"{found.step} ms" if found.step < 1000 else human_seconds(found.step / 1000)
    label = _("Messages over time, at most {most:,} in {step}; {span}").format(most=most, step=step, span=span(found))
    return Drawing(label, "", [Row(count(most, "message"), marks)], _axis(found), bars=True)


def _axis(found: Traffic) -> tuple[str, str] | None:
    end = found.begin + found.step * len(found.messages)
    return (human_time(found.begin), human_time(end)) if sum(found.messages) else None


def span(found: Traffic) -> str:
    return _(" to ").join(_axis(found) or (_("no message"),))


# --- rendering -----------------------------------------------------------------------------------


def _words(value: object) -> list[tuple[str, str]]:
    """A value as (text, class) parts."""
    if isinstance(value, str):
        return [(value, "")]
    value = cell(value)
    edges = sorted({0, len(value), *(at for span in value.spans for at in span[:2])})
    return [(value.plain[start:stop], _class(next((str(span.style) for span in value.spans
                                                   if span.start <= start < span.end), str(value.style))))
            for start, stop in pairwise(edges)]


def _class(style: str) -> str:
    return next((name for word, name in _STYLES.items() if word in style), "")


def _ready(thing: Shown | Drawing) -> tuple[str, Any]:
    if isinstance(thing, Drawing):
        return "drawing", thing
    if isinstance(thing, Text):
        return "text", _words(thing)
    # of columns the name and whether it is right-aligned
    columns = [(_(name.lstrip(">*")), name.startswith(">")) for name in thing.columns or ("", "")]
    return "table", {"title": _(thing.title), "columns": columns,
                     "rows": [[_words(value) for value in row] for row in thing.rows]}


def _harmless(value: object) -> object:
    """Text of a store without characters that control terminals or reorder text; applied to all template output."""
    if hasattr(value, "__html__") or not isinstance(value, str):
        return value
    return "\n".join(clean(line) for line in value.split("\n"))


def _plain(value: object) -> str:
    text = clean(str(value).replace("\n", " "))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", text).replace("://", ":&#47;/").replace("@", "&#64;")


def render(page: Page, kind: str) -> str:
    """Render the page as `html` or `md`."""
    loader = jinja2.PackageLoader("mqtool", "templates")
    engine = jinja2.Environment(loader=loader, autoescape=kind == "html", undefined=jinja2.StrictUndefined,
                                finalize=_harmless, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    engine.filters["plain"] = _plain
    cards, sections = ([(section.title, section.note, [_ready(thing) for thing in section.things]) for section in each]
                       for each in (page.cards, page.sections))
    return engine.get_template(f"report.{kind}.j2").render(
        page=page, cards=cards, sections=sections, language=language().replace("_", "-"), colon=_(": "))
