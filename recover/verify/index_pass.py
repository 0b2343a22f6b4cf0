"""One index file followed beside the log, block by block: the verdict on a file in which nothing is amiss.

Most files are such. Another gets no verdict here: `recover.verify.index_file` reads all of it and says what is wrong.
"""

from __future__ import annotations

import numpy as np

from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry, IndexHeader, IndexUnit, time_diff
from formats.native.index import AT_UNIT, MORE_RECORDS, MORE_UNITS, STATE, end_units, follow_units, slots_in_use
from formats.native.walk import last_nonzero
from recover.files.pace import spend
from recover.files.reader import FileReader
from recover.index.files import IndexFileName
from recover.index.stream import IndexStream, TagRun, tag_runs
from recover.memory.columns import Rows
from recover.verify.index_file import IndexFileVerdict

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
        """Nothing stands behind the last unit."""
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
