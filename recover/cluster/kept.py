"""What executors keep of a scan: rows come from there when somebody asks for them, and files are made there.

Each kept split is the element of a persisted RDD; an executor that is lost takes its part along, and that is scanned
again. The log that files are made for need not be the one that was scanned: damage in it may be mended by then. So
each split of such a log is traced to rows of a kept one, and what cannot be traced is sent along.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct, field

from formats.record.rows import NOT_IN_QUEUE, RECORD
from recover.cluster.jobs import enter, watch
from recover.cluster.packing import Element, KeptPiece, Unopened, unpack_split, unpacked_home
from recover.cluster.session import Session
from recover.cluster.views import Seen
from recover.findings.refusal import Refusal
from recover.log.scan import LogView
from recover.store.columns import ColumnStore, Result, Split

_MOST_AT_ONCE = 64
_TRACED = tuple(name for name in RECORD.names or () if name not in ("queue", "bits"))


class Sources(Struct):
    """Where the rows of a log are: pieces of kept splits by their task, and splits that have to be sent."""

    pieces: dict[int, list[KeptPiece]] = field(default_factory=dict)
    sent: list[tuple[int, Split]] = field(default_factory=list)


def answered(
    looks: dict[int, list[tuple[int, Callable[[Split], Any]]]], digests: dict[int, int], elements: Iterable[Element]
) -> Iterator[tuple[int, Any]]:
    """On an executor: what these functions find in the splits of some tasks, which read what has these digests."""
    enter()
    for task, home, rows in elements:
        packed = unpacked_home(home)
        if isinstance(packed, Unopened):
            raise RuntimeError("a file of the log went away")
        if packed.seen.digest != digests[task]:
            raise RuntimeError(f"host {packed.seen.host} reads other files of the log than the first scan did")
        split = Split(*unpack_split(rows))
        for number, look in looks[task]:
            yield number, look(split)


class Kept:
    """The persisted RDDs of one scan, and which split of the log came from which task.

    Rows come from there when a split is asked for them: of that split, and of ever more that follow, for whoever asks
    for one after the other. `columns` takes them.
    """

    def __init__(self, session: Session, columns: ColumnStore) -> None:
        self.session = session
        self.columns = columns
        self.rdds: list[Any] = []
        self.seen: dict[int, Seen] = {}
        """What each task read: one that runs again for an executor that was lost has to read the same."""
        self._starts: list[int] = []
        self._count = 0
        self._splits: dict[int, Split] = {}
        self._tasks: dict[int, int] = {}
        self._in_order: list[tuple[Split, int]] = []
        self._at_once = 1
        self._lock = threading.Lock()

    def tasks(self, count: int) -> int:
        """The first number of so many tasks, which are those of the next RDD."""
        self._starts.append(self._count)
        self._count += count
        return self._count - count

    def note(self, split: Split, task: int, seen: Seen) -> None:
        """This split came from that task."""
        self._splits[task], self._tasks[id(split)], self.seen[task] = split, task, seen

    def settle(self, log: LogView) -> None:
        """The log that was put together from the noted splits."""
        tasks = self._tasks
        self._in_order = [(split, tasks[id(split)]) for split in _with_rows(log) if id(split) in tasks]
        self._in_order.sort(key=lambda item: item[0].first)

    def bring(self, split: Split) -> None:
        """Have the rows of a split come, and those of some after it. `Refusal` (8) where the files changed since."""
        with self._lock:
            if split.summary is not None:
                self._bring(self._tasks[id(split)])

    def ask(self, questions: Sequence[tuple[Split, Callable[[Split], Result]]]) -> list[Result]:
        """See `Holder`: a task a split."""
        looks: dict[int, list[tuple[int, Callable[[Split], Result]]]] = {}
        for number, (split, look) in enumerate(questions):
            looks.setdefault(self._tasks[id(split)], []).append((number, look))
        found: dict[int, Result] = {}
        for rdd, start in enumerate(self._starts):
            stop = self._starts[rdd + 1] if rdd + 1 < len(self._starts) else self._count
            own = {task: it for task, it in looks.items() if start <= task < stop}
            answering = partial(answered, own, {task: self.seen[task].digest for task in own})

            def run(rdd: int = rdd, start: int = start, own: Any = own, answering: Any = answering) -> list[Any]:
                return list(self.session.context.runJob(self.rdds[rdd], answering, [task - start for task in own]))

            found |= dict(watch(self.session, run, "questions to rows")) if own else {}
        return [found[number] for number in range(len(questions))]

    def _bring(self, own: int) -> None:
        rdd = bisect_right(self._starts, own) - 1
        start = self._starts[rdd]
        stop = self._starts[rdd + 1] if rdd + 1 < len(self._starts) else self._count
        tasks = [task for task in range(own, stop) if task in self._splits and self._splits[task].summary is not None]
        tasks = tasks[: self._at_once]
        self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)

        def run() -> list[Element]:
            return list(self.session.context.runJob(self.rdds[rdd], iter, [task - start for task in tasks]))

        for task, home, rows in watch(self.session, run, "rows"):
            answer = unpacked_home(home)
            if isinstance(answer, Unopened) or answer.seen.digest != self.seen[task].digest:
                host = answer.host if isinstance(answer, Unopened) else answer.seen.host
                raise Refusal(f"host {host} reads other files of the log than the first scan did",
                              "Run the command again.")
            kept = self.columns.keep(*unpack_split(rows))
            self._splits[task].take(kept.records, kept.hashes)

    def forget(self) -> None:
        """Let executors drop what they keep; what is asked for yet is scanned again."""
        for rdd in self.rdds:
            with suppress(Exception):  # a Spark that is gone keeps nothing
                rdd.unpersist()

    def sources(self, log: LogView) -> Sources:
        """Where the rows of a log are; splits are numbered in its order, those without rows left out."""
        found = Sources()
        firsts = np.array([split.first for split, _ in self._in_order], dtype=np.int64)
        for number, split in enumerate(_with_rows(log)):
            at = int(np.searchsorted(firsts, split.first, side="right")) - 1
            piece = _traced(number, split, self._in_order[at][0]) if at >= 0 else None
            if piece is None:
                found.sent.append((number, split))
            else:
                found.pieces.setdefault(self._in_order[at][1], []).append(piece)
        return found


def _with_rows(log: LogView) -> Iterator[Split]:
    return (split for split in log.splits() if split.size)


def _traced(number: int, split: Split, kept: Split) -> KeptPiece | None:
    """The split as a piece of a kept one; None when it is not."""
    if split is kept and split.summary is not None:
        return KeptPiece(number, 0, split.size, np.empty(0, dtype=np.int32), np.empty(0, dtype=np.uint16))
    records, others = split.records, kept.records
    start = int(np.searchsorted(others["phy_offset"], int(records["phy_offset"][0])))
    stop = start + records.size
    if split is not kept:
        part = others[start:stop]
        if part.size != records.size or any((records[name] != part[name]).any() for name in _TRACED):
            return None
        if ((records["bits"] ^ part["bits"]) & ~np.uint16(NOT_IN_QUEUE)).any():
            return None
        first = int(kept.records["hashes"][:start].astype(np.int64).sum())
        if not np.array_equal(split.hashes, kept.hashes[first : first + split.hashes.size]):
            return None
    changed = np.flatnonzero((records["bits"] & NOT_IN_QUEUE) != 0).astype(np.int32)
    return KeptPiece(number, start, stop, changed, records["bits"][changed])
