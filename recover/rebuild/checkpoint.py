"""A checkpoint that fits the log: what a broker that stopped well would have left."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from formats.checkpoint import EMPTY, FILE_SIZE, Checkpoint, decode, encode, rest_is_zero
from formats.errors import FormatError
from formats.index import INDEX_HEADER
from formats.record_columns import BIT_GHOST
from recover.files.reader import read_small
from recover.files.store import CHECKPOINT as FILE_NAME
from recover.files.store import Store
from recover.index.files import index_geometry, list_index_files
from recover.plan.model import Step, WriteFile
from recover.scan.log import LogView
from recover.verify.checkpoint import offset_is_sound


class LogEdge(Struct, frozen=True):
    """The last live record before `stop`, and the newest store timestamp there (ms); zeros without a record."""

    stop: int
    last_start: int = 0
    last_timestamp: int = 0
    newest_timestamp: int = 0


def log_edge(log: LogView, stop: int | None = None) -> LogEdge:
    """The end of the log, or of its part before physical offset `stop`."""
    if stop is None or stop >= log.log_end:
        return LogEdge(log.log_end, _last_start(log), log.last_timestamp, log.newest_timestamp)
    start = last = newest = 0
    for split in log.splits():
        rows = split.records
        rows = rows[(rows["phy_offset"] < stop) & ((rows["bits"] & BIT_GHOST) == 0)]
        if rows.size:
            start, last = int(rows["phy_offset"][-1]), int(rows["store_timestamp"][-1])
            newest = max(newest, int(rows["store_timestamp"].max()))
    return LogEdge(stop, start, last, newest)


def _last_start(log: LogView) -> int:
    """Phy offset of the last live record, 0 without one."""
    for scan in reversed(log.files):
        for split in reversed(scan.splits):
            live = np.flatnonzero((split.records["bits"] & BIT_GHOST) == 0)
            if live.size:
                return int(split.records["phy_offset"][live[-1]])
    return 0


def right_checkpoint(
    store: Store, log: LogView, *, base: bytes = b"", stop: int | None = None, index_timestamp: int | None = None,
) -> bytes:
    """The whole file (4096 bytes). `base` is the file so far, whose sane fields are kept (b"": none).

    `stop`: the log will end there (physical offset). `index_timestamp`: end timestamp (ms) of the last full index
    file that will be there; None: look at those on disk.
    """
    edge = log_edge(log, stop)
    before = decode(base, extend=True) if base else EMPTY
    indexed = before.index_msg_timestamp
    if not 0 < indexed <= edge.newest_timestamp or index_timestamp is not None:
        indexed = last_full_index(store) if index_timestamp is None else index_timestamp
        indexed = indexed if 0 <= indexed <= edge.newest_timestamp else 0
    fields = Checkpoint(
        edge.last_timestamp, edge.last_timestamp, indexed, _within(before.master_flushed_offset, edge),
        _within(before.confirm_phy_offset, edge), _dispatched(log, before, edge),
    )
    kept = base if len(base) == FILE_SIZE and rest_is_zero(base) else b""
    return encode(fields, kept)


def checkpoint_steps(
    store: Store, log: LogView, *, stop: int | None = None, index_timestamp: int | None = None,
) -> list[Step]:
    """The step that puts the right checkpoint in place; none where the file already holds it.

    Ask only when the check found something, its report says `in_damage`, or the log gets another end: what healthy
    brokers leave is mostly older than this.
    """
    try:
        base = read_small(store.checkpoint_path, FILE_SIZE)
    except FileNotFoundError:
        base = b""
    content = right_checkpoint(store, log, base=base, stop=stop, index_timestamp=index_timestamp)
    return [] if content == base else [WriteFile(FILE_NAME, content)]


def last_full_index(store: Store) -> int:
    """End timestamp (ms) of the newest full index file on disk, 0 without one (IndexService.flush publishes it)."""
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    newest = 0
    for number, file in enumerate(listing.files):
        try:
            header = INDEX_HEADER.decode(read_small(file.path, INDEX_HEADER.size))
        except (OSError, FormatError):
            continue
        # a broker begins another file only when the one before is full
        full = header.index_count >= geometry.entries if geometry else number + 1 < len(listing.files)
        if full:
            newest = max(newest, header.end_timestamp)
    return newest


def _within(offset: int, edge: LogEdge) -> int:
    """An offset of the pair or the controller; beyond the log it is worse than none."""
    return offset if 0 <= offset <= edge.stop else 0


def _dispatched(log: LogView, before: Checkpoint, edge: LogEdge) -> int:
    """0 stays, for stores that never had it; a bad one becomes the last record, of which 5.5 knows no later one."""
    offset = before.logics_physical_offset
    if offset == 0:
        return 0
    in_damage = bool(log.in_damage(np.array([offset]))[0])
    if 0 < offset < edge.stop and not in_damage and offset_is_sound(log, offset):
        return offset
    return edge.last_start
