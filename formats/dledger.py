"""DLedger: the log of a Raft group. Its entries wrap commitlog records.

Sources: DLedgerEntryCoder, DLedgerMmapFileStore of the dledger library. Data files are named and
sized like commitlog files, index files have a fixed size.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from formats.errors import FormatError
from formats.layout import I32, I64, Buffer, Layout

MAGIC_ENTRY = 1
MAGIC_BLANK = -1


class DLedgerEntryHead(NamedTuple):
    """What stands before the body. The body's own physical offset counts from the body, not from here."""

    magic: Annotated[int, I32, "1"]
    size: Annotated[int, I32, "bytes of head and body"]
    entry_index: Annotated[int, I64, "number of the entry in the group's log"]
    term: Annotated[int, I64, "term in which it was written"]
    position: Annotated[int, I64, "where the entry starts in the data files"]
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
    position: Annotated[int, I64, "where the entry starts in the data files"]
    size: Annotated[int, I32, "bytes of the entry"]
    entry_index: Annotated[int, I64, "number of the entry"]
    term: Annotated[int, I64, "term of the entry"]


DLEDGER_ENTRY_HEAD = Layout.of(DLedgerEntryHead)
DLEDGER_BLANK = Layout.of(DLedgerBlank)
DLEDGER_INDEX_UNIT = Layout.of(DLedgerIndexUnit)


def decode(buffer: Buffer, offset: int, position: int) -> DLedgerEntryHead:
    """The head at `offset` of an entry that belongs at `position` of the data files, tested as at recovery.

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
