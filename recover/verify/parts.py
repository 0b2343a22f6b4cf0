"""What stands around log, queues and index: abort, lock, a log that is gone, settings that would cut it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from formats import abort
from formats.errors import FormatError
from formats.record_columns import BIT_PROP_CRC
from recover.disk.lock import UNKNOWN_HOLDER, holder_text, probe
from recover.files.journal_dir import has_journal
from recover.files.mapped_files import MappedFileQueue
from recover.files.reader import read_small
from recover.files.store import ABORT, COMMITLOG, LOCK, Store
from recover.files.unread import held_elsewhere, mapped_data, rocksdb_queue_folders
from recover.findings import Finding, finding
from recover.index.files import list_index_files
from recover.scan.log import LogView
from recover.verify.needed_parts import needed_parts
from recover.verify.other_parts import check_other_parts
from recover.verify.owners import check_owners

if TYPE_CHECKING:
    from recover.verify.survey import Survey

NO_LOG = "commitlog-empty-queues-left"
ALL_PARTS = frozenset({"commitlog", "consumequeue", "index", "checkpoint", "config"})
_VERIFY_PROPERTY_CRC = "forceVerifyPropCRC"


def check_parts(
    store: Store, look: Survey, wanted: Collection[str] = ALL_PARTS, *, holder: Callable[[Path], int | None] = probe,
) -> list[Finding]:
    """Findings that belong to no single file format. With less than all parts `wanted`, only those that bear on them.

    `holder` says who holds the store's lock: pass `lambda root: None` while we hold it ourselves.
    """
    whole = set(wanted) >= ALL_PARTS
    findings = list(lock_findings(store, holder(store.root), with_abort=whole))
    findings.extend(log_is_gone(store))
    findings.extend(settings_findings(look.log, look.options.settings))
    if look.options.settings:
        from recover.verify.by_setting import contradicted_settings

        findings.extend(contradicted_settings(store, look.options.settings))
    settings = look.options.settings
    findings.extend(check_other_parts(store, look.elsewhere, settings, None if whole else frozenset(wanted)))
    if whole:
        findings.extend(item.finding() for item in needed_parts(store, settings, look.topics, look.log))
    if whole:
        findings.extend(earlier_runs(store))
        findings.extend(check_owners(store))
    if whole and store.commitlog.files and COMMITLOG not in look.elsewhere and has_timer(store):
        from recover.verify.timer import check_timer

        findings.extend(check_timer(store, look.log))
    return findings


def earlier_runs(store: Store) -> list[Finding]:
    """What is to be said of the runs in the store's journal, if it has one."""
    if not has_journal(store.root):
        return []
    from recover.plan.journal import run_findings

    return run_findings(store.root, store.options.folders)


def has_timer(store: Store) -> bool:
    """Whether anything of a timer is there; its state alone is enough."""
    return any(store.root.glob("timer*")) or (store.config_dir / "timercheck").exists()


def lock_findings(store: Store, pid: int | None, *, with_abort: bool = True) -> Iterator[Finding]:
    """abort and lock. `pid` as `recover.disk.lock.probe` gives it; a lock file that nobody holds is normal."""
    if pid is not None:
        yield finding("broker-running", LOCK, None, who=holder_text(store.root, pid),
                      pid=None if pid == UNKNOWN_HOLDER else pid)
    if not (with_abort and store.has_abort):
        return
    try:
        wrote = abort.decode(read_small(store.abort_path, 64))
    except (OSError, FormatError):
        wrote = None
    of = f" (process {wrote})" if wrote is not None else ""
    if pid is not None:
        yield finding("abort-present", ABORT, None, severity="info", pid=wrote,
                      detail=f"the broker{of} is running, so it belongs there")
    else:
        yield finding("abort-present", ABORT, None, pid=wrote, detail=f"the broker{of} did not stop cleanly")


def log_is_gone(store: Store) -> Iterator[Finding]:
    """Queue or index files without any log: the one state in which a start does the worst."""
    if any(mapped_file.length for mapped_file in store.commitlog.files) or COMMITLOG in held_elsewhere(store):
        return
    queue_files = sum(
        1 for folder in store.queue_folders for mapped_file in MappedFileQueue.load((folder.path,), 0).files
        if mapped_file.length
    )
    queue_files += sum(file.suffix == ".sst" for folder in rocksdb_queue_folders(store) for file in folder.iterdir())
    queue_files += store.batchconsumequeue_dir.is_dir() and bool(mapped_data(store.batchconsumequeue_dir))
    index_files = sum(1 for file in list_index_files(store.index_dir).files if file.length)
    if queue_files or index_files:
        yield finding(NO_LOG, COMMITLOG, None, queue_files=queue_files, index_files=index_files)


def settings_findings(log: LogView, settings: Mapping[str, str]) -> Iterator[Finding]:
    """forceVerifyPropCRC over records that carry no such checksum (CommitLog.checkMessageAndReturnSize)."""
    if settings.get(_VERIFY_PROPERTY_CRC, "").strip().lower() != "true":
        return
    first: int | None = None
    count = 0
    for split in log.live():
        without = np.flatnonzero((split.records["bits"] & BIT_PROP_CRC) == 0)
        if without.size:
            count += int(without.size)
            first = int(split.records["phy_offset"][without[0]]) if first is None else first
    if first is not None:
        yield finding("settings-would-truncate", COMMITLOG, first, setting=f"{_VERIFY_PROPERTY_CRC}=true", value=first,
                      count=count)
