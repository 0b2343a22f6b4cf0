"""What an earlier verify said of queues and index, where neither they nor the log changed since.

A change to one queue of a thousand is proven by looking at that queue, not at all the others again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from recover.delays import SCHEDULE_TOPIC, DelayTable
from recover.engine import Engine
from recover.expected import Expectation, QueueKey
from recover.known_log import KnownLog
from recover.log import LogView
from recover.seen import Seen, Stamp, seen_now
from recover.store import Store
from recover.verify.queue_verdict import QueueVerdict

if TYPE_CHECKING:
    from recover.verify.index import IndexReport
    from recover.verify.report import VerifyReport


class KnownParts(Struct, frozen=True):
    """`report` says how everything stood; `seen` is what its files and folders looked like before that look."""

    report: VerifyReport
    seen: Seen

    def engine(self, engine: Engine) -> KnownLog:
        """Answers with the log as it was, if it did not change since; else `engine` scans it."""
        log, relative = self.report.survey.log, self.report.survey.store.relative
        stamps = {it.path.absolute(): self.seen.files.get(relative(it.path)) for it in log.queue.files}
        return KnownLog(log, stamps, engine)

    def standing(self, store: Store, log: LogView) -> Standing | None:
        """What is still to be said of a store; None where its log was read anew, for then that may say otherwise."""
        return Standing(self, store, seen_now(store)) if log is self.report.survey.log else None


class Standing(Struct, frozen=True):
    """The parts of a store whose log is the one that `known` was found with; `now` is how they look."""

    known: KnownParts
    store: Store
    now: Seen

    def queues(self, expectation: Expectation, delays: DelayTable) -> dict[QueueKey, QueueVerdict]:
        """The verdicts on queues of which no file changed; none where something changed that all are judged by.

        `delays` learns from them what it learnt before.
        """
        before = self.known.report.survey
        if before.queues is None or not _same(before.expectation, expectation):
            return {}
        if self._has_ext() or self.store.queue_file_size != before.store.queue_file_size:
            return {}
        looks = _by_folder(self.known.seen), _by_folder(self.now)
        folders = _folders(before.store), _folders(self.store)
        known = {}
        for key, verdict in before.queues.verdicts.items():
            own = folders[0].get(key, [])
            same = own == folders[1].get(key, []) and all(looks[0].get(it) == looks[1].get(it) for it in own)
            if same and not any(it.code == "consumequeue-unreadable" for it in verdict.findings):
                known[key] = verdict
        scheduled = {key for key in (*before.queues.verdicts, *folders[1]) if key.topic == SCHEDULE_TOPIC}
        if scheduled <= known.keys() and before.delays.levels == delays.levels:
            delays.observed |= before.delays.observed
            return known
        # they are judged by what all of them agree on
        return {key: verdict for key, verdict in known.items() if key not in scheduled}

    def index(self) -> IndexReport | None:
        """The report on the index files, if none of them changed, nor what it is judged by."""
        report = self.known.report.index
        if report is None or report.unreadable:
            return None
        beside = [self.store.relative(path) for path in (self.store.checkpoint_path, self.store.abort_path)]
        folder = self.store.relative(self.store.index_dir)
        looks = [(_by_folder(seen).get(folder), [seen.files.get(name) for name in beside])
                 for seen in (self.known.seen, self.now)]
        return report if looks[0] == looks[1] else None

    def _has_ext(self) -> bool:
        folder = self.store.relative(self.store.consumequeue_ext_dir)
        return folder in self.known.seen.folders or folder in self.now.folders


def _same(before: Expectation, now: Expectation) -> bool:
    """The log asks the same of every queue: topics may have been deleted meanwhile."""
    arrays = (before.counts, now.counts), (before.skipped, now.skipped), (before.lmq_rows, now.lmq_rows)
    return before.keys == now.keys and all(np.array_equal(*pair) for pair in arrays)


def _by_folder(seen: Seen) -> dict[str, dict[str, Stamp]]:
    """Each folder as it looks: the stamps of its files by their names, and its own."""
    folders = {folder: {"": stamp} for folder, stamp in seen.folders.items()}
    for name, stamp in seen.files.items():
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, {})[file] = stamp
    return folders


def _folders(store: Store) -> dict[QueueKey, list[str]]:
    """The folders of each queue, as reports name them: 7 and 007 are the same queue."""
    folders: dict[QueueKey, list[str]] = defaultdict(list)
    for folder in store.queue_folders:
        folders[QueueKey(folder.topic, folder.queue_id)].append(store.relative(folder.path))
    return folders
