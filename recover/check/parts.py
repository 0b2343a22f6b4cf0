"""Checks of everything around log, queues and index: abort, lock, a missing log, settings, parts that are not read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs

from formats import checkpoint as checkpoint_format, dledger
from formats.basics import FormatError
from formats.config.tables import BACKUP_SUFFIX
from formats.consumequeue import (
    BATCH_CQ_UNIT,
    CQ_DIRECTORY,
    LOG_DIRECTORY,
    POSITION_FILE_NAME,
    WORK_DIRECTORIES,
    batch_mask,
    decode_positions,
    file_size_for,
)
from formats.record import BLANK, BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from formats.record.rows import BIT_PROP_CRC
from recover.broker.recovery import DEFAULT_SEARCH_LIMIT
from recover.broker.settings import KNOWN, BrokerSettings, java_integer
from recover.broker.versions import DUP_INFO_CHECKED, NEWEST_COMPARED, BrokerVersion
from recover.change.journal import run_findings
from recover.change.lock import UNKNOWN_HOLDER, holder_of, holder_text
from recover.check.config import config_databases
from recover.check.log import first_timestamp, needs_newer_broker
from recover.check.timer import check_timer
from recover.derived.index_check import IndexReport
from recover.derived.index_files import index_geometry, index_headers, list_index_files
from recover.derived.transactions import check_transactions
from recover.findings.code import N_
from recover.findings.model import Finding, Phrase, finding
from recover.findings.store_codes import QUEUE_DATABASE
from recover.log.judge import LogReader
from recover.log.scan import LogView
from recover.look.file import foreign, other_format
from recover.look.store import log_is_gone
from recover.reading.reading import Reading
from recover.store.columns import Rows
from recover.store.config_files import OFFSET_FILES, TOPICS_FILE, Topics, topic_text
from recover.store.mapped_files import MappedFile
from recover.store.source import names_in, read_small
from recover.store.store import ABORT, COMMITLOG, CONFIG, CONSUMEQUEUE, INDEX, LOCK, Store, has_journal
from recover.store.unread import (
    ROCKSDB_QUEUES,
    Elsewhere,
    has_rocksdb,
    mapped_data,
    problems,
    queues_in_rocksdb,
    rocksdb_queue_folders,
    unread_parts,
)

if TYPE_CHECKING:
    from recover.check.surroundings import Surroundings

# --- Parts that must exist and be complete although mqtool does not read their content.
#
# One row per part: the evidence that it must exist (a setting, topics.json, another file, records of the log), and what
# can be checked from outside. Anything not listed here about an unread part is not checked.


_ROCKSDB = {
    "config/topics": N_("topics in RocksDB"), "config/subscriptionGroups": N_("groups in RocksDB"),
    "config/consumerOffsets": N_("consumer offsets in RocksDB"), "config/rdb": N_("configuration in RocksDB"),
    "config/users": N_("users in RocksDB"), "config/acls": N_("access rules in RocksDB"),
    "rocksdbstore": N_("RocksDB of index, timer and transactions"), "kvStore": N_("RocksDB of pop consumers"),
}
_RECREATED = "rocksdbstore"
"""5.5.0 starts and serves without it, even if it held timers, index or transactions."""
_READ_AT_START = ("config/topics", "config/subscriptionGroups", "config/consumerOffsets", "config/rdb")
"""A start reads every entry of these and fails if one is unreadable (tried on 5.5.0); of the others it reads none."""
_LOCAL = "local"
_EPOCHS = 1 << 20
_BATCH_SIZE = "mapperFileSizeBatchConsumeQueue"
_BY_SETTING = {
    "kvStore": ("popConsumerKVServiceInit", "true", N_("the acknowledgement state of popped messages")),
    "config/users": ("authenticationMetadataProvider", _LOCAL, N_("all users")),
    "config/acls": ("authorizationMetadataProvider", _LOCAL, N_("all access rules")),
}
"""Part -> a setting, what its value in lower case contains if the part is in use, and what is lost with it."""


class Needed(Struct, frozen=True):
    """A damaged or missing part: `problem` in words; `stops`: no broker starts on it (tried on 5.5.0); `comes`: a start
    writes it."""

    part: str
    what: str
    problem: str
    missing: bool
    stops: bool = False
    comes: bool = False

    def finding(self) -> Finding:
        code = "part-missing" if self.missing else "part-damaged"
        known = finding(
            code, self.part, None, part=self.part, what=self.what, problem=self.problem, stops=self.stops)
        return structs.replace(known, severity="info", bits=0, remedy="") if self.comes else known


def needed_parts(store: Store, topics: Topics, log: LogView) -> list[Needed]:
    """Every part that must exist and does not, or that is damaged as far as can be seen from outside."""
    return [
        *_rocksdb(store), *_by_setting(store), *_config(store, log), *_queues(store, log), *_batch(store, topics, log),
        *_compaction(store), *_epochs(store), *_identity(store),
    ]


def queue_types(store: Store, topics: Topics) -> Iterator[Finding]:
    """Folders of topics with queues of another type than the topic has (ConsumeQueueStore.queueTypeShouldBe); an info
    for a topic that topics.json does not name, whose batch queues verify cannot judge."""
    batches, folder = topics.configured_batch, store.batchconsumequeue_dir
    wrong = [(store.consumequeue_dir / topic, "BatchCQ") for topic in sorted(topics.folders & batches)]
    wrong += [(folder / topic, "SimpleCQ") for topic in names_in(folder)
              if topic not in batches and names_in(folder / topic)]
    for path, kind in wrong:
        named = path.name in (topics.configured or {})
        gives = Phrase("gives the topic the queue.type {kind}" if named else
                       "does not name the topic: {kind} is the default", kind=kind)
        yield finding("queue-type-differs", store.relative(path), None, topic=path.name, gives=gives,
                      severity=None if named else "info")


def _rocksdb(store: Store) -> Iterator[Needed]:
    folders = {**{store.relative(path): QUEUE_DATABASE for path in rocksdb_queue_folders(store)},
               **_ROCKSDB}
    for part, what in folders.items():
        folder = store.path(part)
        if has_rocksdb(folder):
            for problem in problems(folder, recreated=part == _RECREATED, killed=store.has_abort):
                stops = part != _RECREATED and (
                    not problem.opens or (problem.of_entries and part in _READ_AT_START))
                yield Needed(part, what, problem.text, False, stops)


def _by_setting(store: Store) -> Iterator[Needed]:
    for part, (setting, value, lost) in _BY_SETTING.items():
        # a flag counts in any case, as Boolean.parseBoolean reads it
        if value in store.options.settings.get(setting, "").lower() and not has_rocksdb(store.path(part)):
            yield Needed(part, _ROCKSDB[part],
                         Phrase("{setting} states that it is in use; without it, {lost} would be lost", setting=setting,
                                lost=lost), True)


_POPPED = "kvStore"


def unstated_parts(store: Store, topics: Topics) -> Iterator[Finding]:
    """Yield an info for the part of POP consumers if it is not here, no setting says whether it was, and groups have
    pulled messages from a release that may have kept it (5.4.0 and later note that, POP or not)."""
    setting, value, lost = _BY_SETTING[_POPPED]
    if setting in store.options.settings or store.options.conf or store.path(_POPPED).exists():
        return
    offsets = (pair.chosen.value for pair in topics.pairs if pair.name in OFFSET_FILES and pair.chosen is not None)
    if any(isinstance(value, dict) and value.get("pullOffsetTable") for value in offsets):
        yield finding("part-unstated", _POPPED, None, part=_POPPED, setting=setting, value=value, lost=lost)


def _config(store: Store, log: LogView) -> Iterator[Needed]:
    for name in config_databases(store.options.settings):
        part = f"{CONFIG}/{name}"
        # a start imports what the files hold, except with the second version (TopicConfigManagerV2.load)
        taken_over = name != "rdb" and store.path(f"{CONFIG}/{TOPICS_FILE}").exists()
        if log.tally.messages and not taken_over and not has_rocksdb(store.path(part)):
            yield Needed(part, _ROCKSDB[part],
                         "the settings name it and the log holds messages, but there is no database", True)


def _queues(store: Store, log: LogView) -> Iterator[Needed]:
    if log.tally.messages and queues_in_rocksdb(store) and not rocksdb_queue_folders(store):
        yield Needed(CONSUMEQUEUE, QUEUE_DATABASE, N_("the log holds messages, but there is no database"), True)


def _batch(store: Store, topics: Topics, log: LogView) -> Iterator[Needed]:
    filled = sorted((topic_text(topic), queue_id) for topic, queue_id in log.queues)
    folders = [(store.batchconsumequeue_dir / topic, queue_id) for topic, queue_id in filled if topic in topics.batch]
    bare = {folder if not _has_data(folder) else folder / str(queue_id) for folder, queue_id in folders
            if not _has_data(folder / str(queue_id))}
    # the recovery of an unclean stop reads the whole log without a checkpoint, as in a store that export wrote
    unclean = store.has_abort and not store.checkpoint_path.exists() and len(log.files) <= DEFAULT_SEARCH_LIMIT
    comes = unclean and not _has_data(store.batchconsumequeue_dir)
    problem = N_("topics.json has the topic with such queues and the log holds its messages")
    if comes:
        problem = Phrase("{problem}; the next start reads the whole log and writes them", problem=problem)
    for folder in sorted(bare):
        yield Needed(store.relative(folder), N_("batch consume queues"), problem, True, comes=comes)
    if store.batchconsumequeue_dir.is_dir():
        found = sorted(store.batchconsumequeue_dir.glob("*/*/*"))
        files = {file: file.stat().st_size for file in found if file.is_file()}
        lengths = Counter([*files.values(), java_integer(store.options.settings.get(_BATCH_SIZE, "")) or 0])
        size = max(lengths, key=lambda length: (lengths[length] if length else 0, length))
        for file, length in files.items():
            if 0 < length != size:
                problem = Phrase("it has {n} bytes instead of {size}", n=length, size=size)
                yield Needed(store.relative(file), N_("batch consume queues"), problem, False, stops=True)
            yield from _batch_file(store, file)


def _has_data(folder: Path) -> bool:
    return folder.is_dir() and bool(mapped_data(folder))


def _batch_file(store: Store, file: Path) -> Iterator[Needed]:
    valid = batch_mask(read_small(file, 64 << 20))
    used = int(valid.argmin()) if valid.size else 0
    behind = int(valid[used:].sum())
    if behind and not valid[used]:
        yield Needed(store.relative(file), N_("batch consume queues"),
                     Phrase("entry {number} is invalid, and {n} valid ones follow it", number=used, n=behind), False)


def _compaction(store: Store) -> Iterator[Needed]:
    """Without log or queue 5.5.0 starts and delivers nothing of that queue; it survives a single missing file."""
    root = store.root / "compaction"
    logs, queues = (_with_data(root / name) for name in (LOG_DIRECTORY, CQ_DIRECTORY))
    said = {queue: Phrase("{folder} has entries of it", folder=CQ_DIRECTORY) for queue in queues}
    said |= {queue: Phrase("{file} has its compacted offset", file=POSITION_FILE_NAME)
             for queue in _compacted(root) - queues}
    for queue in sorted(said.keys() - logs):
        yield Needed(f"compaction/{LOG_DIRECTORY}/{queue}", N_("compacted messages"), said[queue], True)
    for queue in sorted(logs - queues):
        yield Needed(f"compaction/{CQ_DIRECTORY}/{queue}", N_("queue of a compacted topic"),
                     Phrase("{folder} has messages of it", folder=LOG_DIRECTORY), True)
    for queue in sorted(queues & logs):
        # 5.5.0 starts on these, and delivers nothing of the queue
        files = [file for file in sorted((root / CQ_DIRECTORY / queue).iterdir()) if file.is_file()]
        used = [any(read_small(file, BATCH_CQ_UNIT.size)) for file in files]
        if {file.stat().st_size for file in files} != {files[0].stat().st_size} or sorted(used, reverse=True) != used:
            yield Needed(f"compaction/{CQ_DIRECTORY}/{queue}", N_("queue of a compacted topic"),
                         N_("its files differ in length, or a file without an entry comes before others"), False)


def _with_data(folder: Path) -> set[str]:
    queues = {file.parent for file in folder.glob("*/*/*") if file.name not in WORK_DIRECTORIES}
    return {queue.relative_to(folder).as_posix() for queue in queues if mapped_data(queue)}


def _compacted(root: Path) -> set[str]:
    try:
        positions = decode_positions(read_small(root / POSITION_FILE_NAME, 16 << 20))
    except (OSError, FormatError):
        return set()
    return {f"{topic}/{queue_id}" for (topic, queue_id), offset in positions.items() if offset > 0}


def _has_controller(store: Store) -> bool:
    return store.options.settings.get("enableControllerMode", "").lower() == "true"


def _epochs(store: Store) -> Iterator[Needed]:
    """5.5.0 uses the backup instead of an invalid list; an invalid count stops it (NumberFormatException)."""
    controlled = _has_controller(store)
    what = N_("terms of a controller's masters")
    for name in (dledger.EPOCH_FILE, dledger.EPOCH_FILE + BACKUP_SUFFIX):
        try:
            dledger.decode_epochs(read_small(store.root / name, _EPOCHS))
        except FileNotFoundError:
            if name == dledger.EPOCH_FILE and (store.root / (name + BACKUP_SUFFIX)).exists():
                yield Needed(name, what, N_("its backup exists"), True)
        except OSError as error:
            yield Needed(name, what, Phrase("it cannot be read ({error})", error=error.strerror), False)
        except FormatError as error:
            stops = controlled and name == dledger.EPOCH_FILE and error.reason in ("short", "no-number")
            yield Needed(name, what, Phrase("it cannot be read ({error})", error=error), False, stops)


def _identity(store: Store) -> Iterator[Needed]:
    """Without it 5.5.0 registers as a new replica, which its controller does not elect: nothing is delivered."""
    what = N_("identity of a broker with a controller")
    try:
        known = dledger.decode_identity(read_small(store.root / dledger.IDENTITY_FILE, _EPOCHS))
    except FileNotFoundError:
        # older releases have no identity but have terms; from 5.4.0 on, which creates a rocksdbstore, they have one
        if _has_controller(store) and (store.root / dledger.EPOCH_FILE).exists() and (store.root / _RECREATED).exists():
            yield Needed(dledger.IDENTITY_FILE, what, N_(
                "terms of masters exist; the controller would treat the broker as a new replica"), True)
    except (OSError, FormatError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        yield Needed(dledger.IDENTITY_FILE, what, Phrase(
            "it cannot be read ({error}); the controller would treat the broker as a new replica", error=why), False)
    else:
        for setting, held in (("brokerClusterName", known.cluster), ("brokerName", known.name)):
            said = store.options.settings.get(setting, held)
            if said != held:
                problem = Phrase("it says {held}, but {setting} is {said}", held=repr(held), setting=setting,
                                 said=repr(said))
                yield Needed(dledger.IDENTITY_FILE, what, problem, False)


NOT_SUPPORTED = "part-not-supported"


def check_other_parts(
    store: Store, elsewhere: Mapping[str, Elsewhere], wanted: frozenset[str] | None
) -> Iterator[Finding]:
    """Report each other part: `part-not-supported` if it holds data that a wanted question needs, else an info.

    `wanted` None: every question; then empty skeletons are listed too.
    """
    for part in unread_parts(store, queues=wanted is None or CONSUMEQUEUE in wanted):
        name = store.relative(part.path)
        answers = sorted(question for question, held in elsewhere.items() if held.part == name)
        if not answers and part.needed_for is not None:
            answers = [part.needed_for]
        if wanted is not None and not wanted.intersection(answers):
            continue
        try:
            held = part.holds(part.path)
        except OSError as error:
            yield finding("part-unreadable", name, None, part=name, error=error.strerror)
            continue
        if held and answers:
            yield finding(NOT_SUPPORTED, name, None, part=name, what=part.what, detail=held, answers=answers,
                          needed_for=part.needed_for, not_checked=_words(answers))
        elif wanted is None:
            yield finding("part-recognised", name, None, part=name, what=part.what, detail=held or N_("no data in it"))


_WORDS = {
    "commitlog": N_("its messages"), "consumequeue": N_("its queues"), "index": N_("its keys"),
    "checkpoint": N_("the checkpoint"), "config": N_("its settings and offsets"),
}


def _words(answers: list[str]) -> str:
    words = [_WORDS[name] for name in answers]
    several = len(words) > 1
    return Phrase("{parts} and {last}", parts=tuple(words[:-1]), last=words[-1]) if several else words[0]


MOSTLY_GONE = "commitlog-mostly-gone"
FOREIGN = "commitlog-foreign"
OTHER_LOG = "commitlog-other-log"
UNKNOWN = N_("an unknown number of")
REMAINS = (MOSTLY_GONE, FOREIGN, OTHER_LOG)
_LOST_PER_MESSAGE = 10
"""With this many lost messages per readable one, the files are hardly the log of these queues."""


def remains_findings(store: Store, analysis: Reading, index: IndexReport | None) -> Iterator[Finding]:
    """Judge whether almost nothing of the log can be read, and whether its files are log files of this store at all."""
    log, lost = analysis.log, analysis.account.total
    # after damage is bridged, a small log may consist of the bridge alone
    units = 0 if analysis.account.by_units or log.tally.messages or log.tally.has_bridge else _index_units_behind(index)
    units = units or (0 if index is None else units_of_older_log(store, log))
    if (lost > log.tally.messages * _LOST_PER_MESSAGE and not analysis.foreign) or units:
        yield finding(MOSTLY_GONE, COMMITLOG, None, messages=log.tally.messages, lost=lost, index_units=units)
    for item in analysis.foreign:
        file = store.relative(item.mapped_file.path)
        yield finding(OTHER_LOG, file, 0, messages=item.messages, lost=analysis.account.named_in(*item.extent),
                      witness=item.witness)
    for mapped_file, what in foreign_files(log):
        # if nothing in the log is readable, only --max-loss all accepts it as a log
        start, alone = mapped_file.file_from_offset, not (log.tally.messages or log.tally.has_bridge)
        held = UNKNOWN if alone else analysis.account.named_in(start, start + log.queue.file_size)
        yield finding(FOREIGN, store.relative(mapped_file.path), 0, what=what, lost=held)


def _index_units_behind(index: IndexReport | None) -> int:
    findings = () if index is None else index.findings
    return sum(item.facts["count"] for item in findings if item.code in ("index-beyond-log", "index-lost-units"))


def units_of_older_log(store: Store, log: LogView) -> int:
    """Return how many units the index has for messages of another log before this one, 0 if this one's messages are not
    few beside them: a broker that finds no log begins one, deletes the queues, and leaves the index.

    Of such an index file the last message is older than the first of the log, which holds no record in its place.
    """
    if log.tally.has_bridge or log.valid_to == log.min_offset:
        return 0
    first, units = first_timestamp(log), 0
    with LogReader(log.queue) as reader:
        for _, header in index_headers(store, []):
            place, is_older = header.end_phy_offset, 0 < header.begin_timestamp <= header.end_timestamp < first
            if is_older and place >= max(log.min_offset, header.begin_phy_offset) and reader.find(place) is None:
                units += header.index_count - 1
    return units if units > log.tally.messages * _LOST_PER_MESSAGE else 0


def foreign_findings(store: Store, log: LogView) -> Iterator[Finding]:
    """Yield a finding for each file of `foreign_files`, of which nothing else is known."""
    for mapped_file, what in foreign_files(log):
        yield finding(FOREIGN, store.relative(mapped_file.path), 0, what=what, lost=UNKNOWN)


def foreign_files(log: LogView) -> Iterator[tuple[MappedFile, str]]:
    """Yield files that are not log files, each with its apparent format.

    Of a log with records: files without one that begin like another format. If no file holds a record or a blank: the
    first file with data, if it does not begin like a log file.
    """
    # what could not be read is not evidence
    bare = [scan for scan in log.files if not (scan.record_count or scan.unreadable) and scan.blank is None]
    if len(bare) < len(log.files):
        within = {damage.mapped_file for damage in log.damaged}
        formats = ((scan.mapped_file, other_format(scan.mapped_file.path)) for scan in bare
                   if scan.mapped_file in within)
        yield from ((mapped_file, what) for mapped_file, what in formats if what)
        return
    for scan in bare:
        # the very first write of a broker can be torn before its magic
        if any(gap.last_data > gap.start + BLANK_SIZE for gap in scan.gaps):
            with scan.mapped_file.open() as reader:
                head = reader.read(0, BLANK_SIZE)
                if BLANK.decode(head).magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
                    yield scan.mapped_file, foreign(reader)
            return


OTHER_QUEUES = "settings-select-other-queues"


def contradicted_settings(store: Store) -> Iterator[Finding]:
    """Yield sizes that the settings state and the files contradict, where the files agree with each other; and a kind
    of queues that the store does not have.

    A broker uses its default for a value that is not a number, and for a setting that is not configured (MixAll).
    """
    settings, conf = store.options.settings, store.options.conf
    if not (settings or conf):
        return
    if settings.get("storeType", "").strip() == ROCKSDB_QUEUES and not queues_in_rocksdb(store):
        yield finding(OTHER_QUEUES, store.relative(store.consumequeue_dir), None, given=ROCKSDB_QUEUES,
                      queues=len(store.queue_folders))
    for key, folder, right in _sizes_of_files(store):
        default = int(KNOWN[key].default)
        number = java_integer(settings.get(key, str(default)))
        value = default if number is None else number
        if right is None or right == (file_size_for(value) if key == "mappedFileSizeConsumeQueue" else value):
            continue
        if key in settings:
            given = Phrase("{said}, for which a broker uses its default {default}", said=repr(settings[key]),
                           default=value) if number is None else value
            yield finding("settings-contradict-files", folder, None, setting=key, given=given, right=right)
        elif conf:
            yield finding("settings-leave-out-size", folder, None, setting=key, conf=conf, default=value, right=right)


def _sizes_of_files(store: Store) -> Iterator[tuple[str, str, int | None]]:
    if store.commitlog.files:
        yield "mappedFileSizeCommitLog", COMMITLOG, store.mapped_file_size
    if store.queue_folders:
        yield "mappedFileSizeConsumeQueue", CONSUMEQUEUE, store.queue_size_of_files
    listing = list_index_files(store.index_dir)
    geometry = index_geometry(store, listing) if listing.files else None
    if geometry is not None:
        yield "maxHashSlotNum", INDEX, geometry.slots
        yield "maxIndexNum", INDEX, geometry.entries


def too_old_for(store: Store, view: LogView, version: BrokerVersion) -> Iterator[Finding]:
    """Yield the first of the records that this release cannot read: it would cut the log there. Or the log, if it does
    not find it."""
    for item in needs_newer_broker(store, view):
        needed = item.facts["version"]
        if version < BrokerVersion.parse(needed):
            yield finding("start-needs-newer-broker", item.file, item.offset, broker=str(version), version=needed,
                          what=item.facts["what"], start=item.facts["start"],
                          message=item.message if item.offset is None else None, remedy=item.remedy or None)


PARTS = ("commitlog", "consumequeue", "index", "checkpoint", "config")
_VERIFY_PROPERTY_CRC = "forceVerifyPropCRC"


def check_parts(store: Store, analysis: Reading, wanted: Collection[str], around: Surroundings) -> list[Finding]:
    """Findings that belong to no single file format; if not all parts are `wanted`, only those that concern the
    wanted. `around`: what surrounds a start on this reading."""
    whole = {*wanted} >= {*PARTS}
    findings = list(lock_findings(store, holder_of(store), with_abort=whole))
    findings.extend(log_is_gone(store))
    findings.extend(settings_findings(store, analysis.log))
    findings.extend(around.contradicted)
    findings.extend(check_other_parts(store, analysis.elsewhere, None if whole else frozenset(wanted)))
    if whole:
        findings.extend(item.finding() for item in needed_parts(store, analysis.topics, analysis.log))
        findings.extend(unstated_parts(store, analysis.topics))
        # recover creates a missing topics.json with the types that the folders show
        if analysis.topics.configured is not None and not queues_in_rocksdb(store):
            findings.extend(around.queue_types)
        findings.extend(around.earlier_runs)
        findings.extend(around.owners)
    judged = store.settled_at is None and COMMITLOG not in analysis.elsewhere
    if whole and store.commitlog.files and judged:
        findings.extend(check_timer(store, analysis.log))
        findings.extend(check_transactions(store, analysis.log))
    return findings


def earlier_runs(store: Store) -> list[Finding]:
    """Findings about the runs in the store's journal, if it has one."""
    return run_findings(store.root, store.options.folders) if has_journal(store.root) else []


def lock_findings(store: Store, pid: int | None, *, with_abort: bool = True) -> Iterator[Finding]:
    """abort and lock. `pid` as returned by `recover.change.lock.probe`; a lock file that nobody holds is normal."""
    if pid is not None:
        detail = N_("its files may change during this command") if store.settled_at is None else Phrase(
            "checked as of the start of this command, the log up to {end}, without timers", end=store.settled_at)
        yield finding("broker-running", LOCK, None, who=holder_text(store.root, pid), detail=detail,
                      pid=None if pid == UNKNOWN_HOLDER else pid)
    if not with_abort:
        return
    wrote = None
    try:
        wrote = checkpoint_format.process_id(read_small(store.abort_path, 64))
    except FileNotFoundError:
        return
    except FormatError:
        pass
    except OSError as error:
        yield finding("part-unreadable", ABORT, None, part=ABORT, error=error.strerror)
        if not store.has_abort:  # a link to nothing, which brokers do not see
            return
    of = Phrase(" (process {pid})", pid=wrote) if wrote is not None else ""
    if pid is not None:
        yield finding("abort-present", ABORT, None, severity="info", pid=wrote,
                      detail=Phrase("the broker{of} is running, so this is normal", of=of))
    else:
        yield finding("abort-present", ABORT, None, pid=wrote,
                      detail=Phrase("the broker{of} did not stop cleanly", of=of))


def settings_findings(store: Store, log: LogView) -> Iterator[Finding]:
    """Settings that make a recovery refuse records of the log (CommitLog.checkMessageAndReturnSize)."""
    given = BrokerSettings(BrokerVersion.parse(store.options.broker) if store.options.broker else NEWEST_COMPARED,
                           store.options.settings)
    if given.flag(_VERIFY_PROPERTY_CRC):
        yield from _would_truncate(log, f"{_VERIFY_PROPERTY_CRC}=true", "a property CRC",
                                   lambda rows: (rows["bits"] & BIT_PROP_CRC) == 0)
    if given.flag("duplicationEnable") and given.version.has(DUP_INFO_CHECKED):
        # no released broker writes it
        yield from _would_truncate(log, "duplicationEnable=true", "DUP_INFO", lambda rows: rows["bits"] >= 0)


def _would_truncate(log: LogView, setting: str, what: str, refused: Callable[[Rows], Rows]) -> Iterator[Finding]:
    first: int | None = None
    count = 0
    for split in log.live():
        without = np.flatnonzero(refused(split.records))
        if without.size:
            count += int(without.size)
            first = int(split.records["phy_offset"][without[0]]) if first is None else first
    if first is not None:
        yield finding("settings-would-truncate", COMMITLOG, first, setting=setting, what=what, value=first, count=count)
