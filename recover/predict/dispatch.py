"""Loading of a store by a broker, and dispatch into consume queues (CommitLogDispatcherBuildConsumeQueue)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from formats import properties as props
from formats.basics import MAX_OFFSET, java_string
from formats.consumequeue import CQ_UNIT, file_size_for
from formats.record import TOPIC_SCHEDULE, decode, tags_code
from formats.record.message import RETRY_PREFIX, SYSTEM_PREFIX
from formats.record.rows import BIT_DELAY, BIT_LMQ, NOT_IN_QUEUE, STAND_IN
from formats.sysflag import TRANSACTION, TRANSACTION_COMMIT, TRANSACTION_NOT
from recover.broker import versions
from recover.broker.record_check import Checked, CheckRules, ReadAt
from recover.broker.recovery import DispatchTarget, FileWalk, LogSource, end_of, max_offset, written
from recover.broker.settings import BrokerSettings, delay_of, deliver_time
from recover.check.log import odd_log_name
from recover.derived.index_check import odd_index_name
from recover.derived.index_files import list_index_files
from recover.derived.queue_check import odd_queue_name
from recover.findings.model import Finding, Phrase
from recover.log.file_scan import FileScan
from recover.log.scan import LogView
from recover.look.store import finds_log
from recover.predict.queues import QueueFile, QueueState
from recover.store.columns import Rows, Split
from recover.store.config_files import LMQ_PREFIX
from recover.store.mapped_files import MappedFile, MappedFileQueue, OddName
from recover.store.reading import FILE, FOLDER
from recover.store.source import StorePath
from recover.store.store import CONSUMEQUEUE_EXT, Store

# --- What a broker loads before it recovers, and why it may refuse (MappedFileQueue.load, DefaultMessageStore.load).


OTHER_SETTING = "Give the broker the file lengths that the store was written with; all other files have them."


class Stop(Struct, frozen=True):
    """Why a broker does not start, and the remedy if recover cannot repair it."""

    reason: str
    remedy: str | None = None


class Loaded(Struct):
    """The broker's state after loading: `refusal` is None if it continues to recovery.

    `by_hand`: entries in the place of a mapped file that no repair moves. Of these and of `odd_index` (links, pipes and
    the like among index files), a broker's behaviour is known only for mapped files.
    """

    log: list[MappedFile] = field(default_factory=list)
    queues: dict[tuple[str, int], QueueState] = field(default_factory=dict)
    deleted: list[Path] = field(default_factory=list)
    ignored: list[Path] = field(default_factory=list)
    refusal: Stop | None = None
    by_hand: list[Finding] = field(default_factory=list)
    odd_index: list[Finding] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)


def _load_files(
    store: Store, version: versions.BrokerVersion, loaded: Loaded, directories: Sequence[Path], size: int,
    odd_name: Callable[[Store, OddName], Finding],
) -> list[MappedFile] | None:
    """Return the mapped files of one queue; None if the broker refuses, with the reason in `loaded`."""
    items = sorted(_items(directories), key=lambda item: item.path.name)
    loaded.by_hand += [odd_name(store, item) for item in items if item.by_hand]
    last = items[-1:]
    if version.has(versions.DIRECTORIES_SKIPPED):
        items = [item for item in items if not item.is_directory]
    files: list[MappedFile] = []
    for item in items:
        name = store.relative(item.path)
        if item.length == 0 and item in last and version.has(versions.EMPTY_LAST_FILE_DELETED):
            loaded.deleted.append(item.path)
        elif (item.is_directory or item.length != size) and not version.has(versions.WRONG_LENGTH_REFUSED):
            loaded.ignored += [other.path for other in items[items.index(item) :]]
            break
        elif item.is_directory:
            loaded.refusal = Stop(Phrase("{file} is a folder among mapped files", file=name))
            return None
        elif item.length != size:
            remedy = OTHER_SETTING if item.length in (store.mapped_file_size, store.queue_file_size) else None
            loaded.refusal = Stop(
                Phrase("{file} has {n} bytes, the broker's setting is {size}", file=name, n=item.length, size=size),
                remedy)
            return None
        elif (number := _java_long(item.path.name)) is None:
            loaded.refusal = Stop(Phrase("{file} is not a mapped file (its name is not an offset)", file=name))
            return None
        else:
            files.append(MappedFile(item.path, number, item.length))
    return files


def load(store: Store, settings: BrokerSettings) -> Loaded:
    """Load log, queues and index as the broker of these settings does; sizes that are not set are those of the
    files."""
    loaded = Loaded()
    read = partial(_load_files, store, settings.version, loaded)
    folders = store.commitlog_dirs if finds_log(store, settings.version) else ()
    log = read(folders, _demanded(settings, "mappedFileSizeCommitLog", mapped_file_size(store, settings)), odd_log_name)
    if log is None:
        return loaded
    # of equal names in several folders the first counts
    loaded.log = [f for at, f in enumerate(log) if at == 0 or f.file_from_offset != log[at - 1].file_from_offset]
    size = queue_file_size(store, settings)
    with_ext = settings.flag("enableConsumeQueueExt") or (
        "enableConsumeQueueExt" not in settings.given and store.consumequeue_ext_dir.is_dir())
    ext_size = settings.stated_number("mappedFileSizeConsumeQueueExt") or store.ext_file_size
    for folder in store.queue_folders:
        files = read([folder.path], _demanded(settings, "mappedFileSizeConsumeQueue", size), odd_queue_name)
        if files is None:
            return loaded
        ext = store.consumequeue_ext_dir / folder.topic / str(folder.queue_id)
        if with_ext and read([ext], ext_size, odd_queue_name) is None:
            if "enableConsumeQueueExt" not in settings.given:
                loaded.assumptions.append(
                    Phrase("enableConsumeQueueExt=true, because {part} exists", part=f"{CONSUMEQUEUE_EXT}/"))
            return loaded
        state = QueueState(
            folder.topic, folder.queue_id, size, [QueueFile(f.file_from_offset, size, f.path) for f in files], settings
        )
        loaded.queues[folder.topic, folder.queue_id] = state
    _note_odd_index(store, settings, loaded)
    return loaded


def _note_odd_index(store: Store, settings: BrokerSettings, loaded: Loaded) -> None:
    for odd in list_index_files(store.index_dir).odd:
        if odd.kind not in (FILE, FOLDER):
            loaded.odd_index.append(odd_index_name(store, odd))
        counts = settings.version.has(versions.INDEX_LOAD_COUNTS)
        if counts and odd.is_directory and _java_long(odd.path.name) is not None:
            loaded.refusal = Stop(
                Phrase("{file} is a folder among index files", file=store.relative(odd.path)))


def _demanded(settings: BrokerSettings, name: str, size: int) -> int:
    """The length that files must have: `size`, or 0 if the setting says so, with which no release loads a file."""
    return 0 if settings.stated_number(name) == 0 else size


def mapped_file_size(store: Store, settings: BrokerSettings) -> int:
    """The size that a broker requires of commitlog files: its setting, else that of the files."""
    return settings.stated_number("mappedFileSizeCommitLog") or store.mapped_file_size


def queue_file_size(store: Store, settings: BrokerSettings) -> int:
    """The size that a broker requires of queue files: its setting rounded up to whole units, else that of the files."""
    stated = settings.stated_number("mappedFileSizeConsumeQueue")
    return file_size_for(stated) if stated else store.queue_file_size


def _items(directories: Sequence[Path]) -> Iterator[OddName]:
    for queue in (MappedFileQueue.load([directory], 1) for directory in directories):
        yield from queue.odd
        yield from (OddName(mapped_file.path, FILE, mapped_file.length) for mapped_file in queue.files)


def _java_long(name: str) -> int | None:
    """`Long.parseLong` of a file name: any digits and a sign."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    if not digits.isdecimal() or not -(1 << 63) <= int(name) < 1 << 63:
        return None
    return int(name)


# --- The commitlog as a broker loads it, over the result of a strict scan.


class BrokerLog(LogSource):
    """The files of the log as a broker has them, by name, and what the scan found in each."""

    def __init__(self, files: Sequence[MappedFile], file_size: int, view: LogView) -> None:
        super().__init__(files, file_size)
        self.view = view
        self._scans = {scan.mapped_file.file_from_offset: scan for scan in view.files}

    @property
    def min_offset(self) -> int:
        """The result of CommitLog.getMinOffset: -1 without files."""
        return self.files[0].file_from_offset if self.files else -1

    def index_of(self, offset: int) -> int | None:
        """Index of the file that holds physical `offset`; None if it is missing, or outside of the log. Of several that
        hold it, by their names, the broker's choice (MappedFileQueue.findMappedFileByOffset)."""
        def holds(index: int) -> bool:
            first = self.files[index].file_from_offset
            return first <= offset < first + self.file_size

        usual, count = offset // self.file_size - self.min_offset // self.file_size, len(self.files)
        return usual if 0 <= usual < count and holds(usual) else next(filter(holds, range(count)), None)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at physical `offset`, fewer at the end of its file."""
        return self.reads()(offset, length)

    def reads(self) -> Callable[[int, int], bytes]:
        """Return `read` for one thread that asks in order: what it reads ahead of one record has the next ones."""
        current: tuple[int, ReadAt] | None = None

        def read(offset: int, length: int) -> bytes:
            nonlocal current
            index = self.index_of(offset)
            if index is None:
                return b""
            if current is None or current[0] != index:
                current = index, self.read_at(index)
            return bytes(current[1](offset - self.files[index].file_from_offset, length))

        return read

    def scan_of(self, mapped_file: MappedFile) -> FileScan | None:
        """The scan of a log file, None if it was not scanned."""
        scan = self._scans.get(mapped_file.file_from_offset)
        # a scan puts a misnamed file where its records belong, and takes the better of two with one name; a broker uses
        # the name, and the first folder
        return scan if scan is not None and _place(scan.mapped_file.path) == _place(mapped_file.path) else None

    def splits(self, index: int) -> Sequence[Split]:
        scan = self.scan_of(self.files[index])
        return [] if scan is None else scan.splits


def _place(path: Path) -> Path:
    """The path on this machine, also of a file as a plan would leave it."""
    return (isinstance(path, StorePath) and path.behind) or path.absolute()


Key = tuple[str, int]


class Dispatcher:
    """Implements `recover.broker.recovery.DispatchTarget` on the broker's queues; unknown queues are created.

    `queues`: the log's (topic, queue id), indexed by the queue numbers of rows; `read(offset, length)` returns bytes of
    the log. Topics of `batch` have queues of their own kind, which are not emulated. `delays` (level -> ms) may change
    between phases of a start. `first_offset`: where the first dispatched message is, None before it.
    """

    def __init__(
        self, states: dict[Key, QueueState], queues: list[tuple[bytes, int]], settings: BrokerSettings,
        file_size: int, read: Callable[[int, int], bytes], batch: Collection[str] = (),
    ) -> None:
        self.states = states
        self.batch = batch if settings.version.has(versions.INNER_BATCHES) else ()
        self.keys = [(java_string(topic), queue_id) for topic, queue_id in queues]
        self.settings = settings
        self.file_size = file_size
        self.read = read
        self.delays: Mapping[int, int] = settings.delay_table
        self.multi = settings.version.has(versions.MULTI_DISPATCH) and settings.flag("enableMultiDispatch")
        self.limited = settings.version.has(versions.MULTI_DISPATCH_LIMITED)
        self.known = settings.version.has(versions.MULTI_DISPATCH)
        self.lmq = settings.flag("enableLmq")
        self.first_offset: int | None = None
        self.multi_skipped = 0
        self.lmq_elsewhere = 0
        self.delayed = 0

    def rows(self, rows: Rows) -> None:
        """Dispatch a run of intact records, in log order."""
        if not rows.size:
            return
        self._note(int(rows["phy_offset"][0]))
        kind = rows["sys_flag"] & TRANSACTION
        rows = rows[(kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT)]
        units = np.empty(rows.size, dtype=CQ_UNIT.dtype)
        units["phy_offset"], units["size"] = rows["phy_offset"], rows["size"]
        units["tags_code"] = self._tags_codes(rows)
        order = np.argsort(rows["queue"], kind="stable")
        numbers, starts = np.unique(rows["queue"][order], return_index=True)
        for number, (start, stop) in zip(numbers.tolist(), pairwise([*starts.tolist(), rows.size]), strict=True):
            chosen = order[start:stop]
            if self.keys[number][0] not in self.batch:
                self.state(self.keys[number]).append(rows["queue_offset"][chosen], units[chosen])
        carriers = (rows["bits"] & BIT_LMQ) != 0
        for row, unit in zip(rows[carriers], units[carriers], strict=True):
            record = decode(self.read(int(row["phy_offset"]), int(row["size"])), check_crc=False)
            self._to_lmq(record.topic_name, record.queue_id, record.property_map(), unit)

    def passes(self, split: Split) -> bool:
        """See `DispatchTarget`: each queue has the units of its messages, or none."""
        summary = split.summary
        if summary is None or split.has(NOT_IN_QUEUE | STAND_IN | BIT_DELAY | BIT_LMQ):
            return False
        held = summary.queues["positions"] > 0
        for number, queue in zip(split.numbers[held].tolist(), summary.queues[held], strict=True):
            key = self.keys[number]
            skips = key in self.states and self.states[key].skips(split.end, int(queue["least"]), int(queue["most"]))
            if not skips and key[0] not in self.batch:
                return False
        self._note(split.first)
        return True

    def checked(self, message: Checked) -> None:
        """Dispatch a record that the broker's own check accepted; its stored offset is trusted."""
        self._note(message.phy_offset)
        if message.sys_flag & TRANSACTION not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return
        unit = np.array([(message.phy_offset, message.size, message.tags_code)], dtype=CQ_UNIT.dtype)
        offsets = np.array([message.queue_offset], dtype=np.int64)
        if message.topic not in self.batch:
            self.state((message.topic, message.queue_id)).append(offsets, unit)
        if message.properties and props.INNER_MULTI_DISPATCH in message.properties:
            self._to_lmq(message.topic, message.queue_id, message.properties, unit[0])

    def state(self, key: Key) -> QueueState:
        """Return the queue, created if needed: no broker checks whether the topic still exists."""
        found = self.states.get(key)
        if found is None:
            found = self.states[key] = QueueState(key[0], key[1], self.file_size, [], self.settings)
        return found

    def _note(self, offset: int) -> None:
        self.first_offset = offset if self.first_offset is None else min(self.first_offset, offset)

    def _tags_codes(self, rows: Rows) -> Rows:
        codes: Rows = rows["tags_code"].astype(np.int64)
        delayed = np.flatnonzero((rows["bits"] & BIT_DELAY) != 0)
        self.delayed += delayed.size
        for at in delayed.tolist():
            row = rows[at]
            delay = delay_of(self.delays, int(codes[at]))
            codes[at] = deliver_time(int(row["store_timestamp"]), delay) if self.delays else self._hash(row)
        return codes

    def _hash(self, row: Rows) -> int:
        """Without a delay table the tags code is that of an ordinary message, which the scan has not kept."""
        return tags_code(decode(self.read(int(row["phy_offset"]), int(row["size"])), check_crc=False))

    def _to_lmq(self, topic: str, queue_id: int, properties: Mapping[str, str], unit: Rows) -> None:
        if self.limited and (topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) or topic == TOPIC_SCHEDULE):
            return
        if not self.multi:
            self.multi_skipped += self.known
            return
        for queue, offset in props.multi_dispatch(properties):
            number = 0 if self.lmq and queue.startswith(LMQ_PREFIX) else queue_id
            self.lmq_elsewhere += number != 0 and queue.startswith(LMQ_PREFIX)
            one = np.array([unit.item()], dtype=CQ_UNIT.dtype)
            self.state((queue, number)).append(np.array([offset], dtype=np.int64), one)


class Within(Struct):
    """Passes on records strictly `above` an offset (a normal recovery from 5.3.2 on) that end at or below `until` (with
    duplicationEnable, or in controller mode)."""

    target: Dispatcher
    above: int = -1
    until: int = MAX_OFFSET

    def rows(self, rows: Rows) -> None:
        # they adjoin: each ends where the next one begins
        starts = rows["phy_offset"]
        first = bisect_right(starts, self.above)
        stop = rows.size if end_of(rows) <= self.until else bisect_right(starts, self.until) - 1
        self.target.rows(rows[first : max(first, stop)])

    def passes(self, split: Split) -> bool:
        if split.last <= self.above:
            return True
        return split.first > self.above and split.end <= self.until and self.target.passes(split)

    def checked(self, message: Checked) -> None:
        if message.phy_offset > self.above and message.phy_offset + message.size <= self.until:
            self.target.checked(message)


class NullDispatcher:
    """Discards everything: for a recovery that only searches the end."""

    def rows(self, rows: Rows) -> None:
        pass

    def passes(self, split: Split) -> bool:
        return True

    def checked(self, message: Checked) -> None:
        pass


# --- Dispatch after recovery: ReputMessageService.doReput, until it has caught up or hangs.


def reput(log: BrokerLog, start: int, cut_at: int, rules: CheckRules, target: DispatchTarget) -> int | None:
    """Dispatch the log, cut at `cut_at`, from physical `start` to its end; return the offset at which it hangs for
    ever, or None. As a master does: after an unreadable record it continues with the next file."""
    position = max(start, log.min_offset)
    end = max_offset(log, cut_at)
    while position < end:
        index = log.index_of(position)
        if index is None:
            return position
        base = log.files[index].file_from_offset
        readable, at = written(log, base, cut_at), position % log.file_size
        if at >= readable:
            return position
        reached = _dispatch_range(FileWalk(log, index, readable, rules, target), at, log.file_size)
        if reached <= position:
            return position
        position = reached
    return None


def _dispatch_range(file: FileWalk, at: int, file_size: int) -> int:
    """Dispatch the data that one `getData` returns: the rest of one file, from its byte `at`. Return where dispatch
    continues after this range. Keeps three positions, as the broker does."""
    reput_from, size, read_size = file.base + at, file.readable - at, 0
    while read_size < size:
        stop, message = file.walk(at)
        step = stop - at
        at, read_size, reput_from = stop, read_size + step, reput_from + step
        if message.ok:
            return reput_from + file_size - reput_from % file_size
        if message.size <= 0:
            return reput_from + size - read_size
        # the buffer is after the fields that were read, the offset after the size that the record claims
        at, reput_from = at + message.consumed, reput_from + message.size
    return reput_from
