"""How values look on a screen: untrusted names made harmless, sizes, times, counts."""

from __future__ import annotations

import unicodedata
from datetime import datetime

from recover.findings.model import count as count

# Categories that move the cursor, hide or reorder text: controls, formats (bidi overrides, zero
# width), surrogates, line and paragraph separators.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def clean(value: object, limit: int = 0) -> str:
    """Text of a name from a store or a path that cannot drive the terminal: control, format and separator characters
    and bytes that are not UTF-8 become visible escapes. `limit` > 0: so many characters, the last an ellipsis."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, (bytes, bytearray)) else str(value)
    if not (text.isascii() and text.isprintable()):
        text = "".join(_escape(char) if unicodedata.category(char) in _HARMFUL else char for char in text)
    if limit and len(text) > limit:
        return text[: limit - 1] + "…"
    return text


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def human_size(size: int) -> str:
    """Bytes as a person reads them: `20 B`, `1.0 MiB`."""
    amount = float(size)
    if abs(amount) < 1024:
        return f"{size} B"
    for unit in _UNITS:
        amount /= 1024
        if abs(amount) < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount:.1f} {_UNITS[-1]}"


def exact_size(size: int) -> str:
    """Bytes both ways: `1,048,576 (1.0 MiB)`."""
    return f"{size:,} ({human_size(size)})" if abs(size) >= 1024 else f"{size:,}"


def human_time(milliseconds: int) -> str:
    """A store timestamp in local time with its zone; what no calendar holds stays a number."""
    if milliseconds <= 0:
        return "never" if milliseconds == 0 else str(milliseconds)
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return moment.isoformat(" ", "milliseconds")


def human_seconds(seconds: float) -> str:
    """A duration: `0.4 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
