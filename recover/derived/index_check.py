"""Check the index against the log in both directions: every unit, and every key.

A file is right if its numbered units add up to the sum that the log calls for, and its chains and slots are those of
its units; nothing else is checked. Any other file is read whole: its units are checked against the log, its chains
against the hashes, its header against both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
from msgspec import Struct, field, structs

from formats.basics import Buffer
from formats.checkpoint import Checkpoint, newer_fields
from formats.index import (
    INDEX_HEADER,
    INDEX_SLOT,
    INDEX_UNIT,
    MAX_TIME_DIFF,
    IndexGeometry,
    IndexHeader,
    IndexUnit,
    time_diff,
)
from formats.native import index as native
from formats.native.walk import last_nonzero
from recover.broker.versions import TAG_INDEX, BrokerVersion
from recover.derived.index_files import (
    IndexFileName,
    IndexListing,
    IndexWords,
    index_geometry,
    list_index_files,
    read_words,
)
from recover.derived.index_keys import (
    IndexStream,
    Marks,
    Span,
    SpanSum,
    Stretch,
    Stretches,
    TagHistory,
    TagRun,
    UnitSum,
    match_units,
    missing_of,
)
from recover.findings.code import BY_HAND, N_, RECOVER, Refusal
from recover.findings.model import Finding, Phrase, finding
from recover.log.scan import SEED, LogView
from recover.store.columns import Asking, Rows, Split, ask, scratch_zeros, together
from recover.store.mapped_files import OddName
from recover.store.reader import FileReader, ReadFailure
from recover.store.reading import FILE
from recover.store.source import open_file
from recover.store.store import Store

_PROBE_UNITS = 256
_BATCH_FILES = 512
_READ_SIZE = 2_000_000
"""Bytes per read: a multiple of unit and slot size."""
_CHUNK_UNITS = 1 << 20
_NONE = np.zeros(0, dtype=np.int32)

_CLASSES = np.arange(256, dtype=np.uint8)
_KINDS = _CLASSES & native.CLASS
_RIGHT, _EXPIRED, _LOST, _BEYOND = (
    np.equal(_KINDS, kind) for kind in (native.RIGHT, native.EXPIRED, native.LOST, native.BEYOND_LOG))
_NAMED = _RIGHT | (_KINDS == native.DUPLICATE)
_WITHOUT_KEY = (_KINDS == native.NO_RECORD) | (_KINDS == native.OTHER_KEY)
_INVALID = _WITHOUT_KEY | _BEYOND
_LOOP, _WRONG_CHAIN, _OFF_TIME = (
    (_CLASSES & flaw) != 0 for flaw in (native.CHAIN_LOOP, native.WRONG_CHAIN, native.WRONG_TIME))
_FLAWED = _LOOP | _WRONG_CHAIN | _OFF_TIME
_ONLY_OTHER_KEY = (_CLASSES & ~np.uint8(native.WRONG_TIME)) == native.OTHER_KEY
_UNIT_CODES = (
    ("index-wrong-units", _WITHOUT_KEY), ("index-beyond-log", _BEYOND), ("index-lost-units", _LOST),
    ("index-chain-loop", _LOOP), ("index-wrong-chain", _WRONG_CHAIN), ("index-wrong-time", _OFF_TIME),
)
"""Classes of units and flaws to report, each with its code; like all masks above, one bool a class value."""
_SLOT_CODES = ((native.SLOT_OUT_OF_RANGE, "index-slot-out-of-range"), (native.SLOT_WRONG, "index-wrong-slot"))
_MOST_OTHERS = 100
_MOST_RUNS = 10_000
_NEAR_EMPTY_PART = 100
_NEAR_EMPTY_FILES = 3


class IndexFileVerdict(Struct):
    """The result of checking one index file. Counts are units; `end` is the number after the last unit.

    `first_right`: (number, phy offset, key hash) of the first right unit; `last_right`: phy offset of the last one;
    None without one. `wrong_before`: wrong units before `first_right`. `expired_before`: expired units before the first
    live one, if their times can be trusted. `header` is the stored one; `counts_entries`: its hash_slot_count counts
    units, as in brokers up to 4.7.0; None if unknown. `by_log_file`: for a file with wrong units, how many messages
    they name rightly and wrongly in each log file (by its first offset). `behind`, `lost_at`: phy offsets (int64) past
    the log's end, and in its damaged ranges, that units name, also units that the header does not count. `other_keys`:
    (phy offset, key hash) of units in their right chains that name a record without that key.
    """

    file: IndexFileName
    header: IndexHeader
    end: int = 1
    right: int = 0
    wrong: int = 0
    expired: int = 0
    lost: int = 0
    first_right: tuple[int, int, int] | None = None
    last_right: int | None = None
    wrong_before: int = 0
    expired_before: int = 0
    counts_entries: bool | None = None
    other_keys: list[tuple[int, int]] = field(default_factory=list)
    by_log_file: dict[int, tuple[int, int]] = field(default_factory=dict)
    behind: bytes = b""
    lost_at: bytes = b""
    tag_runs: list[TagRun] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def units(self) -> int:
        return self.end - 1

    @property
    def sound(self) -> bool:
        """Whether nothing in the file needs to change; missing units do not count."""
        return all(item.severity == "info" for item in self.findings)


class IndexReport(Struct):
    """The results of all index files. Counts are units; `stream` records which keys of the log were found.

    `switched_off`: there is no index and no sign that there ever was one, so nothing is expected.
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
    def behind(self) -> Rows:
        """The phy offsets past the log's end that units name, ascending."""
        return np.unique(np.frombuffer(b"".join(verdict.behind for verdict in self.verdicts), dtype=np.int64))

    @property
    def lost_at(self) -> Rows:
        """The phy offsets in damaged ranges of the log that units name, ascending."""
        return np.unique(np.frombuffer(b"".join(verdict.lost_at for verdict in self.verdicts), dtype=np.int64))

    def total(self, name: str) -> int:
        """Return the sum of a count over the verdicts."""
        return sum(getattr(verdict, name) for verdict in self.verdicts)

    def json(self) -> dict[str, int]:
        """Return the `index` object of the verify document."""
        return {
            "files": len(self.listing.files), "entries": self.total("units"), "expected": self.expected,
            "missing": self.missing, "wrong": self.total("wrong"), "expired": self.total("expired"),
            "lost": self.total("lost"),
        }


# --- Fast path: files that hold exactly what the log calls for. ------------------------------------------------------


class Compared(Struct):
    """A file that holds what the log calls for: its verdict, the spans of its keys, and the time difference (seconds)
    of its first unit to the end of the previous file, -1 if that unit has expired."""

    verdict: IndexFileVerdict
    spans: list[tuple[int, Span]]
    seconds: int


def compare_files(
    files: Sequence[IndexFileName], geometry: IndexGeometry, stream: IndexStream, min_offset: int,
    held: Mapping[str, UnitsTotal],
) -> Iterator[Compared | OSError | None]:
    """Yield the result of `compare_file` for each file, or the error if it cannot be read. Requests of many files to
    the log are batched. `held`: results of `units_total` by file name, if it ran elsewhere."""
    for at in range(0, len(files), _BATCH_FILES):
        beside = ThreadPoolExecutor(1)
        try:
            found = together([compare_file(file, geometry, stream, min_offset, held.get(file.name), beside)
                              for file in files[at : at + _BATCH_FILES]], ask)
        finally:
            beside.shutdown(cancel_futures=True)
        yield from found


def compare_file(
    file: IndexFileName, geometry: IndexGeometry, stream: IndexStream, min_offset: int, held: UnitsTotal | None,
    beside: ThreadPoolExecutor,
) -> Asking[Compared | None]:
    """Return the comparison of a file that holds exactly the units that the log calls for from its first live one on;
    else None.

    Their sum must equal that of the keys, computed where the rows are; chains, slots and header follow from the units.
    Only units of messages before `min_offset` of the log may come first. `held`: the sum of the units; if None, it is
    computed on `beside`. `ReadFailure` if a part of the file cannot be read.
    """
    head = _read_head(file, geometry, min_offset)
    found = None if head is None else (yield from stream.head(head.unit.phy_offset, head.unit.key_hash))
    if head is None or found is None:
        return None
    split, key = found
    header = head.header
    if not head.agrees(key.timestamp):
        return None
    live = header.index_count - 1 - head.expired
    computing: Future[UnitsTotal | None] | None = None
    for (rule, numbers), before in zip(stream.by_rule.items(), key.before, strict=True):
        start = int(numbers.starts[split]) + before
        if start + live > numbers.total:
            continue
        spans = numbers.unit_spans(rule, start, live, header.begin_timestamp, head.seconds, header.end_phy_offset)
        if not stream.knows(spans):
            # a few units tell which rule holds
            first = structs.replace(spans[0][1], count=min(spans[0][1].count, _PROBE_UNITS))
            (begin,) = yield from stream.sums([(spans[0][0], first)])
            if _unit_sum(head.few[: first.count * INDEX_UNIT.size], 0)[0] != begin.sum:
                continue
        if held is None:
            computing = computing or beside.submit(units_total, geometry, SEED, file)
        sums = yield from stream.sums(spans)
        held = computing.result() if computing is not None else held
        if held is None or not head.counts(held):
            return None
        total, number = head.total, head.expired + 1
        for (_, span), part in zip(spans, sums, strict=True):
            total, number = total.plus(part.sum, number), number + span.count
        ends = sums[-1].end_timestamp, sums[-1].end_offset
        if ends == (header.end_timestamp, header.end_phy_offset) and total == held.sum:
            return Compared(_verdict_of(file, header, held.slots, rule, sums, head.unit, head.expired), spans,
                            head.seconds)
    return None


class _Head(Struct, frozen=True):
    """The begin of an index file: its header, how many units of expired messages come first, the phy offset of the
    first of them and their sum (`total`), and the bytes of a few live units after them."""

    header: IndexHeader
    expired: int
    first_expired: int
    total: UnitSum
    few: bytes

    @property
    def unit(self) -> IndexUnit:
        """The first live unit."""
        return INDEX_UNIT.decode(self.few[: INDEX_UNIT.size].ljust(INDEX_UNIT.size, b"\0"))

    @property
    def seconds(self) -> int:
        """The time difference of the file's first unit, -1 if that has expired."""
        return -1 if self.expired else self.unit.time_diff

    @property
    def stretch(self) -> Stretch:
        """The keys of the file, as far as its begin tells."""
        unit, header = self.unit, self.header
        return Stretch(unit.phy_offset, unit.key_hash, header.begin_timestamp, self.seconds, header.end_phy_offset)

    def agrees(self, timestamp: int) -> bool:
        """Whether the header says what the first units say; `timestamp`: that of the first live message."""
        begin, offset = self.header.begin_timestamp, self.header.begin_phy_offset
        if self.expired:
            return 0 < begin <= self.header.end_timestamp and offset == self.first_expired
        return self.seconds >= 0 and (begin, offset) == (timestamp, self.unit.phy_offset)

    def counts(self, held: UnitsTotal) -> bool:
        """Whether the header counts what the file holds."""
        count = self.header.index_count
        return held.count == count and held.slots <= self.header.hash_slot_count < count


def _read_head(file: IndexFileName, geometry: IndexGeometry, min_offset: int) -> _Head | None:
    """Read the begin of a file; None for one of another length, or without a plausible header."""
    if file.length != geometry.size:
        return None
    with open_file(file.path) as reader:
        header = _plausible_header(reader, geometry)
        if header is None:
            return None
        expired, first, total = _expired_head(reader, geometry, header, min_offset)
        few = reader.read(geometry.unit_offset(expired + 1), _PROBE_UNITS * INDEX_UNIT.size)
    return _Head(header, expired, first, total, few)


def stretches_of(store: Store, min_offset: int) -> Stretches:
    """Return what the heads of the index files say that they hold, for a scan of the log, from `min_offset` on, that
    adds it up. Whatever is wrong with them, their check says."""
    with suppress(OSError, Refusal):
        listing = list_index_files(store.index_dir)
        return _stretches(listing.files, index_geometry(store, listing), min_offset)
    return Stretches([])


def _stretches(files: Iterable[IndexFileName], geometry: IndexGeometry | None, min_offset: int) -> Stretches:
    found: list[Stretch] = []
    for file in files:
        with suppress(OSError):
            head = None if geometry is None else _read_head(file, geometry, min_offset)
            found += [] if head is None else [head.stretch]
    return Stretches(found)


def _plausible_header(reader: FileReader, geometry: IndexGeometry) -> IndexHeader | None:
    """Return the header of a file with units, at most as many as it has room for; None for any other file."""
    head = reader.read(0, INDEX_HEADER.size)
    header = INDEX_HEADER.decode(head) if len(head) == INDEX_HEADER.size else None
    return header if header is not None and 2 <= header.index_count <= geometry.entries else None


def _windows(reader: FileReader, start: int, stop: int) -> Iterator[tuple[int, Rows]]:
    """Yield offset and content of successive windows; a window's bytes are valid until the next."""
    room = np.empty(max(0, min(_READ_SIZE, stop - start)), dtype=np.uint8)
    for at in range(start, stop, _READ_SIZE):
        size = min(_READ_SIZE, stop - at)
        yield at, room[: reader.read_into(memoryview(room.data)[:size], at)]


def _expired_head(
    reader: FileReader, geometry: IndexGeometry, header: IndexHeader, min_offset: int
) -> tuple[int, int, UnitSum]:
    """Return how many units of expired messages come first (never the last unit), the first one's phy offset, and their
    sum."""
    count = first = 0
    total = UnitSum()
    start, stop = geometry.unit_offset(1), geometry.unit_offset(header.index_count - 1)
    few = min(stop, geometry.unit_offset(1 + _PROBE_UNITS))
    for _, content in chain(_windows(reader, start, few), _windows(reader, few, stop)):
        units = content[: content.size // INDEX_UNIT.size * INDEX_UNIT.size].view(">i4").reshape(-1, 5).astype(np.int32)
        known = int(np.argmin(np.r_[is_expired(units, min_offset), False]))
        if known and not count:
            first = int(native.phy_offsets(units[:1])[0])
        total = total.plus(_unit_sum(content[: known * INDEX_UNIT.size], count + 1)[0])
        count += known
        if known < len(units):
            break
    return count, first, total


def _max_first_diff(previous: IndexFileVerdict | None, begin: int) -> int:
    """Return the largest valid time difference of a file's first unit: from the end of the previous file.

    The previous file by name is newer if the clock went back, as at the end of summer time; then any is valid.
    """
    if previous is None or not previous.sound or not previous.units or previous.header.end_timestamp > begin:
        return MAX_TIME_DIFF
    return time_diff(previous.header.end_timestamp, begin)


def _unit_sum(content: Buffer | Rows, number: int, slots: Rows = _NONE, seed: int = SEED) -> tuple[UnitSum, int]:
    """Return what `follow_units` finds; an incomplete unit at the end is ignored."""
    whole = len(content) // INDEX_UNIT.size * INDEX_UNIT.size
    units = np.frombuffer(content, dtype=np.int32, count=whole // 4).reshape(-1, INDEX_UNIT.size // 4)
    *total, wrong = native.follow_units(units, number, seed, slots)
    return UnitSum.of(*total), wrong


class UnitsTotal(Struct, frozen=True):
    """What the units of a file add up to: header index_count (units + 1), their sum, and the slots they use."""

    count: int
    sum: UnitSum
    slots: int


def units_total(geometry: IndexGeometry, seed: int, file: IndexFileName) -> UnitsTotal | None:
    """Return the sum, by `seed`, and used slots of an index file's units; None if slots or chains do not follow from
    the units, or other bytes before or after them are not zero. `OSError` if unreadable."""
    slots, total = np.zeros(geometry.slots, dtype=np.int32), UnitSum()
    with open_file(file.path) as reader:
        header = _plausible_header(reader, geometry)
        if header is None:
            return None
        end = geometry.unit_offset(header.index_count)
        for at, content in _windows(reader, geometry.unit_offset(1), end):
            part, wrong = _unit_sum(content, (at - geometry.units_offset) // INDEX_UNIT.size, slots, seed)
            total = total.plus(part)
            if wrong:
                return None
        for at, content in _windows(reader, geometry.slots_offset, geometry.units_offset):
            own = slots[(at - geometry.slots_offset) // INDEX_SLOT.size :][: _READ_SIZE // INDEX_SLOT.size]
            if not np.array_equal(content, own.astype(">i4").view(np.uint8)):
                return None
        blank = [(geometry.units_offset, geometry.unit_offset(1)), *reader.data_ranges(end, geometry.size)]
        if any(content.any() for start, stop in blank for _, content in _windows(reader, start, stop)):
            return None
    return UnitsTotal(header.index_count, total, int(np.count_nonzero(slots)))


def _verdict_of(
    file: IndexFileName, header: IndexHeader, used: int, rule: int, sums: list[SpanSum], unit: IndexUnit, expired: int,
) -> IndexFileVerdict:
    """Return the verdict on a right file: `expired` units, then the live ones from `unit` on."""
    units = header.index_count - 1
    verdict = IndexFileVerdict(file, header, units + 1, units - expired, expired=expired, expired_before=expired)
    verdict.first_right, verdict.last_right = (expired + 1, unit.phy_offset, unit.key_hash), header.end_phy_offset
    if used < units:
        verdict.counts_entries = header.hash_slot_count > used
    tagged = [it for it in sums if it.tagged]
    if tagged:
        verdict.tag_runs = [TagRun(tagged[0].first_tagged, sum(it.tagged for it in tagged), rule == native.TAKE_ALL)]
    return verdict


# --- Slow path: any other file. --------------------------------------------------------------------------------------


class _Judge:
    """Checks one file in memory; `name` is its name in findings, `previous` the verdict on the file before it.

    Marks the keys it finds in `stream`, that of `log`.
    """

    def __init__(
        self, file: IndexFileName, name: str, image: IndexWords, log: LogView, stream: IndexStream,
        previous: IndexFileVerdict | None,
    ) -> None:
        self.verdict = IndexFileVerdict(file, image.header)
        self.name, self.image, self.log, self.stream, self.previous = name, image, log, stream, previous
        units = image.units
        self.written = max(0, last_nonzero(units.view(np.uint8).reshape(-1), 0, units.nbytes)) // INDEX_UNIT.size + 1
        counted = max(1, image.header.index_count)  # IndexFile.load takes a count below 1 as 1
        self.counted = counted
        self.verdict.end = self.end = min(counted, self.written)
        self.offsets = scratch_zeros(self.end, np.int64)
        for at in range(0, self.end, _CHUNK_UNITS):
            part = self.offsets[at : at + _CHUNK_UNITS]
            part[:] = native.phy_offsets(units[at : at + part.size])
        self.classes = np.zeros(self.end, dtype=np.uint8)
        self.counts = np.zeros(_CLASSES.size, dtype=np.int64)

    def run(self) -> IndexFileVerdict:
        if self.counted != self.written:
            header = self.image.header.index_count
            self._report("index-count-wrong", 36, header=header, written=self.written - 1)
        if self.end > 1:
            self._match()
            self._classify_rest()
            self._check_first_time()
        used = self._check_chains()
        for at in range(1, self.end, _CHUNK_UNITS):
            self.counts += np.bincount(self.classes[at : at + _CHUNK_UNITS], minlength=_CLASSES.size)
        self._check_header(used)
        self._sum_up()
        return self.verdict

    def _count(self, kinds: Rows) -> int:
        """Return how many units are of these classes (bool array)."""
        return int(self.counts[kinds].sum())

    def _among(self, kinds: Rows) -> Rows:
        """Which units are of these classes (bool array). Unit 0 counts as one without a key."""
        # one byte a unit; indexing by class would take eight
        return np.frombuffer(self.classes.tobytes().translate(kinds.tobytes()), dtype=np.bool_)

    def _numbers(self, kinds: Rows) -> Rows:
        """Return the numbers of the units of these classes, ascending."""
        return np.flatnonzero(self._among(kinds)[1:]) + 1 if self._count(kinds) else _NONE

    def _report(self, code: str, offset: int | None, **facts: Any) -> None:
        self.verdict.findings.append(finding(code, self.name, offset, **facts))

    def _match(self) -> None:
        """Match the units with the records that they name."""
        offsets, order = self.offsets[1:], None
        if (offsets[1:] < offsets[:-1]).any():
            order = np.argsort(offsets, kind="stable")
            offsets = offsets[order]
        # time differences count from the first unit's message, if the log has it
        timestamp = self.stream.timestamp(int(self.offsets[1]))
        begin = self.verdict.header.begin_timestamp if timestamp is None else timestamp
        for number in self.stream.overlapping(int(offsets[0]), int(offsets[-1])):
            split, stop = self.stream.splits[number], self.stream.start(number + 1)
            first, last = np.searchsorted(offsets, [self.stream.start(number), stop]).tolist()
            numbers = np.arange(first, last) + 1 if order is None else order[first:last] + 1
            self.verdict.tag_runs += match_units(
                self.image.units, self.end, numbers, offsets[first:last], np.asarray(split.records),
                np.asarray(split.hashes), self.stream.found(number), self.classes, begin,
            )

    def _classify_rest(self) -> None:
        """Classify units that match no record: expired, in damage, past the end, or wrong."""
        rest = np.flatnonzero(self.classes[1:] == native.NO_RECORD) + 1
        units, offsets = self.image.units[rest], self.offsets[rest]
        kinds = np.full(rest.size, native.NO_RECORD, dtype=np.uint8)
        kinds[offsets >= self.log.log_end] = native.BEYOND_LOG
        kinds[self.log.in_damage(offsets)] = native.LOST
        kinds[is_expired(units, self.log.min_offset)] = native.EXPIRED
        if not self.log.files:
            kinds[:] = native.LOST
        kinds[~units.any(axis=1)] = native.NO_RECORD
        self.classes[rest] = kinds

    def _check_first_time(self) -> None:
        """Check unit 1's time difference: it counts from the end of the file that was the previous one at creation."""
        if _NAMED[self.classes[1]]:
            most = _max_first_diff(self.previous, self.stream.timestamp(int(self.offsets[1])) or 0)
            if not 0 <= int(self.image.units[1, 3]) <= most:
                self.classes[1] |= native.WRONG_TIME

    def _check_chains(self) -> int:
        """Flag units with wrong chains and report wrong slots; return the number of slots in use."""
        slots = self.image.slots
        heads = np.zeros(slots.size, dtype=np.int32)
        flags = np.zeros(slots.size, dtype=np.uint8)
        used = int(native.check_chains(self.image.units, self.end, slots, self.classes, heads, flags))
        # slots that name units past `end` are explained by the wrong count
        named = min(max(self.counted, self.written), self.image.geometry.entries)
        if named > self.end:
            flags[(slots >= self.end) & (slots < named)] = 0
        in_use = np.flatnonzero((heads != 0) | (slots != 0) | (flags != 0)) if flags.any() else flags[:0]
        for kind, code in _SLOT_CODES:
            flagged = np.flatnonzero(flags[in_use] == kind)
            for start, stop in _runs(flagged):
                first, last = int(in_use[flagged[start]]), int(in_use[flagged[stop - 1]])
                self._report(code, self.image.geometry.slot_offset(first), first=first, last=last, count=stop - start)
        return used

    def _newest(self) -> int:
        """Return the latest time (ms) of the file's messages, which is not the last one's if times go back."""
        header, first, last = self.verdict.header, int(self.offsets[1:].min()), int(self.offsets[1:].max())
        newest = header.end_timestamp
        for number in self.stream.overlapping(first, last) if header.begin_timestamp > newest else ():
            records = self.stream.splits[number].records
            start, stop = np.searchsorted(records["phy_offset"], (first, last + 1))
            newest = max(newest, int(records["store_timestamp"][start:stop].max(initial=0)))
        return newest

    def _check_header(self, used: int) -> None:
        header, end, count_fits = self.verdict.header, self.end, self.counted == self.written
        wrong = []
        if end > 1:
            wrong += self._wrong_end(1, header.begin_timestamp, header.begin_phy_offset, "begin")
            if count_fits:
                too_late = _EXPIRED[self.classes[1]] and header.begin_timestamp > self._newest()
                wrong += ["begin_timestamp"] if too_late else []
                wrong += self._wrong_end(end - 1, header.end_timestamp, header.end_phy_offset, "end")
        elif header.begin_phy_offset != header.end_phy_offset or header.begin_timestamp != header.end_timestamp:
            wrong += ["begin", "end"]
        # brokers up to 4.7.0 count every unit, later ones each used slot; a file may have been written by both
        broken = self._count(_FLAWED | _INVALID)
        if count_fits and not (0 if broken else used) <= header.hash_slot_count <= end - 1:
            wrong.append("hash_slot_count")
        elif count_fits and not broken and used < end - 1:
            self.verdict.counts_entries = header.hash_slot_count > used
        if wrong:
            self._report("index-header-wrong", 0, fields=", ".join(wrong))

    def _wrong_end(self, number: int, timestamp: int, phy_offset: int, which: str) -> list[str]:
        kind, offset = self.classes[number], int(self.offsets[number])
        if _WITHOUT_KEY[kind]:
            return []
        true_time = self.stream.timestamp(offset) if _NAMED[kind] else None
        wrong = [f"{which}_timestamp"] if true_time not in (None, timestamp) else []
        return [*wrong, f"{which}_phy_offset"] if offset != phy_offset else wrong

    def _sum_up(self) -> None:
        verdict, header = self.verdict, self.verdict.header
        verdict.right, verdict.expired, verdict.lost = map(self._count, (_RIGHT, _EXPIRED, _LOST))
        verdict.wrong = self._count(_INVALID | (_NAMED & _FLAWED))
        if verdict.right:
            live = self._among(_RIGHT)
            first = int(live.argmax())
            verdict.first_right = first, int(self.offsets[first]), int(self.image.units[first, 0])
            verdict.last_right = int(self.offsets[live.size - 1 - int(live[::-1].argmax())])
            verdict.wrong_before = int(self._among(_INVALID)[1:first].sum())
        named = self._among(_NAMED)
        times_fit = self._count(_NAMED & _OFF_TIME) * 2 <= self._count(_NAMED)
        if 0 < header.begin_timestamp <= header.end_timestamp and times_fit:
            first_live = int(named.argmax()) if named.any() else self.end
            verdict.expired_before = int(self._among(_EXPIRED)[:first_live].sum())
        if self._count(_INVALID) and self.log.files:
            verdict.by_log_file = self._by_log_file(named)
        if self.log.files:
            behind, lost = (np.unique(self.offsets[self._numbers(kinds)]) for kinds in (_BEYOND, _LOST))
            more = self._uncounted()
            verdict.behind = np.append(behind, more[more >= self.log.log_end]).tobytes()
            verdict.lost_at = np.append(lost, more[self.log.in_damage(more)]).tobytes()
        if self._count(_ONLY_OTHER_KEY) <= _MOST_OTHERS:
            verdict.other_keys = [(int(self.offsets[number]), int(self.image.units[number, 0]))
                                  for number in self._numbers(_ONLY_OTHER_KEY).tolist()]
        for code, kinds in _UNIT_CODES:
            numbers = self._numbers(kinds) if self.log.files or kinds is not _LOST else _NONE
            facts = {"log_end": self.log.log_end} if kinds is _BEYOND else {}
            for start, stop in _runs(numbers):
                at, last = int(numbers[start]), int(numbers[stop - 1])
                self._report(code, self.image.geometry.unit_offset(at), first=at, last=last, count=stop - start,
                             phy_offset=int(self.offsets[at]), **facts)

    def _uncounted(self) -> Rows:
        """Return what units name that stand in the file and that its header does not count: a broker overwrites them,
        but they tell of messages."""
        found = [np.empty(0, dtype=np.int64)]
        for at in range(self.end, self.written, _CHUNK_UNITS):
            units = self.image.units[at : min(at + _CHUNK_UNITS, self.written)]
            could_be = (units[:, 0] >= 0) & (units[:, 4] >= 0) & (units[:, 4] < np.arange(at, at + len(units)))
            found.append(native.phy_offsets(units[could_be & units[:, :4].any(axis=1)]))
        return np.concatenate(found)

    def _by_log_file(self, named: Rows) -> dict[int, tuple[int, int]]:
        """Return how many messages units name rightly and wrongly in each log file, by its first offset."""
        # a unit of zeros names nothing, and one past the end contradicts no record
        lost = self._numbers(_WITHOUT_KEY)
        against = np.unique(self.offsets[lost[self.image.units[lost].any(axis=1)]])
        low, high = (int(edge) for edge in (self.offsets[1:].min(), self.offsets[1:].max()))
        found = {}
        for scan in self.log.files:
            start, stop = scan.mapped_file.file_from_offset, scan.file_end
            right = 0
            if low < stop and high >= start:
                right = np.unique(self.offsets[named & (self.offsets >= start) & (self.offsets < stop)]).size
            found[start] = right, int(np.diff(np.searchsorted(against, [start, stop]))[0])
        return found


def is_expired(units: Rows, min_offset: int) -> Rows:
    """Which rows name a message before the log's first file and could be a unit (bool array)."""
    offsets = native.phy_offsets(units)
    return np.asarray((offsets >= 0) & (offsets < min_offset) & (units[:, 0] >= 0) & units[:, :4].any(axis=1))


def _runs(numbers: Rows) -> Iterator[tuple[int, int]]:
    """Yield places [start, stop) in `numbers` (ascending) of consecutive runs; those past _MOST_RUNS join the last run.

    A file of noise has millions.
    """
    return _parts(np.flatnonzero(np.diff(numbers) != 1)[: _MOST_RUNS - 1] + 1, numbers.size)


def _parts(cuts: Rows, size: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of each part of [0, size) cut at these places."""
    return zip([0, *cuts.tolist()], [*cuts.tolist(), size], strict=True) if size else iter(())


# --- All files, and the keys that none of them has. ------------------------------------------------------------------


def odd_index_name(store: Store, odd: OddName) -> Finding:
    """Return the finding for an entry that does not belong in the index folder; brokers skip files with other names."""
    file, name = store.relative(odd.path), odd.path.name
    if odd.kind == FILE:
        return finding("index-odd-name", file, name=name, why=N_("the name is not 17 digits"))
    return finding("index-odd-name", file, severity="warning", name=name, why=Phrase("it is {kind}", kind=odd.kind),
                   remedy=RECOVER if odd.is_directory else BY_HAND)


def check_index(store: Store, log: LogView) -> IndexReport:
    """Check every index file of the store; of files that differ, one at a time is in memory."""
    assert log.has_keys, "units are made of keys"
    listing = list_index_files(store.index_dir)
    stream = IndexStream(log.splits())
    geometry = index_geometry(store, listing)
    report = IndexReport(listing, geometry, stream)
    found = report.findings = [odd_index_name(store, odd) for odd in listing.odd]
    stream.foresight = partial(_stretches, listing.files, geometry, log.min_offset)
    compared: Iterator[Compared | OSError | None] = repeat(None) if geometry is None else compare_files(
        listing.files, geometry, stream, log.min_offset, _totals_there(log, listing.files, geometry))
    for file, beside in zip(listing.files, compared, strict=False):
        if not file.is_time:
            found.append(odd_index_name(store, OddName(file.path, FILE, file.length)))
        found += _check_file(store, log, report, file, beside)
    checkpoint = store.checkpoint(extend=True)
    stream.tags = TagHistory.infer([run for verdict in report.verdicts for run in verdict.tag_runs],
                                   _writes_tag_units(store, checkpoint))
    for question in (_missing_units, _sizes, _newer):
        found += question(store, report, checkpoint)
    for verdict in report.verdicts:
        found += verdict.findings
    return report


def _sizes(store: Store, report: IndexReport, _: Checkpoint | None) -> Iterator[Finding]:
    """Whether the sizes of the files are known, and their room is used."""
    if report.geometry is None:
        yield finding("index-sizes-unknown", store.relative(report.listing.directory))
        return
    empty = [v for v in report.verdicts[:-1] if v.units * _NEAR_EMPTY_PART < report.geometry.capacity]
    if len(empty) >= _NEAR_EMPTY_FILES:
        yield _finding_on(store, empty, "index-near-empty-files", bytes=sum(v.file.length for v in empty))


def _newer(store: Store, report: IndexReport, checkpoint: Checkpoint | None) -> Iterator[Finding]:
    """After an unclean stop, files with messages that the checkpoint does not know yet."""
    known = 0 if checkpoint is None else checkpoint.index_msg_timestamp
    newer = [v for v in report.verdicts if store.has_abort and v.header.end_timestamp > known]
    if newer:
        yield _finding_on(store, newer, "index-newer-than-checkpoint", more=len(newer) - 1, checkpoint=known)


def _totals_there(log: LogView, files: Sequence[IndexFileName], geometry: IndexGeometry) -> dict[str, UnitsTotal]:
    """Return `units_total` of the files by name, computed where the rows of the log are kept; empty if that is here."""
    whole = [file for file in files if file.length == geometry.size]
    there = [structs.replace(file, path=file.path.absolute()) for file in whole]
    found = log.spread(partial(units_total, geometry, SEED), there, [file.length for file in there])
    if found is None:
        return {}
    return {file.name: held for file, held in zip(whole, found, strict=True) if held is not None}


def _finding_on(store: Store, verdicts: list[IndexFileVerdict], code: str, **facts: Any) -> Finding:
    """Return one finding on several files, placed at the first."""
    first, last = verdicts[0].file, verdicts[-1].file
    return finding(code, store.relative(first.path), None, first=first.name, last=last.name, count=len(verdicts),
                   **facts)


def _writes_tag_units(store: Store, checkpoint: Checkpoint | None) -> bool:
    """Whether the store's broker seems to index tags: the release given by the user, else by traces of 5.4 and
    later."""
    if store.options.broker is not None:
        return BrokerVersion.parse(store.options.broker).has(TAG_INDEX)
    # 5.4.0 and later create this folder in every store
    traces = (store.root / "rocksdbstore").is_dir()
    return traces or (checkpoint is not None
                      and "logics_physical_offset" in newer_fields(checkpoint, store.commitlog.max_offset))


def _check_file(
    store: Store, log: LogView, report: IndexReport, file: IndexFileName, compared: Compared | OSError | None,
) -> Iterator[Finding]:
    """Add the verdict on one file to `report`, or yield a finding for each part that cannot be read; nothing if the
    sizes are unknown."""
    geometry = report.geometry
    if geometry is None:
        return
    previous = report.verdicts[-1] if report.verdicts else None
    name = store.relative(file.path)
    if isinstance(compared, Compared) and compared.seconds <= _max_first_diff(
            previous, compared.verdict.header.begin_timestamp):
        report.stream.mark(compared.spans)
        report.verdicts.append(compared.verdict)
        return
    try:
        if isinstance(compared, OSError) and not isinstance(compared, ReadFailure):
            raise compared
        with open_file(file.path) as reader:
            image = read_words(reader, geometry)
    except OSError as error:
        report.unreadable[file.name] = len(report.verdicts)
        yield finding("index-unreadable", name, 0, wanted=file.length, error=error.strerror)
        return
    # a file that failed to read once is not sound, even if it can be read now
    failures = image.failures or ([compared] if isinstance(compared, ReadFailure) else [])
    if failures:
        report.unreadable[file.name] = len(report.verdicts)
        for failure in failures:
            yield finding("index-unreadable", name, failure.offset, wanted=failure.wanted, error=failure.strerror)
        return
    verdict = _Judge(file, name, image, log, report.stream, previous).run()
    if file.length != geometry.size:
        verdict.findings.append(finding(
            "index-file-length", name, min(file.length, geometry.size), length=file.length, expected=geometry.size,
            slots=geometry.slots, entries=geometry.entries,
        ))
    report.verdicts.append(verdict)


def _missing_units(store: Store, report: IndexReport, checkpoint: Checkpoint | None) -> Iterator[Finding]:
    """Count expected and missing units; yield a finding for each run of messages in one file. None is missing where
    the broker writes no index."""
    never = checkpoint is not None and checkpoint.index_msg_timestamp == 0
    if not report.listing.files and never and report.stream.has_units:
        report.switched_off = True
        yield finding("index-switched-off", store.relative(report.listing.directory))
        return
    stream, where = report.stream, (_blind_ranges(report), _coverage(report.verdicts))
    told = [_missing_as_told(stream, number, *where) for number in range(len(stream.splits))]
    found = iter(ask([(split, partial(_missing, stream.take(number), stream.marks(number), *where))
                      for number, split in enumerate(stream.splits) if told[number] is None]))
    runs: list[_Run] = []
    passed = 0
    for number, known in enumerate(told):
        report.expected += stream.expected(number)
        asked, own = known or next(found)
        for run in own:
            run.begin, run.end = run.begin + passed, run.end + passed
            if not runs or (runs[-1].file, runs[-1].end) != (run.file, run.begin):
                runs.append(run)
                continue
            runs[-1].last, runs[-1].end = run.last, run.end
            runs[-1].records += run.records
            runs[-1].count += run.count
        passed += asked
    for run in runs:
        report.missing += run.count
        name = None if run.file < 0 else store.relative(report.verdicts[run.file].file.path)
        yield finding("index-missing-units", name, None, first=run.first, last=run.last, records=run.records,
                      count=run.count)


class _Run(Struct):
    """Consecutive messages that lack units, in one file (its number, -1 for none): phy offsets of the first and the
    last, number of messages and of units. `begin`, `end`: places in the sequence of messages that have units."""

    file: int
    first: int
    last: int
    records: int
    count: int
    begin: int
    end: int


def _missing_as_told(
    stream: IndexStream, number: int, blind: list[tuple[int, int]], covered: Rows
) -> tuple[int, list[_Run]] | None:
    """Return the `_missing` of a split if that follows without its rows: it lacks no unit, or all of them and no file
    reaches it; else None."""
    if (units := stream.covered(number)) is not None:
        return units, []
    split, wanted = stream.splits[number], stream.unfound(number)
    lows, _, highs = covered
    reached = [*blind, *zip(lows.tolist(), highs.tolist(), strict=True)]
    if wanted is None or any(low <= split.last and high >= split.first for low, high in reached):
        return None
    run = _Run(-1, wanted.first, wanted.last, wanted.records, wanted.units, 0, wanted.records)
    return wanted.records, [run]


def _missing(
    take: Rows, marks: Marks, blind: list[tuple[int, int]], covered: Rows, split: Split
) -> tuple[int, list[_Run]]:
    """Return how many messages of a split have units, and runs that lack some, by the marks; `blind` ranges of phy
    offsets lack none."""
    missing, offsets = missing_of(split, take, marks), split.records["phy_offset"]
    asked = native.wanted_of(split.records, take) > 0
    for low, high in blind:
        missing[(offsets >= low) & (offsets <= high)] = 0
    lacks = missing > 0
    lacking = np.flatnonzero(lacks[asked])
    offsets, missing = offsets[lacks], missing[lacks]
    files = _files_of(offsets, covered)
    return int(np.count_nonzero(asked)), [
        _Run(int(files[start]), int(offsets[start]), int(offsets[stop - 1]), stop - start,
             int(missing[start:stop].sum()), int(lacking[start]), int(lacking[stop - 1]) + 1)
        for start, stop in _parts(np.flatnonzero((np.diff(lacking) != 1) | (np.diff(files) != 0)) + 1, files.size)
    ]


def _blind_ranges(report: IndexReport) -> list[tuple[int, int]]:
    """Return the phy offset ranges that unreadable files may cover: from the file before to the file after."""
    verdicts = report.verdicts
    ranges = []
    for place in report.unreadable.values():
        before = [v.last_right for v in verdicts[:place] if v.last_right is not None]
        after = [v.first_right[1] for v in verdicts[place:] if v.first_right is not None]
        ranges.append((max(before, default=0), min(after, default=1 << 62)))
    return ranges


def _coverage(verdicts: list[IndexFileVerdict]) -> Rows:
    """Return lowest phy offset, number and highest phy offset (int64, three rows) of the files, by what their units
    name."""
    spans = sorted(
        (v.first_right[1], number, max(v.last_right or 0, v.header.end_phy_offset))
        for number, v in enumerate(verdicts) if v.first_right is not None
    )
    # the first entry serves offsets before those of all files
    return np.array([(-1, -1, -1), *spans], dtype=np.int64).T


def _files_of(offsets: Rows, covered: Rows) -> Rows:
    """Return the verdict number of the file that covers each phy offset, -1 for none; the offsets ascend."""
    lows, *columns = covered
    counts = np.diff(np.searchsorted(offsets, lows), append=offsets.size)
    numbers, highs = (np.repeat(column, counts) for column in columns)
    return np.where(offsets <= highs, numbers, -1)
