"""Which bytes of the log are live, stale, damage or tail, in which order, and which of several claims is accepted.

The names below are for programs that import this package, as those of `formats` are (docs/api.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from formats import importing

if TYPE_CHECKING:
    from formats import Record
    from recover.log.scan import Damage, LogView
    from recover.store import Store

__all__ = ["Damage", "LogView", "read_records", "scan_log"]
PUBLIC = {
    "scan_log": "recover.log.scan_log",
    "read_records": "recover.log.read_records",
    "LogView": "recover.log.scan.LogView",
    "Damage": "recover.log.scan.Damage",
}

if not TYPE_CHECKING:
    __getattr__ = importing(__name__, PUBLIC)


def scan_log(store: Store, threads: int = 1) -> LogView:
    """Check every record of a store's commitlog, with `threads` threads, and return what it holds and where it is
    damaged. `OSError` for a file that cannot be opened; bytes that cannot be read are damage."""
    from recover.log.scan import LocalEngine

    return LocalEngine(threads).scan_log(store.commitlog)


def read_records(log: LogView) -> Iterator[Record]:
    """Yield the intact records of a scanned log by physical offset, also those behind damage; not stale or superseded
    ones. `FormatError` if a record is no longer there, `OSError` if it cannot be read."""
    from recover.log.judge import LogReader

    with LogReader(log.queue) as reader:
        for split in log.live():
            for phy_offset, size in zip(split.records["phy_offset"].tolist(), split.records["size"].tolist(),
                                        strict=True):
                yield reader.record(phy_offset, size)
