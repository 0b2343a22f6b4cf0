"""Texts that keep what they were put together from: a template and its values.

1. A template is a format string; its facts say how they are written: a count with its noun, a duration, a time.
2. A `Phrase` is the English text, and remembers both, so that it can be put together in another language.

It knows no language: `mqtool/words.py` looks templates up, and values that are texts themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 message`, `2,974 messages`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def few(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and the number of the rest."""
    shown = listing(names[:most])
    return shown if len(names) <= most else Phrase("{names} and {n} more", names=shown, n=len(names) - most)


def _span(milliseconds: int) -> str:
    for seconds, unit in ((365 * 86_400, "year"), (86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if milliseconds >= 2000 * seconds:
            return count(milliseconds // (1000 * seconds), unit)
    return f"{milliseconds} ms"


def _delay(milliseconds: int) -> str:
    """A delay as brokers write it in messageDelayLevel, with a blank: `3 s`, `2 h`, `1500 ms`."""
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
    return next((f"{milliseconds // size} {unit}" for size, unit in units
                 if milliseconds and milliseconds % size == 0), f"{milliseconds} ms")


def moment(milliseconds: int) -> str:
    """Format a time in ms since 1970 in UTC, in the form of all screens; a value outside of the calendar stays a
    number."""
    try:
        found = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return found.isoformat(" ", "milliseconds")


_CLAUSES = ("; ", "\uff1b")


class _Fact(Struct):
    """A fact in a template: `{lost:message}` is "1 message" or "2 messages", `{n:entry|entries}` gives the plural.

    Text in place of a number, such as "an unknown number of", takes the plural. `{n:; entry|entries}` is a clause that
    is left out for 0 and None; `{n:span}` formats a duration in ms, `{n:time}` a time in ms since 1970, and
    `{levels:delays}` a table of delays in ms by level.
    """

    value: Any

    def __format__(self, spec: str) -> str:
        if not spec:
            return ", ".join(self.value) if isinstance(self.value, tuple) else str(self.value)
        if spec == "span":
            return _span(self.value)
        if spec == "time":
            return moment(self.value)
        if spec == "delays" and isinstance(self.value, dict):
            return ", ".join(f"level {level} = {_delay(delay)}" for level, delay in self.value.items())
        clause = next((mark for mark in _CLAUSES if spec.startswith(mark)), "")
        if clause:
            return f"{clause}{format(self, spec.removeprefix(clause))}" if self.value else ""
        one, _, many = spec.partition("|")
        return count(self.value, one, many) if hasattr(self.value, "__index__") else f"{self.value} {many or one + 's'}"


class _Facts(dict[str, Any]):
    """Facts for message templates: an unknown name stays visible instead of failing."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"

    def __getitem__(self, key: str) -> Any:
        return _Fact(super().__getitem__(key))


def rendered(template: str, facts: Mapping[str, Any]) -> str:
    """Return a message template with its facts filled in; an unknown name stays."""
    return template.format_map(_Facts(facts))


class Phrase(str):
    """A text in English, with the template and the values that it was put together from, so that it can be put together
    in another language as well. Values that are phrases are told in that language, too; a tuple is a list of texts.

    Documents, plans and journals hold the English text alone.
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, /, **values: Any) -> Phrase:
        made = super().__new__(cls, rendered(template, values))
        made.template, made.values = template, values
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (self.template,), self.values


def listing(parts: Iterable[str]) -> Phrase:
    """Return the texts with commas between them."""
    return Phrase("{parts}", parts=tuple(parts))
