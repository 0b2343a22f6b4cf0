"""A log that was scanned and did not change since: what derives from it is checked without reading it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from recover.files.mapped_files import MappedFileQueue
from recover.files.seen import Stamp, stamp_of
from recover.memory.columns import DEFAULT_MEMORY
from recover.scan.cut_files import OpenError
from recover.scan.engine import Engine, LocalEngine
from recover.scan.file_scan import ProgressCallback
from recover.scan.log import LogView

Stamps = dict[Path, Stamp | None]


def stamps_of(queue: MappedFileQueue) -> Stamps:
    """Path -> stamp of the files of a log as they are, None for those that are gone."""
    return {mapped_file.path.absolute(): stamp_of(mapped_file.path) for mapped_file in queue.files}


class KnownLog(Struct, frozen=True):
    """An engine that answers with an earlier scan if no file has changed since `stamps` were taken, before that scan.

    A log with damage, a tail, old or contradicted records is scanned again: what it means depends on its queues, too.
    """

    log: LogView
    stamps: Stamps
    engine: Engine = LocalEngine()

    def scan_log(
        self, queue: MappedFileQueue, *, memory: int = DEFAULT_MEMORY, progress: ProgressCallback | None = None,
        open_error: OpenError | None = None, with_keys: bool = True,
    ) -> LogView:
        """See `Engine`."""
        if (with_keys and not self.log.has_keys) or not self._holds(queue):
            return self.engine.scan_log(
                queue, memory=memory, progress=progress, open_error=open_error, with_keys=with_keys,
            )
        if progress is not None:
            progress(sum(mapped_file.length for mapped_file in queue.files), self.log.messages)
        return self.log

    def json(self) -> dict[str, Any]:
        """The engine that scanned, or would scan."""
        return self.engine.json()

    def _holds(self, queue: MappedFileQueue) -> bool:
        log = self.log
        if log.damaged or log.tail is not None or log.ghosts or log.superseded or log.written:
            return False
        if (log.queue.odd, log.queue.duplicates) != (queue.odd, queue.duplicates):
            return False
        scanned = [scan.mapped_file.path for scan in log.files]
        return scanned == [mapped_file.path for mapped_file in queue.files] and stamps_of(queue) == self.stamps
