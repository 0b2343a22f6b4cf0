"""Typed values of the tables in the config files.

The readers take the value of a parsed file (whole or salvaged) and never raise: members that the broker's classes would
not have are left out and listed in `rejected`, so that one bad member does not hide the others. Missing members have
the broker's defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from msgspec import Struct, field

from formats.config.json import Json

TOPIC_GROUP_SEPARATOR = "@"
_BROADCAST = "@broadcast"
_TYPE = "@type"
_DIGITS = re.compile(r"-?[0-9]{1,19}")

Object = dict[str | int, Json]


class ConsumerOffsets(Struct):
    """consumerOffset.json or lmqConsumerOffset.json.

    `offsets`: (topic, group) -> {queue id: next queue offset to consume}; `lmq_offsets`: (topic, group) -> the next
    offset of that LMQ queue. The last pulled offsets (5.5.0) are checked, but not kept.
    """

    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    lmq_offsets: dict[tuple[str, str], int] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)


def read_consumer_offsets(value: Json) -> ConsumerOffsets:
    """Read consumerOffset.json or lmqConsumerOffset.json: a broker with LMQ queues keeps both tables in the
    latter."""
    result = ConsumerOffsets()
    for name, offsets in (("offsetTable", result.offsets), ("pullOffsetTable", {})):
        for key, member in _table(value, name, result.rejected):
            pair = split_topic_group(key)
            if pair is None or not isinstance(member, dict):
                result.rejected.append(f"{name}/{key}")
            else:
                offsets[pair] = dict(_int_pairs(member, f"{name}/{key}", result.rejected))
    for key, member in _table(value, "lmqOffsetTable", result.rejected):
        pair, offset = split_topic_group(key), _as_int(member)
        if pair is None or offset is None:
            result.rejected.append(f"lmqOffsetTable/{key}")
        else:
            result.lmq_offsets[pair] = offset
    return result


def read_delay_offsets(value: Json) -> dict[int, int]:
    """Read delayOffset.json: delay level (from 1) -> next queue offset of delay queue level - 1."""
    table = value.get("offsetTable") if isinstance(value, dict) else None
    return dict(_int_pairs(table, "offsetTable", [])) if isinstance(table, dict) else {}


def readable_members(name: str, value: Json) -> Json:
    """Return the value of the file `name` without the members that brokers cannot read; the value itself if there is
    none.

    A single one makes a broker reject the whole text, whatever the rest of it holds. Accepted is what all of 4.5.1,
    4.9.7, 5.3.3 and 5.5.0 accept (seen on each); 4.x ignores fields that only 5.x has.
    """
    if name not in _TABLES or not isinstance(value, dict):
        return value
    # of the whole value a reference is a field like any other: there is nothing above it
    plain = _without(value, _TYPE)
    value = plain if plain != value else value
    changed: Object = {}
    for table, readable in _TABLES[name].items():
        members = value.get(table)
        if table not in value or (members is None and readable is not _topic_or_group):
            continue
        right: Json = readable(table, members) if isinstance(members, dict) else {}
        if right != members:
            changed[table] = right
    version = value.get("dataVersion")
    if not _is_object(version) or (isinstance(version, dict) and not all(
            _is_number(version.get(field), 64) for field in ("counter", "stateVersion", "timestamp"))):
        changed["dataVersion"] = {}
    return {**value, **changed} if changed else value


def _without(value: Object, *names: str) -> Object:
    """Return the value without members of these names, and its values without types and references, which fastjson
    refuses."""
    return {key: _without(each, _TYPE, "$ref") if isinstance(each, dict) else each
            for key, each in value.items() if key not in names}


def _offsets(_table: str, members: Object) -> Object:
    return {key: _integers("", each) for key, each in members.items() if isinstance(each, dict)}


def _integers(_table: str, members: Object) -> Object:
    return {key: one for key, one in members.items() if _as_int(key, 32) is not None and _as_int(one) is not None}


def _numbers(_table: str, members: Object) -> Object:
    return {key: one for key, one in members.items() if _as_int(one) is not None}


def _topic_or_group(table: str, members: Object) -> Object:
    return {key: one for key, one in members.items()
            if isinstance(one, dict) and all(test(one.get(field)) for field, test in _FIELDS[table].items())}


def _forbidden(_table: str, members: Object) -> Object:
    return {key: one for key, one in members.items()
            if isinstance(one, dict) and all(map(_is_number, one.values()))}


def _is_number(value: Json, bits: int = 32) -> bool:
    return value in (None, "", "null") or isinstance(value, bool) or _as_int(value, bits) is not None


def _is_flag(value: Json) -> bool:
    return not isinstance(value, (dict, list)) and (
        not isinstance(value, str) or value.lower() in ("", "null", "true", "false", "1", "0", "y", "n"))


def _is_object(value: Json) -> bool:
    return value in (None, "") or isinstance(value, dict)


_Readable = Callable[[str, Object], Object]
_OFFSETS: dict[str, _Readable] = {
    "offsetTable": _offsets, "pullOffsetTable": _offsets, "lmqOffsetTable": _numbers,
}
_TABLES: dict[str, dict[str, _Readable]] = {
    "topics.json": {"topicConfigTable": _topic_or_group},
    "subscriptionGroup.json": {"subscriptionGroupTable": _topic_or_group, "forbiddenTable": _forbidden},
    "consumerOffset.json": _OFFSETS,
    "lmqConsumerOffset.json": _OFFSETS,
    "delayOffset.json": {"offsetTable": _integers},
}
_FIELDS: dict[str, dict[str, Callable[[Json], bool]]] = {
    "topicConfigTable": {
        **dict.fromkeys(("perm", "readQueueNums", "topicSysFlag", "writeQueueNums"), _is_number),
        "order": _is_flag, "attributes": _is_object,
    },
    "subscriptionGroupTable": {
        **dict.fromkeys(("consumeTimeoutMinute", "groupSysFlag", "retryMaxTimes", "retryQueueNums"), _is_number),
        **dict.fromkeys(("brokerId", "whichBrokerWhenConsumeSlowly"), partial(_is_number, bits=64)),
        **dict.fromkeys(("consumeBroadcastEnable", "consumeEnable", "consumeFromMinEnable", "consumeMessageOrderly",
                         "notifyConsumerIdsChangedEnable"), _is_flag),
        "attributes": _is_object, "groupRetryPolicy": _is_object,
    },
}
"""The fields of a topic and of a group that a broker casts (TopicConfig, SubscriptionGroupConfig)."""


def split_topic_group(key: str) -> tuple[str, str] | None:
    """Return (topic, group) of a key `topic@group`; None if it is not exactly two names.

    Since 5.0 a broadcasting group behind a proxy is kept as `group@broadcast` (BroadcastOffsetManager).
    """
    topic, separator, group = key.partition(TOPIC_GROUP_SEPARATOR)
    name = group.removesuffix(_BROADCAST)
    return (topic, group) if separator and topic and name and TOPIC_GROUP_SEPARATOR not in name else None


def _table(value: Json, name: str, rejected: list[str]) -> Iterator[tuple[str, Json]]:
    """Yield the members of a table of the file; an absent or null table is empty."""
    table = value.get(name) if isinstance(value, dict) else None
    if isinstance(table, dict):
        yield from ((str(key), member) for key, member in table.items())
    elif table is not None or not isinstance(value, dict):
        rejected.append(name)


def _int_pairs(table: Object, where: str, rejected: list[str]) -> Iterator[tuple[int, int]]:
    for key, member in table.items():
        number, offset = _as_int(key, 32), _as_int(member)
        if number is None or offset is None:
            rejected.append(f"{where}/{key}")
        else:
            yield number, offset


def _as_int(value: Json, bits: int = 64) -> int | None:
    """Return an integer of so many bits, cast as fastjson does: quoted or not, without a number's fraction; else
    None."""
    if (isinstance(value, str) and _DIGITS.fullmatch(value)) or isinstance(value, float):
        value = int(value)
    limit = 1 << (bits - 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit else None


# --- The files below config/: their text, their tables, and what a broker loses without each of them.


BACKUP_SUFFIX = ".bak"
"""The state before the last write; a broker falls back to it silently."""

TEMPORARY_SUFFIX = ".tmp"
"""Text being written, up to 5.0.0; left behind only by a crash."""


class ConfigFile(Struct, frozen=True):
    """One known file: the broker class that keeps it, the keys of a whole file, and what its loss means.

    `required`: the top-level keys of every version, `optional`: those of some. `since`: first broker version; "" for
    all. `comes_back`: clients and broker restore it by themselves. `stops`: a broker that reads it does not start if
    neither it nor its backup loads (BrokerController.initialize, ScheduleMessageService.load, TimerMessageStore.load).
    """

    name: str
    keeper: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    lost: str
    since: str = ""
    comes_back: bool = False
    stops: bool = False


CONFIG_FILES = (
    ConfigFile("topics.json", "TopicConfigManager", ("topicConfigTable",), ("dataVersion",),
               "all topics with their queue counts, permissions and attributes; producers and consumers are refused",
               stops=True),
    ConfigFile("consumerOffset.json", "ConsumerOffsetManager", ("offsetTable",),
               ("dataVersion", "groupTopicMap", "pullOffsetTable"),
               "the consume offsets of all groups; groups start over at the newest or the oldest message", stops=True),
    ConfigFile("lmqConsumerOffset.json", "LmqConsumerOffsetManager", ("lmqOffsetTable",),
               ("dataVersion", "groupTopicMap", "offsetTable", "pullOffsetTable"),
               "the consume offsets of LMQ queues and, with these enabled, of all groups", "4.9.3", stops=True),
    ConfigFile("delayOffset.json", "ScheduleMessageService", ("offsetTable",), ("dataVersion",),
               "the delivery progress of each delay level; delayed messages are delivered again", stops=True),
    ConfigFile("subscriptionGroup.json", "SubscriptionGroupManager", ("subscriptionGroupTable",),
               ("dataVersion", "forbiddenTable"),
               "consumer groups and their retry settings; unknown groups are refused unless created on the fly",
               comes_back=True, stops=True),
    ConfigFile("consumerFilter.json", "ConsumerFilterManager", ("filterDataByTopic",), (),
               "SQL filter expressions; consumers register theirs again when they reconnect", comes_back=True,
               stops=True),
    ConfigFile("consumerOrderInfo.json", "ConsumerOrderInfoManager", ("table",),
               ("orderInfoCount", "orderedConsumptionLevel"),
               "the ordered messages in consumption; some are delivered twice", "5.0.0", comes_back=True, stops=True),
    ConfigFile("messageRequestMode.json", "MessageRequestModeManager", ("messageRequestModeMap",), (),
               "the groups that were switched from pull to pop", "5.0.0"),
    ConfigFile("topicQueueMapping.json", "TopicQueueMappingManager", ("topicQueueMappingInfoMap",), ("dataVersion",),
               "the queues of static topics on this broker, and their logical offsets", "5.0.0", stops=True),
    ConfigFile("timermetrics", "TimerMetrics", ("timingCount",), ("dataVersion",),
               "counts of pending timer messages; a statistic, rebuilt by the broker", "5.0.0", comes_back=True,
               stops=True),
    ConfigFile("transactionMetrics", "TransactionMetrics", ("transactionCount",), ("dataVersion",),
               "counts of pending transactions; a statistic", "5.x"),
    ConfigFile("tieredStoreMetadata.json", "tiered store", (),
               ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable", "indexFileSegmentTable",
                "queueMetadataTable", "topicMetadataTable", "topicSerialNumber"),
               "the list of data in tiered storage", "5.x"),
)

BY_NAME = {file.name: file for file in CONFIG_FILES}
CLIENT_OFFSETS = ConfigFile(
    "offsets.json", "LocalFileOffsetStore", ("offsetTable",), (),
    "the progress of a broadcast consumer on its host; it begins where consumeFromWhere says", comes_back=True)
"""A file of clients, in .rocketmq_offsets/CLIENT/GROUP of the user: no part of a store."""


def client_offsets(value: Json) -> tuple[list[tuple[str, str, int, int]], list[str]]:
    """Return (topic, broker name, queue, offset) of each message queue of an offsets.json, and the keys of members
    that are not such a queue or have no offset."""
    table = value.get("offsetTable") if isinstance(value, dict) else None
    found: list[tuple[str, str, int, int]] = []
    odd: list[str] = []
    if not isinstance(table, dict):
        return [], ["offsetTable"]
    for key, offset in table.items():
        queue = _message_queue(key)
        if queue is None or type(offset) is not int or offset < 0:
            odd.append(str(key))
        else:
            found.append((*queue, offset))
    return sorted(found), odd


def _message_queue(key: str | int) -> tuple[str, str, int] | None:
    try:
        named = json.loads(key) if isinstance(key, str) else None
    except ValueError:
        named = None
    if not isinstance(named, dict):
        return None
    topic, broker, queue = (named.get(name) for name in ("topic", "brokerName", "queueId"))
    if isinstance(topic, str) and isinstance(broker, str) and type(queue) is int and queue >= 0:
        return topic, broker, queue
    return None


def missing_keys(file: ConfigFile, value: Json) -> tuple[str, ...]:
    """Return the top-level keys that a whole file of this name has and this value lacks."""
    return tuple(key for key in file.required if not isinstance(value, dict) or key not in value)


def flipped_name(file: ConfigFile, content: bytes, value: Json) -> tuple[int, int] | None:
    """Return the (byte, bit) whose flip restores the name of a missing table; None if there is not exactly one.

    A broker accepts such a text, without its table.
    """
    if not isinstance(value, dict):
        return None
    found: list[tuple[int, int]] = []
    for name in (key.encode() for key in missing_keys(file, value)):
        for at, bit in product(range(len(name)), range(8)):
            key = b'"' + name[:at] + bytes([name[at] ^ 1 << bit]) + name[at + 1 :] + b'"'
            found += [(content.find(key) + 1 + at, bit)] * content.count(key)
    return found[0] if len(found) == 1 else None
