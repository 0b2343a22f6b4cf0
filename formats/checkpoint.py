"""checkpoint: up to where each kind of data was flushed (broker class StoreCheckpoint); and abort.

One page, big-endian. Older brokers know fewer fields and leave the bytes of newer ones untouched, so a value at the end
can stem from another version.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from formats.basics import I64, Buffer, FormatError, Layout, java_long


class Checkpoint(NamedTuple):
    """The fields of every generation; 0 means "never set" in each of them."""

    physic_msg_timestamp: Annotated[int, I64, "store timestamp (ms) of the last flushed commitlog message"]
    logics_msg_timestamp: Annotated[int, I64, "store timestamp (ms) of the last message with a flushed queue unit"]
    index_msg_timestamp: Annotated[int, I64, "end timestamp (ms) of the last index file that became full"]
    master_flushed_offset: Annotated[int, I64, "since 5.0.0: the end of the log that the master has flushed"]
    confirm_phy_offset: Annotated[int, I64, "since 5.1.1: start of the last valid message at the last recovery"]
    logics_physical_offset: Annotated[int, I64, "since 5.5.0: start of the last message with a flushed queue unit"]


CHECKPOINT = Layout.of(Checkpoint)
FILE_SIZE = 4096
EMPTY = Checkpoint(0, 0, 0, 0, 0, 0)

SINCE = {"master_flushed_offset": "5.0.0", "confirm_phy_offset": "5.1.1", "logics_physical_offset": "5.5.0"}
"""First broker version that writes each of the newer fields."""

CLOCK_MARGIN_MS = 3000
"""Margin (ms) that StoreCheckpoint.getMinTimestamp subtracts, to start early enough."""


def decode(buffer: Buffer, *, extend: bool = False) -> Checkpoint:
    """Return the fields of a file; `FormatError("short")` if it is shorter than they are.

    With `extend` a short file is read as if zeros followed, which is what a broker that maps the whole page sees (and
    leaves on disk).
    """
    if extend and len(buffer) < CHECKPOINT.size:
        buffer = bytes(buffer).ljust(CHECKPOINT.size, b"\0")
    return CHECKPOINT.decode(buffer)


def encode(checkpoint: Checkpoint, base: Buffer = b"") -> bytes:
    """Return the bytes of a whole file. `base`: the present file, whose bytes after the fields are kept."""
    if len(base) > FILE_SIZE:
        raise FormatError("bad-length", 0, f"a checkpoint has {FILE_SIZE} bytes", length=len(base), expected=FILE_SIZE)
    return (CHECKPOINT.encode(checkpoint) + bytes(base[CHECKPOINT.size:])).ljust(FILE_SIZE, b"\0")


def rest_is_zero(buffer: Buffer) -> bool:
    """Whether only zeros follow the known fields, as in every file that a broker wrote."""
    return not any(memoryview(buffer)[CHECKPOINT.size:])


def newer_fields(checkpoint: Checkpoint, log_end: int) -> list[str]:
    """Return the fields that only newer brokers write, if set to an offset within a log up to `log_end`."""
    return [name for name in SINCE if 0 < getattr(checkpoint, name) <= log_end]


def min_timestamp(checkpoint: Checkpoint) -> int:
    """Return StoreCheckpoint.getMinTimestamp (ms), which abnormal recovery looks for up to 5.4.0."""
    return max(0, java_long(min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) - CLOCK_MARGIN_MS))


# --- abort: present while a broker runs, and after a stop that was not clean.
#
# 4.x leaves it empty, 5.x writes its process id. `abort.bak` (5.x) is the `abort` that the last start found: empty
# after a clean stop, else the id of the crashed process.


ABORT_BACKUP = "abort.bak"
_LONGEST_PID = 10


def process_id(buffer: Buffer) -> int | None:
    """Return the process id in the file, None if it is empty; `FormatError("bad-abort")` for anything else."""
    text = bytes(buffer[:_LONGEST_PID + 1]).strip()
    if not text:
        return None
    if len(text) > _LONGEST_PID or not text.isdigit():
        raise FormatError("bad-abort", 0, "the file holds something else than a process id", length=len(buffer))
    return int(text)
