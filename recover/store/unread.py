"""Parts of a store that mqtool does not read, and the questions that they answer instead of the files that it reads.

A part is told from its empty skeleton by looking, never by its name alone. Two of them stand in for a part that is
read otherwise (`held_elsewhere`): the log of a DLedger group, and consume queues in RocksDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from msgspec import Struct

from formats.config.tables import BY_NAME
from formats.errors import FormatError
from formats.names import OFFSET_DIGITS
from recover.findings.store_codes import DLEDGER_LOG, QUEUE_DATABASE
from recover.store.config_files import read_config
from recover.store.reader import FileReader, read_small
from recover.store.reading import crc32c
from recover.store.source import entries, files_below, names_in
from recover.store.store import CHECKPOINT, COMMITLOG, CONFIG, CONSUMEQUEUE, INDEX, Store

ROCKSDB_QUEUES = "defaultRocksDB"
SEPARATE_QUEUES = "consumequeue_rocksdb"
_HEAD = 4096
_LISTED = 100_000
_DLEDGER_PREFIX = "dledger-"
_DLEDGER_PATH = "storePathDLedgerCommitLog"
_TIERED_PATH = "tieredStoreFilePath"
_TIERED_TABLE = "tieredStoreMetadata.json"


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
        yield UnreadPart(path, QUEUE_DATABASE, CONSUMEQUEUE, rocksdb_data)
    for name in ("topics", "subscriptionGroups", "consumerOffsets", "rdb"):
        if (config / name / CURRENT).exists():
            yield UnreadPart(config / name, "broker configuration in RocksDB", CONFIG, rocksdb_data)
    for name, what in (("users", "users"), ("acls", "access rules")):
        yield UnreadPart(config / name, f"{what} in RocksDB", CONFIG, rocksdb_data)
    yield UnreadPart(root / "rocksdbstore", "RocksDB of index, timer and transactions", INDEX, rocksdb_data)
    yield UnreadPart(root / "kvStore", "RocksDB of pop consumers", CONFIG, rocksdb_data)
    yield UnreadPart(store.batchconsumequeue_dir, "batch consume queues", CONSUMEQUEUE, mapped_data)
    yield UnreadPart(root / "compaction" / "compactionLog", "logs of compacted topics", COMMITLOG, mapped_data)
    if not (root / "compaction" / "compactionLog").exists():
        yield UnreadPart(root / "compaction", "compacted topics", None, lambda path: "")
    yield UnreadPart(root / "transaction" / "statetable", "transaction states of 3.x", COMMITLOG, mapped_data)
    yield UnreadPart(root / "controller", "log of a controller, not checked", None, mapped_data)
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
        return {CONSUMEQUEUE: Elsewhere(store.relative(path), QUEUE_DATABASE)}
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
    return any(name == CURRENT or name.startswith(("MANIFEST-", "OPTIONS-")) or name.endswith(".sst")
               for name in names_in(path))


def _tiered(store: Store, settings: dict[str, str]) -> Iterator[Path]:
    names = ["tieredstore", "tieredStore", *([settings[_TIERED_PATH]] if _TIERED_PATH in settings else [])]
    yield from dict.fromkeys(store.root / name for name in names)


def _dledger(store: Store, settings: dict[str, str]) -> Iterator[Path]:
    for name in names_in(store.root):
        if name.startswith(_DLEDGER_PREFIX) and (store.root / name).is_dir():
            yield store.root / name
    given = settings.get(_DLEDGER_PATH)
    if given and not Path(given).is_relative_to(store.root):
        yield Path(given)


def rocksdb_data(path: Path) -> str:
    """What entries a RocksDB folder holds: tables, or a log that is not empty. "" for none."""
    tables = bytes_logged = 0
    for entry in entries(path):
        if entry.name.endswith(".sst") and entry.length:
            tables += 1
        elif entry.name.endswith(".log") and entry.name[:-4].isdecimal():
            bytes_logged += entry.length
    if tables or bytes_logged:
        return f"{tables} tables, {bytes_logged} bytes in its write-ahead log"
    return ""


def mapped_data(path: Path) -> str:
    """Which mapped files below a folder begin with anything but zeros. "" for none."""
    used = sum(1 for file in islice(_mapped_files(path), _LISTED) if any(read_small(file, _HEAD)))
    return f"{used} {'file' if used == 1 else 'files'} with data" if used else ""


def any_file(path: Path) -> str:
    """How many files below a folder are not empty. "" for none."""
    used = sum(1 for _, status in islice(files_below(path, strict=True), _LISTED) if status.st_size)
    return f"{used} {'file' if used == 1 else 'files'}" if used else ""


def _tiered_table(path: Path) -> str:
    members = len(read_config(path, BY_NAME[_TIERED_TABLE]).table)
    return f"{members} members" if members else ""


def _mapped_files(path: Path) -> Iterator[Path]:
    for file, _ in files_below(path, strict=True):
        if len(file.name) == OFFSET_DIGITS and file.name.isdecimal():
            yield file


# --- A RocksDB folder looked at from outside: does its manifest read, and are the files that it names there?
#
# CURRENT names the manifest, a log of edits in blocks of 32 KiB with a masked CRC-32C each; the edits name the live
# tables with their lengths, and the write-ahead log that goes on from them, which has the form of a manifest. A table
# ends with a footer, which leads to its blocks; each block has a checksum, and what it holds is not read. Sources:
# RocksDB's log_format.h, version_edit.h, version_edit.cc, table/format.h and block_based/block.cc.


CURRENT = "CURRENT"
_LARGEST = 256 << 20
_BLOCK, _ROCKSDB_HEAD, _RECYCLED_HEAD = 32 << 10, 7, 11
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
_MASK = 0xA282EAD8
_TABLE_MAGICS = (0x88E241B785F4CFF7, 0xDB4775248B80FB57, 0x8242229663BF9564, 0x4F3418EB7A8F13B8)
_MAGIC_SIZE, _FOOTER, _TRAILER = 8, 53, 5
_CRC32C, _FORMS = 1, (4, 5)
"""Checksum and forms of the tables that brokers write (ConfigHelper, RocksDBOptionsFactory)."""

# fields of each edit after its tag: v a varint, s a string; without log, next file and last sequence no open
_EDITS = {
    1: "s", 2: "v", 3: "v", 4: "v", 5: "vs", 6: "vv", 7: "vvvss", 9: "v", 10: "v", 100: "vvvssvv", 102: "vvvvssvv",
    103: "vvvssvv", 200: "v", 201: "s", 202: "", 203: "v", 300: "v",
}
_NEEDED = {2, 3, 4}
_LOG, _DELETED, _NEW, _NEW_2, _NEW_3, _NEW_4, _FAMILY, _DROPPED = 2, 6, 7, 100, 102, 103, 200, 202
_SIZE_AT = {_NEW: 2, _NEW_2: 2, _NEW_3: 3, _NEW_4: 2}
_SKIPPED_FROM = 1 << 13
_LAST_OF_NEW_4 = 1


class Problem(Struct, frozen=True):
    """What is wrong with a database. `opens`: RocksDB opens it all the same, in an older state or with entries that it
    fails to read (`of_entries`).
    """

    text: str
    opens: bool = False
    of_entries: bool = False


def problems(folder: Path, *, made_anew: bool = False, killed: bool = False) -> Iterator[Problem]:
    """What keeps a database from being opened, or loses entries of it; nothing where nothing was seen. `OSError`.

    `made_anew`: brokers make this one where CURRENT is missing, over whatever else is left of it. `killed`: the broker
    did not stop cleanly.
    """
    current = folder / CURRENT
    if not current.is_file():
        yield Problem("CURRENT is missing", made_anew)
        return
    name = read_small(current, 4096).decode("utf-8", "replace").rstrip("\n")
    manifest = folder / name
    if not name.startswith("MANIFEST-") or "/" in name:
        yield Problem(f"CURRENT names {name[:40]!r}, which is not a manifest")
        return
    if not manifest.is_file():
        yield Problem(f"{name} is missing, and CURRENT names it")
        return
    try:
        tables, deleted, log = live_tables(read_small(manifest, _LARGEST))
    except FormatError as error:
        if error.reason != "unknown-edit":
            yield Problem(f"{name}: {error}", error.reason == "cut")
        return
    for number, size in sorted(tables.items()):
        yield from _of_table(folder / f"{number:06}.sst", size)
    # a table is finished before the manifest names it; until then its entries are in the log, or are made again from
    # that of the messages, and an open deletes it (DBImpl::DeleteObsoleteFiles)
    if not (killed and (folder / f"{log:06}.log").is_file()):
        yield from _not_named(folder, {*tables, *deleted}, name)
    yield from _of_logs(folder, log)


def _not_named(folder: Path, named: set[int], manifest: str) -> Iterator[Problem]:
    """Finished tables of which the manifest knows nothing: it was cut between two edits, or is an older one."""
    for entry in entries(folder):
        number, _, suffix = entry.name.partition(".")
        unknown = suffix == "sst" and number.isdecimal() and int(number) not in named
        if unknown and _ends_like_a_table(folder / entry.name):
            yield Problem(f"{manifest} does not name {entry.name}, so that its entries are left out", True)


def _of_logs(folder: Path, first: int) -> Iterator[Problem]:
    """A log that ends within a record was being written; entries after any other damage are left out."""
    logs = sorted(entry.name for entry in entries(folder) if entry.name.endswith(".log")
                  and entry.name[:-4].isdecimal() and int(entry.name[:-4]) >= first)
    if not logs:
        yield Problem(f"the write-ahead log, {first:06}.log or a later one, is missing", True)
    for name in logs:
        content = read_small(folder / name, _LARGEST)
        if content and not any(content):
            yield Problem(f"{name} holds nothing but zeros", True)
        try:
            for _ in _records(content):
                pass
        except FormatError as error:
            if error.reason != "cut":
                yield Problem(f"{name}: {error}", True)


def _of_table(table: Path, size: int) -> Iterator[Problem]:
    if not table.is_file():
        yield Problem(f"{table.name} is missing, a table of {size} bytes")
        return
    length = table.stat().st_size
    if length != size:
        yield Problem(f"{table.name} has {length} bytes instead of {size}")
        return
    if not _ends_like_a_table(table):
        yield Problem(f"{table.name} does not end like a table")
        return
    with FileReader(table) as reader:
        try:
            wrong = sorted(_wrong_blocks(reader), key=itemgetter(1, 2))
        except IndexError:
            yield Problem(f"the end of {table.name} leads to no blocks")
            return
    for (opens, of_entries), found in groupby(wrong, itemgetter(1, 2)):
        (first, *_), *more = found
        others = f" and {len(more)} more" if more else ""
        yield Problem(f"the checksum of the block at byte {first}{others} of {table.name} is wrong", opens, of_entries)


def _wrong_blocks(table: FileReader) -> Iterator[tuple[int, bool, bool]]:
    """(offset, whether an open gets over it, whether it holds entries) of each block whose checksum is wrong.

    An open reads index and properties, and does without a filter. None are found of a table of another form, and none
    with entries where the index is packed or in several blocks. `IndexError` for a footer that leads nowhere.
    """
    footer = table.read(table.length - _FOOTER, _FOOTER)
    if footer[0] != _CRC32C or int.from_bytes(footer[41:45], "little") not in _FORMS:
        return
    listed, at = _handle(footer, 1)
    index, _ = _handle(footer, at)
    meta = {_handle(value, 0)[0]: b"filter" in name for name, value in _entries(_block(table, listed) or b"")}
    for block, opens in {listed: False, index: False, **meta}.items():
        if _block(table, block) is None:
            yield block[0], opens, False
    content = _block(table, index)
    blocks = [*_named_by(content)] if content else []
    # blocks stand one after the other: anything else was not understood
    if [offset for offset, _ in blocks] == [0, *(sum(block) + _TRAILER for block in blocks[:-1])]:
        yield from ((block[0], True, True) for block in blocks if _block(table, block) is None)


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """(offset, size) of a block, and the position after it."""
    offset, at = _varint(content, at)
    size, at = _varint(content, at)
    return (offset, size), at


def _block(table: FileReader, block: tuple[int, int]) -> bytes | None:
    """A block, b"" for a packed one; None if its checksum is wrong, which is over the way of packing, too."""
    offset, size = block
    if sum(block) + _TRAILER > table.length:
        return None
    content = table.read(offset, size + _TRAILER)
    if _masked(crc32c(content[: size + 1])) != int.from_bytes(content[size + 1 :], "little"):
        return None
    return b"" if content[size] else content[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of a block's entries: length shared with the key before, of the rest, of the value; rest; value."""
    key = b""
    at, end = 0, len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    while at < end:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest + size
        yield key, block[at - size : at]


def _named_by(index: bytes) -> Iterator[tuple[int, int]]:
    """The blocks that an index names: each of its entries begins anew, and has a handle without a length."""
    count = int.from_bytes(index[-4:], "little")
    for number in range(min(count, len(index) // 4)):
        at = len(index) - 4 * (count - number + 1)
        at = int.from_bytes(index[at : at + 4], "little")
        _, at = _varint(index, at)
        rest, at = _varint(index, at)
        yield _handle(index, at + rest)[0]


def _ends_like_a_table(table: Path) -> bool:
    with FileReader(table) as reader:
        end = reader.read(max(0, reader.length - _MAGIC_SIZE), _MAGIC_SIZE)
    return int.from_bytes(end, "little") in _TABLE_MAGICS


def live_tables(manifest: bytes) -> tuple[dict[int, int], set[int], int]:
    """File number -> length of the tables that the edits of a manifest leave; those deleted; the write-ahead log.

    `FormatError`: "no-start" for one that is cut before it can be opened, "cut" after that, "bad-crc", "bad-record",
    "unknown-edit", "bad-edit".
    """
    tables: dict[tuple[int, int], int] = {}
    tags: set[int] = set()
    deleted: set[int] = set()
    log = 0
    records = _records(manifest)
    while True:
        try:
            offset, record = next(records)
        except StopIteration:
            break
        except FormatError as error:
            if error.reason == "cut" and not tags >= _NEEDED:
                raise FormatError("no-start", error.offset, f"{error}, before all that an open needs") from None
            raise
        fields = list(_edits(record, offset))
        family = next((values[0] for tag, values in fields if tag == _FAMILY), 0)
        tags |= {tag for tag, _ in fields}
        for tag, values in fields:
            if tag == _DELETED:
                tables.pop((family, values[1]), None)
                deleted.add(values[1])
            elif tag == _LOG:
                log = max(log, values[0])
            elif tag in _SIZE_AT:
                tables[family, values[1]] = values[_SIZE_AT[tag]]
            elif tag == _DROPPED:
                tables = {key: size for key, size in tables.items() if key[0] != family}
    if not tags >= _NEEDED:
        raise FormatError("no-start", len(manifest), "it ends before all that an open needs")
    return {number: size for (_, number), size in tables.items()}, deleted, log


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Each whole record with its offset. Blank space at the end is none: the file may have been allocated ahead."""
    parts: list[bytes] = []
    at = start = 0
    while at + _ROCKSDB_HEAD <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _ROCKSDB_HEAD:
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6]
        if kind == 0 and not any(content[at:]):
            break
        head = _ROCKSDB_HEAD if kind <= _LAST else _RECYCLED_HEAD
        end = at + head + length
        if kind == 0 or kind > 2 * _LAST or head + length > left:
            raise FormatError("bad-record", at, f"no record starts at byte {at}")
        if end > len(content):
            raise FormatError("cut", at, f"it ends within the record at byte {at}")
        if _masked(crc32c(content[at + 6 : end])) != int.from_bytes(content[at : at + 4], "little"):
            raise FormatError("bad-crc", at, f"the checksum of the record at byte {at} is wrong")
        part, payload = (kind - 1) % _LAST + 1, content[at + head : end]
        if part in (_FULL, _FIRST):
            parts, start = [], at
        parts.append(payload)
        if part in (_FULL, _LAST):
            yield start, b"".join(parts)
            parts = []
        at = end
    if parts or any(content[at:]):
        raise FormatError("cut", at, f"it ends within the record at byte {start if parts else at}")


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _edits(record: bytes, offset: int) -> Iterator[tuple[int, list[int]]]:
    """(tag, its numbers) of each edit in a record; strings are left out, each counts as its length."""
    at = 0
    try:
        while at < len(record):
            tag, at = _varint(record, at)
            shape = _EDITS.get(tag, "s" if tag >= _SKIPPED_FROM else None)
            if shape is None:
                raise FormatError("unknown-edit", offset, f"the edit {tag} in the record at byte {offset} is not known")
            values: list[int] = []
            for kind in shape:
                value, at = _varint(record, at)
                values.append(value)
                at += value if kind == "s" else 0
            if tag == _NEW_4:
                at = _custom_end(record, at)
            if at > len(record):
                raise IndexError
            yield tag, values
    except IndexError:
        raise FormatError("bad-edit", offset, f"an edit in the record at byte {offset} ends too late") from None


def _custom_end(record: bytes, at: int) -> int:
    while True:
        tag, at = _varint(record, at)
        if tag == _LAST_OF_NEW_4:
            return at
        length, at = _varint(record, at)
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
