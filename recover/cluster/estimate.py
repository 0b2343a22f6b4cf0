"""What a command would take on Spark, said before it runs, and what it took: bytes, tasks, seconds of a core, cost.

The estimate adds up measured rates (docs/spark.md, "What 10 TB and 1 PB would cost"), for a core that storage does not
keep waiting: the log at `_SCAN` bytes a second, queues and index by their allocated bytes, `_TASK` for each task. What
builds files takes `_BUILD` a message more. Messages are counted by the units of queues, 20 bytes each; without queues
one is taken to have 700 bytes of log.

It does not know damage, which costs the rows of its splits, nor what the storage delivers.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from formats.consumequeue import CQ_UNIT
from recover.log.split_scan import SPLIT_SIZE, splits_of
from recover.store.source import files_below, url_of
from recover.store.store import Store

_SCAN = 1 << 30
_QUEUES, _INDEX = 140e-9 / 20, 70e-9 / 20
_TASK, _BUILD = 0.03, 1.5e-6
_MESSAGE = 700
_TASK_BYTES, _TASK_FILES = 256 << 20, 512
BUILDS = ("recover", "truncate", "rebuild", "rebuild-consumequeue", "rebuild-index", "drill")
"""Commands that build queues and index files."""


class Estimate(Struct, frozen=True):
    """Bytes to read, tasks, seconds of a core, and their cost at a price an hour of a core; None without a price."""

    bytes: int
    tasks: int
    core_seconds: float
    cost: float | None = None


def estimate(store: Store, command: str, *, split_size: int | None = None, price: float | None = None) -> Estimate:
    """Return what `command` would take for a store on Spark, from the lengths of its files; nothing is read."""
    queue = store.commitlog
    splits = sum(len(splits_of(file, queue.file_size, split_size or SPLIT_SIZE)) for file in queue.files)
    log = sum(file.length for file in queue.files)
    queues, index = (_allocated(folder) for folder in (store.consumequeue_dir, store.index_dir))
    tasks = splits + sum(max(size // _TASK_BYTES, files // _TASK_FILES) + 1 for size, files in (queues, index) if files)
    seconds = log / _SCAN + queues[0] * _QUEUES + index[0] * _INDEX
    if command in BUILDS:
        messages = queues[0] // CQ_UNIT.size or log // _MESSAGE
        seconds, tasks = seconds + messages * _BUILD, 2 * tasks
    seconds = round(seconds + tasks * _TASK, 1)
    return Estimate(log + queues[0] + index[0], tasks, seconds, cost_of(seconds, price))


def cost_of(core_seconds: float | None, price: float | None) -> float | None:
    """Return what seconds of a core cost at a price an hour of one; None if either is unknown."""
    return None if core_seconds is None or price is None else round(core_seconds / 3600 * price, 4)


def _allocated(folder: Path) -> tuple[int, int]:
    """Return allocated bytes (on a server: the length) and number of the files below a folder."""
    url = url_of(folder)

    def size_of(status: os.stat_result) -> int:
        return status.st_size if url is not None else min(status.st_size, status.st_blocks * 512)

    sizes = [size_of(status) for _, status in files_below(folder)]
    return sum(sizes), len(sizes)
