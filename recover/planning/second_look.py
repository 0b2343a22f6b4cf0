"""Every range of the log that a plan overwrites, read and judged once more by the process that will write it.

A cluster's workers may see other files under the same names: another host's store, a stale mount, a replica. What they
called damage is damage only if it is so in the files that are changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from formats.commitlog import BLANK_SIZE, decode_blank
from formats.errors import FormatError
from recover.errors import Refusal
from recover.files.reader import FileReader
from recover.files.store import Store
from recover.memory.columns import Rows
from recover.plan.model import InPlace, Step
from recover.scan.engine import Engine, LocalEngine
from recover.scan.file_scan import FileScan, Hole
from recover.scan.log import DENIED, LogView
from recover.scan.split_scan import SplitRange, past_mark, scan_split, take_past_mark

_FIELDS = ["phy_offset", "size", "queue_offset", "store_timestamp", "sys_flag"]
REMEDY = (
    "The worker reads other files than this machine does. Mount the same store on every worker, or use --engine local."
)


def look_again(store: Store, log: LogView, steps: Iterable[Step], engine: Engine) -> None:
    """`Refusal` (8) where our own view of a range to be overwritten is not what a scan elsewhere returned.

    A scan of this process has read with our own view already.
    """
    if isinstance(engine, LocalEngine):
        return
    scans = {str(store.path(store.relative(scan.mapped_file.path))): scan for scan in log.files}
    for step in steps:
        scan = scans.get(str(store.path(step.file)))
        if scan is None:
            continue
        length = min(scan.mapped_file.length, scan.file_size)
        start, stop = (step.start, min(step.stop, length)) if isinstance(step, InPlace) else (0, length)
        if start < stop and not _agrees(scan, start, stop):
            raise disagreement(store.relative(scan.mapped_file.path), scan.mapped_file.path, start, stop, engine)


def disagreement(name: str, path: Path, start: int, stop: int, engine: Engine) -> Refusal:
    """The refusal of a range [start, stop) of a file that a worker saw otherwise; its host if that is known."""
    host = getattr(engine, "hosts", {}).get(str(path.absolute()))
    return Refusal(
        f"{host or 'a worker'} reads something else in {name} from {start} to {stop} than this machine does",
        REMEDY, file=name, start=start, stop=stop, host=host,
    )


def _agrees(scan: FileScan, start: int, stop: int) -> bool:
    base = scan.mapped_file.file_from_offset
    if scan.blank is not None and base + start > scan.blank:
        # nobody looks after an end mark, and it is still one
        return _is_end_mark(scan, scan.blank - base)
    rows, holes = _rows(scan, base + start, base + stop), _holes(scan.holes, base + start, base + stop)
    begins = bool(rows.size and rows["phy_offset"][0] == base + start) or any(at == base + start for at, _ in holes)
    part = SplitRange(scan.mapped_file, scan.file_size, start, stop)
    seen = scan_split(part, start if begins else None, with_keys=False)
    past = None if scan.doubted is None else past_mark(seen.scan)
    if past is not None:
        take_past_mark(seen.scan, scan_split(past, with_keys=False))
    own = [*seen.scan.holes, *([] if seen.open_hole is None else [seen.open_hole])]
    return bool(np.array_equal(rows, _rows(seen.scan, base + start, base + stop))) and (
        not begins or holes == _holes(own, base + start, base + stop)
    )


def _is_end_mark(scan: FileScan, position: int) -> bool:
    with FileReader(scan.mapped_file.path) as reader:
        try:
            return decode_blank(reader.read(position, BLANK_SIZE)).size == scan.blank_size
        except FormatError:
            return False


def _rows(scan: FileScan, start: int, stop: int) -> Rows:
    parts = list(_found(scan, start, stop))
    rows = np.concatenate(parts) if parts else np.empty(0, dtype=[("phy_offset", np.int64)])
    return rows[np.argsort(rows["phy_offset"], kind="stable")]


def _found(scan: FileScan, start: int, stop: int) -> Iterator[Rows]:
    for split in (*scan.splits, *scan.set_aside):
        records = split.records
        chosen = records[(records["phy_offset"] >= start) & (records["phy_offset"] < stop)]
        if chosen.size:
            yield chosen[_FIELDS].copy()


def _holes(holes: Iterable[Hole], start: int, stop: int) -> list[tuple[int, str]]:
    return [(hole.start, hole.reason) for hole in holes if start <= hole.start < stop and hole.reason not in DENIED]
