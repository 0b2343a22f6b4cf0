"""One index file judged: its units against the log, its chains against the hashes, its header against both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field

from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry, IndexHeader, IndexUnit, time_diff
from formats.native.index import (
    AT_UNIT,
    BEYOND_LOG,
    CHAIN_LOOP,
    CLASS,
    DUPLICATE,
    EXPIRED,
    LOST,
    MORE_RECORDS,
    MORE_UNITS,
    NO_RECORD,
    OTHER_KEY,
    RIGHT,
    SLOT_OUT_OF_RANGE,
    SLOT_WRONG,
    STATE,
    WRONG_CHAIN,
    WRONG_TIME,
    check_chains,
    end_units,
    follow_units,
    is_ascending,
    last_written,
    match_records,
    phy_offsets,
    slots_in_use,
)
from formats.native.walk import last_nonzero
from recover.derived.index_files import IndexFileName, IndexListing, IndexWords
from recover.derived.index_stream import IndexStream, TagRun, tag_runs
from recover.findings.model import Finding, finding
from recover.log.scan import LogView
from recover.store.columns import Rows
from recover.store.reader import FileReader, spend

_FLAWS = WRONG_TIME | WRONG_CHAIN | CHAIN_LOOP
_MOST_OTHERS = 100
_MOST_RUNS = 10_000
_UNIT_CODES = ((CHAIN_LOOP, "index-chain-loop"), (WRONG_CHAIN, "index-wrong-chain"), (WRONG_TIME, "index-wrong-time"))


class IndexFileVerdict(Struct):
    """What one index file holds. Counts are units; `end` is the number after the last unit.

    `first_right` is (number, phy offset, key hash) of its first unit that names a live message, no
    earlier unit having done so, and `last_right` the phy offset of its last; None without one.
    `wrong_in_front` counts wrong units before `first_right`, `expired_in_front` the expired ones
    before the first of a live message, as far as their times can be trusted. `header` is what the
    file says, `counts_entries` true when its hash_slot_count counts units, as brokers up to 4.7.0 do.
    `other_keys` are (phy offset, key hash) of units in their right chains that name a record without that key.
    """

    file: IndexFileName
    header: IndexHeader
    end: int = 1
    right: int = 0
    wrong: int = 0
    expired: int = 0
    lost: int = 0
    duplicates: int = 0
    first_right: tuple[int, int, int] | None = None
    last_right: int | None = None
    wrong_in_front: int = 0
    expired_in_front: int = 0
    counts_entries: bool | None = None
    other_keys: list[tuple[int, int]] = field(default_factory=list)
    tag_runs: list[TagRun] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def units(self) -> int:
        """Units in use."""
        return self.end - 1

    @property
    def sound(self) -> bool:
        """True when nothing in the file needs to change; units that it lacks are not asked for."""
        return all(item.severity == "info" for item in self.findings)


def check_file(
    file: IndexFileName, name: str, image: IndexWords, log: LogView, stream: IndexStream,
    previous: IndexFileVerdict | None,
) -> IndexFileVerdict:
    """Judge one file that was read; `name` is what findings call it, `previous` the file loaded before it.

    Notes in `stream`, that of `log`, which keys were found.
    """
    verdict = IndexFileVerdict(file, image.header)
    checker = _Checker(verdict, name, image, log, stream, previous)
    checker.run()
    return verdict


class _Checker:
    def __init__(
        self, verdict: IndexFileVerdict, name: str, image: IndexWords, log: LogView, stream: IndexStream,
        previous: IndexFileVerdict | None,
    ) -> None:
        self.verdict = verdict
        self.name = name
        self.image = image
        self.log = log
        self.stream = stream
        self.previous = previous
        self.geometry: IndexGeometry = image.geometry

    def run(self) -> None:
        written = last_written(self.image.units) + 1
        counted = self.image.header.index_count
        # IndexFile.load takes a count below 1 as 1
        self.verdict.end = end = max(1, min(counted, written))
        if max(counted, 1) != written:
            self._report("index-count-wrong", 36, header=counted, written=written - 1)
        classes = np.zeros(end, dtype=np.uint8)
        self._match(classes)
        self._classify_rest(classes)
        self._check_first_time(classes)
        used = self._check_chains(classes, max(end, min(max(counted, written), self.geometry.entries)))
        self._check_header(classes, used, max(counted, 1) == written)
        self._count(classes)

    def _report(self, code: str, offset: int | None, **facts: Any) -> None:
        self.verdict.findings.append(finding(code, self.name, offset, **facts))

    def _offset_of(self, number: int) -> int:
        unit = self.image.units[number]
        return (int(unit[1]) << 32) | (int(unit[2]) & 0xFFFFFFFF)

    def _match(self, classes: Rows) -> None:
        units, end = self.image.units, self.verdict.end
        if end < 2:
            return
        ordered = is_ascending(units, end)
        low, high, order = self._offset_of(1), self._offset_of(end - 1), np.empty(0, dtype=np.int64)
        if not ordered:
            offsets = np.empty(end - 1, dtype=np.int64)
            phy_offsets(units, end, offsets)
            order = np.argsort(offsets, kind="stable") + 1
            low, high = int(offsets.min()), int(offsets.max())
        begin = self._begin_time()
        state = np.array([1, 0], dtype=np.int64)
        for number in self.stream.overlapping(low, high):
            split = self.stream.splits[number]
            records, hashes = np.asarray(split.records), np.asarray(split.hashes)
            tag_states = np.zeros(records.size, dtype=np.uint8)
            match_records(
                units, end, order, ordered, state, records, hashes, self.stream.found(number), classes, begin,
                tag_states,
            )
            self.verdict.tag_runs.extend(tag_runs(records, tag_states))
            if state[0] >= end:
                break

    def _begin_time(self) -> int:
        """The time (ms) that differences count from: that of the first unit's message, if it is there."""
        timestamp = self.stream.timestamp(self._offset_of(1))
        return self.verdict.header.begin_timestamp if timestamp is None else timestamp

    def _classify_rest(self, classes: Rows) -> None:
        """Units that no record took: expired, in damage, after the end, or wrong."""
        rest = np.flatnonzero(classes[1:] == NO_RECORD) + 1
        if not rest.size:
            return
        units = self.image.units[rest]
        offsets = (units[:, 1].astype(np.int64) << 32) | (units[:, 2].astype(np.int64) & 0xFFFFFFFF)
        kinds = np.full(rest.size, NO_RECORD, dtype=np.uint8)
        kinds[offsets >= self.log.log_end] = BEYOND_LOG
        kinds[self.log.in_damage(offsets)] = LOST
        kinds[is_expired(units, self.log.min_offset)] = EXPIRED
        if not self.log.files:
            kinds[:] = LOST
        kinds[~units.any(axis=1)] = NO_RECORD
        classes[rest] = kinds

    def _check_first_time(self, classes: Rows) -> None:
        """Unit 1 counts from the end of the file that was before it when the broker made this one."""
        if self.verdict.end < 2 or int(classes[1]) & CLASS not in (RIGHT, DUPLICATE):
            return
        difference = int(self.image.units[1, 3])
        most = 0x7FFFFFFF
        if self.previous is not None and self.previous.sound and self.previous.units:
            timestamp = self.stream.timestamp(self._offset_of(1))
            most = time_diff(self.previous.header.end_timestamp, timestamp or 0)
        if not 0 <= difference <= most:
            classes[1] |= WRONG_TIME

    def _check_chains(self, classes: Rows, named: int) -> int:
        """Flags units and reports slots. Slots up to `named` are explained by a wrong count."""
        slots = self.image.slots
        heads = np.zeros(slots.size, dtype=np.int32)
        flags = np.zeros(slots.size, dtype=np.uint8)
        used = int(check_chains(self.image.units, self.verdict.end, slots, classes, heads, flags))
        if named > self.verdict.end:
            flags[(slots >= self.verdict.end) & (slots < named)] = 0
        if flags.any():
            in_use = np.flatnonzero((heads != 0) | (slots != 0) | (flags != 0))
            for kind, code in ((SLOT_OUT_OF_RANGE, "index-slot-out-of-range"), (SLOT_WRONG, "index-wrong-slot")):
                flagged = np.flatnonzero(flags[in_use] == kind)
                for start, stop in _runs(flagged):
                    first, last = int(in_use[flagged[start]]), int(in_use[flagged[stop - 1]])
                    self._report(code, self.geometry.slot_offset(first), first=first, last=last, count=stop - start)
        return used

    def _check_header(self, classes: Rows, used: int, count_fits: bool) -> None:
        header, end = self.verdict.header, self.verdict.end
        wrong = []
        if end > 1:
            wrong += self._wrong_end(classes, 1, header.begin_timestamp, header.begin_phy_offset, "begin")
            if count_fits and int(classes[1]) & CLASS == EXPIRED and header.begin_timestamp > header.end_timestamp:
                wrong.append("begin_timestamp")
            if count_fits:
                wrong += self._wrong_end(classes, end - 1, header.end_timestamp, header.end_phy_offset, "end")
        elif header.begin_phy_offset != header.end_phy_offset or header.begin_timestamp != header.end_timestamp:
            wrong += ["begin", "end"]
        # 4.7.0 and before count every unit, later brokers each slot once; a file can have been written by both
        broken = bool((classes & _FLAWS).any()) or bool(self._wrong_mask(classes).any())
        low = 0 if broken else used
        if count_fits and not low <= header.hash_slot_count <= end - 1:
            wrong.append("hash_slot_count")
        elif count_fits and not broken and used < end - 1:
            self.verdict.counts_entries = header.hash_slot_count > used
        if wrong:
            self._report("index-header-wrong", 0, fields=", ".join(wrong))

    def _wrong_end(self, classes: Rows, number: int, timestamp: int, phy_offset: int, which: str) -> list[str]:
        kind = int(classes[number]) & CLASS
        if kind in (NO_RECORD, OTHER_KEY):
            return []
        wrong = []
        true_time = self.stream.timestamp(self._offset_of(number)) if kind in (RIGHT, DUPLICATE) else None
        if true_time is not None and true_time != timestamp:
            wrong.append(f"{which}_timestamp")
        if self._offset_of(number) != phy_offset:
            wrong.append(f"{which}_phy_offset")
        return wrong

    @staticmethod
    def _wrong_mask(classes: Rows) -> Rows:
        kinds = classes & CLASS
        mask = (kinds == NO_RECORD) | (kinds == OTHER_KEY) | (kinds == BEYOND_LOG)
        mask[0] = False
        return np.asarray(mask)

    def _count(self, classes: Rows) -> None:
        verdict = self.verdict
        kinds = classes & CLASS
        # bincount would make an int64 of each byte first
        counts = [int(np.count_nonzero(kinds[1:] == kind)) for kind in range(CLASS + 1)]
        verdict.right, verdict.duplicates = counts[RIGHT], counts[DUPLICATE]
        verdict.expired, verdict.lost = counts[EXPIRED], counts[LOST]
        named = (kinds == RIGHT) | (kinds == DUPLICATE)
        astray = self._wrong_mask(classes)
        verdict.wrong = int((astray | (named & ((classes & _FLAWS) != 0))).sum())
        if verdict.right:
            live = kinds == RIGHT
            first = int(live.argmax())
            verdict.first_right = first, self._offset_of(first), int(self.image.units[first, 0])
            verdict.last_right = self._offset_of(kinds.size - 1 - int(live[::-1].argmax()))
            verdict.wrong_in_front = int(astray[:first].sum())
        off_time = int((named & ((classes & WRONG_TIME) != 0)).sum())
        if 0 < verdict.header.begin_timestamp <= verdict.header.end_timestamp and off_time * 2 <= int(named.sum()):
            verdict.expired_in_front = int((kinds[: self._first_live(kinds)] == EXPIRED).sum())
        others = np.flatnonzero((classes & ~np.uint8(WRONG_TIME)) == OTHER_KEY)
        if others.size <= _MOST_OTHERS:
            verdict.other_keys = [(self._offset_of(n), int(self.image.units[n, 0])) for n in others.tolist()]
        self._report_units(np.flatnonzero(astray & (kinds != BEYOND_LOG)), "index-wrong-units")
        self._report_units(np.flatnonzero(kinds == BEYOND_LOG), "index-beyond-log", log_end=self.log.log_end)
        if self.log.files:
            self._report_units(np.flatnonzero(kinds == LOST), "index-lost-units")
        for flaw, code in _UNIT_CODES:
            self._report_units(np.flatnonzero((classes & flaw) != 0), code)

    def _first_live(self, kinds: Rows) -> int:
        live = (kinds == RIGHT) | (kinds == DUPLICATE)
        return int(live.argmax()) if live.any() else self.verdict.end

    def _report_units(self, numbers: Rows, code: str, **facts: Any) -> None:
        for start, stop in _runs(numbers):
            first, last = int(numbers[start]), int(numbers[stop - 1])
            self._report(code, self.geometry.unit_offset(first), first=first, last=last, count=stop - start,
                         phy_offset=self._offset_of(first), **facts)


def is_expired(units: Rows, min_offset: int) -> Rows:
    """Rows that name a message before the log's first file, and could be a unit (bool array)."""
    offsets = (units[:, 1].astype(np.int64) << 32) | (units[:, 2].astype(np.int64) & 0xFFFFFFFF)
    return np.asarray((offsets >= 0) & (offsets < min_offset) & (units[:, 0] >= 0) & units[:, :4].any(axis=1))


def _runs(numbers: Rows) -> Iterator[tuple[int, int]]:
    """[start, stop) places in `numbers` (ascending) of neighbours; what is behind _MOST_RUNS is one with the last.

    A file of noise has millions.
    """
    if not numbers.size:
        return
    cuts = np.flatnonzero(np.diff(numbers) != 1)[: _MOST_RUNS - 1] + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), numbers.size], strict=True)


_BLOCK = (1 << 20) // INDEX_UNIT.size * INDEX_UNIT.size


def follow_file(
    file: IndexFileName, reader: FileReader, geometry: IndexGeometry, stream: IndexStream,
    previous: IndexFileVerdict | None,
) -> IndexFileVerdict | None:
    """What `check_file` would say of a file without a flaw; None for any other. Then `stream` knows nothing new.

    `previous` is the verdict on the file loaded before it. `ReadFailure` when a part of it cannot be read.
    """
    if file.length != geometry.size:
        return None
    try:
        return _Pass(file, reader, geometry, stream).run(previous)
    except _FlawError:
        return None


class _FlawError(Exception):
    """Something is not as it should be."""


class _Pass:
    def __init__(
        self, file: IndexFileName, reader: FileReader, geometry: IndexGeometry, stream: IndexStream
    ) -> None:
        self.file = file
        self.reader = reader
        self.geometry = geometry
        self.stream = stream
        self.buffer = np.empty(min(_BLOCK, geometry.size), dtype=np.uint8)
        self.heads = np.zeros(geometry.slots, dtype=np.int32)
        self.before: dict[int, Rows] = {}

    def run(self, previous: IndexFileVerdict | None) -> IndexFileVerdict:
        header = INDEX_HEADER.decode(self.reader.read(0, INDEX_HEADER.size))
        end = header.index_count
        _require(2 <= end <= self.geometry.entries)
        first, last = self._unit(1), self._unit(end - 1)
        self._check_ends(header, first, last, previous)
        self._read(self.geometry.units_offset, INDEX_UNIT.size)  # unit 0 says nothing, but it has to be readable
        self._check_behind(end)
        verdict = IndexFileVerdict(self.file, header, end, right=end - 1)
        try:
            verdict.tag_runs = self._follow(first, last, end)
            used = self._check_slots()
            _require(used <= header.hash_slot_count <= end - 1)
        except BaseException:
            self.stream.forget(self.before)
            raise
        if used < end - 1:
            verdict.counts_entries = header.hash_slot_count > used
        verdict.first_right = 1, first.phy_offset, first.key_hash
        verdict.last_right = last.phy_offset
        return verdict

    def _unit(self, number: int) -> IndexUnit:
        raw = self.reader.read(self.geometry.unit_offset(number), INDEX_UNIT.size)
        _require(len(raw) == INDEX_UNIT.size and any(raw))
        return INDEX_UNIT.decode(raw)

    def _check_ends(
        self, header: IndexHeader, first: IndexUnit, last: IndexUnit, previous: IndexFileVerdict | None
    ) -> None:
        """The header's ends are those of the first and the last unit; the first one's time fits the file before."""
        begin = self.stream.timestamp(first.phy_offset)
        _require((header.begin_timestamp, header.begin_phy_offset) == (begin, first.phy_offset))
        end = self.stream.timestamp(last.phy_offset)
        _require((header.end_timestamp, header.end_phy_offset) == (end, last.phy_offset))
        most = 0x7FFFFFFF
        if previous is not None and previous.sound and previous.units:
            most = time_diff(previous.header.end_timestamp, header.begin_timestamp)
        _require(0 <= first.time_diff <= most)

    def _check_behind(self, end: int) -> None:
        """Nothing stands after the last unit."""
        for start, stop in self.reader.data_ranges(self.geometry.unit_offset(end), self.geometry.size):
            for at in range(start, stop, self.buffer.size):
                size = min(self.buffer.size, stop - at)
                self._read(at, size)
                _require(last_nonzero(self.buffer, 0, size) < 0)

    def _read(self, at: int, size: int) -> None:
        spend(size)
        _require(self.reader.read_into(memoryview(self.buffer.data)[:size], at) == size)

    def _follow(self, first: IndexUnit, last: IndexUnit, end: int) -> list[TagRun]:
        """Take all units; runs of records with and without a unit for their tags."""
        begin = self.stream.timestamp(first.phy_offset) or 0
        runs: list[TagRun] = []
        state = np.zeros(STATE, dtype=np.int64)
        number, count = 1, 0
        for split_number in self.stream.overlapping(first.phy_offset, last.phy_offset):
            split = self.stream.splits[split_number]
            records, hashes = np.asarray(split.records), np.asarray(split.hashes)
            tag_states = np.zeros(records.size, dtype=np.uint8)
            found = self.stream.found(split_number)
            self.before[split_number] = found.copy()
            state[AT_UNIT + 1 :] = 0
            while True:
                if state[AT_UNIT] == count:
                    number += count
                    if number == end:
                        end_units(records, found, tag_states, state)
                        return runs + tag_runs(records, tag_states)
                    count = min(self.buffer.size // INDEX_UNIT.size, end - number)
                    self._read(self.geometry.unit_offset(number), count * INDEX_UNIT.size)
                    state[AT_UNIT] = 0
                status = follow_units(
                    self.buffer, count, number, begin, records, hashes, found, tag_states, self.heads, state
                )
                if status == MORE_RECORDS:
                    break
                _require(status == MORE_UNITS)
            runs += tag_runs(records, tag_states)
        raise _FlawError

    def _check_slots(self) -> int:
        """Every slot is the head of its chain; how many are in use."""
        step = self.buffer.size // INDEX_SLOT.size
        used = 0
        for first in range(0, self.geometry.slots, step):
            count = min(step, self.geometry.slots - first)
            self._read(self.geometry.slot_offset(first), count * INDEX_SLOT.size)
            found = int(slots_in_use(self.buffer, first, count, self.heads))
            _require(found >= 0)
            used += found
        return used


def _require(fits: bool) -> None:
    if not fits:
        raise _FlawError


class IndexReport(Struct):
    """All index files. Counts are units; `stream` knows which keys of the log were found.

    `switched_off`: there is no index and there seems never to have been one; nothing is expected then.
    """

    listing: IndexListing
    geometry: IndexGeometry | None
    stream: IndexStream
    verdicts: list[IndexFileVerdict] = field(default_factory=list)
    expected: int = 0
    missing: int = 0
    switched_off: bool = False
    findings: list[Finding] = field(default_factory=list)
    unreadable: dict[str, int] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """Index files in the folder."""
        return len(self.listing.files)

    @property
    def entries(self) -> int:
        """Units in use, over all files."""
        return sum(verdict.units for verdict in self.verdicts)

    @property
    def wrong(self) -> int:
        """Units that do not say what they should."""
        return sum(verdict.wrong for verdict in self.verdicts)

    @property
    def expired(self) -> int:
        """Units of messages before the log's first file."""
        return sum(verdict.expired for verdict in self.verdicts)

    @property
    def lost(self) -> int:
        """Units of messages that are damaged, or that a stand-in record stands for."""
        return sum(verdict.lost for verdict in self.verdicts)

    def json(self) -> dict[str, int]:
        """The `index` object of the verify document."""
        return {
            "files": self.files, "entries": self.entries, "expected": self.expected, "missing": self.missing,
            "wrong": self.wrong, "expired": self.expired, "lost": self.lost,
        }
