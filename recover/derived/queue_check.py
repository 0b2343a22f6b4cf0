"""Check queues against the log in both directions: classify every unit, and find the messages without one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats.basics import offset_to_name
from formats.consumequeue import MAX_EXT_ADDRESS, PRE_BLANK
from formats.native.rows import unit_sum
from formats.record.rows import BIT_DELAY, BIT_MARKER, EXPECTED
from recover.broker.settings import DelayTable, is_delayed
from recover.derived.expected import (
    BEYOND_LOG,
    EXPIRED,
    LOST,
    NOTHING,
    PRE_BLANK_UNIT,
    RIGHT,
    WRONG,
    ConsumeQueueReport,
    Expectation,
    QueueKey,
    QueueVerdict,
    is_lost,
)
from recover.findings.code import BY_HAND, N_, unreadable
from recover.findings.model import Finding, finding
from recover.log.scan import SEED, LogView
from recover.store.columns import Rows, within
from recover.store.derived_files import (
    UNIT_SIZE,
    ExtFiles,
    QueueFiles,
    Stretch,
    cut_off,
    has_ext,
    positions_of,
    read_units,
)
from recover.store.mapped_files import MappedFile, MappedFileQueue, OddName
from recover.store.reader import ReadFailure
from recover.store.reading import FILE
from recover.store.source import announce
from recover.store.store import Store


def odd_queue_name(store: Store, odd: OddName) -> Finding:
    """Return the finding for an entry that does not belong among the files of a queue."""
    why = N_("the name is not 20 digits")
    if odd.counts_as_file:
        why = "no entry begins at the offset in its name" if odd.kind == FILE else f"it is {odd.kind}"
    return finding("consumequeue-odd-name", store.relative(odd.path), name=odd.path.name, why=why,
                   remedy=BY_HAND if odd.by_hand else None)


def check_ext(stretch: Stretch, files: ExtFiles, rows: Rows, tags_codes: Rows) -> tuple[Rows, Rows]:
    """Resolve the ext addresses of a stretch. `rows` are its EXPECTED positions, `tags_codes` those of their messages.

    Returns the tags codes of the units, with each address of an intact ext unit replaced by the code stored there, and
    a bool array of broken cells: they name the right message, but their ext unit is missing, wrong or out of order.
    """
    tags = stretch.tags_code.copy()
    broken = np.zeros(tags.size, dtype=bool)
    at, cells = stretch.named(rows)
    has_address = tags[cells] <= MAX_EXT_ADDRESS
    at, cells = at[has_address], cells[has_address]
    positions = positions_of(tags[cells])
    intact = files.units.holds(positions, tags_codes[at], rows["store_timestamp"][at])
    # at start a broker cuts the ext files after the unit of the queue's last cell, so positions must ascend
    intact[intact] = np.diff(np.maximum.accumulate(positions[intact]), prepend=-1) > 0
    tags[cells[intact]] = tags_codes[at[intact]]
    broken[cells[~intact]] = True
    return tags, broken


def classify_units(
    first_index: int, phy_offsets: Rows, sizes: Rows, tags_codes: Rows, rows: Rows, row_tags: Rows,
    bounds: tuple[int, int, Rows, Rows], *, bridged: bool, bridge: tuple[int, int] | None = None,
) -> tuple[Rows, Rows]:
    """Return the class (uint8) of every cell of a stretch of one queue, and which rows have no unit (bool array).

    The cells start at queue offset `first_index`. `rows` are the positions that should be filled (EXPECTED, ascending,
    all inside or after the stretch), `row_tags` the tags codes of their units. The cell of a lost message may name the
    marker or repeat a neighbour. The unit of an expired message is wrong in place of a live one or between live ones. A
    cell that no record claims may repeat a neighbour between live ones or, with `bridged` (the log is or was damaged),
    anywhere. In a queue that lost all its messages it may name the `bridge`, (phy offset, size). `bounds`: physical
    offsets of the start and end of the log, and of the starts and stops of its damage. The first cell with size <= 0
    ends the queue: it and all later cells are NOTHING.
    """
    min_offset, log_end, starts, stops = bounds
    ended = np.flatnonzero(sizes <= 0)
    used = int(ended[0]) if ended.size else sizes.size
    same = (phy_offsets[1:] == phy_offsets[:-1]) & (sizes[1:] == sizes[:-1])
    repeats = (np.r_[False, same] | np.r_[same, False])[:used]
    offset, size, tags = phy_offsets[:used], sizes[:used].astype(np.int64), tags_codes[:used]
    index = np.arange(first_index, first_index + used)
    at = np.searchsorted(rows["queue_offset"], index)

    def of_rows(values: Rows) -> Rows:
        """Return the value of the first row at or after each cell; 0 past the last row."""
        return np.asarray(np.append(values, 0)[at])

    inside = (at > 0) & (at < rows.size)
    expected = (at < rows.size) & (of_rows(rows["queue_offset"]) == index)
    lost = expected & (of_rows(is_lost(rows)) != 0)
    named = expected & (offset == of_rows(rows["phy_offset"])) & (size == of_rows(rows["size"]))
    blank = _are_pre_blank(offset, size, tags)
    damaged = within(offset, starts, stops)
    right = named & (tags == of_rows(row_tags))
    stands_in = (bridged | inside) & repeats
    if bridge is not None:
        stands_in |= (offset == bridge[0]) & (size == bridge[1])
    # the first condition that holds decides; if none does, the cell is wrong
    cases = [
        (blank, PRE_BLANK_UNIT),  # padding before a queue's first unit, not a position
        (offset < 0, WRONG),  # no broker writes one, and ConsumeQueue.recover takes it for the end of the queue
        ((offset < min_offset) & ~(expected & ~lost) & ~inside, EXPIRED),  # expired, and not in place of a live message
        (lost & (named | repeats), LOST),  # a lost message, as recover writes it: its marker, or its neighbour's unit
        (lost, WRONG),  # a lost message, with any other unit
        (offset > log_end - size, BEYOND_LOG),  # ends past the end of the log, whatever record belongs here
        (~expected & damaged, LOST),  # its record was in a damaged range
        (right, RIGHT),  # place, size and tags code of the record that belongs here
        (~expected & stands_in, LOST),  # no record left, as recover writes it
    ]
    classes = np.zeros(sizes.size, dtype=np.uint8)
    classes[:used] = np.select(
        [condition for condition, _ in cases], [np.uint8(kind) for _, kind in cases], np.uint8(WRONG)
    )
    missing = ~is_lost(rows)
    missing[at[expected & ~blank]] = False
    return classes, missing


def _are_pre_blank(offset: Rows, size: Rows, tags: Rows) -> Rows:
    return np.asarray((offset == PRE_BLANK.phy_offset) & (size == PRE_BLANK.size) & (tags == PRE_BLANK.tags_code))


class QueueContent(Struct, frozen=True):
    """The content of a sound queue's files (`size` bytes each, contiguous): units of expired messages, all before
    `min_offset` of the log, up to queue offset `live`; then up to `end` units whose sum with `seed` is `sum`; then
    zeros."""

    files: list[MappedFile]
    size: int
    live: int
    end: int
    sum: int
    min_offset: int
    seed: int

    @property
    def first(self) -> int:
        """Queue offset of the first cell."""
        return self.files[0].file_from_offset // UNIT_SIZE

    def verdict(self, key: QueueKey) -> QueueVerdict:
        """Return the verdict on a queue with this content."""
        counts = {EXPIRED: self.live - self.first, RIGHT: self.end - self.live}
        return QueueVerdict(key, self.end - self.first, self.end - self.live,
                            {kind: number for kind, number in counts.items() if number}, end=self.end,
                            min_index=self.first, live=self.live)


def holds_units(content: QueueContent) -> bool:
    """Whether the files of a queue hold exactly the units that the log calls for. `OSError` if one cannot be read.

    A fast path that may only say yes: anything in doubt goes to `classify_units`. `tests/derived/test_queues.py`
    changes bytes to check that both agree.
    """
    cells, total = content.size // UNIT_SIZE, 0
    failures: list[ReadFailure] = []
    for number, file in enumerate(content.files):
        base = content.first + number * cells
        units = read_units(file, content.size, failures)
        if failures:
            raise failures[0]
        lead, stop = (min(max(place - base, 0), cells) for place in (content.live, content.end))
        if not stop or stop > units.size or (lead and not _are_expired(units[:lead], content.min_offset)):
            return False
        total += unit_sum(units[lead:stop].view(np.uint8), base + lead, content.seed)
        if units[stop:].view(np.uint8).any():
            return False
    return not (total - content.sum) % (1 << 64)


def _are_expired(units: Rows, min_offset: int) -> bool:
    offset, size, tags = units["phy_offset"], units["size"], units["tags_code"]
    before = (offset >= 0) & (offset < min_offset) & (size > 0) & (tags > MAX_EXT_ADDRESS)
    return bool((before & ~_are_pre_blank(offset, size, tags)).all())


_LISTED = 10_000
_UNIT_CODES = {
    WRONG: "consumequeue-wrong-units", BEYOND_LOG: "consumequeue-beyond-log", LOST: "consumequeue-lost-units",
}


def check_consumequeue(
    store: Store, log: LogView, expectation: Expectation, delays: DelayTable,
    *, tick: Callable[[], None] | None = None,
) -> ConsumeQueueReport:
    """Check every queue of the store. `delays` learns the store's own delay levels on the way."""
    assert log.has_keys, "units hold tags codes"
    on_disk = {QueueKey(folder.topic, folder.queue_id) for folder in store.queue_folders}
    counts = expectation.counts.tolist()
    with_rows = [(number, key) for number, key in enumerate(expectation.keys) if counts[number]]
    others = [(-1, key) for key in sorted(on_disk - {key for _, key in with_rows})]
    verdicts = {}
    for key, verdict in _Checker(store, log, delays, tick).verdicts([*with_rows, *others], expectation):
        verdicts[key] = verdict
    findings = list(_topic_findings(expectation))
    if delays.observed:
        levels = {str(level): delay for level, delay in sorted(delays.observed.items())}
        findings.append(finding(
            "delay-table-inferred", "consumequeue/SCHEDULE_TOPIC_XXXX", levels=levels,
            text=", ".join(f"level {level} = {delay} ms" for level, delay in levels.items()),
        ))
    for verdict in verdicts.values():
        findings.extend(verdict.findings)
    return ConsumeQueueReport(len(on_disk), verdicts, delays, findings)


def _topic_findings(expectation: Expectation) -> Iterator[Finding]:
    if expectation.deleted:
        yield finding("topic-deleted", count=len(expectation.deleted), names=", ".join(expectation.deleted[:20]))
    if expectation.unsafe:
        yield finding("topic-unsafe-name", count=len(expectation.unsafe), names=repr(expectation.unsafe[:20]))


class _Checker:
    def __init__(self, store: Store, log: LogView, delays: DelayTable, tick: Callable[[], None] | None) -> None:
        self.store = store
        self.log = log
        self.delays = delays
        self.tick = tick or (lambda: None)
        self.has_ext = store.consumequeue_ext_dir.is_dir()
        self.starts = np.array([d.start for d in log.damaged], dtype=np.int64)
        self.stops = np.array([d.stop for d in log.damaged], dtype=np.int64)
        self.listed = self._list() if log.files else {}

    def _list(self) -> dict[QueueKey, MappedFileQueue]:
        """Return the files of each queue, listed in one pass."""
        try:
            return {
                QueueKey(folder.topic, folder.queue_id): queue
                for folder, queue in self.store.list_queues() if folder.path.name == str(folder.queue_id)
            }
        except OSError:
            return {}  # opening each queue reports which one failed

    def verdicts(
        self, members: list[tuple[int, QueueKey]], expectation: Expectation
    ) -> Iterator[tuple[QueueKey, QueueVerdict]]:
        """Yield the verdict on each queue; members are (queue index in the log, -1 without a row there; key).

        Rows are read only for queues whose units do not add up to the expected sum.
        """
        announce(file.path for number, key in members if number >= 0 and key in self.listed
               for file in self.listed[key].files)
        known: dict[QueueKey, QueueVerdict] = {}
        failed: dict[QueueKey, ReadFailure] = {}
        asked: dict[QueueKey, QueueContent] = {}
        for number, key in members:
            tally = expectation.tally_of(number)
            with self._as_refusal():
                expected = None if tally is None else self._expected(key, tally)
            if isinstance(expected, QueueVerdict):
                known[key] = expected
                self.tick()
            elif expected is not None:
                asked[key] = expected
        for key, found in zip(asked, self._hold_units(asked.values()), strict=True):
            if isinstance(found, ReadFailure):
                failed[key] = found
            elif found:
                known[key] = asked[key].verdict(key)
                self.tick()
        rows = expectation.of(number for number, key in members if number >= 0 and key not in known)
        for number, key in members:
            if key not in known:
                own = next(rows)[1] if number >= 0 else np.empty(0, dtype=EXPECTED)
                with self._as_refusal():
                    known[key] = self._verdict(key, own, failed.get(key))
                self.tick()
            yield key, known[key]

    @cached_property
    def bridge(self) -> tuple[int, int] | None:
        """The record that the units of a queue without any message left name."""
        return self.log.first_bridge_record() if self.log.tally.has_bridge else None

    def _files(self, key: QueueKey) -> QueueFiles:
        files = QueueFiles(self.store, key.topic, key.queue_id)
        if key in self.listed:
            files.mapped_files = self.listed[key]
        return files

    @contextmanager
    def _as_refusal(self) -> Iterator[None]:
        """Raise `Refusal` if a file cannot be opened."""
        try:
            yield
        except OSError as error:
            raise unreadable(error) from error

    def _expected(self, key: QueueKey, tally: Rows) -> QueueContent | QueueVerdict | None:
        """Return the expected content of a queue's files by its `tally`; the verdict on a queue without files; None if
        only its rows can decide."""
        files = self._files(key)
        queue, size = files.mapped_files, self.store.queue_file_size
        first, cells = queue.min_offset // UNIT_SIZE, size // UNIT_SIZE
        in_line = all((file.file_from_offset, file.length) == (first * UNIT_SIZE + n * size, size)
                      for n, file in enumerate(queue.files))
        if not in_line or queue.odd or queue.duplicates:
            return None
        if self.has_ext and (self.store.consumequeue_ext_dir / key.topic / str(key.queue_id)).is_dir():
            return None
        live, end, count = int(tally["least"]), int(tally["most"]) + 1, int(tally["positions"])
        if end - live != count or tally["bits"] & (BIT_DELAY | BIT_MARKER):
            return None
        # without a file there is no sum to compare: only rows that never step back prove one row a position
        if not queue.files and not tally["fallen"]:
            lacking = QueueVerdict(key, expected=count, missing=count, missing_offsets=np.arange(live, end))
            self._missing(lacking, files, [(live, end)])
            return lacking
        if live < first or end > first + cells * len(queue.files):
            return None
        return QueueContent(queue.files, size, live, end, int(tally["sum"]), self.log.min_offset, SEED)

    def _hold_units(self, contents: Collection[QueueContent]) -> Iterator[bool | ReadFailure | None]:
        """Yield the result of `holds_units` for each, run in this process or where the rows of the log are kept."""
        there = [structs.replace(content, files=[structs.replace(file, path=file.path.absolute())
                                                 for file in content.files]) for content in contents]
        sizes = [UNIT_SIZE * (content.end - content.first) for content in contents]
        if (found := self.log.spread(holds_units, there, sizes)) is not None:
            yield from found
            return
        for content in contents:
            with self._as_refusal():
                try:
                    yield holds_units(content)
                except ReadFailure as failure:
                    yield failure

    def _verdict(self, key: QueueKey, rows: Rows, unread: ReadFailure | None) -> QueueVerdict:
        """Return the verdict on one queue; `rows` are its positions, `unread` the read failure of the first pass."""
        files = self._files(key)
        # a file that failed to read once is not sound
        once = [unread] if unread else []
        verdict = QueueVerdict(key, expected=int((~is_lost(rows)).sum()))
        ext = ExtFiles(self.store, key.topic, key.queue_id)
        self._check_files(verdict, files.mapped_files)
        if self.has_ext:
            self._check_files(verdict, ext.mapped_files, may_lack=True)
        self._check_units(verdict, files, ext, rows)
        for failure in (*(files.failures or once), *ext.failures):
            self._report(verdict, "consumequeue-unreadable", failure.path, failure.offset, wanted=failure.wanted,
                         error=failure.strerror)
        return verdict

    def _report(
        self, verdict: QueueVerdict, code: str, path: Path, position: int | None, span: tuple[int, int] | None = None,
        **facts: Any,
    ) -> None:
        """Add a finding on a file or folder of the queue; `span`: its queue offsets [first, stop)."""
        if span is not None:
            first, stop = span
            facts = {"first": first, "last": stop - 1, "count": stop - first, **facts}
        verdict.findings.append(finding(code, self.store.relative(path), position, topic=verdict.key.topic,
                                        queue=verdict.key.queue_id, **facts))

    def _check_files(self, verdict: QueueVerdict, queue: MappedFileQueue, *, may_lack: bool = False) -> None:
        for wrong in queue.wrong_lengths():
            self._report(verdict, "consumequeue-bad-file-length", wrong.path, 0, length=wrong.length,
                         expected=queue.file_size)
        verdict.findings += [odd_queue_name(self.store, odd) for odd in queue.odd]
        for start, stop in queue.missing_ranges() if not may_lack else ():
            self._report(verdict, "consumequeue-missing-file", queue.directories[0], None,
                         (start // UNIT_SIZE, stop // UNIT_SIZE), count=(stop - start) // UNIT_SIZE)

    def _check_last_file(self, verdict: QueueVerdict, files: QueueFiles) -> None:
        """Report a last file without a unit after a full one; files of wrong length are reported elsewhere."""
        queue = files.mapped_files
        if len(queue.files) < 2 or queue.files[-1].length != queue.file_size:
            return
        if verdict.end == queue.files[-1].file_from_offset // UNIT_SIZE:
            self._report(verdict, "consumequeue-empty-last-file", queue.files[-1].path, 0)

    def _check_end(self, verdict: QueueVerdict, stretch: Stretch, used: int) -> None:
        """Report units of expired messages after the cell that a broker takes for the end of the queue."""
        stop = cut_off(stretch.phy_offset, stretch.size, used, self.log.min_offset)
        if stop > used:
            mapped_file, position = stretch.place(used)
            self._report(verdict, "consumequeue-cut-off", mapped_file.path, position,
                         (verdict.end, stretch.first_index + stop))

    def _check_units(self, verdict: QueueVerdict, files: QueueFiles, ext: ExtFiles, rows: Rows) -> None:
        missing = np.zeros(rows.size, dtype=bool)
        lost = is_lost(rows)
        taken = 0
        ended = False
        first = True
        bridge = None if rows.size else self.bridge
        for stretch in files.stretches():
            if first:
                verdict.min_index = stretch.first_index
                first = False
            if ended:
                break
            stop = int(np.searchsorted(rows["queue_offset"], stretch.first_index + stretch.cells))
            part = slice(taken, stop)
            classes, used, broken = self._classify(stretch, ext, rows[part], lost[part], missing[part], bridge)
            taken, ended = stop, used < stretch.cells
            verdict.end = stretch.first_index + used
            self._count(verdict, stretch, classes, broken)
            self._check_end(verdict, stretch, used)
            for start, end in ranges(np.flatnonzero(broken & (classes == WRONG))):
                self._report_broken(verdict, stretch, ext, start, end)
        self._check_last_file(verdict, files)
        missing[taken:] = ~lost[taken:]
        verdict.missing = int(missing.sum())
        verdict.missing_offsets = rows["queue_offset"][missing]
        self._missing(verdict, files, ranges(verdict.missing_offsets))

    def _classify(
        self, stretch: Stretch, ext: ExtFiles, rows: Rows, lost: Rows, missing: Rows, bridge: tuple[int, int] | None
    ) -> tuple[Rows, int, Rows]:
        """Return the class of each cell, how many are in use, and which of them name a broken ext unit."""
        tags, broken = stretch.tags_code, np.zeros(stretch.held, dtype=bool)
        if has_ext(stretch):
            # the delay table learns from the codes that delayed messages have in their ext units
            expected = self._learn(stretch, rows, ext.tags_codes(tags))
            tags, broken = check_ext(stretch, ext, rows[~lost], expected[~lost])
        else:
            expected = self._learn(stretch, rows, tags)
        bounds = self.log.min_offset, self.log.log_end, self.starts, self.stops
        # a rebuild may have written a unit at a position that no record but only damage or a bridge accounts for
        classes, lacking = classify_units(
            stretch.first_index, stretch.phy_offset, stretch.size, tags, rows, expected, bounds,
            bridged=self.log.tally.has_bridge or bool(self.log.damaged), bridge=bridge,
        )
        missing[:] = lacking
        return classes, int(np.count_nonzero(classes)), broken

    def _learn(self, stretch: Stretch, rows: Rows, tags: Rows) -> Rows:
        """Teach the delay table the units found at the positions of delayed messages. Returns the tags code that each
        row's unit should have: that of the unit, where its deliver time fits."""
        delayed = np.flatnonzero(is_delayed(rows))
        at, cells = stretch.named(rows[delayed])
        if not at.size:
            return self.delays.tags_codes(rows)
        named, found = delayed[at], tags[cells]
        self.delays.learn(rows[named], found)
        expected = self.delays.tags_codes(rows)
        fits = self.delays.fits(rows[named], found)
        expected[named[fits]] = found[fits]
        return expected

    def _count(self, verdict: QueueVerdict, stretch: Stretch, classes: Rows, broken: Rows) -> None:
        for kind, count in enumerate(np.bincount(classes, minlength=WRONG + 1).tolist()):
            if kind != NOTHING and count:
                verdict.counts[kind] = verdict.counts.get(kind, 0) + count
        verdict.units += int(((classes != NOTHING) & (classes != PRE_BLANK_UNIT)).sum())
        for kind, code in _UNIT_CODES.items():
            if kind not in verdict.counts:
                continue
            cells = np.flatnonzero((classes == kind) & ~(broken & (classes == WRONG)))
            if cells.size <= _LISTED or kind != WRONG:
                {LOST: verdict.lost, BEYOND_LOG: verdict.beyond, WRONG: verdict.wrong}[kind].extend(
                    (stretch.first_index + cell, int(stretch.phy_offset[cell]), int(stretch.size[cell]))
                    for cell in cells.tolist()
                )
                if kind == WRONG:
                    verdict.wrong_tags += stretch.tags_code[cells].tolist()
            facts = {"log_end": self.log.log_end} if kind == BEYOND_LOG else {}
            for start, stop in ranges(cells):
                mapped_file, position = stretch.place(start)
                self._report(verdict, code, mapped_file.path, position,
                             (stretch.first_index + start, stretch.first_index + stop),
                             phy_offset=int(stretch.phy_offset[start]), **facts)

    def _report_broken(self, verdict: QueueVerdict, stretch: Stretch, ext: ExtFiles, start: int, stop: int) -> None:
        """Report broken cells [start, stop) at the ext position that the first one names."""
        address = int(stretch.tags_code[start])
        mapped_file, position = ext.place(address)
        if mapped_file is None:
            number, position = divmod(position, self.store.ext_file_size)
            path = ext.mapped_files.directories[0] / offset_to_name(number * self.store.ext_file_size)
        else:
            path = mapped_file.path
        self._report(verdict, "consumequeue-ext-broken", path, position,
                     (stretch.first_index + start, stretch.first_index + stop),
                     phy_offset=int(stretch.phy_offset[start]), address=address)

    def _missing(self, verdict: QueueVerdict, files: QueueFiles, runs: Iterable[tuple[int, int]]) -> None:
        """Report each run [first, stop) of queue offsets without a unit."""
        for first, stop in runs:
            place = files.mapped_files.find(first * UNIT_SIZE)
            path = place.path if place is not None else files.mapped_files.directories[0]
            position = first * UNIT_SIZE - place.file_from_offset if place is not None else None
            self._report(verdict, "consumequeue-missing-units", path, position, (first, stop))


def ranges(cells: Rows) -> Iterator[tuple[int, int]]:
    """Yield ascending numbers (int64) as ranges [start, stop)."""
    if not cells.size:
        return
    cuts = np.flatnonzero(np.diff(cells) != 1) + 1
    for run in np.split(cells, cuts):
        yield int(run[0]), int(run[-1]) + 1
