"""The engines that scan the log: threads of this machine, or a cluster. Same questions, same answers, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from formats.native.walk import crc_name
from recover.log.file_scan import ProgressCallback
from recover.log.scan import LogView, scan_log
from recover.log.split_scan import OpenError
from recover.store.columns import DEFAULT_MEMORY
from recover.store.mapped_files import MappedFileQueue
from recover.store.memo import Stamp, stamp_of


class Engine(Protocol):
    """Something that scans a whole commitlog."""

    def scan_log(
        self, queue: MappedFileQueue, *, memory: int = DEFAULT_MEMORY, progress: ProgressCallback | None = None,
        open_error: OpenError | None = None, with_keys: bool = True,
    ) -> LogView:
        """Scan every file; at most `memory` bytes of columns stay in memory.

        A file that cannot be opened is reported to `open_error` and counts as missing; without a callback the
        `OSError` rises. `progress(bytes, records)` is called with what was done since the last call. Not `with_keys`:
        nobody looks at anything but the log, so rows may come without hashes and tags codes, which `has_keys` of the
        log says.
        """

    def confirm(self) -> None:
        """`Refusal` (8) where this process sees other bytes of the log than its scans were made of."""

    def json(self) -> dict[str, Any]:
        """The `engine` object of the documents."""


class LocalEngine(Struct, frozen=True):
    """Threads of this process, each with a split of a mapped file at a time: of so many bytes, or as fits the log."""

    threads: int = 1
    split_size: int | None = None

    def scan_log(
        self, queue: MappedFileQueue, *, memory: int = DEFAULT_MEMORY, progress: ProgressCallback | None = None,
        open_error: OpenError | None = None, with_keys: bool = True,
    ) -> LogView:
        """See `Engine`."""
        return scan_log(
            queue, threads=self.threads, memory=memory, progress=progress, open_error=open_error,
            with_keys=with_keys, split_size=self.split_size,
        )

    def confirm(self) -> None:
        """See `Engine`: this process has scanned."""

    def json(self) -> dict[str, Any]:
        """Name, threads, and which CRC routine."""
        return {"name": "local", "threads": self.threads, "crc": crc_name()}


Stamps = dict[Path, Stamp | None]


def stamps_of(queue: MappedFileQueue) -> Stamps:
    """Path -> stamp of the files of a log as they are, None for those that are gone."""
    return {mapped_file.path.absolute(): stamp_of(mapped_file.path) for mapped_file in queue.files}


class KnownLog(Struct, frozen=True):
    """An earlier scan of a log, and the stamps of its files, taken before that scan."""

    log: LogView
    stamps: Stamps

    def holds(self, queue: MappedFileQueue, *, with_keys: bool = True) -> bool:
        """Whether a scan would find the same: no file has changed, and the log says all by itself.

        A log with damage, a tail, old or contradicted records is scanned again: what it means depends on its queues.
        """
        log = self.log
        if log.damaged or log.tail is not None or log.ghosts or log.superseded or log.written:
            return False
        if (with_keys and not log.has_keys) or (log.queue.odd, log.queue.duplicates) != (queue.odd, queue.duplicates):
            return False
        scanned = [scan.mapped_file.path for scan in log.files]
        return scanned == [mapped_file.path for mapped_file in queue.files] and stamps_of(queue) == self.stamps
