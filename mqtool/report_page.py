"""The page of `mqtool report`: sections of tables, words and drawings, as HTML or as Markdown.

All that comes from a store is hostile: control characters become visible escapes, HTML is escaped by the template
engine for every value, Markdown by `_plain`. The page holds no script and fetches nothing, and its
policy allows neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.shown import Shown, Text
from mqtool.text import clean, count, human_seconds, human_size, human_time

if TYPE_CHECKING:
    from recover.evidence.traffic import Stretch, Traffic

WIDTH = 960
_LABEL, _NOTE = 230, 150
_FIELD = WIDTH - _LABEL - _NOTE
_ROW = 16
_LEAST = 3.0
_SHORT = 30
_CELLS = 48
_MARKS = re.compile(r"([\\`*_\[\]|~$#])")
_STYLES = {"red": "bad", "yellow": "warn", "green": "good", "dim": "dim", "bold": "command"}


class Rect(NamedTuple):
    """A rectangle of a drawing: `kind` is its class, `title` what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""
    shade: float = 1.0


class Word(NamedTuple):
    """Words of a drawing at their base line; `anchor` is start or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    kind: str = ""


class Drawing(NamedTuple):
    """A picture, what it shows in words, and the same as lines of text, which `key` explains."""

    label: str
    key: str
    height: float
    rects: list[Rect]
    words: list[Word]
    lines: list[str]


class Section(NamedTuple):
    """A heading, a note, and what stands under it: `Shown` or `Drawing`."""

    title: str
    note: str
    things: Sequence[Any]


class Page(NamedTuple):
    """All of it: `sentence` is what happened, `cards` the three answers, `facts` who looked, with what, when."""

    title: str
    sentence: str
    level: str
    cards: list[Section]
    sections: list[Section]
    facts: list[tuple[str, str]]


# --- drawings ------------------------------------------------------------------------------------


def log_drawing(stretches: Sequence[Stretch]) -> Drawing:
    """The log, a row for each file or stretch of files: what is intact, damaged, missing, and not used yet."""
    rects, words, lines = [], [], []
    for number, item in enumerate(stretches):
        y, size = number * _ROW, max(1, item.stop - item.start)
        name = f"{item.start:020d}" + (f" ({item.files} files)" if item.files > 1 else "")
        used = max(0, item.end - item.start)
        title = f"{name}: records end at {item.end:,}" if used < size else name
        rects.append(Rect(_LABEL, y + 2, _FIELD, _ROW - 4, "free", title))
        if used:
            rects.append(Rect(_LABEL, y + 2, _FIELD * used / size, _ROW - 4, "intact", title))
        cells = ["#" if (at + 0.5) * size < used * _CELLS else "." for at in range(_CELLS)]
        for start, stop, reason in item.damaged:
            kind = "missing" if reason == "missing-file" else "damage"
            width = max(_LEAST, _FIELD * (stop - start) / size)
            x = min(_LABEL + _FIELD * (start - item.start) / size, _LABEL + _FIELD - width)
            rects.append(Rect(x, y + 1, width, _ROW - 2, kind, f"{start:,} to {stop:,}: {reason}"))
            first = (start - item.start) * _CELLS // size
            for at in range(first, max(first + 1, (stop - item.start) * _CELLS // size)):
                cells[min(at, _CELLS - 1)] = "?" if kind == "missing" else "X"
        words.append(Word(_LABEL - 8, y + 12, name, "end"))
        bad = sum(stop - start for start, stop, _ in item.damaged)
        words.append(Word(_LABEL + _FIELD + 8, y + 12, f"{human_size(bad)} damaged" if bad else "", kind="bad"))
        lines.append(f"{name:>30}  {''.join(cells)}")
    label = "The log by file: records, damage (red), missing files (dashed), room that is not used yet (grey)"
    key = "# records, X damaged, ? missing, . not used yet"
    return Drawing(label, key, max(1, len(stretches)) * _ROW, rects, words, lines)


def queue_drawing(found: Traffic) -> Drawing:
    """Queues over time: the more messages the darker, and where messages are lost."""
    rects, words, lines = [], [], []
    for number, queue in enumerate(found.queues):
        y, width = number * _ROW, _FIELD / len(queue.messages)
        most = max([1, *queue.messages])
        name = f"{clean(queue.topic)}/{queue.queue}"
        words.append(Word(_LABEL - 8, y + 12, name if len(name) <= _SHORT else f"{name[: _SHORT - 1]}…", "end"))
        marks = ""
        for at, (held, lost) in enumerate(zip(queue.messages, queue.lost, strict=True)):
            when = human_time(found.begin + at * found.step)
            if lost:
                rects.append(Rect(_LABEL + at * width, y + 1, max(_LEAST, width - 1), _ROW - 2, "damage",
                                  f"{name}, from {when}: {count(lost, 'message')} lost, {held:,} intact"))
            elif held:
                title, shade = f"{name}, from {when}: {count(held, 'message')}", round(0.25 + 0.75 * held / most, 2)
                rects.append(Rect(_LABEL + at * width, y + 2, width - 1, _ROW - 4, "intact", title, shade))
            marks += "X" if lost else "#" if held * 2 > most else "+" if held else "."
        bad = [f"{number:,} {what}" for number, what in (
            (sum(queue.lost), "lost"), (queue.missing, "missing"), (queue.wrong, "wrong")) if number]
        note = ", ".join(bad) or f"{sum(queue.messages):,}"
        words.append(Word(_LABEL + _FIELD + 8, y + 12, note, kind="bad" if bad else "dim"))
        lines.append(f"{name:>40}  {marks}  {note}")
    y = len(found.queues) * _ROW
    words += _axis(found, y)
    label = f"Queues over time: the more messages the darker, lost ones red; {_span(found)}"
    return Drawing(label, "# many messages, + some, . none, X lost", y + 20, rects, words, lines)


def traffic_drawing(found: Traffic) -> Drawing:
    """Messages of the whole log over time."""
    height, most = 90.0, max([1, *found.messages])
    width = _FIELD / len(found.messages)
    rects, blocks = [], ""
    for at, (held, size) in enumerate(zip(found.messages, found.sizes, strict=True)):
        tall = max(1.0, height * held / most) if held else 0.0
        blocks += " ▁▂▃▄▅▆▇█"[-(-8 * held // most)]
        if tall:
            rects.append(Rect(_LABEL + at * width, height - tall + 4, width - 1, tall, "intact",
                              f"from {human_time(found.begin + at * found.step)}: {count(held, 'message')}, "
                              f"{human_size(size)}"))
    words = [Word(_LABEL - 8, 14, f"{most:,} messages", "end"), *_axis(found, height + 4)]
    step = f"{found.step} ms" if found.step < 1000 else human_seconds(found.step / 1000)
    label = f"Messages over time, at most {most:,} in {step}; {_span(found)}"
    return Drawing(label, "", height + 24, rects, words, [blocks])


def _axis(found: Traffic, y: float) -> list[Word]:
    if not sum(found.messages):
        return []
    end = found.begin + found.step * len(found.messages)
    return [Word(_LABEL, y + 14, human_time(found.begin), kind="dim"),
            Word(_LABEL + _FIELD, y + 14, human_time(end), "end", "dim")]


def _span(found: Traffic) -> str:
    if not sum(found.messages):
        return "no message"
    return f"{human_time(found.begin)} to {human_time(found.begin + found.step * len(found.messages))}"


# --- cells ---------------------------------------------------------------------------------------


def _class(style: str) -> str:
    return next((name for word, name in _STYLES.items() if word in style), "")


def _cell(value: object) -> list[tuple[str, str]]:
    """A value of a table as (words, class) parts."""
    if isinstance(value, Text):
        return [(value.words, _class(value.style)), *((words, _class(style)) for words, style in value.more)]
    if value is None:
        return [("-", "dim")]
    if isinstance(value, bool):
        return [("yes" if value else "no", "")]
    return [(f"{value:,}" if isinstance(value, int) else str(value), "")]


class _Grid(NamedTuple):
    """A table as the templates take it: (name, right-aligned) columns and rows of cells."""

    title: str
    columns: list[tuple[str, bool]]
    rows: list[list[list[tuple[str, str]]]]


def _ready(thing: Shown | Drawing) -> tuple[str, Any]:
    if isinstance(thing, Drawing):
        return "drawing", thing
    if isinstance(thing, Text):
        return "text", _cell(thing)
    columns = [(name.lstrip(">*"), name.startswith(">")) for name in thing.columns]
    rows = [[_cell(value) for value in row] for row in thing.rows]
    return "table", _Grid(thing.title, columns or [("", False), ("", False)], rows)


def _harmless(value: object) -> object:
    """What a template puts out: text of a store without what drives terminals or turns writing around."""
    from markupsafe import Markup

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "\n".join(clean(line) for line in value.split("\n"))


def _plain(value: object) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, one line."""
    text = clean(str(value).replace("\n", " "))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKS.sub(r"\\\1", text).replace("://", ":&#47;/").replace("@", "&#64;")


def render(page: Page, kind: str) -> str:
    """The page as `html` or `md`."""
    import jinja2

    loader = jinja2.PackageLoader("mqtool", "templates")
    engine = jinja2.Environment(loader=loader, autoescape=kind == "html", undefined=jinja2.StrictUndefined,
                                finalize=_harmless, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    engine.filters["plain"] = _plain
    ready = [[section._replace(things=[_ready(thing) for thing in section.things]) for section in sections]
             for sections in (page.cards, page.sections)]
    return engine.get_template(f"report.{kind}.j2").render(page=page, cards=ready[0], sections=ready[1], width=WIDTH)
