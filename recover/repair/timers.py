"""The timer files, made again from the log: timerlog, timerwheel and config/timercheck.

1. What waits is told by the log alone: timer messages that are not recalled, not rolled on and not delivered.
2. The timerlog gets a unit for each, in the order of the queue, chained by due time as brokers do
   (TimerMessageStore.doEnqueue). What became due before the newest message, and was not delivered, is due then.
3. A broker reads its queue on behind the message of the last unit. Where that is not the last of the queue, a unit of
   the last one follows, at a time that is read no more.
4. The wheel and its snapshots go: a start makes a new one from the last two files of the timerlog. With more units than
   these hold, a wheel is written.
5. timercheck says that all was delivered up to the newest message of the log, and that the queue was read to its end.

It does not protect from a start more than a week after the newest message: brokers do not read slots so far back, and
predict says so. The metrics of the timer stay as they are. Timers in RocksDB are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from formats import timer
from formats.basics import hash32, offset_to_name
from recover.change.content import BytesContent
from recover.change.model import Install, Retire, Step, WriteFile
from recover.check.timer import CHECK_FILE, TIMER_TOPIC, TIMERLOG, TIMERWHEEL
from recover.findings.model import Finding
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.predict.delivers import Books, TimerMessage, timer_messages
from recover.predict.timers import PRECISION_MS, timer_check, timer_file_size, timer_log
from recover.store.config_files import Topics
from recover.store.store import Store

_CODES = frozenset({
    "timer-check-wrong", "timer-units-missing", "timer-points-beyond-log", "timer-wrong-record", "timer-wrong-units",
    "timer-log-stops", "timer-log-bad-length", "timer-wheel-bad-length",
})
_PARTS = (TIMERLOG, TIMERWHEEL)


def is_broken(findings: Iterable[Finding]) -> bool:
    """Whether the timer's files need to be made again, according to verify."""
    return any(item.severity != "info" and (
        item.code in _CODES or (item.code in ("part-missing", "part-damaged") and item.file in _PARTS))
        for item in findings)


def timer_steps(store: Store, log: LogView, topics: Topics) -> list[Step]:
    """The steps that make the timer's files again; none where the log holds no timer message."""
    if (TIMER_TOPIC, 0) not in log.queues:
        return []
    with LogReader(log.queue) as reader:
        messages, last = timer_messages(Books(store, log, topics, 0), reader)
    newest = log.tally.newest_timestamp // PRECISION_MS * PRECISION_MS
    units = [*_units(messages, last, newest, timer_file_size(store))]
    return [*_steps(store, units, last.queue_offset + 1 if last is not None else 0, newest)]


def _units(
    messages: list[TimerMessage], last: TimerMessage | None, newest: int, size: int,
) -> Iterator[timer.TimerLogUnit]:
    chains: dict[int, int] = {}
    for number, message in enumerate(messages):
        due, magic = max(message.due // PRECISION_MS * PRECISION_MS, newest), timer.MAGIC_DEFAULT
        reach = timer.ROLL_SLOTS * PRECISION_MS
        if due - newest >= reach:
            magic |= timer.MAGIC_ROLL
            due = newest + (reach // 2 if due - newest - reach < reach // 3 else reach)
        if message.recalls:
            magic |= timer.MAGIC_DELETE
        yield _unit(message, chains.get(due, timer.NO_UNIT), magic, newest, due)
        chains[due] = timer.position_of(number, size)
    if messages and last is not None and messages[-1].phy_offset != last.phy_offset:
        due = newest - timer.BLANK_SLOTS * PRECISION_MS
        yield _unit(last, timer.NO_UNIT, timer.MAGIC_DEFAULT, due - PRECISION_MS, due)


def _unit(message: TimerMessage, previous: int, magic: int, written: int, due: int) -> timer.TimerLogUnit:
    return timer.TimerLogUnit(
        timer.TIMER_LOG_UNIT.size, previous, magic, written, due - written, message.phy_offset, message.size,
        hash32(message.topic), 0)


def _steps(store: Store, units: list[timer.TimerLogUnit], queue_end: int, newest: int) -> Iterator[Step]:
    size = timer_file_size(store)
    files = timer.encode_log(units, size) if units else []
    names = [f"{TIMERLOG}/{offset_to_name(number * size)}" for number in range(len(files))]
    there = [store.relative(file.path) for file in timer_log(store).files]
    yield from (Retire(name) for name in there if name not in names)
    for name, content in zip(names, files, strict=True):
        yield Install(name, BytesContent(content, size - len(content)))
    for path in sorted(store.root.glob(f"{TIMERWHEEL}*")):
        snapshot = path.name.removeprefix(f"{TIMERWHEEL}.").isdecimal()
        if path.is_file() and (snapshot or (path.name == TIMERWHEEL and len(files) <= _REVISED)):
            yield Retire(path.name)
    if len(files) > _REVISED:
        yield Install(TIMERWHEEL, timer.encode_wheel([*_slots(units, size)]))
    old = timer_check(store)
    end = timer.position_of(len(units), size) if units else 0
    yield WriteFile(CHECK_FILE, timer.encode_check(old._replace(
        last_read_timestamp=newest, last_timer_log_flush_position=end, last_timer_queue_offset=queue_end,
        master_timer_queue_offset=queue_end)))


_REVISED = 2
"""So many of the last files a start walks to fill its wheel."""


def _slots(units: list[timer.TimerLogUnit], size: int) -> Iterator[timer.TimerWheelSlot]:
    slots: dict[int, timer.TimerWheelSlot] = {}
    for number, unit in enumerate(units):
        instant, at = (unit.write_timestamp + unit.delay) // PRECISION_MS, timer.position_of(number, size)
        known = slots.get(instant, timer.TimerWheelSlot(instant, at, at, 0, 0))
        more = -1 if unit.magic & timer.MAGIC_DELETE else 1
        slots[instant] = known._replace(last_position=at, unit_count=known.unit_count + more)
    yield from slots.values()
