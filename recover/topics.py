"""Which topics and queues of a store count: live, deleted, batch, LMQ."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from formats.names import is_safe_directory_name
from recover.reader import read_small
from recover.store import Store

LMQ_PREFIX = "%LMQ%"
_MAX_CONFIG = 256 << 20


@dataclass
class Topics:
    """What topics.json and the folders of a store say about its topics."""

    store: Store

    @cached_property
    def configured(self) -> dict[str, dict[str, object]] | None:
        """topicConfigTable of a readable topics.json; None when there is none to trust."""
        from formats import fastjson

        try:
            content = read_small(self.store.config_dir / "topics.json", _MAX_CONFIG)
            value = fastjson.loads(content)
        except (OSError, ValueError):  # FormatError is a ValueError
            return None
        table = value.get("topicConfigTable") if isinstance(value, dict) else None
        return table if isinstance(table, dict) and table else None

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
        if self.configured is None or topic in self.configured or topic in self.folders:
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
