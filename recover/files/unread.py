"""Parts of a store that mqtool does not read, and the questions that they answer instead of the files that it reads.

A part is told from its empty skeleton by looking, never by its name alone. Two of them stand in for a part that is
read otherwise (`held_elsewhere`): the log of a DLedger group, and consume queues in RocksDB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct

from formats.config import BY_NAME
from formats.names import OFFSET_DIGITS
from recover.files.config_files import read_config
from recover.files.reader import read_small
from recover.files.store import CHECKPOINT, COMMITLOG, CONSUMEQUEUE, INDEX, Store

ROCKSDB_QUEUES = "defaultRocksDB"
SEPARATE_QUEUES = "consumequeue_rocksdb"
DLEDGER_LOG = "log of a DLedger group"
_HEAD = 4096
_LISTED = 100_000
_DLEDGER_PREFIX = "dledger-"
_DLEDGER_PATH = "storePathDLedgerCommitLog"
_TIERED_PATH = "tieredStoreFilePath"
_TIERED_TABLE = "tieredStoreMetadata.json"
_CURRENT = "CURRENT"


class UnreadPart(Struct, frozen=True):
    """One such part. `needed_for`: the question (a part of verify) that its data belongs to, None if to no question
    that mqtool answers. `holds` describes the data found, "" for an empty skeleton.
    """

    path: Path
    what: str
    needed_for: str | None
    holds: Callable[[Path], str]


def unread_parts(
    store: Store, settings: dict[str, str] | None = None, *, queues: bool = True
) -> Iterator[UnreadPart]:
    """Every part that is there; `settings` of the broker over those that the store was opened with.

    Without `queues` the folder of queues is not listed.
    """
    settings = {**store.options.settings, **(settings or {})}
    yield from (part for part in _known(store, settings, queues) if part.path.exists())


def _known(store: Store, settings: dict[str, str], queues: bool) -> Iterator[UnreadPart]:
    root, config = store.root, store.config_dir
    for path in rocksdb_queue_folders(store) if queues else ():
        yield UnreadPart(path, "consume queues in RocksDB", CONSUMEQUEUE, rocksdb_data)
    for name in ("topics", "subscriptionGroups", "consumerOffsets", "rdb"):
        if (config / name / _CURRENT).exists():
            yield UnreadPart(config / name, "broker configuration in RocksDB", "config", rocksdb_data)
    for name, what in (("users", "users"), ("acls", "access rules")):
        yield UnreadPart(config / name, f"{what} in RocksDB", None, rocksdb_data)
    yield UnreadPart(root / "rocksdbstore", "RocksDB of index, timer and transactions", INDEX, rocksdb_data)
    yield UnreadPart(root / "kvStore", "RocksDB of pop consumers", None, rocksdb_data)
    yield UnreadPart(store.batchconsumequeue_dir, "batch consume queues", CONSUMEQUEUE, mapped_data)
    yield UnreadPart(root / "compaction" / "compactionLog", "logs of compacted topics", COMMITLOG, mapped_data)
    if not (root / "compaction" / "compactionLog").exists():
        yield UnreadPart(root / "compaction", "compacted topics", None, lambda path: "")
    yield UnreadPart(root / "transaction" / "statetable", "transaction states of 3.x", COMMITLOG, mapped_data)
    yield UnreadPart(root / "timerlog", "timer messages, judged against the log", None, mapped_data)
    for path in _tiered(store, settings):
        yield UnreadPart(path, "segments in tiered storage", COMMITLOG, any_file)
    yield UnreadPart(config / _TIERED_TABLE, "list of segments in tiered storage", COMMITLOG, _tiered_table)
    for path in _dledger(store, settings):
        yield UnreadPart(path, DLEDGER_LOG, COMMITLOG, mapped_data)


class Elsewhere(Struct, frozen=True):
    """The part that answers a question in place of the files that mqtool reads."""

    part: str
    what: str


def held_elsewhere(store: Store, settings: dict[str, str] | None = None) -> dict[str, Elsewhere]:
    """For each question (a part of verify) that an unread part answers, which one: neither judged nor written here.

    A DLedger log with entries answers for all of the log from its first file on, so for everything that derives from
    the log. RocksDB answers for the queues, with entries or not, unless the files are written beside it.
    """
    settings = {**store.options.settings, **(settings or {})}
    for path in _dledger(store, settings):
        data = path / "data"
        if path.exists() and mapped_data(data if data.is_dir() else path):
            found = Elsewhere(store.relative(path), DLEDGER_LOG)
            return dict.fromkeys((COMMITLOG, CONSUMEQUEUE, INDEX, CHECKPOINT), found)
    if queues_in_rocksdb(store, settings):
        path = next(iter(rocksdb_queue_folders(store)), store.consumequeue_dir)
        return {CONSUMEQUEUE: Elsewhere(store.relative(path), "consume queues in RocksDB")}
    return {}


def queues_in_rocksdb(store: Store, settings: dict[str, str]) -> bool:
    """Whether a broker of this store keeps its queues in RocksDB and nowhere else."""
    kind = settings.get("storeType", "").strip()
    if kind:
        return kind == ROCKSDB_QUEUES
    if settings.get("rocksdbCQDoubleWriteEnable", "").strip().lower() == "true":
        return False
    if store.queue_folders:
        return False
    # a broker with its topics in RocksDB has its queues there
    return bool(rocksdb_queue_folders(store)) or has_rocksdb(store.config_dir / "topics")


def rocksdb_queue_folders(store: Store) -> list[Path]:
    """The folders that hold, or held, a RocksDB of consume queues: the first shares its place with queue files."""
    separate = store.root / SEPARATE_QUEUES
    found = [separate] if separate.is_dir() else []
    return [store.consumequeue_dir, *found] if has_rocksdb(store.consumequeue_dir) else found


def has_rocksdb(path: Path) -> bool:
    """Whether a folder holds a RocksDB, be it without CURRENT, whose loss is damage."""
    try:
        return any(name == _CURRENT or name.startswith("MANIFEST-") or name.endswith(".sst")
                   for name in os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _tiered(store: Store, settings: dict[str, str]) -> Iterator[Path]:
    names = ["tieredstore", "tieredStore", *([settings[_TIERED_PATH]] if _TIERED_PATH in settings else [])]
    yield from dict.fromkeys(store.root / name for name in names)


def _dledger(store: Store, settings: dict[str, str]) -> Iterator[Path]:
    for name in sorted(os.listdir(store.root)):
        if name.startswith(_DLEDGER_PREFIX) and (store.root / name).is_dir():
            yield store.root / name
    given = settings.get(_DLEDGER_PATH)
    if given and not Path(given).is_relative_to(store.root):
        yield Path(given)


def rocksdb_data(path: Path) -> str:
    """What entries a RocksDB folder holds: tables, or a log that is not empty. "" for none."""
    tables = bytes_logged = 0
    for name in os.listdir(path):
        length = (path / name).stat().st_size
        if name.endswith(".sst") and length:
            tables += 1
        elif name.endswith(".log") and name[:-4].isdecimal():
            bytes_logged += length
    if tables or bytes_logged:
        return f"{tables} tables, {bytes_logged} bytes in its write-ahead log"
    return ""


def mapped_data(path: Path) -> str:
    """Which mapped files below a folder begin with anything but zeros. "" for none."""
    used = sum(1 for file in islice(_mapped_files(path), _LISTED) if any(read_small(file, _HEAD)))
    return f"{used} {'file' if used == 1 else 'files'} with data" if used else ""


def any_file(path: Path) -> str:
    """How many files below a folder are not empty. "" for none."""
    used = sum(1 for file in islice(_files(path), _LISTED) if file.stat().st_size)
    return f"{used} {'file' if used == 1 else 'files'}" if used else ""


def _tiered_table(path: Path) -> str:
    members = len(read_config(path, BY_NAME[_TIERED_TABLE]).table)
    return f"{members} members" if members else ""


def _mapped_files(path: Path) -> Iterator[Path]:
    for file in _files(path):
        if len(file.name) == OFFSET_DIGITS and file.name.isdecimal():
            yield file


def _files(path: Path) -> Iterator[Path]:
    """All files below; `OSError` for a folder that cannot be listed."""
    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(path, onerror=refuse):
        for name in names:
            yield Path(folder) / name
