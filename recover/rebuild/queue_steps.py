"""The steps that put consume queues right, in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from formats.record_columns import EXPECTED
from recover.evidence.expected import Expectation, QueueKey
from recover.evidence.queue_verdict import ConsumeQueueReport
from recover.files.store import Store
from recover.plan.model import Step
from recover.plan.spool import Spool
from recover.rebuild.consumequeue import NO_EVIDENCE, Evidence, QueueBuilder, repaired_steps
from recover.rebuild.maker import Maker
from recover.rebuild.plain_queues import plain_steps
from recover.scan.log import LogView


def consumequeue_steps(
    store: Store, log: LogView, expectation: Expectation, queues: ConsumeQueueReport, spool: Spool,
    *, visible: bool = False, wanted: set[QueueKey] | None = None, evidence: Evidence = NO_EVIDENCE,
    maker: Maker | None = None,
) -> Iterator[Step]:
    """Steps that put every unsound queue right (of `wanted`, if given); units that are `evidence` stay.

    `maker` makes those that the log fills, if given.
    """
    unsound = {key for key, verdict in queues.verdicts.items() if not verdict.sound}
    if wanted is not None:
        unsound &= wanted
    builder = QueueBuilder(
        store, queues.delays, log.min_offset, log.log_end, visible=visible, evidence=evidence,
        bridge=log.stand_in(),
    )
    done = set()
    for key, steps in (
        maker.queues(builder, expectation, unsound, fresh=False) if maker is not None
        else _filled(builder, expectation, unsound, spool)
    ):
        done.add(key)
        yield from steps
    for key in sorted(unsound - done, key=lambda k: (k.topic, k.queue_id)):
        yield from repaired_steps(builder, key, np.empty(0, dtype=EXPECTED), spool)


def _filled(
    builder: QueueBuilder, expectation: Expectation, wanted: set[QueueKey], spool: Spool
) -> Iterator[tuple[QueueKey, list[Step]]]:
    """Each wanted queue that the log fills, in the order of their numbers, and the steps that put it right."""
    found = dict(plain_steps(builder, expectation, wanted, spool))
    for key, rows in expectation.grouped(wanted - found.keys()):
        found[key] = [*repaired_steps(builder, key, rows, spool)]
    yield from ((key, found[key]) for key in expectation.keys if key in found)
