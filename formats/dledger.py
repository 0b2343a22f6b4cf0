"""Files of replicas: the log of a Raft group (DLedger), whose entries wrap commitlog records; terms and identity.

Sources: DLedgerEntryCoder, DLedgerMmapFileStore of the dledger library. Data files are named and sized like commitlog
files, index files have a fixed size.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from formats.basics import I32, I64, Buffer, FormatError, Layout, crc31

MAGIC_ENTRY = 1
MAGIC_BLANK = -1


class DLedgerEntryHead(NamedTuple):
    """The head of an entry, before its body. The record in the body states the body's physical offset, not the
    entry's."""

    magic: Annotated[int, I32, "1"]
    size: Annotated[int, I32, "bytes of head and body"]
    entry_index: Annotated[int, I64, "number of the entry in the group's log"]
    term: Annotated[int, I64, "term of the entry"]
    position: Annotated[int, I64, "start of the entry in the data files"]
    channel: Annotated[int, I32, "0"]
    chain_crc: Annotated[int, I32, "checksum over the head; not checked at recovery"]
    body_crc: Annotated[int, I32, "0, never set"]
    body_size: Annotated[int, I32, "bytes of the body"]


class DLedgerBlank(NamedTuple):
    """End of a data or index file. Magic comes first here, unlike in the commitlog."""

    magic: Annotated[int, I32, "-1"]
    size: Annotated[int, I32, "bytes from here to the end of the file, all zero after this"]


class DLedgerIndexUnit(NamedTuple):
    """Unit `index` of the index files."""

    magic: Annotated[int, I32, "1"]
    position: Annotated[int, I64, "start of the entry in the data files"]
    size: Annotated[int, I32, "bytes of the entry"]
    entry_index: Annotated[int, I64, "number of the entry"]
    term: Annotated[int, I64, "term of the entry"]


DLEDGER_ENTRY_HEAD = Layout.of(DLedgerEntryHead)
DLEDGER_BLANK = Layout.of(DLedgerBlank)
DLEDGER_INDEX_UNIT = Layout.of(DLedgerIndexUnit)


def decode(buffer: Buffer, offset: int, position: int) -> DLedgerEntryHead:
    """Return the head at `offset` of an entry that belongs at `position` of the data files, checked as at recovery.

    `FormatError`: "end" at a blank, "unwritten" at zeros, "bad-magic", "bad-position", "bad-size", "short".
    """
    blank = DLEDGER_BLANK.decode(buffer, offset)
    if blank.magic == MAGIC_BLANK:
        raise FormatError("end", offset, "the file ends here", size=blank.size)
    if blank == DLedgerBlank(0, 0):
        raise FormatError("unwritten", offset, "nothing was written here")
    if blank.magic != MAGIC_ENTRY:
        raise FormatError("bad-magic", offset, f"no entry has the magic {blank.magic}", magic=blank.magic)
    head = DLEDGER_ENTRY_HEAD.decode(buffer, offset)
    if head.position != position:
        raise FormatError("bad-position", offset, f"the entry at {position} says it is at {head.position}",
                          expected=position, found=head.position)
    if head.body_size < 0 or head.size != DLEDGER_ENTRY_HEAD.size + head.body_size:
        raise FormatError("bad-size", offset, f"an entry of {head.size} bytes cannot have a body of {head.body_size}",
                          size=head.size, body_size=head.body_size)
    if offset + head.size > len(buffer):
        raise FormatError("short", offset, f"the entry needs {head.size} bytes",
                          needed=head.size, available=len(buffer) - offset)
    return head


# --- epochFileCheckpoint and brokerIdentity: files of a broker with a controller. Sources: EpochFileCache,
# CheckpointFile, BrokerMetadata.
#
# epochFileCheckpoint has the start of each master's term: the number of entries, the checksum of the lines after it,
# then `epoch-startOffset` per line. Since 5.0.0. brokerIdentity identifies the broker: `cluster#name#number`.


EPOCH_FILE = "epochFileCheckpoint"
IDENTITY_FILE = "brokerIdentity"
NOT_CHECKED = 0
"""Checksum value with which the broker skips the check."""

_NUMBER = re.compile(rb"[0-9]{1,19}")
_ENTRY = re.compile(rb"(-?[0-9]{1,11})-(-?[0-9]{1,19})")


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """Return (term, physical offset at which it began) in file order; lines end with LF or CR LF.

    `FormatError`: "short" (less than two lines), "no-number" (in one of these), "bad-count" (the number of entries is
    not the stated one), "bad-crc", "bad-epoch".
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
    """Identity of a replica: its cluster, its name, and the number that the controller assigned."""

    cluster: str
    name: str
    number: int


def decode_identity(data: bytes) -> Identity:
    """Return the content of brokerIdentity. `FormatError`: "short" (fewer than three parts), "no-number"."""
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
