"""Candidates: whole records that stand elsewhere than they say, in bytes that the walk of the log does not explain.

1. The sources: damage and torn tails of log files, and what a file holds past its length. Bytes of intact records are
   explained, and not searched; but for the properties of the last one before damage, if no checksum covers them: a
   record that begins there and goes on in the damage has displaced their end.
2. Each record head states a physical offset; minus its position, that is the offset at which the file would begin if
   all of it were log. Adjacent heads with the same such base are a run.
3. A run is walked like the log, with its base; one of a few heads is judged by the reference codec.
4. What begins in the checked bytes of a whole record is its body, and no candidate. What begins in its properties,
   which no checksum covers, shows that these are foreign: then the outer one is none.

5. The records of a further log (`recover.reading.further`) are candidates as its own walk found them.

Places that intact records of the log hold are not searched for: a copy of such a record is explained by it. A record
that is in two parts is not a candidate.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec import Struct

from formats.basics import FormatError
from formats.record import BLANK_SIZE, HEAD, HEAD_SIZE, HEADS, MIN_RECORD_SIZE, decode, decode_blank
from formats.record.rows import row_of
from formats.sysflag import HOSTS_V6
from recover.log.file_scan import FileScan, SplitRange, field_at, heads_in, scan_split
from recover.log.judge import judge
from recover.log.scan import LogView, dead_ranges
from recover.store.columns import Rows, Split
from recover.store.mapped_files import MappedFile
from recover.store.memo import RangeSums
from recover.store.reader import FileReader
from recover.store.source import StorePath, open_file

CANDIDATE = np.dtype([
    ("phy_offset", "<i8"), ("size", "<i8"), ("position", "<i8"), ("queue_offset", "<i8"), ("store_timestamp", "<i8"),
    ("source", "<i4"), ("queue", "<i4"), ("beside", "i1"),
])
"""One candidate: its place in the log, and its position in a source. An end mark has no `queue` (-1), and a size of 8
bytes. `beside`: what the records around its place say of a further log: FOR it, AGAINST it, or 0."""
FOR, AGAINST = 1, -1

_LOOK = 8 << 20
"""Bytes that are searched at a time."""
_FEW = 64
"""Heads of a run that are judged one by one: a walk has to prepare its buffers."""


class Source(Struct, frozen=True):
    """A file that may hold displaced records in these parts (positions, ascending). `base`: the offset of the log at
    which it stands, None for a file that is not part of the log. `taken`: ranges of known records, ascending. `tails`:
    properties at which parts begin, of records that the log has there, ascending."""

    path: Path
    length: int
    parts: tuple[tuple[int, int], ...]
    base: int | None = None
    taken: tuple[tuple[int, int], ...] = ()
    tails: tuple[tuple[int, int], ...] = ()

    def free(self, rows: Rows) -> Rows:
        """Which candidates have no byte in common with a known record, and go on behind the properties in which they
        begin: a producer can put a record in there (bool array)."""
        begin, end = rows["position"], rows["position"] + rows["size"]
        starts, stops = np.array(self.taken, dtype=np.int64).reshape(-1, 2).T
        reached = np.append(0, stops)[np.searchsorted(starts, end)]
        first, last = np.array([*self.tails, (self.length, self.length)], dtype=np.int64).T
        tail = np.searchsorted(last[:-1], begin, side="right")
        return np.asarray((reached <= begin) & ((begin < first[tail]) | (end > last[tail])))


class Dead(Struct, frozen=True):
    """The ranges of the log without a live record: `starts`, `stops`, ascending (int64)."""

    starts: Rows
    stops: Rows

    def at(self, offsets: Rows) -> Rows:
        """The number of the range that holds each offset, -1 for none."""
        if not self.starts.size:
            return np.full(offsets.shape, -1)
        found = np.searchsorted(self.starts, offsets, side="right") - 1
        return np.where((found >= 0) & (offsets < self.stops[found]), found, -1)


class Candidates(Struct):
    """All candidates, ascending by source and position, and the (topic, queue id) that their `queue` numbers name."""

    sources: Sequence[Source]
    rows: Rows
    queues: list[tuple[bytes, int]]

    def of_further(self, rows: Rows) -> Rows:
        """Which of these are records of further logs (bool array)."""
        known = np.array([source.base is None for source in self.sources], dtype=bool)
        return np.asarray(known[rows["source"]])

    def content(self, row: np.void) -> bytes:
        """The bytes of a candidate."""
        with open_file(self.sources[row["source"]].path) as reader:
            return reader.read(int(row["position"]), int(row["size"]))


def dead_in(log: LogView) -> Dead:
    """The ranges of a log's files that hold no live record, without the bytes behind end marks."""
    ranges = [(part.start, part.stop) for scan in log.files for part in dead_ranges(scan, stale=log.stale > 0)]
    return Dead(*np.array(ranges, dtype=np.int64).reshape(-1, 2).T)


def sources_in(log: LogView, taken: Iterable[tuple[Path, int, int]] = ()) -> list[Source]:
    """The bytes of the log's files that its walk does not explain, without those `taken`: start and stop in a file."""
    explained: dict[Path, list[tuple[int, int]]] = defaultdict(list)
    for path, start, stop in taken:
        explained[path].append((start, stop))
    found = []
    for scan in log.files:
        file, base = scan.mapped_file, scan.mapped_file.file_from_offset
        path = on_disk(file.path)
        if path is not file.path and not path.exists():
            continue  # a missing file that a further log fills
        length = file.length if path is file.path else path.stat().st_size
        parts = [(gap.start - base, min(gap.stop, gap.last_data, base + length) - base) for gap in scan.gaps]
        parts.append((scan.file_size, length))
        joined: list[tuple[int, int]] = []
        for start, stop in parts:
            if joined and start <= joined[-1][1] < stop:
                start = joined.pop()[0]
            if start < stop:
                joined.append((start, stop))
        tails = tuple(_tails(scan, [start for start, _ in joined]))
        begin = {stop: start for start, stop in tails}
        joined = [(begin.get(start, start), stop) for start, stop in joined]
        spans = sorted(explained[path])
        left = tuple(_between(joined, spans))
        if left:
            found.append(Source(path, length, left, base, tuple(spans), tails))
    return found


def _tails(scan: FileScan, ends: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the properties without a checksum of the records that end at these positions of a file, ascending."""
    base = scan.mapped_file.file_from_offset
    with scan.mapped_file.open() as reader:
        for place, stop in _ending_at(scan.splits, [base + end for end in ends]):
            with suppress(FormatError, OSError):
                checked = _checked(reader.read(place - base, stop - place))
                if checked < stop - place:
                    yield place - base + checked, stop - base


def _ending_at(splits: Iterable[Split], ends: list[int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of the records that end at these places of the log, ascending. A split knows the ends of its
    last record; only for places between its records its rows are needed."""
    for split in (split for split in splits if split.size):
        first, last = bisect_right(ends, split.first), bisect_left(ends, split.end)
        if first < last:
            between, starts = np.array(ends[first:last]), np.asarray(split.records["phy_offset"])
            before = np.searchsorted(starts, between) - 1
            ended = starts[before] + split.records["size"][before] == between
            yield from zip(starts[before][ended].tolist(), between[ended].tolist(), strict=True)
        if split.end in ends[last : last + 1]:
            yield split.last, split.end


def _between(parts: Iterable[tuple[int, int]], spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what is left of ascending ranges without others."""
    for start, stop in parts:
        at = start
        for first, last in spans[max(0, bisect_left(spans, (start, start)) - 1) : bisect_left(spans, (stop, stop))]:
            if at < min(first, stop):
                yield at, min(first, stop)
            at = max(at, last)
        if at < stop:
            yield at, stop


def on_disk(path: Path) -> Path:
    """The file over which a path is laid; the path itself for a file of its own."""
    while isinstance(path, StorePath) and (below := path.below) is not None:
        path = below
    return path


def candidates_in(sources: Sequence[Source], file_size: int, dead: Dead) -> Candidates:
    """Return the candidates for places in `dead` ranges of a log with files of `file_size` bytes; `OSError`."""
    search = _Search(file_size, dead)
    for number, source in enumerate(sources):
        first = len(search.found)
        with open_file(source.path) as reader:
            search.through(number, source, reader)
        search.found[first:] = [rows[source.free(rows)] for rows in search.found[first:]]
    rows = np.concatenate([np.empty(0, dtype=CANDIDATE), *search.found])
    rows = rows[np.lexsort((rows["position"], rows["source"]))]
    found = Candidates(sources, rows, [*search.queues])
    found.rows = _disjoint(rows, found.content)
    return found


def _disjoint(rows: Rows, content: Callable[[np.void], bytes]) -> Rows:
    """Leave one of two candidates over the same bytes: what begins in checked bytes of a record is its content; what
    begins in its properties proves that these are not its own."""
    # positions of later sources count from after the earlier ones
    shift = rows["source"].astype(np.int64) * (int((rows["position"] + rows["size"]).max(initial=0)) + 1)
    begin = rows["position"] + shift
    reached = np.maximum.accumulate(begin + rows["size"])
    if (begin[1:] >= reached[:-1]).all():
        return rows
    kept: list[int] = []
    for at in range(rows.size):
        while kept and begin[at] < begin[kept[-1]] + rows["size"][kept[-1]]:
            if begin[at] < begin[kept[-1]] + _checked(content(rows[kept[-1]])):
                break
            kept.pop()
        else:
            kept.append(at)
    return rows[kept]


def _checked(content: bytes) -> int:
    """The number of bytes of a record, from its start, that its head and its checksums fix."""
    if len(content) == BLANK_SIZE:
        return BLANK_SIZE
    record = decode(content, check_crc=False)
    if record.property_crc is not None:
        return len(content)
    return HEADS[record.sys_flag & HOSTS_V6].size + len(record.body)


class _Search:
    """Collects candidates of one source after another."""

    def __init__(self, file_size: int, dead: Dead) -> None:
        self.file_size, self.dead = file_size, dead
        self.queues: dict[tuple[bytes, int], int] = {}
        self.found: list[Rows] = []

    def through(self, number: int, source: Source, reader: FileReader) -> None:
        """Search the parts of one source."""
        sums = RangeSums(reader, source.length)
        for start, stop in source.parts:
            positions, bases, sizes = self._heads(source, reader, start, stop)
            files = (positions + bases) // self.file_size
            turns = np.flatnonzero((np.diff(bases) != 0) | (np.diff(files) != 0)) + 1
            for run in np.split(np.arange(positions.size), turns) if positions.size else ():
                base, file_end = int(bases[run[0]]), (int(files[run[0]]) + 1) * self.file_size
                if run.size > _FEW:
                    stretch = int(positions[run[0]]), int(positions[run[-1]] + sizes[run[-1]])
                    self._walk(number, source, reader, base, file_end, stretch)
                else:
                    self._judge(number, sums, base, file_end, positions[run].tolist())

    def _heads(self, source: Source, reader: FileReader, start: int, stop: int) -> tuple[Rows, Rows, Rows]:
        """Position, base and size of each head in a part that names a dead place other than its own."""
        found, own = [np.empty((3, 0), dtype=np.int64)], -1 if source.base is None else source.base
        for first, last in reader.data_ranges(start, stop):
            for at in range(max(start, first - HEAD_SIZE), last, _LOOK):
                content = bytearray(min(_LOOK + HEAD_SIZE - 1, source.length - at))
                filled, _ = reader.salvage_into(memoryview(content), at)
                data = np.frombuffer(content, dtype=np.uint8)[:filled]
                heads = heads_in(data)
                heads = heads[heads + at < min(stop, at + _LOOK)]
                places, sizes = (field_at(data, heads, HEAD, name) for name in ("phy_offset", "total_size"))
                fits = (sizes >= MIN_RECORD_SIZE) & (sizes < self.file_size) & (heads + at + sizes <= source.length)
                fits &= (self.dead.at(places) >= 0) & (places - heads - at != own)
                heads, places, sizes = heads[fits] + at, places[fits], sizes[fits]
                found.append(np.stack([heads, places - heads, sizes]))
        positions, bases, sizes = np.concatenate(found, axis=1)
        _, once = np.unique(positions, return_index=True)
        return positions[once], bases[once], sizes[once]

    def _walk(
        self, number: int, source: Source, reader: FileReader, base: int, file_end: int, stretch: tuple[int, int]
    ) -> None:
        """Walk a run as a log file that begins at `base`."""
        size = file_end - base
        as_log = MappedFile(source.path, base, min(source.length, size))
        part = SplitRange(as_log, size, stretch[0], min(stretch[1] + BLANK_SIZE, as_log.length))
        scan = scan_split(part, stretch[0], reader=reader, with_keys=False).scan
        own = np.array([self._number(key) for key in scan.queues], dtype=np.int32)
        for split in scan.splits:
            rows = np.zeros(split.size, dtype=CANDIDATE)
            for name in ("phy_offset", "size", "queue_offset", "store_timestamp"):
                rows[name] = split.records[name]
            rows["queue"] = own[split.records["queue"]]
            self._add(rows, number, base)
        if scan.blank is not None:
            self._add_mark(number, base, scan.blank)

    def _judge(self, number: int, sums: RangeSums, base: int, file_end: int, positions: list[int]) -> None:
        """Judge the heads of a short run one by one."""
        end = -1
        for position in positions:
            with suppress(FormatError):
                record = judge(sums.read, position, base, file_end, sums)
                row, _ = row_of(record, self._number((record.topic, record.queue_id)), with_keys=False)
                rows = np.zeros(1, dtype=CANDIDATE)
                for name in ("phy_offset", "size", "queue_offset", "store_timestamp", "queue"):
                    rows[name] = row[name]
                self._add(rows, number, base)
                end = position + record.total_size
        if end >= 0:
            with suppress(FormatError):
                if decode_blank(sums.read(end, BLANK_SIZE)) == file_end - base - end:
                    self._add_mark(number, base, base + end)

    def _add(self, rows: Rows, number: int, base: int) -> None:
        """Keep the rows whose record lies within one dead range."""
        rows["source"], rows["position"] = number, rows["phy_offset"] - base
        at = self.dead.at(rows["phy_offset"])
        self.found.append(rows[(at >= 0) & (rows["phy_offset"] + rows["size"] <= self.dead.stops[at])])

    def _add_mark(self, number: int, base: int, place: int) -> None:
        rows = np.zeros(1, dtype=CANDIDATE)
        rows["phy_offset"], rows["size"], rows["queue"] = place, BLANK_SIZE, -1
        self._add(rows, number, base)

    def _number(self, key: tuple[bytes, int]) -> int:
        return self.queues.setdefault(key, len(self.queues))


def runs_of(rows: Rows, file_size: int) -> Iterator[Rows]:
    """Cut rows, ascending by place, into runs that are adjacent both in their source and in one file of the log."""
    if rows.size:
        same = (rows["source"][1:] == rows["source"][:-1]) & (
            rows["position"][1:] == rows["position"][:-1] + rows["size"][:-1]) & (
            rows["phy_offset"][1:] == rows["phy_offset"][:-1] + rows["size"][:-1]) & (
            rows["phy_offset"][1:] // file_size == rows["phy_offset"][:-1] // file_size)
        yield from np.split(rows, np.flatnonzero(~same) + 1)
