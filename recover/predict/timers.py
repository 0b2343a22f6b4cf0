"""The timer of a starting broker: from where it reads its queue, and which units of the timerlog its wheel leads to.

1. The walk of the timerlog begins a file before the place that timercheck says was flushed, and ends at the first unit
   that is none (TimerMessageStore.recoverAndRevise). Each unit enters its slot of the wheel; older ones hang in chains
   and slots that are there already.
2. The queue is read on behind the message of the last unit; without a unit, from timercheck's offset; never behind that
   of the master, and inside the queue (TimerMessageStore.recover).
3. Slots are read from the time in timercheck on, none older than a week: what was due before is skipped.

A damaged timer is not played: predict says so. Timers in RocksDB are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from formats import timer
from formats.basics import FormatError
from recover.predict.queues import QueueState
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFileQueue
from recover.store.source import open_file, read_small
from recover.store.store import CONFIG, Store

TIMERLOG = "timerlog"
TIMER_SIZE = "mappedFileSizeTimerLog"
PRECISION_MS = 1000
"""timerPrecisionMs, the default."""
QueueOffsetAt = Callable[[int, int], int | None]
"""(phy offset, size) -> the queue offset of that record; None if there is none."""


class TimerUnits(NamedTuple):
    """Units of the timerlog in order: position, due time or that of the next roll (ms), message, and magic."""

    position: Rows
    due: Rows
    phy_offset: Rows
    size: Rows
    magic: Rows


class TimerStart(NamedTuple):
    """The timer once loaded: slots are read from `read_from` (ms) on, the queue from `queue_from`. `delivered`: all was
    delivered up to this time (ms), says timercheck."""

    delivered: int
    read_from: int
    queue_from: int
    units: TimerUnits


def timer_check(store: Store) -> timer.TimerCheck:
    """config/timercheck; zeros where there is none or it is short, as for a broker."""
    try:
        return timer.TIMER_CHECK.decode(read_small(store.root / CONFIG / "timercheck", timer.TIMER_CHECK.size))
    except (FileNotFoundError, FormatError):
        return timer.TimerCheck(*[0] * len(timer.TIMER_CHECK.fields))


def timer_log(store: Store) -> MappedFileQueue:
    """The files of the timerlog; without a setting their size is inferred."""
    size = store.options.settings.get(TIMER_SIZE, "")
    return MappedFileQueue.load((store.root / TIMERLOG,), int(size) if size.isdecimal() else 0)


def timer_size_is_told(store: Store) -> bool:
    """Whether a file or a setting tells the length of timerlog files."""
    known = timer_log(store)
    return store.options.settings.get(TIMER_SIZE, "").isdecimal() or (
        bool(known.files) and known.file_size > timer.TIMER_LOG_UNIT.size)


def timer_file_size(store: Store) -> int:
    """The length of timerlog files: as set, or of those that are there, or the default."""
    stated = store.options.settings.get(TIMER_SIZE, "")
    if stated.isdecimal():
        return int(stated)
    return timer_log(store).file_size if timer_size_is_told(store) else timer.LOG_FILE_SIZE


def timer_units(queue: MappedFileQueue, begin: int = 0) -> tuple[TimerUnits, int]:
    """Return the units of the files that a walk from position `begin` on visits, and where it ends."""
    first = max((number for number, file in enumerate(queue.files) if file.file_from_offset <= begin), default=0)
    columns: list[Rows] = [np.empty((5, 0), dtype=np.int64)]
    end = 0
    for number, file in enumerate(queue.files):
        found, ended = timer.units_of(_content(file.path, file.length))
        at = file.file_from_offset + np.arange(found.size, dtype=np.int64) * timer.TIMER_LOG_UNIT.size
        due = found["write_timestamp"].astype(np.int64) + found["delay"]
        columns.append(np.stack([at, due, found["phy_offset"], found["record_size"], found["magic"]]))
        if number >= first:
            end = file.file_from_offset + found.size * timer.TIMER_LOG_UNIT.size
            if not ended:
                break
    return TimerUnits(*np.concatenate(columns, axis=1)), end


def start_timer(store: Store, queue: QueueState | None, now: int, queue_offset_at: QueueOffsetAt) -> TimerStart:
    """Play the load of the timer at `now` (ms), with its queue as recovered."""
    check, log = timer_check(store), timer_log(store)
    flushed = check.last_timer_log_flush_position - (log.file_size if log.files else 0)
    units, _ = timer_units(log, max(0, flushed))
    last = None
    if units.position.size:
        last = queue_offset_at(int(units.phy_offset[-1]), int(units.size[-1]))
    begin = check.last_timer_queue_offset if last is None else last + 1
    begin = min(begin, check.master_timer_queue_offset)
    if queue is not None:
        begin = min(max(begin, queue.min_offset), queue.max_offset)
    reach = (now // PRECISION_MS - timer.REACH_SLOTS + timer.BLANK_SLOTS) * PRECISION_MS
    return TimerStart(check.last_read_timestamp, max(check.last_read_timestamp, reach), begin, units)


def _content(path: Path, length: int) -> bytes:
    with open_file(path) as reader:
        stop = max((last for _, last in reader.data_ranges(0, length)), default=0)
        whole = -(-stop // timer.TIMER_LOG_UNIT.size) * timer.TIMER_LOG_UNIT.size + timer.TIMER_LOG_BLANK.size
        return reader.read(0, min(length, whole))
