"""Check the checkpoint against the log, and rebuild it as a broker would leave it after a clean stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field

from formats.checkpoint import CHECKPOINT, EMPTY, FILE_SIZE, Checkpoint, decode, encode, rest_is_zero
from recover.broker.versions import BrokerVersion
from recover.change.model import Step, WriteFile
from recover.derived.index_files import index_geometry, list_index_files
from recover.derived.index_keys import IndexStream
from recover.findings.model import Finding, finding
from recover.log.scan import LogView, last_live
from recover.store.reader import ReadFailure
from recover.store.source import read_small
from recover.store.store import CHECKPOINT as FILE_NAME, Store

# --- Check against the log: a value is wrong only if no healthy broker could have left it.
#
# Zeros and old times are healthy: some fields are published late, and some by 5.5.0 never (StoreCheckpoint).


TIMES = ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp")
OFFSET = "logics_physical_offset"
_ZERO_IS_NORMAL = BrokerVersion(5, 5, 0)
_TRACES_OF_5_4 = ("rocksdbstore", "consumequeue_rocksdb")
_DAY = 24 * 3600 * 1000
_START_RULES = (BrokerVersion(5, 3, 3), BrokerVersion(5, 4, 0), BrokerVersion(5, 5, 0))

Facts = Callable[[Checkpoint], dict[str, Any]]
"""Returns additional facts for a finding on a checkpoint."""


class CheckpointReport(Struct):
    """The result of checking the checkpoint. `checkpoint` is None without a file; `in_damage`: its offset lies in a
    damaged range, so it is unknown whether a record started there."""

    checkpoint: Checkpoint | None
    findings: list[Finding] = field(default_factory=list)
    in_damage: bool = False

    @property
    def sound(self) -> bool:
        """Whether nothing in it needs to change."""
        return not self.findings

    def json(self) -> dict[str, Any]:
        """Return the `checkpoint` object of the verify document: every field, and whether there is a file."""
        return {**(self.checkpoint or EMPTY)._asdict(), "present": self.checkpoint is not None}


def check_checkpoint(store: Store, log: LogView) -> CheckpointReport:
    """Check the checkpoint against the whole log."""
    has_records = bool(log.damaged) or any(scan.record_count for scan in log.files)
    report = _read(store, partial(_rescan, store, log), has_records)
    checkpoint = report.checkpoint
    if checkpoint is None or not has_records:
        return report
    offset = checkpoint.logics_physical_offset
    report.in_damage = bool(log.in_damage(np.array([offset]))[0])
    if checkpoint != EMPTY:
        sound = offset_is_sound(log, offset)
        report.findings += _wrong_values(checkpoint, log.tally.newest_timestamp, sound, partial(_rescan, store, log))
    elif not _zero_is_normal(store):
        report.findings.append(finding("checkpoint-all-zero", FILE_NAME, 0, **_rescan(store, log, checkpoint)))
    return report


def quick_checkpoint_findings(store: Store, min_offset: int, log_end: int, newest: int) -> list[Finding]:
    """Return findings provable with only the end of the log read: an earlier record may be up to a day newer."""
    if log_end == min_offset:
        return []
    report = _read(store, lambda _: {"log_bytes": log_end - min_offset})
    if report.checkpoint is not None and newest:
        sound = 0 <= report.checkpoint.logics_physical_offset <= log_end
        report.findings += _wrong_values(report.checkpoint, newest, sound, lambda _: {"log_end": log_end}, margin=_DAY)
    return report.findings


def _read(store: Store, facts: Facts, has_records: bool = True) -> CheckpointReport:
    """Return the checkpoint with findings on its file."""
    try:
        content = read_small(store.checkpoint_path, FILE_SIZE)
    except FileNotFoundError:
        return CheckpointReport(None, [finding("checkpoint-missing", FILE_NAME, **facts(EMPTY))] if has_records else [])
    except OSError as error:
        return CheckpointReport(None, [finding("checkpoint-unreadable", FILE_NAME, error=error.strerror)])
    report = CheckpointReport(decode(content, extend=True))
    if (length := len(content)) < FILE_SIZE:
        report.findings.append(finding("checkpoint-short", FILE_NAME, length, length=length, expected=FILE_SIZE,
                                       **facts(decode(content, extend=True))))
    return report


def _wrong_values(
    checkpoint: Checkpoint, newest: int, sound: bool, facts: Facts, margin: int = 0
) -> Iterator[Finding]:
    """Report negative times, times more than `margin` (ms) past the newest record, and the offset if not `sound`."""
    for name in TIMES:
        value, at = getattr(checkpoint, name), CHECKPOINT.offset(name)
        if value < 0:
            yield finding("checkpoint-impossible-time", FILE_NAME, at, field=name, value=value)
        elif newest > 0 and value > newest + margin:
            yield finding("checkpoint-later-than-log", FILE_NAME, at, field=name, value=value, newest=newest,
                          ahead_ms=value - newest, **facts(checkpoint))
    if not sound:
        yield finding("checkpoint-offset-no-record", FILE_NAME, CHECKPOINT.offset(OFFSET),
                      value=checkpoint.logics_physical_offset, **facts(checkpoint))


def _zero_is_normal(store: Store) -> bool:
    """Whether all zeros are normal, as in 5.5. Few of its stores show a trace that 5.4 does not leave, so a trace of
    5.4 is enough."""
    if store.options.broker is not None:
        return BrokerVersion.parse(store.options.broker) >= _ZERO_IS_NORMAL
    return any((store.root / name).exists() for name in _TRACES_OF_5_4)


def offset_is_sound(log: LogView, offset: int) -> bool:
    """Return False for an offset (byte 40) where certainly no record starts.

    An offset below the log's start is as harmless as an old time; in a damaged range it cannot be judged.
    """
    if offset == 0 or 0 < offset < log.min_offset:
        return True
    if offset < 0 or offset >= log.log_end:
        return False
    return bool(log.in_damage(np.array([offset]))[0]) or IndexStream(log.splits()).find(offset) is not None


def _rescan(store: Store, log: LogView, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what an abnormal start of each kind of broker would read with this checkpoint (bytes)."""
    # not needed if the checkpoint is sound
    from recover.broker.recovery import LogFiles, start_file
    from recover.broker.settings import BrokerSettings

    facts: dict[str, Any] = {"log_bytes": log.log_end - log.min_offset, "log_end": log.log_end, "rescan": []}
    source = LogFiles(store.commitlog.files, store.mapped_file_size)
    if not source.files:
        return facts
    for version in _START_RULES:
        try:
            start = source.files[start_file(source, "abnormal", BrokerSettings(version), checkpoint, -1).index]
        except ReadFailure:
            continue  # a file that decides it cannot be read
        facts["rescan"].append({
            "broker": str(version), "file": start.name, "bytes": max(0, log.log_end - start.file_from_offset),
        })
    return facts


def right_checkpoint(
    store: Store, log: LogView, *, base: bytes = b"", index_timestamp: int | None = None,
) -> bytes:
    """Return the content of the right file (4096 bytes). Sane fields of `base`, the present file (b"": none), are kept.

    `index_timestamp`: end timestamp (ms) of the last full index file that will exist; None: read those on disk.
    """
    before = decode(base, extend=True) if base else EMPTY
    indexed = before.index_msg_timestamp
    if not 0 < indexed <= log.tally.newest_timestamp or index_timestamp is not None:
        indexed = last_full_index(store) if index_timestamp is None else index_timestamp
        indexed = indexed if 0 <= indexed <= log.tally.newest_timestamp else 0
    # bytes after the fields: not as a broker wrote it, so a field that only the newest releases know is not trusted
    dispatched = _dispatched(log, before) if rest_is_zero(base) or _zero_is_normal(store) else 0
    last = log.tally.last_timestamp
    fields = Checkpoint(
        last, last, indexed, _within(before.master_flushed_offset, log), _within(before.confirm_phy_offset, log),
        dispatched,
    )
    kept = base if len(base) == FILE_SIZE and rest_is_zero(base) else b""
    return encode(fields, kept)


def checkpoint_steps(store: Store, log: LogView) -> list[Step]:
    """Return the step that writes the right checkpoint; none if the file already holds it.

    Call only if the check found something, its report says `in_damage`, or the end of the log changes: the checkpoint
    of a healthy broker is usually older than this one.
    """
    try:
        base = read_small(store.checkpoint_path, FILE_SIZE)
    except FileNotFoundError:
        base = b""
    content = right_checkpoint(store, log, base=base)
    return [] if content == base else [WriteFile(FILE_NAME, content)]


def last_full_index(store: Store) -> int:
    """Return the end timestamp (ms) of the newest full index file on disk, 0 without one (IndexService.flush sets
    it)."""
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    newest = 0
    for number, file in enumerate(listing.files):
        header = file.header()
        if header is None:
            continue
        # a broker starts a new file only when the last one is full
        if header.index_count >= geometry.entries if geometry else number + 1 < len(listing.files):
            newest = max(newest, header.end_timestamp)
    return newest


def _within(offset: int, log: LogView) -> int:
    """Return an offset of HA or the controller; 0 if past the log, where it does more harm than none."""
    return offset if 0 <= offset <= log.log_end else 0


def _dispatched(log: LogView, before: Checkpoint) -> int:
    """Return the right @40: 0 stays (never set); an unsound one becomes the last record, the latest that 5.5 can
    set."""
    offset = before.logics_physical_offset
    if offset == 0 or (offset_is_sound(log, offset) and not log.in_damage(np.array([offset]))[0]):
        return offset
    last = last_live([*log.splits()])
    return 0 if last is None else last[0]
