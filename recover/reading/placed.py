"""The log with displaced records where they say: what a plan writes there, laid over the files as they are.

Those of further logs are laid over in the same way, also over files that are missing.

Everything after this reads the log through that layer, so queues, index and losses are judged by what recover leaves.
A file's scan is repeated only where something was laid over it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
from msgspec import Struct, field, structs

from formats.basics import Buffer, offset_to_name
from recover.change.content import Content
from recover.change.model import InPlace, Overlaid, WriteRange
from recover.log.scan import LogView, assemble, kept_rows
from recover.log.split_scan import scan_files, splits_of
from recover.reading.candidates import Candidates, candidates_in, dead_in, on_disk, runs_of, sources_in
from recover.reading.contested import decide
from recover.reading.further import Further, beyond, dead_within, with_further
from recover.store.columns import ColumnStore, Rows
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reader import FileReader
from recover.store.reading import crc_of
from recover.store.source import Tree, mount, open_file, origin_of, status_of
from recover.store.store import Store

_CHUNK = 1 << 20


class PartOfFile(Content):
    """`size` bytes of a file from `position` on."""

    size: int = 0

    def __init__(self, path: Path, position: int, size: int) -> None:
        self.path, self.position, self.size = path, position, size
        self._crc: int | None = None

    @property
    def crc32c(self) -> int:
        """Of the bytes when it was first asked for: the plan may overwrite them."""
        if self._crc is None:
            self._crc = crc_of(self.chunks())[1]
        return self._crc

    def chunks(self) -> Iterator[Buffer]:
        with open_file(self.path) as reader:
            for at in range(0, self.size, _CHUNK):
                yield reader.read(self.position + at, min(_CHUNK, self.size - at))

    def part(self, start: int, stop: int) -> bytes:
        with open_file(self.path) as reader:
            return reader.read(self.position + start, stop - start)


class Placed(Struct, frozen=True):
    """A run of `records` whole records that belong at [start, stop) of the log, in `mapped_file`, and stand at
    `position` of the file `source`, which may be one of a `further` log. A file without a length may be missing."""

    mapped_file: MappedFile
    start: int
    stop: int
    source: Path
    position: int
    records: int
    further: bool = False

    def step(self, name: str, start: int, stop: int) -> WriteRange:
        """The step that writes the part [start, stop) of the run to its place; `name`: its file in plans."""
        content = PartOfFile(self.source, self.position + start - self.start, stop - start)
        return WriteRange(name, start - self.mapped_file.file_from_offset, content)


class Search(Struct):
    """What was searched for displaced records already (`done`), and what the last search found but did not place:
    `left` records, of which so many are `beyond` the end of the log."""

    done: set[Hashable] = field(default_factory=set)
    left: int = 0
    beyond: int = 0


def displaced_in(
    log: LogView, store: Store | None, known: Iterable[Placed], search: Search, further: Further, retention: int,
    indexed: Callable[[], Rows],
) -> Iterator[Placed]:
    """Yield the runs of whole records of a log that stand elsewhere than they say, ascending by their place.

    `store`: the one whose queues are witnesses. `known`: those that the log has at their place. `retention`: for how
    long a broker keeps files (ms). `indexed`: the offsets that the index names in damaged ranges. `OSError` from
    reading.
    """
    sources = sources_in(log, [(run.source, run.position, run.position + run.stop - run.start) for run in known])
    dead = dead_in(log)
    key = tuple((source.path, source.parts) for source in sources), dead.starts.tobytes() if further.logs else b""
    if key in search.done or not (sources or further.logs):
        return
    search.done.add(key)
    found = candidates_in(sources, log.queue.file_size, dead)
    if further.logs:
        dead = dead_within(log, further.begin(log, retention), further.reach)
        found = with_further(found, further, log, dead)
    if found.rows.size:
        decision = decide(found, dead, log, store, indexed)
        search.beyond = beyond(decision.left, log)
        search.left = int((decision.left["queue"] >= 0).sum()) - search.beyond
        yield from runs_in(log, found, decision.placed)


def runs_in(log: LogView, found: Candidates, rows: Rows) -> Iterator[Placed]:
    """Yield the runs of candidates that belong where they say, ascending by their place."""
    size = log.queue.file_size
    for run in runs_of(rows, size):
        start, last = int(run["phy_offset"][0]), run[-1]
        mapped_file = log.queue.find(start) or _missing(log, start // size * size)
        yield Placed(mapped_file, start, int(last["phy_offset"] + last["size"]),
                     found.sources[run["source"][0]].path, int(run["position"][0]), int((run["queue"] >= 0).sum()),
                     further=bool(found.of_further(run[:1])[0]))


def _missing(log: LogView, base: int) -> MappedFile:
    """The log file that begins at `base`, which is not there."""
    beside = [file.path for file in log.queue.files if file.file_from_offset < base][-1:]
    folder = on_disk(beside[0]).parent if beside else log.queue.directories[0]
    return MappedFile(folder / offset_to_name(base), base, 0)


def with_placed(log: LogView, runs: Sequence[Placed], columns: ColumnStore) -> LogView:
    """Return the log as it is with these runs at their place; its rows are copies in `columns`."""
    by_file = {file: [*own] for file, own in groupby(runs, key=lambda run: run.mapped_file)}
    size = log.queue.file_size
    root = mount(_Layers({str(number): (file.path, [run.step("", run.start, run.stop) for run in own])
                          for number, (file, own) in enumerate(by_file.items())}, size))
    over = {}
    for number, (file, own) in enumerate(by_file.items()):
        length = max([file.length, *(run.stop - file.file_from_offset for run in own)])
        if not on_disk(file.path).exists():
            length = size
        over[file] = structs.replace(file, path=root / str(number) / file.name, length=length)
    again = dict(zip(over, scan_files([splits_of(file, size) for file in over.values()], os.cpu_count() or 1,
                                      columns=columns, with_keys=log.has_keys), strict=True))
    scans = []
    for scan in log.files:
        if scan.mapped_file in over:
            scans.append(again.pop(scan.mapped_file))
            continue
        scan = scan.unweighed or scan
        none = np.empty(0, dtype=np.int64)
        copy = scan.copied([split.again() if split.is_unaffected(none, none)
                            else kept_rows(split, np.zeros(split.size, dtype=bool), columns) for split in scan.splits])
        copy.queues = log.queues
        scans.append(copy)
    scans = sorted([*scans, *again.values()], key=lambda scan: scan.mapped_file.file_from_offset)
    files = [over.get(file, file) for file in log.queue.files] + [over[file] for file in again]
    files.sort(key=lambda file: file.file_from_offset)
    queue = MappedFileQueue(log.queue.directories, size, files, log.queue.odd, log.queue.duplicates)
    return structs.replace(assemble(queue, scans), has_keys=log.has_keys)


class _Layers(Tree):
    """Files with changes laid over them, each in a folder of its own under its name; one that is missing below counts
    as zeros, `size` bytes long."""

    def __init__(self, layers: dict[str, tuple[Path, list[InPlace]]], size: int) -> None:
        self._layers, self._size = layers, size

    def _layer(self, name: str) -> tuple[Path, list[InPlace]]:
        return self._layers[name.partition("/")[0]]

    def below(self, name: str) -> Path:
        return self._layer(name)[0]

    def origin(self, name: str, position: int) -> tuple[Path, int]:
        path, changes = self._layer(name)
        for change in changes:
            if change.start <= position < change.stop and isinstance(change.content, PartOfFile):
                return origin_of(change.content.path, change.content.position + position - change.start)
        return origin_of(path, position)

    def status(self, name: str) -> os.stat_result:
        path, changes = self._layer(name)
        length, changed = self._size, 0
        with suppress(FileNotFoundError):
            below = path.stat()
            length, changed = below.st_size, below.st_mtime_ns
        return status_of(stat.S_IFREG | 0o644, max([length, *(each.stop for each in changes)]), changed)

    def open(self, name: str) -> FileReader:
        path, changes = self._layer(name)
        return _Layered(open_file(path) if path.exists() else NoFile(self._size), changes)


class NoFile(FileReader):
    """A file of `length` bytes that is not there: zeros."""

    def __init__(self, length: int) -> None:
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    def read(self, offset: int, length: int) -> bytes:
        return bytes(max(0, min(length, self._length - offset)))

    def data_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        yield from ()


class _Layered(Overlaid):
    """A file with parts of files laid over it; each of these files is opened once."""

    def __init__(self, below: FileReader, changes: Iterable[InPlace]) -> None:
        super().__init__(below, changes)
        self._sources: dict[Path, FileReader] = {}

    def written(self, change: InPlace, first: int, last: int) -> bytes:
        content = change.content
        if not isinstance(content, PartOfFile):
            return super().written(change, first, last)
        if content.path not in self._sources:
            self._sources[content.path] = open_file(content.path)
        return self._sources[content.path].read(content.position + first - change.start, last - first)

    def close(self) -> None:
        super().close()
        for reader in self._sources.values():
            reader.close()
