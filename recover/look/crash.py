"""How far a broker had written, committed, flushed and dispatched its log, and what a crash of the machine may cost.

1. `wrote`: the end of the last message that any part shows, the log itself, a queue entry or an index entry.
2. `committed`: what has left the buffers of transientStorePoolEnable for the file; without them all that was written.
3. `flushed`: at least the messages stored before the time in the checkpoint, which only a thorough flush sets
   (MappedFileQueue.flush): mostly more.
4. `dispatched`: the end of the message of the last queue entry.
5. The window: with ASYNC_FLUSH a message is acknowledged before it is flushed. A flush runs every
   flushIntervalCommitLog and leaves fewer than flushCommitLogLeastPages pages of 4 KiB for up to
   flushCommitLogThoroughInterval (CommitLog.FlushRealTimeService); the buffers are written to the file in the same way
   (CommitLog.CommitRealTimeService). What may be missing was stored within these times, and is after all of the
   positions that they imply. With SYNC_FLUSH nothing that was acknowledged is.

A kill of the process alone costs only what was in the buffers. It does not protect from a flush that takes longer than
the interval, a disk that confirms what it has not, a clock that was set back, or messages sent with WAIT=false.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from formats.checkpoint import Checkpoint
from formats.record.rows import BIT_STALE, STAND_IN
from recover.broker.settings import BrokerSettings
from recover.derived.index_files import ends_of, index_headers
from recover.findings.model import builtins_of
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.config_files import topic_text
from recover.store.store import Store, queue_ends

PAGE = 4096
"""MappedFile.OS_PAGE_SIZE, whatever the system's."""
BASIS = ("flushDiskType", "flushIntervalCommitLog", "flushCommitLogLeastPages", "flushCommitLogThoroughInterval",
         "transientStorePoolEnable", "commitIntervalCommitLog", "commitCommitLogLeastPages",
         "commitCommitLogThoroughInterval")


class Pointer(Struct):
    """An offset in the log (None: before what was read), and what was written after it: bytes and messages (None: not
    all of it was read)."""

    offset: int | None
    behind_bytes: int | None = None
    behind_messages: int | None = None


class Window(Struct):
    """What the disk did not have to have when the machine stopped: the log from `start` on.

    `seconds`: how long before the newest message it can have been stored. `bytes`, `messages`, `topics`: what is there
    of it (not `whole`: at least, as the window begins before what was read); `damaged_bytes`: what is not;
    `named_beyond`: bytes after the end of the log that queues or index name. `process_seconds`: the same for a kill of
    the process alone. `basis`: the settings.
    """

    start: int
    seconds: float
    bytes: int
    messages: int
    topics: dict[str, int]
    damaged_bytes: int
    named_beyond: int
    process_seconds: float
    basis: list[str]
    whole: bool = True


class Progress(Struct):
    """The four pointers, by name, and the window; None after a clean stop, which flushes everything."""

    pointers: dict[str, Pointer]
    window: Window | None

    def json(self) -> dict[str, Any]:
        return {"pointers": builtins_of(self.pointers), "crash_window": builtins_of(self.window)}


def progress_in(store: Store, view: LogView, settings: BrokerSettings) -> Progress:
    """Return the progress of a store whose log is `view`. Queues and index that cannot be read count for nothing."""
    unread: list[OSError] = []
    reached = max((to for _, _, to in queue_ends(store, unread) if to is not None), default=None)
    indexed = max((at for at, _ in ends_of(list(index_headers(store, unread)))), default=None)
    return progress_of(view, settings, store.checkpoint(extend=True), reached, indexed, crashed=store.has_abort)


def progress_of(
    view: LogView, settings: BrokerSettings, checkpoint: Checkpoint | None, dispatched_to: int | None,
    indexed_to: int | None, *, crashed: bool, begin: int | None = None,
) -> Progress:
    """Return how far each kind of writing had got. `view`: the log, or its last file with a record, if the log has a
    `begin` before it. `dispatched_to`: the end of the last message that a queue entry names; `indexed_to`: the start of
    the last one in the index."""
    end = view.log_end
    wrote = max(end, dispatched_to or 0, indexed_to or 0)
    flushed = None if checkpoint is None else _stored_before(view, checkpoint.physic_msg_timestamp)
    at = {"wrote": wrote, "committed": end if settings.flag("transientStorePoolEnable") else wrote,
          "flushed": flushed if crashed else end, "dispatched": dispatched_to}
    pointers = {name: _pointer(view, offset, wrote) for name, offset in at.items()}
    if not crashed:
        return Progress(pointers, None)
    window = _window(view, settings, flushed or 0, wrote)
    window.whole = window.start > view.min_offset or begin is None or begin >= view.min_offset
    return Progress(pointers, window)


def _pointer(view: LogView, offset: int | None, wrote: int) -> Pointer:
    if offset is None:
        return Pointer(None)
    counted = sum(int((rows["phy_offset"] >= offset).sum()) for rows in _back_to(view, offset))
    return Pointer(offset, wrote - offset, counted if offset >= view.min_offset else None)


def _window(view: LogView, settings: BrokerSettings, flushed: int, wrote: int) -> Window:
    end, pool = view.log_end, settings.flag("transientStorePoolEnable")
    often, thorough = settings.number("flushIntervalCommitLog"), settings.number("flushCommitLogThoroughInterval")
    pages, waits = settings.number("flushCommitLogLeastPages"), 0
    if pool:
        often += settings.number("commitIntervalCommitLog")
        waits = settings.number("commitIntervalCommitLog") + settings.number("commitCommitLogThoroughInterval")
        thorough, pages = thorough + waits, pages + settings.number("commitCommitLogLeastPages")
    start = end
    if settings.text("flushDiskType").upper() == "SYNC_FLUSH":
        often = thorough = 0
    else:
        newest = view.tally.last_timestamp
        late = _first_since(view, newest - often)
        start = min(end, max(flushed, _first_since(view, newest - often - thorough), late - pages * PAGE))
    topics: Counter[str] = Counter()
    size = 0
    for rows in _back_to(view, start):
        rows = rows[rows["phy_offset"] + rows["size"] > start]
        # a record that reaches past the place is not whole without it
        start = min([start, *rows["phy_offset"][:1].tolist()])
        size += int(rows["size"].sum())
        numbers, counts = np.unique(rows["queue"], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            topics[topic_text(view.queues[number][0])] += count
    damaged = sum(max(0, item.stop - max(item.start, start)) for item in view.damaged)
    basis = [f"{name}={settings.text(name)}" for name in BASIS if pool or not name.startswith("commit")]
    return Window(start, (often + thorough) / 1000, size, topics.total(), dict(sorted(topics.items())), damaged,
                  wrote - end, waits / 1000, basis)


def _back_to(view: LogView, offset: int) -> Iterator[Rows]:
    """The messages of each split that reaches past `offset`, the last one first."""
    for split in reversed([*view.live()]):
        rows = np.asarray(split.records)
        yield rows[(rows["bits"] & (BIT_STALE | STAND_IN)) == 0]
        if rows.size and rows["phy_offset"][0] <= offset:
            return


def _stored_before(view: LogView, time: int) -> int | None:
    """The end of the last message that was stored before `time` (ms); None if there is none."""
    for rows in _back_to(view, view.min_offset):
        before = np.flatnonzero(rows["store_timestamp"] < time)
        if before.size:
            last = rows[before[-1]]
            return int(last["phy_offset"]) + int(last["size"])
    return None


def _first_since(view: LogView, time: int) -> int:
    """The offset of the first message that was stored at `time` (ms) or later; the end of the log if there is none."""
    found = view.log_end
    for rows in _back_to(view, view.min_offset):
        since = np.flatnonzero(rows["store_timestamp"] >= time)
        if since.size:
            found = int(rows["phy_offset"][since[0]])
        if rows.size and since.size < rows.size:
            break
    return found
