"""The log scanned by a cluster: splits are sent out, summaries come back and are joined to an exact result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import structs

from formats.native.walk import crc_name
from recover.cluster.jobs import Job, Views, check_executors, unreadable
from recover.cluster.making import SparkProducer, store_for_executors
from recover.cluster.session import Session, SparkSettings, running_session, session_for, without_token
from recover.cluster.splits import RowsElsewhere, ScanTask, Unopened, scan_splits, unpack_split, unpacked, without_rows
from recover.derived.expected import Producer
from recover.log.file_scan import ProgressCallback, SplitRange, SplitScan
from recover.log.scan import SEED, LogView, assemble
from recover.log.split_scan import Again, OpenError, join_files, splits_of
from recover.store.columns import DEFAULT_MEMORY, ColumnStore, Foresight
from recover.store.mapped_files import MappedFileQueue
from recover.store.reader import ReadFailure
from recover.store.source import list_again, open_file
from recover.store.store import Store


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Executors scan splits of the log and keep their rows for later requests; summaries go to the driver.

    With `makes` they build derived files from the rows they kept.
    """

    settings: SparkSettings
    makes: bool = False
    kept: list[RowsElsewhere] = field(default_factory=list, compare=False, repr=False)
    views: Views = field(default_factory=lambda: Views(time.time()), compare=False, repr=False)

    def scan_log(
        self, queue: MappedFileQueue, *, memory: int = DEFAULT_MEMORY, progress: ProgressCallback | None = None,
        open_error: OpenError | None = None, with_keys: bool = True,
        foresight: Callable[[], Foresight] | None = None,
    ) -> LogView:
        """See `recover.log.scan.Engine`; `Refusal` (8) if Spark does not start or a task fails for good.

        With `makes`, keys are always scanned, even if the caller does not need them.
        """
        if not queue.files:
            return assemble(queue, [])
        session = session_for(self.settings)
        self.views.look(file.path for file in queue.files)
        check_executors(session, [queue.files[0].path, queue.files[-1].path])
        while self.kept:
            self.kept.pop().job.forget()
        with_keys |= self.makes
        foreseen = foresight().within if foresight is not None and with_keys else lambda _start, _stop: None
        scan = partial(self._scan, session, ColumnStore(memory), with_keys, progress, foreseen)
        parts = [splits_of(file, queue.file_size, self.settings.split_size) for file in queue.files]
        first = scan([(part, None) for own in parts for part in own])
        log = assemble(queue, join_files(parts, first, partial(scan, is_again=True), open_error))
        log.has_keys = with_keys
        self.views.check_damage(log)
        return log

    def _scan(
        self, session: Session, columns: ColumnStore, with_keys: bool, progress: ProgressCallback | None,
        foreseen: Callable[[int, int], Any], parts: Sequence[Again], *, is_again: bool = False,
    ) -> list[SplitScan | OSError]:
        """Scan some splits. The rows of rescanned splits are returned at once: they are few.

        A check of the log alone needs no rows except those near damage, whose splits are rescanned.
        """
        if not parts:
            return []
        tasks = [ScanTask(number, _absolute(part), entry, with_keys, session.attempts, session.is_local, SEED,
                          None if is_again else foreseen(*part.offsets))
                 for number, (part, entry) in enumerate(parts)]
        job = Job(session, scan_splits, tasks, "scan of the log", keeps=with_keys and not is_again)
        if not is_again:
            self.kept.append(RowsElsewhere(job, columns, self.views))
        scans: dict[int, SplitScan | OSError] = {}
        with closing(job.answers(iter if is_again else without_rows)) as answers:
            for number, content, *rows in answers:
                part, home = parts[number][0], unpacked(content)
                path = part.mapped_file.path
                if isinstance(home, Unopened):
                    scans[number] = error = OSError(home.number, home.text, str(path))
                    if _is_readable_here(ReadFailure(path, 0, min(1, part.mapped_file.length), 0)):
                        raise unreadable(home.host, path, error)
                    continue
                self.views.take(home.reads)
                scans[number], found = home.scan, home.scan.scan
                home.scan.part, found.mapped_file = part, part.mapped_file
                found.unreadable = [ReadFailure(path, failure.offset, failure.wanted, failure.got, failure.cause)
                                    for failure in found.unreadable]
                if home.summary is not None:
                    found.splits.append(columns.keep(*unpack_split(rows[0])) if is_again else
                                        self.kept[-1].split(number, home.summary, home.digest))
                for failure in found.unreadable:
                    if _is_readable_here(failure):
                        raise unreadable(home.reads.host, path, failure)
                session.count(part.stop - part.start)
                if not is_again and progress is not None:
                    progress(part.stop - part.start, found.record_count)
        return [scans[number] for number in range(len(parts))]

    def producer(self, store: Store, log: LogView) -> Producer | None:
        """See `Engine`: executors, if they scanned the log and see the store as the
        driver does.

        None over Spark Connect, which has no RDD: there a plan, which is only reported, is built on the driver.
        """
        seen = store_for_executors(store)
        if not self.makes or not self.kept or seen is None or self.settings.over_connect:
            return None
        return SparkProducer(session_for(self.settings), self.kept[-1], seen, log, self.settings.split_size)

    def confirm(self) -> None:
        """See `Engine`: read here what workers may have seen otherwise; local workers have the same mounts."""
        self.views.confirm()

    def json(self) -> dict[str, Any]:
        """Return name, the CRC routine of this machine, and facts of the running session, if there is one."""
        session = running_session()
        own = {"name": "spark", "master": without_token(self.settings.master or "") or None, "crc": crc_name(),
               "compared_bytes": self.views.compared}
        return own if session is None else own | session.json()


def _is_readable_here(failure: ReadFailure) -> bool:
    """Whether this machine can open a file afresh and read a range that a worker could not."""
    list_again(failure.path)
    try:
        with open_file(failure.path) as reader:
            return len(reader.read(failure.offset, failure.wanted)) == failure.wanted
    except OSError:
        return False


def _absolute(part: SplitRange) -> SplitRange:
    """Return the split with an absolute path: executors have other working directories."""
    return structs.replace(part, mapped_file=structs.replace(part.mapped_file, path=part.mapped_file.path.absolute()))
