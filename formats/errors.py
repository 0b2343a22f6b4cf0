"""The one exception that codecs raise."""

from __future__ import annotations


class FormatError(ValueError):
    """Bytes that are not what their format says.

    `reason` is a stable kebab-case word, `offset` the position in the buffer where the
    offending field starts (bytes), `facts` what was read and what was expected.
    """

    def __init__(self, reason: str, offset: int, message: str, **facts: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.offset = offset
        self.facts = facts
