"""What an earlier verify said of queues and index, where neither they nor the log changed since.

A change to one queue of a thousand is proven by looking at that queue, not at all the others again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from recover.delays import SCHEDULE_TOPIC, DelayTable
from recover.engine import Engine
from recover.expected import Expectation, QueueKey
from recover.index_files import list_index_files
from recover.known_log import KnownLog
from recover.log import LogView
from recover.seen import Stamp, files_now
from recover.store import Store
from recover.verify.queue_verdict import QueueVerdict

if TYPE_CHECKING:
    from recover.verify.index import IndexReport
    from recover.verify.report import VerifyReport


class KnownParts(Struct, frozen=True):
    """`report` says how everything stood; `seen` are the files as they were before that look (`files_now`)."""

    report: VerifyReport
    seen: Mapping[str, Stamp]

    def engine(self, engine: Engine) -> KnownLog:
        """Answers with the log as it was, if it did not change since; else `engine` scans it."""
        log, relative = self.report.survey.log, self.report.survey.store.relative
        stamps = {it.path.absolute(): self.seen.get(relative(it.path)) for it in log.queue.files}
        return KnownLog(log, stamps, engine)

    def standing(self, store: Store, log: LogView) -> Standing | None:
        """What is still to be said of a store; None where its log was read anew, for then that may say otherwise."""
        return Standing(self, store, files_now(store)) if log is self.report.survey.log else None


class Standing(Struct, frozen=True):
    """The parts of a store whose log is the one that `known` was found with; `now` are its files."""

    known: KnownParts
    store: Store
    now: Mapping[str, Stamp]

    def queues(self, expectation: Expectation, delays: DelayTable) -> dict[QueueKey, QueueVerdict]:
        """The verdicts on queues of which no file changed; none where something changed that all are judged by.

        `delays` learns from them what it learnt before.
        """
        before = self.known.report.survey
        if before.queues is None or not _same(before.expectation, expectation):
            return {}
        if self._has_ext() or self.store.queue_file_size != before.store.queue_file_size:
            return {}
        files = _by_folder(self.known.seen), _by_folder(self.now)
        folders = _folders(before.store), _folders(self.store)
        known = {}
        for key, verdict in before.queues.verdicts.items():
            own = folders[0].get(key, [])
            same = own == folders[1].get(key, []) and all(files[0].get(it) == files[1].get(it) for it in own)
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
        if report is None or report.unreadable or list_index_files(self.store.index_dir) != report.listing:
            return None
        beside = {self.store.relative(self.store.checkpoint_path), self.store.relative(self.store.abort_path)}
        folder = f"{self.store.relative(self.store.index_dir)}/"
        names = {name for name in (*self.known.seen, *self.now) if name in beside or name.startswith(folder)}
        return report if all(self.known.seen.get(name) == self.now.get(name) for name in names) else None

    def _has_ext(self) -> bool:
        folder = f"{self.store.relative(self.store.consumequeue_ext_dir)}/"
        return self.store.consumequeue_ext_dir.is_dir() or any(name.startswith(folder) for name in self.known.seen)


def _same(before: Expectation, now: Expectation) -> bool:
    """The log asks the same of every queue: topics may have been deleted meanwhile."""
    arrays = (before.counts, now.counts), (before.skipped, now.skipped), (before.lmq_rows, now.lmq_rows)
    return before.keys == now.keys and all(np.array_equal(*pair) for pair in arrays)


def _by_folder(files: Mapping[str, Stamp]) -> dict[str, dict[str, Stamp]]:
    folders: dict[str, dict[str, Stamp]] = defaultdict(dict)
    for name, stamp in files.items():
        folder, _, file = name.rpartition("/")
        folders[folder][file] = stamp
    return folders


def _folders(store: Store) -> dict[QueueKey, list[str]]:
    """The folders of each queue, as reports name them: 7 and 007 are the same queue."""
    folders: dict[QueueKey, list[str]] = defaultdict(list)
    for folder in store.queue_folders:
        folders[QueueKey(folder.topic, folder.queue_id)].append(store.relative(folder.path))
    return folders
