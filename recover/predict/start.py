"""A broker's start, step by step, in memory (DefaultMessageStore.load, recover and start)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct, structs

from formats.basics import offset_to_name
from formats.checkpoint import EMPTY
from formats.config.tables import read_delay_offsets
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
from recover.broker.versions import BrokerVersion
from recover.check import log as check_log
from recover.check.log import odd_log_name
from recover.check.surroundings import Surroundings
from recover.derived.expected import QueueVerdict, deleted_topics
from recover.findings.code import MESSAGES, N_, Severity
from recover.findings.model import Finding, Phrase, finding, judged
from recover.findings.store_codes import FIND_CONFIG
from recover.log.scan import LogView
from recover.look.store import finds_log
from recover.predict.delivers import Books, Delivers, delivers
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
from recover.reading.reading import Reading
from recover.store.config_files import (
    DELAYS_FILE,
    LMQ_OFFSETS_FILE,
    LMQ_PREFIX,
    OFFSETS_FILE,
    STATE_TEXT,
    TIMER_METRICS_FILE,
    ConfigPair,
    Topics,
)
from recover.store.mapped_files import OddName
from recover.store.reader import ReadFailure
from recover.store.reading import FILE
from recover.store.store import COMMITLOG, CONFIG, CONSUMEQUEUE_EXT, Store
from recover.store.unread import ROCKSDB_QUEUES, SEPARATE_QUEUES, rocksdb_data

LARGE_RECORD = 64 << 20
_KEPT = 4
"""Starts that a reading keeps: each has the units that it appends to queues in memory."""


class Played(NamedTuple):
    """A start that was played: what it does, and the log and the queues as the broker has them after it. `log` is None,
    and there are no queues, where it does not come so far."""

    prediction: Prediction
    log: BrokerLog | None
    states: dict[Key, QueueState]


def predict(
    store: Store, view: LogView, settings: BrokerSettings, *, mode: Mode | None = None, counted: bool = True,
    rights: bool = True, books: Books | None = None, around: Surroundings | None = None,
) -> Prediction:
    """Predict a start of the broker of these settings (`play`). `books`: the same log, for what its services deliver at
    the time of these."""
    played = play(around or Surroundings(store, view), settings, mode=mode, counted=counted, rights=rights)
    if books is not None and played.log is not None:
        played.prediction.deliveries = delivers(books, settings, played.states)
    return played.prediction


def play(
    around: Surroundings, settings: BrokerSettings, *, mode: Mode | None = None, counted: bool = True,
    rights: bool = True, proven: Mapping[Key, QueueVerdict] = MappingProxyType({}),
) -> Played:
    """Play a start on a store and the scan of its whole log; `mode` overrides the one that the abort file implies.

    Reads queue and index files; writes nothing. Without `counted` no message is counted: enough to learn whether it
    starts, and where the log ends. Without `rights` owners and modes of files do not matter. `proven`: verdicts on
    queues by the same log.
    """
    return _run(around, settings, mode, rights=rights).played(lambda: proven, counted=counted)


class _Run(Struct):
    """A start, of which `prediction` counts nothing, and `cost` does once that was asked for; `start` is None where the
    broker does not come to its log. `gaps`: a part of the log is missing, so that nobody asks whether its end is."""

    around: Surroundings
    settings: BrokerSettings
    prediction: Prediction
    start: _Start | None
    gaps: bool
    cost: Prediction | None = None

    def played(self, proven: Callable[[], Mapping[Key, QueueVerdict]], *, counted: bool) -> Played:
        """Return the start with a prediction of the caller's own."""
        if counted and self.cost is None:
            self.cost = self._counted(proven())
        prediction, start = _copied(self.cost if counted and self.cost else self.prediction), self.start
        if start is None or not (start.ended and prediction.starts):
            return Played(prediction, None, {})
        return Played(prediction, start.log, start.states)

    def _counted(self, proven: Mapping[Key, QueueVerdict]) -> Prediction:
        prediction, around = _copied(self.prediction), self.around
        if not self.gaps and around.end:
            prediction.incomplete = [*around.end]
            prediction.reason = around.end[0].message if prediction.starts else prediction.reason
        if self.start is not None and self.start.ended:
            _count(prediction, around, self.settings, self.start, proven)
        return prediction


def _run(around: Surroundings, settings: BrokerSettings, mode: Mode | None, *, rights: bool) -> _Run:
    store = around.store
    prediction = Prediction(str(settings.version), mode or ("abnormal" if store.has_abort else "normal"))
    loaded = _look_around(prediction, around, settings, rights=rights)
    gaps = bool(prediction.incomplete)
    refusal = loaded.refusal or next(_stops(around, settings, rights=rights), None)
    if refusal is not None:
        prediction.refuse(refusal)
    if refusal is not None or prediction.not_emulated:
        return _Run(around, settings, prediction, None, gaps)
    if settings.text("storeType") == ROCKSDB_QUEUES:
        # its queues are in a database that it creates: the files are not read
        prediction.lowered_queues = [*_ends(loaded.queues)]
        return _Run(around, settings, prediction, None, gaps)
    _note_services(prediction, around, settings)
    log = BrokerLog(loaded.log, mapped_file_size(store, settings), around.log)
    start = _Start(store, settings, loaded, log, prediction, around.topics)
    start.run()
    return _Run(around, settings, prediction, start, gaps)


def _copied(prediction: Prediction) -> Prediction:
    """Return a prediction with lists of its own, to which a caller may add."""
    return structs.replace(prediction, **{
        name: copy(value) for name, value in structs.asdict(prediction).items() if isinstance(value, list | dict)})


_Key = tuple[BrokerVersion, frozenset[tuple[str, str]]]


def _key(settings: BrokerSettings) -> _Key:
    return settings.version, frozenset(settings.given.items())


class Starts:
    """The starts on one reading: what surrounds them and the time (`now`, ms) are asked once, and each is played once,
    and counted once where that is asked for."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.around = Surroundings.on(reading)
        self._runs: dict[tuple[_Key, bool], _Run] = {}
        self.now = check_log.now_ms()
        self._books: dict[int, Books] = {}
        self._delivers: dict[tuple[_Key, int], Delivers] = {}

    @classmethod
    def on(cls, reading: Reading) -> Starts:
        """Return those of a reading, which keeps them."""
        kept: dict[str, Any] = vars(reading)
        if "starts" not in kept:
            kept["starts"] = cls(reading)
        found: Starts = kept["starts"]
        return found

    def play(self, settings: BrokerSettings, *, counted: bool = True, rights: bool = True) -> Played:
        """Return the start of the broker of these settings (see `play`), with a prediction of the caller's own."""
        # where they refuse no start, a start with them is the start without them
        key = _key(settings), rights or not any(item.facts["stops"] for item in self.around.rights)
        if key not in self._runs:
            if len(self._runs) == _KEPT:
                # the first is that of the store's own release
                del self._runs[[*self._runs][1]]
            self._runs[key] = _run(self.around, settings, None, rights=key[1])
        return self._runs[key].played(self._proven, counted=counted)

    def alone(self, settings: BrokerSettings, mode: Mode | None = None) -> Played:
        """Return what that broker makes of the log as it is, whoever owns its files; nothing is counted."""
        if mode is None and self._as_it_is is self.around:
            return self.play(settings, counted=False, rights=False)
        return play(self._as_it_is, settings, mode=mode, counted=False, rights=False)

    @cached_property
    def _as_it_is(self) -> Surroundings:
        reading = self._reading
        same = reading.as_it_is is self.around.log
        return self.around if same else Surroundings(reading.store, reading.as_it_is)

    def predict(self, settings: BrokerSettings, at: int | None = None) -> Prediction:
        """Return the prediction of `play`, with what the services deliver at a time (ms; None: now)."""
        prediction, log, states = self.play(settings)
        if log is not None:
            at = self.now if at is None else at
            key = _key(settings), at
            if key not in self._delivers:
                self._delivers[key] = delivers(self.books(at), settings, states)
            prediction.deliveries = self._delivers[key]
        return prediction

    def books(self, at: int) -> Books:
        """Return the log as services of brokers read it at a time (ms)."""
        if at not in self._books:
            reading = self._reading
            self._books[at] = Books(reading.store, reading.by_names, reading.topics, at)
        return self._books[at]

    def _proven(self) -> dict[Key, QueueVerdict]:
        """The queues that hold exactly the units of the log, if that is the log as brokers find it."""
        reading = self._reading
        if reading.queues is None or reading.by_names is not reading.log:
            return {}
        return {key: verdict for key, verdict in reading.queues.verdicts.items() if verdict.live is not None}


def _look_around(
    prediction: Prediction, around: Surroundings, settings: BrokerSettings, *, rights: bool,
) -> Loaded:
    """Load the store, and note all that the start finds before it looks at a message."""
    store = around.store
    prediction.assumptions += assumptions(store, around.first_file, settings)
    _note_unread(prediction, around, settings)
    prediction.incomplete = [*around.gaps]
    prediction.config_lost = {f"{CONFIG}/{pair.name}": pair for pair in _read_configs(around, settings)
                              if pair.starts and _is_forgotten(pair)}
    loaded = load(store, settings)
    prediction.assumptions += loaded.assumptions
    prediction.deleted_files = [store.relative(path) for path in loaded.deleted]
    prediction.ignored_files = [store.relative(path) for path in loaded.ignored]
    unread = [*loaded.odd_index, *around.unread]
    closed = around.rights if rights else []
    prediction.assumptions += [Phrase("the broker runs as user {user}, the owner of most files",
                                      user=item.facts["user"])
                               for item in closed if item.facts["closed"] and item.facts.get("user")][:1]
    beside = [*_forgotten_offsets(around, settings), *closed]
    prediction.by_hand = [*loaded.by_hand, *unread, *beside]
    prediction.unsupported += [f"{item.file}: {item.facts.get('error') or item.facts['why']}" for item in unread]
    gone = [*prediction.incomplete, *(item for item in beside if item.bits & MESSAGES)]
    prediction.reason = gone[0].message if gone else None
    return loaded


def _note_unread(prediction: Prediction, around: Surroundings, settings: BrokerSettings) -> None:
    """Note what the answer leaves out."""
    prediction.not_emulated = not_emulated(around, settings)
    prediction.unsupported += prediction.not_emulated or around.unread_parts
    # predict does not know what the loss of these costs
    prediction.unsupported += [Phrase("{part} ({what}): {problem}", part=item.part, what=item.what,
                                      problem=item.problem) for item in around.needed if not item.stops]
    # a recovery walks both (MappedFileQueue.doLoad), and may cut at either
    prediction.unsupported += [Phrase("{file}: a second log file with this name", file=around.store.relative(twin.path))
                               for twin in around.store.commitlog.duplicates]


def _count(
    prediction: Prediction, around: Surroundings, settings: BrokerSettings, start: _Start,
    proven: Mapping[Key, QueueVerdict],
) -> None:
    """Count what the start costs: lost, unreachable and undelivered messages."""
    count_lost(around.log, prediction.cut_at, prediction)
    told = "enableConsumeQueueExt" in settings.given
    ext_from = None if told and not settings.flag("enableConsumeQueueExt") else start.dispatcher.first_offset
    refers = count_unreachable(
        around.log, around.topics, start.states, prediction.cut_at, prediction, settings.delay_table, ext_from,
        proven, late=prediction.mode == "abnormal" and settings.version.has(versions.DELAY_TABLE_LATE),
    )
    if refers and not told:
        prediction.assumptions.append(
            Phrase("enableConsumeQueueExt=true, because entries refer to {part}", part=f"{CONSUMEQUEUE_EXT}/"))
    waiting = [*_undelivered(around, settings, start.states)]
    prediction.by_hand += waiting
    prediction.reason = prediction.reason or next((item.message for item in waiting if item.bits), None)


def _note_services(prediction: Prediction, around: Surroundings, settings: BrokerSettings) -> None:
    """Note what the services of the broker do with their own files."""
    if settings.version.has(versions.INVALID_CONFIG_DELETED):
        prediction.deleted_files += [f"{CONFIG}/{pair.name}" for pair in _read_configs(around, settings)
                                     if pair.is_deleted]
    if settings.knows("timerWheelEnable"):
        # the effect on pending messages is not predicted
        prediction.unsupported += [Phrase("timer messages: {damage}", damage=damage) for damage in around.timer_damage]


def _ends(queues: dict[Key, QueueState]) -> Iterator[tuple[str, int, int]]:
    """Each queue that holds anything, with its max offset, as far as its files tell, and the 0 of an unread one."""
    for key, state in sorted(queues.items()):
        state.recover()
        if state.max_offset:
            yield queue_name(key), state.max_offset, 0


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
            self.states, log.view.queues, settings, queue_file_size(store, settings), log.reads(), self.topics.batch
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
            self._refuse(error.args[0])
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
            self._refuse(error.args[0])
            return
        if stuck is not None:
            self._refuse(Phrase("dispatch waits for ever for the log at {offset}", offset=stuck))
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
            self._assume(Phrase(
                "{setting}: {n} older files are not read", n=start.index,
                setting=f"commitLogRecoverMaxNum={self.settings.number('commitLogRecoverMaxNum')}"))
        self.prediction.start_file = self.store.relative(self.log.files[start.index].path)
        own_only = mode == "abnormal" and self.settings.flag("checkCommitLogOffsetOnRecover")
        position = first_position(self.log, start.index, mode, self.settings, self.checkpoint)
        found = scan(self.log, start.index, self.rules, self._target(max_of_queues), position=position,
                     own_file_only=own_only)
        self.prediction.end_reason = found.reason
        if found.reason == "no-property-crc":
            self._assume(Phrase("forceVerifyPropCRC=true: the record at {offset} has no property CRC, and the log ends "
                                "there", offset=found.process_offset))
        elif found.size > LARGE_RECORD and not found.fatal:
            self._assume(Phrase("the record at {offset} makes the broker allocate {n} bytes; with a smaller heap it "
                                "would not start", offset=found.process_offset, n=found.size))
        if found.fatal:
            raise BrokenStartError(Phrase("a record at {offset} needs more memory than any heap has",
                                          offset=found.process_offset))
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
            self.prediction.reason = self.prediction.end_reason = N_(
                "it does not find the folders of the log")
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
            prediction.reason = Phrase(
                "the queues list {n:message} after {offset}, where its recovery cuts the log" if cuts else
                "the queues list {n:message} after {offset}, where the log ends: its end is missing",
                n=more, offset=prediction.cut_at)
        prediction.dispatched_from = self.dispatcher.first_offset
        made_again = self._names_made()
        prediction.deleted_files = sorted(name for name in prediction.deleted_files if name not in made_again)
        new = sorted({topic for topic, _ in self.states.keys() - found.keys() if not topic.startswith(LMQ_PREFIX)})
        prediction.revived_topics = deleted_topics(self.log.view, self.topics, new)
        self._assume_of_dispatch()

    def _assume_of_dispatch(self) -> None:
        """Note the settings that decided what dispatch wrote, and were not given."""
        if self.dispatcher.delayed and "messageDelayLevel" not in self.settings.given:
            self._assume(Phrase("messageDelayLevel: the default gives {n} entries their deliver times",
                                n=self.dispatcher.delayed))
        if self.dispatcher.multi_skipped:
            self._assume(Phrase("enableMultiDispatch=false: {n} messages are not dispatched to LMQ queues",
                                n=self.dispatcher.multi_skipped))
        if self.dispatcher.lmq_elsewhere and "enableLmq" not in self.settings.given:
            self._assume(Phrase("enableLmq=false: {n} entries of LMQ queues go to the queue number of their topic "
                                "instead of 0", n=self.dispatcher.lmq_elsewhere))

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
        # entries of messages that the log no longer holds are not a loss
        first = max(min((begin for _, begin, last in gone if last > 0), default=end), self.log.min_offset)
        if self.settings.flag("messageIndexEnable") and first < (end if again_from is None else again_from):
            self.prediction.index_gap = (first, end if again_from is None else min(again_from, end))


def limited_search_cuts(view: LogView, settings: BrokerSettings) -> bool:
    """Whether a search for the start file that matches none of the newest files makes the broker cut the log short."""
    log = BrokerLog(view.queue.files, view.queue.file_size, view)
    first = oldest_searched(settings, len(log.files))
    return scan(log, first, CheckRules.of(settings), NullDispatcher()).process_offset < view.log_end


# --- What a release makes of its surroundings: what it does not read, and what stops it.


def _read_configs(around: Surroundings, settings: BrokerSettings) -> list[ConfigPair]:
    """The config files that exist, or should, and stop this broker if they do not load."""
    not_read = {OFFSETS_FILE if settings.flag("enableLmq") else LMQ_OFFSETS_FILE}
    if not has_timer_service(settings):
        not_read.add(TIMER_METRICS_FILE)
    return [pair for pair in around.configs if pair.shown or (
        pair.present and pair.known.stops and settings.version.has_reached(pair.known.since)
        and pair.name not in not_read)]


def _forgotten_offsets(around: Surroundings, settings: BrokerSettings) -> Iterator[Finding]:
    """Consumer progress that this broker does not use: its settings select the other file of offsets."""
    given = dict(settings.given)
    if "enableLmq" in given:
        given["enableLmq"] = str(settings.flag("enableLmq"))
    return around.other_offsets(given)


def _undelivered(
    around: Surroundings, settings: BrokerSettings, states: dict[Key, QueueState]
) -> Iterator[Finding]:
    """Messages that wait for their time where this broker does not deliver them: in delay levels that its table lacks,
    and in the timer that it does not run. A release without a timer keeps them for one that has it: info."""
    def waits(number: int, where: str, remedy: str, severity: Severity = "error") -> Finding:
        return finding("start-leaves-waiting", broker=str(settings.version), count=number, where=where, remedy=remedy,
                       severity=severity)

    table = settings.delay_table
    (delays,) = (pair.chosen for pair in around.topics.pairs if pair.name == DELAYS_FILE)
    offsets = read_delay_offsets(delays.value) if delays is not None else {}
    left = {queue_id + 1: state.max_offset - max(offsets.get(queue_id + 1, 0), state.min_offset)
            for (topic, queue_id), state in states.items() if topic == TOPIC_SCHEDULE and queue_id + 1 not in table}
    if number := sum(max(0, waiting) for waiting in left.values()):
        level = max(level for level, waiting in left.items() if waiting > 0)
        yield waits(number, Phrase("delay levels up to {level}, and messageDelayLevel has {n}", level=level,
                                   n=len(table)),
                    N_("Set messageDelayLevel to the levels with which the messages were stored."))
    if not has_timer_service(settings) and (number := around.waiting_timers):
        known = settings.knows("timerWheelEnable")
        where = N_("the timer, which timerWheelEnable=false switches off") if known else \
            N_("the timer, which it does not have")
        yield waits(number, where, N_("Set timerWheelEnable=true.") if known else "", "error" if known else "info")


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


def not_emulated(around: Surroundings, settings: BrokerSettings) -> list[str]:
    """Parts that change the whole answer: a DLedger log, queues in RocksDB. Without them nothing is predicted."""
    parts = {Phrase("{part}: {what}", part=found.part, what=found.what) for found in around.elsewhere.values()}
    if settings.flag("enableDLegerCommitLog") and not parts:
        parts.add(Phrase("enableDLegerCommitLog=true: a DLedger continues after the log"))
    return sorted(parts)


def _config_stops(around: Surroundings, settings: BrokerSettings) -> Iterator[Stop]:
    for pair in _read_configs(around, settings):
        queue_type = pair.main.state == "odd-queue-type"
        if not pair.starts and not (queue_type and not settings.version.has(versions.INNER_BATCHES)):
            name = f"{CONFIG}/{pair.name}"
            # recover repairs nothing beside a DLedger log
            yield Stop(Phrase("{file} {state}", file=name, state=STATE_TEXT[pair.main.state]) if queue_type else
                       Phrase("brokers read neither {file} nor its backup", file=name),
                       Phrase("{part}: {what}", part=name, what=FIND_CONFIG) if COMMITLOG in around.elsewhere else None)


def _type_stops(around: Surroundings, settings: BrokerSettings) -> Iterator[Stop]:
    for found in around.queue_types if settings.text("storeType") != ROCKSDB_QUEUES else ():
        # recover makes a topics.json that is gone with the types that the folders show
        yield Stop(found.message, found.remedy if around.topics.configured is not None else None)


def _double_write_stops(_: Surroundings, settings: BrokerSettings) -> Iterator[Stop]:
    if settings.flag("rocksdbCQDoubleWriteEnable") and not settings.flag("combineCQUseRocksdbForLmq"):
        yield Stop(N_("rocksdbCQDoubleWriteEnable=true needs combineCQUseRocksdbForLmq=true"),
                   N_("Set combineCQUseRocksdbForLmq=true, or rocksdbCQDoubleWriteEnable=false."))


def _database_stops(around: Surroundings, settings: BrokerSettings) -> Iterator[Stop]:
    """A database of queues in the other of the two folders."""
    if settings.flag("rocksdbCQDoubleWriteEnable") or settings.text("storeType") == ROCKSDB_QUEUES:
        store, separate = around.store, settings.flag("useSeparateStorePathForRocksdbCQ")
        other = store.consumequeue_dir if separate else store.root / SEPARATE_QUEUES
        if (other / "CURRENT").exists():
            name, value = "useSeparateStorePathForRocksdbCQ", str(separate).lower()
            part = store.relative(other)
            yield Stop(Phrase("{setting}, but {part} holds a RocksDB of queues", setting=f"{name}={value}", part=part),
                       Phrase("Set {setting}, with which {part} was written.",
                              setting=f"{name}={str(not separate).lower()}", part=part))


def _part_stops(around: Surroundings, _: BrokerSettings) -> Iterator[Stop]:
    for item in around.needed:
        if item.stops:
            yield Stop(Phrase("{part} ({what}): {problem}", part=item.part, what=item.what, problem=item.problem),
                       item.finding().remedy)


def _timer_stops(around: Surroundings, settings: BrokerSettings) -> Iterator[Stop]:
    if not has_timer_service(settings):
        return
    if around.odd_timer is not None:
        name, problem = around.odd_timer
        yield Stop(Phrase("{part}: {what}", part=name, what=problem),
                   Phrase("Move {file} out of the store, then run this again.", file=name))
        return
    for found in around.timer_files:
        empty_last = found.file == around.last_timerlog and found.facts.get("length") == 0
        if not (empty_last and settings.version.has(versions.EMPTY_LAST_FILE_DELETED)):
            yield Stop(found.message, found.remedy)


def _rights_stops(around: Surroundings, _: BrokerSettings) -> Iterator[Stop]:
    for item in around.rights:
        if item.facts["stops"]:
            yield Stop(item.message, item.remedy)


class _Row(NamedTuple):
    """What may keep a broker from starting: who finds it, and from which release on it does. `rights`: not asked where
    owners and modes do not matter."""

    finds: Callable[[Surroundings, BrokerSettings], Iterator[Stop]]
    since: versions.Behaviour | None = None
    rights: bool = False


_STOPS = (
    _Row(_config_stops),
    _Row(_type_stops, versions.INNER_BATCHES),
    _Row(_double_write_stops, versions.COMBINED_QUEUES),
    _Row(_database_stops, versions.COMBINED_QUEUES),
    _Row(_part_stops),
    _Row(_timer_stops),
    _Row(_rights_stops, rights=True),
)


def _stops(around: Surroundings, settings: BrokerSettings, *, rights: bool) -> Iterator[Stop]:
    """Reasons not to start, in the order in which a start meets them; each is asked only if none was found before."""
    for row in _STOPS:
        if (row.since is None or settings.version.has(row.since)) and (rights or not row.rights):
            yield from row.finds(around, settings)


def has_timer_service(settings: BrokerSettings) -> bool:
    """Whether a broker of these settings delivers timer messages."""
    return settings.knows("timerWheelEnable") and settings.flag("timerWheelEnable")


def assumptions(store: Store, first_file: list[Finding], settings: BrokerSettings) -> Iterator[str]:
    """Assumptions about release, settings, files and the beginning of the log; `first_file`: the findings about it."""
    version = settings.version
    if version.nearest != version:
        yield Phrase("{version} is unknown and treated like {nearest}, the nearest known release", version=version,
                     nearest=version.nearest)
    sizes = {
        "mappedFileSizeCommitLog": store.mapped_file_size,
        "mappedFileSizeConsumeQueue": store.queue_file_size,
    }
    for name, size in sizes.items():
        if name not in settings.given and str(size) != KNOWN[name].default:
            yield Phrase("{setting}, from the files (the default {default} would refuse them)",
                         setting=f"{name}={size}", default=KNOWN[name].default)
    for name, value in sorted(settings.too_new.items()):
        yield Phrase("{setting} is ignored: {version} does not know it", setting=f"{name}={value}", version=version)
    folders = log_folder_names(settings.given)
    for folder in (each for each in folders if each != each.strip()):
        yield Phrase("the log folder {folder} is looked for with the space in its name, as brokers do",
                     folder=repr(folder))
    read_only = "readOnlyCommitLogStorePaths"
    if read_only in settings.given and len(folders) < 2:
        yield Phrase("{setting} is ignored: a broker reads it only if storePathCommitLog names several folders",
                     setting=read_only)
    for template, names in (N_("unknown setting: {names}"), settings.unknown - every_name()), \
            (N_("settings with no effect on recovery: {names}"), settings.unknown & every_name()):
        if names:
            yield Phrase(template, names=", ".join(sorted(names)))
    if settings.flag("rocksdbCQDoubleWriteEnable"):
        yield Phrase("rocksdbCQDoubleWriteEnable=true is not emulated; the prediction is made without it")
    for item in first_file:
        if item.severity == "warning":
            yield Phrase("the files before {file} are missing on purpose: {why}", file=item.file, why=item.message)
