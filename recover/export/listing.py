"""Messages of a store as an answer to a query, found by a scan of the whole log: no index and no queue is needed."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator

from formats.commitlog import decode
from recover.errors import UsageRefusal
from recover.export.select import FOREVER, Selected, Wanted, selected
from recover.export.source import Source, scan_source
from recover.files.store import Store
from recover.files.topics import LMQ_PREFIX
from recover.memory.columns import DEFAULT_MEMORY
from recover.query import Answer, Found
from recover.scan.engine import Engine

Callback = Callable[[int, int], None]


def scan_for(
    store: Store, wanted: Wanted, *, engine: Engine, topic: str | None = None, queue: int | None = None,
    only_stale: bool = False, limit: int = 0, progress: Callback | None = None,
) -> Answer:
    """Every intact message that is wanted and stored under `topic` and `queue`, in log order; at most `limit`."""
    answer = Answer("scan")
    for item in _scanned(store, wanted, answer, engine, DEFAULT_MEMORY, progress):
        message = item.message
        if topic not in (None, message.stored_topic) or queue not in (None, message.stored_queue):
            continue
        if only_stale and message.state != "stale":
            continue
        if limit and len(answer.messages) >= limit:
            answer.more = True
            break
        answer.messages.append(_found(item))
    return answer


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
    wanted = Wanted(topics=(glob.escape(topic),), queue=queue, since=since, until=until, include=frozenset({"system"}))
    elsewhere = 0
    for item in _scanned(store, wanted, answer, engine, memory, progress):
        elsewhere += item.message.stored_topic != topic
        if limit and len(answer.messages) >= limit:
            answer.left_out += 1
        else:
            answer.messages.append(_found(item))
    answer.more = answer.left_out > 0
    if elsewhere:
        answer.notes.append(f"{elsewhere} of them are stored under other topics: delayed, half, retry or dead-letter "
                            "messages")
    return answer


def _scanned(
    store: Store, wanted: Wanted, answer: Answer, engine: Engine, memory: int, progress: Callback | None,
) -> Iterator[Selected]:
    scanned = scan_source(Source(str(store.root), store.commitlog, store), engine, memory=memory, progress=progress)
    for line in scanned.unread:
        answer.incomplete(line)
    answer.damaged_ranges = len(scanned.log.damaged)
    if answer.damaged_ranges:
        answer.notes.append(f"{answer.damaged_ranges} damaged ranges of the log hold nothing that could be looked at")
    yield from selected(scanned, wanted, answer.incomplete)


def _found(item: Selected) -> Found:
    state = item.message.state
    return Found(decode(item.content, check_crc=False), state == "stale", state == "superseded")
