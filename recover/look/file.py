"""Inspection of one file of a store: its kind, its items, every field and every check. Read-only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from formats import checkpoint as checkpoint_format, dledger, legacy_transaction, timer
from formats.basics import FormatError, Layout, is_index_name, offset_in_name
from formats.config.json import salvage
from formats.config.tables import BACKUP_SUFFIX, BY_NAME, CLIENT_OFFSETS, TEMPORARY_SUFFIX, client_offsets, missing_keys
from formats.consumequeue import (
    BATCH_CQ_UNIT,
    CQ_UNIT,
    CqUnit,
    ext_units,
    is_pre_blank,
    is_valid,
    is_valid_batch as is_valid_batch,
)
from formats.index import INDEX_HEADER, IndexGeometry
from formats.record import BLANK, BLANK_SIZE, MAGIC_BLANK, decode
from recover.derived.index_files import file_geometry, proven_geometry
from recover.findings.code import CLEAN, DERIVED, MESSAGES, N_, NotAStore, UsageRefusal
from recover.findings.model import Phrase
from recover.log.file_scan import heads_in
from recover.look.items import (
    Check,
    FileReport,
    Item,
    dledger_items,
    ext_items,
    index_items,
    layout_fields,
    log_items,
    next_data,
    next_record,
    table_of,
)
from recover.store.config_files import STATE_TEXT, ClientOffsets, ConfigText
from recover.store.reader import FileReader
from recover.store.source import open_file
from recover.store.store import ABORT, LOCK

# --- Kind of a file: told by its name and place, by its content where these do not.


_SAMPLE = 64 << 10
_SEARCHED = 64 << 20
_EARLIEST_MS, _LATEST_MS = 1_000_000_000_000, 4_000_000_000_000
_LARGEST_RECORD = 64 << 20
_INDEX_SEARCHED = 8 << 20

_FOREIGN = (
    (b"\x1f\x8b", N_("a gzip file")), (b"PK\x03\x04", N_("a zip archive")), (b"\xfd7zXZ\x00", N_("an xz file")),
    (b"\x28\xb5\x2f\xfd", N_("a zstd file")), (b"BZh", N_("a bzip2 file")), (b"\x7fELF", N_("a program")),
    (b"SQLite format 3\x00", N_("an SQLite database")), (b"\x89PNG", N_("an image")), (b"%PDF", N_("a PDF document")),
    (b"\xca\xfe\xba\xbe", N_("a Java class")), (b"<!doctype", N_("an HTML page")), (b"<html", N_("an HTML page")),
    (b"<?xml", "XML"),
)
_TAR, _TAR_MAGIC_AT = b"ustar", 257
_ROCKSDB = re.compile(r"CURRENT|IDENTITY|LOCK|LOG(\.old.*)?|MANIFEST-\d+|OPTIONS-\d+|\d+\.(sst|log|blob)")
_KAFKA_MAGIC_AT = 16
_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n"


def detect(path: Path, reader: FileReader) -> FileReport:
    """Return the kind of the file and why; `NotAStore` (16) if it resembles no file of RocketMQ."""
    base = offset_in_name(path.name)
    found = _by_name(path) or _by_place(path.absolute(), base)
    if found is None and (log_base := _log_base(reader, base)) is not None:
        found, base = ("commitlog", N_("the records in it")), log_base
    found = found or _by_content(reader)
    if found is None:
        heads = heads_in(np.frombuffer(reader.read(0, _SEARCHED), dtype=np.uint8), 0)
        if heads.size:
            raise NotAStore(Phrase("{path} does not begin like a RocketMQ file, but has a record head at byte "
                                   "{at}: a piece of a log, or a disk image", path=path, at=heads[0]),
                            "`mqtool export {store}` exports its messages.")
        raise NotAStore(Phrase("{path} is not a RocketMQ file: {what}", path=path, what=foreign(reader)),
                        "Give a store root, or a file out of a store; mqtool verify checks whole stores.")
    kind, why = found
    return FileReport(str(path), kind, KINDS[kind].title, why, reader.length, base)


def _plain_name(name: str) -> str:
    return name.removesuffix(BACKUP_SUFFIX).removesuffix(TEMPORARY_SUFFIX)


def _by_name(path: Path) -> tuple[str, str] | None:
    name = path.name
    if _plain_name(name) in _KNOWN:
        return "config", Phrase("the name {name}", name=name)
    for kind, row in KINDS.items():
        if name in row.names:
            return kind, Phrase("the name {name}", name=name)
    if name.startswith("timerwheel.") and name[len("timerwheel."):].isdecimal():
        return "timerwheel", N_("the name of a snapshot")
    return None


def _by_place(path: Path, base: int | None) -> tuple[str, str] | None:
    parents = [parent.name for parent in path.parents][:5] + [""] * 5
    parent, above, queue_part = parents[0], parents[1], parents[2]
    if "rocksdb" in parent or (_ROCKSDB.fullmatch(path.name) and parent in ("consumequeue", "kvStore", "rdb")):
        return "rocksdb", Phrase("its place in {folder}", folder=f"{parent}/")
    if parent == "index" and is_index_name(path.name):
        return "index", Phrase("its name, in {folder}", folder="index/")
    if base is None:
        return None
    if above.startswith("dledger-") and parent in ("data", "index"):
        return f"dledger-{parent}", Phrase("its place in {folder}", folder=f"{above}/{parent}/")
    for kind, row in KINDS.items():
        if parent and parent == row.folder:
            return kind, Phrase("its name, in {folder}", folder=f"{parent}/")
    return next(((kind, Phrase("its name, in {folder}", folder=f"{part}/")) for part in (queue_part, parents[3])
                 for kind, row in KINDS.items() if part and part == row.part), None)


def _by_content(reader: FileReader) -> tuple[str, str] | None:
    sample = reader.read(0, _SAMPLE)
    if next_data(reader, 0, reader.length) == reader.length:
        return None
    for kind, row in KINDS.items():
        with suppress(FormatError):  # too short, among others
            if row.test is not None and row.test(sample, reader):
                return kind, N_("its content")
    return None


def _log_base(reader: FileReader, base: int | None) -> int | None:
    """Return the log offset of the first byte of a file that holds records, or an end mark and a log file's name."""
    sample = reader.read(0, _SAMPLE)
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


def _is_time(milliseconds: int) -> bool:
    return _EARLIEST_MS < milliseconds < _LATEST_MS


def _is_batch(sample: bytes, reader: FileReader) -> bool:
    first = BATCH_CQ_UNIT.decode(sample)
    return reader.length % BATCH_CQ_UNIT.size == 0 and is_valid_batch(first) and first.size < _LARGEST_RECORD \
        and _is_time(first.store_timestamp)


def _is_index(sample: bytes, reader: FileReader) -> bool:
    header = INDEX_HEADER.decode(sample)
    return INDEX_HEADER.size < reader.length <= _INDEX_SEARCHED and header.index_count >= 2 \
        and _EARLIEST_MS < header.begin_timestamp <= header.end_timestamp + 1 < _LATEST_MS \
        and proven_geometry(reader.path, reader.length) is not None


def _is_checkpoint(sample: bytes, reader: FileReader) -> bool:
    return reader.length == checkpoint_format.FILE_SIZE and checkpoint_format.rest_is_zero(sample) \
        and _is_time(checkpoint_format.decode(sample).physic_msg_timestamp)


def _is_dledger(sample: bytes, reader: FileReader) -> bool:
    dledger.decode(sample, 0, dledger.DLEDGER_ENTRY_HEAD.decode(sample).position)
    return True


def _is_config(sample: bytes, reader: FileReader) -> bool:
    if sample.lstrip()[:1] != b"{":
        return False
    value = salvage(sample).value
    keys = {key for file in BY_NAME.values() for key in file.required}
    return isinstance(value, dict) and bool(keys & set(value))


def foreign(reader: FileReader) -> str:
    """Describe a file that is not RocketMQ's by its apparent format: "it looks like a gzip file"."""
    sample = reader.read(0, _SAMPLE)
    if not sample:
        return N_("it is empty")
    if other := _other_format(sample):
        return other
    if not sample.strip(b"\0") and next_data(reader, 0, reader.length) == reader.length:
        return N_("it holds nothing but zeros")
    if len(sample) > _KAFKA_MAGIC_AT and sample[_KAFKA_MAGIC_AT] in (0, 1, 2) and sample[:4] == bytes(4):
        return N_("it looks like a Kafka log segment")
    return N_("its content is unknown")


def other_format(path: Path) -> str:
    """The same description if the first bytes alone show it, else "". `OSError`."""
    with open_file(path) as reader:
        return _other_format(reader.read(0, _SAMPLE))


def _other_format(sample: bytes) -> str:
    begin = sample[:_TAR_MAGIC_AT].lstrip().lower()
    for signature, what in _FOREIGN:
        if sample.startswith(signature) or begin.startswith(signature):
            return Phrase("it looks like {what}", what=what)
    if sample.startswith(_TAR, _TAR_MAGIC_AT):
        return N_("it looks like a tar archive")
    return N_("it looks like text") if sample and not sample.translate(None, _PRINTABLE) else ""


_SMALL = 64 << 20


def inspect_file(
    path: Path, offset: int | None = None, limit: int = 20, geometry: IndexGeometry | None = None
) -> FileReport:
    """Inspect one file from `offset` on, at most `limit` items (0: all).

    `offset` is a byte position in the file; for files named by offset it may also be a physical offset.
    `NotAStore` (16) if it is not a RocketMQ file, `UsageRefusal` (16) for an offset outside of it, `OSError`.
    """
    if not path.exists():
        raise NotAStore(Phrase("{path} does not exist", path=path), "Give a store root, or a file of a store.")
    with open_file(path) as reader:
        report = detect(path, reader)
        report.geometry = geometry
        start = _start(report, offset)
        items = list(islice(KINDS[report.kind].items(report, reader, start), limit + 1 if limit else None))
        report.items = items[:limit] if limit else items
        if limit and len(items) > limit:
            report.complete, report.next_offset = False, items[limit].offset
        return report


def bits_of(report: FileReport, *, chosen: bool) -> int:
    """Return the exit bits of the items shown; `chosen`: the user named the first item's offset.

    An unreadable record, and damage before the last record, cost messages; after it they may be the tail. Damage at a
    chosen offset sets no bit unless its own offset confirms a record there: the user may have pointed into one.
    """
    bits = CLEAN
    for item in report.items:
        pointed_at = chosen and item is report.items[0] and item.kind == "damage"
        if item.ok or (pointed_at and not any(check.name == "own offset" and check.ok for check in item.checks)):
            continue
        goes_on = item.kind == "damage" and item.offset + item.size < report.length
        bits |= MESSAGES if report.kind == "commitlog" and (item.kind == "record" or goes_on) else DERIVED
    return bits


def _start(report: FileReport, offset: int | None) -> int:
    if offset is None:
        return 0
    base = report.base or 0
    start = offset - base if base and offset >= base else offset
    if not 0 <= start < max(report.length, 1):
        raise UsageRefusal(Phrase("offset {offset} is outside of the file", offset=offset),
                           Phrase("The file spans {base} to {end}, or 0 to {length} within it.", base=base,
                                  end=base + report.length, length=report.length))
    return start


def _index(report: FileReport, reader: FileReader, start: int) -> Iterable[Item]:
    found = report.geometry or file_geometry(reader.path, reader.length)
    if found is None or found.size != reader.length:
        report.facts["geometry"] = N_("unknown: set --index-slots and --index-entries")
        return _header(INDEX_HEADER, reader.read(0, INDEX_HEADER.size))
    report.facts.update(slots=found.slots, entries=found.entries)
    return index_items(reader, found, start)


def _header(layout: Layout[Any], content: bytes, checks: tuple[Check, ...] = (), raw: int = 0) -> list[Item]:
    """The single item of a file that is only a header, or of which nothing else can be read."""
    fields = layout_fields(layout, content, 0)
    return [Item("header", 0, len(content), None, fields, checks, raw=content[: raw or layout.size])]


def _checkpoint(report: FileReport, reader: FileReader, start: int) -> Iterable[Item]:
    content = reader.read(0, _SMALL)
    return _header(checkpoint_format.CHECKPOINT, content, (
        Check("length", len(content) == checkpoint_format.FILE_SIZE,
              Phrase("{n} bytes, a complete one has {whole}", n=str(len(content)),
                     whole=str(checkpoint_format.FILE_SIZE))),
        Check("rest is zero", checkpoint_format.rest_is_zero(content)),
        Check("not all zero", True if any(content) else None,
              "" if any(content) else N_("all zero: normal for a new store and for 5.5, otherwise like a missing one")),
    ))


def _timercheck(report: FileReport, reader: FileReader, start: int) -> Iterable[Item]:
    return _header(timer.TIMER_CHECK, reader.read(0, _SMALL), raw=64)


def _abort(report: FileReport, reader: FileReader, start: int) -> Iterable[Item]:
    try:
        pid = checkpoint_format.process_id(reader.read(0, _SMALL))
    except FormatError as error:
        report.facts["state"] = str(error)
    else:
        state = "empty: a 4.x broker runs or crashed" if pid is None else "the process id of a 5.x broker"
        report.facts.update(state=state, pid=pid)
    return ()


def _text(report: FileReport, reader: FileReader, start: int) -> Iterable[Item]:
    report.facts["text"] = reader.read(0, 4096).decode("utf-8", "replace")
    return ()


def _rocksdb(report: FileReport, reader: FileReader, start: int) -> Iterable[Item]:
    report.facts["note"] = N_("recognised, but this version does not read RocksDB")
    return ()


_KNOWN = {**BY_NAME, CLIENT_OFFSETS.name: CLIENT_OFFSETS}
_ODD = 5


def _config(report: FileReport, reader: FileReader, start: int) -> Iterable[Item]:
    content = reader.read(0, _SMALL)
    parsed = salvage(content)
    known = _KNOWN.get(_plain_name(Path(report.path).name))
    report.facts.update(
        state=parsed.error.reason if parsed.error else {"": "whole", "zeros": "trailing-zeros"}.get(
            parsed.trailing, "trailing-garbage"),
        value_ends_at=parsed.end, keys=[str(key) for key in parsed.value] if isinstance(parsed.value, dict) else [],
    )
    if parsed.error is not None:
        report.facts["error"] = f"{parsed.error} (byte {parsed.error.offset})"
    if known is not None:
        report.facts.update(kept_by=known.keeper, missing_keys=list(missing_keys(known, parsed.value)),
                            if_lost=known.lost)
        text = ConfigText(Path(report.path), known, content)
        checks = [Check("whole text", text.state == "sound", STATE_TEXT[text.state])]
        if known is CLIENT_OFFSETS:
            checks += _of_client(report, text)
        return [Item("text", 0, len(content), checks=tuple(checks), raw=content[:64])]
    checks = [] if parsed.error is None else [Check("whole text", False, str(parsed.error))]
    return [Item("text", 0, len(content), checks=tuple(checks), raw=content[:64])] if checks else ()


def _of_client(report: FileReport, text: ConfigText) -> Iterator[Check]:
    """Offsets of a broadcast client, and what its start makes of the file and its backup."""
    queues, odd = client_offsets(text.parsed.value)
    report.facts["offsets"] = [f"{topic}/{queue} of {broker}: {offset}" for topic, broker, queue, offset in queues]
    yield Check("offsets", not odd, ", ".join(odd[:_ODD]))
    path = Path(report.path)
    copies = ClientOffsets.of(path.parent)
    if path.name != CLIENT_OFFSETS.name or copies.is_sound:
        return
    report.facts["backup"] = STATE_TEXT[copies.backup.state]
    report.facts["remedy"] = Phrase(
        "stop the client, then: mqtool recover {path}" if copies.whole else
        "stop the client, then: mqtool recover {path}; it begins where its consumeFromWhere says",
        path=shlex.quote(str(path)))


# --- The kinds, a row each. ------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """How a kind of file is called and shown. A file is recognised by its name, else by its folder or the `part` of the
    store above topic and queue, else by a test of its content. The first row that fits counts.
    """

    title: str
    items: Callable[[FileReport, FileReader, int], Iterable[Item]]
    names: tuple[str, ...] = ()
    folder: str = ""
    part: str = ""
    test: Callable[[bytes, FileReader], bool] | None = None


KINDS: dict[str, Kind] = {
    "commitlog": Kind("commitlog file", log_items, folder="commitlog"),
    "dledger-data": Kind("DLedger data file", dledger_items, test=_is_dledger),
    "dledger-index": Kind("DLedger index file", table_of(
        dledger.DLEDGER_INDEX_UNIT, lambda unit: unit.magic == dledger.MAGIC_ENTRY, numbered=True)),
    "timerlog": Kind("timerlog file", table_of(
        timer.TIMER_LOG_UNIT, lambda unit: unit.size == timer.TIMER_LOG_UNIT.size), folder="timerlog",
        test=lambda sample, _: _is_time(timer.decode(sample).write_timestamp)),
    "checkpoint": Kind("checkpoint", _checkpoint, names=("checkpoint",), test=_is_checkpoint),
    "index": Kind("index file", _index, test=_is_index),
    "config": Kind("config file", _config, test=_is_config),
    "batchconsumequeue": Kind("batch consume queue file", table_of(BATCH_CQ_UNIT, is_valid_batch),
                              part="batchconsumequeue", test=_is_batch),
    "consumequeue": Kind("consume queue file", table_of(CQ_UNIT, is_valid, numbered=True), part="consumequeue",
                         test=_is_consumequeue),
    "consumequeue-ext": Kind(
        "consumequeue_ext file", ext_items, part="consumequeue_ext",
        test=lambda sample, _: any(_is_time(first.store_timestamp) for _, first in islice(ext_units(sample), 1))),
    "compaction-log": Kind("compaction log file", log_items, part="compactionLog"),
    "compaction-queue": Kind("compaction queue file", table_of(BATCH_CQ_UNIT, is_valid_batch), part="compactionCq"),
    "timerwheel": Kind("timerwheel", table_of(timer.TIMER_WHEEL_SLOT, lambda unit: unit.instant > 0, numbered=True),
                       names=("timerwheel",)),
    "timercheck": Kind("timercheck", _timercheck, names=("timercheck",)),
    "abort": Kind("abort file", _abort, names=(ABORT, checkpoint_format.ABORT_BACKUP)),
    "lock": Kind("lock file", _text, names=(LOCK,)),
    "epoch": Kind("epoch file", _text, names=(dledger.EPOCH_FILE, dledger.EPOCH_FILE + BACKUP_SUFFIX)),
    "statetable": Kind("3.x transaction state table", table_of(
        legacy_transaction.STATE_UNIT, legacy_transaction.is_valid, numbered=True), folder="statetable"),
    "redolog": Kind("3.x transaction redo log", table_of(CQ_UNIT, is_valid, numbered=True), folder="redolog"),
    "rocksdb": Kind("RocksDB file", _rocksdb),
}
