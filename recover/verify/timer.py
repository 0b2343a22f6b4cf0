"""The timerlog against the commitlog: does every unit name a message that is there?

Units that were delivered stay until their file expires, so those in front of the log's start are normal. Where the
units stop, a broker's own recovery cuts the timerlog (TimerMessageStore.recoverAndRevise).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from formats.errors import FormatError
from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_MARKER
from formats.timer import TIMER_CHECK, TIMER_LOG_BLANK, TIMER_LOG_UNIT, WHEEL_FILE_SIZE, decode
from recover.files.mapped_files import MappedFile, MappedFileQueue
from recover.files.reader import FileReader, read_small
from recover.files.store import Store
from recover.findings import Finding, finding
from recover.memory.columns import Rows
from recover.scan.log import LogView

TIMERLOG = "timerlog"
TIMERWHEEL = "timerwheel"
_CHECK = "timercheck"
_CHUNK = TIMER_LOG_UNIT.size * 20_000
_STANDS_IN = BIT_FILLER | BIT_MARKER


class _Units(Struct):
    """Units of one file: their positions in the timerlog and the columns that matter."""

    position: Rows
    phy_offset: Rows
    size: Rows
    due: Rows
    stop: int
    reason: str = ""


def check_timer(store: Store, log: LogView) -> Iterator[Finding]:
    """Findings about timerlog and timerwheel; nothing without them."""
    try:
        yield from _wheels(store)
        queue = MappedFileQueue.load((store.root / TIMERLOG,))
        delivered = _delivered_to(store)
        for mapped_file in queue.files:
            yield from _check_file(store, log, mapped_file, delivered)
    except OSError as error:
        yield finding("part-unreadable", TIMERLOG, None, part=TIMERLOG, error=error.strerror)


def _wheels(store: Store) -> Iterator[Finding]:
    for path in sorted(store.root.glob(TIMERWHEEL + "*")):
        snapshot = path.name.removeprefix(TIMERWHEEL + ".").isdecimal()
        if path.name != TIMERWHEEL and not snapshot:
            continue
        length = path.stat().st_size
        if length not in (0, WHEEL_FILE_SIZE):
            yield finding("timer-wheel-bad-length", path.name, None, name=path.name, length=length,
                          expected=WHEEL_FILE_SIZE)


def _delivered_to(store: Store) -> int:
    """Time (ms) up to which timer messages were delivered; 0 if not known."""
    try:
        return TIMER_CHECK.decode(read_small(store.config_dir / _CHECK, TIMER_CHECK.size)).last_read_timestamp
    except (OSError, FormatError):
        return 0


def _check_file(store: Store, log: LogView, mapped_file: MappedFile, delivered: int) -> Iterator[Finding]:
    name = store.relative(mapped_file.path)
    with FileReader(mapped_file.path) as reader:
        for units in _units(reader, mapped_file.length):
            beyond = units.phy_offset + units.size > log.log_end
            if beyond.any():
                yield _about("timer-points-beyond-log", name, units, beyond, log)
            pending = ~beyond & (units.phy_offset >= log.min_offset) & (units.due >= delivered)
            wrong = np.zeros(pending.size, dtype=bool)
            at = np.flatnonzero(pending)
            wrong[at] = ~_named(log, units.phy_offset[at], units.size[at])
            if wrong.any():
                yield _about("timer-wrong-record", name, units, wrong, log)
            if units.reason:
                yield finding("timer-log-stops", name, units.stop, position=units.stop, reason=units.reason)


def _about(code: str, name: str, units: _Units, which: Rows, log: LogView) -> Finding:
    at = np.flatnonzero(which)
    first, last = int(units.position[at[0]]), int(units.position[at[-1]])
    return finding(code, name, first, first=first, last=last, count=int(at.size), log_end=log.log_end,
                   phy_offset=int(units.phy_offset[at[0]]))


def _named(log: LogView, offsets: Rows, sizes: Rows) -> Rows:
    """For each unit, whether a record of this size starts there, or what did was lost with the damage."""
    found = log.in_damage(offsets)
    for split in log.splits():
        rows = split.records
        rows = rows[(rows["bits"] & BIT_GHOST) == 0]
        if not rows.size or found.all():
            continue
        at = np.searchsorted(rows["phy_offset"], offsets, side="right") - 1
        before = rows[np.maximum(at, 0)]
        same = (before["phy_offset"] == offsets) & (before["size"] == sizes)
        stands_in = ((before["bits"] & _STANDS_IN) != 0) & (offsets < before["phy_offset"] + before["size"])
        found |= (at >= 0) & (same | stands_in)
    return found


def _units(reader: FileReader, length: int) -> Iterator[_Units]:
    """The units of a file, a chunk at a time, up to its end mark or the first place that holds none."""
    position = 0
    while position < length:
        content = reader.read(position, min(_CHUNK, length - position))
        whole = len(content) // TIMER_LOG_UNIT.size
        units = np.frombuffer(content, dtype=TIMER_LOG_UNIT.dtype, count=whole)
        bad = (units["size"] != TIMER_LOG_UNIT.size) | ((units["magic"] & ~0xF) != 0)
        used = int(bad.argmax()) if bad.any() else whole
        units = units[:used]
        start = position + np.arange(used, dtype=np.int64) * TIMER_LOG_UNIT.size
        stop = position + used * TIMER_LOG_UNIT.size
        reason = _why(content, used * TIMER_LOG_UNIT.size) if used < whole else ""
        yield _Units(
            start, units["phy_offset"].astype(np.int64), units["record_size"].astype(np.int64),
            units["write_timestamp"].astype(np.int64) + units["delay"], stop, reason,
        )
        if used < whole or whole == 0:
            return
        position = stop


def _why(content: bytes, offset: int) -> str:
    """What is wrong where the units stop; "" for an end mark or an unwritten place."""
    if offset + TIMER_LOG_BLANK.size > len(content):
        return ""
    try:
        decode(content, offset)
    except FormatError as error:
        return "" if error.reason in ("end", "unwritten") else str(error)
    return ""
