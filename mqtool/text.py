"""Formatting of values for screens: untrusted names made harmless, sizes, times, counts, bodies, properties, flags."""

from __future__ import annotations

import unicodedata
from datetime import datetime

from formats import sysflag
from mqtool.words import _, counted
from recover.findings.model import count as count_in_english

# Categories that move the cursor, hide or reorder text: controls, formats (bidi overrides, zero
# width), surrogates, line and paragraph separators.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun, in the language that is spoken: `1 message`, `2,974 messages`, `2,974 条消息`."""
    noun = counted(one)
    return count_in_english(number, one, many) if noun is None else f"{number:,} {noun}"


def clean(value: object, limit: int = 0) -> str:
    """Text of a name from a store or a path that cannot control the terminal: control, format and separator characters
    and bytes that are not UTF-8 become visible escapes. `limit` > 0: at most so many characters, the last an
    ellipsis."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, (bytes, bytearray)) else str(value)
    if not (text.isascii() and text.isprintable()):
        text = "".join(_escape(char) if unicodedata.category(char) in _HARMFUL else char for char in text)
    if limit and len(text) > limit:
        return text[: limit - 1] + "…"
    return text


def middle(text: str, limit: int) -> str:
    """Text of at most `limit` characters, the middle left out; both ends of a name tell it from others."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head):]}"


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def human_size(size: int) -> str:
    """Bytes in binary units: `20 B`, `1.0 MiB`."""
    amount = float(size)
    if abs(amount) < 1024:
        return f"{size} B"
    for unit in _UNITS:
        amount /= 1024
        if abs(amount) < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount:.1f} {_UNITS[-1]}"


def exact_size(size: int) -> str:
    """Bytes both ways: `1,048,576 bytes (1.0 MiB)`."""
    said = _("{size} bytes").format(size=f"{size:,}")
    return f"{said} ({human_size(size)})" if abs(size) >= 1024 else said


def human_time(milliseconds: int) -> str:
    """A store timestamp in local time with its zone; a value outside of the calendar stays a number."""
    if milliseconds <= 0:
        return _("never") if milliseconds == 0 else str(milliseconds)
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


_BODY = 200
_FLAGS = (
    (sysflag.MULTI_TAGS, "multi tags"), (sysflag.BORNHOST_V6, "IPv6 born host"),
    (sysflag.STOREHOST_V6, "IPv6 store host"), (sysflag.NEED_UNWRAP, "need unwrap"),
    (sysflag.INNER_BATCH, "inner batch"),
)
_TRANSACTIONS = {sysflag.TRANSACTION_PREPARED: "prepared", sysflag.TRANSACTION_COMMIT: "commit",
                 sysflag.TRANSACTION_ROLLBACK: "rollback"}
_COMPRESSIONS = {sysflag.COMPRESSION_LZ4: "LZ4", sysflag.COMPRESSION_ZSTD: "ZSTD"}


def body_text(value: bytes, limit: int = _BODY) -> str:
    """A body as text if it is text, else as hex; cut to `limit` characters."""
    try:
        return clean(value.decode("utf-8"), limit)
    except UnicodeDecodeError:
        shown = value[: limit // 2].hex()
        return f"hex {shown}{'…' if len(value) > limit // 2 else ''}"


def properties_text(value: bytes) -> str:
    """`name=value` pairs, one per line."""
    pairs = [item.partition(b"\x01") for item in value.split(b"\x02") if item]
    return "\n".join(f"{clean(name)}={clean(text, _BODY)}" for name, _, text in pairs)


def flag_text(sys_flag: int) -> str:
    names = []
    if sys_flag & sysflag.COMPRESSED:
        names.append(f"compressed ({_COMPRESSIONS.get(sys_flag & sysflag.COMPRESSION_TYPE, 'zlib')})")
    transaction = sys_flag & sysflag.TRANSACTION
    names += [_TRANSACTIONS[transaction]] if transaction in _TRANSACTIONS else []
    return ", ".join(names + [name for bit, name in _FLAGS if sys_flag & bit])
