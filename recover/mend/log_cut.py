"""Cutting the log at an offset: what a truncation zeroes and puts aside."""

from __future__ import annotations

import numpy as np

from formats.record_columns import BIT_GHOST
from recover.errors import UsageRefusal
from recover.mend.log_changes import LogChanges
from recover.plan.model import Retire
from recover.plan.patches import zeroes
from recover.scan.log import LogView
from recover.verify.survey import Survey


def cut_log(look: Survey, offset: int, *, anywhere: bool = False) -> LogChanges:
    """Zero the log from `offset` to its file's end and put later files aside.

    `UsageRefusal` (16) when no record starts or ends there, naming the nearest two boundaries; with
    `anywhere` (a broker's own cut) every offset is taken, and a file that begins there stays, as zeros
    (MappedFileQueue.truncateDirtyFiles): the log goes on in it.
    """
    log = look.log
    if not anywhere:
        _check_boundary(log, offset)
    changes = LogChanges(cut_from=offset, cuts_only=True)
    for scan in log.files:
        mapped_file = scan.mapped_file
        begins = mapped_file.file_from_offset
        stays = begins < offset or begins == log.min_offset or (anywhere and begins == offset)
        if not stays:
            changes.steps.append(Retire(look.store.relative(mapped_file.path)))
            changes.dropped.append(str(mapped_file.path))
        elif scan.file_end > offset:
            name = look.store.relative(mapped_file.path)
            changes.steps += zeroes(name, mapped_file.path, max(0, offset - begins))
    return changes


def _check_boundary(log: LogView, offset: int) -> None:
    """Boundaries are starts and ends of live records, and starts of files."""
    below, above = log.min_offset, log.log_end
    for scan in log.files:
        start = scan.mapped_file.file_from_offset
        if start == offset:
            return
        below = max(below, start) if start < offset else below
        above = min(above, start) if start > offset else above
    for split in log.splits():
        rows = split.records[(split.records["bits"] & BIT_GHOST) == 0]
        edges = np.unique(np.concatenate([rows["phy_offset"], rows["phy_offset"] + rows["size"]]))
        at = int(np.searchsorted(edges, offset))
        if at < edges.size and edges[at] == offset:
            return
        if at > 0:
            below = max(below, int(edges[at - 1]))
        if at < edges.size:
            above = min(above, int(edges[at]))
    raise UsageRefusal(
        f"{offset} is no record boundary; the nearest are {below} and {above}",
        f"Use --to {below} or --to {above}.", below=below, above=above,
    )
