"""The broker settings that affect its start: defaults by version, and those that the user gives."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import numpy as np
from msgspec import Struct, field

from formats.basics import FormatError, java_long
from formats.config import properties_text as javaproperties
from formats.record.rows import BIT_DELAY
from recover.broker.versions import BrokerVersion
from recover.findings.code import UsageRefusal
from recover.findings.model import Phrase
from recover.store.columns import Rows

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_MISSING_LEVEL_MS = 1000
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def log_folder_names(settings: Mapping[str, str]) -> list[str]:
    """Return the folders of the commitlog as a broker reads them (CommitLog): split at commas, a space after one being
    part of the name; the read-only folders count only beside several others."""
    names = settings.get("storePathCommitLog", "").strip().split(",")
    if len(names) > 1:
        names += settings.get("readOnlyCommitLogStorePaths", "").strip().split(",")
    return [*filter(None, names)]


def has_blank_after_log(settings: Mapping[str, str]) -> bool:
    """Whether a blank follows the path of the log; several folders are always trimmed (MultiPathMappedFileQueue)."""
    path = settings.get("storePathCommitLog") or settings.get("storePathRootDir", "")
    return "," not in path and path != path.rstrip()


def parse_levels(text: str) -> dict[int, int]:
    """Parse `messageDelayLevel` to level -> ms; `UsageRefusal` if the broker could not parse it."""
    table = {}
    for level, item in enumerate(text.split(), start=1):
        number, unit = item[:-1], item[-1:]
        if unit not in _UNITS or not number.isdecimal():
            raise UsageRefusal(Phrase("messageDelayLevel: {item} is not a delay", item=repr(item)),
                               "Write it as in the broker's configuration: 1s 5s 10m 2h.")
        table[level] = int(number) * _UNITS[unit]
    return table


def delay_of(levels: Mapping[int, int], level: int) -> int:
    """Return the milliseconds of a level: a level above the highest uses that one's, a missing one below it one
    second."""
    return levels.get(min(level, max(levels, default=0)), _MISSING_LEVEL_MS)


def deliver_time(store_timestamp: int, delay: int) -> int:
    """Return the tags code of a delayed message's unit, ms (ScheduleMessageService.computeDeliverTimestamp)."""
    return java_long(store_timestamp + delay)


class DelayTable:
    """The delays of a store: the given table, corrected by the store's own units.

    A broker computes deliver time = store timestamp + delay(level). If most units of a level agree on another delay,
    the store was written with another table, and that delay is used; units that fit the given one are right, too.
    """

    def __init__(self, levels: dict[int, int]) -> None:
        self.levels = dict(levels)
        self.observed: dict[int, int] = {}

    def delay(self, level: int) -> int:
        """Return the milliseconds of a level."""
        return self.observed[level] if level in self.observed else delay_of(self.levels, level)

    def learn(self, rows: Rows, deliver_times: Rows) -> None:
        """Learn, level by level, the delay on which most `deliver_times` (tags codes of the units of `rows`) agree."""
        seen: dict[int, Counter[int]] = defaultdict(Counter)
        delayed = is_delayed(rows)
        for level, delta in zip(
            rows["tags_code"][delayed].tolist(),
            (deliver_times[delayed] - rows["store_timestamp"][delayed]).tolist(),
            strict=True,
        ):
            seen[level][delta] += 1
        for level, deltas in seen.items():
            delta, count = deltas.most_common(1)[0]
            if delta != self.delay(level) and delta > 0 and count > 1 and count * 2 > sum(deltas.values()):
                self.observed[level] = delta

    def tags_codes(self, rows: Rows) -> Rows:
        """Return the tags code that each row's unit should have, int64."""
        codes = rows["tags_code"].copy()
        delayed = np.flatnonzero(is_delayed(rows))
        for at in delayed:
            codes[at] = deliver_time(int(rows["store_timestamp"][at]), self.delay(int(rows["tags_code"][at])))
        return np.asarray(codes)

    def fits(self, rows: Rows, deliver_times: Rows) -> Rows:
        """Whether each deliver time of a delayed message is that of the store's own delay, or of the given one (bool
        array)."""
        shown = deliver_times - rows["store_timestamp"]
        levels, of_row = np.unique(rows["tags_code"], return_inverse=True)
        own, given = (np.array([delay(int(level)) for level in levels], dtype=np.int64)[of_row]
                      for delay in (self.delay, lambda level: delay_of(self.levels, level)))
        return np.asarray((shown == own) | (shown == given))


def is_delayed(rows: Rows) -> Rows:
    """Which positions have a deliver time in their unit instead of the tags code (bool array)."""
    return np.asarray((rows["bits"] & BIT_DELAY) != 0)


# --- Settings of a broker.


class Setting(Struct, frozen=True):
    """One known setting: its default, its effect, and the first release that has it ("" for all)."""

    name: str
    default: str
    what: str
    since: str = ""


KNOWN = {
    setting.name: setting
    for setting in (
        Setting("mappedFileSizeCommitLog", "1073741824", "length of a commitlog file"),
        Setting("mappedFileSizeConsumeQueue", "6000000", "length of a consume queue file, rounded up to whole units"),
        Setting("mappedFileSizeConsumeQueueExt", "50331648", "length of a consumequeue_ext file"),
        Setting("maxHashSlotNum", "5000000", "hash slots of an index file"),
        Setting("maxIndexNum", "20000000", "entries of an index file"),
        Setting("maxMessageSize", "4194304", "largest message"),
        Setting("storePathRootDir", "", "folder of the store"),
        Setting("storePathCommitLog", "", "folder of the commitlog, or list of folders"),
        Setting("readOnlyCommitLogStorePaths", "", "further commitlog folders", "4.9.2"),
        Setting("brokerRole", "ASYNC_MASTER", "a slave treats a record that cannot be dispatched differently"),
        Setting("brokerId", "0", "0 for a master"),
        Setting("flushDiskType", "ASYNC_FLUSH", "whether dispatch and acknowledgements may run ahead of the flush"),
        Setting("flushIntervalCommitLog", "500", "ms between two flushes of the log"),
        Setting("flushCommitLogLeastPages", "4", "pages of 4 KiB that a flush waits for"),
        Setting("flushCommitLogThoroughInterval", "10000", "ms after which it waits no more"),
        Setting("transientStorePoolEnable", "false", "whether messages are kept in buffers before they are written"),
        Setting("commitIntervalCommitLog", "200", "ms between two writes of the buffers"),
        Setting("commitCommitLogLeastPages", "4", "pages of 4 KiB that a write waits for"),
        Setting("commitCommitLogThoroughInterval", "200", "ms after which it waits no more"),
        Setting("checkCRCOnRecover", "true", "whether recovery checks body CRCs"),
        Setting("messageIndexEnable", "true", "whether messages are indexed"),
        Setting("messageIndexSafe", "false", "whether the index time affects the choice of the start file"),
        Setting("indexFileWriteEnable", "true", "whether index files are written", "5.4.0"),
        Setting("duplicationEnable", "false", "restricts dispatch during recovery"),
        Setting("enableControllerMode", "false", "restricts dispatch during recovery", "5.0.0"),
        Setting("enableDLegerCommitLog", "false", "whether the log is kept by DLedger"),
        Setting("recheckReputOffsetFromCq", "false", "dispatch continues from the queues' largest offset", "5.0.0"),
        Setting("commitLogRecoverMaxNum", "10", "most files searched for the start file", "5.4.0"),
        Setting("indexRocksDBEnable", "false", "whether messages are indexed in RocksDB", "5.4.0"),
        Setting("transRocksDBEnable", "false", "whether transactions are in RocksDB", "5.4.0"),
        Setting("transWriteOriginTransHalfEnable", "true", "whether they are in half messages, too", "5.4.0"),
        Setting("enableAcceleratedRecovery", "false", "whether the scan may begin inside the start file", "5.4.0"),
        Setting("checkCommitLogOffsetOnRecover", "false", "whether a record's own offset must be in its file", "5.5.0"),
        Setting("storeType", "default", "kind of consume queue", "5.2.0"),
        Setting("rocksdbCQDoubleWriteEnable", "false", "a second consume queue store", "5.3.1"),
        Setting("combineCQUseRocksdbForLmq", "false", "required by rocksdbCQDoubleWriteEnable", "5.5.0"),
        Setting("useSeparateStorePathForRocksdbCQ", "false", "which folder holds the queues in RocksDB", "5.5.0"),
        Setting("enabledAppendPropCRC", "false", "whether new records carry a property CRC", "5.2.0"),
        Setting("forceVerifyPropCRC", "false", "whether every record needs a valid property CRC", "5.2.0"),
        Setting("messageDelayLevel", DEFAULT_LEVELS, "deliver times of the delay topic's units"),
        Setting("enableMultiDispatch", "false", "whether LMQ queues get units", "4.9.3"),
        Setting("enableLmq", "false", "whether %LMQ% queues have queue id 0", "4.9.3"),
        Setting("fileReservedTime", "72", "hours after which a log file is deleted"),
        Setting("enableConsumeQueueExt", "false", "whether units refer to consumequeue_ext"),
        Setting("timerWheelEnable", "true", "whether timer messages are processed", "5.0.0"),
        Setting("timerRocksDBEnable", "false", "whether timer messages are in RocksDB", "5.4.0"),
        Setting("transactionTimeOut", "6000", "ms after which a half message is asked for"),
        Setting("transactionCheckMax", "15", "how often a half message is asked for before it is discarded"),
        Setting("transactionCheckInterval", "60000", "ms between two checks of half messages"),
    )
}
NAMES_FILE = "setting_names.txt"
"""The names of all settings of 4.5.1 to 5.5.1, as `fixtures/lab/setting_names.py` reads them from the classes."""
_NEARLY = 0.85
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def java_integer(text: str) -> int | None:
    """Return the number that a broker parses from a setting's text; None if it ignores the text, as it does because of
    a blank at its end."""
    return int(text) if _INTEGER.fullmatch(text) else None


class BrokerSettings(Struct, frozen=True):
    """Settings of one broker: those given (canonical names), over the defaults of `version`.

    `unknown`: given keys that do not affect recovery; `too_new`: those that `version` does not have yet.
    """

    version: BrokerVersion
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def unknown(self) -> frozenset[str]:
        """The names of given settings that do not affect recovery; kept for the report."""
        return frozenset(self.given.keys() - KNOWN.keys())

    @property
    def too_new(self) -> dict[str, str]:
        """Given settings that only later releases have: this broker ignores them."""
        return {name: value for name, value in self.given.items() if name in KNOWN and not self.knows(name)}

    def text(self, name: str) -> str:
        """Return the value of a setting of `KNOWN`."""
        if name in self.given and self.knows(name):
            return self.given[name]
        return KNOWN[name].default

    def flag(self, name: str) -> bool:
        """Return a boolean as Java parses it: `true` in any case is true, everything else is false."""
        return self.text(name).lower() == "true"

    def number(self, name: str) -> int:
        """Return an integer; the default if the text is not one, as the broker ignores what it cannot convert."""
        value = java_integer(self.text(name))
        return int(KNOWN[name].default) if value is None else value

    def stated_number(self, name: str) -> int | None:
        """Return the integer if it was given, else None: sizes come from the files rather than from defaults."""
        return self.number(name) if name in self.given else None

    @property
    def delay_table(self) -> dict[int, int]:
        """Delay level -> ms (`messageDelayLevel`)."""
        return parse_levels(self.text("messageDelayLevel"))

    def knows(self, name: str) -> bool:
        """Whether this release has a setting of `KNOWN`."""
        return self.version.has_reached(KNOWN[name].since)


def load_settings(version: BrokerVersion, conf: Path | None = None, sets: Iterable[str] = ()) -> BrokerSettings:
    """Return settings from a `--broker-conf` file and `--set KEY=VALUE` options, which take precedence.

    `UsageRefusal` if the file cannot be read, an option has no `=`, or a value is unusable.
    """
    given: dict[str, str] = {}
    if conf is not None:
        try:
            content = conf.read_bytes()
        except OSError as error:
            raise UsageRefusal(Phrase("cannot read {file}: {error}", file=conf, error=error.strerror),
                               "Check --broker-conf.") from error
        try:
            given.update(javaproperties.loads(content))
        except FormatError as error:
            raise UsageRefusal(Phrase("{conf}: {error}", conf=conf, error=error),
                               "A backslash before u takes four hex digits.") from error
    for option in sets:
        name, separator, value = option.partition("=")
        if not separator or not name.strip():
            raise UsageRefusal(Phrase("--set {option}: KEY=VALUE expected", option=option),
                               "For example --set checkCRCOnRecover=false.")
        name, value = name.strip(), value.strip()
        _check_name(name)
        _check_type(canonical(name), value)
        given[name] = value
    settings = BrokerSettings(version, {canonical(name): value for name, value in given.items()})
    _ = settings.delay_table
    return settings


@cache
def every_name() -> frozenset[str]:
    """Return the names of all settings that a release of brokers has."""
    return frozenset(Path(__file__).with_name(NAMES_FILE).read_text("ascii").split()) | KNOWN.keys()


def _check_name(name: str) -> None:
    """Raise `UsageRefusal` for a name that is nearly that of a setting. Any other is noted as unknown: plug-ins and
    later releases have settings of their own, and brokers ignore what they do not know."""
    near = [] if name in every_name() else get_close_matches(name, every_name(), 1, _NEARLY)
    if near:
        raise UsageRefusal(Phrase("--set {name}: no broker has a setting of this name", name=name),
                           Phrase("Did you mean {near}?", near=near[0]))


def _check_type(name: str, value: str) -> None:
    """Raise `UsageRefusal` for a value of another type than the setting's."""
    if name not in KNOWN:
        return
    default = KNOWN[name].default
    if java_integer(default) is not None and java_integer(value) is None:
        raise UsageRefusal(Phrase("--set {name}={value}: {name} takes a number", name=name, value=value),
                           Phrase("For example --set {name}={default}.", name=name, default=default))
    if default in ("true", "false") and value.lower() not in ("true", "false"):
        raise UsageRefusal(Phrase("--set {name}={value}: {name} takes true or false", name=name, value=value),
                           Phrase("The default is {default}.", default=default))


def canonical(name: str) -> str:
    """Return the spelling of `KNOWN`: releases up to 4.5 wrote `maped` for `mapped`."""
    return name.replace("maped", "mapped")
