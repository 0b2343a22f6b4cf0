"""A broker's start, step by step, in memory (DefaultMessageStore.load, recover and start)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from formats import checkpoint as checkpoints
from formats.checkpoint import Checkpoint
from formats.names import offset_to_name
from recover.broker.record_check import CheckRules
from recover.broker.recovery import DispatchTarget, Mode, ScanEnd, oldest_searched, scan, start_file, unlinked
from recover.broker.settings import BrokerSettings
from recover.broker.versions import (
    CONFIRM_END_COMPARED,
    CURRENT_MAX_COMPARED,
    NO_LOG_DESTROYS_QUEUES,
    NORMAL_DISPATCHES,
    RECHECK_REPUT_SETTING,
    REPUT_FROM_QUEUES,
)
from recover.check.parts import needed_parts, not_foreseen
from recover.log.scan import LogView
from recover.predict.dispatch import Above, Confirmed, Dispatcher, Key, Nobody, reput
from recover.predict.loading import BrokerLog, Loaded, Stop, load, mapped_file_size, queue_file_size
from recover.predict.prediction import Prediction, count_lost, count_unreachable, queue_name
from recover.predict.queues import BrokenStartError, QueueState, deleted_index_files
from recover.predict.surroundings import (
    assumptions,
    config_lost,
    config_pairs,
    forgotten_offsets,
    incomplete,
    not_emulated,
    refused_by,
    second_copies,
    timer_left_out,
    unread_beside,
    unreadable,
)
from recover.store.config_files import Topics
from recover.store.reader import read_small
from recover.store.store import Store

LARGE_RECORD = 64 << 20


Started = Callable[[BrokerLog, dict[Key, QueueState]], None]


def predict(
    store: Store, view: LogView, settings: BrokerSettings, *, mode: Mode | None = None, counted: bool = True,
    started: Started | None = None,
) -> Prediction:
    """What the broker of these settings does with the store; `mode` overrides what the abort file says.

    `view` is the scan of the whole log. Reads queue and index files; writes nothing. Without `counted` the
    costs by message are left at 0: enough to see where the log ends. `started` is called with the log and the queues
    as the broker has them once it has started.
    """
    chosen: Mode = mode or ("abnormal" if store.has_abort else "normal")
    prediction = Prediction(str(settings.version), chosen)
    prediction.assumptions += assumptions(store, view, settings)
    prediction.not_emulated = not_emulated(store, settings)
    prediction.unsupported += prediction.not_emulated or unread_beside(store, settings)
    topics = Topics(store)
    needed = needed_parts(store, dict(settings.given), topics, view)
    prediction.unsupported += [*not_foreseen(needed), *second_copies(store)]
    prediction.incomplete = incomplete(store, view)
    configs = config_pairs(store, view, settings)
    prediction.config_lost = config_lost(configs)
    loaded = load(store, settings)
    prediction.deleted_files = [store.relative(path) for path in loaded.deleted]
    prediction.ignored_files = [store.relative(path) for path in loaded.ignored]
    unread = [*loaded.odd_index, *unreadable(store, configs)]
    prediction.by_hand = [*loaded.by_hand, *unread, *forgotten_offsets(store, topics.pairs, settings)]
    prediction.unsupported += [f"{item.file}: {item.facts.get('error') or item.facts['why']}" for item in unread]
    if prediction.incomplete:
        prediction.reason = prediction.incomplete[0].message
    refusal = loaded.refusal or refused_by(store, settings, needed, configs)
    if refusal is not None:
        prediction.refuse(refusal)
        return prediction
    if prediction.not_emulated:
        return prediction
    prediction.unsupported += timer_left_out(store, settings, view)
    with BrokerLog(loaded.log, mapped_file_size(store, settings), view) as log:
        start = _Start(store, settings, loaded, log, prediction)
        start.run()
        if counted:
            start.count()
        if started is not None and start.ended and prediction.starts:
            started(log, start.states)
    return prediction


class _Start:
    def __init__(
        self, store: Store, settings: BrokerSettings, loaded: Loaded, log: BrokerLog, prediction: Prediction,
    ) -> None:
        self.store = store
        self.settings = settings
        self.version = settings.version
        self.log = log
        self.prediction = prediction
        self.topics = Topics(store)
        self.ended = False
        self.states: dict[Key, QueueState] = loaded.queues
        self.checkpoint = read_checkpoint(store.checkpoint_path)
        self.rules = CheckRules.of(settings)
        self.rules_later = CheckRules.of(settings, recovering=False)
        self.dispatcher = Dispatcher(
            self.states, log.view.queues, settings, queue_file_size(store, settings), log.read, self.topics.batch
        )
        self.dispatcher.delays = self.rules.delays

    def run(self) -> None:
        """Fill in the prediction."""
        index_deleted = self._load_index()
        for state in self.states.values():
            state.recover()
        found = {key: state.max_offset for key, state in self.states.items()}
        end = self._recover_log() if self.log.files else self._without_log()
        if end is None:
            return
        self.prediction.min_phy, self.prediction.max_phy = self.log.min_offset, end
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

    def count(self) -> None:
        """Fill in what it costs by message, if the start came so far."""
        if self.ended:
            prediction, view = self.prediction, self.log.view
            count_lost(view, prediction.max_phy, prediction)
            delays = self.settings.delay_table
            count_unreachable(view, self.topics, self.states, prediction.max_phy, prediction, delays)

    def _recover_log(self) -> int | None:
        max_of_queues = self._max_physic()
        mode = self.prediction.mode
        start = start_file(self.log, mode, self.settings, self.checkpoint, max_of_queues)
        self.prediction.search_limited = not start.matched and start.index > 0
        if self.prediction.search_limited:
            self._assume(f"commitLogRecoverMaxNum={self.settings.number('commitLogRecoverMaxNum')}: "
                         f"{start.index} older files are not looked at")
        self.prediction.start_file = self.store.relative(self.log.files[start.index].path)
        own_only = mode == "abnormal" and self.settings.flag("checkCommitLogOffsetOnRecover")
        found = scan(self.log, start.index, self.rules, self._target(max_of_queues), own_file_only=own_only)
        self.prediction.end_reason = found.reason
        if found.reason == "no-property-crc":
            self._assume(f"forceVerifyPropCRC=true: the record at {found.process_offset} has no property CRC, "
                         "and the log ends there")
        elif found.size > LARGE_RECORD and not found.fatal:
            self._assume(f"the record at {found.process_offset} makes the broker allocate {found.size} bytes; "
                         "with a smaller heap it would not start")
        if found.fatal:
            self._refuse(f"a record at {found.process_offset} asks for more memory than any heap has")
            return None
        self._truncate(found, max_of_queues)
        return found.process_offset

    def _target(self, max_of_queues: int) -> DispatchTarget:
        if self.prediction.mode == "normal":
            return Above(self.dispatcher, max_of_queues) if self.version.has(NORMAL_DISPATCHES) else Nobody()
        duplicated = self.settings.flag("duplicationEnable")
        if self.version.has(CONFIRM_END_COMPARED):
            if duplicated or self.settings.flag("enableControllerMode"):
                return Confirmed(self.dispatcher, self.checkpoint.confirm_phy_offset)
        elif duplicated:
            return Nobody()
        return self.dispatcher

    def _truncate(self, found: ScanEnd, max_before: int) -> None:
        reached = self._max_physic() if self.version.has(CURRENT_MAX_COMPARED) else max_before
        if reached >= found.process_offset:
            for state in self.states.values():
                state.truncate(found.process_offset)
        gone = unlinked(self.log.files, found.process_offset)
        self.prediction.deleted_files += [self.store.relative(mapped_file.path) for mapped_file in gone]
        self.log.files = [mapped_file for mapped_file in self.log.files if mapped_file not in gone]

    def _without_log(self) -> int:
        if self.prediction.mode == "abnormal" or self.version.has(NO_LOG_DESTROYS_QUEUES):
            for state in self.states.values():
                state.destroy()
        return 0

    def _max_physic(self) -> int:
        return max((state.max_physic for state in self.states.values()), default=-1)

    def _correct_min(self) -> None:
        for state in self.states.values():
            state.correct_min(self.log.min_offset)

    def _dispatch_on(self, end: int) -> int | None:
        """Dispatch after recovery; where it is stuck, or None."""
        from_queues = self.version.has(REPUT_FROM_QUEUES) or (
            self.version.has(RECHECK_REPUT_SETTING) and self.settings.flag("recheckReputOffsetFromCq")
        )
        if not from_queues:
            return None
        start = max(self.log.min_offset, self._max_physic(), 0)
        if self.settings.flag("duplicationEnable") and start < end:
            # dispatch ends at the confirm offset, which nobody moves during a start
            return start
        self.dispatcher.delays = self.rules_later.delays
        stuck = reput(self.log, start, end, self.rules_later, self.dispatcher)
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
            cuts = prediction.max_phy < self.log.view.log_end
            prediction.reason = (
                f"queues name {more} message{'' if more == 1 else 's'} after {prediction.max_phy}, where "
                + ("its recovery cuts the log" if cuts else "the log ends: its end is missing")
            )
        made_again = self._names_made()
        prediction.deleted_files = sorted(name for name in prediction.deleted_files if name not in made_again)
        new_topics = sorted({topic for topic, _ in self.states.keys() - found.keys()})
        prediction.revived_topics = [topic for topic in new_topics if self.topics.is_deleted(topic)]
        if self.dispatcher.delayed and "messageDelayLevel" not in self.settings.given:
            self._assume(f"messageDelayLevel: the default gives {self.dispatcher.delayed} units their deliver times")
        if self.dispatcher.multi_skipped:
            self._assume(
                f"enableMultiDispatch=false: {self.dispatcher.multi_skipped} messages get no unit in their LMQ queues"
            )

    def _names_made(self) -> set[str]:
        """Queue files that dispatch makes: one may have the name of a file that was deleted before."""
        return {
            self.store.relative(self.store.consumequeue_dir / key[0] / str(key[1]) / offset_to_name(queue_file.start))
            for key, state in self.states.items() for queue_file in state.files if queue_file.path is None
        }

    def _load_index(self) -> list[tuple[Path, int, int]] | None:
        if self.prediction.mode == "normal":
            return None
        return deleted_index_files(self.store.index_dir, self.checkpoint.index_msg_timestamp)

    def _report_index(self, gone: list[tuple[Path, int, int]], end: int) -> None:
        self.prediction.deleted_files += [self.store.relative(path) for path, _, _ in gone]
        self.prediction.deleted_files.sort()
        again_from = self.dispatcher.first_offset
        first = min((begin for _, begin, last in gone if last > 0), default=end)
        if self.settings.flag("messageIndexEnable") and first < (end if again_from is None else again_from):
            self.prediction.index_gap = (first, end if again_from is None else min(again_from, end))


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint as a broker maps it: zeros where the file is missing or short."""
    try:
        return checkpoints.decode(read_small(path, checkpoints.FILE_SIZE), extend=True)
    except OSError:
        return checkpoints.EMPTY


def limited_search_cuts(view: LogView, settings: BrokerSettings) -> bool:
    """Whether a search for the start file that finds none among the newest files lets the log be cut short."""
    with BrokerLog(view.queue.files, view.queue.file_size, view) as log:
        first = oldest_searched(settings, len(log.files))
        return scan(log, first, CheckRules.of(settings), Nobody()).process_offset < view.log_end
