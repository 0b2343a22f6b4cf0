"""The checkpoint against the log: wrong only where no healthy broker could have left it so.

Zeros and old times are healthy: some fields are published late, and by 5.5.0 some of them never (StoreCheckpoint).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field

from formats.checkpoint import CHECKPOINT, EMPTY, FILE_SIZE, Checkpoint, decode
from formats.record_columns import BIT_GHOST
from recover.broker.versions import BrokerVersion
from recover.files.reader import read_small
from recover.files.store import CHECKPOINT as FILE_NAME
from recover.files.store import Store
from recover.findings import Finding, finding
from recover.scan.log import LogView

TIMES = ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp")
OFFSET = "logics_physical_offset"
_ZERO_IS_NORMAL = BrokerVersion(5, 5, 0)
_TRACES_OF_5_4 = ("rocksdbstore", "consumequeue_rocksdb")
_START_RULES = (BrokerVersion(5, 3, 3), BrokerVersion(5, 4, 0), BrokerVersion(5, 5, 0))


class CheckpointReport(Struct):
    """What the checkpoint holds. `checkpoint` is None without a file; `in_damage` is true when its offset lies in a
    damaged range, so that nobody can tell whether a record started there."""

    checkpoint: Checkpoint | None
    length: int
    in_damage: bool = False
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True when nothing in it needs to change."""
        return not self.findings

    def json(self) -> dict[str, Any]:
        """The `checkpoint` object of the verify document: every field, and whether there is a file."""
        return {**(self.checkpoint or EMPTY)._asdict(), "present": self.checkpoint is not None}


def check_checkpoint(store: Store, log: LogView, generation: BrokerVersion | None = None) -> CheckpointReport:
    """Judge the checkpoint. `generation`: the release that the store is known to stem from at least, if any."""
    try:
        content = read_small(store.checkpoint_path, FILE_SIZE)
    except FileNotFoundError:
        report = CheckpointReport(None, 0)
        if has_records(log):
            report.findings.append(finding("checkpoint-missing", FILE_NAME, **_rescan(store, log, EMPTY)))
        return report
    except OSError as error:
        return CheckpointReport(None, 0, False, [finding("checkpoint-unreadable", FILE_NAME, error=error.strerror)])
    checkpoint = decode(content, extend=True)
    report = CheckpointReport(checkpoint, len(content))
    if len(content) < FILE_SIZE:
        facts = {"length": len(content), "expected": FILE_SIZE, **_rescan(store, log, checkpoint)}
        report.findings.append(finding("checkpoint-short", FILE_NAME, len(content), **facts))
    if has_records(log):
        report.in_damage = bool(log.in_damage(np.array([checkpoint.logics_physical_offset]))[0])
        report.findings.extend(_judge(store, log, checkpoint, _zero_is_normal(store, generation)))
    return report


def has_records(log: LogView) -> bool:
    """True when the log holds, or held, a record."""
    return bool(log.damaged) or any(scan.record_count for scan in log.files)


def is_record_start(log: LogView, offset: int) -> bool:
    """True when an intact, live record starts at this physical offset."""
    for split in log.splits():
        starts = split.records["phy_offset"]
        if starts.size and int(starts[0]) <= offset <= int(starts[-1]):
            at = int(np.searchsorted(starts, offset))
            return int(starts[at]) == offset and not int(split.records["bits"][at]) & BIT_GHOST
    return False


def _zero_is_normal(store: Store, generation: BrokerVersion | None) -> bool:
    """5.5 leaves zeros after. Most stores of it show no trace that 5.4 does not leave, so one of 5.4 is enough."""
    if store.options.broker is not None:
        return BrokerVersion.parse(store.options.broker) >= _ZERO_IS_NORMAL
    if any((store.root / name).exists() for name in _TRACES_OF_5_4):
        return True
    return generation is not None and generation >= BrokerVersion(5, 4, 0)


def _judge(store: Store, log: LogView, checkpoint: Checkpoint, zero_is_normal: bool) -> Iterator[Finding]:
    if checkpoint == EMPTY:
        if not zero_is_normal:
            yield finding("checkpoint-all-zero", FILE_NAME, 0, **_rescan(store, log, checkpoint))
        return
    for name in TIMES:
        value = getattr(checkpoint, name)
        at = CHECKPOINT.offset(name)
        if value < 0:
            yield finding("checkpoint-impossible-time", FILE_NAME, at, field=name, value=value)
        elif value > log.newest_timestamp > 0:
            yield finding("checkpoint-later-than-log", FILE_NAME, at, field=name, value=value,
                          newest=log.newest_timestamp, ahead_ms=value - log.newest_timestamp,
                          **_rescan(store, log, checkpoint))
    if not offset_is_sound(log, checkpoint.logics_physical_offset):
        yield finding("checkpoint-offset-no-record", FILE_NAME, CHECKPOINT.offset(OFFSET),
                      value=checkpoint.logics_physical_offset, **_rescan(store, log, checkpoint))


def offset_is_sound(log: LogView, offset: int) -> bool:
    """False for an offset (byte 40) where surely no record starts.

    One below the log's start is as harmless as an old time; in a damaged range nobody can tell.
    """
    if offset == 0 or 0 < offset < log.min_offset:
        return True
    if offset < 0 or offset >= log.log_end:
        return False
    return bool(log.in_damage(np.array([offset]))[0]) or is_record_start(log, offset)


def _rescan(store: Store, log: LogView, checkpoint: Checkpoint) -> dict[str, Any]:
    """What an abnormal start of each kind of broker would read, believing this checkpoint (bytes)."""
    # of no use where all is well
    from recover.broker.recovery import start_file
    from recover.broker.settings import BrokerSettings
    from recover.inspect_store.starts import LogFiles

    facts: dict[str, Any] = {"log_bytes": log.log_end - log.min_offset, "log_end": log.log_end, "rescan": []}
    source = LogFiles(store)
    if not source.files:
        return facts
    for version in _START_RULES:
        start = source.files[start_file(source, "abnormal", BrokerSettings(version), checkpoint, -1).index]
        facts["rescan"].append({
            "broker": str(version), "file": start.name, "bytes": max(0, log.log_end - start.file_from_offset),
        })
    return facts
