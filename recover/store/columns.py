"""Storage for the columns of a scan: in memory up to a limit, then in an unnamed scratch file.

A store of a terabyte has more rows than memory holds, so every consumer works split by split.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO, Any, Protocol, TypeVar

import numpy as np
from msgspec import Struct

from formats.native import index as native
from formats.native.rows import BITS, FILLERS, FLAGS, LAST_TIME, MARKERS, MESSAGES, NEWEST_TIME, tally_rows
from formats.record.rows import NO_MESSAGE, RECORD

_LARGEST = 64 << 20


def scratch_file() -> IO[bytes]:
    """Open an empty, unnamed temporary file in the system's temporary folder (`TMPDIR`)."""
    return tempfile.TemporaryFile(prefix="mqtool-")


def mapped(file: IO[bytes], start: int, size: int) -> np.ndarray[Any, Any]:
    """Map `size` bytes (uint8, zeros until written) of a scratch file from `start`, a multiple of the page size.

    `OSError` on a full disk, now: later, a page without space would kill the process.
    """
    os.posix_fallocate(file.fileno(), start, size)
    return np.frombuffer(mmap.mmap(file.fileno(), size, offset=start), dtype=np.uint8)


def scratch_zeros(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return zeros; above 64 MiB in a scratch file if it has room, since memory may be short."""
    size = count * np.dtype(dtype).itemsize
    if size > _LARGEST:
        with suppress(OSError), scratch_file() as file:
            return mapped(file, 0, size).view(dtype)
    return np.zeros(count, dtype=dtype)


Rows = Any
"""An array, mostly of records. With numpy's own type mypy tries all overloads of each operator for each field, whose
type it does not know: 56 s instead of 13."""
DEFAULT_MEMORY = 256 << 20
_ALIGNMENT = 64
BLOCK = 32 << 20
_PAGE = mmap.ALLOCATIONGRANULARITY
_HASH = np.dtype(np.int32)
_NONE = np.empty(0, dtype=_HASH)


def within(values: Rows, starts: Rows, stops: Rows) -> Rows:
    """Which values are in one of the ranges [start, stop), which ascend and do not touch (bool array)."""
    if not starts.size:
        return np.zeros(values.shape, dtype=bool)
    at = np.searchsorted(starts, values, side="right") - 1
    return np.asarray((at >= 0) & (values < np.append(stops, 0)[at]))


def joined(parts: Sequence[Rows]) -> Rows:
    """Join RECORD rows of several stretches; as bytes, since rows would be copied column by column."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.empty(0, dtype=np.uint8), *(part.view(np.uint8) for part in parts)]).view(RECORD)


class Wanted(Struct, frozen=True):
    """The index units that the rows of a split make under one rule: how many, of how many records, and the phy offsets
    of the first and the last of these (0 without one)."""

    units: int
    records: int
    first: int
    last: int


class Summary(Struct, frozen=True):
    """The facts of a split that are available without its rows: number of rows, phy offsets of the first and last, end
    of the last; bytes of all of them (`held`); number of hashes; index units without those of tags, and with them;
    store timestamps (ms) of the first row, the earliest, and the last three; and the
    `formats.native.rows.tally_rows` counts, by the split's own queues. `foreseen`: the answer to what was asked with
    the scan. No row of such a split has a bit of NOT_IN_QUEUE: setting one requires the rows.
    """

    size: int
    first: int
    last: int
    end: int
    held: int
    hashes: int
    wanted: tuple[Wanted, Wanted]
    first_time: int
    earliest: int
    last_times: tuple[int, ...]
    queues: Rows
    totals: Rows
    foreseen: Any = None


class Foresight(Protocol):
    """What will be asked of the splits of a log, known before its scan."""

    def within(self, start: int, stop: int) -> Callable[[Split], Any] | None:
        """Return the question to a split of records between these phy offsets, which can be pickled; None for none."""


Item = TypeVar("Item")
Result = TypeVar("Result")


class Holder(Protocol):
    """Holds the rows of splits elsewhere, identified by their `place`."""

    def fetch_rows(self, split: Split) -> None:
        """Pass the rows of a split to its `take`, or raise."""

    def ask(self, questions: Sequence[tuple[Split, Callable[[Split], Result]]]) -> list[Result]:
        """Run each function, which can be pickled, on the rows of its split where they are; return the results."""

    def spread(
        self, function: Callable[[Item], Result], items: Sequence[Item], sizes: Sequence[int]
    ) -> list[Result | None]:
        """Run a function, which can be pickled, on items that name files of these sizes (bytes); return the results,
        None where the files could not be read. `Refusal` (8) if they are other files than this process sees."""


class Split:
    """Rows of one stretch of one mapped file, ascending by phy_offset, and the key hashes of their records.

    `records` has dtype RECORD; `hashes` is int32, `records["hashes"].sum()` long, in record order. Rows kept elsewhere
    are fetched on first access to either; until then there is a `summary`, whose queues have these `numbers`, and the
    `holder` identifies them by `place`.
    """

    __slots__ = ("_rows", "holder", "numbers", "place", "summary")

    def __init__(self, records: Rows, hashes: Rows) -> None:
        self._rows: tuple[Rows, Rows] | None = (records, hashes)
        self.holder: Holder | None = None
        self.place = -1
        self.summary: Summary | None = None
        self.numbers = _NONE

    @classmethod
    def elsewhere(cls, summary: Summary, holder: Holder, place: int, numbers: Rows | None = None) -> Split:
        """Create a split whose rows are held elsewhere."""
        split = cls(_NONE, _NONE)
        split._rows, split.holder, split.place, split.summary = None, holder, place, summary
        split.numbers = np.arange(summary.queues.size, dtype=np.int32) if numbers is None else numbers
        return split

    @property
    def is_here(self) -> bool:
        """Whether the rows are in this process: then nothing is known of them without a look at each."""
        return self.summary is None

    def is_unaffected(self, starts: Rows, stops: Rows) -> bool:
        """Whether the rows are elsewhere and no record starts in one of the ranges [start, stop): `again` copies them.
        """
        return not self.is_here and not ((starts <= self.last) & (stops > self.first)).any()

    def again(self) -> Split:
        """Return a copy for another log, which may mark other rows; itself, to be copied first, if the rows are here.
        """
        if self.summary is None or self.holder is None:
            return self
        return Split.elsewhere(self.summary, self.holder, self.place, self.numbers)

    def take(self, records: Rows, hashes: Rows) -> None:
        """Set the rows, numbered as in their scan; the summary becomes invalid, as their bits may change."""
        self._rows, self.summary = (records, hashes), None
        self.renumber(self.numbers)

    def _here(self) -> tuple[Rows, Rows]:
        if self._rows is None and self.holder is not None:
            self.holder.fetch_rows(self)
        assert self._rows is not None, "brought, or an error raised"
        return self._rows

    @property
    def records(self) -> Rows:
        return self._here()[0]

    @property
    def hashes(self) -> Rows:
        return self._here()[1]

    @property
    def size(self) -> int:
        return int(self.records.size) if self.summary is None else self.summary.size

    @property
    def first(self) -> int:
        return int(self.records["phy_offset"][0]) if self.summary is None else self.summary.first

    @property
    def last(self) -> int:
        return int(self.records["phy_offset"][-1]) if self.summary is None else self.summary.last

    @property
    def end(self) -> int:
        """The physical offset behind the last record; there must be one."""
        if self.summary is not None:
            return self.summary.end
        last = self.records[-1]
        return int(last["phy_offset"] + last["size"])

    @property
    def adjoins(self) -> bool:
        """Whether the rows are elsewhere, and each record ends where the next one begins."""
        return self.summary is not None and self.summary.end - self.summary.first == self.summary.held

    @property
    def foreseen(self) -> Any:
        """The answer to what was asked with the scan; None if nothing was, or if the rows are here."""
        return None if self.summary is None else self.summary.foreseen

    def wanted(self, rule: int) -> Wanted | None:
        """Return the index units that the rows make under a rule, TAKE_KEYS or TAKE_ALL; None if the rows are here."""
        return None if self.summary is None else self.summary.wanted[rule - native.TAKE_KEYS]

    def key_counts(self) -> tuple[int, int]:
        """Return how many index units the rows make, without those of tags and with them."""
        if self.summary is None:
            return native.key_counts(self.records)
        keys, every = self.summary.wanted
        return keys.units, every.units

    def tally(self, seed: int, queues: Rows, totals: Rows) -> None:
        """Add the rows to a tally and its totals as `tally_rows` does; `seed` is that of unit sums."""
        if self.summary is None:
            tally_rows(np.asarray(self.records), seed, queues, totals)
        else:
            _add(self.summary, self.numbers, queues, totals)

    @property
    def messages(self) -> int:
        """The number of rows that are live messages: neither filler nor marker, nor superseded."""
        if self.summary is not None:
            return int(self.summary.totals[MESSAGES])
        return int(((self.records["bits"] & NO_MESSAGE) == 0).sum())

    @property
    def hash_count(self) -> int:
        return int(self.hashes.size) if self.summary is None else self.summary.hashes

    def edge_times(self) -> tuple[int, int]:
        """Return the store timestamps (ms) of the first and the last row; there must be one."""
        if self.summary is not None:
            return self.summary.first_time, self.summary.last_times[-1]
        times = self.records["store_timestamp"]
        return int(times[0]), int(times[-1])

    def has(self, bits: int, total: int = BITS) -> bool:
        """Whether a row may have one of these bits; with FLAGS, one of these system flags."""
        return self.summary is None or bool(self.summary.totals[total] & bits)

    def numbering(self, count: int) -> Rows:
        """Return the log's number of each queue that the rows number where they are; the log has `count` queues."""
        return np.arange(count, dtype=np.int32) if self.is_here else self.numbers

    def lacks(self, queues: Rows) -> bool:
        """Whether certainly no row is of one of these queues (bool array, one a queue)."""
        return not queues.any() or (self.summary is not None and not queues[self.numbers].any())

    def is_later(self, timestamp: int, reached: Rows) -> bool:
        """Whether certainly no row has an earlier store timestamp (ms) than this one, nor a lower queue offset than its
        queue has here."""
        summary = self.summary
        return summary is not None and summary.earliest >= timestamp and bool(
            (summary.queues["least"] >= reached[self.numbers]).all())

    def renumber(self, numbers: Rows) -> None:
        """Replace the queue number of each row by its entry in `numbers` (int32, one a queue)."""
        if (numbers == np.arange(numbers.size)).all():
            return
        if self._rows is None:
            self.numbers = numbers[self.numbers]
        else:
            self.records["queue"] = numbers[self.records["queue"]]


def _add(summary: Summary, numbers: Rows, queues: Rows, totals: Rows) -> None:
    """Add a split's summary to the totals as `tally_rows` adds its rows; `numbers` are those of its queues."""
    own, found = summary.queues, queues[numbers]
    some = own["last"] != -1
    found["fallen"] |= own["fallen"] | (some & (own["first"] <= found["last"]))
    found["first"] = np.where(found["last"] == -1, own["first"], found["first"])
    found["last"] = np.where(some, own["last"], found["last"])
    found["least"], found["most"] = np.minimum(found["least"], own["least"]), np.maximum(found["most"], own["most"])
    for name in ("positions", "sum"):
        found[name] += own[name]
    found["bits"] |= own["bits"]
    queues[numbers] = found
    totals[[MESSAGES, FILLERS, MARKERS]] += summary.totals[[MESSAGES, FILLERS, MARKERS]]
    totals[[BITS, FLAGS]] |= summary.totals[[BITS, FLAGS]]
    totals[LAST_TIME] = summary.totals[LAST_TIME]
    totals[NEWEST_TIME] = max(totals[NEWEST_TIME], summary.totals[NEWEST_TIME])


def ask(questions: Sequence[tuple[Split, Callable[[Split], Result]]]) -> list[Result]:
    """Run each function on its split, where the rows are; return the results, which must be small. Queues have the
    numbers of the split's own scan there.
    """
    found: dict[int, Result] = {}
    elsewhere: dict[int, tuple[Holder, list[int]]] = {}
    for number, (split, question) in enumerate(questions):
        if split.summary is None or split.holder is None:
            found[number] = question(split)
        else:
            elsewhere.setdefault(id(split.holder), (split.holder, []))[1].append(number)
    for holder, numbers in elsewhere.values():
        found |= zip(numbers, holder.ask([questions[number] for number in numbers]), strict=True)
    return [found[number] for number in range(len(questions))]


def spread(
    splits: Iterable[Split], function: Callable[[Item], Result], items: Sequence[Item], sizes: Sequence[int]
) -> list[Result | None] | None:
    """Run a function on items that name files, where the rows of these splits are (see `Holder`); None if all are here.
    """
    holder = next((split.holder for split in splits if split.holder is not None), None)
    return None if holder is None else holder.spread(function, items, sizes)


Question = TypeVar("Question")
Answer = TypeVar("Answer")
Asking = Generator[Sequence[tuple[Split, Callable[[Split], Any]]], list[Any], Result]
"""A generator that computes a result: yields requests for `ask` and is sent the answers."""


def together(
    several: Sequence[Generator[Sequence[Question], list[Answer], Result]],
    ask: Callable[[list[Question]], Sequence[Answer]],
) -> list[Result | OSError]:
    """Return the result of each generator, or the error that ended it; `ask` answers the requests of all in one round
    after another."""
    results: dict[int, Result | OSError] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(several)))
    while answers:
        asked = {}
        for number, found in answers.items():
            try:
                asked[number] = several[number].send(found)
            except StopIteration as end:
                results[number] = end.value
            except OSError as error:
                results[number] = error
        every = iter(ask([question for questions in asked.values() for question in questions]))
        answers = {number: [*islice(every, len(questions))] for number, questions in asked.items()}
    return [results[number] for number in range(len(several))]


class Scratch:
    """Keeps bytes in memory; beyond `memory` bytes, in read-write maps of a scratch file.

    Thread-safe.
    """

    def __init__(self, memory: int) -> None:
        self._left = memory
        self._file: Any = None
        self._end = 0
        self._rest = np.empty(0, dtype=np.uint8)
        self._lock = threading.Lock()

    def copied(self, data: Rows) -> Rows:
        """Return a copy (uint8) of some bytes or rows."""
        with self._lock:
            in_memory = data.nbytes <= self._left
            self._left -= data.nbytes if in_memory else 0
            place = np.empty(data.nbytes, dtype=np.uint8) if in_memory else self._in_file(data.nbytes)
        # as bytes: rows would be copied column by column
        place[:] = np.ascontiguousarray(data).view(np.uint8)
        return place

    def _in_file(self, size: int) -> Rows:
        """Return space in the last map, or in a new one that grows with the file: a process may have only some ten
        thousand maps."""
        taken = -(-size // _ALIGNMENT) * _ALIGNMENT
        if taken > self._rest.size:
            self._file = self._file or scratch_file()
            self._rest = mapped(self._file, self._end, -(-max(taken, min(BLOCK, self._end // 4)) // _PAGE) * _PAGE)
            self._end += self._rest.size
        place, self._rest = self._rest[:size], self._rest[taken:]
        return place


class ColumnStore(Scratch):
    """Keeps splits."""

    def keep(self, records: Rows, hashes: Rows) -> Split:
        """Return a copy of the rows that stays valid when the scan reuses its buffers."""
        return Split(self.copied(records).view(RECORD), self.copied(hashes).view(_HASH))
