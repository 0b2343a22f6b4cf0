"""Which config files a store must have had, and with something in them: log, queues and the other files show it."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import structs

from formats.commitlog import TOPIC_SCHEDULE
from formats.config import missing_keys
from formats.consumequeue import CQ_UNIT, is_valid
from recover.files.config_files import ConfigPair, ConfigText, tables_of
from recover.files.reader import read_small
from recover.files.store import Store
from recover.files.topics import Topics, topic_text
from recover.scan.log import LogView
from recover.verify.guess_topics import is_guess, is_users_topic

TOPICS_FILE = "topics.json"
OFFSETS_FILE = "consumerOffset.json"
LMQ_OFFSETS_FILE = "lmqConsumerOffset.json"
GROUPS_FILE = "subscriptionGroup.json"
DELAYS_FILE = "delayOffset.json"
_RETRY = "%RETRY%"
_SYSTEM_GROUPS = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER")
_SYSTEM_GROUP_PREFIXES = ("CID_ONS", "CID_RMQ_SYS_", "CID_SYS_RMQ_")
_IN_ROCKSDB = {
    TOPICS_FILE: {"topics", "rdb"}, GROUPS_FILE: {"subscriptionGroups", "rdb"},
    OFFSETS_FILE: {"consumerOffsets", "rdb"}, LMQ_OFFSETS_FILE: {"consumerOffsets", "rdb"},
}
_NAMED = 3


def judged_pairs(store: Store, topics: Topics, log: LogView | None) -> list[ConfigPair]:
    """All known config files, each with what the store shows of it; a text that cannot be right is `emptied`."""
    shown = _what_shows(store, topics, log)
    return [_marked(structs.replace(pair, shown=shown.get(pair.name, ""))) for pair in topics.pairs]


def is_gone(pairs: list[ConfigPair]) -> bool:
    """True when nothing at all is left of config/, and the store shows that it was there."""
    return not any(pair.present for pair in pairs) and any(pair.shown for pair in pairs)


def _what_shows(store: Store, topics: Topics, log: LogView | None) -> dict[str, str]:
    pairs = {pair.name: pair for pair in topics.pairs}
    names = topics.folders | {topic_text(topic) for topic, _ in (() if log is None else log.queues)}
    stored = {topic for topic in names if not topics.is_deleted(topic)}
    users = sorted(filter(is_users_topic, stored))
    groups = _groups(pairs[GROUPS_FILE], stored | set(topics.configured or ()))
    shown: dict[str, str] = {}
    if users:
        shown[TOPICS_FILE] = f"queues and log hold {_list(users)}"
    delays = pairs[DELAYS_FILE]
    if TOPIC_SCHEDULE in stored and delays.present and _names_nothing(delays.main) and _came_due(store, log):
        shown[DELAYS_FILE] = f"queues and log hold {TOPIC_SCHEDULE}"
    if groups and pairs[GROUPS_FILE].present:
        shown[GROUPS_FILE] = f"there were the groups {_list(groups)}"
    offsets, lmq = pairs[OFFSETS_FILE], pairs[LMQ_OFFSETS_FILE]
    if not (offsets.main.table or lmq.main.table):
        # a broker with light queues keeps all offsets in the file of those
        name = LMQ_OFFSETS_FILE if lmq.present and not offsets.present else OFFSETS_FILE
        if groups:
            shown[name] = f"there were the groups {_list(groups)}"
        elif users and not any(pair.present and not is_guess(pair) for pair in topics.pairs):
            shown[name] = "nothing that a broker wrote is left in config/"
    kept = set(os.listdir(store.config_dir)) if store.config_dir.is_dir() else set()
    return {name: text for name, text in shown.items() if not kept & _IN_ROCKSDB.get(name, set())}


def _came_due(store: Store, log: LogView | None) -> bool:
    """False when no delayed message was due at the newest message: until then a broker writes an empty table."""
    dues = []
    for folder in store.consumequeue_dir.glob(f"{TOPIC_SCHEDULE}/*/"):
        first = min(filter(Path.is_file, folder.iterdir()), default=None)
        head = b"" if first is None else read_small(first, CQ_UNIT.size)
        if len(head) == CQ_UNIT.size and is_valid(unit := CQ_UNIT.decode(head)):
            dues.append(unit.tags_code)
    return log is None or not dues or min(dues) <= log.newest_timestamp


def _groups(subscriptions: ConfigPair, topics: set[str]) -> list[str]:
    """Consumer groups of users that topics or subscriptions name."""
    named = {topic.removeprefix(_RETRY) for topic in topics if topic.startswith(_RETRY)}
    if subscriptions.chosen is not None:
        named.update(subscriptions.chosen.table)
    return sorted(
        name for name in named if name not in _SYSTEM_GROUPS and not name.startswith(_SYSTEM_GROUP_PREFIXES)
    )


def _marked(pair: ConfigPair) -> ConfigPair:
    main, backup = pair.main, pair.backup
    known_better = _lacks_table(main) and backup.whole and bool(backup.table)
    if not (_names_nothing(main) and (pair.shown or known_better)):
        return pair
    if _names_nothing(backup):
        backup = structs.replace(backup, emptied=True)
    return structs.replace(pair, main=structs.replace(main, emptied=True), backup=backup)


def _names_nothing(text: ConfigText) -> bool:
    sound = text.state in ("sound", "trailing-garbage", "trailing-zeros")
    return sound and bool(tables_of(text.known)) and not text.table


def _lacks_table(text: ConfigText) -> bool:
    return bool(missing_keys(text.known, text.value))


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
