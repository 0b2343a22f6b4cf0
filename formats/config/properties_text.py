"""Java properties text: broker.conf, and DLedger's checkpoint and currterm. Source: java.util.Properties."""

from __future__ import annotations

import re

from formats.basics import FormatError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_LINE_END = re.compile(r"\r\n|\r|\n")


def loads(data: bytes) -> dict[str, str]:
    r"""Return the pairs of a file, the last of equal keys; `FormatError("bad-escape")` at a broken \u.

    Text that is not UTF-8 is read as Latin-1, the encoding of java.util.Properties streams.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return dict(_pair(line) for line in _logical_lines(text))


def _logical_lines(text: str) -> list[str]:
    """Return lines without comments and blank lines; a line that ends in a backslash is joined with the next."""
    result: list[str] = []
    parts: list[str] = []
    for physical in _LINE_END.split(text):
        line = physical.lstrip(_BLANKS)
        if not parts and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        continued = slashes % 2 == 1
        parts.append(line[:-1] if continued else line)
        if not continued:
            result.append("".join(parts))
            parts = []
    return result + ["".join(parts)] * bool(parts)


def _pair(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    pieces = []
    position = 0
    while (slash := text.find("\\", position)) >= 0:
        pieces.append(text[position:slash])
        sign = text[slash + 1:slash + 2]
        position = slash + 2
        if sign == "u":
            match = _HEX.match(text, position)
            if match is None:
                raise FormatError("bad-escape", slash, f"broken escape in {text!r}")
            pieces.append(chr(int(match.group(), 16)))
            position = match.end()
        else:
            pieces.append(_ESCAPES.get(sign, sign))
    return "".join(pieces) + text[position:]
