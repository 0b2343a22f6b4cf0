"""A broker's recovery of the commitlog: the start file, the end of the scan, and the files that truncation deletes.

Sources: CommitLog.recoverNormally, CommitLog.recoverAbnormally, CommitLog.isMappedFileMatchedRecover,
MappedFileQueue.truncateDirtyFiles. Nothing is written here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct

from formats.basics import Buffer
from formats.checkpoint import Checkpoint, min_timestamp
from formats.native.rows import FLAGS
from formats.record import BLANK, HEADS, MAGIC_V1, MAGIC_V2, OFFSET_SYS_FLAG
from formats.record.grammar import INNER_BATCH, PROPERTY_CRC
from formats.record.layout import I32_STRUCT
from formats.record.rows import BIT_INNER_BATCH, BIT_PROP_CRC, BIT_V2, RECORD
from formats.sysflag import BORNHOST_V6, HOSTS_V6
from recover.broker import versions
from recover.broker.record_check import Checked, CheckRules, ReadAt, check_message
from recover.broker.settings import BrokerSettings
from recover.findings.code import N_
from recover.findings.model import Phrase
from recover.store.columns import Rows, Split
from recover.store.mapped_files import MappedFile
from recover.store.reader import ReadFailure

Mode = Literal["normal", "abnormal"]

RECOVERED_BY_LAST_FILES = 3
DEFAULT_SEARCH_LIMIT = 10
READ_AHEAD = 1 << 15
"""What one opening of a file reads, in bytes."""


class LogFiles:
    """The mapped files that a broker loads, in name order, each `file_size` bytes long."""

    def __init__(self, files: Sequence[MappedFile], file_size: int) -> None:
        self.files, self.file_size = files, file_size

    def read_at(self, index: int) -> ReadAt:
        """Return a function that reads file `index` at a position in it. A check asks for a record field by field, in
        order: what follows is read with it, and kept until a field lies outside."""
        file, ahead, start, kept = self.files[index], READ_AHEAD, 0, b""

        def read(position: int, length: int) -> Buffer:
            nonlocal ahead, start, kept
            at, wanted = position - start, max(0, length)
            if at >= 0 and at + wanted <= len(kept):
                return kept[at : at + wanted]
            with file.open() as reader:
                if wanted < ahead:
                    try:
                        start, kept = position, reader.read(position, ahead)
                        return kept[:wanted]
                    except ReadFailure:
                        # a bad block ahead is not part of what was asked for, and may cost seconds a try
                        ahead = 0
                return reader.read(position, wanted)

        return read


class LogSource(LogFiles):
    """Mapped files with the rows that a strict scan found in them."""

    def splits(self, index: int) -> Sequence[Split]:
        """Return the intact records of file `index`, ascending by phy_offset."""
        raise NotImplementedError


class DispatchTarget(Protocol):
    """Receives the messages of a scan, in log order."""

    def rows(self, rows: Rows) -> None: ...

    def passes(self, split: Split) -> bool:
        """Take the messages of a split whose rows are elsewhere, if that certainly takes no look at them; whether it
        did."""

    def checked(self, message: Checked) -> None:
        """Take a record that only the broker's own check accepted."""


class ScanEnd(Struct, frozen=True):
    """The end of a scan: `process_offset` is the broker's new end of the log.

    `reason`: why no record follows ("end-of-files" after a blank in the last file); `fatal`: the JVM died.
    """

    process_offset: int
    reason: str
    fatal: bool = False
    size: int = 0


class StartFile(Struct, frozen=True):
    """The file where recovery begins: its index, and whether a rule matched it or the search ended there."""

    index: int
    matched: bool


class BrokenStartError(Exception):
    """The broker throws here and does not start."""


def start_file(
    log: LogFiles, mode: Mode, settings: BrokerSettings, checkpoint: Checkpoint, max_of_queues: int, *,
    fresh: bool = True,
) -> StartFile:
    """Return the file where the scan begins; `max_of_queues`: largest unit end over all queues, -1 without a unit.

    `fresh`: no database of index or transactions has seen a message yet. The log must have a file.
    """
    version = settings.version
    last = len(log.files) - 1
    if mode == "normal" and version.has(versions.LAST_THREE_FILES):
        return StartFile(max(0, last + 1 - RECOVERED_BY_LAST_FILES), True)
    oldest = 0
    if version.has(versions.START_SEARCH_LIMITED):
        oldest = oldest_searched(settings, len(log.files))
    for index in range(last, oldest - 1, -1):
        if _matches(log, index, mode, settings, checkpoint, max_of_queues, fresh):
            return StartFile(index, True)
    return StartFile(oldest, False)


def oldest_searched(settings: BrokerSettings, files: int) -> int:
    """Return the index of the oldest of so many files at which a release with `START_SEARCH_LIMITED` can begin."""
    limit = settings.number("commitLogRecoverMaxNum")
    return max(0, files - (limit if limit > 0 else DEFAULT_SEARCH_LIMIT))


def first_position(
    log: LogFiles, index: int, mode: Mode, settings: BrokerSettings, checkpoint: Checkpoint,
) -> int:
    """Return the position (bytes) in the start file at which the scan begins; `BrokenStartError` where a broker throws.

    It is 0 unless recovery is accelerated (ConsumeQueueStore.getDispatchFromPhyOffset, CommitLog.recoverAbnormally).
    """
    accelerated = settings.version.has(versions.ACCELERATED_BY_CHECKPOINT) and mode == "abnormal"
    if not (accelerated and settings.flag("enableAcceleratedRecovery")):
        return 0
    offset = checkpoint.logics_physical_offset
    if offset <= 0 < checkpoint.physic_msg_timestamp:
        raise BrokenStartError(N_("enableAcceleratedRecovery=true needs an offset of the queues in the checkpoint"))
    position = offset - log.files[index].file_from_offset
    if position > log.file_size:
        raise BrokenStartError(Phrase("enableAcceleratedRecovery=true begins at {offset}, outside of {file}",
                                      offset=offset, file=log.files[index].name))
    return max(0, position)


def _matches(
    log: LogFiles, index: int, mode: Mode, settings: BrokerSettings, checkpoint: Checkpoint, max_of_queues: int,
    fresh: bool,
) -> bool:
    """Whether the scan may begin at this file, judged by its first record."""
    if settings.version.has(versions.START_FILE_CHECKED):
        first = check_message(log.read_at(index), 0, log.file_size, CheckRules.of(settings))
        begins, timestamp = first.phy_offset, first.store_timestamp if first.ok else 0
    elif mode == "normal":
        return log.files[index].file_from_offset <= max_of_queues
    else:
        begins, timestamp = log.files[index].file_from_offset, _first_store_timestamp(log.read_at(index), settings)
    if begins > 0 and fresh and _has_databases(settings):
        # they match no other file (IndexRocksDBStore.isMappedFileMatchedRecover)
        return False
    indexed = settings.flag("messageIndexEnable") and settings.flag("messageIndexSafe")
    if timestamp == 0 or (indexed and timestamp > checkpoint.index_msg_timestamp):
        return False
    if mode == "normal":
        return begins <= max_of_queues
    if not settings.version.has(versions.START_BY_LOGICS_OFFSET):
        return timestamp <= min_timestamp(checkpoint)
    if checkpoint.logics_physical_offset > 0:
        return begins <= checkpoint.logics_physical_offset
    return timestamp <= checkpoint.logics_msg_timestamp


def _has_databases(settings: BrokerSettings) -> bool:
    """Whether databases of index or transactions affect the choice of the start file."""
    alone = settings.version.has(versions.TRANSACTIONS_CHOOSE_START)
    return settings.flag("indexRocksDBEnable") or (
        settings.flag("transRocksDBEnable") and (alone or not settings.flag("transWriteOriginTransHalfEnable")))


def _first_store_timestamp(read: ReadAt, settings: BrokerSettings) -> int:
    """Return the store timestamp of the first record, 0 if there is none; its other bytes are not checked."""
    largest = HEADS[HOSTS_V6].size
    content = bytes(read(0, largest)).ljust(largest, b"\0")
    magic = BLANK.decode(content).magic
    if magic != MAGIC_V1 and not (magic == MAGIC_V2 and settings.version.has(versions.V2_RECORDS)):
        return 0
    (flags,) = I32_STRUCT.unpack_from(content, OFFSET_SYS_FLAG)
    layout = HEADS[flags & BORNHOST_V6 if settings.version.has(versions.IPV6_HOSTS) else 0]
    return layout.decode(content).store_timestamp


def needs_reference(rows: Rows, rules: CheckRules) -> Rows:
    """Which intact records this broker may refuse nevertheless, or may parse differently (bool array)."""
    if rules.duplicated:
        return np.ones(rows.size, dtype=bool)
    bits = rows["bits"]
    mask: Rows = np.zeros(rows.size, dtype=bool)
    if not rules.v2:
        mask |= (bits & BIT_V2) != 0
    if not rules.ipv6:
        mask |= (rows["sys_flag"] & HOSTS_V6) != 0
    if INNER_BATCH in rules.looks_at:
        mask |= (bits & BIT_INNER_BATCH) != 0
    if PROPERTY_CRC in rules.looks_at:
        mask |= (bits & BIT_PROP_CRC) == 0
    return mask


def _all_pass(split: Split, rules: CheckRules) -> bool:
    """Whether no record of a split needs the reference; rows that are elsewhere are not looked at."""
    doubtful = (0 if rules.v2 else BIT_V2) | (BIT_INNER_BATCH if INNER_BATCH in rules.looks_at else 0)
    return not (rules.duplicated or PROPERTY_CRC in rules.looks_at or split.has(doubtful)
                or (not rules.ipv6 and split.has(HOSTS_V6, FLAGS)))


_END = "end-of-files"
_NONE = np.empty(0, dtype=RECORD)
_AT_ONCE = 1 << 18
"""Limit of a run's records: dispatch makes several copies of a run."""
_IN_CACHE = 1 << 13
"""Records that are compared at once: eight times as fast as all of a split, whose columns leave the cache."""


class Runs:
    """The contiguous runs of intact records of one file that certainly pass the check; `splits` are its records, in
    order, and only those that are asked for are looked at."""

    def __init__(self, splits: Sequence[Split], rules: CheckRules) -> None:
        self._splits = [split for split in splits if split.size]
        self._firsts = [split.first for split in self._splits]
        self._rules = rules
        self._open: tuple[int, Rows, Rows] = -1, _NONE, _NONE

    def unseen(self, offset: int, limit: int, target: DispatchTarget) -> int | None:
        """Return the end of the split that begins at physical `offset`, if it is one run that ends by `limit` and
        `target` took it without its rows; else None."""
        split = self._splits[number] if (number := bisect_right(self._firsts, offset) - 1) >= 0 else None
        if split is None or not split.adjoins or split.first != offset or split.end > limit:
            return None
        return split.end if _all_pass(split, self._rules) and target.passes(split) else None

    def at(self, offset: int, limit: int) -> Rows:
        """Return the run, or its first records, that begins at physical `offset` and ends by `limit`; empty if there is
        none."""
        number = bisect_right(self._firsts, offset) - 1
        if number < 0 or offset >= self._splits[number].end:
            return _NONE
        part = self._splits[number].records
        phys = part["phy_offset"]
        first = bisect_left(phys, offset)
        if first == part.size or int(phys[first]) != offset:
            return _NONE
        if self._open[0] != number:
            self._open = number, *self._stops_of(part)
        _, doubtful, stops = self._open
        if doubtful[first]:
            return _NONE
        last = min(int(stops[np.searchsorted(stops, first)]), first + _AT_ONCE - 1)
        run = part[first : last + 1]
        # records adjoin: each ends where the next one begins
        return run if end_of(run) <= limit else run[: np.searchsorted(run["phy_offset"], limit, side="right") - 1]

    def _stops_of(self, rows: Rows) -> tuple[Rows, Rows]:
        """Which records are doubtful, and the numbers of those that end a run: before one that does not adjoin, and
        before and after a doubtful one."""
        doubtful = needs_reference(rows, self._rules)
        stops = np.ones(rows.size, dtype=bool)
        for first in range(0, rows.size - 1, _IN_CACHE):
            stop = min(first + _IN_CACHE, rows.size - 1)
            stops[first:stop] = np.diff(rows["phy_offset"][first : stop + 1]) != rows["size"][first:stop]
        stops[:-1] |= doubtful[1:]
        return doubtful, np.flatnonzero(stops)


def end_of(run: Rows) -> int:
    return int(run["phy_offset"][-1] + run["size"][-1])


def scan(
    log: LogSource, first: int, rules: CheckRules, target: DispatchTarget, *, position: int = 0,
    own_file_only: bool = False,
) -> ScanEnd:
    """Read from `position` (bytes) in file `first` on as recovery does, up to the first failure or the end of the last
    file.

    `own_file_only` is checkCommitLogOffsetOnRecover: a record that states a position outside its file ends the scan.
    """
    for index in range(first, len(log.files)):
        # a separate call, so that the rows of one file are freed before the next file's are loaded
        end = _scan_file(log, index, rules, target, own_file_only, position if index == first else 0)
        if end.reason != _END:
            break
    return end


def _scan_file(
    log: LogSource, index: int, rules: CheckRules, target: DispatchTarget, own_file_only: bool, position: int,
) -> ScanEnd:
    base = log.files[index].file_from_offset
    file = FileWalk(log, index, log.file_size, rules, target)
    position, message = file.walk(position, range(base, base + log.file_size + 1) if own_file_only else None)
    if message.ok and message.size == 0:
        return ScanEnd(base + position, _END)
    return ScanEnd(base + position, message.reason or "foreign-phy-offset", message.fatal, message.size)


class FileWalk:
    """The records of one log file of which `readable` bytes count as written, passed on to `target` in order."""

    def __init__(self, log: LogSource, index: int, readable: int, rules: CheckRules, target: DispatchTarget) -> None:
        self.base = log.files[index].file_from_offset
        self.readable = readable
        self.rules = rules
        self.target = target
        self._runs = Runs(log.splits(index), rules)
        self._read = log.read_at(index)

    def walk(self, position: int, own: range | None = None) -> tuple[int, Checked]:
        """Pass on the messages from `position` (bytes in the file) on; return where they end and the result of the
        check there. A message that states an offset outside of `own` ends them, too."""
        while True:
            at, limit = self.base + position, self.base + self.readable
            if (stop := self._runs.unseen(at, limit, self.target)) is not None:
                position = stop - self.base
                continue
            run = self._runs.at(at, limit)
            if run.size:
                self.target.rows(run)
                position = end_of(run) - self.base
                continue
            message = check_message(self._read, position, self.readable, self.rules)
            is_message = message.ok and message.size > 0
            if not is_message or (own is not None and message.phy_offset not in own):
                return position, message
            self.target.checked(message)
            position += message.size


def unlinked(files: Sequence[MappedFile], process_offset: int) -> list[MappedFile]:
    """Return the files that truncation to `process_offset` deletes: those that begin after it."""
    return [mapped_file for mapped_file in files if mapped_file.file_from_offset > process_offset]


def written(log: LogFiles, file_from_offset: int, cut_at: int) -> int:
    """Return how much of a file (bytes) counts as written after the log is cut at `cut_at`.

    Brokers take the position in the file modulo the file size, which is wrong for a name that no log file can have.
    """
    return cut_at % log.file_size if cut_at < file_from_offset + log.file_size else log.file_size


def max_offset(log: LogFiles, cut_at: int) -> int:
    """Return the end of the log for a broker that cut it at `cut_at` and has `log.files` left; 0 without a file."""
    last = log.files[-1].file_from_offset if log.files else 0
    return last + written(log, last, cut_at) if log.files else 0
