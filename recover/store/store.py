"""A store on disk: where its parts are, and how large its files should be."""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain, pairwise
from math import gcd
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field, structs

from formats.basics import FormatError, offset_in_name
from formats.checkpoint import FILE_SIZE, Checkpoint, decode
from formats.consumequeue import CQ_UNIT, CqUnit, file_size_for, is_pre_blank, is_valid
from formats.record import BLANK_SIZE, HEAD, MAGICS, encode_blank
from recover.findings.code import N_, NotAStore, Refusal, UsageRefusal, unreadable
from recover.findings.model import Phrase, few, shell_line
from recover.store.mapped_files import MappedFile, MappedFileQueue, infer_file_size
from recover.store.reader import FileReader
from recover.store.reading import FILE
from recover.store.source import (
    LocalTree,
    StorePath,
    entries,
    existing_entries,
    mount,
    names_in,
    open_file,
    read_small,
    unmount,
)

COMMITLOG = "commitlog"
CONSUMEQUEUE = "consumequeue"
CONSUMEQUEUE_EXT = "consumequeue_ext"
BATCHCONSUMEQUEUE = "batchconsumequeue"
INDEX = "index"
CONFIG = "config"
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
JOURNAL_DIR = ".mqtool"
STAGING = f"{JOURNAL_DIR}-copy"
"""Collects the files of a copy, and is empty once all have moved to their places."""

DEFAULT_MAPPED_FILE_SIZE = 1 << 30
DEFAULT_QUEUE_FILE_SIZE = 6_000_000
DEFAULT_EXT_FILE_SIZE = 48 << 20
_TAIL = 1 << 20
_SIGNS = (
    COMMITLOG, CONSUMEQUEUE, CONSUMEQUEUE_EXT, BATCHCONSUMEQUEUE, INDEX, CHECKPOINT, ABORT, LOCK, "timerlog",
    "timerwheel", "compaction", "rocksdbstore", "consumequeue_rocksdb", "transaction",
)
_CONFIG_SIGNS = ("topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json")


class StoreOptions(Struct, frozen=True):
    """The user's options for the store: parts kept elsewhere and sizes (bytes; None = infer).

    `log_of_conf`: the folders of the commitlog come from the broker's configuration; one may be unmounted. `conf`: the
    configuration file of `settings`, "" without one; what it leaves out has the default.
    """

    commitlog: tuple[Path, ...] = ()
    consumequeue: Path | None = None
    index: Path | None = None
    mapped_file_size: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None
    broker: str | None = None
    log_of_conf: bool = False
    conf: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def folders(self) -> tuple[str, ...]:
        """Absolute paths of the parts that the user named: a command may write there, and below the root."""
        named = (*self.commitlog, *(part for part in (self.consumequeue, self.index) if part is not None))
        return tuple(os.path.abspath(part) for part in named if not isinstance(part, StorePath))


class QueueFolder(NamedTuple):
    """One folder `<topic>/<queue id>` of a queue part."""

    topic: str
    queue_id: int
    path: Path


class Store:
    """The parts of one store. Opening it lists folders; only a log with a single file has that file's end read."""

    def __init__(self, root: Path, options: StoreOptions) -> None:
        def part(folder: Path) -> Path:
            # names outside the root are absolute
            known = isinstance(folder, StorePath) or folder.is_relative_to(root)
            return folder if known else Path(os.path.abspath(folder))

        options = structs.replace(
            options, commitlog=tuple(map(part, options.commitlog)), index=options.index and part(options.index),
            consumequeue=options.consumequeue and part(options.consumequeue),
        )
        self.root = root
        self._prefix = os.path.join(str(root), "")
        self.options = options
        self.commitlog_dirs = options.commitlog or (root / COMMITLOG,)
        self.consumequeue_dir = options.consumequeue or root / CONSUMEQUEUE
        self.consumequeue_ext_dir = root / CONSUMEQUEUE_EXT
        self.batchconsumequeue_dir = root / BATCHCONSUMEQUEUE
        self.index_dir = options.index or root / INDEX
        self.config_dir = root / CONFIG
        self.checkpoint_path = root / CHECKPOINT
        self.abort_path = root / ABORT
        self.lock_path = root / LOCK
        self.lock_holder: tuple[int | None] | None = None
        """The lock's holder when it was last queried (`recover.change.lock.holder_of`)."""
        self.settled_at: int | None = None
        """The end of the log when the analysis of a running broker's store began (`recover.look.live`)."""

    @classmethod
    def open(cls, root: Path, options: StoreOptions | None = None) -> Store:
        """Open the store at `root`.

        `NotAStore` (16) if nothing there looks like one, `UsageRefusal` (16) for an override that cannot be true,
        `Refusal` (8) if a part cannot be listed or is not of the kind its name implies.
        """
        options = options or StoreOptions()
        if not root.exists():
            raise NotAStore(Phrase("{path} does not exist", path=root),
                            "Give the store root: the folder that holds commitlog/.")
        if not root.is_dir():
            raise NotAStore(Phrase("{root} is a file, not a store", root=root),
                            "Give the store root. `mqtool inspect {store}` inspects the file alone, `mqtool export "
                            "{store}` exports the messages of a log file, a piece of one, or an image of a disk.")
        store = cls(root, options)
        try:
            store._check_shape()
            _ = store.commitlog
        except PermissionError as error:
            raise Refusal(Phrase("no permission to read {file}", file=error.filename),
                          "Run as the broker's user or as root.", path=error.filename) from error
        except OSError as error:
            raise unreadable(error) from error
        return store

    def with_tree(self, tree: LocalTree) -> tuple[Store, Callable[[Path], Path]]:
        """Return the same store with the files of a tree, until its root is unmounted, and a function that maps paths
        to it."""
        top, given = mount(tree), self.options

        def there(path: Path) -> Path:
            return top.joinpath(*path.absolute().parts[1:])

        try:
            opened = Store.open(there(self.root), structs.replace(
                given, commitlog=tuple(map(there, given.commitlog)),
                consumequeue=given.consumequeue and there(given.consumequeue), index=given.index and there(given.index),
            ))
        except BaseException:
            unmount(top)
            raise
        opened.commitlog.file_size = self.mapped_file_size
        return opened, there

    def _stores_near(self) -> list[str]:
        """The folders one level above and below that hold a log."""
        if isinstance(self.root, StorePath):
            return []
        root = Path(os.path.abspath(self.root))
        near = [root.parent, *(root / entry.name for entry in existing_entries(root) if entry.is_folder)]
        return sorted(str(path) for path in near if (path / COMMITLOG).is_dir())

    def _check_shape(self) -> None:
        """`NotAStore` if nothing here is part of a store, `Refusal` if something is of the wrong kind."""
        self._check_signs()
        folders = (*self.commitlog_dirs, self.consumequeue_dir, self.index_dir, self.config_dir,
                   self.consumequeue_ext_dir, self.batchconsumequeue_dir)
        self._refuse_kind([path for path in folders if path.exists() and not path.is_dir()],
                          N_("{file} is a file, but a folder belongs there"))
        for part in self._given:
            if not part.is_dir():
                raise UsageRefusal(Phrase("{file} is not a folder", file=part),
                                   "Check the option that names this part.")
        files = (self.checkpoint_path, self.abort_path, self.lock_path)
        self._refuse_kind([path for path in files if path.is_dir()],
                          N_("{file} is a folder, but a file belongs there"))

    def _refuse_kind(self, paths: Iterable[Path], said: str) -> None:
        for path in paths:
            raise Refusal(Phrase(said, file=self.relative(path)), "Move it out of the store and run again.",
                          path=str(path))

    @property
    def _given(self) -> list[Path]:
        """The folders that options name."""
        folders = () if self.options.log_of_conf else self.options.commitlog
        return [part for part in (*folders, self.options.consumequeue, self.options.index) if part is not None]

    def _check_signs(self) -> None:
        if STAGING in names_in(self.root) and names_in(self.root / STAGING):
            raise NotAStore(Phrase("{root} holds a part of a copy: the command that made it did not end",
                                   root=self.root), "Run that command again, or name the store itself.")
        signs = [name for name in _SIGNS if (self.root / name).exists()]
        signs += [name for name in _CONFIG_SIGNS if (self.config_dir / name).exists()]
        if not signs and not self._given:
            near = self._stores_near()
            hint: str = Phrase("The store seems to be {names}." if len(near) == 1 else "Stores seem to be {names}.",
                               names=few(near)) if near else \
                N_("Give the store root: the folder that holds commitlog/ and consumequeue/.")
            if any(offset_in_name(name) is not None for name in names_in(self.root)):
                hint = Phrase("{hint} `mqtool export {store}` exports the messages of these log files alone.",
                              hint=hint)
            raise NotAStore(Phrase("{root} holds no RocketMQ store", root=self.root), hint)

    @property
    def commitlog(self) -> MappedFileQueue:
        """The mapped files of the commitlog in all its folders."""
        return self._log[0]

    @property
    def log_file_size_is_told(self) -> bool:
        """False if no setting gives the size, and the log has one file, or several without one of the length names
        imply."""
        return self._log[1]

    @cached_property
    def _log(self) -> tuple[MappedFileQueue, bool]:
        queue = MappedFileQueue.load(self.commitlog_dirs, self.options.mapped_file_size or 0)
        given = self.options.mapped_file_size
        if given is None:
            queue.file_size, told = self._log_file_size(queue)
            return queue, told
        differences = [b.file_from_offset - a.file_from_offset for a, b in pairwise(queue.files)]
        inferred = infer_file_size(queue.files)
        false = given <= 0 or any(d < given or d % given for d in differences)
        # files may have been cut; where all of them are longer, two names at least tell the size
        false |= given not in differences and given < min((file.length for file in queue.files), default=given)
        if false and given != inferred:
            raise UsageRefusal(Phrase("--mapped-file-size {given} is impossible: the commitlog's files imply "
                                      "{inferred}", given=given, inferred=inferred),
                               "Leave the option out; the size is then inferred.")
        return queue, True

    def _log_file_size(self, queue: MappedFileQueue) -> tuple[int, bool]:
        """Return the size of log files in bytes (0: unknown), and whether a setting or a whole file proves it.

        A single, truncated file proves nothing, so the settings decide; a configuration without the size means the
        default. A whole file before the last outranks the distance of two names, since one name may be wrong and files
        between may be missing; so does the last file if its first record contradicts its name, but that is not proof.
        """
        stated = self._configured("mappedFileSizeCommitLog", DEFAULT_MAPPED_FILE_SIZE if self.options.conf else 0)
        if len(queue.files) == 1:
            return _size_of_one(queue, stated)
        if queue.file_size in queue.lengths:
            return queue.file_size, True
        misnamed = [file for file in queue.files[-1:]
                    if named_by_record(file.path) not in (None, file.file_from_offset)]
        whole, last = _usual_length(queue.files[:-1]), _usual_length(misnamed)
        fits = stated and not any(file.file_from_offset % stated for file in queue.files)
        size = whole or (stated if fits else last or queue.file_size)
        return size, bool(whole or queue.duplicates or not queue.files or size == stated)

    @cached_property
    def log_folders_beside(self) -> tuple[Path, ...]:
        """Folders of the root that hold log files but are not a named part of the log."""
        folders = (self.root / entry.name for entry in entries(self.root) if entry.is_folder)
        return tuple(folder for folder in folders if folder not in self.commitlog_dirs and any(
            entry.is_file and (start := offset_in_name(entry.name)) is not None
            and named_by_record(folder / entry.name) == start for entry in entries(folder)))

    @property
    def mapped_file_size(self) -> int:
        """The size of a commitlog file in bytes; the brokers' default without a file."""
        return self.commitlog.file_size or DEFAULT_MAPPED_FILE_SIZE

    @cached_property
    def queue_folders(self) -> tuple[QueueFolder, ...]:
        """Every `<topic>/<queue id>` folder of the consume queue, sorted by topic and number."""
        return tuple(_queue_folders(self.consumequeue_dir))

    @cached_property
    def _queues(self) -> list[tuple[QueueFolder, MappedFileQueue]]:
        return [(folder, MappedFileQueue.load((folder.path,), 1, CQ_UNIT.size)) for folder in self.queue_folders]

    def list_queues(self) -> list[tuple[QueueFolder, MappedFileQueue]]:
        """Return the present files of each queue folder, listed once. `OSError`."""
        for _, queue in self._queues:
            queue.file_size = self.queue_file_size
        return self._queues

    @cached_property
    def queue_file_size(self) -> int:
        """The size of a consume queue file in bytes: that of most files; as configured without files."""
        return self.queue_size_of_files or self._configured_queue_size

    @property
    def queue_file_size_is_told(self) -> bool:
        """False if `queue_file_size` is only the brokers' default, without a file or setting."""
        return bool(self._configured("mappedFileSizeConsumeQueue", 0)) or self.queue_size_of_files is not None

    @cached_property
    def queue_size_of_files(self) -> int | None:
        """The most frequent length of consume queue files in bytes; if several tie, the configured one, then one that
        fits the files' names, then the largest. None without files."""
        found = _modes(chain.from_iterable(queue.lengths for _, queue in self._queues), CQ_UNIT.size)
        if len(found) <= 1:
            return next(iter(found), None)
        step = gcd(*(file.file_from_offset for _, queue in self._queues for file in queue.files))
        return max(found, key=lambda size: (size == self._configured_queue_size, step % size == 0, size))

    @property
    def _configured_queue_size(self) -> int:
        return file_size_for(self._configured("mappedFileSizeConsumeQueue", DEFAULT_QUEUE_FILE_SIZE))

    @cached_property
    def ext_file_size(self) -> int:
        """The size of a consumequeue_ext file in bytes: the most frequent length; as configured without files."""
        return self._told_ext_file_size or DEFAULT_EXT_FILE_SIZE

    @property
    def ext_file_size_is_told(self) -> bool:
        """False if `ext_file_size` is only the brokers' default, without a file or setting."""
        return self._told_ext_file_size > 0

    @cached_property
    def _told_ext_file_size(self) -> int:
        found = _modes(entry.length for folder in _queue_folders(self.consumequeue_ext_dir)
                       for entry in entries(folder.path) if entry.is_file)
        return max(found, default=0) or self._configured("mappedFileSizeConsumeQueueExt", 0)

    def _configured(self, setting: str, default: int) -> int:
        """Return a size that the user gave as a broker setting; the default if there is none, or it is impossible."""
        text = self.options.settings.get(setting, "")
        return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else default

    def checkpoint(self, *, extend: bool = False) -> Checkpoint | None:
        """Return the fields of the checkpoint; None if it is unreadable, or too short without `extend`."""
        try:
            return decode(read_small(self.checkpoint_path, FILE_SIZE), extend=extend)
        except (OSError, FormatError):
            return None

    @property
    def has_abort(self) -> bool:
        """Whether the abort file exists: the last stop was not clean."""
        return self.abort_path.exists()

    @property
    def folders_elsewhere(self) -> list[str]:
        """Paths of the parts outside of the root, as in `relative`."""
        folders = (*self.commitlog_dirs, self.consumequeue_dir, self.index_dir)
        return sorted({self.relative(folder.absolute()) for folder in folders if not folder.is_relative_to(self.root)})

    def relative(self, path: Path) -> str:
        """Return the name of `path` in reports and plans: relative to the root, absolute for parts kept elsewhere."""
        name = str(path)
        if name.startswith(self._prefix):
            return name[len(self._prefix) :] or "."
        if isinstance(path, StorePath) and (below := path.below) is not None:
            return self.relative(below)
        return "." if path == self.root else str((isinstance(path, StorePath) and path.behind) or path)

    def path(self, name: str) -> Path:
        """Return the path of a name: the inverse of `relative`."""
        return self.root / name


def _usual_length(files: Iterable[MappedFile]) -> int:
    """The most frequent length (bytes) of files that are not truncated, the largest if several tie; 0 without one."""
    return max(_modes(file.length for file in files if not _is_truncated(file.path)), default=0)


def _modes(lengths: Iterable[int], unit: int = 1) -> list[int]:
    """Return the most frequent lengths (bytes) that are multiples of `unit`; empty if there are none."""
    counts = Counter(length for length in lengths if length > 0 and length % unit == 0)
    return [length for length, count in counts.items() if count == max(counts.values())]


def logs_beside_remedy(store: Store, own: str = "--commitlog LOG ") -> str | None:
    """Return the remedy for unnamed folders of the root with log files: name them, after the options for the log's
    `own` ones. Only the store is left to be filled in. None if there are no such folders."""
    names = " ".join(f"--commitlog {shell_line(folder)}" for folder in store.log_folders_beside)
    return Phrase("Log files are beside it: mqtool verify {store} {options}", options=own + names) if names else None


def named_by_record(path: Path) -> int | None:
    """Return the physical offset that the record at the start of a file states; None if no record begins there."""
    try:
        with open_file(path) as reader:
            begin = reader.read(0, HEAD.size)
    except OSError:
        return None
    head = HEAD.decode(begin) if len(begin) == HEAD.size else None
    return head.phy_offset if head is not None and head.magic in MAGICS else None


def _size_of_one(queue: MappedFileQueue, stated: int) -> tuple[int, bool]:
    """The answer of `Store._log_file_size` for the only file of a log; `stated` is the setting, 0 without one."""
    (only,) = queue.files
    cut = only.length < stated and _is_truncated(only.path)
    # the next one is there under another name, and begins where this one ends
    goes_on = any(odd.kind == FILE and odd.length == only.length and named_by_record(odd.path) == only.end
                  for odd in queue.odd)
    return (stated if cut else queue.file_size), bool(stated or queue.duplicates or goes_on)


def _is_truncated(path: Path) -> bool:
    """Whether a log file ends unlike a whole one: neither in many zeros nor with an end mark that fills it."""
    try:
        with open_file(path) as reader:
            end = reader.read(max(0, reader.length - _TAIL), _TAIL)
    except OSError:
        return False
    magic = encode_blank(BLANK_SIZE)[4:]
    at = end.find(magic, 4)
    while at >= 0:
        if end[at - 4 : at + 4] == encode_blank(len(end) - at + 4):
            return False
        at = end.find(magic, at + 1)
    # a truncated record may end in zeros, but hardly in this many
    return not end.endswith(bytes(HEAD.size))


def _queue_folders(directory: Path) -> Iterator[QueueFolder]:
    # of `00` a broker takes the number only, and looks for the files in `0` (ConsumeQueueStore.loadConsumeQueues)
    for topic in existing_entries(directory):
        path = directory / topic.name
        numbers = [(int(entry.name), path / entry.name) for entry in (entries(path) if topic.is_folder else ())
                   if entry.name.isascii() and entry.name.isdecimal() and str(int(entry.name)) == entry.name
                   and entry.is_folder]
        for number, folder in sorted(numbers, key=itemgetter(0)):
            yield QueueFolder(topic.name, number, folder)


# --- The journal of changes in a store.


def has_journal(root: Path) -> bool:
    """Whether a journal may exist; one that cannot be examined counts, and is for `recover.change.journal` to check."""
    try:
        (root / JOURNAL_DIR).lstat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def check_journal_folder(root: Path) -> None:
    """Raise `Refusal` if the journal's folder, or that of its runs, is a link or no folder: writes would go
    elsewhere."""
    for name in (JOURNAL_DIR, f"{JOURNAL_DIR}/runs"):
        try:
            mode = (root / name).lstat().st_mode
        except OSError:
            return
        if not stat.S_ISDIR(mode):
            raise Refusal(Phrase("{name} is {what}, and not made by mqtool", name=name,
                                 what=N_("a link") if stat.S_ISLNK(mode) else N_("not a folder")),
                          Phrase("move {folder} out of the store, then run the command again",
                                 folder=JOURNAL_DIR), file=name)


def queue_ends(store: Store, unread: list[OSError]) -> Iterator[tuple[QueueFolder, int, int | None]]:
    """Yield each queue, the queue offset after its last unit, and the end in the log of that unit's message (None
    without a unit). `OSError` if queues cannot be listed; read errors go to `unread`."""
    for folder, queue in store.list_queues():
        end, unit = last_unit(queue.files, unread)
        yield folder, end, None if unit is None or is_pre_blank(unit) else unit.phy_offset + unit.size


def last_unit(files: list[MappedFile], unread: list[OSError]) -> tuple[int, CqUnit | None]:
    """Return (queue offset after the last valid unit, that unit), by bisection: units have no gaps. Read errors go to
    `unread`."""
    for mapped_file in reversed(files):
        first = mapped_file.file_from_offset // CQ_UNIT.size
        try:
            with open_file(mapped_file.path) as reader:
                units = range(mapped_file.length // CQ_UNIT.size)
                count = bisect_left(units, True, key=lambda number: not is_valid(_unit(reader, number)))
                if count:
                    return first + count, _unit(reader, count - 1)
        except OSError as error:
            unread.append(error)
    return (files[0].file_from_offset // CQ_UNIT.size if files else 0), None


def _unit(reader: FileReader, number: int) -> CqUnit:
    return CQ_UNIT.decode(reader.read(number * CQ_UNIT.size, CQ_UNIT.size))
