"""What kind of file is this? The place and the name say it first; the content where they do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from formats import abort, dledger, epoch, lock, timer
from formats import checkpoint as checkpoint_format
from formats.batchconsumequeue import BATCH_CQ_UNIT
from formats.batchconsumequeue import is_valid as is_valid_batch
from formats.commitlog import BLANK, BLANK_SIZE, MAGIC_BLANK, decode
from formats.config import BACKUP_SUFFIX, BY_NAME, TEMPORARY_SUFFIX
from formats.consumequeue import CQ_UNIT, CqUnit, is_pre_blank, is_valid
from formats.consumequeue_ext import CQ_EXT_HEAD, units
from formats.errors import FormatError
from formats.fastjson import salvage
from formats.index import INDEX_HEADER, infer_geometry
from formats.names import is_index_name, offset_in_name
from recover.errors import NotAStore
from recover.files.reader import FileReader
from recover.inspect_file.unit_items import next_data, next_record

_SAMPLE = 64 << 10
_SEARCHED = 64 << 20
_EARLIEST_MS, _LATEST_MS = 1_000_000_000_000, 4_000_000_000_000
_LARGEST_RECORD = 64 << 20
_INDEX_SEARCHED = 8 << 20

TITLES = {
    "commitlog": "commitlog file", "consumequeue": "consume queue file", "consumequeue-ext": "consumequeue_ext file",
    "batchconsumequeue": "batch consume queue file", "index": "index file", "checkpoint": "checkpoint",
    "abort": "abort file", "lock": "lock file", "config": "config file", "timerlog": "timerlog file",
    "timerwheel": "timerwheel", "timercheck": "timercheck", "dledger-data": "DLedger data file",
    "dledger-index": "DLedger index file", "compaction-log": "compaction log file",
    "compaction-queue": "compaction queue file", "epoch": "epoch file", "statetable": "3.x transaction state table",
    "redolog": "3.x transaction redo log", "rocksdb": "RocksDB file",
}

_FOREIGN = (
    (b"\x1f\x8b", "a gzip file"), (b"PK\x03\x04", "a zip archive"), (b"\xfd7zXZ\x00", "an xz file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"), (b"BZh", "a bzip2 file"), (b"\x7fELF", "a program"),
    (b"SQLite format 3\x00", "an SQLite database"), (b"\x89PNG", "an image"), (b"%PDF", "a PDF document"),
    (b"\xca\xfe\xba\xbe", "a Java class"),
)
_ROCKSDB = re.compile(r"CURRENT|IDENTITY|LOCK|LOG(\.old.*)?|MANIFEST-\d+|OPTIONS-\d+|\d+\.(sst|log|blob)")
_KAFKA_MAGIC_AT = 16
_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n"


class Kind(NamedTuple):
    """A kind (see `TITLES`), why the file is taken for it, and the queue position of its first byte if it has one."""

    name: str
    why: str
    base: int | None


def detect(path: Path, reader: FileReader) -> Kind:
    """The kind of a file; `NotAStore` (16) when nothing of RocketMQ's looks like it."""
    base = offset_in_name(path.name)
    by_place = _by_name(path) or _by_place(path.absolute(), base)
    if by_place is not None:
        return Kind(*by_place, base)
    found = _by_content(path, reader, base)
    if found is None:
        raise NotAStore(f"{path} is not a RocketMQ file: {foreign(reader)}",
                        "Give a store root, or a file out of a store; `mqtool verify STORE` checks whole stores.")
    return found


def _by_name(path: Path) -> tuple[str, str] | None:
    name = path.name
    plain = name.removesuffix(BACKUP_SUFFIX).removesuffix(TEMPORARY_SUFFIX)
    if plain in BY_NAME:
        return "config", f"the name {name}"
    known = {
        "checkpoint": "checkpoint", abort.FILE_NAME: "abort", abort.BACKUP_NAME: "abort", lock.FILE_NAME: "lock",
        epoch.FILE_NAME: "epoch", epoch.FILE_NAME + BACKUP_SUFFIX: "epoch", "timerwheel": "timerwheel",
        "timercheck": "timercheck",
    }
    if name in known:
        return known[name], f"the name {name}"
    if name.startswith("timerwheel.") and name[len("timerwheel."):].isdecimal():
        return "timerwheel", "the name of a snapshot"
    return None


def _by_place(path: Path, base: int | None) -> tuple[str, str] | None:
    parents = [parent.name for parent in path.parents][:5] + [""] * 5
    parent, above, queue_part = parents[0], parents[1], parents[2]
    if "rocksdb" in parent or (_ROCKSDB.fullmatch(path.name) and parent in ("consumequeue", "kvStore", "rdb")):
        return "rocksdb", f"its place in {parent}/"
    if parent == "index" and is_index_name(path.name):
        return "index", "its name, in index/"
    if base is None:
        return None
    if above.startswith("dledger-") and parent in ("data", "index"):
        return f"dledger-{parent}", f"its place in {above}/{parent}/"
    near = {"commitlog": "commitlog", "timerlog": "timerlog", "statetable": "statetable", "redolog": "redolog"}
    if parent in near:
        return near[parent], f"its name, in {parent}/"
    far = {"consumequeue": "consumequeue", "consumequeue_ext": "consumequeue-ext", "compactionLog": "compaction-log",
           "batchconsumequeue": "batchconsumequeue", "compactionCq": "compaction-queue"}
    for part in (queue_part, parents[3]):
        if part in far:
            return far[part], f"its name, in {part}/"
    return None


def _by_content(path: Path, reader: FileReader, base: int | None) -> Kind | None:
    sample = reader.read(0, _SAMPLE)
    log_base = _log_base(sample, reader, base)
    if log_base is not None:
        return Kind("commitlog", "the records in it", log_base)
    if next_data(reader, 0, reader.length) == reader.length:
        return None
    for name, test in _TESTS:
        if test(sample, reader):
            return Kind(name, "its content", base)
    return None


def _log_base(sample: bytes, reader: FileReader, base: int | None) -> int | None:
    try:
        return decode(sample if len(sample) < _SAMPLE else reader.read(0, _LARGEST_RECORD)).phy_offset
    except FormatError:
        pass
    if base is None:
        return None
    if len(sample) >= BLANK_SIZE and BLANK.decode(sample).magic == MAGIC_BLANK:
        return base
    found = next_record(reader, 0, base, min(reader.length, _SEARCHED))
    return base if found < min(reader.length, _SEARCHED) else None


def _is_consumequeue(sample: bytes, reader: FileReader) -> bool:
    if reader.length % CQ_UNIT.size or not sample:
        return False
    last = -1
    seen = 0
    for unit in CQ_UNIT.decode_all(sample):
        if unit == CqUnit(0, 0, 0):
            break
        if not is_valid(unit) or (unit.size > _LARGEST_RECORD and not is_pre_blank(unit)) or unit.phy_offset < last:
            return False
        last, seen = max(last, unit.phy_offset), seen + 1
    return seen > 0


def _is_batch(sample: bytes, reader: FileReader) -> bool:
    if reader.length % BATCH_CQ_UNIT.size or len(sample) < BATCH_CQ_UNIT.size:
        return False
    first = BATCH_CQ_UNIT.decode(sample)
    return is_valid_batch(first) and first.size < _LARGEST_RECORD and _EARLIEST_MS < first.store_timestamp < _LATEST_MS


def _is_ext(sample: bytes, reader: FileReader) -> bool:
    if len(sample) < CQ_EXT_HEAD.size:
        return False
    try:
        _, first = next(units(sample))
    except (FormatError, StopIteration):
        return False
    return _EARLIEST_MS < first.store_timestamp < _LATEST_MS


def _is_index(sample: bytes, reader: FileReader) -> bool:
    if not INDEX_HEADER.size < reader.length <= _INDEX_SEARCHED or len(sample) < INDEX_HEADER.size:
        return False
    header = INDEX_HEADER.decode(sample)
    if header.index_count < 2 or not _EARLIEST_MS < header.begin_timestamp <= header.end_timestamp + 1 < _LATEST_MS:
        return False
    return infer_geometry(reader.read(0, reader.length)) is not None


def _is_checkpoint(sample: bytes, reader: FileReader) -> bool:
    if reader.length != checkpoint_format.FILE_SIZE:
        return False
    fields = checkpoint_format.decode(sample)
    return checkpoint_format.rest_is_zero(sample) and _EARLIEST_MS < fields.physic_msg_timestamp < _LATEST_MS


def _is_timerlog(sample: bytes, reader: FileReader) -> bool:
    try:
        return _EARLIEST_MS < timer.decode(sample).write_timestamp < _LATEST_MS
    except FormatError:
        return False


def _is_dledger(sample: bytes, reader: FileReader) -> bool:
    try:
        position = dledger.DLEDGER_ENTRY_HEAD.decode(sample).position
        dledger.decode(sample, 0, position)
    except FormatError:
        return False
    return True


def _is_config(sample: bytes, reader: FileReader) -> bool:
    if sample.lstrip()[:1] != b"{":
        return False
    value = salvage(sample).value
    keys = {key for file in BY_NAME.values() for key in file.required}
    return isinstance(value, dict) and bool(keys & set(value))


_TESTS: tuple[tuple[str, Callable[[bytes, FileReader], bool]], ...] = (
    ("dledger-data", _is_dledger), ("timerlog", _is_timerlog), ("checkpoint", _is_checkpoint), ("index", _is_index),
    ("config", _is_config), ("batchconsumequeue", _is_batch), ("consumequeue", _is_consumequeue),
    ("consumequeue-ext", _is_ext),
)


def foreign(reader: FileReader) -> str:
    """What a file that is not RocketMQ's seems to be instead: "it looks like a gzip file"."""
    sample = reader.read(0, _SAMPLE)
    if not sample:
        return "it is empty"
    for signature, what in _FOREIGN:
        if sample.startswith(signature):
            return f"it looks like {what}"
    if not sample.strip(b"\0") and next_data(reader, 0, reader.length) == reader.length:
        return "it holds nothing but zeros"
    if len(sample) > _KAFKA_MAGIC_AT and sample[_KAFKA_MAGIC_AT] in (0, 1, 2) and sample[:4] == bytes(4):
        return "it looks like a Kafka log segment"
    if not sample.translate(None, _PRINTABLE):
        return "it looks like text"
    return "nothing in it is known to us"
