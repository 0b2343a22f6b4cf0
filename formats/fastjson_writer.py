"""Config text as brokers write it, so that an edited file differs only where it was edited."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

from formats.fastjson import Json


class Style(enum.Enum):
    """How a file is laid out.

    FASTJSON1 (brokers up to 5.3.x): tabs, but members with unquoted keys follow each other on one
    line, and so do the items of sets and arrays. FASTJSON2 (5.4.0 on): tabs throughout. COMPACT:
    one line (timermetrics, transactionMetrics).
    """

    FASTJSON1 = 1
    FASTJSON2 = 2
    COMPACT = 3


_EXPANDED_BY_2 = re.compile(rb"""\{\n\t*-?[0-9]|\[\n\t*["0-9-]""")

_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_TO_ESCAPE = re.compile("[\x00-\x1f\"\\\\\x7f-\x9f\u2028\u2029]")


def detect_style(data: bytes) -> Style:
    """The style of a file; where two styles give the same text, the older one."""
    if b"\n" not in data:
        return Style.COMPACT
    return Style.FASTJSON2 if _EXPANDED_BY_2.search(data) else Style.FASTJSON1


def dumps(value: Json, style: Style = Style.FASTJSON1) -> bytes:
    """The text of a config file, UTF-8, without a line end at the end, like a broker's.

    `int` keys are written unquoted. Lists of plain values: FASTJSON1 puts them on one line, as
    fastjson does with sets and arrays, the only ones in the files that matter here.
    """
    return "".join(_value(value, style, 0)).encode("utf-8", "replace")


def _value(value: Json, style: Style, indent: int) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _members(value, style, indent)
    elif isinstance(value, list):
        yield from _items(value, style, indent)
    elif isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, bool):
        yield "true" if value else "false"
    else:
        yield "null" if value is None else repr(value)


def _members(members: dict[str | int, Json], style: Style, indent: int) -> Iterator[str]:
    if not members:
        yield "{}"
        return
    yield "{"
    for number, (key, value) in enumerate(members.items()):
        if number:
            yield ","
        if style is Style.FASTJSON2 or (style is Style.FASTJSON1 and isinstance(key, str)):
            yield _line(indent + 1)
        yield (_quoted(key) if isinstance(key, str) else str(key)) + ":"
        yield from _value(value, style, indent + 1)
    yield ("" if style is Style.COMPACT else _line(indent)) + "}"


def _items(items: list[Json], style: Style, indent: int) -> Iterator[str]:
    if not items:
        yield "[]"
        return
    plain = not any(isinstance(item, (dict, list)) for item in items)
    one_line = style is Style.COMPACT or (style is Style.FASTJSON1 and plain)
    yield "["
    for number, item in enumerate(items):
        if number:
            yield ","
        if not one_line:
            yield _line(indent + 1)
        yield from _value(item, style, indent + 1)
    yield ("" if one_line else _line(indent)) + "]"


def _line(indent: int) -> str:
    return "\n" + "\t" * indent


def _quoted(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(lambda m: _SHORT.get(m.group(), f"\\u{ord(m.group()):04X}"), text) + '"'
