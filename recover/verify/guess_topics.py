"""topics.json when no copy is left: a guess from queue folders, the log, and what can be read of a broken text."""

from __future__ import annotations

from msgspec import Struct

from formats.config import Json, Style, dumps
from formats.names import is_legal_topic
from recover.broker.versions import BrokerVersion
from recover.files.config_files import ConfigPair
from recover.files.store import Store
from recover.files.topics import LMQ_PREFIX, Topics, is_folder_name, topic_text
from recover.scan.log import LogView

READ_AND_WRITE = 6
_OWN = frozenset({
    "SELF_TEST_TOPIC", "TBW102", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "MQTOOL_FILLER",
    "TRANS_CHECK_MAX_TIME_TOPIC", "TRANSACTION_REDOLOG_TOPIC_XXXX",
})
_OWN_PREFIXES = ("RMQ_SYS_", "rmq_sys_", "%SYS%", LMQ_PREFIX)
_ONE_QUEUE = ("%RETRY%", "%DLQ%")
_MARK = "guessedBy"
"""A key beside the table. Brokers pass over what they do not know, and leave it out when they write the file."""
Members = dict[str | int, Json]


class TopicGuess(Struct, frozen=True):
    """Members of topicConfigTable by topic; `read` are those taken from the broken text as they stand."""

    topics: dict[str, Members]
    read: frozenset[str]
    timestamp: int
    style: Style

    def content(self) -> bytes:
        """The text of the file."""
        table: Members = {topic: self.topics[topic] for topic in sorted(self.topics)}
        version: Members = {"counter": 1, "timestamp": self.timestamp}
        return dumps({"dataVersion": version, _MARK: "mqtool", "topicConfigTable": table}, self.style)


def is_guess(pair: ConfigPair) -> bool:
    """True for a topics.json that mqtool wrote, and no broker since."""
    return _MARK in pair.main.value


def guess_topics(store: Store, known: Topics, log: LogView | None, pair: ConfigPair) -> TopicGuess:
    """Topics from folders and records; the brokers make their own ones again (TopicConfigManager's constructor).

    `log` None: it was not read, and folders alone tell.
    """
    queues: dict[str, int] = {}
    batch = known.batch
    for folder in store.queue_folders:
        queues[folder.topic] = max(queues.get(folder.topic, 0), folder.queue_id + 1)
    for topic, queue_id in () if log is None else log.queues:
        name = topic_text(topic)
        queues[name] = max(queues.get(name, 0), queue_id + 1)
    for name in batch:
        queues.setdefault(name, 1)
    topics = {
        name: _member(name, count, name in batch) for name, count in queues.items() if is_users_topic(name)
    }
    read = {
        name: member for copy in (pair.backup, pair.main) for name, member in copy.table.items()
        if isinstance(member, dict) and member.get("topicName") == name
    }
    topics.update(read)
    return TopicGuess(topics, frozenset(read), 0 if log is None else log.newest_timestamp, _style(store))


def is_users_topic(name: str) -> bool:
    """True for a topic that no broker makes by itself."""
    if name in _OWN or name.startswith(_OWN_PREFIXES):
        return False
    return is_folder_name(name) and is_legal_topic(name)


def _member(name: str, queues: int, batch: bool) -> Members:
    count = 1 if name.startswith(_ONE_QUEUE) else queues
    member: Members = {
        "order": False, "perm": READ_AND_WRITE, "readQueueNums": count, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": 0, "writeQueueNums": count,
    }
    attributes: Members = {"queue.type": "BatchCQ"}
    return {"attributes": attributes, **member} if batch else member


def _style(store: Store) -> Style:
    """As the store's brokers write; every release reads both styles."""
    broker = store.options.broker
    recent = (store.root / "rocksdbstore").exists() if broker is None else BrokerVersion.parse(broker) >= _EXPANDED
    return Style.FASTJSON2 if recent else Style.FASTJSON1


_EXPANDED = BrokerVersion(5, 4, 0)
