"""The doubts about a reading, in their order, and the loop that asks them until none finds anything.

A doubt compares the reading with one kind of witness. It counts and quotes, and yields only what the reading does not
say already; `decide` weighs the claims. When something is accepted about a record, the next reading is asked from the
first doubt on: a damage that units reveal changes the order of queues, an edited record fills a place that seemed lost.
What was accepted only grows, so this ends.

To add a doubt: write it in the file of its subject, and its line in `DOUBTS` after all that it takes for granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from recover.log.judge import Claim
from recover.reading.accepting import Noted, OldEnd
from recover.reading.end import damage_after_end, file_named_elsewhere, said_behind
from recover.reading.facts import Facts
from recover.reading.order import confirmed_place, false_restart, named_by_unit, older_topic
from recover.reading.placed import displaced_in
from recover.reading.places import named_elsewhere, only_place_left
from recover.reading.policy import Explanation, decide
from recover.reading.reading import Doubt, Reading, same_records
from recover.reading.whose_log import older_in_place, other_log, turned_clock
from recover.store.store import CONSUMEQUEUE

_ROUNDS = 8
"""Most stores take one round, and damaged ones two or three."""


def displaced(reading: Reading) -> Iterator[Explanation]:
    """Whole records that stand elsewhere than they say, in bytes that the walk of the log does not explain."""
    facts = reading.facts
    for run in () if facts.options.in_place else displaced_in(
        reading.log, None if CONSUMEQUEUE in facts.elsewhere else facts.store, reading.placed, facts.search,
        facts.options.further, facts.retention, lambda: reading.indexed_in_damage,
    ):
        yield Explanation("displaced", run, about=run)


def after_the_end(reading: Reading) -> Iterator[Explanation]:
    """Messages after the end of the log that units or the index name."""
    if reading.facts.names_end and reading.log.has_keys and (reading.behind or reading.indexed_behind.size):
        for damage, claims in damage_after_end(
            reading.log, reading.behind, reading.indexed_behind, reading.facts.last_time
        ):
            yield Explanation("after-the-end", Noted(damage), claims)


def file_after_the_end(reading: Reading) -> Iterator[Explanation]:
    """Missing files after the last one that index or checkpoint know of."""
    log, facts = reading.log, reading.facts
    if facts.names_end and log.has_keys:
        gone = file_named_elsewhere(log.files, log.tally.newest_timestamp, facts.index_ends, facts.checkpoint)
        if gone is not None and not any(damage.stop > gone.start for damage in log.damaged):
            said = said_behind(gone.start, log.tally.newest_timestamp, facts.index_ends, facts.checkpoint)
            claims = [Claim(source, True) for source in sorted({source for source, _ in said})]
            yield Explanation("file-after-the-end", Noted(gone), (Claim("end mark", True), *claims))


def old_end(reading: Reading) -> Iterator[Explanation]:
    """Old records that end the log are not damage: they are removed."""
    old = reading.old_end
    if old is not None and any(damage.start >= old for damage in reading.log.damaged):
        yield Explanation("old-end", OldEnd(old))


ORDER: tuple[Doubt, ...] = (false_restart, confirmed_place)
"""What the order of records in their queues depends on: comes before everything else, and after every change."""
OWNERS: tuple[Doubt, ...] = (turned_clock, named_by_unit, other_log, older_in_place)
DOUBTS: tuple[Doubt, ...] = (
    *ORDER, displaced, *OWNERS, after_the_end, file_after_the_end, old_end, named_elsewhere, only_place_left,
    older_topic,
)


def read(facts: Facts) -> Reading:
    """Scan the log and judge it by everything that is read. `Refusal` (8) if a file cannot be opened."""
    reading = Reading.first(facts)
    if facts.misnamed:
        names = resolved(Reading.first(facts, facts.scanned_by_names()), ORDER)
        reading = structs.replace(reading, by_names=names.log)
    return resolved(reading)


def resolved(reading: Reading, doubts: Sequence[Doubt] = DOUBTS) -> Reading:
    """Return the reading after which none of these doubts finds anything."""
    at, rounds = 0, 1
    while at < len(doubts):
        found = decide(doubts[at](reading))
        at += 1
        if found:
            reading = reading.accepting(found)
            if not same_records(found):
                at, rounds = 0, rounds + 1
        if rounds > _ROUNDS:
            return structs.replace(reading, settled=False)
    return reading
