"""Reads the command lines that hold nothing but what was declared, well-formed; any other is the CLI library's.

The library takes longer to import than a small store takes to verify. What is read here it would read the same way
(a test holds the two together); help, completion, mistakes and rare spellings are left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from mqtool.declared import REQUIRED, Argument, Option, Parameter

_DIGITS = 18  # of a number: what fits into 64 bits whatever they are


class _NotPlainError(Exception):
    """This line is the library's."""


def read(words: Sequence[str], parameters: Iterable[Parameter]) -> dict[str, Any] | None:
    """The value of every parameter, or None where the CLI library shall look at the line."""
    parameters = tuple(parameters)
    try:
        return _read(words, parameters)
    except _NotPlainError:
        return None


def _read(words: Sequence[str], parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    named = _by_name(parameters)
    places = iter([item for item in parameters if isinstance(item.declared, Argument)])
    values: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if not word.startswith("-"):
            place = next(places, None)
            _put(values, place, word)
            continue
        name, equals, text = word.partition("=")
        item, on = named.get(name, (None, True))
        if item is not None and item.kind in (bool, bool | None):
            if equals or item.name in values:
                raise _NotPlainError
            values[item.name] = on
        else:
            _put(values, item, text if equals else next(left, ""))
    for item in parameters:
        if item.name not in values:
            if item.default is REQUIRED:
                raise _NotPlainError
            values[item.name] = item.default
    return values


def _by_name(parameters: Iterable[Parameter]) -> dict[str, tuple[Parameter, bool]]:
    named = {}
    for item in parameters:
        if isinstance(item.declared, Option):
            on, _, off = item.declared.name.partition("/")
            named[on] = item, True
            if off:
                named[off] = item, False
    return named


def _put(values: dict[str, Any], item: Parameter | None, text: str) -> None:
    """Take one value. An empty one, one like an option, and bytes that are no text may mean something else."""
    if item is None or not text or text.startswith("-") or not _is_text(text):
        raise _NotPlainError
    base, several = _taken(item.kind)
    value = _value(base, item.declared, text)
    if several:
        values.setdefault(item.name, []).append(value)
    elif item.name in values:
        raise _NotPlainError
    else:
        values[item.name] = value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _taken(kind: Any) -> tuple[Any, bool]:
    """What one value is, of `X`, `X | None` and `list[X] | None`, and whether there may be several."""
    if get_origin(kind) is not list:
        kind = next((part for part in get_args(kind) if part is not type(None)), kind)
    if get_origin(kind) is list:
        return get_args(kind)[0], True
    return kind, False


def _value(base: Any, declared: Option | Argument, text: str) -> Any:
    if isinstance(declared, Option) and declared.parser is not None:
        try:
            return declared.parser(text)
        except Exception as error:
            raise _NotPlainError from error
    if base is str:
        return text
    if base is Path:
        return Path(text)
    if base is int:
        return _number(text, declared.min if isinstance(declared, Option) else None)
    if isinstance(base, type) and issubclass(base, Enum):
        for choice in base:
            if choice.value == text:
                return choice
    raise _NotPlainError


def _number(text: str, least: int | None) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise _NotPlainError
    number = int(text)
    if str(number) != text or (least is not None and number < least):
        raise _NotPlainError
    return number
