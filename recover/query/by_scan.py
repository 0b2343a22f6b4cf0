"""Messages by a scan of the whole log: needs neither index nor queues, and sees old bytes as well."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from formats.commitlog import Record
from formats.errors import FormatError
from formats.javahash import index_key_hash, java_string
from formats.record_columns import BIT_FILLER, BIT_GHOST, BIT_MARKER, BIT_SUPERSEDED
from recover.evidence.last_numbers import as_units_say
from recover.files.store import Store
from recover.memory.columns import Rows, Split
from recover.query.by_key import FOREVER, has_key
from recover.query.model import Answer, Found
from recover.scan.engine import Engine, LocalEngine
from recover.scan.log import LogView
from recover.scan.log_reader import LogReader

Callback = Callable[[int, int], None]


class Wanted(Struct, frozen=True):
    """What to look for; None leaves a condition out. Times in ms; `ghosts`: take old bytes, too, or `only_ghosts`."""

    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    key: str | None = None
    begin: int = 0
    end: int = FOREVER
    ghosts: bool = False
    only_ghosts: bool = False


def query_scan(
    store: Store, wanted: Wanted, *, engine: Engine | None = None, limit: int = 0, progress: Callback | None = None
) -> Answer:
    """Every intact message of the log that fits, in log order."""
    answer = Answer("scan")

    def unreadable(mapped_file: object, error: OSError) -> None:
        answer.incomplete(f"{error.filename} could not be read: {error.strerror}")

    log = (engine or LocalEngine()).scan_log(store.commitlog, progress=progress, open_error=unreadable)
    log = as_units_say(log, store)
    for scan in log.files:
        for failure in scan.unreadable:
            answer.incomplete(f"{failure.path} could not be read at {failure.offset}: {failure.strerror}")
    answer.damaged_ranges = len(log.damaged)
    if log.damaged:
        answer.notes.append(f"{len(log.damaged)} damaged ranges of the log hold nothing that could be looked at")
    queues = _queues(log, wanted)
    hashes = _hashes(log, wanted)
    with LogReader(store.commitlog) as reader:
        for split in log.splits():
            for row in split.records[_fitting(split, wanted, queues, hashes)]:
                record = _read(reader, row, answer)
                if record is None or (wanted.key is not None and not has_key(record, wanted.key)):
                    continue
                if limit and len(answer.messages) >= limit:
                    answer.more = True
                    return answer
                bits = int(row["bits"])
                answer.messages.append(Found(record, bool(bits & BIT_GHOST), bool(bits & BIT_SUPERSEDED)))
    return answer


def _read(reader: LogReader, row: Rows, answer: Answer) -> Record | None:
    try:
        return reader.record(int(row["phy_offset"]), int(row["size"]))
    except (FormatError, OSError) as error:
        answer.incomplete(f"the record at {int(row['phy_offset'])} changed while it was read: {error}")
        return None


def _queues(log: LogView, wanted: Wanted) -> Rows:
    """Mask over the log's queues."""
    return np.array([
        (wanted.topic is None or java_string(topic) == wanted.topic) and wanted.queue_id in (None, queue_id)
        for topic, queue_id in log.queues
    ], dtype=bool)


def _hashes(log: LogView, wanted: Wanted) -> Rows | None:
    """The key's hashes under every topic that may carry it, ascending; None without a key."""
    if wanted.key is None:
        return None
    names = {wanted.topic} if wanted.topic is not None else {java_string(topic) for topic, _ in log.queues}
    return np.unique(np.array([index_key_hash(f"{name}#{wanted.key}") for name in names], dtype=np.int32))


def _fitting(split: Split, wanted: Wanted, queues: Rows, hashes: Rows | None) -> Rows:
    records = split.records
    if not records.size:
        return np.zeros(0, dtype=bool)
    bits = records["bits"]
    mask: Rows = queues[records["queue"]] & ((bits & (BIT_FILLER | BIT_MARKER)) == 0)
    mask &= (records["store_timestamp"] >= wanted.begin) & (records["store_timestamp"] <= wanted.end)
    if wanted.queue_offset is not None:
        mask &= records["queue_offset"] == wanted.queue_offset
    ghost = (bits & BIT_GHOST) != 0
    mask &= ghost if wanted.only_ghosts else (~ghost | wanted.ghosts)
    if hashes is not None and mask.any():
        owners = np.repeat(np.arange(records.size), records["hashes"].astype(np.int64))
        hit = np.zeros(records.size, dtype=bool)
        hit[owners[np.isin(split.hashes, hashes)]] = True
        mask &= hit
    return mask
