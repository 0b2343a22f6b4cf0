"""A broker's start, step by step, in memory (DefaultMessageStore.load, recover and start)."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from formats.basics import offset_to_name
from formats.checkpoint import EMPTY, FILE_SIZE
from formats.config.tables import read_delay_offsets
from formats.index import INDEX_HEADER
from formats.record import TOPIC_SCHEDULE
from recover.broker import versions
from recover.broker.record_check import CheckRules
from recover.broker.recovery import (
    BrokenStartError,
    DispatchTarget,
    Mode,
    ScanEnd,
    first_position,
    max_offset,
    oldest_searched,
    scan,
    start_file,
    unlinked,
)
from recover.broker.settings import KNOWN, BrokerSettings, every_name, log_folder_names
from recover.check.config import (
    DELAYS_FILE,
    LMQ_OFFSETS_FILE,
    OFFSETS_FILE,
    TIMER_METRICS_FILE,
    judged_pairs,
    other_offsets,
)
from recover.check.log import (
    first_file_findings,
    misnamed_findings,
    missing_files,
    odd_log_name,
    possible_copy_findings,
    unknown_size_findings,
    unreadable_findings,
)
from recover.check.parts import (
    MOSTLY_GONE,
    Needed,
    check_owners,
    foreign_findings,
    needed_parts,
    queue_types,
    units_of_older_log,
)
from recover.check.timer import TIMERLOG, TIMERWHEEL, check_files, check_timer, has_timer, waiting_timers
from recover.derived.expected import deleted_topics
from recover.derived.index_files import index_ends, list_index_files
from recover.findings.code import MESSAGES, Severity
from recover.findings.model import Finding, finding, judged
from recover.findings.store_codes import FIND_CONFIG
from recover.log.files import live_copies, place_misnamed_files
from recover.log.scan import MISSING_FILE, LogView
from recover.look.store import finds_log, log_is_gone
from recover.predict.delivers import Books, delivers
from recover.predict.dispatch import (
    BrokerLog,
    Dispatcher,
    Key,
    Loaded,
    NullDispatcher,
    Stop,
    Within,
    load,
    mapped_file_size,
    queue_file_size,
    reput,
)
from recover.predict.prediction import Prediction, count_lost, count_unreachable, queue_name
from recover.predict.queues import QueueState, deleted_index_files
from recover.reading.books import missing_end
from recover.reading.end import file_named_elsewhere
from recover.store.config_files import LMQ_PREFIX, STATE_TEXT, ConfigPair, Topics
from recover.store.mapped_files import OddName
from recover.store.reader import ReadFailure
from recover.store.reading import FILE
from recover.store.source import names_in, read_small
from recover.store.store import ABORT, COMMITLOG, CONFIG, CONSUMEQUEUE_EXT, Store
from recover.store.unread import ROCKSDB_QUEUES, SEPARATE_QUEUES, held_elsewhere, rocksdb_data, unread_parts

LARGE_RECORD = 64 << 20


Started = Callable[[BrokerLog, dict[Key, QueueState]], None]


def predict(
    store: Store, view: LogView, settings: BrokerSettings, *, mode: Mode | None = None, counted: bool = True,
    started: Started | None = None, books: Books | None = None,
) -> Prediction:
    """Predict a start of the broker of these settings; `mode` overrides the one that the abort file implies.

    `view` is the scan of the whole log. Reads queue and index files; writes nothing. Without `counted` the message
    counts stay 0 and owners and modes of files do not matter: enough to find the end of the log. `started` is called
    with the log and the queues as the broker has them after the start. `books`: the same log, for what its services
    deliver at the time of these.
    """
    chosen: Mode = mode or ("abnormal" if store.has_abort else "normal")
    prediction = Prediction(str(settings.version), chosen)
    topics = Topics(store)
    first_file = [*first_file_findings(store, view, topics)]
    prediction.assumptions += assumptions(store, first_file, settings)
    prediction.not_emulated = not_emulated(store, settings)
    prediction.unsupported += prediction.not_emulated or unread_beside(store)
    needed = needed_parts(store, topics, view)
    # predict does not know what the loss of these costs
    prediction.unsupported += [f"{item.part} ({item.what}): {item.problem}" for item in needed if not item.stops]
    # a recovery walks both (MappedFileQueue.doLoad), and may cut at either
    prediction.unsupported += [f"{store.relative(twin.path)}: a second log file with this name"
                               for twin in store.commitlog.duplicates]
    prediction.incomplete = incomplete(store, view)
    prediction.incomplete += [item for item in first_file if item.severity == "error"]
    if counted and not prediction.incomplete:
        prediction.incomplete += missing_end(store, view, topics, index_ends(store))
    configs = config_pairs(store, topics, view, settings)
    prediction.config_lost = {f"{CONFIG}/{pair.name}": pair for pair in configs if pair.starts and _is_forgotten(pair)}
    loaded = load(store, settings)
    prediction.assumptions += loaded.assumptions
    prediction.deleted_files = [store.relative(path) for path in loaded.deleted]
    prediction.ignored_files = [store.relative(path) for path in loaded.ignored]
    unread = [*loaded.odd_index, *unreadable(store, topics.pairs)]
    forgotten = [*forgotten_offsets(store, topics.pairs, settings)]
    owners = [*closed_files(store)] if counted else []
    prediction.assumptions += [f"the broker runs as user {item.facts['user']}, the owner of most files"
                               for item in owners if item.facts["closed"] and item.facts.get("user")][:1]
    # this user may not read what the broker reads
    unread += [judged(item, "start") for item in unreadable_findings(store, view.files)]
    prediction.by_hand = [*loaded.by_hand, *unread, *forgotten, *owners]
    prediction.unsupported += [f"{item.file}: {item.facts.get('error') or item.facts['why']}" for item in unread]
    gone = [*prediction.incomplete, *(item for item in (*forgotten, *owners) if item.bits & MESSAGES)]
    prediction.reason = gone[0].message if gone else None
    refusal = loaded.refusal or next(_stops(store, settings, needed, configs, topics, owners), None)
    if refusal is not None:
        prediction.refuse(refusal)
        return prediction
    if prediction.not_emulated:
        return prediction
    if settings.text("storeType") == ROCKSDB_QUEUES:
        # its queues are in a database that it creates: the files are not read
        prediction.lowered_queues = [(queue_name(key), end, 0) for key, end in _ends(loaded.queues) if end]
        return prediction
    if settings.version.has(versions.INVALID_CONFIG_DELETED):
        prediction.deleted_files += [f"{CONFIG}/{pair.name}" for pair in configs if pair.is_deleted]
    prediction.unsupported += timer_left_out(store, settings, view)
    log = BrokerLog(loaded.log, mapped_file_size(store, settings), view)
    start = _Start(store, settings, loaded, log, prediction, topics)
    start.run()
    if counted and start.ended:
        count_lost(view, prediction.cut_at, prediction)
        told = "enableConsumeQueueExt" in settings.given
        ext_from = None if told and not settings.flag("enableConsumeQueueExt") else start.dispatcher.first_offset
        refers = count_unreachable(
            view, topics, start.states, prediction.cut_at, prediction, settings.delay_table, ext_from,
            late=chosen == "abnormal" and settings.version.has(versions.DELAY_TABLE_LATE),
        )
        if refers and not told:
            prediction.assumptions.append(f"enableConsumeQueueExt=true, because entries refer to {CONSUMEQUEUE_EXT}/")
        waiting = [*undelivered(store, view, topics, settings, start.states)]
        prediction.by_hand += waiting
        prediction.reason = prediction.reason or next((item.message for item in waiting if item.bits), None)
    if started is not None and start.ended and prediction.starts:
        started(log, start.states)
    if books is not None and start.ended and prediction.starts:
        prediction.deliveries = delivers(books, settings, start.states)
    return prediction


def _ends(queues: dict[Key, QueueState]) -> Iterator[tuple[Key, int]]:
    """Each queue with its max offset, as far as its files tell."""
    for key, state in sorted(queues.items()):
        state.recover()
        yield key, state.max_offset


class _Start:
    def __init__(
        self, store: Store, settings: BrokerSettings, loaded: Loaded, log: BrokerLog, prediction: Prediction,
        topics: Topics,
    ) -> None:
        self.store = store
        self.settings = settings
        self.version = settings.version
        self.log = log
        self.prediction = prediction
        self.topics = topics
        self.ended = False
        self.states: dict[Key, QueueState] = loaded.queues
        self.checkpoint = store.checkpoint(extend=True) or EMPTY
        self.rules = CheckRules.of(settings)
        self.rules_later = CheckRules.of(settings, recovering=False)
        self.dispatcher = Dispatcher(
            self.states, log.view.queues, settings, queue_file_size(store, settings), log.read, self.topics.batch
        )
        self.dispatcher.delays = self.rules.delays

    def run(self) -> None:
        normal, index_time = self.prediction.mode == "normal", self.checkpoint.index_msg_timestamp
        index_deleted = None if normal else deleted_index_files(self.store.index_dir, index_time)
        for state in self.states.values():
            state.recover()
        found = {key: state.max_offset for key, state in self.states.items()}
        try:
            end = self._recover_log() if self.log.files else self._without_log()
        except BrokenStartError as error:
            self._refuse(str(error))
            return
        except ReadFailure as error:
            # a recovery ends, or goes on, by bytes that nobody knows
            unknown = f"{self.store.relative(error.path)}: {error.strerror}"
            self.prediction.not_emulated = [unknown]
            self.prediction.unsupported += [] if unknown in self.prediction.unsupported else [unknown]
            return
        self.prediction.min_phy, self.prediction.cut_at = self.log.min_offset, end
        self.prediction.max_phy = max_offset(self.log, end)
        if self.prediction.max_phy != end and not self.prediction.incomplete:
            # what is written next is taken, never delivered, and cut by the next start
            last = self.log.files[-1]
            odd = odd_log_name(self.store, OddName(last.path, FILE, last.length))
            self.prediction.incomplete.append(judged(odd, "start"))
            self.prediction.reason = odd.message
        try:
            self._correct_min()
            stuck = self._dispatch_on(end)
        except BrokenStartError as error:
            self._refuse(str(error))
            return
        if stuck is not None:
            self._refuse(f"dispatch waits for ever for the log at {stuck}")
        self._report(found)
        if index_deleted is not None:
            self._report_index(index_deleted, end)
        self.ended = True

    def _recover_log(self) -> int:
        max_of_queues = self._max_physic()
        mode = self.prediction.mode
        databases = self.store.root / "rocksdbstore"
        fresh = not (databases.is_dir() and rocksdb_data(databases))
        start = start_file(self.log, mode, self.settings, self.checkpoint, max_of_queues, fresh=fresh)
        self.prediction.search_limited = not start.matched and start.index > 0
        if self.prediction.search_limited:
            self._assume(f"commitLogRecoverMaxNum={self.settings.number('commitLogRecoverMaxNum')}: "
                         f"{start.index} older files are not read")
        self.prediction.start_file = self.store.relative(self.log.files[start.index].path)
        own_only = mode == "abnormal" and self.settings.flag("checkCommitLogOffsetOnRecover")
        position = first_position(self.log, start.index, mode, self.settings, self.checkpoint)
        found = scan(self.log, start.index, self.rules, self._target(max_of_queues), position=position,
                     own_file_only=own_only)
        self.prediction.end_reason = found.reason
        if found.reason == "no-property-crc":
            self._assume(f"forceVerifyPropCRC=true: the record at {found.process_offset} has no property CRC, "
                         "and the log ends there")
        elif found.size > LARGE_RECORD and not found.fatal:
            self._assume(f"the record at {found.process_offset} makes the broker allocate {found.size} bytes; "
                         "with a smaller heap it would not start")
        if found.fatal:
            raise BrokenStartError(f"a record at {found.process_offset} needs more memory than any heap has")
        self._truncate(found, max_of_queues)
        return found.process_offset

    def _target(self, max_of_queues: int) -> DispatchTarget:
        if self.prediction.mode == "normal":
            if self.version.has(versions.NORMAL_DISPATCHES):
                return Within(self.dispatcher, max_of_queues)
            return NullDispatcher()
        duplicated = self.settings.flag("duplicationEnable")
        if self.version.has(versions.CONFIRM_END_COMPARED):
            if duplicated or self.settings.flag("enableControllerMode"):
                return Within(self.dispatcher, until=self.checkpoint.confirm_phy_offset)
        elif duplicated:
            return NullDispatcher()
        return self.dispatcher

    def _truncate(self, found: ScanEnd, max_before: int) -> None:
        reached = self._max_physic() if self.version.has(versions.CURRENT_MAX_COMPARED) else max_before
        if reached >= found.process_offset:
            for state in self.states.values():
                state.truncate(found.process_offset)
        gone = unlinked(self.log.files, found.process_offset)
        self.prediction.deleted_files += [self.store.relative(mapped_file.path) for mapped_file in gone]
        self.log.files = [mapped_file for mapped_file in self.log.files if mapped_file not in gone]

    def _without_log(self) -> int:
        if self.prediction.mode == "abnormal" or self.version.has(versions.NO_LOG_DESTROYS_QUEUES):
            for state in self.states.values():
                state.destroy()
        if not finds_log(self.store, self.version):
            self.prediction.reason = self.prediction.end_reason = "it does not find the folders of the log"
        return 0

    def _max_physic(self) -> int:
        return max((state.max_physic for state in self.states.values()), default=-1)

    def _correct_min(self) -> None:
        for state in self.states.values():
            state.correct_min(self.log.min_offset)

    def _dispatch_on(self, cut_at: int) -> int | None:
        """Dispatch after recovery; return the offset where it hangs, or None."""
        from_queues = self.version.has(versions.REPUT_FROM_QUEUES) or (
            self.version.has(versions.RECHECK_REPUT_SETTING) and self.settings.flag("recheckReputOffsetFromCq")
        )
        if not from_queues:
            return None
        start = max(self.log.min_offset, self._max_physic(), 0)
        if self.settings.flag("duplicationEnable") and start < self.prediction.max_phy:
            # dispatch ends at the confirm offset, which nothing moves during a start
            return start
        self.dispatcher.delays = self.rules_later.delays
        stuck = reput(self.log, start, cut_at, self.rules_later, self.dispatcher)
        self._correct_min()
        return stuck

    def _assume(self, text: str) -> None:
        self.prediction.assumptions.append(text)

    def _refuse(self, reason: str) -> None:
        self.prediction.refuse(Stop(reason))

    def _report(self, found: dict[Key, int]) -> None:
        prediction = self.prediction
        for key, state in sorted(self.states.items()):
            prediction.queues[queue_name(key)] = [state.min_offset, state.max_offset]
            prediction.misaligned_units += state.misaligned
            gone = [f.path for f in state.deleted if f.path is not None]
            prediction.deleted_files += [self.store.relative(path) for path in gone]
            if state.max_offset < found.get(key, 0):
                prediction.lowered_queues.append((queue_name(key), found[key], state.max_offset))
        if prediction.lowered_queues and prediction.reason is None:
            more = sum(before - after for _, before, after in prediction.lowered_queues)
            cuts = prediction.cut_at < self.log.view.log_end
            prediction.reason = (
                f"queues point to {more} message{'' if more == 1 else 's'} after {prediction.cut_at}, where "
                + ("its recovery cuts the log" if cuts else "the log ends: its end is missing")
            )
        prediction.dispatched_from = self.dispatcher.first_offset
        made_again = self._names_made()
        prediction.deleted_files = sorted(name for name in prediction.deleted_files if name not in made_again)
        new = sorted({topic for topic, _ in self.states.keys() - found.keys() if not topic.startswith(LMQ_PREFIX)})
        prediction.revived_topics = deleted_topics(self.log.view, self.topics, new)
        if self.dispatcher.delayed and "messageDelayLevel" not in self.settings.given:
            self._assume(f"messageDelayLevel: the default gives {self.dispatcher.delayed} entries their deliver times")
        if self.dispatcher.multi_skipped:
            self._assume(
                f"enableMultiDispatch=false: {self.dispatcher.multi_skipped} messages are not dispatched to LMQ queues"
            )
        if self.dispatcher.lmq_elsewhere and "enableLmq" not in self.settings.given:
            self._assume(f"enableLmq=false: {self.dispatcher.lmq_elsewhere} entries of LMQ queues go to the queue "
                         "number of their topic instead of 0")

    def _names_made(self) -> set[str]:
        """Queue files that dispatch creates: one may have the name of a file that was deleted before."""
        return {
            self.store.relative(self.store.consumequeue_dir / key[0] / str(key[1]) / offset_to_name(queue_file.start))
            for key, state in self.states.items() for queue_file in state.files if queue_file.path is None
        }

    def _report_index(self, gone: list[tuple[Path, int, int]], end: int) -> None:
        self.prediction.deleted_files += [self.store.relative(path) for path, _, _ in gone]
        self.prediction.deleted_files.sort()
        again_from = self.dispatcher.first_offset
        # entries of messages that the log no longer holds are no loss
        first = max(min((begin for _, begin, last in gone if last > 0), default=end), self.log.min_offset)
        if self.settings.flag("messageIndexEnable") and first < (end if again_from is None else again_from):
            self.prediction.index_gap = (first, end if again_from is None else min(again_from, end))


def limited_search_cuts(view: LogView, settings: BrokerSettings) -> bool:
    """Whether a search for the start file that matches none of the newest files makes the broker cut the log short."""
    log = BrokerLog(view.queue.files, view.queue.file_size, view)
    first = oldest_searched(settings, len(log.files))
    return scan(log, first, CheckRules.of(settings), NullDispatcher()).process_offset < view.log_end


# --- Surroundings of a start: parts, config files and settings that stop it, or that the prediction leaves out.


_SNAPSHOT = f"{TIMERWHEEL}."


def config_pairs(store: Store, topics: Topics, log: LogView, settings: BrokerSettings) -> list[ConfigPair]:
    """The config files that exist, or should, and stop this broker if they do not load."""
    not_read = {OFFSETS_FILE if settings.flag("enableLmq") else LMQ_OFFSETS_FILE}
    if not _has_timer_service(settings):
        not_read.add(TIMER_METRICS_FILE)
    return [pair for pair in judged_pairs(store, topics, log) if pair.shown or (
        pair.present and pair.known.stops and settings.version.has_reached(pair.known.since)
        and pair.name not in not_read)]


def unreadable(store: Store, pairs: list[ConfigPair]) -> Iterator[Finding]:
    """Findings about files that a start opens and mqtool cannot read, or that are not files: their effect is unknown.
    Without log and queues nothing is predicted at all."""
    for copy in (copy for pair in pairs for copy in (pair.main, pair.backup) if copy.state == "unreadable"):
        yield finding("config-unreadable", f"{CONFIG}/{copy.path.name}", name=copy.path.name, error=copy.error)
    small: tuple[tuple[str, Path, dict[str, Any]], ...] = (
        ("checkpoint-unreadable", store.checkpoint_path, {}), ("part-unreadable", store.abort_path, {"part": ABORT}),
    )
    for code, path, facts in small:
        try:
            read_small(path, FILE_SIZE)
        except FileNotFoundError:
            pass
        except OSError as error:
            yield finding(code, store.relative(path), error=error.strerror, **facts)
    unread: list[OSError] = []
    for file in list_index_files(store.index_dir).files:
        file.header(unread)
    for problem in unread:
        yield finding("index-unreadable", store.relative(Path(problem.filename)), error=problem.strerror,
                      wanted=INDEX_HEADER.size)


def forgotten_offsets(store: Store, pairs: list[ConfigPair], settings: BrokerSettings) -> Iterator[Finding]:
    """Consumer progress that this broker does not use: its settings select the other file of offsets."""
    given = dict(settings.given)
    if "enableLmq" in given:
        given["enableLmq"] = str(settings.flag("enableLmq"))
    for item in other_offsets(store, pairs, given):
        yield judged(item, "start")


def closed_files(store: Store) -> Iterator[Finding]:
    """Files of another owner or mode: a cost of the start where the broker's user may not open them."""
    for item in check_owners(store):
        yield judged(item, "start") if item.facts["closed"] else item


def undelivered(
    store: Store, log: LogView, topics: Topics, settings: BrokerSettings, states: dict[Key, QueueState]
) -> Iterator[Finding]:
    """Messages that wait for their time where this broker does not deliver them: in delay levels that its table lacks,
    and in the timer that it does not run. A release without a timer keeps them for one that has it: info."""
    def waits(number: int, where: str, remedy: str, severity: Severity = "error") -> Finding:
        return finding("start-leaves-waiting", broker=str(settings.version), count=number, where=where, remedy=remedy,
                       severity=severity)

    table = settings.delay_table
    (delays,) = (pair.chosen for pair in topics.pairs if pair.name == DELAYS_FILE)
    offsets = read_delay_offsets(delays.value) if delays is not None else {}
    left = {queue_id + 1: state.max_offset - max(offsets.get(queue_id + 1, 0), state.min_offset)
            for (topic, queue_id), state in states.items() if topic == TOPIC_SCHEDULE and queue_id + 1 not in table}
    if number := sum(max(0, waiting) for waiting in left.values()):
        level = max(level for level, waiting in left.items() if waiting > 0)
        yield waits(number, f"delay levels up to {level}, and messageDelayLevel has {len(table)}",
                    "Set messageDelayLevel to the levels with which the messages were stored.")
    if not _has_timer_service(settings) and (number := waiting_timers(store, log)):
        known = settings.knows("timerWheelEnable")
        where = "timerWheelEnable=false switches off" if known else "it does not have"
        yield waits(number, f"the timer, which {where}",
                    "Set timerWheelEnable=true." if known else "", "error" if known else "info")


def _is_forgotten(pair: ConfigPair) -> bool:
    """Whether the broker silently starts without the content of a file: neither it nor its backup can be read, it is
    empty although the store shows that it was not, or the backup has older offsets."""
    if pair.main.state in ("sound", "trailing-zeros"):
        return False
    if pair.main.state in ("flipped-name", "emptied", "odd-key"):
        return True
    if pair.main.state in ("missing", "empty") and pair.backup.missing:
        return bool(pair.shown)
    return pair.backup.state != "sound" or pair.ahead


def incomplete(store: Store, log: LogView) -> list[Finding]:
    """Parts of the log that a start does not find: all of it, files between others, its end, or misnamed files."""
    if COMMITLOG in held_elsewhere(store):
        return []
    untold = [*unknown_size_findings(store, log.queue, log.log_end)]
    gone = [*untold, *log_is_gone(store), *possible_copy_findings(store)]
    gone += foreign_findings(store, log)
    if units := units_of_older_log(store, log):
        gone.append(finding(MOSTLY_GONE, COMMITLOG, None, messages=log.tally.messages, lost=0, index_units=units))
    missing = [damage for damage in log.damaged if damage.reason == MISSING_FILE]
    end = file_named_elsewhere(log.files, log.tally.newest_timestamp, index_ends(store), store.checkpoint())
    if end is not None and not any(damage.stop > end.start for damage in log.damaged):
        missing.append(end)
    placed, misnamed = place_misnamed_files(live_copies(store.commitlog))
    # a start reads such a file at the offset in its name, where none of its messages is found
    named = [judged(item, "start") for item in misnamed_findings(store, misnamed)]
    if untold or (named and not list(placed.missing_ranges())):
        # nothing is known to be missing: the rest of a file may hold it, and recover restores the names of files
        return gone + named
    return gone + named + [
        missing_files(store, log.queue.file_size, start=damage.start, stop=damage.stop,
                      intact_after=damage.intact_after)
        for damage in missing
    ]


def not_emulated(store: Store, settings: BrokerSettings) -> list[str]:
    """Parts that change the whole answer: a DLedger log, queues in RocksDB. Without them nothing is predicted."""
    held = held_elsewhere(store)
    parts = {f"{found.part}: {found.what}" for found in held.values()}
    if settings.flag("enableDLegerCommitLog") and not parts:
        parts.add("enableDLegerCommitLog=true: a DLedger continues after the log")
    return sorted(parts)


def _stops(
    store: Store, settings: BrokerSettings, needed: list[Needed], configs: list[ConfigPair], topics: Topics,
    owners: list[Finding],
) -> Iterator[Stop]:
    """Reasons not to start in config and timer files, unread parts, settings, and owners of files."""
    for pair in configs:
        queue_type = pair.main.state == "odd-queue-type"
        if not pair.starts and not (queue_type and not settings.version.has(versions.INNER_BATCHES)):
            name = f"{CONFIG}/{pair.name}"
            # recover repairs nothing beside a DLedger log
            yield Stop(f"{name} {STATE_TEXT[pair.main.state]}" if queue_type else
                       f"brokers read neither {name} nor its backup",
                       f"{name}: {FIND_CONFIG}" if COMMITLOG in held_elsewhere(store) else None)
    if settings.version.has(versions.INNER_BATCHES) and settings.text("storeType") != ROCKSDB_QUEUES:
        for found in queue_types(store, topics):
            # recover makes a topics.json that is gone with the types that the folders show
            yield Stop(found.message, found.remedy if topics.configured is not None else None)
    if settings.version.has(versions.COMBINED_QUEUES):
        double = settings.flag("rocksdbCQDoubleWriteEnable")
        if double and not settings.flag("combineCQUseRocksdbForLmq"):
            yield Stop("rocksdbCQDoubleWriteEnable=true needs combineCQUseRocksdbForLmq=true",
                       "Set combineCQUseRocksdbForLmq=true, or rocksdbCQDoubleWriteEnable=false.")
        if double or settings.text("storeType") == ROCKSDB_QUEUES:
            separate = settings.flag("useSeparateStorePathForRocksdbCQ")
            other = store.consumequeue_dir if separate else store.root / SEPARATE_QUEUES
            if (other / "CURRENT").exists():
                name, value = "useSeparateStorePathForRocksdbCQ", str(separate).lower()
                part = store.relative(other)
                yield Stop(f"{name}={value}, but {part} holds a RocksDB of queues",
                           f"Set {name}={str(not separate).lower()}, with which {part} was written.")
    for item in needed:
        if item.stops:
            yield Stop(f"{item.part} ({item.what}): {item.problem}", item.finding().remedy)
    if _has_timer_service(settings):
        try:
            odd = [*check_files(store)]
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            odd = []
            name = store.relative(Path(error.filename))
            yield Stop(f"{name}: {error.strerror}", f"Move {name} out of the store, then run this again.")
        last = f"{TIMERLOG}/{max(names_in(store.root / TIMERLOG), default='')}"
        for found in odd:
            deleted = found.file == last and found.facts.get("length") == 0 and settings.version.has(
                versions.EMPTY_LAST_FILE_DELETED)
            skipped = found.severity == "info" or (found.file or "").startswith(_SNAPSHOT)
            if not (deleted or skipped):
                yield Stop(found.message, found.remedy)
    yield from (Stop(item.message, item.remedy) for item in owners if item.facts["stops"])


def _has_timer_service(settings: BrokerSettings) -> bool:
    return settings.knows("timerWheelEnable") and settings.flag("timerWheelEnable")


def unread_beside(store: Store) -> Iterator[str]:
    """Parts with data that the answer leaves out: those without which verify cannot answer a question either."""
    for part in unread_parts(store):
        if part.needed_for is None:
            continue
        try:
            held = part.holds(part.path)
        except OSError as error:
            held = str(error.strerror)
        if held:
            yield f"{store.relative(part.path)}: {part.what}"


def timer_left_out(store: Store, settings: BrokerSettings, log: LogView) -> Iterator[str]:
    """Damage of the timer, whose effect on pending messages is not predicted."""
    if settings.knows("timerWheelEnable") and has_timer(store):
        for item in check_timer(store, log):
            if item.severity != "info":
                yield f"timer messages: {item.message}"


def assumptions(store: Store, first_file: list[Finding], settings: BrokerSettings) -> Iterator[str]:
    """Assumptions about release, settings, files and the beginning of the log; `first_file`: the findings about it."""
    version = settings.version
    if version.nearest != version:
        yield f"{version} is unknown and treated like {version.nearest}, the nearest known release"
    sizes = {
        "mappedFileSizeCommitLog": store.mapped_file_size,
        "mappedFileSizeConsumeQueue": store.queue_file_size,
    }
    for name, size in sizes.items():
        if name not in settings.given and str(size) != KNOWN[name].default:
            yield f"{name}={size}, from the files (the default {KNOWN[name].default} would refuse them)"
    for name, value in sorted(settings.too_new.items()):
        yield f"{name}={value} is ignored: {version} does not know it"
    folders = log_folder_names(settings.given)
    for folder in (each for each in folders if each != each.strip()):
        yield f"the log folder {folder!r} is looked for with the space in its name, as brokers do"
    read_only = "readOnlyCommitLogStorePaths"
    if read_only in settings.given and len(folders) < 2:
        yield f"{read_only} is ignored: a broker reads it only if storePathCommitLog names several folders"
    for told, names in ("unknown setting", settings.unknown - every_name()), \
            ("settings with no effect on recovery", settings.unknown & every_name()):
        if names:
            yield f"{told}: {', '.join(sorted(names))}"
    if settings.flag("rocksdbCQDoubleWriteEnable"):
        yield "rocksdbCQDoubleWriteEnable=true is not emulated; the prediction is made without it"
    for item in first_file:
        if item.severity == "warning":
            yield f"the files before {item.file} are missing on purpose: {item.message}"
