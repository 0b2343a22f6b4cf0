"""epochFileCheckpoint and brokerIdentity: what a broker with a controller keeps.

Sources: EpochFileCache, CheckpointFile, BrokerMetadata.

The first says where each term of a master began: the count of entries, the checksum of the lines after it, then
`epoch-startOffset` a line. Since 5.0.0. The second says who the broker is: `cluster#name#number`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from formats.crc import crc31
from formats.errors import FormatError

FILE_NAME = "epochFileCheckpoint"
IDENTITY_NAME = "brokerIdentity"
NOT_CHECKED = 0
"""A checksum that the broker takes for "do not check"."""

_NUMBER = re.compile(rb"[0-9]{1,19}")
_ENTRY = re.compile(rb"(-?[0-9]{1,11})-(-?[0-9]{1,19})")


def decode(data: bytes) -> list[tuple[int, int]]:
    """(term, physical offset at which it began) in the order of the file; LF and CR LF both end a line.

    `FormatError`: "short" (fewer lines than announced), "no-number" (in one of the first two),
    "bad-count", "bad-crc", "bad-epoch".
    """
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        raise FormatError("short", len(data), "an epoch file has a count and a checksum", length=len(data))
    count, crc = (_number(line.strip()) for line in lines[:2])
    if len(lines) - 2 != count:
        raise FormatError("bad-count", 0, f"{count} entries announced, {len(lines) - 2} found",
                          expected=count, found=len(lines) - 2)
    found = crc31(b"".join(lines[2:]))
    if crc not in (NOT_CHECKED, found):
        raise FormatError("bad-crc", len(lines[0]), f"checksum {crc}, the entries have {found}",
                          expected=crc, found=found)
    return [_entry(line) for line in lines[2:]]


class Identity(NamedTuple):
    """Which replica a broker is: its cluster, its name, and the number that the controller gave it."""

    cluster: str
    name: str
    number: int


def decode_identity(data: bytes) -> Identity:
    """The content of brokerIdentity. `FormatError`: "short" (fewer than three parts), "no-number"."""
    parts = data.decode("utf-8", "replace").split("#")
    if len(parts) < 3:
        raise FormatError("short", len(data), "it is not cluster#name#number", length=len(data))
    return Identity(parts[0], parts[1], _number(parts[2].encode()))


def _number(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise FormatError("no-number", 0, f"{text!r} is not a number")
    return int(text)


def _entry(line: bytes) -> tuple[int, int]:
    match = _ENTRY.fullmatch(line.strip())
    if match is None:
        raise FormatError("bad-epoch", 0, f"{line!r} is not an epoch and an offset")
    return int(match.group(1)), int(match.group(2))
