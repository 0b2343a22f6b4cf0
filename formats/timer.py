"""Timer messages: timerlog (units by chain), timerwheel (the chain of each instant), timercheck.

Sources: broker classes TimerLog, TimerWheel, Slot, TimerCheckpoint, TimerMessageStore. All since 5.0.0.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from formats.basics import I32, I64, Buffer, FormatError, Layout
from formats.record.layout import MAGIC_BLANK

MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
_KNOWN_MAGIC_BITS = 0xF

WHEEL_SLOTS = 7 * 24 * 3600 * 2


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
        raise FormatError("bad-size", offset, f"a unit never has {unit.size} bytes", size=unit.size)
    if unit.magic | _KNOWN_MAGIC_BITS != _KNOWN_MAGIC_BITS:
        raise FormatError("bad-magic", offset, f"unknown bits in magic {unit.magic}", magic=unit.magic)
    return unit
