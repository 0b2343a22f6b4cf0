"""What a store keeps for later: every message that a service of the broker holds and has not delivered.

1. Queues are taken as a start leaves them, so that messages that a kill left without a unit count as well. Where only
   owners and modes of files refuse the start, they are those of the start without them; where it fails otherwise, as
   their files are.
2. Delayed, half and popped messages are those that a start would deliver, now or later (`delivers.events`).
3. Timer messages come from the log alone: those that are not recalled, that no later roll replaces, and of which the
   log holds no delivery. A damaged timerlog or wheel changes nothing. What becomes of one is what the start does with
   it; one that a sound timer does not lead to is skipped.

Not checked: timers and transactions in RocksDB, popped messages in kvStore, offsets in RocksDB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from recover.broker.settings import BrokerSettings
from recover.log.judge import LogReader
from recover.predict.delivers import REVIVE_TOPIC, Books, Event, Row, States, events, rows_of, timers_of_log
from recover.predict.dispatch import load
from recover.predict.groups import offsets_in_rocksdb
from recover.predict.start import Starts, has_timer_service
from recover.reading.reading import Reading
from recover.store.unread import unread_parts

_SERVICES = ("rocksdbstore", "kvStore")


class Waiting(Struct):
    """The messages, by kind and place, and the parts that may hold more and are not read."""

    events: list[Event]
    not_checked: list[str]

    @staticmethod
    def rows(those: Iterable[Event]) -> list[Row]:
        return rows_of(those)


def waiting(reading: Reading, settings: BrokerSettings, now: int) -> Waiting:
    """Return what waits at `now` (ms), as the broker of these settings sees it; where it would not start, the outcomes
    are for when it does."""
    store, starts = reading.store, Starts.on(reading)
    queues = starts.play(settings, counted=False, rights=False).states
    if not queues:
        queues = load(store, settings).queues
        for state in queues.values():
            state.recover()
            state.correct_min(reading.by_names.min_offset)
    found = [*_those_that_wait(starts, settings, queues, starts.books(now))]
    not_checked = [f"{store.relative(part.path)}: {part.what}" for part in unread_parts(store, queues=False)
                   if part.path.name in _SERVICES and part.holds(part.path)]
    return Waiting(found, not_checked + offsets_in_rocksdb(store))


def _those_that_wait(starts: Starts, settings: BrokerSettings, queues: States, books: Books) -> Iterator[Event]:
    at_start: dict[int, Event] = {}
    for event in events(books, settings, queues):
        if event.kind == "timer":
            at_start.setdefault(event.phy_offset, event)
        else:
            yield event
    serves, damaged = has_timer_service(settings), bool(starts.around.timer_damage)
    with LogReader(books.log.queue) as reader:
        for event in timers_of_log(books, reader):
            if event.topic.startswith(REVIVE_TOPIC):
                continue
            known = at_start.get(event.phy_offset)
            if known is not None:
                yield event._replace(outcome=known.outcome)
            elif damaged:
                yield event
            else:
                yield event._replace(outcome="skipped" if serves else "pending")
