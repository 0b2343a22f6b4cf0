"""The analysis of a whole store: the basis of verify's report, recover's plan and predict's counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct, field

from recover.broker.settings import DEFAULT_LEVELS, DelayTable, parse_levels
from recover.check.log import is_end_mark_only
from recover.derived.expected import RIGHT, ConsumeQueueReport, Expectation, expect
from recover.derived.index_check import IndexReport, check_index
from recover.derived.queue_check import check_consumequeue
from recover.findings.code import Refusal
from recover.log.file_scan import ProgressCallback
from recover.log.files import live_copies, place_misnamed_files
from recover.log.scan import Damage, Engine, KnownLog, LocalEngine, LogView
from recover.look.store import index_ends
from recover.reading.edits import Edit
from recover.reading.lost import (
    Losses,
    LostPosition,
    file_named_elsewhere,
    indexed_after_end,
    lost_positions,
    named_after_end,
    named_by_index_alone,
    note_damage_after_end,
    old_end,
)
from recover.reading.overwritten import (
    ForeignFile,
    Overwritten,
    correct_generations_by_units,
    overwritten,
    with_damage,
    without_older_topics,
)
from recover.reading.placed import Placed, displaced, with_placed
from recover.reading.places import misplaced_records, relocated
from recover.store.columns import DEFAULT_MEMORY
from recover.store.config_files import Topics
from recover.store.mapped_files import MappedFile
from recover.store.store import COMMITLOG, CONSUMEQUEUE, Store
from recover.store.unread import Elsewhere, held_elsewhere


class ScanOptions(Struct, frozen=True):
    """How to scan: memory for columns (bytes), deleted topics, progress, engine. `known`: an earlier scan to reuse if
    valid. `in_place`: displaced records count where they stand, as damage."""

    memory: int = DEFAULT_MEMORY
    include_deleted: bool = False
    progress: ProgressCallback | None = None
    tick: Callable[[], None] | None = None
    engine: Engine = LocalEngine()
    known: KnownLog | None = None
    in_place: bool = False


class IndexCheck:
    """Checks the index of a store against a log; repeats the check only if the log or its damage changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: tuple[LogView, list[Damage], IndexReport] | None = None

    def __call__(self, log: LogView) -> IndexReport:
        """Return the report; `OSError` if the folder cannot be listed."""
        # an analysis that finds more damage replaces the list
        if self._last is None or self._last[0] is not log or self._last[1] is not log.damaged:
            self._last = log, log.damaged, check_index(self._store, log)
        return self._last[2]


class Analysis(Struct):
    """The log, what its queues should hold and do hold, and what is lost.

    `elsewhere`: what the files read do not hold; then, and when not requested, `queues` is None. `by_names`: the log as
    brokers find it, with misnamed files at the offsets of their names. `foreign`: files of another log; `alone`: files
    that may be. `index` checks the index against the log. `old_end`: the start of old records at the log's end at which
    a start would fail. `placed`: displaced records, which the log has at their place; `by_names` has them as they are.
    """

    store: Store
    options: ScanOptions
    log: LogView
    topics: Topics
    expectation: Expectation
    delays: DelayTable
    queues: ConsumeQueueReport | None
    losses: Losses
    end_marks: set[int]
    contradictions: list[Edit]
    misnamed: list[tuple[MappedFile, int]]
    by_names: LogView
    index: IndexCheck
    elsewhere: dict[str, Elsewhere] = field(default_factory=dict)
    foreign: list[ForeignFile] = field(default_factory=list)
    alone: list[ForeignFile] = field(default_factory=list)
    old_end: int | None = None
    placed: list[Placed] = field(default_factory=list)

    @property
    def as_it_is(self) -> LogView:
        """The log with all records where they stand: no broker looks for displaced ones."""
        return self.by_names if self.placed else self.log


def analyse(
    store: Store, options: ScanOptions, *, with_queues: bool = True, with_keys: bool = True
) -> Analysis:
    """Scan the log and, with `with_queues`, judge the queues against it. `Refusal` (8) if a file cannot be opened.

    `with_keys`: the caller needs rows with their key hashes and tags codes.
    """
    elsewhere = unread_answers(store, with_queues=with_queues)
    names_the_end = with_queues and COMMITLOG not in elsewhere
    with_queues &= CONSUMEQUEUE not in elsewhere
    queue, misnamed = place_misnamed_files(live_copies(store.commitlog))
    if options.known is not None and options.known.holds(queue, with_keys=with_keys or with_queues):
        log = options.known.log
    else:
        log = options.engine.scan_log(
            queue, memory=options.memory, progress=options.progress, open_error=_refuse(store),
            with_keys=with_keys or with_queues,
        )
    as_it_is = log
    placed = [] if options.in_place else displaced(log, None if CONSUMEQUEUE in elsewhere else store)
    if placed:
        log = with_placed(log, placed, memory=options.memory, threads=getattr(options.engine, "threads", 1))
    if with_queues:
        # this changes rows in place, so it comes before any other use of them
        log = correct_generations_by_units(log, store)
        as_it_is = correct_generations_by_units(as_it_is, store) if placed else log
    by_names = as_it_is if placed else log
    if misnamed:
        by_names = correct_generations_by_units(options.engine.scan_log(
            store.commitlog, memory=options.memory, open_error=_refuse(store), with_keys=with_keys or with_queues,
        ), store)
    topics = Topics(store, options.include_deleted)
    delays = _delay_table(store)
    expectation = expect(log, topics)
    queues = None
    behind: list[LostPosition] = []
    found = Overwritten([], [], [], [])
    index, by_index = IndexCheck(store), np.empty(0, dtype=np.int64)
    if with_queues:
        queues = check_consumequeue(store, log, expectation, delays, tick=options.tick)
        found = overwritten(log, expectation, queues, index)
        if found.stretches or found.bridged:
            log = _without_others(log, store, found, options.memory)
            expectation = expect(log, topics)
            queues = check_consumequeue(store, log, expectation, delays)
        behind = named_after_end(log, expectation, queues)
    if names_the_end and log.has_keys:
        ends = index_ends(store)
        by_index = indexed_after_end(log, ends, lambda: index(log).behind)
        named = bool(behind) or by_index.size > 0
        if named and note_damage_after_end(log, behind, by_index, _last_time(store)) and queues is not None:
            queues = check_consumequeue(store, log, expectation, delays)
        gone = file_named_elsewhere(log.files, log.tally.newest_timestamp, ends, store.checkpoint())
        if gone is not None and not any(damage.stop > gone.start for damage in log.damaged):
            log.damaged = [*log.damaged, gone]
    old = _without_old_end(log, store)
    denied, losses = misplaced_records(log, expectation, queues, behind)
    if denied:
        # queues and losses are judged by the corrected records
        log = correct_generations_by_units(relocated(log, denied, memory=options.memory), store)
        expectation = expect(log, topics)
        queues = check_consumequeue(store, log, expectation, delays)
        old = _without_old_end(log, store)
        losses = lost_positions(log, expectation, queues, behind)
    newest = log if queues is None else without_older_topics(log, expectation, queues, losses)
    if newest is not log:
        by_names = newest if by_names is log else by_names
        log, expectation = newest, expect(newest, topics)
        queues = check_consumequeue(store, log, expectation, delays)
        losses = lost_positions(log, expectation, queues, behind)
    losses.indexed = named_by_index_alone(by_index, log, losses)
    # queues that name every message up to the log's end prove that nothing else was lost
    proven = queues is not None and queues.total(RIGHT) > 0 and not any(v.missing for v in queues.verdicts.values())
    end_marks = {
        number for number, damage in enumerate(log.damaged)
        if is_end_mark_only(damage, len(losses.by_damage[number]), proven)
    }
    return Analysis(
        store, options, log, topics, expectation, delays, queues, losses, end_marks, denied, misnamed, by_names,
        index, elsewhere, found.foreign, found.alone, old, placed,
    )


def own_records(log: LogView, store: Store, *, memory: int) -> LogView:
    """The log with what stands where other messages were as damage, as for `analyse`; maybe `log` itself.

    `OSError` where queues or index cannot be listed.
    """
    if CONSUMEQUEUE in held_elsewhere(store):
        return log
    expectation = expect(log, Topics(store))
    found = overwritten(log, expectation, check_consumequeue(store, log, expectation, _delay_table(store)),
                        IndexCheck(store))
    return _without_others(log, store, found, memory) if found.stretches or found.bridged else log


def _delay_table(store: Store) -> DelayTable:
    return DelayTable(parse_levels(store.options.settings.get("messageDelayLevel", DEFAULT_LEVELS)))


def _without_others(log: LogView, store: Store, found: Overwritten, memory: int) -> LogView:
    return correct_generations_by_units(with_damage(log, found, memory=memory), store)


def _without_old_end(log: LogView, store: Store) -> int | None:
    """Return the start of old records at the log's end, see `old_end`; removes damage from there on from `log`."""
    old = old_end(log, store.queue_file_size)
    if old is not None:
        log.damaged = [damage for damage in log.damaged if damage.start < old]
    return old


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


def _last_time(store: Store) -> int:
    """Store timestamp (ms) of the newest message that the checkpoint records, 0 for none."""
    checkpoint = store.checkpoint()
    return 0 if checkpoint is None else max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)


def _refuse(store: Store) -> Callable[[MappedFile, OSError], None]:
    def refuse(mapped_file: MappedFile, error: OSError) -> None:
        raise Refusal(
            f"cannot read {store.relative(mapped_file.path)}: {error.strerror}",
            "A running broker deletes expired files: run the command again."
            if isinstance(error, FileNotFoundError) else
            "Run as the broker's user or as root; check that the file is a regular one.",
            path=str(mapped_file.path),
        ) from error

    return refuse
