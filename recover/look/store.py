"""Facts about a store for one screen, without reading all of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from formats import properties as props
from formats.basics import FormatError
from formats.checkpoint import ABORT_BACKUP, EMPTY, SINCE, Checkpoint, newer_fields, process_id
from formats.record.rows import BIT_PROP_CRC, BIT_V2
from formats.sysflag import BORNHOST_V6, INNER_BATCH, NEED_UNWRAP, STOREHOST_V6
from recover.broker.recovery import LogFiles, Mode, StartFile, start_file
from recover.broker.settings import BrokerSettings, has_blank_after_log, load_settings
from recover.broker.versions import (
    NEWEST_COMPARED,
    OLDEST_COMPARED,
    SEVERAL_LOG_FOLDERS,
    TRIMMED_TEXT,
    BrokerVersion,
    boundaries,
    generation_of,
)
from recover.change.journal import runs
from recover.change.lock import holder_of, holder_text
from recover.derived.index_files import ends_of, index_geometry, index_headers, list_index_files
from recover.findings.code import N_, Refusal
from recover.findings.model import Finding, Phrase, builtins_of, finding
from recover.log.file_scan import WHOLE, FileScan, scan_file
from recover.log.files import live_copies, place_misnamed_files
from recover.log.scan import LogView, assemble, open_before
from recover.log.split_scan import scan_files, splits_of
from recover.look.crash import progress_of
from recover.look.items import next_data
from recover.reading.end import file_named_elsewhere
from recover.store.columns import Split, ask
from recover.store.config_files import ConfigText, read_pairs
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reader import ReadFailure
from recover.store.source import bytes_on_disk, files_below, names_in, open_file, read_small
from recover.store.store import COMMITLOG, CONSUMEQUEUE, Store, has_journal, logs_beside_remedy, queue_ends
from recover.store.unread import held_elsewhere, mapped_data, rocksdb_queue_folders

# --- Traces that releases leave, and those that are missing: which broker ran last.


class Trace(NamedTuple):
    """A trace of the last broker: the first release that leaves it (or, for a missing one, would have left it), and
    why."""

    since: str
    why: str

    @property
    def release(self) -> BrokerVersion:
        return BrokerVersion.parse(self.since)


def _limits(store: Store) -> Iterator[Trace]:
    """Traces that are missing; none for a folder without lock and checkpoint, in which no broker ever started."""
    told_by = ("lock", "checkpoint", "rocksdbstore", "abort.bak", "timerwheel")
    there = {name for name in told_by if (store.root / name).exists()}
    if not there & {"lock", "checkpoint"}:
        return
    if "rocksdbstore" not in there:
        yield Trace("5.4.0", N_("no rocksdbstore, which every start creates from 5.4.0 on"))
    # the backup is made when abort is written, at every start
    if not there & {"abort.bak", "timerwheel"}:
        yield Trace("5.0.0", N_("neither abort.bak nor timerwheel, which 5.x starts create"))
    # up to 4.7.0 every entry counted as a used slot, so a crowded file of such a release counts too many
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing)
    header = listing.files[-1].header() if listing.files else None
    if header is not None and geometry is not None and header.hash_slot_count == header.index_count - 1 \
            and header.hash_slot_count ** 2 > 16 * geometry.slots:
        yield Trace("4.7.1", N_("the newest index file counts each of its entries as a slot in use"))


_SAMPLED, _LEAST = 500, 50
"""Records of a log file, and at least of each of its splits, of which the ends are read for traces of releases."""


class Generation:
    """The newest release that traces prove, and the traces, those of the newest release first. Later releases may have
    started on the store too, but none from `before` on; None if unknown."""

    def __init__(self, store: Store, checkpoint: Checkpoint | None, log: LogView | None = None) -> None:
        younger = () if checkpoint is None else newer_fields(checkpoint, store.commitlog.max_offset)
        of_checkpoint = [Trace(SINCE[name], Phrase("the checkpoint has a {field}", field=name.replace("_", " ")))
                         for name in younger]
        found = {item.why: item for item in (*_evidence_of_files(store), *of_checkpoint, *_of_records(store, log))}
        self.evidence = sorted(found.values(), key=lambda item: item.release, reverse=True)
        self.at_least = self.evidence[0].release if self.evidence else OLDEST_COMPARED
        # existing traces outweigh missing ones: files get lost, but do not appear by themselves
        limits = sorted(_limits(store), key=lambda item: item.release)
        self.limits = [limit for limit in limits if limit.release > self.at_least]
        self.before = self.limits[0].release if self.limits else None

    def json(self) -> dict[str, object]:
        return {
            "at_least": str(self.at_least), "before": str(self.before) if self.before else None,
            "evidence": [item._asdict() for item in self.evidence],
            "limits": [{"before": item.since, "why": item.why} for item in self.limits],
        }


def _evidence_of_files(store: Store) -> Iterator[Trace]:
    for name, since in (("rocksdbstore", "5.4.0"), ("abort.bak", "5.0.0"), ("timerwheel", "5.0.0"),
                        ("compaction", "5.0.0"), ("kvStore", "5.3.0"), ("consumequeue_rocksdb", "5.5.0"),
                        ("epochFileCheckpoint", "5.0.0")):
        if (store.root / name).exists():
            yield Trace(since, Phrase("{name} exists", name=name))
    if (store.consumequeue_dir / "CURRENT").exists():
        yield Trace("5.2.0", N_("consumequeue/ holds a RocksDB"))
    with contextlib.suppress(OSError):
        if store.abort_path.stat().st_size:
            yield Trace("5.0.0", N_("abort holds a process id"))
    if any(folder.topic.startswith("%LMQ%") for folder in store.queue_folders):
        yield Trace("4.9.3", N_("there are LMQ queues"))
    if len(store.commitlog_dirs) > 1:
        yield Trace(str(SEVERAL_LOG_FOLDERS.since), N_("the log is in several folders"))


def _of_records(store: Store, log: LogView | None) -> Iterator[Trace]:
    """Traces in the first and the last file of the log: of the oldest and of the newest writer. A file that a scan of
    the log read is not read again: who has its rows is asked."""
    files = store.commitlog.files
    scans = {scan.mapped_file: scan for scan in log.files} if log else {}
    plain = log is not None and not (log.tally.bits & _TRACES or log.tally.flags & _FLAG_TRACES)
    asked = []
    for mapped_file in {files[0], files[-1]} if files else ():
        scan = scans.get(mapped_file) or scan_file(mapped_file, store.commitlog.file_size)
        most = max(_LEAST, _SAMPLED // max(1, len(scan.splits)))
        marks_of = partial(_marks_of, most=most, plain=plain and mapped_file in scans)
        asked += [(mapped_file, (split, marks_of)) for split in scan.splits]
    for (mapped_file, _), marks in zip(asked, ask([question for _, question in asked]), strict=True):
        yield from _of_marks(marks, mapped_file)


class _Marks(NamedTuple):
    """What a split tells of the releases that wrote it: bits and system flags of all its rows, and the physical offsets
    at which its first records without a property CRC end."""

    bits: int
    flags: int
    ends: list[int]


_TRACES, _FLAG_TRACES = BIT_V2 | BIT_PROP_CRC, NEED_UNWRAP | INNER_BATCH | BORNHOST_V6 | STOREHOST_V6


def _marks_of(split: Split, most: int, *, plain: bool) -> _Marks:
    """`plain`: no row of the log has a bit or flag that tells."""
    rows = split.records
    if plain:
        rows = rows[:most]
    bits, flags = (int(np.bitwise_or.reduce(rows[name], initial=0)) for name in ("bits", "sys_flag"))
    sampled = rows[np.flatnonzero((rows["bits"] & BIT_PROP_CRC) == 0)[:most]]
    return _Marks(bits, flags, (sampled["phy_offset"] + sampled["size"]).tolist())


def _of_marks(marks: _Marks, mapped_file: MappedFile) -> Iterator[Trace]:
    bits, flags, ends = marks
    if bits & BIT_V2:
        yield Trace("5.1.0", N_("records with the V2 magic"))
    # compression type bits come from the producer: brokers of all releases store what the client sent
    if flags & (NEED_UNWRAP | INNER_BATCH):
        yield Trace("5.0.0", N_("records with 5.x flags"))
    if flags & (BORNHOST_V6 | STOREHOST_V6):
        yield Trace("4.6.0", N_("records with IPv6 hosts"))
    if bits & BIT_PROP_CRC:
        yield Trace("5.2.0", N_("records with a property CRC"))
    stops = [end - mapped_file.file_from_offset for end in ends]
    with open_file(mapped_file.path) as reader, contextlib.suppress(ReadFailure):
        # a record without properties ends with their length
        if any(end != bytes(2) and end[1:] != props.PROPERTY_BYTE for end in (reader.read(at - 2, 2) for at in stops)):
            yield Trace("4.9.1", N_("properties without the trailing separator, as 4.9.1 to 5.1 write them"))


# --- Entries of a store's root, and which of them this version reads.


READ, LISTED, NOT_READ, OWN, UNKNOWN = "read", "listed", "not-read", "own", "unknown"

KNOWN_PARTS: dict[str, tuple[str, str]] = {
    "commitlog": ("messages of all topics", READ),
    "consumequeue": ("positions of the messages of each queue", READ),
    "consumequeue_ext": ("filter bit maps of queues", READ),
    "batchconsumequeue": ("queues of batch topics", LISTED),
    "index": ("keys of messages", READ),
    "config": ("topics, groups, consumer offsets", READ),
    "checkpoint": ("times of the last flushes", READ),
    "abort": ("present while a broker runs, or after a crash", READ),
    "abort.bak": ("the abort file that the last start found", READ),
    "lock": ("lock file, held by a broker while it runs", READ),
    "timerlog": ("timer messages", LISTED),
    "timerwheel": ("timer messages by due time", LISTED),
    "compaction": ("compacted topics", LISTED),
    "transaction": ("transactions of 3.x", LISTED),
    "epochFileCheckpoint": ("terms of a controller's masters", LISTED),
    "epochFileCheckpoint.bak": ("terms of a controller's masters", LISTED),
    "brokerIdentity": ("id from a controller", LISTED),
    "rocksdbstore": ("RocksDB, created by 5.4 and later", LISTED),
    "kvStore": ("RocksDB of pop consumers", LISTED),
    "consumequeue_rocksdb": ("queues in RocksDB", NOT_READ),
    "tieredstore": ("segments in tiered storage", NOT_READ),
    ".mqtool": ("journal, preimages and quarantine of mqtool", OWN),
}
_DLEDGER = re.compile(r"dledger-.*")
_COUNTED = 200_000


class Part(Struct, frozen=True, rename={"size": "bytes"}):
    """An entry of the root: what it is, whether this version reads it, its number of files, their bytes (lengths), and
    the bytes that they hold `on_disk`: fewer where files have holes."""

    name: str
    what: str
    state: str
    files: int
    size: int
    path: str
    on_disk: int


def list_parts(store: Store) -> list[Part]:
    """All parts: known ones first, then other entries of the root. `OSError` from the root itself."""
    names = set(names_in(store.root))
    elsewhere: dict[str, Iterable[Path]] = {
        "commitlog": store.commitlog_dirs, "consumequeue": (store.consumequeue_dir,), "index": (store.index_dir,),
    }
    names |= set(elsewhere)
    order = {name: number for number, name in enumerate(KNOWN_PARTS)}
    parts = []
    for name in sorted(names, key=lambda name: (order.get(name, len(order)), name)):
        paths = list(elsewhere.get(name, (store.root / name,)))
        what, state = _describe(name, paths[0])
        counted = [item for path in paths if path.exists() for item in _files(path)]
        missing = not any(path.exists() for path in paths)
        size, on_disk = sum(item.st_size for item in counted), sum(map(bytes_on_disk, counted))
        parts.append(Part(name, what, "missing" if missing else state, len(counted), size,
                          ", ".join(store.relative(path) for path in paths), on_disk))
    return parts


def _describe(name: str, path: Path) -> tuple[str, str]:
    if name in KNOWN_PARTS:
        if name == "consumequeue" and (path / "CURRENT").exists():
            return "queues in RocksDB", NOT_READ
        return KNOWN_PARTS[name]
    if _DLEDGER.fullmatch(name):
        return "log of a DLedger group", NOT_READ
    if name.startswith("timerwheel."):
        return "snapshot of the timerwheel", LISTED
    return "unknown to mqtool", UNKNOWN


def _files(path: Path) -> Iterator[os.stat_result]:
    """Each file below; a folder that cannot be listed counts as empty."""
    if path.is_dir():
        yield from (status for _, status in islice(files_below(path), _COUNTED))
    else:
        yield path.stat()


class ExitState(Struct, frozen=True, rename={"crashed_before": "crashed_before_last_start"}):
    """How the last broker stopped: running, unclean, clean, or unknown without a checkpoint, which every start creates.
    `lock_holder`: the pid that holds the lock (-1: unknown), or None."""

    verdict: str
    abort: bool
    abort_pid: int | None
    crashed_before: bool
    lock_file: bool
    lock_holder: int | None
    lock_holder_is: str | None


class ConfigHealth(Struct, frozen=True):
    """One config file: `state` is "whole", "missing", or the problem; `backup` is the same for its .bak."""

    name: str
    state: str
    backup: str
    if_lost: str


class Start(Struct, frozen=True):
    """The first step of a start by a release (and later ones up to the next in the list): mode and file."""

    broker: BrokerVersion
    mode: Mode
    file: str | None
    matched: bool

    def json(self) -> dict[str, object]:
        return {"mode": self.mode, "file": self.file, "matched": self.matched}


class StoreReport:
    """All parts of a store; `versions` are the releases whose start file is shown (default: one of each generation).
    """

    def __init__(self, store: Store, versions: Sequence[BrokerVersion] = ()) -> None:
        self.pointers = pointers = Pointers(store)
        geometry = index_geometry(store) if pointers.index_files else None
        slots, entries = (geometry.slots, geometry.entries) if geometry else (None, None)
        self.elsewhere = held_elsewhere(store)
        # of what is kept elsewhere no file tells a size, and none is assumed
        log = store.mapped_file_size if store.commitlog.files or COMMITLOG not in self.elsewhere else None
        queue = store.queue_file_size if store.queue_folders or CONSUMEQUEUE not in self.elsewhere else None
        self.sizes = {"mapped_file_size": log, "queue_file_size": queue, "index_slots": slots, "index_entries": entries}
        self.root, self.parts = str(store.root), list_parts(store)
        self.generation = Generation(store, pointers.checkpoint)
        self.exit_state, self.config = exit_state(store), config_health(store)
        self.starts = _starts(store, pointers, versions or boundaries())
        self.log_files = len(store.commitlog.files)
        settings = BrokerSettings(self.generation.at_least, store.options.settings)
        self.progress = progress_of(pointers.end, settings, pointers.checkpoint, pointers.dispatched_to,
                                    pointers.indexed_to, crashed=store.has_abort, begin=pointers.min_offset)

    def json(self) -> dict[str, object]:
        queues = self.pointers.queues
        return {
            "parts": builtins_of(self.parts), "sizes": self.sizes, "generation": self.generation.json(),
            "offsets": self.pointers.json(), "exit_state": builtins_of(self.exit_state),
            "start_file": {str(start.broker): start.json() for start in self.starts},
            "config": builtins_of(self.config),
            "topics": {topic: {str(number): end for number, end in ends.items()} for topic, ends in queues.items()},
            "index_files": [{"name": name, **header._asdict()} for name, header in self.pointers.index_files],
            **self.progress.json(), "log_files": self.log_files,
            "gaps": [list(item) for item in self.pointers.missing_ranges],
        }


def exit_state(store: Store) -> ExitState:
    """How the store was stopped, or which process holds it. `Refusal` if the lock file cannot be read."""
    pid = _abort_pid(store.abort_path)
    before = _abort_pid(store.root / ABORT_BACKUP)
    holder, has_abort = holder_of(store), store.has_abort
    verdict = "running" if holder is not None else "unclean" if has_abort else \
        "clean" if store.checkpoint_path.exists() else "unknown"
    return ExitState(verdict, has_abort, pid, before is not None, store.lock_path.exists(), holder,
                     None if holder is None else holder_text(store.root, holder))


def _abort_pid(path: Path) -> int | None:
    with contextlib.suppress(OSError, FormatError):
        return process_id(read_small(path, 64))
    return None


def config_health(store: Store) -> list[ConfigHealth]:
    """Every known config file that exists, or whose backup does."""
    return [ConfigHealth(pair.name, _config_state(pair.main), _config_state(pair.backup), pair.known.lost)
            for pair in read_pairs(store) if pair.present]


def _config_state(text: ConfigText) -> str:
    if text.error:
        return Phrase("cannot be read: {error}", error=text.error)
    if not text.missing and text.parsed.error is not None:
        return text.parsed.error.reason
    return "whole" if text.state == "sound" else text.state


def _starts(store: Store, pointers: Pointers, versions: Sequence[BrokerVersion]) -> list[Start]:
    log = LogFiles(store.commitlog.files, store.mapped_file_size)
    mode, found = _mode(store), []
    for version in versions:
        file = _first_file(store, log, pointers.checkpoint, pointers.dispatched_to, version) \
            if log.files and finds_log(store, version) else None
        found.append(Start(version, mode, None, False) if file is None else
                     Start(version, mode, log.files[file.index].name, file.matched))
    return found


def finds_log(store: Store, version: BrokerVersion) -> bool:
    """False if the log is in several folders, and the release takes their names for the name of one, or a blank for a
    part of the name."""
    in_one = len(store.commitlog_dirs) == 1 or version.has(SEVERAL_LOG_FOLDERS)
    return in_one and (version.has(TRIMMED_TEXT) or not has_blank_after_log(store.options.settings))


def _mode(store: Store) -> Mode:
    return "abnormal" if store.has_abort else "normal"


def _first_file(
    store: Store, log: LogFiles, checkpoint: Checkpoint | None, dispatched_to: int | None, version: BrokerVersion,
) -> StartFile | None:
    """The file at which the recovery of a release begins; None if one that decides it cannot be read."""
    dispatched = -1 if dispatched_to is None else dispatched_to
    with contextlib.suppress(ReadFailure):
        return start_file(log, _mode(store), BrokerSettings(version), checkpoint or EMPTY, dispatched)
    return None


# --- The broker release to assume for a store if none is named.


def default_broker(store: Store, log: LogView | None = None) -> tuple[BrokerVersion, str]:
    """Return (release, why): of the generations that fit the store's traces the one whose recovery starts earliest, and
    of equal ones the newest; named by its first release. `log`: a scan of the log, so that it is not read again."""
    checkpoint = store.checkpoint()
    generation = Generation(store, checkpoint, log)
    least = generation.at_least
    newest = generation.before or BrokerVersion(NEWEST_COMPARED.major + 1, 0)
    fitting = [least, *(version for version in boundaries() if least < version < newest)]
    trace = generation.evidence[0].why if generation.evidence else N_("no trace of a younger one")
    if generation.limits:
        trace = Phrase("{trace}; {limit}", trace=trace, limit=generation.limits[0].why)
    span = Phrase("from {first} to before {next}" if generation.before else "from {first} on",
                  first=generation_of(least), next=newest)
    mapped = LogFiles(store.commitlog.files, store.mapped_file_size)
    if not mapped.files:
        return fitting[-1], Phrase("broker {broker} ({trace}); --broker sets another", broker=fitting[-1], trace=trace)
    dispatched = max((reached for *_, reached in queue_ends(store, []) if reached is not None), default=None)
    files = {version: _first_file(store, mapped, checkpoint, dispatched, version) for version in fitting}
    starts = {version: 0 if file is None else file.index for version, file in files.items()}
    chosen = max(version for version in fitting if starts[version] == min(starts.values()))
    same = len(set(starts.values())) == 1
    return chosen, Phrase(
        "broker {broker}: the store fits all of the releases {span} ({trace}); --broker sets another" if same else
        "broker {broker}: of the releases {span} ({trace}) its recovery starts earliest; --broker sets another",
        broker=chosen, span=span, trace=trace)


def settings_of(
    store: Store, version: str | None, conf: Path | None, sets: Iterable[str], *, log: LogView | None = None,
) -> tuple[BrokerSettings, list[str]]:
    """Return the settings of the named or the default release (`log`: as for it), and the assumptions made.
    `UsageRefusal` (16)."""
    if version is not None:
        return load_settings(BrokerVersion.parse(version), conf, sets), []
    chosen, why = default_broker(store, log)
    return load_settings(chosen, conf, sets), [why]


def settings_of_options(store: Store, log: LogView | None = None) -> BrokerSettings:
    """The settings that the store was opened with, of the release named there, else the default one (`log`: as for
    it)."""
    named = store.options.broker
    version = BrokerVersion.parse(named) if named else default_broker(store, log)[0]
    return BrokerSettings(version, store.options.settings)


NO_LOG = "commitlog-empty-queues-left"


def _holds_data(mapped_file: MappedFile) -> bool:
    """Whether a file has a byte that is not zero, or cannot be read."""
    try:
        with open_file(mapped_file.path) as reader:
            return next_data(reader, 0, mapped_file.length) < mapped_file.length
    except OSError:
        return True


def log_is_gone(store: Store) -> Iterator[Finding]:
    """Yield a finding for queue files, index files, times of messages in the checkpoint or committed offsets without
    any log: the state in which a start does the most harm.

    Files of zeros after the first are not a log: brokers create the next file ahead, and never remove the one before it
    while this one has no message. A run of ours that cut the whole log leaves such a file too, and its journal says so.
    """
    files = store.commitlog.files
    holds = any(map(_holds_data, files)) if store.commitlog.min_offset else any(file.length for file in files)
    if holds or COMMITLOG in held_elsewhere(store):
        return
    queue_files = sum(1 for _, queue in store.list_queues() for mapped_file in queue.files if mapped_file.length)
    queue_files += sum(file.suffix == ".sst" for folder in rocksdb_queue_folders(store) for file in folder.iterdir())
    queue_files += store.batchconsumequeue_dir.is_dir() and bool(mapped_data(store.batchconsumequeue_dir))
    index_files = sum(1 for file in list_index_files(store.index_dir).files if file.length)
    checkpoint = store.checkpoint()
    stored = (checkpoint is not None and checkpoint.physic_msg_timestamp > 0) or _has_progress(store)
    if (queue_files or index_files or stored) and not _is_cut_to_nothing(store):
        yield finding(NO_LOG, COMMITLOG, None, remedy=logs_beside_remedy(store, ""), queue_files=queue_files,
                      index_files=index_files)


def _has_progress(store: Store) -> bool:
    """Whether a consumer or a delay level has got past the first message of a queue."""
    tables = [pair.chosen.table for pair in read_pairs(store) if pair.name.endswith("Offset.json") and pair.chosen]
    offsets = [offset for table in tables for member in table.values()
               for offset in (member.values() if isinstance(member, dict) else [member])]
    return any(isinstance(offset, int) and offset > 0 for offset in offsets)


def _is_cut_to_nothing(store: Store) -> bool:
    """Whether the last run here that was not undone cut the log at the start of its first file, which goes on there."""
    begin = store.commitlog.min_offset
    if not begin or not has_journal(store.root):
        return False
    try:
        done = [run for run in runs(store.root, store.options.folders) if run.state != "undone"]
        return bool(done) and done[-1].plan.summary.get("valid_to") == begin
    except Refusal:
        return False


# --- The end of a store's log, and how far queues, index and checkpoint reach.


class Pointers:
    """Offsets in bytes of the log, times in ms, from the end of the log, the last file of each queue and the heads of
    the index files; most of the store is not read. `dispatched_to`: the largest end of a unit; None without units.

    `log` has misnamed files at the offsets of their records, `misnamed` lists them with these offsets.
    `missing_ranges`: ranges without a file; `far`: empty files far after the log's end, each with the start of the room
    before it. `unread`: why files with further facts could not be read. `end`: the log from its last file with a record
    on.
    """

    def __init__(self, store: Store) -> None:
        self.log, self.misnamed = place_misnamed_files(live_copies(store.commitlog))
        self.end = end = end_of_log(self.log)
        self.min_offset, self.max_offset = self.log.min_offset, self.log.max_offset
        self.log_end, self.last_timestamp = end.log_end, end.tally.last_timestamp
        self.checkpoint = store.checkpoint()
        self.unread: list[OSError] = []
        self.index_files = list(index_headers(store, self.unread))
        ends = ends_of(self.index_files)
        # start of the last message that the header of an index file names
        self.indexed_to = max((phy_offset for phy_offset, _ in ends), default=None)
        self._find_missing(store, end, ends)
        self._find_queues(store)

    def _find_missing(self, store: Store, end: LogView, index_ends: list[tuple[int, int]]) -> None:
        """Classify the gaps between names as verify does; `end`: the log from its last file with a record on."""
        self.missing_ranges: list[tuple[int, int]] = []
        self.far: list[tuple[MappedFile, int]] = []
        for start, stop in self.log.missing_ranges():
            far = next((scan for scan in end.files if scan.mapped_file.file_from_offset == stop), None)
            if far is not None and open_before(end.files, far, end.log_end):
                self.far.append((far.mapped_file, start))
            else:
                self.missing_ranges.append((start, stop))
        gone = file_named_elsewhere(end.files, end.tally.newest_timestamp, index_ends, self.checkpoint)
        if gone is not None and COMMITLOG not in held_elsewhere(store):
            self.missing_ranges.append((gone.start, gone.stop))

    def _find_queues(self, store: Store) -> None:
        self.queues: dict[str, dict[int, int]] = {}
        self.dispatched_to: int | None = None
        for folder, end, reached in queue_ends(store, self.unread):
            self.queues.setdefault(folder.topic, {})[folder.queue_id] = end
            if reached is not None:
                self.dispatched_to = max(self.dispatched_to or 0, reached)

    @property
    def undispatched(self) -> int:
        """Bytes of the log after the last unit of any queue."""
        return max(0, self.log_end - (self.dispatched_to or self.min_offset))

    def json(self) -> dict[str, object]:
        checkpoint = None if self.checkpoint is None else self.checkpoint._asdict()
        return {
            "min_offset": self.min_offset, "max_offset": self.max_offset, "log_end": self.log_end,
            "last_store_timestamp": self.last_timestamp, "dispatched_to": self.dispatched_to,
            "undispatched_bytes": self.undispatched, "indexed_to": self.indexed_to, "checkpoint": checkpoint,
        }


def end_of_log(queue: MappedFileQueue) -> LogView:
    """The log from its last file with a record on, scanned as verify scans the whole log."""
    scans: list[FileScan] = []
    for mapped_file in reversed(queue.files):
        scans[:0] = scan_files([splits_of(mapped_file, queue.file_size, WHOLE)], 1, with_keys=False)
        if scans[0].record_count:
            break
    return assemble(structs.replace(queue, files=[scan.mapped_file for scan in scans]), scans)
