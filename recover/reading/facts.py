"""The facts of a store that a reading starts from, each asked once: no release and no judgement is in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from msgspec import Struct

from formats.checkpoint import Checkpoint
from recover.broker.settings import DEFAULT_LEVELS, KNOWN, DelayTable, java_integer, parse_levels
from recover.derived.index_check import stretches_of
from recover.derived.index_files import index_ends
from recover.findings.code import Refusal
from recover.log.file_scan import ProgressCallback
from recover.log.files import live_copies, place_misnamed_files
from recover.log.scan import Engine, KnownLog, LocalEngine, LogView
from recover.reading.further import Further
from recover.reading.placed import Search
from recover.store.columns import DEFAULT_MEMORY, Foresight
from recover.store.config_files import Topics
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.store import COMMITLOG, CONSUMEQUEUE, Store
from recover.store.unread import Elsewhere, held_elsewhere

RETENTION = "fileReservedTime"
HOUR_MS = 3_600_000


_SHARE = 8


class ScanOptions(Struct, frozen=True):
    """How to scan: memory for columns (bytes), deleted topics, progress, engine. `known`: an earlier scan to reuse if
    valid. `in_place`: displaced records count where they stand, as damage. `further`: logs that may hold what this one
    lost."""

    memory: int = DEFAULT_MEMORY
    include_deleted: bool = False
    progress: ProgressCallback | None = None
    tick: Callable[[], None] | None = None
    engine: Engine = LocalEngine()
    known: KnownLog | None = None
    in_place: bool = False
    further: Further = Further()

    @property
    def share(self) -> int:
        """Bytes of memory for rows kept beside those of the scan: of a further scan, or of several readings."""
        return self.memory // _SHARE


class Facts(Struct, frozen=True, eq=False, dict=True):
    """A store, its files where they belong, and what is read of it.

    `queue`: the log's files where their records belong; those that have other names are `misnamed`, with the offset of
    the right one. `elsewhere`: what the files read do not hold, by question. `with_queues`: the queues are read and
    compared; `names_end`: units and index may name messages after the log's end. `with_keys`: rows need key hashes and
    tags codes. `delays` learns the store's own delay levels from its queues.
    """

    store: Store
    options: ScanOptions
    queue: MappedFileQueue
    misnamed: list[tuple[MappedFile, int]]
    elsewhere: dict[str, Elsewhere]
    with_queues: bool
    names_end: bool
    with_keys: bool
    topics: Topics
    delays: DelayTable

    @classmethod
    def of(
        cls, store: Store, options: ScanOptions | None = None, *, with_queues: bool = True, with_keys: bool = True
    ) -> Facts:
        """Collect the facts; with `with_queues`, `OSError` if the queues cannot be listed.

        `with_keys`: the caller needs rows with their key hashes and tags codes; the queues need them anyway.
        """
        options = options or ScanOptions()
        elsewhere = unread_answers(store, with_queues=with_queues)
        queue, misnamed = place_misnamed_files(live_copies(store.commitlog))
        read = with_queues and CONSUMEQUEUE not in elsewhere
        levels = parse_levels(store.options.settings.get("messageDelayLevel", DEFAULT_LEVELS))
        return cls(
            store, options, queue, misnamed, elsewhere, read, with_queues and COMMITLOG not in elsewhere,
            with_keys or read, Topics(store, options.include_deleted), DelayTable(levels),
        )

    @cached_property
    def search(self) -> Search:
        """The search for displaced records."""
        return Search()

    @property
    def retention(self) -> int:
        """For how long a broker keeps log files, in ms."""
        return retention_hours(self.store) * HOUR_MS

    @cached_property
    def index_ends(self) -> list[tuple[int, int]]:
        """Start in the log and store timestamp (ms) of the last message of each index file, from its header."""
        return index_ends(self.store)

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        return self.store.checkpoint()

    @property
    def last_time(self) -> int:
        """Store timestamp (ms) of the newest message that the checkpoint records, 0 for none."""
        known = self.checkpoint
        return 0 if known is None else max(known.physic_msg_timestamp, known.logics_msg_timestamp)

    def scanned(self) -> LogView:
        """Scan the log, or return the earlier scan if it is still valid. `Refusal` (8) if a file cannot be opened."""
        known, options = self.options.known, self.options
        if known is not None and known.holds(self.queue, with_keys=self.with_keys):
            return known.log
        return options.engine.scan_log(
            self.queue, memory=options.memory, progress=options.progress, open_error=self._refuse,
            with_keys=self.with_keys, foresight=self._stretches,
        )

    def scanned_by_names(self) -> LogView:
        """Scan the log with each file at the offset of its name, as brokers find it."""
        return self.options.engine.scan_log(
            self.store.commitlog, memory=self.options.memory, open_error=self._refuse, with_keys=self.with_keys,
            foresight=self._stretches,
        )

    def _stretches(self) -> Foresight:
        return stretches_of(self.store, self.queue.min_offset)

    def _refuse(self, mapped_file: MappedFile, error: OSError) -> None:
        raise Refusal(
            f"cannot read {self.store.relative(mapped_file.path)}: {error.strerror}",
            "A running broker deletes expired files: run the command again."
            if isinstance(error, FileNotFoundError) else
            "Run as the broker's user or as root; check that the file is a regular one.",
            path=str(mapped_file.path),
        ) from error


def retention_hours(store: Store) -> int:
    """For how many hours a broker keeps log files: as stated, else by default."""
    stated = java_integer(store.options.settings.get(RETENTION, ""))
    return int(KNOWN[RETENTION].default) if stated is None else stated


def unread_answers(store: Store, *, with_queues: bool) -> dict[str, Elsewhere]:
    """Return what unread parts answer, by question; includes queues that cannot be listed if they were not requested.

    These count as none then. `OSError` if they were requested.
    """
    try:
        return held_elsewhere(store)
    except OSError as error:
        if with_queues:
            raise
        store.queue_folders = ()
        unlisted = Elsewhere(store.relative(store.consumequeue_dir), f"cannot be listed: {error.strerror}")
        return {CONSUMEQUEUE: unlisted}
