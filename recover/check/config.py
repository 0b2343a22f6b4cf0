"""Checks of config/: the text of each file, its backup, and the offsets in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from formats.config.json import Json, Style, dumps
from formats.config.tables import BACKUP_SUFFIX, missing_keys, read_consumer_offsets, read_delay_offsets
from formats.consumequeue import CQ_UNIT, is_valid
from formats.record import TOPIC_SCHEDULE
from recover.broker.versions import EXPANDED_JSON, BrokerVersion
from recover.derived.expected import EXPIRED, QueueKey, deleted_topics
from recover.findings.code import N_
from recover.findings.model import Finding, Phrase, few, finding
from recover.findings.store_codes import FIND_CONFIG, GUESS, PARTLY_KEPT, TOPICS_GUESSED
from recover.log.scan import LogView
from recover.reading.reading import Reading
from recover.store.config_files import (
    DELAYS_FILE,
    GROUPS_FILE,
    IN_ROCKSDB,
    LMQ_OFFSETS_FILE,
    LMQ_PREFIX,
    MAPPING_FILE,
    MARK,
    OFFSET_FILES,
    OFFSETS_FILE,
    STATE_TEXT,
    TOPICS_FILE,
    ConfigPair,
    ConfigText,
    Topics,
    is_users_topic,
    tables_of,
    topic_text,
)
from recover.store.source import names_in, read_small
from recover.store.store import COMMITLOG, CONFIG, Store
from recover.store.unread import ROCKSDB_QUEUES

# --- Consumer offsets and delay offsets against the queues that they refer to.


class AboveMax(Struct, frozen=True):
    """An offset after the end of its queue: its location (file, table, member, queue id), its value, and the queue's
    end.

    For delay offsets `member` is empty and `queue_id` is the delay level.
    """

    file: str
    table: str
    member: str
    queue_id: int
    offset: int
    end: int


def queue_ranges(analysis: Reading) -> dict[QueueKey, range]:
    """Return each queue's offsets, from the first remaining message to the last, once the queue agrees with the log."""
    least, most = analysis.log.tally.least, analysis.log.tally.most
    ranges = {
        QueueKey(topic_text(topic), queue_id): range(int(least[number]), int(most[number]) + 1)
        for number, (topic, queue_id) in enumerate(analysis.log.queues) if most[number] >= 0
    }
    for key, verdict in (analysis.queues.verdicts if analysis.queues else {}).items():
        if not verdict.units:
            continue
        end = verdict.end
        beyond = {queue_offset for queue_offset, _, _ in verdict.beyond}
        while end - 1 in beyond:
            end -= 1
        known = ranges.get(key)
        first = verdict.min_index + verdict.counts.get(EXPIRED, 0)
        if known is not None:
            first, end = min(first, known.start) if verdict.lost else known.start, max(end, known.stop)
        ranges[key] = range(min(first, end), end)
    return ranges


class ConfigReport:
    """Findings about every known config file and its backup, and about the offsets in them.

    `above`: offsets after the end of their queues, which --clamp-offsets lowers. The copies judged are those that
    recover would keep; batch and static topics are skipped, they count differently.
    """

    def __init__(self, analysis: Reading) -> None:
        store, topics = analysis.store, analysis.topics
        self.pairs = judged_pairs(
            store, topics, analysis.log, expected={key.topic for key in analysis.expectation.queues()})
        self.above: list[AboveMax] = []
        self.findings = pair_findings(store, topics, analysis.log, self.pairs)
        self.findings += other_offsets(store, self.pairs, store.options.settings)
        self.ranges: dict[QueueKey, range] = {}
        self.counted_otherwise: frozenset[str] = frozenset()
        if not store.commitlog.files or COMMITLOG in analysis.elsewhere:
            # where queues end is in a log that is not read
            return
        self.store, self.ranges = store, queue_ranges(analysis)
        pairs = {pair.name: pair for pair in self.pairs}
        folders = set(topics.folders) | set(topics.configured or {})
        self.known = {key.topic for key in self.ranges} | folders | topics.batch
        self.counted_otherwise = topics.batch | set(pairs[MAPPING_FILE].main.table)
        for pair in (pairs[name] for name in OFFSET_FILES):
            if pair.chosen is None:
                continue
            offsets = read_consumer_offsets(pair.chosen.value)
            for (topic, group), queues in offsets.offsets.items():
                self._member(pair, "offsetTable", topic, group, queues)
            for (topic, group), offset in offsets.lmq_offsets.items():
                self._member(pair, "lmqOffsetTable", topic, group, {0: offset})
        self._delays(pairs[DELAYS_FILE])

    def _member(self, pair: ConfigPair, table: str, topic: str, group: str, queues: dict[int, int]) -> None:
        if topic in self.counted_otherwise:
            return
        file = self.store.relative(pair.main.path)
        found = self.findings
        facts: dict[str, Any] = {"topic": topic, "group": group}
        if topic not in self.known:
            if not topic.startswith(LMQ_PREFIX) and any(queues.values()):
                offsets = {str(queue_id): offset for queue_id, offset in queues.items()}
                found.append(finding("consumer-offset-unknown-topic", file, **facts, offsets=offsets))
            return
        above: dict[int, tuple[int, int]] = {}
        below: dict[int, tuple[int, int]] = {}
        for queue_id, offset in queues.items():
            held = self.ranges.get(QueueKey(topic, queue_id), range(0))
            if offset > held.stop:
                above[queue_id] = (offset, held.stop)
                self.above.append(AboveMax(file, table, f"{topic}@{group}", queue_id, offset, held.stop))
            elif 0 <= offset < held.start:
                below[queue_id] = (offset, held.start)
        for code, odd, template, limit, effect in (
            ("consumer-offset-above-max", above, N_("queue {queue} ends at {end}, the offset is {offset}"), "max",
             "the consumer is sent elsewhere: back to the first message on 4.x if the queue begins at 0, otherwise to "
             "its end"),
            ("consumer-offset-below-min", below, N_("queue {queue} begins at {end}, the offset is {offset}"), "min",
             "the consumer continues at the first message left; those before it are no longer in the log"),
        ):
            if odd:
                found.append(finding(
                    code, file, **facts, count=len(odd), detail=_detail(odd, template),
                    queues={str(queue_id): {"offset": offset, limit: at} for queue_id, (offset, at) in odd.items()},
                    effect=effect,
                ))

    def _delays(self, pair: ConfigPair) -> None:
        if pair.chosen is None:
            return
        file = self.store.relative(pair.main.path)
        for level, offset in read_delay_offsets(pair.chosen.value).items():
            end = self.ranges.get(QueueKey(TOPIC_SCHEDULE, level - 1), range(0)).stop
            if offset > end:
                self.above.append(AboveMax(file, "offsetTable", "", level, offset, end))
                self.findings.append(finding(
                    "delay-offset-above-max", file, level=level, value=offset, end=end,
                    effect="new delayed messages of this level may not be delivered until the queue has grown that far",
                ))


def _detail(queues: dict[int, tuple[int, int]], template: str) -> str:
    return few([Phrase(template, queue=queue_id, end=limit, offset=offset)
                for queue_id, (offset, limit) in sorted(queues.items())], 8)


READ_AND_WRITE = 6
_ONE_QUEUE = ("%RETRY%", "%DLQ%")
Members = dict[str | int, Json]


class TopicGuess(Struct, frozen=True):
    """Members of topicConfigTable by topic; `read` names those taken unchanged from the broken text."""

    topics: dict[str, Members]
    read: frozenset[str]
    timestamp: int
    style: Style

    def content(self) -> bytes:
        table: Members = {topic: self.topics[topic] for topic in sorted(self.topics)}
        version: Members = {"counter": 1, "timestamp": self.timestamp}
        return dumps({"dataVersion": version, **MARK, "topicConfigTable": table}, self.style)


def is_guess(pair: ConfigPair) -> bool:
    """Whether a file was put together by mqtool, and written by no broker since."""
    return pair.main.value.items() >= MARK.items()


def guesses(pairs: Iterable[ConfigPair]) -> Iterator[Finding]:
    """Yield a finding for each file that is still as mqtool put it together."""
    for pair in filter(is_guess, pairs):
        file, members = f"{CONFIG}/{pair.name}", len(pair.main.table)
        if pair.name == TOPICS_FILE:
            yield finding(GUESS, file, None, topics=members)
        else:
            yield finding(PARTLY_KEPT, file, None, name=pair.name, count=members, lost=pair.known.lost)


def guess_topics(store: Store, known: Topics, log: LogView | None, pair: ConfigPair) -> TopicGuess:
    """Return topics from folders and records; brokers recreate their own (TopicConfigManager's constructor).

    `log` None: the log was not read, only folders are used.
    """
    queues: dict[str, int] = {}
    batch = known.batch
    for folder in store.queue_folders:
        queues[folder.topic] = max(queues.get(folder.topic, 0), folder.queue_id + 1)
    logged = [(topic_text(topic), queue_id) for topic, queue_id in (() if log is None else log.queues)]
    deleted = set() if log is None else {*deleted_topics(log, known, (name for name, _ in logged))}
    for name, queue_id in logged:
        if name not in deleted:
            queues[name] = max(queues.get(name, 0), queue_id + 1)
    for name in batch:
        queues.setdefault(name, 1)
    topics = {
        name: _member(name, count, name in batch) for name, count in queues.items() if is_users_topic(name)
    }
    read = {
        name: member for copy in (pair.backup, pair.main) for name, member in copy.table.items()
        if isinstance(member, dict) and member.get("topicName") == name
    }
    topics.update(read)
    return TopicGuess(topics, frozenset(read), 0 if log is None else log.tally.newest_timestamp, _style(store))


def _member(name: str, queues: int, batch: bool) -> Members:
    count = 1 if name.startswith(_ONE_QUEUE) else queues
    member: Members = {
        "order": False, "perm": READ_AND_WRITE, "readQueueNums": count, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": count,
    }
    attributes: Members = {"queue.type": "BatchCQ"}
    return {"attributes": attributes, **member} if batch else member


def _style(store: Store) -> Style:
    """The style in which the store's brokers write; every release reads both."""
    broker = store.options.broker
    recent = (
        (store.root / "rocksdbstore").exists() if broker is None else BrokerVersion.parse(broker).has(EXPANDED_JSON))
    return Style.FASTJSON2 if recent else Style.FASTJSON1


_RETRY = "%RETRY%"
_WRITTEN_MS = 60_000
"""After this time a running broker has written delayOffset.json, with the default of flushDelayOffsetInterval."""
_SYSTEM_GROUPS = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER")
_SYSTEM_GROUP_PREFIXES = ("CID_ONS", "CID_RMQ_SYS_", "CID_SYS_RMQ_")


def config_databases(settings: Mapping[str, str]) -> tuple[str, ...]:
    """The databases below config/ that hold topics, groups and consumer offsets under these settings
    (BrokerController)."""
    if settings.get("configManagerVersion", "").strip() == "v2":
        return ("rdb",)
    in_rocksdb = settings.get("storeType", "").strip() == ROCKSDB_QUEUES
    return ("topics", "subscriptionGroups", "consumerOffsets") if in_rocksdb else ()


def judged_pairs(
    store: Store, topics: Topics, log: LogView | None, newest: int = 0, *, expected: Collection[str] = ()
) -> list[ConfigPair]:
    """All known config files, each with the evidence that the store has of it; a text that cannot be right is
    `emptied`.

    `newest`: the store timestamp (ms) of the last message, for a log that was not read. `expected`: topics whose queue
    files a repair would create.
    """
    shown = _Evidence(store, topics, log, newest).shown()
    logged = {topic_text(topic) for topic, _ in log.queues} if log is not None else set()
    users = topics.users(logged)
    held = {folder.topic for folder, queue in store.list_queues() if queue.files}.union(expected)
    filled = frozenset(topic for topic in logged & held if is_users_topic(topic))
    return [_marked(structs.replace(pair, shown=shown.get(pair.name, "")),
                    *((users, filled) if pair.name == TOPICS_FILE else ()))
            for pair in topics.pairs]


class _Evidence:
    """What queues, log and other config files show of the files in config/. `newest`: the store timestamp (ms) of the
    last message."""

    def __init__(self, store: Store, topics: Topics, log: LogView | None, newest: int) -> None:
        self.store, self.log = store, log
        self.newest = newest if log is None else log.tally.newest_timestamp
        self.pairs = {pair.name: pair for pair in topics.pairs}
        names = topics.folders | {topic_text(topic) for topic, _ in (() if log is None else log.queues)}
        self.stored = set(names if log is None else names.difference(deleted_topics(log, topics, names)))
        self.users = sorted(filter(is_users_topic, self.stored))
        self.groups = _groups(self.pairs[GROUPS_FILE], self.stored | set(topics.configured or ()))

    def of_topics(self) -> str:
        return Phrase("queues and log hold {names}", names=few(self.users)) if self.users else ""

    def of_delays(self) -> str:
        """A broker writes the file every ten seconds and when it stops, as it does with consumer offsets."""
        delays = self.pairs[DELAYS_FILE]
        gone = not delays.present and any(self.pairs[name].present for name in OFFSET_FILES)
        empty = delays.present and not delays.main.table
        late = _WRITTEN_MS if gone and self.store.has_abort else 0
        due = TOPIC_SCHEDULE in self.stored and (gone or empty) and _came_due(self.store, self.log, self.newest, late)
        return Phrase("queues and log hold {names}", names=TOPIC_SCHEDULE) if due else ""

    def of_groups(self) -> str:
        named = self.groups and self.pairs[GROUPS_FILE].present
        return Phrase("there were groups: {names}", names=few(self.groups)) if named else ""

    def of_offsets(self, name: str) -> str:
        offsets, lmq = self.pairs[OFFSETS_FILE], self.pairs[LMQ_OFFSETS_FILE]
        # a broker with LMQ queues keeps all offsets in the file of those
        own = LMQ_OFFSETS_FILE if lmq.present and not offsets.present else OFFSETS_FILE
        if name != own or offsets.main.table or lmq.main.table:
            return ""
        pair = self.pairs[name]
        if self.groups and not (_is_as_begun(pair) and not _has_consumed(pair, self.groups, self.store, self.log)):
            return Phrase("there were groups: {names}", names=few(self.groups))
        unwritten = not any(pair.present and not is_guess(pair) for pair in self.pairs.values())
        return N_("config/ holds no file that a broker wrote") if self.users and unwritten else ""

    def shown(self) -> dict[str, str]:
        """What is shown of each file that must have had content, in words; not of one whose content is in RocksDB."""
        found = {TOPICS_FILE: self.of_topics(), DELAYS_FILE: self.of_delays(), GROUPS_FILE: self.of_groups(),
                 **{name: self.of_offsets(name) for name in OFFSET_FILES}}
        kept = {*names_in(self.store.config_dir), *config_databases(self.store.options.settings)}
        return {name: text for name, text in found.items() if text and not kept & IN_ROCKSDB.get(name, set())}


def _is_as_begun(pair: ConfigPair) -> bool:
    """Whether a file of offsets is a whole text with an empty table, as a broker writes it from its first start on, and
    its backup has no more."""
    main = pair.main
    return main.whole and not (missing_keys(main.known, main.value) or main.table or pair.backup.table)


def _has_consumed(pair: ConfigPair, groups: Collection[str], store: Store, log: LogView | None) -> bool:
    """Whether anything shows that offsets were committed: the topics of each group beside an empty table (5.x), a table
    that counts its changes, or messages that consumers sent back."""
    version = pair.main.value.get("dataVersion")
    counted = isinstance(version, dict) and bool(version.get("counter"))
    back = {_RETRY + group for group in groups}
    sent_back = back & {topic_text(topic) for topic, _ in log.queues} if log is not None else any(
        queue.files for folder, queue in store.list_queues() if folder.topic in back)
    return counted or bool(pair.main.value.get("groupTopicMap")) or bool(sent_back)


def _came_due(store: Store, log: LogView | None, newest: int, late: int) -> bool:
    """False if no delayed message is left, or none was due `late` ms before the newest message: until then a broker
    writes an empty table."""
    dues = []
    for folder in store.consumequeue_dir.glob(f"{TOPIC_SCHEDULE}/*/"):
        first = min(filter(Path.is_file, folder.iterdir()), default=None)
        head = b"" if first is None else read_small(first, CQ_UNIT.size)
        if len(head) == CQ_UNIT.size and is_valid(unit := CQ_UNIT.decode(head)):
            dues.append(unit.tags_code)
    if not dues:
        return not late and log is not None and any(topic_text(topic) == TOPIC_SCHEDULE for topic, _ in log.queues)
    return min(dues) + late <= newest


def _groups(subscriptions: ConfigPair, topics: set[str]) -> list[str]:
    named = {topic.removeprefix(_RETRY) for topic in topics if topic.startswith(_RETRY)}
    if subscriptions.chosen is not None:
        named.update(subscriptions.chosen.table)
    return sorted(
        name for name in named if name not in _SYSTEM_GROUPS and not name.startswith(_SYSTEM_GROUP_PREFIXES)
    )


def _marked(pair: ConfigPair, *topics: frozenset[str]) -> ConfigPair:
    """The pair, with a text marked `emptied` if its table is empty. Of `topics` it must name one of the users' and all
    with messages and queue files: no release keeps these of a deleted topic, or serves a topic that is not listed."""
    main, backup = pair.main, pair.backup
    known_better = bool(missing_keys(main.known, main.value)) and backup.whole and bool(backup.table)
    poor = _lack(main, *topics)
    # a backup that stands in for a broken file is held to the same, and to what can be read of that file
    if (main.whole and not poor) or not (pair.shown or known_better or (main.table and not main.whole)):
        return pair
    return structs.replace(pair, main=structs.replace(main, emptied=poor),
                           backup=structs.replace(backup, emptied=_lack(backup, *topics)))


def _lack(text: ConfigText, users: frozenset[str] = frozenset(), filled: frozenset[str] = frozenset()) -> str:
    """What the table of a sound text lacks, in words; "" if nothing."""
    if text.state not in ("sound", "odd-text", "trailing-garbage", "trailing-zeros") or not tables_of(text.known):
        return ""
    if not text.table:
        return STATE_TEXT["emptied"]
    if users and users.isdisjoint(text.table):
        return N_("lists no topic that holds messages")
    unlisted = sorted(filled - text.table.keys())
    return Phrase("does not list {names}", names=few(unlisted)) if unlisted else ""


_NAMED_CONFIG = 20


def other_offsets(store: Store, pairs: list[ConfigPair], settings: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if consumer offsets are in the file that a broker of these settings does not read, and its own is
    empty.

    A setting that the configuration leaves out is reported before the start; without setting and configuration, any
    broker may have written the offsets (LmqConsumerOffsetManager).
    """
    said, conf = settings.get("enableLmq"), store.options.conf
    if not (said or conf) or config_databases(settings):
        return
    light = (said or "").strip().lower() == "true"
    own, other = (LMQ_OFFSETS_FILE, OFFSETS_FILE) if light else (OFFSETS_FILE, LMQ_OFFSETS_FILE)
    held = {pair.name: (pair.main.table or pair.backup.table) for pair in pairs}
    if not held[other] or held[own]:
        return
    right = str(not light).lower()
    if said:
        yield finding("config-other-offsets", f"{CONFIG}/{other}", None, other=other, own=own, count=len(held[other]),
                      given=str(light).lower(), right=right)
    else:
        yield finding("settings-leave-out-size", CONFIG, None, setting="enableLmq", conf=conf, default="false",
                      right=right)


def pair_findings(store: Store, topics: Topics, log: LogView | None, pairs: list[ConfigPair]) -> list[Finding]:
    """Findings about the files and their backups; `log` None: the log was not read."""
    # config/ is empty or missing, and the store shows that it was not
    if not any(pair.present for pair in pairs) and any(pair.shown for pair in pairs):
        others = [pair for pair in pairs if pair.name != TOPICS_FILE and pair.shown]
        return [_all_gone(store, topics, log, pairs),
                *(found for pair in others for found in _judge(store, topics, log, pair))]
    return [found for pair in pairs for found in _judge(store, topics, log, pair)]


def _all_gone(store: Store, topics: Topics, log: LogView | None, pairs: list[ConfigPair]) -> Finding:
    pair = next(pair for pair in pairs if pair.name == TOPICS_FILE)
    guess = guess_topics(store, topics, log, pair)
    return finding(
        "config-missing", CONFIG, None, name=f"{CONFIG}/", problem=STATE_TEXT["missing"],
        outcome=Phrase("{shown}, but their settings and the consumer groups are missing", shown=pair.shown),
        topics=len(guess.topics), names=", ".join(sorted(guess.topics)[:_NAMED_CONFIG]),
        remedy=TOPICS_GUESSED,
    )


def _judge(store: Store, topics: Topics, log: LogView | None, pair: ConfigPair) -> Iterator[Finding]:
    main, backup = pair.main, pair.backup
    file = f"{CONFIG}/{pair.name}"
    unreadable = [copy for copy in (main, backup) if copy.state == "unreadable"]
    for copy in unreadable:
        yield finding("config-unreadable", f"{CONFIG}/{copy.path.name}", name=copy.path.name, error=copy.error)
    if unreadable:
        return
    problem = main.emptied or STATE_TEXT[main.state]
    facts: dict[str, Any] = {"name": pair.name, "problem": problem, "lost": pair.known.lost}
    if main.state == "sound":
        yield from guesses([pair])
        if backup.state not in ("sound", "missing"):
            yield finding("config-backup-broken", file + BACKUP_SUFFIX, backup.broken_at, name=pair.name,
                          problem=STATE_TEXT[backup.state], **pair.difference())
    elif pair.chosen is not None:
        code = "config-missing" if main.missing or main.emptied else "config-broken"
        yield finding(code, file, main.broken_at, **facts, outcome=_outcome(pair, pair.chosen),
                      chosen=pair.chosen.path.name, **pair.difference())
    elif pair.name == TOPICS_FILE and (pair.present or pair.shown):
        yield _guessed(store, topics, log, pair, facts)
    elif pair.is_empty:
        if pair.shown:
            yield finding("config-missing", file, None, **facts, shown=pair.shown, remedy=FIND_CONFIG,
                          outcome=Phrase("{what}; lost: {lost}", what=pair.shown, lost=pair.known.lost),
                          **pair.difference())
    else:
        readable = len(main.table) or len(backup.table)
        start = N_("A broker starts without it") if pair.starts else N_("No broker starts with these two files")
        if readable:
            start = Phrase("{start}; {n} of its members are readable", start=start, n=readable)
        yield finding("config-lost", file, main.broken_at, **facts, backup_problem=STATE_TEXT[backup.state],
                      start=start, readable=readable, starts=pair.starts, **pair.difference())


def _outcome(pair: ConfigPair, chosen: ConfigText) -> str:
    members = len(chosen.table)
    if chosen is pair.main and chosen.flipped is not None:
        at, bit = chosen.flipped
        return Phrase("with bit {bit} of byte {at} flipped back it is complete ({members} members)", bit=bit, at=at,
                      members=members)
    if chosen is pair.main:
        return Phrase("its own text ends at byte {at} and is complete ({members} members)", at=chosen.parsed.end,
                      members=members)
    return Phrase("its backup is complete ({members} members, {n} are readable in the file itself)", members=members,
                  n=len(pair.main.table))


def _guessed(
    store: Store, topics: Topics, log: LogView | None, pair: ConfigPair, facts: dict[str, Any]
) -> Finding:
    guess = guess_topics(store, topics, log, pair)
    names = ", ".join(sorted(guess.topics)[:_NAMED_CONFIG]) or "none"
    return finding("config-topics-guessed", f"{CONFIG}/{pair.name}", pair.main.broken_at, **facts, guess=True,
                   topics=len(guess.topics), names=names, read=sorted(guess.read)[:_NAMED_CONFIG], **pair.difference())
