"""Timer messages: timerlog (units by chain), timerwheel (the chain of each instant), timercheck.

Sources: broker classes TimerLog, TimerWheel, Slot, TimerCheckpoint, TimerMessageStore. All since 5.0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from formats.basics import I32, I64, Buffer, FormatError, Layout
from formats.record.layout import MAGIC_BLANK

if TYPE_CHECKING:
    import numpy as np

MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
_KNOWN_MAGIC_BITS = 0xF

WHEEL_SLOTS = 7 * 24 * 3600 * 2
REACH_SLOTS = WHEEL_SLOTS // 2
"""Slots ahead of the time that is read now; the other half of the wheel is behind it."""
BLANK_SLOTS = 60
"""A start reads no slot older than REACH_SLOTS before now, these aside (TIMER_BLANK_SLOTS)."""
ROLL_SLOTS = 2 * 24 * 3600
"""Messages due later than that are stored once more before they are (timerRollWindowSlot, the default)."""
LOG_FILE_SIZE = 100 << 20
"""mappedFileSizeTimerLog, the default."""
CHECK_SIZE = 4096
NO_UNIT = -1


class TimerLogUnit(NamedTuple):
    """One timer message, linked to the previous one due at the same instant."""

    size: Annotated[int, I32, "52, the size of a unit"]
    previous: Annotated[int, I64, "timerlog position of the unit before it in the same slot; -1 none"]
    magic: Annotated[int, I32, "bits: 1 default, 2 roll (due beyond the range of the wheel), 4 delete"]
    write_timestamp: Annotated[int, I64, "when the unit was written (ms)"]
    delay: Annotated[int, I32, "ms from the write to the delivery"]
    phy_offset: Annotated[int, I64, "start of the record in the commitlog"]
    record_size: Annotated[int, I32, "bytes of the record"]
    topic_hash: Annotated[int, I32, "Java hash of the real topic"]
    reserved: Annotated[int, I64, "0"]


class TimerLogBlank(NamedTuple):
    """End mark in place of the next unit that did not fit into the file."""

    size: Annotated[int, I32, "bytes from here to the end of the file"]
    reserved: Annotated[int, I64, "0"]
    magic: Annotated[int, I32, "the blank magic of the commitlog"]


class TimerWheelSlot(NamedTuple):
    """One instant: the chain of units due at it."""

    instant: Annotated[int, I64, "delivery time in units of the precision (seconds by default); 0 unused"]
    first_position: Annotated[int, I64, "timerlog position of the oldest unit of the chain"]
    last_position: Annotated[int, I64, "timerlog position of the newest unit of the chain"]
    unit_count: Annotated[int, I32, "units in the chain"]
    magic: Annotated[int, I32, "0"]


class TimerCheck(NamedTuple):
    """config/timercheck."""

    last_read_timestamp: Annotated[int, I64, "delivered up to this time (ms)"]
    last_timer_log_flush_position: Annotated[int, I64, "timerlog flushed up to this position"]
    last_timer_queue_offset: Annotated[int, I64, "next queue offset to read from the timer topic"]
    master_timer_queue_offset: Annotated[int, I64, "the same on the master"]
    data_version_state: Annotated[int, I64, "state version of the timer metrics"]
    data_version_timestamp: Annotated[int, I64, "when the timer metrics changed (ms)"]
    data_version_counter: Annotated[int, I64, "number of changes of the timer metrics"]


TIMER_LOG_UNIT = Layout.of(TimerLogUnit)
TIMER_LOG_BLANK = Layout.of(TimerLogBlank)
TIMER_WHEEL_SLOT = Layout.of(TimerWheelSlot)
TIMER_CHECK = Layout.of(TimerCheck)
WHEEL_FILE_SIZE = WHEEL_SLOTS * TIMER_WHEEL_SLOT.size


def decode(buffer: Buffer, offset: int = 0) -> TimerLogUnit:
    """Return the unit at `offset` if a broker's recovery would accept it (TimerMessageStore.recoverAndRevise).

    `FormatError`: "end" at a blank, "unwritten" at zeros, "bad-size", "bad-magic", "short".
    """
    blank = TIMER_LOG_BLANK.decode(buffer, offset)
    if blank.magic == MAGIC_BLANK:
        raise FormatError("end", offset, "the file ends here", size=blank.size)
    if blank == TimerLogBlank(0, 0, 0):
        raise FormatError("unwritten", offset, "nothing was written here")
    unit = TIMER_LOG_UNIT.decode(buffer, offset)
    if unit.size != TIMER_LOG_UNIT.size:
        raise FormatError("bad-size", offset, f"an entry never has {unit.size} bytes", size=unit.size)
    if unit.magic | _KNOWN_MAGIC_BITS != _KNOWN_MAGIC_BITS:
        raise FormatError("bad-magic", offset, f"unknown bits in magic {unit.magic}", magic=unit.magic)
    return unit


def units_of(content: Buffer) -> tuple[np.ndarray[Any, np.dtype[np.void]], bool]:
    """Return the units at the beginning of a timerlog file (dtype of TIMER_LOG_UNIT) as a broker's recovery walks them,
    and whether an end mark follows them: then the walk goes on in the next file."""
    import numpy as np

    found = np.frombuffer(content, TIMER_LOG_UNIT.dtype, len(content) // TIMER_LOG_UNIT.size)
    bad = (found["size"] != TIMER_LOG_UNIT.size) | ((found["magic"] & ~_KNOWN_MAGIC_BITS) != 0)
    used = int(bad.argmax()) if bad.any() else found.size
    at = used * TIMER_LOG_UNIT.size
    ended = len(content) >= at + TIMER_LOG_BLANK.size and TIMER_LOG_BLANK.decode(content, at).magic == MAGIC_BLANK
    return found[:used], ended


def encode_log(units: Sequence[TimerLogUnit], file_size: int) -> list[bytes]:
    """Return the content of each timerlog file for these units, in order: one that is full ends with its end mark, the
    last one without the zeros that fill it (TimerLog.append)."""
    each = (file_size - TIMER_LOG_BLANK.size) // TIMER_LOG_UNIT.size
    pieces = [units[first:first + each] for first in range(0, max(1, len(units)), each)]
    files = [b"".join(map(TIMER_LOG_UNIT.encode, piece)) for piece in pieces]
    return [content + (b"" if number + 1 == len(files) else TIMER_LOG_BLANK.encode(
        TimerLogBlank(file_size - len(content), 0, MAGIC_BLANK))) for number, content in enumerate(files)]


def position_of(number: int, file_size: int) -> int:
    """Return the timerlog position of unit `number` of `encode_log`."""
    file, inside = divmod(number, (file_size - TIMER_LOG_BLANK.size) // TIMER_LOG_UNIT.size)
    return file * file_size + inside * TIMER_LOG_UNIT.size


def encode_wheel(slots: Sequence[TimerWheelSlot]) -> bytes:
    """Return the content of timerwheel with these slots, each at its place (TimerWheel.getSlotIndex)."""
    content = bytearray(WHEEL_FILE_SIZE)
    for slot in slots:
        TIMER_WHEEL_SLOT.struct.pack_into(content, slot.instant % WHEEL_SLOTS * TIMER_WHEEL_SLOT.size, *slot)
    return bytes(content)


def encode_check(check: TimerCheck) -> bytes:
    """Return the content of config/timercheck."""
    return TIMER_CHECK.encode(check).ljust(CHECK_SIZE, b"\0")
