"""Splits on executors: the result that a scan returns, the rows that stay there, and how these are fetched on demand.

For a sound store only summaries reach the driver. Rows come from the executors' disks, or by scanning again: if an
executor was lost, or if Spark cannot persist for us. Files may be built for another log than the one that was scanned,
since damage in it may be repaired by then: splits whose rows the driver has, as near damage, are sent to executors.
"""

from __future__ import annotations

import pickle
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct, msgpack

from formats.native.index import wanted_of
from formats.native.rows import TOTALS, new_tally, tally_rows
from formats.record.rows import RECORD
from recover.cluster.jobs import Job, TaskReads, Views, enter, run_job, watch
from recover.derived.index_keys import RULES
from recover.log.file_scan import SplitRange, SplitScan, scan_split
from recover.log.scan import LogView
from recover.log.split_scan import one_split
from recover.store.columns import ColumnStore, Item, Result, Rows, Split, Summary, Wanted
from recover.store.reading import FileReads, crc32c, recorded

# --- Code that runs on executors.


class ScanTask(Struct, frozen=True):
    """One split to scan; `number` identifies it to the driver. `seed` is that of unit sums, `foresight` a question to
    its rows."""

    number: int
    part: SplitRange
    entry: int | None = None
    with_keys: bool = True
    attempts: int = 1
    is_local: bool = False
    seed: int = 0
    foresight: Callable[[Split], Any] | None = None


class Unopened(Struct, frozen=True):
    """A file that a task could not open: errno, its text, and on which host."""

    number: int
    text: str
    host: str


class Home(Struct, frozen=True):
    """What a task returns to the driver: the scan without its rows, their summary and `digest`, and what was read for
    it (no file if executors have the driver's mounts)."""

    scan: SplitScan
    summary: Summary | None
    digest: int
    reads: TaskReads


class PackedLater:
    """Rows of a split that become bytes (`unpack_split`) when they leave the process."""

    def __init__(self, split: Split) -> None:
        self._split = split

    def __bytes__(self) -> bytes:
        return pickle.dumps((pack_rows(self._split.records), self._split.hashes.tobytes()))

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)


Element = tuple[int, bytes, bytes | PackedLater]
"""Result of a task: its number, a packed `Home` or `Unopened`, and the rows. Persisted elements are fully packed, so
that passing them on needs none of our code."""


def scan_splits(tasks: Iterable[ScanTask]) -> Iterator[Element]:
    """Scan the splits of one task. A read error is returned only on the last attempt, as another host may succeed."""
    enter()
    for task in tasks:
        try:
            with recorded_unless(task.is_local) as files:
                scan = scan_split(task.part, task.entry, with_keys=task.with_keys)
            if scan.scan.unreadable and has_retry_left(task.attempts):
                raise scan.scan.unreadable[0]
            split, scan.scan.splits = one_split(scan.scan.splits), []
            summary = summary_of(split, len(scan.scan.queues), task.seed, task.foresight)
            home = Home(scan, summary, digest_of(split, scan.scan.queues), TaskReads(files))
            yield task.number, packed(home), PackedLater(split)
        except OSError as error:
            if has_retry_left(task.attempts):
                raise
            unopened = Unopened(error.errno or 0, error.strerror or str(error), socket.gethostname())
            yield task.number, packed(unopened), b""


def has_retry_left(attempts: int) -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() + 1 < attempts


def recorded_unless(is_local: bool) -> AbstractContextManager[dict[str, FileReads]]:
    """Return `recorded` for a task; nothing is recorded if executors have the driver's mounts: nobody compares it."""
    return nullcontext({}) if is_local else recorded()


def summary_of(
    split: Split, queues: int, seed: int, foresight: Callable[[Split], Any] | None = None
) -> Summary | None:
    """Return the summary of a split whose scan numbered so many queues, with the answer to a question; None without a
    row."""
    if not split.size:
        return None
    tally, totals = new_tally(queues), np.zeros(TOTALS, dtype=np.int64)
    tally_rows(np.asarray(split.records), seed, tally, totals)
    times, held = split.records["store_timestamp"], int(split.records["size"].sum(dtype=np.int64))
    keys, every = (wanted_by(split.records, take) for take in RULES.values())
    return Summary(split.size, split.first, split.last, split.end, held, split.hash_count, (keys, every),
                   int(times[0]), int(times.min()), tuple(times[-3:].tolist()), tally, totals,
                   None if foresight is None else foresight(split))


def wanted_by(records: Rows, take: Rows) -> Wanted:
    """Return the index units that rows make under one of `RULES`."""
    wanted = wanted_of(records, take)
    rows = np.flatnonzero(wanted)
    edges = records["phy_offset"][rows[[0, -1]]].tolist() if rows.size else (0, 0)
    return Wanted(int(wanted.sum()), rows.size, *edges)


def digest_of(split: Split, queues: Sequence[tuple[bytes, int]]) -> int:
    """Return the CRC-32C of a split's rows and hashes, and of the queues that the rows number."""
    digest = crc32c(repr(queues).encode())
    for rows in (split.records, split.hashes):
        digest = crc32c(rows.view(np.uint8).data, digest)
    return digest


def without_rows(elements: Iterable[Element]) -> Iterator[tuple[int, bytes]]:
    """Yield number and driver result of each element."""
    for number, home, _ in elements:
        yield number, home


def checked(digests: dict[int, int], elements: Iterable[Element]) -> Iterator[tuple[int, Home, bytes]]:
    """Yield the elements of the tasks in `digests`: those of the rows that each scanned first. `RuntimeError` if a task
    that ran again found others: another host may find the same."""
    enter()
    for number, content, rows in elements:
        if number not in digests:
            continue
        home = unpacked(content)
        if isinstance(home, Unopened):
            raise RuntimeError("a file of the log went away")
        if home.digest != digests[number]:
            raise RuntimeError(f"host {home.reads.host} reads other files of the log than the first scan did")
        yield number, home, bytes(rows)


Questions = dict[int, list[tuple[int, Callable[[Split], Any]]]]
"""By task: functions of its split's rows, each with the number of its answer."""


def answered(
    questions_of: Questions, digests: dict[int, int], elements: Iterable[Element]
) -> Iterator[tuple[int, Any]]:
    """Yield the results of these functions for the splits of some tasks."""
    for task, _, rows in checked(digests, elements):
        split = Split(*unpack_split(rows))
        for number, question in questions_of[task]:
            found = question(split)
            is_rows = isinstance(found, np.ndarray) and found.dtype.names is not None
            yield number, Packed(pack_rows(found), found.dtype) if is_rows else found


def run_items(
    function: Callable[[Any], Any], attempts: int, is_local: bool, tasks: Iterable[tuple[int, Sequence[Any]]]
) -> Iterator[tuple[int, list[Any], TaskReads]]:
    """Yield the results of a function for the items of some tasks, and what was read for them (no file if executors
    have the driver's mounts). On the last attempt an unreadable item gives None: the driver reads it then."""
    enter()

    def found(item: Any) -> Any:
        try:
            return function(item)
        except OSError:
            if has_retry_left(attempts):
                raise
            return None

    for number, items in tasks:
        with recorded_unless(is_local) as files:
            answers = [found(item) for item in items]
        yield number, answers, TaskReads(files)


# --- Serialization.


class Packed(NamedTuple):
    """Rows in an answer."""

    content: bytes
    dtype: np.dtype[Any]


def packed(home: Home | Unopened) -> bytes:
    """Return a task's result for the driver as bytes."""
    return zlib.compress(pickle.dumps(home), 1)


def unpacked(content: bytes) -> Home | Unopened:
    """Return the result from `packed`."""
    home: Home | Unopened = pickle.loads(zlib.decompress(content))
    return home


def unpack_split(content: bytes) -> tuple[Rows, Rows]:
    """Return the rows of a split and their hashes, with queues as its scan numbered them."""
    columns, hashes = pickle.loads(content)
    return unpack_rows(columns, RECORD), np.frombuffer(hashes, dtype="<i4")


_SMALL = 4096


def pack_rows(rows: Rows) -> bytes:
    """Pack integer rows column by column: the first value, and the differences from row to row as narrow as they fit.

    Compressed, except for a few rows: Spark compresses what it shuffles, many chunks together.
    """
    columns: list[Any] = [rows.size]
    for name in rows.dtype.names or ():
        steps = _narrow(np.diff(rows[name].astype(np.int64)))
        columns += [rows[name][:1].tolist(), steps.itemsize, steps.tobytes()]
    plain = msgpack.encode(columns)
    return msgpack.encode(plain if len(plain) < _SMALL else [len(plain), pa.compress(plain, "lz4", asbytes=True)])


def unpack_rows(content: bytes, dtype: np.dtype[Any], names: Sequence[str] = ()) -> Rows:
    """Return the rows from `pack_rows`, which had these fields of `dtype` (default: all); other fields are 0."""
    found = msgpack.decode(content)
    size, *columns = msgpack.decode(found if isinstance(found, bytes) else pa.decompress(found[1], found[0], "lz4"))
    rows = np.zeros(size, dtype=dtype)
    for name, first, width, steps in zip(names or dtype.names or (), *(columns[at::3] for at in range(3)), strict=True):
        rows[name] = np.cumsum(np.concatenate([first, np.frombuffer(steps, dtype=f"<i{width}")]), dtype=np.int64)
    return rows


def _narrow(values: Rows) -> Rows:
    """Return the values as the smallest signed integers that hold all of them."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    kinds = (np.int8, np.int16, np.int32)
    return values.astype(next((kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max),
                              np.int64))


# --- Code that runs on the driver.


_MOST_AT_ONCE = 32
_MOST_ASKED = 2048
_TASK_BYTES = 256 << 20
_TASK_ITEMS = 512


def tasks_of(items: Sequence[Item], sizes: Sequence[int]) -> list[tuple[int, list[Item]]]:
    """Group items into numbered tasks of up to 256 MiB and 512 items each."""
    tasks, total = list[tuple[int, list[Item]]](), 0
    for item, size in zip(items, sizes, strict=True):
        if not tasks or total + size > _TASK_BYTES or len(tasks[-1][1]) == _TASK_ITEMS:
            tasks.append((len(tasks), []))
            total = 0
        tasks[-1][1].append(item)
        total += size
    return tasks


class RowsElsewhere:
    """See `Holder`: holds the rows of the splits that a job scanned.

    A request for a split's rows fetches growing numbers of following splits as well, for sequential readers; `columns`
    keeps them. A task that runs again must find the same rows as before.
    """

    def __init__(self, job: Job, columns: ColumnStore, views: Views) -> None:
        self.job, self.columns, self.views = job, columns, views
        self.digests: dict[int, int] = {}
        self._here: dict[int, Split] = {}
        self._came: set[int] = set()
        self._at_once = 1
        self._lock = threading.Lock()

    def split(self, task: int, summary: Summary, digest: int) -> Split:
        """Create a split whose rows that task has."""
        self.digests[task] = digest
        return Split.elsewhere(summary, self, task)

    def fetch_rows(self, split: Split) -> None:
        """Fetch the rows of a split, and those of some after it. `Refusal` (8) if the files changed since."""
        with self._lock:
            if split.is_here:
                return
            if split.place not in self._here:
                more = (task for task in range(split.place + 1, len(self.job.items))
                        if task in self.digests and task not in self._came)
                wanted = [split.place, *islice(more, self._at_once - 1)]
                self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)
                for task, rows in self._answers({task: [(task, PackedLater)] for task in wanted}, "rows"):
                    self._here[task] = self.columns.keep(*unpack_split(rows))
                self._came.update(wanted)
            came = self._here.pop(split.place)
            split.take(came.records, came.hashes)

    def ask(self, questions: Sequence[tuple[Split, Callable[[Split], Result]]]) -> list[Result]:
        """See `Holder`: one task a split. Each task receives all questions of its job, so their number per job is
        limited."""
        questions_of: Questions = {}
        for number, (split, question) in enumerate(questions):
            questions_of.setdefault(split.place, []).append((number, question))
        found: list[tuple[int, Any]] = []
        for at in range(0, len(questions_of), _MOST_ASKED):
            found += self._answers(dict(islice(questions_of.items(), at, at + _MOST_ASKED)), "questions to rows")
        found.sort(key=itemgetter(0))
        results: list[Any] = [unpack_rows(*one) if isinstance(one, Packed) else one for _, one in found]
        return results

    def spread(
        self, function: Callable[[Item], Result], items: Sequence[Item], sizes: Sequence[int]
    ) -> list[Result | None]:
        """See `Holder`."""
        session, found = self.job.session, dict[int, list[Result | None]]()
        work = partial(run_items, function, session.attempts, session.is_local)
        for number, answers, reads in run_job(session, work, tasks_of(items, sizes), "files of queues and index"):
            found[number] = answers
            self.views.take(reads)
        return [answer for _, answers in sorted(found.items()) for answer in answers]

    def _answers(self, questions_of: Questions, label: str) -> list[tuple[int, Any]]:
        then = partial(answered, questions_of, {task: self.digests[task] for task in questions_of})
        return list(watch(self.job.session, lambda: self.job.run(then, [*questions_of]), label))

    def sources(self, log: LogView) -> tuple[dict[int, int], list[tuple[int, Split]]]:
        """Return the number of each split of a log whose rows only a task has, by that task, and the other splits, with
        their numbers; they are numbered in log order, without empty ones."""
        kept: dict[int, int] = {}
        here: list[tuple[int, Split]] = []
        for number, split in enumerate(split for split in log.splits() if split.size):
            if not split.is_here and split.holder is self:
                kept[split.place] = number
            else:
                here.append((number, split))
        return kept, here


def renumbered(home: Home, rows: bytes, numbers: dict[tuple[bytes, int], int]) -> Split:
    """On an executor: return a split with a log's queue numbers; -1 for queues that the log does not have."""
    split = Split(*unpack_split(rows))
    split.renumber(np.array([numbers.get(key, -1) for key in home.scan.scan.queues], dtype=np.int32))
    return split
