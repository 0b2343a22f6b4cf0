"""What kinds of findings there are: how bad each is, and which exit bits it stands for."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["info", "warning", "error"]

BIT_DERIVED = 2
BIT_MESSAGES = 4
BIT_OPERATIONAL = 8
BIT_UNSUPPORTED = 64
SEVERITY_BITS = {"info": 0, "warning": BIT_DERIVED, "error": BIT_MESSAGES}


class Code(Struct, frozen=True):
    """A kind of finding: what it is called, how bad it is, and what `explain` says of it.

    `message` and `remedy` are format strings over the finding's facts (`{store}` is the store
    path, filled in by whoever prints). `bits` overrides the exit bits that severity implies.
    """

    name: str
    severity: Severity
    message: str
    remedy: str
    meaning: str
    cause: str
    broker: str
    action: str
    bits: int | None = None

    @property
    def exit_bits(self) -> int:
        """Bits this code adds to the exit code."""
        return SEVERITY_BITS[self.severity] if self.bits is None else self.bits
