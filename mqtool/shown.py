"""What a screen shows, as values: made whether or not anybody looks, drawn by `mqtool.console` if somebody does.

So a command says what there is to see in one way, and an answer in JSON needs no library for terminals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Part = tuple[str, str]
"""Some words and their style."""


class Text:
    """Words, harmless for a terminal: whoever makes one has cleaned them. The style is that of words after it, too."""

    __slots__ = ("more", "style", "words")

    def __init__(self, words: str, style: str = "") -> None:
        self.words, self.style = words, style
        self.more: list[Part] = []

    @classmethod
    def assemble(cls, *parts: Text | Part | str) -> Text:
        """Several, one after the other, each with its own style."""
        result = cls("")
        for part in parts:
            if isinstance(part, Text):
                result.more += [(part.words, part.style), *part.more]
            else:
                result.more.append((part, "") if isinstance(part, str) else part)
        return result

    def append(self, words: str, style: str = "") -> None:
        """Put more words after."""
        self.more.append((words, style))


class Table(NamedTuple):
    """Rows, taken from `rows` when they are drawn. Without `columns` they are names and values side by side."""

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


Shown = Text | Table
