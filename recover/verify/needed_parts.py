"""Parts that must be there, or must be whole, although mqtool does not read what they hold.

One row a part: who says that it must be there (a setting, topics.json, another file, records of the log), and what can
be said of it from outside. What is not listed here of an unread part is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from formats.batchconsumequeue import BATCH_CQ_UNIT, valid_units
from formats.compaction import CQ_DIRECTORY, LOG_DIRECTORY, POSITION_FILE_NAME, WORK_DIRECTORIES, decode_positions
from formats.errors import FormatError
from recover.files import rocksdb
from recover.files.reader import read_small
from recover.files.store import CONSUMEQUEUE, Store
from recover.files.topics import Topics, topic_text
from recover.files.unread import has_rocksdb, mapped_data, queues_in_rocksdb, rocksdb_queue_folders
from recover.findings import Finding, finding
from recover.scan.log import LogView

_ROCKSDB = {
    "config/topics": "topics in RocksDB", "config/subscriptionGroups": "groups in RocksDB",
    "config/consumerOffsets": "consumer offsets in RocksDB", "config/rdb": "configuration in RocksDB",
    "config/users": "users in RocksDB", "config/acls": "access rules in RocksDB",
    "rocksdbstore": "RocksDB of index, timer and transactions", "kvStore": "RocksDB of pop consumers",
}
_LOCAL = "Local"
_SAYS_SO = {
    "kvStore": ("popConsumerKVServiceInit", "true", "which popped messages were not answered"),
    "config/users": ("authenticationMetadataProvider", _LOCAL, "all users"),
    "config/acls": ("authorizationMetadataProvider", _LOCAL, "all access rules"),
}
"""Part -> a setting, what its value holds, and what is lost with the part."""


class Needed(Struct, frozen=True):
    """One part that is damaged or missing: `problem` in words; `stops`: no broker starts on it (5.5.0 was asked)."""

    part: str
    what: str
    problem: str
    missing: bool
    stops: bool = False

    def finding(self) -> Finding:
        """As verify reports it."""
        code = "part-missing" if self.missing else "part-damaged"
        return finding(code, self.part, None, part=self.part, what=self.what, problem=self.problem, stops=self.stops)


def needed_parts(store: Store, settings: Mapping[str, str], topics: Topics, log: LogView) -> list[Needed]:
    """Every part that must be there and is not, or that is damaged as far as one can see from outside."""
    settings = {**store.options.settings, **settings}
    return [
        *_rocksdb(store), *_by_setting(store, settings), *_queues(store, settings, log),
        *_batch(store, topics, log), *_compaction(store),
    ]


def _rocksdb(store: Store) -> Iterator[Needed]:
    folders = {**{store.relative(path): "consume queues in RocksDB" for path in rocksdb_queue_folders(store)},
               **_ROCKSDB}
    for part, what in folders.items():
        folder = store.path(part)
        if has_rocksdb(folder):
            yield from (Needed(part, what, problem.text, False, stops=not problem.opens)
                        for problem in rocksdb.problems(folder))


def _by_setting(store: Store, settings: Mapping[str, str]) -> Iterator[Needed]:
    for part, (setting, value, lost) in _SAYS_SO.items():
        if value in settings.get(setting, "") and not has_rocksdb(store.path(part)):
            yield Needed(part, _ROCKSDB[part], f"{setting} says that it is in use; without it {lost} are gone", True)


def _queues(store: Store, settings: dict[str, str], log: LogView) -> Iterator[Needed]:
    if log.messages and queues_in_rocksdb(store, settings) and not rocksdb_queue_folders(store):
        yield Needed(CONSUMEQUEUE, "consume queues in RocksDB", "the log holds messages, and no database is there",
                     True)


def _batch(store: Store, topics: Topics, log: LogView) -> Iterator[Needed]:
    filled = {topic_text(topic) for topic, _ in log.queues}
    for topic in sorted(topics.batch & filled):
        folder = store.batchconsumequeue_dir / topic
        if not (folder.is_dir() and mapped_data(folder)):
            yield Needed(store.relative(folder), "batch consume queues",
                         "topics.json has the topic with such queues, and the log holds messages of it", True)
    if store.batchconsumequeue_dir.is_dir():
        for file in sorted(store.batchconsumequeue_dir.glob("*/*/*")):
            yield from _batch_file(store, file)


def _batch_file(store: Store, file: Path) -> Iterator[Needed]:
    content = read_small(file, 64 << 20)
    used = valid_units(content)
    rest = content[used * BATCH_CQ_UNIT.size :]
    units = len(rest) // BATCH_CQ_UNIT.size
    behind = sum(valid_units(rest[at * BATCH_CQ_UNIT.size : (at + 1) * BATCH_CQ_UNIT.size]) for at in range(1, units)
                 if any(rest[at * BATCH_CQ_UNIT.size : (at + 1) * BATCH_CQ_UNIT.size])) if any(rest) else 0
    if behind:
        yield Needed(store.relative(file), "batch consume queues",
                     f"unit {used} is not valid, and {behind} whole ones follow it", False)


def _compaction(store: Store) -> Iterator[Needed]:
    """With log or queue gone 5.5.0 starts, and delivers nothing of the queue; it gets over a single missing file."""
    root = store.root / "compaction"
    logs, queues = (_with_data(root / name) for name in (LOG_DIRECTORY, CQ_DIRECTORY))
    said = {queue: f"{CQ_DIRECTORY} has units of it" for queue in queues}
    said |= {queue: f"{POSITION_FILE_NAME} says how far it was compacted" for queue in _compacted(root) - queues}
    for queue in sorted(said.keys() - logs):
        yield Needed(f"compaction/{LOG_DIRECTORY}/{queue}", "compacted messages", said[queue], True)
    for queue in sorted(logs - queues):
        yield Needed(f"compaction/{CQ_DIRECTORY}/{queue}", "queue of a compacted topic",
                     f"{LOG_DIRECTORY} has messages of it", True)


def _with_data(folder: Path) -> set[str]:
    queues = {file.parent for file in folder.glob("*/*/*") if file.name not in WORK_DIRECTORIES}
    return {queue.relative_to(folder).as_posix() for queue in queues if mapped_data(queue)}


def _compacted(root: Path) -> set[str]:
    try:
        positions = decode_positions(read_small(root / POSITION_FILE_NAME, 16 << 20))
    except (OSError, FormatError):
        return set()
    return {f"{topic}/{queue_id}" for (topic, queue_id), offset in positions.items() if offset > 0}


def start_refusals(needed: Iterable[Needed]) -> list[str]:
    """Why no broker starts, as far as these parts say it."""
    return [f"{item.part} ({item.what}): {item.problem}" for item in needed if item.stops]


def not_foreseen(needed: Iterable[Needed]) -> list[str]:
    """The parts of which predict cannot say what their loss costs."""
    return [f"{item.part} ({item.what}): {item.problem}" for item in needed if not item.stops]
