"""The messages of one topic as an answer to a query: the first of them, and how many more there are."""

from __future__ import annotations

import glob
from collections.abc import Callable

from formats.commitlog import decode
from recover.errors import UsageRefusal
from recover.export.select import FOREVER, Wanted, selected
from recover.export.source import Source, scan_source
from recover.files.store import Store
from recover.files.topics import LMQ_PREFIX
from recover.query import Answer, Found
from recover.scan.engine import Engine

Callback = Callable[[int, int], None]


def list_messages(
    store: Store, topic: str, *, engine: Engine, memory: int, queue: int | None = None, since: int = 0,
    until: int = FOREVER, limit: int = 0, progress: Callback | None = None,
) -> Answer:
    """The live messages of `topic` stored within [since, until), in log order; all are counted, `limit` of them kept.

    Delayed, half, retry and dead-letter messages count for the topic that they are meant for and for the one that they
    are stored under.
    """
    if topic.startswith(LMQ_PREFIX):
        raise UsageRefusal(f"{topic} is a light queue: its messages are stored under other topics",
                           "Name --queue 0 and --offset or --time, or the topic that the messages were sent to.")
    answer = Answer("list")
    scanned = scan_source(Source(str(store.root), store.commitlog, store), engine, memory=memory, progress=progress)
    for line in scanned.unread:
        answer.incomplete(line)
    answer.damaged_ranges = len(scanned.log.damaged)
    if scanned.log.damaged:
        answer.notes.append(f"{len(scanned.log.damaged)} damaged ranges of the log hold nothing that could be "
                            "looked at")
    wanted = Wanted(topics=(glob.escape(topic),), queue=queue, since=since, until=until, include=frozenset({"system"}))
    elsewhere = 0
    for item in selected(scanned, wanted, answer.incomplete):
        elsewhere += item.message.stored_topic != topic
        if limit and len(answer.messages) >= limit:
            answer.left_out += 1
        else:
            answer.messages.append(Found(decode(item.content, check_crc=False)))
    answer.more = answer.left_out > 0
    if elsewhere:
        answer.notes.append(f"{elsewhere} of them are stored under other topics: delayed, half, retry or dead-letter "
                            "messages")
    return answer
