"""A reading of a store: its log, with every explanation that was accepted so far, and what follows from it.

Queues, index and losses are asked for when a doubt or a report needs them, once for each reading. A reading never
changes: `accepting` gives the next one. `recover.reading.doubts` has the doubts and the loop that ends when none of
them finds anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from recover.broker.settings import DelayTable
from recover.derived.expected import RIGHT, ConsumeQueueReport, Expectation, expect
from recover.derived.index_check import IndexReport, check_index
from recover.derived.queue_check import check_consumequeue
from recover.log.scan import LogView
from recover.reading.accepting import Noted, OldEnd, Relabel, accepting
from recover.reading.books import Account
from recover.reading.edits import Edit
from recover.reading.end import (
    NOWHERE,
    indexed_after_end,
    is_end_mark_only,
    named_after_end,
    named_by_index_alone,
    old_end,
)
from recover.reading.facts import Facts, ScanOptions
from recover.reading.lost import Losses, LostPosition, lost_positions
from recover.reading.placed import Placed
from recover.reading.policy import Explanation
from recover.reading.whose_log import ForeignFile, Ownership
from recover.store.columns import Rows
from recover.store.config_files import Topics
from recover.store.mapped_files import MappedFile
from recover.store.store import Store
from recover.store.unread import Elsewhere

_OF_RECORDS = ("expectation", "ownership", "behind", "indexed_behind", "old_end")
"""What is taken over from a reading of the same records."""


def same_records(found: Sequence[Explanation]) -> bool:
    """Whether all of these are about bytes without a live record, so that what the records imply stays."""
    return all(isinstance(one.becomes, Noted | OldEnd) for one in found)


class Reading(Struct, frozen=True, eq=False, dict=True):
    """A log, what its queues should hold and do hold, and what is lost.

    `by_names`: the log as brokers find it: each file at the offset of its name, no record set aside or edited.
    `accepted`: the explanations, in order. `settled` is false if the doubts found something new in every round.
    """

    facts: Facts
    log: LogView
    by_names: LogView
    accepted: tuple[Explanation, ...] = ()
    settled: bool = True

    @classmethod
    def first(cls, facts: Facts, log: LogView | None = None) -> Reading:
        """Return the reading of a scan that nothing has been compared with yet."""
        log = facts.scanned() if log is None else log
        return cls(facts, log, log)

    def accepting(self, found: Sequence[Explanation]) -> Reading:
        """Return the reading after these explanations: the only way from one log to another."""
        log = accepting(self.log, [one.becomes for one in found], memory=self.options.share)
        of_names = self.by_names is self.log and all(isinstance(one.becomes, Relabel | Noted | OldEnd) for one in found)
        after = Reading(self.facts, log, log if of_names else self.by_names, (*self.accepted, *found))
        if same_records(found):
            vars(after).update((name, vars(self)[name]) for name in _OF_RECORDS if name in vars(self))
        return after

    def like(self, other: Reading) -> Reading:
        """Return this reading with the queues as another one judged them: their log demands the same files."""
        alike = Reading(self.facts, self.log, self.by_names, self.accepted)
        vars(alike).update(expectation=other.expectation, queues=other.queues)
        return alike

    # --- What the log implies, each computed once.

    @cached_property
    def expectation(self) -> Expectation:
        return expect(self.log, self.topics)

    @cached_property
    def queues(self) -> ConsumeQueueReport | None:
        """The queues judged by the log; None where they are not read."""
        if not self.facts.with_queues:
            return None
        # progress is that of the first pass over the queues
        tick = None if self.accepted else self.options.tick
        return check_consumequeue(self.store, self.log, self.expectation, self.delays, tick=tick)

    @cached_property
    def index(self) -> IndexReport:
        """The index judged by the log; `OSError` if its folder cannot be listed."""
        return check_index(self.store, self.log)

    @cached_property
    def behind(self) -> list[LostPosition]:
        """The messages that units name after the log's end."""
        return [] if self.queues is None else named_after_end(self.log, self.expectation, self.queues)

    @cached_property
    def indexed_behind(self) -> Rows:
        """The physical offsets of messages after the log's end that the index names (int64)."""
        if not (self.facts.names_end and self.log.has_keys):
            return np.empty(0, dtype=np.int64)
        return indexed_after_end(self.log, self.facts.index_ends, lambda: self.index.behind)

    @cached_property
    def losses(self) -> Losses:
        losses = lost_positions(self.log, self.expectation, self.queues, self.behind)
        losses.indexed = named_by_index_alone(self.indexed_behind, self.log, losses)
        return losses

    @property
    def indexed_in_damage(self) -> Rows:
        """The physical offsets in damaged ranges that the index names (int64)."""
        asked = self.log.damaged and self.facts.names_end and self.log.has_keys
        return self.index.lost_at if asked else NOWHERE

    @cached_property
    def account(self) -> Account:
        """What is lost, by all witnesses."""
        return Account(self.log, self.losses, self.end_marks, self.indexed_in_damage)

    @cached_property
    def end_marks(self) -> set[int]:
        """The numbers of damaged ranges that are the end mark of a file."""
        queues = self.queues
        # queues that name every message up to the log's end prove that nothing else was lost
        proven = queues is not None and queues.total(RIGHT) > 0 and not any(
            verdict.missing for verdict in queues.verdicts.values())
        return {number for number, damage in enumerate(self.log.damaged)
                if is_end_mark_only(damage, len(self.losses.by_damage[number]), proven)}

    @cached_property
    def old_end(self) -> int | None:
        """The start of old records at the log's end at which a start would fail."""
        return old_end(self.log, self.store.queue_file_size)

    @cached_property
    def ownership(self) -> Ownership | None:
        """What is said of whose records are where; None where the queues are not read."""
        if self.queues is None:
            return None
        return Ownership(self.log, self.expectation, self.queues, lambda: self.index)

    # --- What was accepted.

    @property
    def foreign(self) -> list[ForeignFile]:
        """The files of another log."""
        return [*self.told("other-log")]

    @property
    def alone(self) -> list[ForeignFile]:
        """The files that may be of another log: nothing supports them."""
        return [] if self.ownership is None else self.ownership.alone

    @property
    def contradictions(self) -> list[Edit]:
        """The edits of intact records that belong elsewhere, ascending."""
        return sorted((one.becomes for one in self.accepted if isinstance(one.becomes, Edit)),
                      key=lambda edit: edit.start)

    @property
    def placed(self) -> list[Placed]:
        """The displaced records, which the log has at their place, ascending by it."""
        return sorted(self.told("displaced"), key=lambda run: run.start)

    @property
    def as_it_is(self) -> LogView:
        """The log with all records where they stand: no broker looks for displaced ones."""
        return self.by_names if self.placed else self.log

    def told(self, kind: str) -> Iterator[Any]:
        """Yield what is told of each accepted explanation of this kind."""
        return (one.about for one in self.accepted if one.kind == kind and one.about is not None)

    # --- What it starts from.

    @property
    def store(self) -> Store:
        return self.facts.store

    @property
    def options(self) -> ScanOptions:
        return self.facts.options

    @property
    def topics(self) -> Topics:
        return self.facts.topics

    @property
    def delays(self) -> DelayTable:
        return self.facts.delays

    @property
    def misnamed(self) -> list[tuple[MappedFile, int]]:
        return self.facts.misnamed

    @property
    def elsewhere(self) -> dict[str, Elsewhere]:
        return self.facts.elsewhere


Doubt = Callable[[Reading], Iterator[Explanation]]
"""Compares a reading with one kind of witness, and yields what contradicts it: only what it does not say already."""
