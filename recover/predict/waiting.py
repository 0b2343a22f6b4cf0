"""What a store keeps for later: every message that a service of the broker holds and has not delivered.

1. Queues are taken as a start leaves them, so that messages that a kill left without a unit count as well; where the
   start fails, as their files are.
2. Delayed, half and popped messages are those that a start would deliver, now or later (`delivers.events`).
3. Timer messages come from the log alone: those that are not recalled, that no later roll replaces, and of which the
   log holds no delivery. A damaged timerlog or wheel changes nothing.

Not checked: timers and transactions in RocksDB, popped messages in kvStore, offsets in RocksDB.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from recover.broker.settings import BrokerSettings
from recover.check.surroundings import Surroundings
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.predict.delivers import REVIVE_TOPIC, Books, Event, Row, events, rows_of, timers_of_log
from recover.predict.dispatch import load
from recover.predict.groups import offsets_in_rocksdb
from recover.predict.start import play
from recover.store.config_files import Topics
from recover.store.store import Store
from recover.store.unread import unread_parts

_SERVICES = ("rocksdbstore", "kvStore")


class Waiting(Struct):
    """The messages, by kind and place, and the parts that may hold more and are not read."""

    events: list[Event]
    not_checked: list[str]

    @staticmethod
    def rows(those: Iterable[Event]) -> list[Row]:
        return rows_of(those)


def waiting(store: Store, log: LogView, topics: Topics, settings: BrokerSettings, now: int) -> Waiting:
    """Return what waits at `now` (ms), as the broker of these settings sees it."""
    queues = play(Surroundings(store, log), settings, counted=False, rights=False).states
    if not queues:
        queues = load(store, settings).queues
        for state in queues.values():
            state.recover()
            state.correct_min(log.min_offset)
    books = Books(store, log, topics, now)
    found = [event for event in events(books, settings, queues) if event.kind != "timer"]
    with LogReader(log.queue) as reader:
        found += [event for event in timers_of_log(books, reader) if not event.topic.startswith(REVIVE_TOPIC)]
    not_checked = [f"{store.relative(part.path)}: {part.what}" for part in unread_parts(store, queues=False)
                   if part.path.name in _SERVICES and part.holds(part.path)]
    return Waiting(found, not_checked + offsets_in_rocksdb(store))
