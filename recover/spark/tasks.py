"""What runs on executors. Nothing here imports pyspark, holds a lock, or writes into a store."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

from msgspec import Struct

from recover.files.remote import serve
from recover.scan.split_scan import SplitRange, scan_split
from recover.spark.packing import Identity, PackedSplit, Unopened, pack

_state = {"frozen": False}


class ScanTask(Struct, frozen=True):
    """One split to scan; `number` says which, for the driver. `url`: where the bytes are if not at the file's path."""

    number: int
    part: SplitRange
    entry: int | None = None
    url: str | None = None


def enter() -> None:
    """Once a worker: what was imported so far is not looked at by the collection that follows each task."""
    if not _state["frozen"]:
        gc.collect()
        gc.freeze()
        _state["frozen"] = True


def scan_splits(tasks: Iterable[ScanTask]) -> Iterator[tuple[int, PackedSplit | Unopened]]:
    """Scan the splits of one task. A file that cannot be opened is an answer: trying again would not help."""
    enter()
    for task in tasks:
        if task.url is not None:
            serve(task.part.mapped_file.path, task.url)
        try:
            identity = Identity.of(task.part) if task.url is None else None
            yield task.number, pack(scan_split(task.part, task.entry), identity)
        except OSError as error:
            yield task.number, Unopened.of(error)
