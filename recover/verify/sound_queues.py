"""Queues that hold exactly what they should, found many at a time: most are such, and no finding is about them.

Their units are followed beside the rows of the log, as both stand there. Any other queue gets no verdict here:
`recover.verify.consumequeue` looks at all of it and says what is wrong. What was opened for it stays open until then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from formats.kernels.queue_follow import LEFT_OUT, UNIT, follow_rows, nothing_behind, pass_expired
from recover.evidence.expected import Expectation, QueueKey
from recover.files.pace import spend
from recover.files.queue_files import QueueBytes
from recover.files.reader import FileReader, ReadFailure, is_elsewhere
from recover.files.reading import open_file
from recover.files.store import Store
from recover.scan.log import LogView

_SMALL = 32 << 10  # a file that is read at once: to ask what of it is stored takes as long
_WINDOW = (64 << 10) // UNIT * UNIT
_ROOM = 16 << 20
_MOST_STREAMS = 160  # files that are open at the same time

Member = tuple[int, QueueKey]
"""A queue by its number in the log, -1 for one without a row there."""


class SoundQueue(Struct, frozen=True):
    """A queue without a flaw: queue offsets of its first unit, of its first live one, and the one behind the last."""

    first: int
    live: int
    end: int


class Followed(Struct):
    """Some queues in the order that was asked for: what is to say of each, None where it has to be looked at."""

    members: list[Member] = field(default_factory=list)
    sound: list[SoundQueue | None] = field(default_factory=list)
    content: QueueBytes = field(default_factory=QueueBytes)


class SoundQueues:
    """Follows the queues of a store beside its log."""

    def __init__(self, store: Store, log: LogView, expectation: Expectation) -> None:
        assert log.has_keys, "units hold tags codes"
        self.store = store
        self.log = log
        self.counts = expectation.counts.tolist()
        self._ext = store.consumequeue_ext_dir if store.consumequeue_ext_dir.is_dir() else None
        self._files: dict[QueueKey, tuple[str, list[tuple[int, str, int]]]] = {}
        if not is_elsewhere(store.consumequeue_dir) and log.files:
            self._list()
        self.file_size = store.queue_file_size if self._files else 0
        self.buffer = np.empty(_ROOM if self._files else 0, dtype=np.uint8)

    def _list(self) -> None:
        try:
            for folder, files in self.store.list_queues():
                if files is not None and folder.place.endswith(f"{os.sep}{folder.queue_id}"):
                    self._files[QueueKey(folder.topic, folder.queue_id)] = folder.place, files
        except OSError:
            self._files.clear()  # who looks at the queues one by one says which it is

    def follow(self, members: Iterable[Member]) -> Iterator[Followed]:
        """The queues in their order, some at a time; files that were opened are closed when the next are asked for."""
        batch = _Batch(self)
        for member in members:
            if batch.is_full:
                yield from batch.judged()
                batch = _Batch(self)
            batch.take(member)
        yield from batch.judged()

    def files(self, key: QueueKey) -> tuple[str, list[tuple[int, str, int]]] | None:
        """Folder and files (offset, name, length) of a queue whose files have the right names and lengths."""
        place, files = self._files.get(key, ("", None))
        size = self.file_size
        if not files or size % UNIT or files[0][0] % UNIT:
            return None
        due = files[0][0]
        for offset, _, length in files:
            if offset != due or length != size:
                return None
            due += size
        if self._ext is not None and (self._ext / key.topic / str(key.queue_id)).is_dir():
            return None
        return place, files

    def only_file(self, key: QueueKey) -> str:
        """Path of the file of a queue that has one."""
        place, files = self._files[key]
        return f"{place}{os.sep}{files[0][1]}"


class _Batch:
    """Queues whose units are held against the log in one pass over its rows. `at`, `stops` and `due` are the kernels'.

    `starts` is where the window of each begins in the buffer, `places` which queue of the batch each followed one is.
    """

    def __init__(self, queues: SoundQueues) -> None:
        self.queues = queues
        self.buffer = queues.buffer
        self.view = memoryview(queues.buffer.data)
        self.result = Followed()
        self.filled = 0
        self.places: list[int] = []
        self.first: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.streams: dict[int, _Stream] = {}

    @property
    def is_full(self) -> bool:
        """No other queue fits. Where none is followed, one pass over the log is to do for all."""
        if not self.places:
            return False
        return self.filled + max(_SMALL, _WINDOW) > self.buffer.size or len(self.streams) >= _MOST_STREAMS

    def take(self, member: Member) -> None:
        """Read the first units of a queue."""
        self.result.members.append(member)
        self.result.sound.append(None)
        found = self.queues.files(member[1])
        if found is None:
            return
        place, files = found
        if len(files) == 1 and files[0][2] <= _SMALL:
            got = self._read(f"{place}{os.sep}{files[0][1]}", files[0][2])
            room = got
        else:
            stream = _Stream(self.result.content, place, files)
            got, room = stream.fill(self.view[self.filled : self.filled + _WINDOW]), _WINDOW
            self.streams[len(self.places)] = stream
        if got < 0:
            self.streams.pop(len(self.places), None)
            return
        self.places.append(len(self.result.members) - 1)
        self.first.append(files[0][0] // UNIT)
        self.starts.append(self.filled)
        self.ends.append(self.filled + got)
        self.filled += -(-room // 8) * 8

    def _read(self, path: str, size: int) -> int:
        """Read a small file; how long it is, -1 where that failed."""
        try:
            descriptor = open_file(path)
        except OSError:
            return -1
        try:
            spend(size)
            got = os.preadv(descriptor, [self.view[self.filled : self.filled + size]], 0)
        except OSError as error:
            self.result.content.failed(ReadFailure(Path(path), 0, size, 0, error))
            return -1
        finally:
            os.close(descriptor)
        return got if got == size else -1

    def judged(self) -> Iterator[Followed]:
        """Hold all against the log, and give what came of it."""
        try:
            if self.places:
                self._follow()
            yield self.result
        finally:
            self.result.content.close()

    def _follow(self) -> None:
        log, count = self.queues.log, len(self.places)
        self.at = np.array(self.starts, dtype=np.int64)
        self.stops = np.array(self.ends, dtype=np.int64)
        self.due = np.array(self.first, dtype=np.int64)
        if log.min_offset > 0:
            self._pass_expired()
        live = self.due.tolist()
        numbers = np.full(len(log.queues), LEFT_OUT, dtype=np.int32)
        for queue in range(count):
            number = self.result.members[self.places[queue]][0]
            if 0 <= number < numbers.size:
                numbers[number] = queue
        for split in log.splits():
            records = np.asarray(split.records)
            row = 0
            while row < records.size:
                row = follow_rows(
                    records, row, log.log_end, numbers, self.buffer, self.at, self.stops, self.due
                )
                if row < records.size and not self._fill(int(numbers[records["queue"][row]])):
                    self.at[numbers[records["queue"][row]]] = LEFT_OUT
        self._look_behind()
        self._note(live)

    def _pass_expired(self) -> None:
        more = True
        while more:
            pass_expired(self.queues.log.min_offset, self.buffer, self.at, self.stops, self.due)
            more = False
            for queue in self.streams:
                if 0 <= self.at[queue] == self.stops[queue]:
                    more |= self._fill(queue)

    def _look_behind(self) -> None:
        nothing_behind(self.buffer, self.at, self.stops)
        for queue in self.streams:
            one = slice(queue, queue + 1)
            while self.at[queue] >= 0 and self._fill(queue):
                nothing_behind(self.buffer, self.at[one], self.stops[one])

    def _fill(self, queue: int) -> bool:
        """Have the next units of a queue; whether there are any."""
        stream, start = self.streams.get(queue), self.starts[queue]
        got = 0 if stream is None else stream.fill(self.view[start : start + _WINDOW])
        if got > 0:
            self.at[queue], self.stops[queue] = start, start + got
        elif got < 0:
            self.at[queue] = LEFT_OUT
        return got > 0

    def _note(self, live: list[int]) -> None:
        """Say which queues are sound; of the small ones that are not, their bytes are kept."""
        at, due = self.at.tolist(), self.due.tolist()
        for queue, place in enumerate(self.places):
            number, key = self.result.members[place]
            expected = self.queues.counts[number] if number >= 0 else 0
            stream = self.streams.get(queue)
            if at[queue] >= 0 and due[queue] - live[queue] == expected and self._reaches_last(queue, due[queue]):
                self.result.sound[place] = SoundQueue(self.first[queue], live[queue], due[queue])
            elif stream is None:
                content = self.buffer[self.starts[queue] : self.ends[queue]].tobytes()
                self.result.content.keep(self.queues.only_file(key), content)

    def _reaches_last(self, queue: int, end: int) -> bool:
        """Whether a unit stands in the last file, where there are several: else there is a finding about it."""
        more = self.streams[queue].count - 1 if queue in self.streams else 0
        return not more or (end - self.first[queue]) * UNIT > more * self.queues.file_size


class _Stream:
    """The units of a queue of one file or several, as far as anything is stored."""

    def __init__(self, content: QueueBytes, place: str, files: list[tuple[int, str, int]]) -> None:
        self.content = content
        self.paths = [Path(place, name) for _, name, _ in files]
        self.size = files[0][2]
        self.count = len(files)
        self.number = 0
        self.position = self.stored = 0
        self.reader: FileReader | None = None

    def fill(self, room: memoryview) -> int:
        """Read what is next; bytes read, 0 at the end, -1 where it cannot be read."""
        while self.position >= self.stored:
            if self.number == self.count:
                return 0
            if self.reader is not None:
                self.content.leave(self.reader.path)
            path = self.paths[self.number]
            self.number += 1
            try:
                self.reader = self.content.open(path)
            except OSError:
                return -1
            self.position = 0
            self.stored = self.size
            if self.number == self.count:
                self.stored = max((stop for _, stop in self.reader.data_ranges(0, self.size)), default=0)
        assert self.reader is not None
        filled = min(len(room), -(-self.stored // UNIT) * UNIT - self.position)
        # who reads a byte of a hole has the system read ahead in it, and make pages for it
        wanted = min(filled, self.stored - self.position)
        spend(wanted)
        try:
            got = self.reader.read_into(room[:wanted], self.position)
        except ReadFailure as failure:
            self.content.failed(failure)
            return -1
        room[wanted:filled] = bytes(filled - wanted)
        self.position += filled
        return filled if got == wanted else -1
