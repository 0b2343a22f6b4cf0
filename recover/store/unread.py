"""Parts of a store that mqtool does not read, and the questions that they answer instead of the files it reads.

A part is distinguished from its empty skeleton by content, never by name alone. Two parts replace one that is otherwise
read (`held_elsewhere`): the log of a DLedger group, and consume queues in RocksDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from msgspec import Struct

from formats import rocksdb
from formats.basics import FormatError, offset_in_name
from formats.config.tables import BY_NAME
from recover.findings.code import N_
from recover.findings.model import Phrase
from recover.findings.store_codes import DLEDGER_LOG, QUEUE_DATABASE
from recover.store.config_files import read_config
from recover.store.source import entries, files_below, names_in, open_file, read_small
from recover.store.store import CHECKPOINT, COMMITLOG, CONFIG, CONSUMEQUEUE, INDEX, Store

ROCKSDB_QUEUES = "defaultRocksDB"
SEPARATE_QUEUES = "consumequeue_rocksdb"
_HEAD = 4096
_LISTED = 100_000
_DLEDGER_PREFIX = "dledger-"
_TIERED_TABLE = "tieredStoreMetadata.json"


class UnreadPart(Struct, frozen=True):
    """One such part. `needed_for`: the part of verify that its data belongs to, None if mqtool has no such part.
    `holds` returns a description of the data found, "" for an empty skeleton.
    """

    path: Path
    what: str
    needed_for: str | None
    holds: Callable[[Path], str]


def unread_parts(store: Store, *, queues: bool = True) -> Iterator[UnreadPart]:
    """Yield every part that exists. Without `queues`, the folder of queues is not listed."""
    yield from (part for part in _known(store, queues) if part.path.exists())


def _known(store: Store, queues: bool) -> Iterator[UnreadPart]:
    root, config = store.root, store.config_dir
    for path in rocksdb_queue_folders(store) if queues else ():
        yield UnreadPart(path, QUEUE_DATABASE, CONSUMEQUEUE, rocksdb_data)
    for name in ("topics", "subscriptionGroups", "consumerOffsets", "rdb"):
        if (config / name / CURRENT).exists():
            yield UnreadPart(config / name, N_("broker configuration in RocksDB"), CONFIG, rocksdb_data)
    for name, what in (("users", N_("users in RocksDB")), ("acls", N_("access rules in RocksDB"))):
        yield UnreadPart(config / name, what, CONFIG, rocksdb_data)
    yield UnreadPart(root / "rocksdbstore", N_("RocksDB of index, timer and transactions"), INDEX, rocksdb_data)
    yield UnreadPart(root / "kvStore", N_("RocksDB of pop consumers"), CONFIG, rocksdb_data)
    yield UnreadPart(store.batchconsumequeue_dir, N_("batch consume queues"), CONSUMEQUEUE, mapped_data)
    yield UnreadPart(root / "compaction" / "compactionLog", N_("logs of compacted topics"), COMMITLOG, mapped_data)
    if not (root / "compaction" / "compactionLog").exists():
        yield UnreadPart(root / "compaction", N_("compacted topics"), None, lambda path: "")
    yield UnreadPart(root / "transaction" / "statetable", N_("transactions of 3.x, judged by the log"), None,
                     mapped_data)
    yield UnreadPart(root / "controller", N_("log of a controller, not checked"), None, mapped_data)
    yield UnreadPart(root / "timerlog", N_("timer messages, judged against the log"), None, mapped_data)
    tiered = store.options.settings.get("tieredStoreFilePath")
    for path in dict.fromkeys(root / name for name in ("tieredstore", "tieredStore", *filter(None, [tiered]))):
        yield UnreadPart(path, N_("segments in tiered storage"), COMMITLOG, any_file)
    yield UnreadPart(config / _TIERED_TABLE, N_("list of segments in tiered storage"), COMMITLOG, _tiered_table)
    for path in _dledger(store):
        yield UnreadPart(path, DLEDGER_LOG, COMMITLOG, mapped_data)


class Elsewhere(Struct, frozen=True):
    """The part that replaces files that mqtool reads."""

    part: str
    what: str


def held_elsewhere(store: Store) -> dict[str, Elsewhere]:
    """Return the replaced parts of verify, each with the unread part that replaces it: neither checked nor written
    here.

    A DLedger log with entries replaces the whole log from its first file on, and so everything derived from it. RocksDB
    replaces the queues, with entries or not, unless queue files are written as well.
    """
    for path in _dledger(store):
        data = path / "data"
        if path.exists() and mapped_data(data if data.is_dir() else path):
            found = Elsewhere(store.relative(path), DLEDGER_LOG)
            return dict.fromkeys((COMMITLOG, CONSUMEQUEUE, INDEX, CHECKPOINT), found)
    if queues_in_rocksdb(store):
        path = next(iter(rocksdb_queue_folders(store)), store.consumequeue_dir)
        return {CONSUMEQUEUE: Elsewhere(store.relative(path), QUEUE_DATABASE)}
    return {}


def queues_in_rocksdb(store: Store) -> bool:
    """Whether a broker of this store keeps its queues only in RocksDB."""
    settings = store.options.settings
    kind = settings.get("storeType", "").strip()
    if kind:
        # over queue files without a database it is a change of the setting: what there is, is in the files
        return kind == ROCKSDB_QUEUES and (not store.queue_folders or bool(rocksdb_queue_folders(store)))
    if settings.get("rocksdbCQDoubleWriteEnable", "").lower() == "true":
        return False
    if store.queue_folders:
        return False
    # a broker with its topics in RocksDB has its queues there, too
    return bool(rocksdb_queue_folders(store)) or has_rocksdb(store.config_dir / "topics")


def rocksdb_queue_folders(store: Store) -> list[Path]:
    """Return the folders that hold or held a RocksDB of consume queues; consumequeue/ itself also holds queue files."""
    separate = store.root / SEPARATE_QUEUES
    found = [separate] if separate.is_dir() else []
    return [store.consumequeue_dir, *found] if has_rocksdb(store.consumequeue_dir) else found


def has_rocksdb(path: Path) -> bool:
    """Whether a folder holds a RocksDB, even without CURRENT, whose loss is damage."""
    return any(name == CURRENT or name.startswith(("MANIFEST-", "OPTIONS-")) or name.endswith(".sst")
               for name in names_in(path))


def _dledger(store: Store) -> Iterator[Path]:
    for name in names_in(store.root):
        if name.startswith(_DLEDGER_PREFIX) and (store.root / name).is_dir():
            yield store.root / name
    given = store.options.settings.get("storePathDLedgerCommitLog")
    if given and not Path(given).is_relative_to(store.root):
        yield Path(given)


def rocksdb_data(path: Path) -> str:
    """Describe the entries of a RocksDB folder: tables, and the size of its log; "" without any."""
    tables = bytes_logged = 0
    for entry in entries(path):
        if entry.name.endswith(".sst") and entry.length:
            tables += 1
        elif entry.name.endswith(".log") and entry.name[:-4].isdecimal():
            bytes_logged += entry.length
    if tables or bytes_logged:
        return Phrase("{tables} tables, {n} bytes in its write-ahead log", tables=tables, n=bytes_logged)
    return ""


def mapped_data(path: Path) -> str:
    """Describe the mapped files below a folder that do not begin with zeros only; "" without any."""
    names = (name for name, _ in files_below(path, strict=True) if offset_in_name(name.rpartition("/")[2]) is not None)
    used = sum(any(read_small(path / name, _HEAD)) for name in islice(names, _LISTED))
    return Phrase("{n:file} with data", n=used) if used else ""


def any_file(path: Path) -> str:
    """Describe the non-empty files below a folder; "" without any."""
    used = sum(1 for _, status in islice(files_below(path, strict=True), _LISTED) if status.st_size)
    return Phrase("{n:file}", n=used) if used else ""


def _tiered_table(path: Path) -> str:
    members = len(read_config(path, BY_NAME[_TIERED_TABLE]).table)
    return Phrase("{n} members", n=members) if members else ""


# --- Consistency of a RocksDB folder: is its manifest readable, and do the files that it names exist?


CURRENT = "CURRENT"
_LARGEST = 256 << 20


class Problem(Struct, frozen=True):
    """A defect of a database. `opens`: RocksDB opens it nevertheless, in an older state or with entries that it cannot
    read (`of_entries`).
    """

    text: str
    opens: bool = False
    of_entries: bool = False


def problems(folder: Path, *, recreated: bool = False, killed: bool = False) -> Iterator[Problem]:
    """Yield what keeps a database from being opened, or loses entries of it; nothing if no defect is visible.
    `OSError`.

    `recreated`: brokers recreate this database if CURRENT is missing, over the rest of it. `killed`: the broker did not
    stop cleanly.
    """
    current = folder / CURRENT
    if not current.is_file():
        yield Problem(N_("CURRENT is missing"), recreated)
        return
    name = read_small(current, 4096).decode("utf-8", "replace").rstrip("\n")
    manifest = folder / name
    if not name.startswith("MANIFEST-") or "/" in name:
        yield Problem(Phrase("CURRENT names {name}, which is not a manifest", name=repr(name[:40])))
        return
    if not manifest.is_file():
        yield Problem(Phrase("{file} is missing, and CURRENT names it", file=name))
        return
    try:
        tables, deleted, log = rocksdb.live_tables(read_small(manifest, _LARGEST))
    except FormatError as error:
        if error.reason != "unknown-edit":
            yield Problem(Phrase("{part}: {what}", part=name, what=str(error)), error.reason == "cut")
        return
    for number, size in sorted(tables.items()):
        yield from _of_table(folder / f"{number:06}.sst", size)
    # a table is complete before the manifest names it; until then its entries are in the log or are rebuilt from the
    # messages, and opening the database deletes it (DBImpl::DeleteObsoleteFiles)
    if not (killed and (folder / f"{log:06}.log").is_file()):
        yield from _not_named(folder, {*tables, *deleted}, name)
    yield from _of_logs(folder, log)


def _not_named(folder: Path, named: set[int], manifest: str) -> Iterator[Problem]:
    """Yield complete tables that the manifest does not name: it was cut between two edits, or is an older one."""
    for entry in entries(folder):
        number, _, suffix = entry.name.partition(".")
        unknown = suffix == "sst" and number.isdecimal() and int(number) not in named
        if unknown and _ends_like_a_table(folder / entry.name):
            yield Problem(Phrase("{manifest} does not name {file}, so that its entries are left out", manifest=manifest,
                                 file=entry.name), True)


def _of_logs(folder: Path, first: int) -> Iterator[Problem]:
    """Yield defects of the write-ahead logs; a cut record at a log's end is normal, entries after other damage are
    lost."""
    logs = sorted(entry.name for entry in entries(folder) if entry.name.endswith(".log")
                  and entry.name[:-4].isdecimal() and int(entry.name[:-4]) >= first)
    if not logs:
        yield Problem(Phrase("the write-ahead log, {file} or a later one, is missing", file=f"{first:06}.log"), True)
    for name in logs:
        content = read_small(folder / name, _LARGEST)
        if content and not any(content):
            yield Problem(Phrase("{file} holds nothing but zeros", file=name), True)
        try:
            for _ in rocksdb.records(content):
                pass
        except FormatError as error:
            if error.reason != "cut":
                yield Problem(Phrase("{part}: {what}", part=name, what=str(error)), True)


def _of_table(table: Path, size: int) -> Iterator[Problem]:
    if not table.is_file():
        yield Problem(Phrase("{file} is missing, a table of {n} bytes", file=table.name, n=size))
        return
    length = table.stat().st_size
    if length != size:
        yield Problem(Phrase("{file} has {n} bytes instead of {size}", file=table.name, n=length, size=size))
        return
    if not _ends_like_a_table(table):
        yield Problem(Phrase("{file} does not end like a table", file=table.name))
        return
    with open_file(table) as reader:
        try:
            wrong = sorted(rocksdb.wrong_blocks(reader.read, reader.length), key=itemgetter(1, 2))
        except IndexError:
            yield Problem(Phrase("the end of {file} leads to no blocks", file=table.name))
            return
    for (opens, of_entries), found in groupby(wrong, itemgetter(1, 2)):
        (first, *_), *more = found
        which = Phrase("{names} and {n} more", names=str(first), n=len(more)) if more else first
        yield Problem(Phrase("the checksum of the block at byte {which} of {file} is wrong", which=which,
                             file=table.name), opens, of_entries)


def _ends_like_a_table(table: Path) -> bool:
    with open_file(table) as reader:
        return rocksdb.has_table_magic(reader.read, reader.length)
