"""One file of a store: its kind, its items, every field and every check. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from formats import abort, timer
from formats import checkpoint as checkpoint_format
from formats.config import BY_NAME, missing_keys
from formats.errors import FormatError
from formats.fastjson import salvage
from formats.index import DEFAULT_GEOMETRY, INDEX_HEADER, IndexGeometry, infer_geometry
from recover.errors import NotAStore, UsageRefusal
from recover.files.reader import FileReader
from recover.inspect_file.kinds import TITLES, Kind, detect
from recover.inspect_file.model import Check, Field, FileReport, Item, layout_fields
from recover.inspect_file.unit_items import TABLES, dledger_items, ext_items, index_items, log_items, table_items

__all__ = ["Check", "Field", "FileReport", "Item", "inspect_file"]

_SMALL = 64 << 20
_LOGS = ("commitlog", "compaction-log")


def inspect_file(
    path: Path, offset: int | None = None, limit: int = 20, geometry: IndexGeometry | None = None
) -> FileReport:
    """Look at one file from `offset` on, at most `limit` items (0: all).

    `offset` is a byte position in the file; for files named by offset a physical offset does as well.
    `NotAStore` (16) for what is no RocketMQ file, `UsageRefusal` (16) for an offset outside, `OSError`.
    """
    if not path.exists():
        raise NotAStore(f"{path} does not exist", "Give a store root, or a file of a store.")
    with FileReader(path) as reader:
        kind = detect(path, reader)
        report = FileReport(str(path), kind.name, TITLES[kind.name], kind.why, reader.length, kind.base)
        start = _start(reader, kind, offset)
        items = list(islice(_items(report, reader, kind, start, geometry), limit + 1 if limit else None))
        report.items = items[:limit] if limit else items
        if limit and len(items) > limit:
            report.complete, report.next_offset = False, items[limit].offset
        return report


def _start(reader: FileReader, kind: Kind, offset: int | None) -> int:
    if offset is None:
        return 0
    base = kind.base or 0
    start = offset - base if base and offset >= base else offset
    if not 0 <= start < max(reader.length, 1):
        span = f"{base} to {base + reader.length}, or 0 to {reader.length} within it"
        raise UsageRefusal(f"offset {offset} is outside of the file", f"The file spans {span}.")
    return start


def _items(
    report: FileReport, reader: FileReader, kind: Kind, start: int, geometry: IndexGeometry | None
) -> Iterator[Item]:
    base = kind.base or 0
    if kind.name in _LOGS:
        return log_items(reader, base, start)
    if kind.name in TABLES:
        return table_items(kind.name, reader, base, start)
    if kind.name == "consumequeue-ext":
        return ext_items(reader, start)
    if kind.name == "dledger-data":
        return dledger_items(reader, base, start)
    if kind.name == "index":
        return _index(report, reader, start, geometry)
    return iter(_whole(report, reader))


def _index(report: FileReport, reader: FileReader, start: int, geometry: IndexGeometry | None) -> Iterator[Item]:
    found = geometry
    if found is None and reader.length == DEFAULT_GEOMETRY.size:
        found = DEFAULT_GEOMETRY
    if found is None and INDEX_HEADER.size < reader.length <= _SMALL:
        found = infer_geometry(reader.read(0, reader.length))
    if found is None or found.size != reader.length:
        report.facts["geometry"] = "unknown: name --index-slots and --index-entries"
        content = reader.read(0, INDEX_HEADER.size)
        return iter([Item("header", 0, len(content), None, layout_fields(INDEX_HEADER, content, 0), raw=content)])
    report.facts.update(slots=found.slots, entries=found.entries)
    return index_items(reader, found, start)


def _whole(report: FileReport, reader: FileReader) -> list[Item]:
    content = reader.read(0, _SMALL)
    if report.kind == "checkpoint":
        return [_checkpoint(content)]
    if report.kind == "timercheck":
        return [Item("header", 0, len(content), None, layout_fields(timer.TIMER_CHECK, content, 0), raw=content[:64])]
    if report.kind == "abort":
        report.facts.update(_abort(content))
    elif report.kind == "config":
        report.facts.update(_config(Path(report.path).name, content))
    elif report.kind in ("lock", "epoch"):
        report.facts["text"] = content[:4096].decode("utf-8", "replace")
    elif report.kind == "rocksdb":
        report.facts["note"] = "recognised, but this version does not read RocksDB"
    return []


def _checkpoint(content: bytes) -> Item:
    fields = layout_fields(checkpoint_format.CHECKPOINT, content, 0)
    checks = (
        Check("length", len(content) == checkpoint_format.FILE_SIZE,
              f"{len(content)}, a whole one has {checkpoint_format.FILE_SIZE}"),
        Check("rest is zero", checkpoint_format.rest_is_zero(content)),
        Check("not all zero", True if any(content) else None,
              "" if any(content) else "all zero: normal for a new store and for 5.5, else as good as missing"),
    )
    return Item("header", 0, len(content), None, fields, checks, raw=content[: checkpoint_format.CHECKPOINT.size])


def _abort(content: bytes) -> dict[str, object]:
    try:
        pid = abort.decode(content)
    except FormatError as error:
        return {"state": str(error)}
    state = "empty: a 4.x broker runs or crashed" if pid is None else "the process id of a 5.x broker"
    return {"state": state, "pid": pid}


def _config(name: str, content: bytes) -> dict[str, object]:
    parsed = salvage(content)
    known = BY_NAME.get(name.removesuffix(".bak").removesuffix(".tmp"))
    keys = [str(key) for key in parsed.value] if isinstance(parsed.value, dict) else []
    facts: dict[str, object] = {
        "state": parsed.error.reason if parsed.error else {"": "whole", "zeros": "trailing-zeros"}.get(
            parsed.trailing, "trailing-garbage"),
        "value_ends_at": parsed.end, "keys": keys,
    }
    if parsed.error is not None:
        facts["error"] = f"{parsed.error} (byte {parsed.error.offset})"
    if known is not None:
        facts["kept_by"] = known.keeper
        facts["missing_keys"] = list(missing_keys(known, parsed.value))
        facts["if_lost"] = known.lost
    return facts
