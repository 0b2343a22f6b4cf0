"""What an earlier verify said of queues and index, where neither they nor the log changed since.

A change to one queue of a thousand is proven by looking at that queue, not at all the others again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from recover.broker.delays import SCHEDULE_TOPIC, DelayTable
from recover.evidence.expected import Expectation, QueueKey
from recover.evidence.queue_verdict import QueueVerdict
from recover.files.seen import Seen, Stamp, seen_now
from recover.files.store import Store
from recover.scan.engine import Engine
from recover.scan.known_log import KnownLog
from recover.scan.log import LogView

if TYPE_CHECKING:
    from recover.verify.index_report import IndexReport
    from recover.verify.report import VerifyReport


_ROOT = ""
"""Of the files in the root a store's `Seen` has checkpoint and abort."""


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
        if log is not self.report.survey.log:
            return None
        return Standing(self.report, store, _by_folder(self.seen), _by_folder(seen_now(store)))


class Standing(Struct, frozen=True):
    """The parts of a store whose log is that of `report`; how each folder looked `then`, and looks `now`."""

    report: VerifyReport
    store: Store
    then: dict[str, dict[str, Stamp]]
    now: dict[str, dict[str, Stamp]]

    def queues(self, expectation: Expectation, delays: DelayTable) -> dict[QueueKey, QueueVerdict]:
        """The verdicts on queues of which no file changed; none where something changed that all are judged by.

        `delays` learns from them what it learnt before.
        """
        before = self.report.survey
        if before.queues is None or not _same(before.expectation, expectation):
            return {}
        if self._has_ext() or self.store.queue_file_size != before.store.queue_file_size:
            return {}
        folders = _folders(before.store), _folders(self.store)
        known = {}
        for key, verdict in before.queues.verdicts.items():
            own = folders[0].get(key, [])
            # what has no stamp was not looked at
            same = own == folders[1].get(key, []) and all(it in self.then and self._is_as_it_was(it) for it in own)
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
        report = self.report.index
        if report is None or report.unreadable:
            return None
        folders = self.store.relative(self.store.index_dir), _ROOT
        return report if all(map(self._is_as_it_was, folders)) else None

    def _is_as_it_was(self, folder: str) -> bool:
        return self.then.get(folder) == self.now.get(folder)

    def _has_ext(self) -> bool:
        folder = self.store.relative(self.store.consumequeue_ext_dir)
        return folder in self.then or folder in self.now


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
