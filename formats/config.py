"""The files below config/: their text, their tables, and what a broker loses without each of them."""

from __future__ import annotations

from itertools import product

from msgspec import Struct

from formats.config_tables import (
    ConsumerFilters,
    ConsumerOffsets,
    ConsumerOrderInfo,
    DataVersion,
    DelayOffsets,
    Metrics,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    Topics,
    read_consumer_filters,
    read_consumer_offsets,
    read_consumer_order_info,
    read_delay_offsets,
    read_metrics,
    read_subscription_groups,
    read_topics,
    readable_offsets,
    split_topic_group,
)
from formats.fastjson import Json, Parsed, loads, parse, salvage
from formats.fastjson_writer import Style, detect_style, dumps

__all__ = [
    "BACKUP_SUFFIX", "BY_NAME", "CONFIG_FILES", "TEMPORARY_SUFFIX", "ConfigFile", "ConsumerFilters", "ConsumerOffsets",
    "ConsumerOrderInfo", "DataVersion", "DelayOffsets", "Json", "Metrics", "Parsed", "Style", "SubscriptionGroup",
    "SubscriptionGroups", "TopicConfig", "Topics", "detect_style", "dumps", "flipped_name", "loads", "missing_keys",
    "parse", "read_consumer_filters", "read_consumer_offsets", "read_consumer_order_info", "read_delay_offsets",
    "read_metrics", "read_subscription_groups", "read_topics", "readable_offsets", "salvage", "split_topic_group",
]

BACKUP_SUFFIX = ".bak"
"""The state before the last write; a broker falls back to it in silence."""

TEMPORARY_SUFFIX = ".tmp"
"""Text on its way, up to 5.0.0; left behind only by a crash."""


class ConfigFile(Struct, frozen=True):
    """One known file: the broker class that keeps it, the keys a whole file has, and what its loss means.

    `required` are the top-level keys of every version, `optional` those of some. `since`: first
    broker version; "" for all. `comes_back`: clients and broker fill it again by themselves.
    """

    name: str
    keeper: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    lost: str
    since: str = ""
    comes_back: bool = False


CONFIG_FILES = (
    ConfigFile("topics.json", "TopicConfigManager", ("topicConfigTable",), ("dataVersion",),
               "all topics with their queue numbers, permissions and attributes; producers and consumers are refused"),
    ConfigFile("consumerOffset.json", "ConsumerOffsetManager", ("offsetTable",),
               ("dataVersion", "groupTopicMap", "pullOffsetTable"),
               "how far each group has consumed; groups start over, at the newest or the oldest message"),
    ConfigFile("lmqConsumerOffset.json", "LmqConsumerOffsetManager", ("lmqOffsetTable",),
               ("dataVersion", "groupTopicMap", "offsetTable", "pullOffsetTable"),
               "how far light queues, and with them enabled all groups, have been consumed", "4.9.3"),
    ConfigFile("delayOffset.json", "ScheduleMessageService", ("offsetTable",), ("dataVersion",),
               "how far each delay level was delivered; delayed messages are delivered again"),
    ConfigFile("subscriptionGroup.json", "SubscriptionGroupManager", ("subscriptionGroupTable",),
               ("dataVersion", "forbiddenTable"),
               "consumer groups and their retry settings; unknown groups are refused unless created on the fly",
               comes_back=True),
    ConfigFile("consumerFilter.json", "ConsumerFilterManager", ("filterDataByTopic",), (),
               "SQL filter expressions; consumers register theirs again when they reconnect", comes_back=True),
    ConfigFile("consumerOrderInfo.json", "ConsumerOrderInfoManager", ("table",),
               ("orderInfoCount", "orderedConsumptionLevel"),
               "which ordered messages are in consumption; some are delivered twice", "5.x", comes_back=True),
    ConfigFile("messageRequestMode.json", "MessageRequestModeManager", ("messageRequestModeMap",), (),
               "which groups were switched from pull to pop", "5.0.0"),
    ConfigFile("topicQueueMapping.json", "TopicQueueMappingManager", ("topicQueueMappingInfoMap",), ("dataVersion",),
               "which queues of static topics live here and their logical offsets", "5.0.0"),
    ConfigFile("timermetrics", "TimerMetrics", ("timingCount",), ("dataVersion",),
               "counts of pending timer messages; a statistic, rebuilt by the broker", "5.0.0"),
    ConfigFile("transactionMetrics", "TransactionMetrics", ("transactionCount",), ("dataVersion",),
               "counts of pending transactions; a statistic", "5.x"),
    ConfigFile("tieredStoreMetadata.json", "tiered store", (),
               ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable", "indexFileSegmentTable",
                "queueMetadataTable", "topicMetadataTable", "topicSerialNumber"),
               "what was moved to tiered storage", "5.x"),
)

BY_NAME = {file.name: file for file in CONFIG_FILES}


def missing_keys(file: ConfigFile, value: Json) -> tuple[str, ...]:
    """The top-level keys that a whole file of this name has and this value lacks."""
    return tuple(key for key in file.required if not isinstance(value, dict) or key not in value)


def flipped_name(file: ConfigFile, content: bytes, value: Json) -> tuple[int, int] | None:
    """(byte, bit) of a text that make a key the name of the table that it lacks; None if there is not just one.

    A broker takes such a text, without its table.
    """
    if not isinstance(value, dict):
        return None
    found: list[tuple[int, int]] = []
    for name in (key.encode() for key in missing_keys(file, value)):
        for at, bit in product(range(len(name)), range(8)):
            key = b'"' + name[:at] + bytes([name[at] ^ 1 << bit]) + name[at + 1 :] + b'"'
            found += [(content.find(key) + 1 + at, bit)] * content.count(key)
    return found[0] if len(found) == 1 else None
