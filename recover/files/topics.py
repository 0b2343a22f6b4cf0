"""Which topics and queues of a store count: live, deleted, batch, LMQ."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from formats.commitlog import TOPIC_HALF, TOPIC_OP_HALF, TOPIC_SCHEDULE
from formats.fastjson import Json
from formats.names import is_safe_directory_name
from recover.files.config_files import ConfigPair, read_pairs
from recover.files.store import Store

LMQ_PREFIX = "%LMQ%"
# A broker makes these for itself. 4.x leaves them out of topics.json, and nobody deletes them.
ALWAYS_LIVE = frozenset({TOPIC_SCHEDULE, TOPIC_HALF, TOPIC_OP_HALF})


class Topics(Struct, dict=True):
    """What topics.json and the folders of a store say about its topics."""

    store: Store

    @cached_property
    def pairs(self) -> list[ConfigPair]:
        """All known config files with their backups, as they were when somebody asked first."""
        return read_pairs(self.store)

    @cached_property
    def configured(self) -> dict[str, Json] | None:
        """topicConfigTable of topics.json, or of its backup where that is the sound one; None when neither is."""
        for pair in self.pairs:
            if pair.name == "topics.json" and pair.chosen is not None:
                return pair.chosen.table or (pair.backup.table if pair.backup.whole else None) or None
        return None

    @cached_property
    def folders(self) -> frozenset[str]:
        """Topics that have a folder with a queue in consumequeue/."""
        return frozenset(folder.topic for folder in self.store.queue_folders)

    @cached_property
    def batch(self) -> frozenset[str]:
        """Topics whose queues are batch consume queues."""
        named = {
            topic for topic, settings in (self.configured or {}).items()
            if isinstance(settings, dict) and "BatchCQ" in json.dumps(settings.get("attributes", ""))
        }
        directory = self.store.batchconsumequeue_dir
        return frozenset(named | (set(os.listdir(directory)) if directory.is_dir() else set()))

    def is_deleted(self, topic: str) -> bool:
        """True for a topic that neither topics.json nor consumequeue/ knows any more."""
        if self.configured is None or topic in self.configured or topic in self.folders or topic in ALWAYS_LIVE:
            return False
        return not (topic.startswith(LMQ_PREFIX) and not self.folders)

    def lmq_counts(self, queue: str) -> bool:
        """True when units of this LMQ queue are expected: its folder is there, or there is no folder at all."""
        return queue in self.folders or not self.folders

    def deleted(self, topics: Iterable[str]) -> list[str]:
        """Those of `topics` that are deleted, sorted."""
        return sorted({topic for topic in topics if self.is_deleted(topic)})


def topic_text(topic: bytes) -> str:
    """The name of a topic as folders and reports have it."""
    return topic.decode("utf-8", "replace")


def is_folder_name(topic: str) -> bool:
    """True when a broker could have made a folder of this name inside consumequeue/, and we may."""
    return is_safe_directory_name(topic)
