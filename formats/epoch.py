"""epochFileCheckpoint: where each term of a controller's master began. Sources: EpochFileCache, CheckpointFile.

Text: the count of entries, the checksum of the lines after it, then `epoch-startOffset` a line. Since 5.0.0.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from formats.crc import crc31
from formats.errors import FormatError

FILE_NAME = "epochFileCheckpoint"
NOT_CHECKED = 0
"""A checksum that the broker takes for "do not check"."""

_NUMBER = re.compile(rb"[0-9]{1,19}")
_ENTRY = re.compile(rb"(-?[0-9]{1,11})-(-?[0-9]{1,19})")


class EpochEntry(NamedTuple):
    """One term: its number and the physical offset at which it began."""

    epoch: int
    start_offset: int


def decode(data: bytes) -> list[EpochEntry]:
    """The entries in the order of the file; LF and CR LF both end a line.

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


def encode(entries: list[EpochEntry]) -> bytes:
    """The text of the file, as a broker on a system with LF line ends writes it."""
    text = b"".join(b"%d-%d\n" % entry for entry in entries)
    return b"%d\n%d\n" % (len(entries), crc31(text)) + text


def _number(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise FormatError("no-number", 0, f"{text!r} is not a number")
    return int(text)


def _entry(line: bytes) -> EpochEntry:
    match = _ENTRY.fullmatch(line.strip())
    if match is None:
        raise FormatError("bad-epoch", 0, f"{line!r} is not an epoch and an offset")
    return EpochEntry(int(match.group(1)), int(match.group(2)))
