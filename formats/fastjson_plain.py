"""Config text that is JSON proper but for integer keys without quotes, read by Python's parser. It may only say yes.

The reference reader (`formats.fastjson`) takes half a second for ten thousand topics, and a second for what their
consumers have read; this takes a fifth to an eighth of that, and leaves to it whatever either might see in another
way, and what would take too much memory in pieces.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_STRING = "\x01"
_INTEGER_KEY = "\x02"
"""Stand-ins; text that has them itself is left alone."""

_KEY = re.compile(r"([{,][ \t\r\n]*)(-?[0-9]{1,18})(?=[ \t\r\n]*:)")
_PARTS = 3  # that splitting at _KEY gives for each key: what is before it, what opens it, its digits
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"{}[]")
_DIGITS = bytes(ord("0") if code in b"0123456789.+-eE" else 32 for code in range(256))
_LARGEST = 16 << 20
_MEMORY = 192 << 20
_PER_QUOTE, _PER_COLON = 14, 160
"""Bytes of memory that all pieces of a text may take, and what a quote and an integer key cut off took, as measured."""


class NotPlainError(Exception):
    """For the reference reader to say what this is."""


def read_plain(data: bytes, *, max_depth: int, max_number: int) -> Any:
    """The value of a whole file; `NotPlainError` unless it is certain that the reference reader finds the same.

    Numbers of more than `max_number` characters, and containers nested deeper than `max_depth`, are never plain.
    """
    if not _is_small(data) or b"\\" in data or b"0" * max_number in data.translate(_DIGITS):
        raise NotPlainError
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise NotPlainError from None
    if _STRING in text or _INTEGER_KEY in text:
        raise NotPlainError
    # without escapes every other piece between quotes is a string
    pieces = text.split('"')
    structure = _STRING.join(pieces[::2])
    if not _is_shallow(structure, max_depth):
        raise NotPlainError
    parts = _KEY.split(structure)
    keys = len(parts) // _PARTS
    if keys:
        pieces[::2] = _quoted(parts, keys).split(_STRING)
        text = '"'.join(pieces)
    try:
        return json.loads(
            text, strict=False, parse_float=_finite, parse_constant=_refuse,
            object_pairs_hook=_with_integers if keys else None,
        )
    except (ValueError, RecursionError):
        raise NotPlainError from None


def _is_small(data: bytes) -> bool:
    """Whether it can be taken to pieces in some 300 MB."""
    return len(data) <= _LARGEST and data.count(b'"') * _PER_QUOTE + data.count(b":") * _PER_COLON <= _MEMORY


def _quoted(parts: list[str], keys: int) -> str:
    """The structure with marks and quotes around its integer keys; put together in one go, for there may be many."""
    size = _PARTS + 2
    whole = [""] * (keys * size + 1)
    whole[::size], whole[1::size], whole[3::size] = parts[::_PARTS], parts[1::_PARTS], parts[2::_PARTS]
    whole[2::size], whole[4::size] = [f'"{_INTEGER_KEY}'] * keys, ['"'] * keys
    return "".join(whole)


def _is_shallow(structure: str, max_depth: int) -> bool:
    """Whether nothing is nested deeper. Each turn takes away the innermost one or two levels."""
    brackets = structure.encode().translate(None, _NO_BRACKETS)
    for _ in range(max_depth // 2):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if not brackets:
            return True
    return False


def _with_integers(members: list[tuple[str, Any]]) -> dict[str | int, Any]:
    # in pairs: 1 and 01 are one key, of which the last wins
    return {int(key[1:]) if key[:1] == _INTEGER_KEY else key: value for key, value in members}


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotPlainError
    return value


def _refuse(_constant: str) -> None:
    raise NotPlainError
