"""The JSON dialect of a broker's config files, as fastjson 1.x and 2.x read it.

Extensions: integer (and plain word) keys without quotes, single quotes, comments, a comma before a closing bracket, a
byte order mark, and an object as a key (of a map of message queues), which becomes its compact text, members sorted. An
unquoted integer key becomes an `int`, so `{0:1}` and `{"0":1}` stay distinct; the last of equal
keys wins. Time is linear in the length, depth limited.
"""

from __future__ import annotations

import enum
import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Union

from msgspec import Struct

from formats.basics import FormatError

Json = Union[None, bool, int, float, str, "list[Json]", "dict[str | int, Json]"]

MAX_DEPTH = 64
_MAX_NUMBER = 400

_BOM = b"\xef\xbb\xbf"
_BLANKS = re.compile(rb"[ \t\r\n\f\b]*")
_WORD = re.compile(rb"[A-Za-z_$][A-Za-z0-9_$.]*")
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(rb"-?[0-9]+")
_PLAIN = {quote: re.compile(rb"[^\\" + quote + rb"]*") for quote in (b'"', b"'")}
_HEX = {b"u": re.compile(rb"[0-9a-fA-F]{4}"), b"x": re.compile(rb"[0-9a-fA-F]{2}")}
_ESCAPES = {b"b": "\b", b"t": "\t", b"n": "\n", b"f": "\f", b"r": "\r", b"v": "\v", b'"': '"', b"'": "'",
            b"\\": "\\", b"/": "/", **{b"%d" % digit: chr(digit) for digit in range(8)}}
_LITERALS: dict[bytes, Json] = {b"true": True, b"false": False, b"null": None, b"undefined": None, b"NaN": None}
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_MEMBER = re.compile(
    rb'[ \t\r\n]*(?:"([^"\\]*)"|(-?[0-9]{1,18}))[ \t\r\n]*:'
    rb'[ \t\r\n]*(?:"([^"\\]*)"|(-?[0-9]{1,18})|(true|false|null))[ \t\r\n]*(?:,|(?=\}))'
)
"""A member of the usual form, including the comma after it, matched at once: ten thousand topics have ninety
thousand."""


class Parsed(Struct, frozen=True):
    """The content of a config file.

    `end`: byte offset just after the value (or where reading stopped, with an `error`).
    `trailing`: "" if only blanks follow; "zeros" for bytes of value 0; "garbage" for anything else.
    `error`: set by `salvage` only; `value` then holds what is complete before it.
    `odd`: it begins with a byte order mark, or has single quotes or words as keys, which not every release reads.
    """

    value: Json
    end: int
    trailing: str = ""
    error: FormatError | None = None
    odd: bool = False


def loads(data: bytes) -> Json:
    """Return the value of a whole file. `FormatError` with the byte offset in `offset`, reasons:

    empty, zero-filled, truncated, trailing-garbage, unexpected-character, bad-number, bad-escape, too-deep.
    """
    parsed = salvage(data)
    if parsed.error is not None:
        raise parsed.error
    if parsed.trailing == "garbage":
        raise FormatError("trailing-garbage", parsed.end, f"more text after the value at byte {parsed.end}",
                          end=parsed.end, length=len(data))
    return parsed.value


def salvage(data: bytes) -> Parsed:
    """Return what can be read before the first error; never raises. A string or number cut short is left out."""
    reader = _Reader(data)
    try:
        reader.document()
    except FormatError as error:
        return Parsed(reader.root[0] if reader.root else None, error.offset, "", error)
    rest = data[reader.position:].strip(b" \t\r\n\f\b")
    trailing = "" if not rest else "garbage" if rest.strip(b"\0") else "zeros"
    return Parsed(reader.root[0], reader.position, trailing, odd=reader.odd)


class _Reader:
    """Recursive descent over bytes. A container is attached to its parent before it is filled, for `salvage`."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        # 4.9.7 does not load a text with a mark, 5.5.0 none with single quotes or words as keys
        self.odd = data.startswith(_BOM)
        self.position = len(_BOM) if self.odd else 0
        self.root: list[Json] = []

    def document(self) -> None:
        if not self.data.strip(b"\0"):
            reason = "zero-filled" if self.data else "empty"
            raise FormatError(reason, 0, "the file holds no text", length=len(self.data))
        self.blanks()
        if self.position >= len(self.data):
            raise FormatError("empty", 0, "the file holds nothing but blanks", length=len(self.data))
        self.value(self.root.append, 0)

    def value(self, put: Callable[[Json], None], depth: int) -> None:
        first = self.peek()
        if first in (b"{", b"["):
            if depth == MAX_DEPTH:
                raise FormatError("too-deep", self.position, f"nested deeper than {MAX_DEPTH} levels", limit=MAX_DEPTH)
            self.position += 1
            if first == b"{":
                members: dict[str | int, Json] = {}
                put(members)
                self.members(members, depth + 1)
            else:
                items: list[Json] = []
                put(items)
                self.items(items, depth + 1)
        elif first in _PLAIN:
            put(self.string(first))
        elif first == b"-" or first.isdigit():
            put(self.number(nested=depth > 0))
        else:
            put(self.literal())

    def members(self, members: dict[str | int, Json], depth: int) -> None:
        while True:
            while match := _PLAIN_MEMBER.match(self.data, self.position):
                name, number, text, value, word = match.groups()
                own = int(number) if name is None else name.decode("utf-8", "replace")
                members[own] = (text.decode("utf-8", "replace") if text is not None
                                else _LITERALS[word] if value is None else int(value))
                self.position = match.end()
            if self.closed_by(b"}"):
                return
            key = self.key(depth)
            self.expect(b":")
            self.value(functools.partial(members.__setitem__, key), depth)
            self.comma_or(b"}")

    def items(self, items: list[Json], depth: int) -> None:
        while not self.closed_by(b"]"):
            self.value(items.append, depth)
            self.comma_or(b"]")

    def key(self, depth: int) -> str | int:
        first = self.peek()
        if first in _PLAIN:
            return self.string(first)
        if first == b"{":
            found: list[Json] = []
            self.value(found.append, depth)
            return json.dumps(found[0], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if match := _INTEGER.match(self.data, self.position):
            return int(self.bounded(match))
        if match := _WORD.match(self.data, self.position):
            self.position, self.odd = match.end(), True
            return match.group().decode("ascii")
        raise self.unexpected()

    def string(self, quote: bytes) -> str:
        start = self.position
        pieces: list[str] = []
        self.position += 1
        self.odd |= quote == b"'"
        while True:
            match = _PLAIN[quote].match(self.data, self.position)
            if match is None or match.end() == len(self.data):
                raise self.truncated(start)
            pieces.append(match.group().decode("utf-8", "replace"))
            self.position = match.end() + 1
            if self.data[match.end():self.position] == quote:
                break
            pieces.append(self.escape(start))
        whole = "".join(pieces)
        if _SURROGATE.search(whole):
            # Java joins a surrogate pair to one character; a lone half would make printing fail
            whole = whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return whole

    def escape(self, start: int) -> str:
        """Return the character for an escape whose backslash has been consumed."""
        kind = self.data[self.position:self.position + 1]
        self.position += 1
        if kind in _HEX:
            match = _HEX[kind].match(self.data, self.position)
            if match is not None:
                self.position = match.end()
                return chr(int(match.group(), 16))
            if len(self.data) - self.position < len("FFFF"):
                raise self.truncated(start)
        elif kind in _ESCAPES:
            return _ESCAPES[kind]
        elif not kind:
            raise self.truncated(start)
        raise FormatError("bad-escape", self.position - 2, f"unknown escape at byte {self.position - 2}")

    def number(self, *, nested: bool) -> int | float:
        start = self.position
        match = _NUMBER.match(self.data, start)
        if match is None:
            raise self.unexpected(start + 1)
        if nested and match.end() == len(self.data):
            raise self.truncated(start)
        raw = self.bounded(match)
        if match.group(1) is None and match.group(2) is None:
            return int(raw)
        value = float(raw)
        if math.isinf(value):
            raise FormatError("bad-number", start, f"number out of range at byte {start}")
        return value

    def bounded(self, match: re.Match[bytes]) -> bytes:
        if match.end() - match.start() > _MAX_NUMBER:
            raise FormatError("bad-number", match.start(), f"a number of more than {_MAX_NUMBER} digits")
        self.position = match.end()
        return match.group()

    def literal(self) -> Json:
        match = _WORD.match(self.data, self.position)
        if match is None:
            raise self.unexpected()
        if match.end() == len(self.data) and any(w.startswith(match.group()) and w != match.group() for w in _LITERALS):
            raise self.truncated(self.position)
        if match.group() not in _LITERALS:
            raise self.unexpected()
        self.position = match.end()
        return _LITERALS[match.group()]

    def closed_by(self, bracket: bytes) -> bool:
        self.blanks()
        if self.peek() != bracket:
            return False
        self.position += 1
        return True

    def comma_or(self, bracket: bytes) -> None:
        self.blanks()
        if self.peek() == b",":
            self.position += 1
        elif self.peek() != bracket:
            raise self.unexpected()

    def expect(self, sign: bytes) -> None:
        self.blanks()
        if self.peek() != sign:
            raise self.unexpected()
        self.position += 1
        self.blanks()

    def peek(self) -> bytes:
        byte = self.data[self.position:self.position + 1]
        if not byte:
            raise self.truncated(self.position)
        return byte

    def blanks(self) -> None:
        while True:
            match = _BLANKS.match(self.data, self.position)
            self.position = match.end() if match else self.position
            opening = self.data[self.position:self.position + 2]
            if opening not in (b"//", b"/*"):
                return
            closing = b"\n" if opening == b"//" else b"*/"
            found = self.data.find(closing, self.position + 2)
            if found < 0:
                raise self.truncated(self.position)
            self.position = found + len(closing)

    def unexpected(self, position: int | None = None) -> FormatError:
        at = self.position if position is None else position
        if at >= len(self.data):
            return self.truncated(at)
        if self.data[at] == 0 and not self.data[at:].strip(b"\0"):
            return self.truncated(at, zeros=len(self.data) - at)
        found = self.data[at:at + 1]
        return FormatError("unexpected-character", at, f"unexpected {found!r} at byte {at}", found=found)

    def truncated(self, position: int, zeros: int = 0) -> FormatError:
        what = "turns into zeros" if zeros else "ends"
        return FormatError("truncated", position, f"the text {what} within a value, at byte {position}",
                           length=len(self.data), zeros=zeros)


# --- Config text as brokers write it, so that an edited file differs only where it was edited.


class Style(enum.Enum):
    """The layout of a file.

    FASTJSON1 (brokers up to 5.3.x): tabs, but members with unquoted keys share a line, and so do the items of sets and
    arrays. FASTJSON2 (5.4.0 on): tabs throughout. COMPACT: one line (timermetrics, transactionMetrics).
    """

    FASTJSON1 = 1
    FASTJSON2 = 2
    COMPACT = 3


_EXPANDED_BY_2 = re.compile(rb"""\{\n\t*-?[0-9]|\[\n\t*["0-9-]""")

_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_TO_ESCAPE = re.compile("[\x00-\x1f\"\\\\\x7f-\x9f\u2028\u2029]")


def detect_style(data: bytes) -> Style:
    """Return the style of a file; the older one if two styles give the same text."""
    if b"\n" not in data:
        return Style.COMPACT
    return Style.FASTJSON2 if _EXPANDED_BY_2.search(data) else Style.FASTJSON1


def dumps(value: Json, style: Style = Style.FASTJSON1) -> bytes:
    """Return the text of a config file in UTF-8, without a final line end, like a broker's.

    `int` keys are written unquoted. FASTJSON1 puts lists of plain values on one line, as fastjson does with sets and
    arrays, the only lists in the files that matter here.
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
