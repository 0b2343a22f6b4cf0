"""Config files on disk, each with its backup: the state of the text, and which copy to trust.

A broker reads the main file. If that is missing, empty, not JSON, or has a value of the wrong kind, it reads the
backup; if the backup is missing or empty, it starts with nothing; if the backup is unreadable, too, it does not start
(ConfigManager.load, 4.5.1 to 5.5.0). A JSON text without its table is accepted, and the broker starts with nothing; the
same holds for an empty table. Whether the table ever had content, only the rest of the store shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from formats.basics import MAX_OFFSET, is_legal_topic, is_safe_directory_name
from formats.config.json import Json, Parsed, detect_style, dumps, salvage
from formats.config.tables import (
    BACKUP_SUFFIX,
    CLIENT_OFFSETS,
    CONFIG_FILES,
    ConfigFile,
    client_offsets,
    flipped_name,
    readable_members,
)
from formats.record import SERVICE_TOPICS
from formats.record.message import REPLY_SUFFIX
from recover.store.source import names_in, read_small
from recover.store.store import COMMITLOG, Store, queue_ends

State = Literal[
    "sound", "missing", "empty", "zeros", "cut", "garbage", "trailing-garbage", "trailing-zeros", "flipped-name",
    "odd-offset", "odd-member", "odd-queue-type", "odd-key", "odd-text", "emptied", "unreadable",
]
TOPICS_FILE = "topics.json"
OFFSETS_FILE = "consumerOffset.json"
LMQ_OFFSETS_FILE = "lmqConsumerOffset.json"
OFFSET_FILES = (OFFSETS_FILE, LMQ_OFFSETS_FILE)
GROUPS_FILE = "subscriptionGroup.json"
DELAYS_FILE = "delayOffset.json"
MAPPING_FILE = "topicQueueMapping.json"
TIMER_METRICS_FILE = "timermetrics"
IN_ROCKSDB = {
    TOPICS_FILE: {"topics", "rdb"}, GROUPS_FILE: {"subscriptionGroups", "rdb"},
    OFFSETS_FILE: {"consumerOffsets", "rdb"}, LMQ_OFFSETS_FILE: {"consumerOffsets", "rdb"},
}
"""File -> the databases below config/ that hold its content in some releases."""
LARGEST = 256 << 20
_NAMED = 20
MARK: dict[str | int, Json] = {"guessedBy": "mqtool"}
"""A member beside the table. Brokers ignore unknown keys, and drop them when they write the file."""
_BY_REASON: dict[str, State] = {"empty": "empty", "zero-filled": "zeros", "truncated": "cut"}
_BY_TRAILING: dict[str, State] = {"": "sound", "zeros": "trailing-zeros", "garbage": "trailing-garbage"}

_WITH_OFFSETS = ("sound", "trailing-zeros", "trailing-garbage")
_STARTED_WITH = ("sound", "trailing-zeros", "flipped-name", "emptied", "odd-key")
_REJECTED = (
    "cut", "garbage", "zeros", "trailing-garbage", "odd-offset", "odd-member", "odd-queue-type", "odd-text",
)
_QUEUE_TYPES = ("SimpleCQ", "BatchCQ", "RocksDBCQ", None)
_TOPIC_KEYS = frozenset({"perm", "readQueueNums", "topicName", "writeQueueNums"})
"""The keys of a topic that every release writes (TopicConfig)."""

STATE_TEXT: dict[State, str] = {
    "sound": "is sound", "missing": "is missing", "empty": "is empty", "zeros": "holds only zeros",
    "cut": "ends in the middle", "garbage": "is not text that a broker wrote",
    "trailing-garbage": "has the rest of another text after its own", "trailing-zeros": "has zeros after its text",
    "flipped-name": "has a flipped bit in the name of its table, so that brokers see none",
    "odd-offset": "has an offset, queue id or version that is not a number or out of range, so that brokers reject it",
    "odd-member": "has a topic, group or version with a value of the wrong kind, so that brokers reject it",
    "odd-queue-type": "has a topic with a queue.type that no broker knows, so that 5.x does not start",
    "odd-key": "has a member that no broker wrote",
    "odd-text": "has a byte order mark, single quotes or keys without quotes, which not every release reads",
    "emptied": "has an empty table",
    "unreadable": "could not be read",
}


# enough for all files of one store, as predictions for several releases ask again; callers change copies only
_salvaged = lru_cache(2 * len(CONFIG_FILES))(salvage)


class ConfigText(Struct, frozen=True, dict=True):
    """One copy of a config file on disk. `error`: why it is unreadable.

    `emptied`: what its table lacks according to the store, in words; "" if nothing.
    """

    path: Path
    known: ConfigFile
    content: bytes
    missing: bool = False
    error: str = ""
    emptied: str = ""

    @cached_property
    def parsed(self) -> Parsed:
        """The value, or the part of it before the first error."""
        return _salvaged(self.content)

    @cached_property
    def state(self) -> State:
        """The state of the text, "sound" if nothing is wrong."""
        if self.error:
            return "unreadable"
        if self.missing:
            return "missing"
        if self.parsed.error is not None:
            return _BY_REASON.get(self.parsed.error.reason, "garbage")
        if not isinstance(self.parsed.value, dict):
            return "garbage"
        if self.flipped is not None:
            return "flipped-name"
        if readable_members(self.known.name, self.parsed.value) is not self.parsed.value:
            return "odd-offset" if self.known.name.endswith("Offset.json") else "odd-member"
        if self.known.name == "topics.json" and not all(map(_has_queue_type, _table_of(self.parsed.value))):
            return "odd-queue-type"
        if self.odd_keys:
            return "odd-key"
        if self.emptied:
            return "emptied"
        return "odd-text" if self.parsed.odd else _BY_TRAILING[self.parsed.trailing]

    @cached_property
    def flipped(self) -> tuple[int, int] | None:
        """(byte, bit) of the flipped bit that hides the name of its table; None for most texts."""
        return flipped_name(self.known, self.content, self.parsed.value) if self.parsed.error is None else None

    @property
    def whole(self) -> bool:
        """Whether the text holds one whole value, ignoring what follows it, and except for the bit that is
        `flipped`."""
        return self.state in ("sound", "odd-text", "trailing-garbage", "trailing-zeros", "flipped-name")

    @property
    def stops_start(self) -> bool:
        """Whether such text, as the backup of an unsound file, keeps a broker from starting."""
        return self.state in _REJECTED

    @property
    def broken_at(self) -> int | None:
        """Byte offset of the first wrong byte; None if it is unknown or means nothing."""
        if self.parsed.error is not None:
            return self.parsed.error.offset if self.state == "cut" else None
        if self.flipped is not None:
            return self.flipped[0]
        return self.parsed.end if self.parsed.trailing else None

    @property
    def document(self) -> bytes:
        """The text up to the end of its value, with the right name of its table, and as every release reads it."""
        if self.state == "odd-text":
            return dumps(self.parsed.value, detect_style(self.content))
        content = self.content[: self.parsed.end]
        if self.flipped is None:
            return content
        at, bit = self.flipped
        return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]

    @cached_property
    def value(self) -> dict[str | int, Json]:
        """The file's value; of a broken text, all members that are certainly complete."""
        parsed = self.parsed
        value = parsed.value
        if parsed.error is not None:
            # the last token before the break may be the start of a longer number
            value = _whole_members(salvage(self.content[: parsed.error.offset]).value)
        elif self.flipped is not None:
            value = salvage(self.document).value
        value = readable_members(self.known.name, value)
        if not isinstance(value, dict):
            return {}
        return without_odd_keys(self.known, value) if self.odd_keys else value

    @cached_property
    def odd_keys(self) -> bool:
        """Whether a table of a whole text has a member with a key that no broker wrote."""
        value = self.parsed.value
        if self.parsed.error is not None or not isinstance(value, dict):
            return False
        return without_odd_keys(self.known, value) != value

    @cached_property
    def table(self) -> dict[str, Json]:
        """The readable members of the file's tables (topics, groups, levels), also of a broken text."""
        names = tables_of(self.known) or tuple(str(name) for name in self.value)
        tables = [self.value.get(name) for name in names]
        return {str(key): member for table in tables if isinstance(table, dict) for key, member in table.items()}

    def facts(self) -> dict[str, Any]:
        """Return state, length in bytes and number of members (topics, groups, levels)."""
        return {"state": self.state, "bytes": len(self.content), "members": len(self.table)}


class ConfigPair(Struct, frozen=True):
    """A known config file and its backup. `shown`: the evidence in the store that it had content, "" without any."""

    known: ConfigFile
    main: ConfigText
    backup: ConfigText
    shown: str = ""

    @property
    def name(self) -> str:
        return self.known.name

    @property
    def present(self) -> bool:
        return not (self.main.missing and self.backup.missing)

    @property
    def is_empty(self) -> bool:
        """Whether neither copy has content: each is missing, or has an empty table."""
        return (self.main.missing or bool(self.main.emptied)) and self.backup.state in ("missing", "emptied")

    @property
    def lost(self) -> str:
        """What a broker does without that starts with the main file."""
        return f"it {self.main.emptied}" if self.main.emptied and self.main.table else self.known.lost

    @property
    def chosen(self) -> ConfigText | None:
        """The copy that recover keeps: the main one if its value is whole, else a whole backup, else None."""
        if self.main.whole:
            return self.main
        return self.backup if self.backup.whole else None

    @property
    def ahead(self) -> bool:
        """Whether a file of offsets that brokers reject still shows some that its sound backup lacks or has
        otherwise."""
        old = self.backup.table
        return (self.name.endswith("Offset.json") and self.chosen is self.backup
                and any(old.get(key) != one if not isinstance(one, dict)
                        else not one.items() <= (each if isinstance(each := old.get(key), dict) else {}).items()
                        for key, one in self.main.table.items()))

    @property
    def starts(self) -> bool:
        """Whether a broker starts with this file, with or without its content; a `queue.type` stops only 5.x, which
        loads the text."""
        if self.main.state == "odd-queue-type":
            return False
        return self.main.state in _STARTED_WITH or not self.backup.stops_start

    @property
    def is_deleted(self) -> bool:
        """Whether a broker that deletes unreadable files (5.4.0 and later) deletes this one at its start."""
        return self.starts and not self.main.missing and not self.main.error and self.main.state not in _STARTED_WITH

    def difference(self) -> dict[str, Any]:
        """Return how the copies differ: their states and sizes, and members that only one of them has (the first
        20)."""
        main, backup = self.main.table, self.backup.table
        return {
            "main": self.main.facts(), "backup": self.backup.facts(),
            "only_in_main": sorted(main.keys() - backup.keys())[:_NAMED],
            "only_in_backup": sorted(backup.keys() - main.keys())[:_NAMED],
            "changed": sum(1 for key in main.keys() & backup.keys() if main[key] != backup[key]),
        }


def tables_of(known: ConfigFile) -> tuple[str, ...]:
    """Return the names of the tables with members; an LMQ broker keeps offsets of ordinary groups in the same file."""
    return (*known.required, "offsetTable") if known.name == "lmqConsumerOffset.json" else known.required


def without_odd_keys(known: ConfigFile, value: dict[str | int, Json]) -> dict[str | int, Json]:
    """Return the value without members that no broker wrote: control characters in the key, or a topic of another
    name."""
    changed: dict[str | int, Json] = {}
    for name in tables_of(known):
        table = value.get(name)
        if isinstance(table, dict):
            kept = {key: one for key, one in table.items() if not _is_odd(known, key, one)}
            if len(kept) < len(table):
                changed[name] = kept
    return {**value, **changed} if changed else value


def _is_odd(known: ConfigFile, key: str | int, member: Json) -> bool:
    if known.name == "topics.json" and isinstance(member, dict):
        return (member.get("topicName") != key or not member.keys() >= _TOPIC_KEYS or member["perm"] is None
                or not _has_queue_type(member))
    return isinstance(key, str) and not key.isprintable()


def _table_of(value: Json) -> Iterable[Json]:
    """Return the topics of a topics.json."""
    table = value.get("topicConfigTable") if isinstance(value, dict) else None
    return table.values() if isinstance(table, dict) else ()


def _has_queue_type(topic: Json) -> bool:
    """Whether 5.x knows the type of the topic's queues (QueueTypeUtils.getCQType); 4.x ignores it."""
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return not isinstance(attributes, dict) or attributes.get("queue.type", "SimpleCQ") in _QUEUE_TYPES


def _whole_members(value: Json) -> dict[str | int, Json]:
    """Drop the last member of the last table if it lacks keys of the first one, as the text broke within it.

    Offsets are kept: each is complete by itself.
    """
    if not isinstance(value, dict):
        return {}
    last = next(reversed(value), "")
    table = value.get(last)
    if not isinstance(table, dict) or not table or last in ("offsetTable", "lmqOffsetTable", "pullOffsetTable"):
        return value
    key = next(reversed(table))
    member, model = table[key], next(iter(table.values()))
    whole = isinstance(member, dict) and isinstance(model, dict) and member.keys() >= model.keys()
    if member is model or (isinstance(member, dict) and not whole):
        table = {name: other for name, other in table.items() if name != key}
    return {**value, last: table}


def read_pairs(store: Store) -> list[ConfigPair]:
    """Return all known config files with their backups, including missing ones."""
    pairs = []
    for known in CONFIG_FILES:
        path = store.config_dir / known.name
        backup = path.with_name(known.name + BACKUP_SUFFIX)
        pairs.append(ConfigPair(known, read_config(path, known), read_config(backup, known)))
    return pairs


def read_config(path: Path, known: ConfigFile) -> ConfigText:
    """Read one copy; errors of the file system become part of the result."""
    try:
        return ConfigText(path, known, read_small(path, LARGEST))
    except (FileNotFoundError, NotADirectoryError):
        return ConfigText(path, known, b"", missing=True)
    except OSError as error:
        return ConfigText(path, known, b"", error=error.strerror or str(error))


class ClientOffsets(NamedTuple):
    """offsets.json of a broadcast client with its backup, in the folder of its group.

    The client reads the backup where the file is missing, empty or not text, and does not start if that is not text
    either (LocalFileOffsetStore.readLocalOffset, readLocalOffsetBak, 4.5.1 to 5.5.0).
    """

    main: ConfigText
    backup: ConfigText

    @classmethod
    def of(cls, folder: Path) -> ClientOffsets:
        path = folder / CLIENT_OFFSETS.name
        return cls(read_config(path, CLIENT_OFFSETS),
                   read_config(path.with_name(path.name + BACKUP_SUFFIX), CLIENT_OFFSETS))

    @property
    def whole(self) -> ConfigText | None:
        """The copy to trust: the file's own if it holds a whole table, else the backup; None if neither does."""
        return next(filter(_has_offsets, self), None)

    @property
    def is_sound(self) -> bool:
        return self.main.state == "sound" and _has_offsets(self.main)


def _has_offsets(text: ConfigText) -> bool:
    return text.state in _WITH_OFFSETS and not client_offsets(text.parsed.value)[1]


def client_folder(path: Path) -> Path | None:
    """The folder of a broadcast client's group, if `path` is that folder or its file of offsets, and no store."""
    names = (CLIENT_OFFSETS.name, CLIENT_OFFSETS.name + BACKUP_SUFFIX)
    if path.name in names and not path.is_dir():
        return path.parent
    held = any((path / name).is_file() for name in names)
    return path if held and not (path / COMMITLOG).exists() else None


# --- The topics and queues of a store that count: live, deleted, batch, LMQ.


LMQ_PREFIX = "%LMQ%"
# Created by brokers for themselves; 4.x leaves them out of topics.json, and they are never deleted.
ALWAYS_LIVE = frozenset(SERVICE_TOPICS)
_OWN = frozenset({
    "SELF_TEST_TOPIC", "TBW102", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "MQTOOL_FILLER",
    "TRANS_CHECK_MAX_TIME_TOPIC", "TRANSACTION_REDOLOG_TOPIC_XXXX",
})
_OWN_PREFIXES = ("RMQ_SYS_", "rmq_sys_", "%SYS%", LMQ_PREFIX)


def is_users_topic(name: str) -> bool:
    """Whether a topic is not one that brokers create by themselves."""
    if name in _OWN or name.startswith(_OWN_PREFIXES):
        return False
    return is_safe_directory_name(name) and is_legal_topic(name)


class Topics(Struct, dict=True):
    """The topics of a store according to topics.json and its folders; with `include_deleted` none counts as deleted."""

    store: Store
    include_deleted: bool = False

    @cached_property
    def pairs(self) -> list[ConfigPair]:
        """All known config files with their backups, read on first use."""
        return read_pairs(self.store)

    @cached_property
    def configured(self) -> dict[str, Json] | None:
        """topicConfigTable of topics.json, or of its backup if only that is sound; None if neither is."""
        for pair in self.pairs:
            if pair.name == "topics.json" and pair.chosen is not None:
                return pair.chosen.table or (pair.backup.table if pair.backup.whole else None) or None
        return None

    @cached_property
    def folders(self) -> frozenset[str]:
        """Topics with a queue folder in consumequeue/."""
        return frozenset(folder.topic for folder in self.store.queue_folders)

    @cached_property
    def batch(self) -> frozenset[str]:
        """Topics whose queues are batch consume queues: by their folder, or by their settings if they have no other."""
        without = frozenset(topic for topic in self.configured_batch if topic not in self.folders)
        return without.union(names_in(self.store.batchconsumequeue_dir))

    @cached_property
    def configured_batch(self) -> frozenset[str]:
        """Topics whose settings say so."""
        return frozenset(
            topic for topic, settings in (self.configured or {}).items()
            if isinstance(settings, dict) and "BatchCQ" in json.dumps(settings.get("attributes", "")))

    def users(self, logged: Iterable[str]) -> frozenset[str]:
        """Return the users' topics that have queues, or if none has, those of the log. A topics.json without any of
        them belongs to another store. A new one names the cluster's topic of replies."""
        return frozenset(name for name in self.folders or logged
                         if is_users_topic(name) and not name.endswith(REPLY_SUFFIX))

    @cached_property
    def dispatched_to(self) -> int:
        """End in the log of the last message that a queue has a unit of."""
        return max((end for _, _, end in queue_ends(self.store, []) if end is not None), default=MAX_OFFSET)

    @cached_property
    def _misnamed(self) -> frozenset[str]:
        folder = self.store.consumequeue_dir
        return frozenset(name for name in names_in(folder) if name.startswith(LMQ_PREFIX)
                         and name not in self.folders and names_in(folder / name))

    @cached_property
    def written_at(self) -> int:
        """When a broker last changed a topic of the table (ms), 0 if that is unknown: the table is then no proof."""
        chosen = next((pair.chosen for pair in self.pairs if pair.name == "topics.json"), None)
        version = None if chosen is None or chosen.value.items() >= MARK.items() else chosen.value.get("dataVersion")
        time = version.get("timestamp") if isinstance(version, dict) else None
        return int(time) if isinstance(time, (int, str)) and str(time).isdecimal() else 0

    def absent(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the topics that neither a readable topics.json nor consumequeue/ has. LMQ queues are in no table; if
        no queue is left at all, the folder of one is not a sign either."""
        if self.include_deleted or self.configured is None:
            return frozenset()
        logged = {*topics}
        users = self.users(logged)
        if users and users.isdisjoint(self.configured):
            return frozenset()
        gone = logged - self.folders - ALWAYS_LIVE - self.configured.keys()
        return frozenset(topic for topic in gone if not topic.startswith(LMQ_PREFIX)
                         or (self.folders and topic not in self._misnamed))

    def deleted(self, last_times: Mapping[str, int]) -> list[str]:
        """Return which of these topics were deleted, sorted: a table without them is newer than their last message.

        `last_times`: store time (ms) of the last message. Older tables prove nothing: one may be a restored backup.
        """
        return sorted(topic for topic in self.absent(last_times) if last_times[topic] < self.written_at)


def topic_text(topic: bytes) -> str:
    """Return the name of a topic as used in folders and reports."""
    return topic.decode("utf-8", "replace")
