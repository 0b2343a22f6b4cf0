"""Broker versions and their behaviour at start: which behaviour holds since which release.

Each difference between releases is one line of `BEHAVIOURS`; no other module compares versions.
"""

from __future__ import annotations

import re

from msgspec import Struct

from recover.findings.code import UsageRefusal
from recover.findings.model import Phrase

_VERSION = re.compile(r"(?:rocketmq-(?:all-)?|v)?(\d+)[._](\d+)(?:[._](\d+))?(?:[-_.][a-z0-9]+)*", re.IGNORECASE)


class BrokerVersion(Struct, frozen=True, order=True):
    """A release such as 5.3.3."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> BrokerVersion:
        """Parse `5.3.3`, `v5.3`, `rocketmq-all-4.9.7`, `V5_3_3`, `4.1.0-incubating`; `UsageRefusal` for anything
        else."""
        found = _VERSION.fullmatch(text.strip())
        if found is None:
            raise UsageRefusal(Phrase("{text} is not a broker version", text=repr(text)),
                               "Name a release, for example --broker 5.3.3.")
        if found[1] not in ("4", "5"):
            known = ", ".join(map(str, NEWEST_OF_LINES))
            raise UsageRefusal(Phrase("broker {text} is unknown", text=text),
                               Phrase("Known are 4.1 to 5.5, up to these: {known}.", known=known))
        return cls(int(found[1]), int(found[2]), int(found[3] or 0))

    @property
    def nearest(self) -> BrokerVersion:
        """This release if it is known, else the newest known one before it, or the oldest known one."""
        for newest in NEWEST_OF_LINES:
            if (newest.major, newest.minor) == (self.major, self.minor) and self <= newest:
                return self
        return max((newest for newest in NEWEST_OF_LINES if newest < self), default=OLDEST_COMPARED)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    def has_reached(self, since: str) -> bool:
        """Whether this is the release `since` or a later one; "" for all."""
        return not since or BrokerVersion.parse(since) <= self

    def has(self, behaviour: Behaviour) -> bool:
        """Whether this release has the behaviour."""
        return behaviour.since <= self and (behaviour.until is None or self < behaviour.until)


class Behaviour(Struct, frozen=True):
    """One behaviour that brokers have from release `since` on and before release `until`."""

    name: str
    what: str
    since: BrokerVersion
    until: BrokerVersion | None = None


_FIRST = BrokerVersion(0, 0, 0)
_ALL: list[Behaviour] = []


def _behaviour(name: str, what: str, since: str = "", until: str = "") -> Behaviour:
    made = Behaviour(
        name, what, BrokerVersion.parse(since) if since else _FIRST, BrokerVersion.parse(until) if until else None
    )
    _ALL.append(made)
    return made


# MappedFileQueue.load
WRONG_LENGTH_REFUSED = _behaviour(
    "wrong-length-refused", "a mapped file whose length differs from the setting prevents the start; before, loading "
    "ended there and the remaining files were ignored", since="4.5.0",
)
DIRECTORIES_SKIPPED = _behaviour(
    "directories-skipped", "a folder among the mapped files is skipped; before, it counted as a file of a wrong length",
    since="5.1.0",
)
EMPTY_LAST_FILE_DELETED = _behaviour(
    "empty-last-file-deleted", "a mapped file of zero bytes is deleted if it is the last one", since="5.1.3",
)
INDEX_LOAD_COUNTS = _behaviour(
    "index-load-counts", "an index file that cannot be opened prevents the start", since="5.0.0",
)

# MultiPathMappedFileQueue
SEVERAL_LOG_FOLDERS = _behaviour(
    "several-log-folders", "the log may be in several folders; before, the list was taken for one name, and no log was "
    "found", since="4.9.2",
)
# MixAll.properties2Object
TRIMMED_TEXT = _behaviour(
    "trimmed-text", "blanks around a text of the configuration are dropped; before, a blank at the end of a path was "
    "part of the name", since="5.2.0",
)

# CommitLog.checkMessageAndReturnSize
IPV6_HOSTS = _behaviour("ipv6-hosts", "IPv6 hosts (16 bytes) are read", since="4.6.0")
V2_RECORDS = _behaviour("v2-records", "V2 records (two-byte topic length) are read", since="5.1.0")
NEW_PROPERTIES_PARSER = _behaviour("new-properties-parser", "a property value may contain 0x01", since="4.9.1")
_behaviour(
    "room-checked", "a record or blank larger than the rest of its file fails the check; before, a huge size could "
    "exhaust the heap", since="5.3.2",
)
DUP_INFO_CHECKED = _behaviour("dup-info-checked", "with duplicationEnable every record needs DUP_INFO", since="5.0.0")
INNER_BATCHES = _behaviour("inner-batches", "INNER_BASE and INNER_NUM must be numbers", since="5.0.0")
_behaviour("property-crc", "forceVerifyPropCRC checks the property CRC instead of the body", since="5.2.0")

# CommitLog.recoverNormally, recoverAbnormally
LAST_THREE_FILES = _behaviour("last-three-files", "a normal recovery checks the last three files", until="5.3.2")
NORMAL_DISPATCHES = _behaviour(
    "normal-dispatches", "a normal recovery starts in the newest file that begins at or below the queues' largest "
    "offset, and dispatches the records strictly above it", since="5.3.2",
)
NO_LOG_DESTROYS_QUEUES = _behaviour(
    "no-log-destroys-queues", "a normal recovery without a log file deletes all queues, as an abnormal one always did",
    since="4.5.0",
)
START_FILE_CHECKED = _behaviour(
    "start-file-checked", "the first record of a start file must pass the full check", since="5.4.0",
)
START_SEARCH_LIMITED = _behaviour(
    "start-search-limited", "at most commitLogRecoverMaxNum files are searched for the start file", since="5.4.0",
)
START_BY_LOGICS_OFFSET = _behaviour(
    "start-by-logics-offset", "the checkpoint's queue offset (or else its queue time alone) selects the start file",
    since="5.5.0",
)
TRANSACTIONS_CHOOSE_START = _behaviour(
    "transactions-choose-start", "with transRocksDBEnable the database of transactions affects the choice of the start "
    "file; before, only without transWriteOriginTransHalfEnable", since="5.5.0",
)
ACCELERATED_BY_CHECKPOINT = _behaviour(
    "accelerated-by-checkpoint", "with enableAcceleratedRecovery an abnormal recovery begins at the checkpoint's queue "
    "offset, in the middle of the start file; before, only with queues in RocksDB", since="5.5.0",
)
CONFIRM_END_COMPARED = _behaviour(
    "confirm-end-compared", "with duplicationEnable the end of a record is compared with the confirm offset of the "
    "checkpoint; before, nothing was dispatched at all", since="5.1.1",
)
CURRENT_MAX_COMPARED = _behaviour(
    "current-max-compared", "queues are truncated if their largest offset after dispatch reaches the log's end; "
    "before, the largest offset on disk decided", since="5.4.0",
)

# DefaultMessageStore.start
REPUT_FROM_QUEUES = _behaviour(
    "reput-from-queues", "dispatch continues from the queues' largest offset, and the start waits for it",
    since="4.5.0", until="5.0.0",
)
RECHECK_REPUT_SETTING = _behaviour("recheck-reput", "recheckReputOffsetFromCq restores that", since="5.0.0")

# ConsumeQueue
DEDUPE_BY_START = _behaviour(
    "dedupe-by-start", "a queue stores the start of its last message, not the end", until="4.5.0",
)
MIN_BY_BISECTION = _behaviour(
    "min-by-bisection", "a queue's min offset is found by bisection, and equals its max if its last unit has "
    "expired", since="5.0.0",
)
EMPTY_LAST_QUEUE_FILE_BREAKS = _behaviour(
    "empty-last-queue-file-breaks", "a start throws if the last file of a queue holds no unit "
    "(ConsumeQueue.correctMinOffset)", since="5.0.0", until="5.5.0",
)
MULTI_DISPATCH = _behaviour("multi-dispatch", "LMQ queues get units with enableMultiDispatch", since="4.9.3")
MULTI_DISPATCH_LIMITED = _behaviour(
    "multi-dispatch-limited", "retry, schedule and rmq_sys_ topics are not dispatched to LMQ queues", since="5.0.0",
)
NEAREST_BY_TIME = _behaviour(
    "nearest-by-time", "a search by time finds the message nearest to it in the first queue file that was changed then "
    "or later; later releases find the first message stored then or later", until="5.1.1",
)
DELAY_TABLE_LATE = _behaviour(
    "delay-table-late", "messageDelayLevel is parsed after recovery, so that units of delayed messages that recovery "
    "dispatches carry the hash of their tags instead of a deliver time", since="4.9.2", until="5.0.0",
)
TAG_INDEX = _behaviour("tag-index", "the index gets an entry for the tags of a message", since="5.4.0")

# CombineConsumeQueueStore, RocksDBConsumeQueueStore
COMBINED_QUEUES = _behaviour(
    "combined-queues", "queues in both files and RocksDB require combineCQUseRocksdbForLmq; a RocksDB of queues in a "
    "folder other than that of useSeparateStorePathForRocksdbCQ prevents the start", since="5.5.0",
)

# TimerMessageStore
TIMERS = _behaviour("timers", "messages for a time of their own are delivered by the timer", since="5.0.0")

# TransactionalMessageServiceImpl.fillOpRemoveMap
SEVERAL_ENDED = _behaviour(
    "several-ended", "an op message ends several half messages; before, one that names several ends none, and their "
    "producers are asked again", since="5.1.0",
)

# Configuration
INVALID_CONFIG_DELETED = _behaviour(
    "invalid-config-deleted", "an invalid or empty config file is deleted, unless its backup prevents the start",
    since="5.4.0",
)

EXPANDED_JSON = _behaviour(
    "expanded-json", "config files are written with each key and each item on a line of its own (fastjson2)",
    since="5.4.0",
)

# DefaultMessageStore.getMessage
OVERFLOW_TO_FIRST = _behaviour(
    "overflow-to-first", "a group whose offset is above the end of its queue continues at the min offset if that is 0, "
    "else at the end; later releases always continue at the end", until="4.9.4",
)

BEHAVIOURS: tuple[Behaviour, ...] = tuple(_ALL)
BY_NAME = {behaviour.name: behaviour for behaviour in BEHAVIOURS}

NEWEST_OF_LINES = tuple(map(BrokerVersion.parse, (
    "4.1.0", "4.2.0", "4.3.2", "4.4.0", "4.5.2", "4.6.1", "4.7.1", "4.8.0", "4.9.8", "5.0.0", "5.1.4", "5.2.0", "5.3.3",
    "5.4.0", "5.5.1",
)))
"""The newest known release of each line. 5.5.1 starts as 5.5.0 does: its ConsumeQueue.correctMinOffset looks again at a
queue whose min offset is its end, and finds the same; its new settings concern RocksDB, POP locks and metrics."""
OLDEST_COMPARED, NEWEST_COMPARED = NEWEST_OF_LINES[0], NEWEST_OF_LINES[-1]


def boundaries() -> tuple[BrokerVersion, ...]:
    """Return the first release of each generation: every release at which a behaviour begins or ends, ascending."""
    found = {OLDEST_COMPARED}
    for behaviour in BEHAVIOURS:
        found.update(v for v in (behaviour.since, behaviour.until) if v is not None and v > OLDEST_COMPARED)
    return tuple(sorted(found))


def generation_of(version: BrokerVersion) -> BrokerVersion:
    """Return the first release of the generation of `version`, which starts in the same way."""
    return max((first for first in boundaries() if first <= version), default=OLDEST_COMPARED)
