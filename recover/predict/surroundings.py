"""What bears on a start beside log, queues and index: config files, parts that are not read, what is assumed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from formats.checkpoint import FILE_SIZE
from recover.broker.settings import KNOWN, BrokerSettings
from recover.broker.versions import COMBINED_QUEUES, BrokerVersion
from recover.check.config import judged_pairs, other_offsets
from recover.check.log import first_file_findings, misnamed_findings, only_copies, untold_size
from recover.check.parts import FOREIGN, UNKNOWN, Needed, foreign_files, has_timer
from recover.check.timer import TIMERWHEEL, check_lengths, check_timer
from recover.evidence.beyond import file_named_elsewhere
from recover.findings.code import BIT_MESSAGES
from recover.findings.model import Finding, finding
from recover.findings.store_codes import FIND_CONFIG
from recover.log.files import live_copies, rightly_placed
from recover.log.scan import MISSING_FILE, LogView
from recover.look.pointers import index_ends, read_checkpoint
from recover.look.store import log_is_gone
from recover.predict.loading import Stop
from recover.store.config_files import ConfigPair, Topics
from recover.store.reader import read_small
from recover.store.store import CHECKPOINT, COMMITLOG, CONFIG, Store
from recover.store.unread import ROCKSDB_QUEUES, SEPARATE_QUEUES, held_elsewhere, unread_parts

_SNAPSHOT = f"{TIMERWHEEL}."
_FIRST_WITH_ALL = BrokerVersion(5, 0, 0)
_STOPPING = ("topics.json", "subscriptionGroup.json", "consumerFilter.json", "delayOffset.json")
_STOPPING_5 = ("topicQueueMapping.json", "consumerOrderInfo.json")


def config_pairs(store: Store, log: LogView, settings: BrokerSettings) -> list[ConfigPair]:
    """The config files that are there, or should be, and stop this broker if they do not load.

    As in BrokerController.initialize.
    """
    names = {*_STOPPING, "lmqConsumerOffset.json" if settings.flag("enableLmq") else "consumerOffset.json"}
    if settings.version >= _FIRST_WITH_ALL:
        names.update(_STOPPING_5)
    pairs = judged_pairs(store, Topics(store), log)
    return [pair for pair in pairs if (pair.name in names and pair.present) or pair.shown]


def unreadable(store: Store, pairs: list[ConfigPair]) -> Iterator[Finding]:
    """Of checkpoint and config files what cannot be read, or is no file: nobody can say what a start makes of it."""
    for copy in (copy for pair in pairs for copy in (pair.main, pair.backup) if copy.state == "unreadable"):
        yield finding("config-unreadable", f"{CONFIG}/{copy.path.name}", name=copy.path.name, error=copy.error)
    try:
        read_small(store.checkpoint_path, FILE_SIZE)
    except FileNotFoundError:
        pass
    except OSError as error:
        yield finding("checkpoint-unreadable", CHECKPOINT, error=error.strerror)


def config_lost(pairs: list[ConfigPair]) -> list[str]:
    """Config files whose content the broker goes without, silently.

    The main one cannot be read, nor a backup; or it can, and names nothing, although the store shows that it did.
    """
    return [f"config/{pair.name}" for pair in pairs if pair.starts and _is_forgotten(pair)]


def forgotten_offsets(store: Store, pairs: list[ConfigPair], settings: BrokerSettings) -> Iterator[Finding]:
    """Progress of all consumers that this broker goes without: its settings lead it to the other file of offsets."""
    given = dict(settings.given)
    if "enableLmq" in given:
        given["enableLmq"] = str(settings.flag("enableLmq"))
    for item in other_offsets(store, pairs, given):
        yield item if item.severity == "info" else structs.replace(item, severity="error", bits=BIT_MESSAGES)


def _is_forgotten(pair: ConfigPair) -> bool:
    if pair.main.state in ("sound", "trailing-zeros"):
        return False
    if pair.main.state in ("flipped-name", "emptied", "odd-key"):
        return True
    if pair.main.state in ("missing", "empty") and pair.backup.missing:
        return bool(pair.shown)
    return pair.backup.state != "sound"


def incomplete(store: Store, log: LogView) -> list[Finding]:
    """What of the log a start does not find: all of it, files between others, its end, or files under a wrong name."""
    if COMMITLOG in held_elsewhere(store):
        return []
    gone = [*untold_size(store, log), *log_is_gone(store), *only_copies(store)]
    gone += [finding(FOREIGN, store.relative(mapped_file.path), 0, what=what, lost=UNKNOWN)
             for mapped_file, what in foreign_files(log)]
    missing = [damage for damage in log.damaged if damage.reason == MISSING_FILE]
    end = file_named_elsewhere(log, index_ends(store), read_checkpoint(store))
    lacking = [*missing, *([] if end is None else [end])]
    placed, misnamed = rightly_placed(live_copies(store.commitlog))
    # a start reads such a file where its name puts it, and none of its messages is there
    named = [structs.replace(item, severity="error", bits=BIT_MESSAGES) for item in misnamed_findings(store, misnamed)]
    if named and not list(placed.gaps()):
        # nothing is missing: recover gives the files their names back
        return gone + named
    return gone + named + [
        finding("commitlog-missing-file", COMMITLOG, None, start=damage.start, stop=damage.stop,
                bytes=damage.stop - damage.start, intact_after=damage.intact_after)
        for damage in lacking
    ]


def not_emulated(store: Store, settings: BrokerSettings) -> list[str]:
    """What the whole answer would need: the log of a DLedger, queues in RocksDB. Nothing is said without it."""
    held = held_elsewhere(store, dict(settings.given))
    parts = {f"{found.part}: {found.what}" for found in held.values()}
    if settings.flag("enableDLegerCommitLog") and not parts:
        parts.add("enableDLegerCommitLog=true: a DLedger begins after the log")
    return sorted(parts)


def refused_by(
    store: Store, settings: BrokerSettings, needed: list[Needed], configs: list[ConfigPair]
) -> Stop | None:
    """Why a broker does not start, if a config file, a timer file, a part that is not read or a setting of one says so.
    """
    return next(_stops(store, settings, needed, configs), None)


def _stops(
    store: Store, settings: BrokerSettings, needed: list[Needed], configs: list[ConfigPair]
) -> Iterator[Stop]:
    for pair in configs:
        if not pair.starts:
            name = f"{CONFIG}/{pair.name}"
            # beside the log of a DLedger recover repairs nothing
            yield Stop(f"{name} and its backup are not valid JSON",
                       f"{name}: {FIND_CONFIG}" if COMMITLOG in held_elsewhere(store, dict(settings.given)) else None)
    if settings.version.has(COMBINED_QUEUES):
        double = settings.flag("rocksdbCQDoubleWriteEnable")
        if double and not settings.flag("combineCQUseRocksdbForLmq"):
            yield Stop("rocksdbCQDoubleWriteEnable=true needs combineCQUseRocksdbForLmq=true beside it",
                       "Set combineCQUseRocksdbForLmq=true, or rocksdbCQDoubleWriteEnable=false.")
        if double or settings.text("storeType") == ROCKSDB_QUEUES:
            separate = settings.flag("useSeparateStorePathForRocksdbCQ")
            other = store.consumequeue_dir if separate else store.root / SEPARATE_QUEUES
            if (other / "CURRENT").exists():
                name, value = "useSeparateStorePathForRocksdbCQ", str(separate).lower()
                part = store.relative(other)
                yield Stop(f"{name}={value}, and {part} holds a RocksDB of queues",
                           f"Set {name}={str(not separate).lower()}, with which {part} was written.")
    for item in needed:
        if item.stops:
            yield Stop(f"{item.part} ({item.what}): {item.problem}", item.finding().remedy)
    if settings.flag("timerWheelEnable") and settings.version >= _FIRST_WITH_ALL:
        for found in check_lengths(store):
            if found.file is not None and not found.file.startswith(_SNAPSHOT):
                yield Stop(found.message, found.remedy)


def unread_beside(store: Store, settings: BrokerSettings) -> Iterator[str]:
    """Parts with data that is left out of the answer: those that verify, too, cannot answer a question without."""
    for part in unread_parts(store, dict(settings.given)):
        if part.needed_for is None:
            continue
        try:
            held = part.holds(part.path)
        except OSError as error:
            held = str(error.strerror)
        if held:
            yield f"{store.relative(part.path)}: {part.what}"


def second_copies(store: Store) -> Iterator[str]:
    """Log files of one name in two folders: a recovery walks both (MappedFileQueue.doLoad), and may cut at either."""
    for twin in store.commitlog.duplicates:
        yield f"{store.relative(twin.path)}: a second log file of this name"


def timer_left_out(store: Store, settings: BrokerSettings, log: LogView) -> Iterator[str]:
    """What a damaged timer does to pending messages is not played."""
    if settings.version >= _FIRST_WITH_ALL and has_timer(store):
        for item in check_timer(store, log):
            if item.severity != "info":
                yield f"timer: {item.message}"


def assumptions(store: Store, log: LogView, settings: BrokerSettings) -> Iterator[str]:
    """What is taken for granted of release, settings, files and the beginning of the log."""
    version = settings.version
    if version.nearest != version:
        yield f"{version} is not known, and taken to start like {version.nearest}, the nearest release that is"
    sizes = {
        "mappedFileSizeCommitLog": store.mapped_file_size,
        "mappedFileSizeConsumeQueue": store.queue_file_size,
    }
    for name, size in sizes.items():
        if name not in settings.given and str(size) != KNOWN[name].default:
            yield f"{name}={size}, as the files have it (default {KNOWN[name].default}: would refuse them)"
    for name, value in sorted(settings.too_new.items()):
        yield f"{name}={value} is ignored: {version} does not know it"
    if settings.unknown:
        yield f"settings with no effect on recovery: {', '.join(sorted(settings.unknown))}"
    for name in ("enableAcceleratedRecovery", "rocksdbCQDoubleWriteEnable"):
        if settings.flag(name):
            yield f"{name}=true is not emulated; the answer is that without it"
    for item in first_file_findings(store, log, settings.given):
        if item.severity != "info":
            yield f"the files before {item.file} are meant to be gone: {item.message}"
