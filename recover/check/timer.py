"""Timer checks: every unit of the timerlog must name a message, and every pending message must have a unit.

Delivered units stay until their file expires, so units before the start of the log are normal. A broker's own recovery
cuts the timerlog where the units stop (TimerMessageStore.recoverAndRevise). config/timercheck says how far a broker
read the timer topic, and up to what time it delivered; the log tells whether that is possible.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from formats import properties as props, timer
from formats.basics import FormatError
from formats.properties import TIME_DIGITS, is_number
from formats.record.rows import BIT_STALE, STAND_IN
from recover.broker.settings import java_integer
from recover.findings.code import N_, RECOVER
from recover.findings.model import Finding, Phrase, finding, moment
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reader import FileReader
from recover.store.source import open_file, read_small
from recover.store.store import CONFIG, Store

TIMERLOG = "timerlog"
TIMERWHEEL = "timerwheel"
TIMER_TOPIC = b"rmq_sys_wheel_timer"
_CHECK = "timercheck"
CHECK_FILE = f"{CONFIG}/{_CHECK}"
_CHUNK = timer.TIMER_LOG_UNIT.size * 20_000
_PRECISIONS = (1000, 500, 200, 100, 50, 20, 10)
_SLACK_MS = 10_000
_LAG_MS = 60_000
"""Brokers write config/timercheck once a second; after a kill it lacks no more deliveries than these."""
_WHEEL_MS = 8 * 24 * 3600 * 1000
"""Pending messages were stored, or rolled on, within this time: it is longer than the reach of the week's wheel."""
_READ = 100_000


class _Units(Struct):
    """Units of one file: positions and columns. `stop`: where they end; `behind`: whole units after the stop."""

    position: Rows
    columns: Rows
    due: Rows
    stop: int
    reason: str = ""
    behind: int = 0

    @property
    def phy_offset(self) -> Rows:
        return self.columns["phy_offset"]

    @property
    def size(self) -> Rows:
        return self.columns["record_size"]


class _State(Struct):
    """config/timercheck, the times (ms) up to which it can be true, and what the units read so far name. `overdue`: a
    unit was due longer ago than a delivery takes to reach the file."""

    check: timer.TimerCheck | None
    newest: int
    delivered: int
    end: int = 0
    units: int = 0
    named: list[Rows] = field(default_factory=list)
    waiting: list[Rows] = field(default_factory=list)
    ahead: int = 0
    overdue: bool = False


def check_timer(store: Store, log: LogView) -> Iterator[Finding]:
    """Findings about timerlog, timerwheel and timercheck."""
    if not has_timer(store):
        yield from _all_gone(store, log)
        return
    try:
        yield from check_files(store)
        queue = _timerlog(store)
        check, problem = _check_of(store)
        # no delivery is later than the newest message, because a delivery stores one; without messages nothing is known
        newest = log.tally.newest_timestamp + _SLACK_MS if log.tally.newest_timestamp > 0 else sys.maxsize
        state = _State(check, newest, 0 if check is None else min(check.last_read_timestamp, newest))
        for mapped_file in queue.files:
            yield from _check_file(store, log, mapped_file, state)
        if state.units and check is None:
            yield finding("timer-check-wrong", CHECK_FILE, None, problem=problem)
        if state.ahead and check is not None:
            until, newest_of_log = moment(check.last_read_timestamp), moment(log.tally.newest_timestamp)
            problem = Phrase("states that everything was delivered up to {until}, but {n} entries are due before that "
                             "and later than the newest message ({newest})", until=until, n=state.ahead,
                             newest=newest_of_log)
            yield finding("timer-check-wrong", CHECK_FILE, timer.TIMER_CHECK.offset("last_read_timestamp"),
                          problem=problem,
                          value=check.last_read_timestamp, newest=log.tally.newest_timestamp, units=state.ahead)
        if check is not None:
            yield from _too_low(check)
            yield from _delivered_later(log, check, state)
            yield from _missing(store, log, check, state)
            yield from _out_of_wheel(store, check, state, queue.file_size)
    except OSError as error:
        part = store.relative(Path(error.filename))
        yield finding("part-unreadable", part, None, part=part, error=error.strerror)


def has_timer(store: Store) -> bool:
    """Whether the store has any timer file; config/timercheck alone is enough."""
    return any(store.root.glob("timer*")) or (store.config_dir / _CHECK).exists()


def _all_gone(store: Store, log: LogView) -> Iterator[Finding]:
    """A log with timer messages, without any timer file: a broker reads the queue from its first message on."""
    if (TIMER_TOPIC, 0) not in log.queues or store.options.settings.get("timerRocksDBEnable", "").lower() == "true":
        return
    number = sum(rows.size for rows in _timer_rows(log))
    if number:
        yield finding("timer-check-wrong", CHECK_FILE, None, units=number, problem=Phrase(
            "is missing, as are timerlog and timerwheel, but the log holds {n:timer message}: a start delivers once "
            "more those that were delivered", n=number))


def _too_low(check: timer.TimerCheck) -> Iterator[Finding]:
    """The two fields that make brokers deliver again when they are too low (5.3.3 and 5.5.0 were asked); the others
    count as 0, or the timerlog outranks them. The offset of the queue never exceeds that of the master."""
    taken_up = max(0, check.last_timer_queue_offset)
    for name, says, least in (
        ("last_read_timestamp", N_("says that all was delivered up to {value} (ms), which no broker writes"), 0),
        ("master_timer_queue_offset",
         N_("says that the master took up the timer queue to {value}, which no broker writes"), taken_up),
    ):
        value = getattr(check, name)
        if value < least:
            yield finding("timer-check-wrong", CHECK_FILE, timer.TIMER_CHECK.offset(name),
                          problem=Phrase(says, value=value), value=value)


def _delivered_later(log: LogView, check: timer.TimerCheck, state: _State) -> Iterator[Finding]:
    """A message that the log holds as delivered, but that was due long after the time up to which timercheck says so:
    5.3.3 delivers it again (TimerMessageStore.recover)."""
    limit, left = check.last_read_timestamp + _LAG_MS, _READ
    with LogReader(log.queue) as reader:
        for split in reversed([*log.splits()]) if state.overdue and check.last_read_timestamp >= 0 else ():
            rows = split.records[(split.records["store_timestamp"] > limit)
                                 & ((split.records["bits"] & (BIT_STALE | STAND_IN)) == 0)][-left:]
            for row in rows[::-1]:
                found = _properties(reader, int(row["phy_offset"]), int(row["size"]))
                due = found.get(props.TIMER_OUT_MS, "")
                delivered = props.TIMER_DEQUEUE_MS in found and log.queues[row["queue"]][0] != TIMER_TOPIC
                if delivered and is_number(due, TIME_DIGITS) and int(due) > limit:
                    yield finding(
                        "timer-check-wrong", CHECK_FILE, timer.TIMER_CHECK.offset("last_read_timestamp"),
                        problem=Phrase("states that everything was delivered up to {until:time}, but a message that "
                                       "was due at {due:time} was delivered",
                                       until=check.last_read_timestamp, due=int(due)),
                        value=check.last_read_timestamp, phy_offset=int(row["phy_offset"]))
                    return
            left -= rows.size
            if left <= 0:
                return


def _out_of_wheel(store: Store, check: timer.TimerCheck, state: _State, file_size: int) -> Iterator[Finding]:
    """Units that wait and that only the timerwheel leads to, if it does not: a start puts into it what the last files
    of the timerlog hold, and finds the units before through their chains (TimerMessageStore.recover)."""
    if not state.waiting:
        return
    position, due = np.concatenate(state.waiting, axis=1)
    revised = position >= max(0, check.last_timer_log_flush_position - file_size) // file_size * file_size
    lost = ~np.isin(due, due[revised])
    if not lost.any() or any(store.root.glob(f"{TIMERWHEEL}.*")):
        return
    try:
        content = read_small(store.root / TIMERWHEEL, timer.WHEEL_FILE_SIZE)
    except FileNotFoundError:
        content = b""
    slots = np.frombuffer(content, timer.TIMER_WHEEL_SLOT.dtype, len(content) // timer.TIMER_WHEEL_SLOT.size)
    lost &= ~np.isin(due // _precision(due), slots["instant"])
    if lost.any():
        yield finding("part-damaged" if content else "part-missing", TIMERWHEEL, None, part=TIMERWHEEL,
                      what=N_("slots of the timer"), stops=False,
                      problem=Phrase("{n:waiting entry|waiting entries} of the timerlog, the first at {first}, cannot "
                                     "be found without it", n=int(lost.sum()), first=int(position[lost][0])))


def _precision(due: Rows) -> int:
    return next((p for p in _PRECISIONS if 2 * int((due % p == 0).sum()) > due.size), 1)


def _timerlog(store: Store) -> MappedFileQueue:
    # without a setting the size is inferred from the files
    size = java_integer(store.options.settings.get("mappedFileSizeTimerLog", "")) or 0
    return MappedFileQueue.load((store.root / TIMERLOG,), size)


def check_files(store: Store) -> Iterator[Finding]:
    """Timer files with a wrong length, and entries that are not files of the timerlog; snapshots and folders aside, no
    release from 5.0.0 on starts with one. `OSError`, with EINVAL if timerwheel or timercheck is no
    file."""
    _check_of(store)
    for path in sorted(store.root.glob(TIMERWHEEL + "*")):
        snapshot = path.name.removeprefix(TIMERWHEEL + ".").isdecimal()
        if path.name != TIMERWHEEL and not snapshot:
            continue
        with open_file(path) as reader:  # which a broker opens, too
            length = reader.length
        if length not in (0, timer.WHEEL_FILE_SIZE):
            yield finding("timer-wheel-bad-length", path.name, None, name=path.name, length=length,
                          expected=timer.WHEEL_FILE_SIZE)
    queue = _timerlog(store)
    for odd in queue.odd:
        yield finding("timer-odd-name", store.relative(odd.path), None, severity="info" if odd.is_directory else None,
                      name=odd.path.name)
    for wrong in queue.wrong_lengths():
        yield finding("timer-log-bad-length", store.relative(wrong.path), 0, length=wrong.length,
                      expected=queue.file_size)


def _check_of(store: Store) -> tuple[timer.TimerCheck | None, str]:
    """Return config/timercheck, or why it cannot be used."""
    try:
        content = read_small(store.config_dir / _CHECK, timer.TIMER_CHECK.size)
        if content and not any(content):
            return None, N_("holds only zeros, but the timerlog has entries")
        return timer.TIMER_CHECK.decode(content), ""
    except FileNotFoundError:
        return None, N_("is missing, but the timerlog has entries")
    except FormatError as error:
        return None, Phrase("cannot be read: {error}", error=error)


def _check_file(store: Store, log: LogView, mapped_file: MappedFile, state: _State) -> Iterator[Finding]:
    name = store.relative(mapped_file.path)
    with open_file(mapped_file.path) as reader:
        for units in _units(reader, mapped_file.length):
            at = units.position.size
            state.units += at
            state.end = mapped_file.file_from_offset + units.stop
            state.named.append(units.phy_offset.astype(np.int64))
            waits = units.due > state.delivered
            state.waiting.append(np.stack([mapped_file.file_from_offset + units.position[waits], units.due[waits]]))
            live = units.phy_offset >= log.min_offset
            beyond = units.phy_offset + units.size > log.log_end
            if beyond.any():
                yield _about("timer-points-beyond-log", name, units, beyond, log)
            pending = ~beyond & live & (units.due >= state.delivered)
            wrong = np.zeros(at, dtype=bool)
            some = np.flatnonzero(pending)
            places = units.phy_offset[some]
            wrong[some] = ~(log.in_damage(places) | log.holds(places, units.size[some]))
            if wrong.any():
                yield _about("timer-wrong-record", name, units, wrong, log)
            odd = live & ~beyond & ~wrong & _contradicts(log, units, mapped_file.file_from_offset, pending)
            if odd.any():
                yield _about("timer-wrong-units", name, units, odd, log)
            state.ahead += _claimed(units, state)
            state.overdue |= bool(((units.due > state.delivered + _LAG_MS) & (units.due < state.newest)).any())
            if units.reason:
                yield finding(
                    "timer-log-stops", name, units.stop, severity="warning" if units.behind else None,
                    remedy=RECOVER if units.behind else None, position=units.stop, reason=units.reason,
                    behind=units.behind,
                )


def _about(code: str, name: str, units: _Units, which: Rows, log: LogView) -> Finding:
    at = np.flatnonzero(which)
    first, last = int(units.position[at[0]]), int(units.position[at[-1]])
    return finding(code, name, first, first=first, last=last, count=int(at.size), log_end=log.log_end,
                   phy_offset=int(units.phy_offset[at[0]]))


def _claimed(units: _Units, state: _State) -> int:
    """Count units that timercheck treats as delivered although nothing was stored since they were due."""
    if state.check is None:
        return 0
    plain = units.columns["magic"] == timer.MAGIC_DEFAULT
    late = (units.due > state.newest) & (units.due < state.check.last_read_timestamp)
    return int((plain & late).sum())


def _contradicts(log: LogView, units: _Units, base: int, pending: Rows) -> Rows:
    """Units whose fields contradict the others: due times are multiples of the precision, a chain has one due time."""
    magic = units.columns["magic"]
    wrong = pending & ((magic & timer.MAGIC_DEFAULT) == 0)
    precision = _precision(units.due)
    wrong |= (units.due % precision != 0) & ((magic & timer.MAGIC_ROLL) == 0)
    previous = units.columns["previous"].astype(np.int64)
    wrong |= pending & ((previous < -1) | (previous >= base + units.position))
    start = base + int(units.position[0]) if units.position.size else 0
    here = np.flatnonzero(pending & (previous >= start) & ~wrong)
    step, rest = np.divmod(previous[here] - start, timer.TIMER_LOG_UNIT.size)
    same = (rest == 0) & (units.due[step] // precision == units.due[here] // precision)
    wrong[here] |= ~same & ~wrong[step]
    with LogReader(log.queue) as reader:
        for at in np.flatnonzero(pending & ~wrong & ((magic & timer.MAGIC_DELETE) != 0))[:_READ].tolist():
            found = _properties(reader, int(units.phy_offset[at]), int(units.size[at]))
            wrong[at] = props.TIMER_DEL_UNIQKEY not in found
    return np.asarray(wrong)


def _properties(reader: LogReader, phy_offset: int, size: int) -> dict[str, str]:
    """The properties of a record; empty if it cannot be read."""
    try:
        return reader.record(phy_offset, size).property_map()
    except FormatError:
        return {}


def _missing(store: Store, log: LogView, check: timer.TimerCheck, state: _State) -> Iterator[Finding]:
    """Messages that were read into the timerlog, are not due yet, and have no unit there; and those that have one
    although timercheck says that they were not read, so that 5.3.3 and 5.5.0 read and deliver them again.

    If units are in RocksDB, there never was a timerlog.
    """
    reached = check.last_timer_log_flush_position
    if (TIMER_TOPIC, 0) not in log.queues or not (state.units or reached > 0):
        return
    named = np.concatenate(state.named) if state.named else np.empty(0, dtype=np.int64)
    lost: list[int] = []
    again: list[int] = []
    master = check.master_timer_queue_offset
    # an orderly stop writes the file last of all
    written = check.last_read_timestamp - _LAG_MS if store.has_abort else sys.maxsize
    with LogReader(log.queue) as reader:
        for rows in _timer_rows(log):
            known, stored = np.isin(rows["phy_offset"], named), rows["store_timestamp"]
            without = ~known & (rows["queue_offset"] < check.last_timer_queue_offset) & (
                stored > state.delivered - _WHEEL_MS)
            unread = known & (rows["queue_offset"] >= master) & (stored < written)
            for found, which, delivered in ((lost, without, state.delivered),
                                            (again, unread, check.last_read_timestamp)):
                found += [int(row["phy_offset"]) for row in rows[which][-_READ:]
                          if _due(reader, int(row["phy_offset"]), int(row["size"])) > delivered]
    if again and master >= max(0, check.last_timer_queue_offset):
        yield finding("timer-check-wrong", CHECK_FILE, timer.TIMER_CHECK.offset("master_timer_queue_offset"),
                      problem=Phrase("says that the timer queue was taken up to {master}, but pending messages from "
                                     "there on have entries already ({n}, the first at {first})", master=master,
                                     n=len(again), first=again[0]),
                      value=master, phy_offset=again[0], units=len(again))
    if lost:
        yield finding("timer-units-missing", TIMERLOG, None, count=len(lost), first=lost[0], end=state.end,
                      reached=reached)
    elif reached > 0 and not state.units:
        yield finding("part-missing", TIMERLOG, None, part=TIMERLOG, what=N_("timer messages"), stops=False,
                      problem=Phrase("{file} states that it was written up to {reached}", file=CHECK_FILE,
                                     reached=reached))


def waiting_timers(store: Store, log: LogView) -> int:
    """The number of timer messages in the log that are due later than the last delivery that timercheck or the newest
    message shows; of many only the last of each split count. `OSError`."""
    try:
        check, _ = _check_of(store)
    except OSError:
        check = None
    delivered = max(log.tally.newest_timestamp, 0 if check is None else check.last_read_timestamp)
    with LogReader(log.queue) as reader:
        return sum(_due(reader, int(row["phy_offset"]), int(row["size"])) > delivered
                   for rows in _timer_rows(log) for row in rows[-_READ:])


def _timer_rows(log: LogView) -> Iterator[Rows]:
    """Yield the timer messages of each split that are neither stale nor stand-ins."""
    return log.rows_of([number for number, queue in enumerate(log.queues) if queue == (TIMER_TOPIC, 0)])


def _due(reader: LogReader, phy_offset: int, size: int) -> int:
    """When the timer message is due (ms); 0 if it cannot be read, or cancels another."""
    found = _properties(reader, phy_offset, size)
    due = found.get(props.TIMER_OUT_MS, "")
    return int(due) if is_number(due, TIME_DIGITS) and props.TIMER_DEL_UNIQKEY not in found else 0


def _units(reader: FileReader, length: int) -> Iterator[_Units]:
    """The units of a file in chunks, up to its end mark or the first place without a unit."""
    position = 0
    while position < length:
        content = reader.read(position, min(_CHUNK, length - position))
        whole = len(content) // timer.TIMER_LOG_UNIT.size
        units = np.frombuffer(content, dtype=timer.TIMER_LOG_UNIT.dtype, count=whole)
        bad = (units["size"] != timer.TIMER_LOG_UNIT.size) | ((units["magic"] & ~0xF) != 0)
        used = int(bad.argmax()) if bad.any() else whole
        behind = int((~bad[used:]).sum())
        units = units[:used]
        start = position + np.arange(used, dtype=np.int64) * timer.TIMER_LOG_UNIT.size
        stop = position + used * timer.TIMER_LOG_UNIT.size
        reason = _why(content, used * timer.TIMER_LOG_UNIT.size) if used < whole else ""
        if used < whole and not reason and behind:
            reason = N_("an end mark or zeros")
        yield _Units(start, units, units["write_timestamp"].astype(np.int64) + units["delay"], stop, reason, behind)
        if used < whole or whole == 0:
            return
        position = stop


def _why(content: bytes, offset: int) -> str:
    """The reason why the units stop; "" for an end mark or an unwritten place."""
    if offset + timer.TIMER_LOG_BLANK.size > len(content):
        return ""
    try:
        timer.decode(content, offset)
    except FormatError as error:
        return "" if error.reason in ("end", "unwritten") else str(error)
    return ""
