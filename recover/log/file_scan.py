"""Turn one split of one mapped commitlog file into columns of intact records and the gaps between them.

A split owns the records that begin in it. It is scanned without knowledge of what precedes it: its first record is
found by the search that is used after damage. `recover.log.split_scan` decides if the log really reaches that place.

The compiled walk takes what is certainly intact. Where it stops, the reference codec decides; if that rejects the
record, the scan goes on at the next message magic that is followed by its own physical offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
from msgspec import Struct, structs

from formats.basics import CRC31_MASK, FormatError, Layout, Wire
from formats.native import walk
from formats.record import (
    BLANK,
    BLANK_SIZE,
    HEAD,
    HEAD_SIZE,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    decode_blank,
    encode_blank,
)
from formats.record.grammar import range_table
from formats.record.rows import RECORD, row_of
from formats.sysflag import HOSTS_V6
from recover.log.judge import ReadAt, frame_size, is_intact, judge, reason_of
from recover.store.columns import ColumnStore, Rows, Split, joined
from recover.store.mapped_files import MappedFile
from recover.store.memo import Numbers, RangeSums
from recover.store.reader import FileReader, ReadFailure

# --- A buffer that moves over a file during the scan.


_MARGIN = 64 << 10


class Window:
    """A buffer over a part of the file; data[0] is the byte at `start` of the file.

    Bytes well past `stop` are read only if a record that begins before it needs them.
    """

    def __init__(self, reader: FileReader, length: int, size: int, stop: int) -> None:
        self.reader = reader
        self.length = length
        self.stop = min(stop, length)
        self.data = np.zeros(min(size, max(length, 1)), dtype=np.uint8)
        self.start = 0
        self.filled = 0
        self._wanted = 0
        self.failures: list[ReadFailure] = []
        self.sums = RangeSums(reader, length)

    def load(self, position: int, needed: int = 0) -> None:
        """Load data from `position`; grow the buffer if it holds less than `needed` bytes. What it holds is not read
        again."""
        held = self.data[position - self.start : self.filled] if self.start <= position else self.data[:0]
        if needed > self.data.size:
            self.data = np.zeros(needed, dtype=np.uint8)
        most = min(self.data.size, self.length - position)
        self._wanted = min(most, max(needed, self.stop + _MARGIN - position, _MARGIN))
        self.start, kept = position, min(held.size, self._wanted)
        self.data[:kept] = held[:kept]
        self.reader.announce(position, max(position + self._wanted, self.stop))
        # unreadable ranges count as zeros: a gap in the log, not the end of the scan
        got, failures = self.reader.salvage_into(memoryview(self.data.data)[kept : self._wanted], position + kept)
        self.filled = kept + got
        known = {(failure.offset, failure.wanted) for failure in self.failures}
        self.failures += [failure for failure in failures if (failure.offset, failure.wanted) not in known]

    def holds(self, position: int) -> bool:
        """Whether this position of the file is in the buffer."""
        return self.start <= position < self.start + self.filled

    def advance(self, position: int) -> bool:
        """Load more of what follows `position`; False if buffer or file have no more."""
        if self.start + self.filled >= self.length:
            return False
        if position > self.start:
            self.load(position)
            return True
        if self._wanted < min(self.data.size, self.length - position):
            self.load(position, self.data.size)
            return True
        return False

    def bytes_at(self, position: int, length: int) -> memoryview:
        """Return `length` bytes of the file at `position`, fewer at its end; loads them if necessary."""
        inside = position - self.start
        if inside < 0 or inside + length > self.filled:
            self.load(position, min(length, self.length - position))
            inside = 0
        return memoryview(self.data.data)[inside : min(inside + length, self.filled)]


_EVEN, _ODD = (int.from_bytes(MAGIC_V1.to_bytes(4, "big", signed=True)[at : at + 2], "little") for at in (0, 1))
"""Two adjacent bytes of both magics, as a little-endian word at an even position, for either parity of the magic."""


def heads_in(data: Numbers, first: int = 0) -> Numbers:
    """Return the places in the data (uint8), from `first`, of a message magic with a complete record head."""
    words = data[: data.size // 2 * 2].view("<u2")
    hits = np.flatnonzero((words == _EVEN) | (words == _ODD)) * 2
    at = hits - (words[hits // 2] == _ODD) - BLANK.offset("magic")
    at = at[(at >= first) & (at <= data.size - HEAD_SIZE)]
    magic = field_at(data, at, HEAD, "magic")
    return np.asarray(at[(magic == MAGIC_V1) | (magic == MAGIC_V2)])


def own_heads(data: Numbers, first: int, base: int) -> Numbers:
    """Return the places of `heads_in` whose head states their own offset; `base` is that of the data."""
    at = heads_in(data, first)
    return np.asarray(at[field_at(data, at, HEAD, "phy_offset") == base + at])


def end_mark(data: Numbers, first: int, base: int, file_end: int) -> int:
    """Return the place in the data, from `first`, of an end mark that reaches exactly to `file_end`; -1 without one."""
    content, magic = data.tobytes(), encode_blank(0)[BLANK.offset("magic") :]
    at = content.find(magic, first + BLANK.offset("magic"))
    while at >= 0:
        place = at - BLANK.offset("magic")
        if BLANK.decode(content, place).size == file_end - base - place:
            return place
        at = content.find(magic, at + 1)
    return -1


def field_at(data: Numbers, at: Numbers, layout: Layout[Any], name: str) -> Numbers:
    """Return one field of the structures at these places (int64)."""
    return wire_at(data, at + layout.offset(name), layout.field(name).wire).astype(np.int64)


def wire_at(data: Numbers, at: Numbers, wire: Wire) -> Numbers:
    """Return the values of a wire type at these places, which need not be aligned."""
    kind = np.dtype(wire.numpy)
    every = np.ndarray((max(0, data.size - kind.itemsize + 1),), kind, data, strides=(1,))
    return np.asarray(every[at].astype(kind.newbyteorder("=")))


Found = tuple[str, int]
"""Kind, "record" or "blank", and position in the file."""

_JUDGED_SINGLY = 16
"""Number of heads in a stretch that are judged one by one; later ones are first filtered together by body CRC."""
_LARGEST_HEAD = max(layout.size for layout in HEADS.values())

WINDOW = 2 << 20
WHOLE = 1 << 62
EARLY_END_MARK = "blank"
_ROWS = 1 << 16
_HASHES = 1 << 18
_QUEUES = 2
_NAMES_USED = 3
_SLOTS = 1 << 12
_NAMES = 1 << 17

ProgressCallback = Callable[[int, int], None]


class Gap(Struct):
    """Bytes [start, stop) of the log that hold no intact record; physical offsets.

    `ended_by`: what is at `stop`, "record", "blank", or "file-end". `has_frame`: the bytes at `start` are a whole frame
    in which only a checksum or a field fails. `last_data`: end of the last non-zero byte, `start` if all are zero.
    `bridged_by_units`: queue units show that the records after it continue the log, whatever their times are.
    """

    start: int
    stop: int
    reason: str
    ended_by: str
    has_frame: bool
    last_data: int
    facts: dict[str, Any] = {}  # a separate one for each gap: msgspec copies it
    bridged_by_units: bool = False


class FileScan(Struct, eq=False):
    """The content of one mapped file. `blank`: physical offset of its end mark; None without one.

    `over_record`: the bytes after the eight of the end mark are the rest of a record's head that states this very
    place. `before_record`: an intact record follows the end mark. `doubted`: end marks followed by a record, each with
    the number of splits before it and its `over_record`; `unweighed`: the scan from before one of them was believed.
    `set_aside`: rows of intact records that count as damage because queue units contradict them.
    """

    mapped_file: MappedFile
    file_size: int
    splits: list[Split] = []
    queues: list[tuple[bytes, int]] = []
    gaps: list[Gap] = []
    blank: int | None = None
    end: int = 0
    unreadable: list[ReadFailure] = []
    doubted: list[tuple[int, int, bool]] = []
    unweighed: FileScan | None = None
    over_record: bool = False
    before_record: bool = False
    set_aside: list[Split] = []

    @property
    def file_end(self) -> int:
        return self.mapped_file.file_from_offset + self.file_size

    def records(self) -> Rows:
        """Return the rows of all splits."""
        return joined([split.records for split in self.splits])

    @property
    def record_count(self) -> int:
        return sum(split.size for split in self.splits)

    @property
    def written(self) -> bool:
        """Whether the file holds a record, an end mark, or any other non-zero byte."""
        written = any(gap.last_data > gap.start for gap in self.gaps)
        return written or bool(self.record_count) or self.blank is not None

    def copied(self, splits: list[Split]) -> FileScan:
        """Return the same scan with other rows."""
        return structs.replace(self, splits=splits, unweighed=None)


class SplitRange(Struct, frozen=True):
    """Bytes [start, stop) of a mapped file of `file_size` bytes; the last split of a file ends with the file.

    `at_border`: whether an earlier walk ended at `start`, so that nothing before it needs to be read.
    """

    mapped_file: MappedFile
    file_size: int
    start: int
    stop: int
    at_border: bool = False

    def __str__(self) -> str:
        start, stop = self.offsets
        return f"{self.mapped_file.name} [{start}, {stop})"

    @property
    def offsets(self) -> tuple[int, int]:
        """The physical offsets of its begin and end."""
        base = self.mapped_file.file_from_offset
        return base + self.start, base + self.stop

    @property
    def is_last(self) -> bool:
        """Whether no split of the same file follows."""
        return self.stop >= min(self.mapped_file.length, self.file_size)


class SplitScan(Struct):
    """The content of one split from `entry`, a position in the file; None if nothing intact begins in the split.

    `enters_at`: what is at `entry`, "record", "blank", or "chain" if the position was given. `crossed`: the position,
    at or after the split's end, where the walk goes on; `open_gap`: a gap that reaches the split's end; with neither,
    the file ended here. `last_data`: if `entry` is None, the physical offset after the last non-zero byte.
    """

    part: SplitRange
    scan: FileScan
    entry: int | None
    enters_at: str
    crossed: int | None = None
    open_gap: Gap | None = None
    last_data: int = 0


class QueueTable:
    """The queue table of the kernels: `slots` (int32), `names` (uint8), `table` (int64 (n, QUEUE_COLUMNS)).

    `state` is that of the walk; it counts queues and bytes of names. `seed` keys the slots.
    """

    def __init__(self, state: Rows) -> None:
        self._state = state
        self._numbers: dict[tuple[bytes, int], int] = {}
        self.names = np.zeros(_NAMES, dtype=np.uint8)
        self.table = np.zeros((_SLOTS // 2, walk.QUEUE_COLUMNS), dtype=np.int64)
        self.slots, self.seed = walk.new_queue_slots(_SLOTS, self.names, self.table, 0)

    def __len__(self) -> int:
        return int(self._state[_QUEUES])

    @property
    def is_nearly_full(self) -> bool:
        """Whether the next queue may not fit."""
        return len(self) * 2 >= self.slots.size - 2 or int(self._state[_NAMES_USED]) * 2 > self.names.size

    def keys(self) -> list[tuple[bytes, int]]:
        """Return (topic, queue id) of each queue."""
        return self._from(0)

    def _from(self, first: int) -> list[tuple[bytes, int]]:
        rows = self.table[first : len(self)].tolist()
        base = rows[0][0] if rows else 0
        names = self.names[base : int(self._state[_NAMES_USED])].tobytes()
        return [(names[at - base : at - base + length], queue_id) for at, length, queue_id in rows]

    def number(self, topic: bytes, queue_id: int) -> int:
        """Return the number of a queue, adding it if new; for records that only the reference codec accepts."""
        # the walk adds queues as well, and these are all that changes
        self._numbers.update((key, number) for number, key in enumerate(self._from(len(self._numbers)),
                                                                        len(self._numbers)))
        number = self._numbers.setdefault((topic, queue_id), len(self))
        if number < len(self):
            return number
        while int(self._state[_NAMES_USED]) + len(topic) > self.names.size or number + 1 >= self.table.shape[0]:
            self.grow()
        at = int(self._state[_NAMES_USED])
        self.names[at : at + len(topic)] = np.frombuffer(topic, dtype=np.uint8)
        self.table[number] = at, len(topic), queue_id
        self._state[_QUEUES], self._state[_NAMES_USED] = number + 1, at + len(topic)
        if not walk.fill_slots(self.slots, self.names, self.table, number, number + 1, self.seed):
            self.reseed()
        return number

    def grow(self) -> None:
        """Quadruple the space."""
        names = np.zeros(self.names.size * 4, dtype=np.uint8)
        names[: self.names.size] = self.names
        table = np.zeros((self.table.shape[0] * 4, walk.QUEUE_COLUMNS), dtype=np.int64)
        table[: self.table.shape[0]] = self.table
        self.names, self.table = names, table
        self.slots, self.seed = walk.new_queue_slots(self.slots.size * 4, names, table, len(self))

    def reseed(self) -> None:
        """Spread the queues anew: one found none of its probes free."""
        self.slots, self.seed = walk.new_queue_slots(self.slots.size, self.names, self.table, len(self))


def doubtful(data: Numbers, at: Numbers, start: int, length: int, sums: RangeSums) -> Numbers:
    """Return the heads at these places in the data that neither their fields nor the CRC of their body rules out.

    `start`: position of the data in its file, of `length` bytes with these `sums`.
    """
    whole = at <= data.size - _LARGEST_HEAD
    kept = [at[~whole]]
    at = at[whole]
    hosts = field_at(data, at, HEAD, "sys_flag") & HOSTS_V6
    for flag, layout in HEADS.items():
        own = at[hosts == flag]
        size, body = (field_at(data, own, layout, name) for name in ("total_size", "body_length"))
        begin, left = start + own + layout.size, length - start - own
        fits = (size >= MIN_RECORD_SIZE) & (size <= left) & (body >= 0) & (layout.size + body <= size)
        stored = field_at(data, own, layout, "body_crc")
        summed = fits & (body > 0)
        crcs = sums.crcs(begin[summed], (begin + body)[summed], start, data)
        fits[summed] = (crcs & CRC31_MASK) == stored[summed]
        kept.append(own[fits])
    return np.sort(np.concatenate(kept))


class _Scanner:
    """The state of one split's scan; whatever begins at or after `stop` in the file belongs to another scan."""

    def __init__(
        self, part: SplitRange, reader: FileReader, window: int, columns: ColumnStore,
        progress: ProgressCallback | None, *, with_keys: bool,
    ) -> None:
        self.part = part
        self.base = part.mapped_file.file_from_offset
        self.length = min(part.mapped_file.length, part.file_size)
        self.stop = WHOLE if part.is_last else part.stop
        self.window = Window(reader, self.length, window, self.stop)
        self.result = FileScan(part.mapped_file, part.file_size)
        self.open_gap: Gap | None = None
        self.columns = columns
        self.progress = progress
        self.with_keys = with_keys
        self.ranges = range_table()
        self.state = np.zeros(4, dtype=np.int64)
        self.queues = QueueTable(self.state)
        self.rows = Split(np.empty(_ROWS, dtype=RECORD), np.empty(_HASHES if with_keys else 1, dtype=np.int32))
        self._reported = 0

    def run(self, entry: int | None) -> SplitScan:
        enters_at, last_data = "chain", 0
        position = entry
        if entry is None:
            found, last_data = self._first_intact(self.part.start, self.part.start, 0, self.stop)
            if found is not None:
                enters_at, entry = found
                position = entry if enters_at == "record" else None
                if enters_at == "blank":
                    self._end_at_blank(entry)
        while position is not None:
            position = self._walk(position)
            if position is not None and position >= self.stop:
                break
        self._flush()
        # a record that begins here may extend into the next split, and not all of a gap was reported
        self._report(self.part.stop - self.part.start - self._reported, 0)
        result = self.result
        result.queues, result.unreadable = self.queues.keys(), self.window.failures
        goes_on = self.open_gap is None and result.blank is None and result.end >= self.base + self.stop
        crossed = result.end - self.base if entry is not None and goes_on else None
        return SplitScan(self.part, result, entry, enters_at, crossed, self.open_gap, last_data)

    def _place(self, position: int) -> tuple[ReadAt, int, int, int, RangeSums]:
        """Return the arguments for `recover.log.judge` at a position in the file."""
        return self.window.bytes_at, position, self.base, self.result.file_end, self.window.sums

    def _walk(self, position: int) -> int | None:
        """Walk from `position` in the file to its end or past the next damage; return where to go on, or None."""
        window = self.window
        if not window.holds(position):
            window.load(position)
        inside = position - window.start
        while True:
            taken = int(self.state[0])
            inside, status = self._kernel(inside)
            self._report(window.start + inside - position, int(self.state[0]) - taken)
            position = window.start + inside
            self.result.end = self.base + position
            if position >= self.stop:
                return None
            if status == walk.OUTPUT_FULL:
                self._make_room()
            elif status == walk.AT_BLANK:
                return self._at_blank(position)
            elif status == walk.NEED_MORE and window.advance(position):
                inside = 0
            else:
                step = self._judge(position)
                if step is None:
                    return self._resynchronise(position)
                position += step
                if position - window.start > window.filled - BLANK_SIZE or window.start > position:
                    window.load(position)
                inside = position - window.start

    def _kernel(self, inside: int) -> tuple[int, int]:
        window = self.window
        return walk.walk_records(
            window.data, inside, window.filled, self.base + window.start, self.result.file_end,
            self.rows.records, self.rows.hashes, self.queues.slots,
            self.queues.names, self.queues.table, self.queues.seed, self.state, self.with_keys,
            window.stop - window.start, self.ranges,
        )

    def _judge(self, position: int) -> int | None:
        """Return the size of the record at `position` and keep its row if the reference codec accepts it; else None."""
        try:
            record = judge(*self._place(position))
        except FormatError:
            return None
        self._flush()
        number = self.queues.number(record.topic, record.queue_id)
        row, hashes = row_of(record, number, with_keys=self.with_keys)
        self.result.splits.append(self.columns.keep(row, hashes))
        self._report(record.total_size, 1)
        return record.total_size

    def _at_blank(self, position: int) -> int | None:
        size = decode_blank(self.window.bytes_at(position, BLANK_SIZE))
        if size == self.result.file_end - self.base - position:
            self._end_at_blank(position)
            return None
        return self._resynchronise(position)

    def _end_at_blank(self, position: int) -> None:
        room = self.result.file_end - self.base - position
        own, found = -1, None
        if room >= MIN_RECORD_SIZE:
            head = self.window.bytes_at(position, HEAD.size)
            own = HEAD.decode(head).phy_offset if len(head) >= HEAD.size else -1
            found, _ = self._first_intact(position, position + BLANK_SIZE, 0, self.length)
        self.result.over_record = own == self.base + position
        self.result.before_record = found is not None and found[0] == "record"
        self.result.blank = self.result.end = self.base + position
        self._report(self.length - position, 0)

    def _resynchronise(self, position: int) -> int | None:
        """Record the gap at `position`, and find the first intact record or the end mark after it."""
        gap = self._gap_at(position)
        found, gap.last_data = self._first_intact(position, position + 1, gap.start, self.stop)
        if found is None:
            self._end_in_gap(gap, position)
            return None
        gap.ended_by, where = found
        gap.stop = self.base + where
        gap.last_data = min(gap.last_data, gap.stop)
        self.result.gaps.append(gap)
        self._report(where - position, 0)
        if gap.ended_by == "record":
            return where
        self._end_at_blank(where)
        return None

    def _end_in_gap(self, gap: Gap, position: int) -> None:
        """Record a gap with nothing intact after it: it extends to the end of the file at its full size."""
        if not self.part.is_last:
            self.open_gap = gap
            return
        if self.length > position:
            gap.stop = self.result.file_end
            self.result.gaps.append(gap)
            self.result.end = gap.start
        elif self.result.file_size > self.length:
            gap.reason, gap.stop = "short-file", self.result.file_end
            self.result.gaps.append(gap)
        self._report(self.length - position, 0)

    def _gap_at(self, position: int) -> Gap:
        offset = self.base + position
        reason, facts = reason_of(*self._place(position))
        size = frame_size(*self._place(position))
        return Gap(offset, offset, reason, "file-end", size > 0, offset, facts | ({"size": size} if size else {}))

    # The search after damage.

    def _first_intact(self, position: int, first: int, last_data: int, before: int) -> tuple[Found | None, int]:
        """Return the first intact record or end mark at or after `first`, and the end of the last data from `position`
        on.

        Only what begins before `before` counts. `last_data`: the end of data before `position`.
        """
        window = self.window
        end = min(self.length, before)
        for start, stop in self._stored(position, end):
            at = start
            while at < stop:
                window.load(at)
                loaded = window.filled
                data_end = walk.last_nonzero(window.data, 0, min(loaded, end - at))
                if data_end >= 0:
                    last_data = max(last_data, self.base + at + data_end + 1)
                found = self._next_candidate(at, max(at, first), min(loaded, stop - at + HEAD_SIZE))
                if found is not None and found[1] < before:
                    return found, last_data
                if loaded < min(HEAD_SIZE, end - at):
                    # the file was shortened during the scan: nothing is left after this
                    return None, last_data
                if at + loaded >= min(self.length, stop + HEAD_SIZE):
                    break
                at += max(1, loaded - HEAD_SIZE)
        return None, last_data

    def _stored(self, position: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [position, end) in which something can begin: stored bytes, and the length of a head
        before.

        Holes read as zeros, and so may the first bytes of a record or an end mark, whose size may start with zero
        bytes. Parts that are close together are joined, so that the buffer is not filled for each.
        """
        last: tuple[int, int] | None = None
        for start, stop in self.window.reader.data_ranges(position, end):
            start = max(position, start - HEAD_SIZE)
            if last is not None and start - last[1] > self.window.data.size:
                yield last
                last = None
            last = (start if last is None else last[0], stop)
        if last is not None:
            yield last

    def _next_candidate(self, start: int, first: int, filled: int) -> Found | None:
        window, base = self.window, self.base + start
        data = window.data[:filled]
        blank = end_mark(data, first - start, base, self.result.file_end)
        heads = own_heads(data, first - start, base)
        heads = heads[heads < blank] if blank >= 0 else heads
        for some in (heads[:_JUDGED_SINGLY], heads[_JUDGED_SINGLY:]):
            if some.size > _JUDGED_SINGLY:
                some = doubtful(data, some, start, self.length, window.sums)
            for head in some.tolist():
                if self._is_intact(start, start + head):
                    return "record", start + head
        return None if blank < 0 else ("blank", start + blank)

    def _is_intact(self, start: int, position: int) -> bool:
        found = is_intact(*self._place(position))
        if self.window.start != start:
            self.window.load(start)
        return found

    def _make_room(self) -> None:
        """Flush the rows; make room for a single record that does not fit without them."""
        rows = int(self.state[0])
        self._flush()
        if self.queues.is_nearly_full:
            self.queues.grow()
        elif not rows:
            hashes = np.empty(max(_HASHES, self.rows.hashes.size * 2), dtype=np.int32)
            self.rows = Split(self.rows.records, hashes)
            self.queues.reseed()

    def _flush(self) -> None:
        rows, hashes = int(self.state[0]), int(self.state[1])
        self.state[0] = self.state[1] = 0
        if rows:
            self.result.splits.append(self.columns.keep(self.rows.records[:rows], self.rows.hashes[:hashes]))

    def _report(self, size: int, records: int) -> None:
        self._reported += size
        if self.progress is not None and (size or records):
            self.progress(size, records)


def scan_split(
    part: SplitRange, entry: int | None = None, *, window: int = WINDOW, reader: FileReader | None = None,
    columns: ColumnStore | None = None, progress: ProgressCallback | None = None, with_keys: bool = True,
) -> SplitScan:
    """Scan one split, from position `entry` of the file, or if None from the first intact record or end mark.

    The first split of a file is entered at 0. `OSError` if the file cannot be opened, unless `reader` has it open.
    Without `with_keys`, rows have no key hashes and no tags codes, only delay levels. `progress(bytes, records)` is
    called with the increments since the last call, from the calling thread.
    """
    if entry is None and part.start == 0:
        entry = 0
    with part.mapped_file.open() if reader is None else nullcontext(reader) as opened:
        scanner = _Scanner(part, opened, window, columns or ColumnStore(WHOLE), progress, with_keys=with_keys)
        return scanner.run(entry)


def scan_file(mapped_file: MappedFile, file_size: int, **how: Any) -> FileScan:
    """Scan one mapped commitlog file of `file_size` bytes as a whole; `how` as for `scan_split`."""
    return scan_split(SplitRange(mapped_file, file_size, 0, min(mapped_file.length, file_size)), **how).scan
