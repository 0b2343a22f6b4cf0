"""Derived files judged against the log as a plan leaves it. What a look at the store still says of them is kept."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, structs

from formats.kernels.queue import EXPIRED, HOLE, RIGHT
from formats.record_columns import EXPECTED
from recover.broker.delays import DelayTable
from recover.evidence.expected import Expectation, QueueKey, expect
from recover.evidence.queue_verdict import QueueVerdict
from recover.files.store import Store
from recover.memory.columns import Rows
from recover.mend.log_changes import LogChanges
from recover.scan.log import LogView
from recover.verify.checkpoint import CheckpointReport, check_checkpoint
from recover.verify.config import ConfigReport, check_config
from recover.verify.consumequeue import check_consumequeue
from recover.verify.index import check_index
from recover.verify.index_report import IndexReport
from recover.verify.report import VerifyReport
from recover.verify.survey import Survey

_PLAIN = {RIGHT, EXPIRED, HOLE}
_NO_ROWS = np.empty(0, dtype=EXPECTED)


class Judged(Struct, frozen=True):
    """The derived files on disk against the changed log; `look` is the survey with that log and its queues."""

    look: Survey
    index: IndexReport
    checkpoint: CheckpointReport
    config: ConfigReport


def judge_against(store: Store, before: VerifyReport, changes: LogChanges, after: LogView) -> Judged:
    """Hold queues, index, checkpoint and config of the store, of which all is in `before`, against the log `after`."""
    look = before.survey
    if _says_the_same(look.log, after, changes) and before.index and before.checkpoint and before.config:
        return Judged(structs.replace(look, log=after), before.index, before.checkpoint, before.config)
    delays = DelayTable(look.delays.levels)
    delays.observed = dict(look.delays.observed)
    expectation = expect(after, look.topics, include_deleted=look.options.include_deleted)
    known = sound_queues(look, after, expectation)
    queues = None if look.queues is None else check_consumequeue(
        store, after, expectation, delays, known=known, tick=look.options.tick
    )
    then = structs.replace(look, log=after, expectation=expectation, delays=delays, queues=queues)
    return Judged(then, check_index(store, after), check_checkpoint(store, after), check_config(store, then))


def _says_the_same(before: LogView, after: LogView, changes: LogChanges) -> bool:
    """True when the changes leave everything in the log as it is that derived files are judged by."""
    if changes.replaced or changes.dropped or before.ghosts:
        return False
    same = ("min_offset", "log_end", "messages", "superseded", "fillers", "markers", "newest_timestamp")
    return all(getattr(before, name) == getattr(after, name) for name in same) and _damage(before) == _damage(after)


def _damage(log: LogView) -> list[tuple[int, int]]:
    return [(damage.start, damage.stop) for damage in log.damaged]


def sound_queues(look: Survey, after: LogView, expectation: Expectation) -> dict[QueueKey, QueueVerdict]:
    """Verdicts on queues that hold just what they should, before and `after` the change: the log asks the same of them.

    `expectation` is what the changed log asks for. Units in damage or behind the log's end are judged again.
    """
    if look.queues is None or look.log.min_offset != after.min_offset:
        return {}
    candidates = {key: verdict for key, verdict in look.queues.verdicts.items() if _is_plain(verdict)}
    with_rows = {key for key, verdict in candidates.items() if verdict.expected}
    then = expectation.grouped(with_rows)
    key, rows = next(then, (None, _NO_ROWS))
    known = {}
    for own, before in look.expectation.grouped(with_rows):
        # both go through the queues in the order of the log; a queue out of turn is judged again
        if own == key and _equal(before, rows):
            known[own] = candidates[own]
        if own == key:
            key, rows = next(then, (None, _NO_ROWS))
    asked = expectation.queues()
    return known | {own: candidates[own] for own in candidates.keys() - with_rows - asked.keys()}


def _is_plain(verdict: QueueVerdict) -> bool:
    return verdict.sound and not verdict.missing and not {kind for kind, n in verdict.counts.items() if n} - _PLAIN


def _equal(before: Rows, after: Rows) -> bool:
    """The same positions; the number that a log gives a queue may be another."""
    names = [name for name in EXPECTED.names or () if name != "queue"]
    return before.size == after.size and all(np.array_equal(before[name], after[name]) for name in names)
