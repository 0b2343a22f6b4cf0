"""Messages of a store as a broker would find them, or by a scan where its ways lead nowhere. Reads only."""

from __future__ import annotations

from collections.abc import Iterator

from formats.errors import FormatError
from formats.message_id import parse_offset_id
from recover.errors import UsageRefusal
from recover.files.reader import FileReader
from recover.files.store import COMMITLOG, Store
from recover.files.topics import Topics
from recover.files.unread import unread_parts
from recover.inspect_file.unit_items import next_record
from recover.query.by_key import FOREVER, query_key
from recover.query.by_queue import query_offset, query_time
from recover.query.model import Answer, Found, note_damage, record_at
from recover.scan.judge import LogReader
from recover.verify.parts import log_is_gone

__all__ = ["FOREVER", "Answer", "Found", "not_looked_at", "note_unread", "query_id", "query_key",
           "query_offset", "query_phy_offset", "query_time"]


def note_unread(store: Store, answer: Answer) -> None:
    """Make an answer incomplete where the log is gone, or where a part that is not read holds messages, too.

    A message found by its place stays: there is no other one.
    """
    if answer.messages and answer.way in ("id", "offset", "queue"):
        return
    for line in not_looked_at(store):
        if line not in answer.notes:
            answer.incomplete(line)


def not_looked_at(store: Store) -> Iterator[str]:
    """A line for a log that is gone, and for each part that is not read and holds messages, too."""
    for item in log_is_gone(store):
        yield item.message
    for part in unread_parts(store):
        if part.needed_for == COMMITLOG and part.holds(part.path):
            yield f"{store.relative(part.path)} ({part.what}) was not looked at: mqtool does not read it"


def query_phy_offset(store: Store, phy_offset: int) -> Answer:
    """The record that starts at an offset of the log; a note names the next one when none does."""
    answer = Answer("offset")
    mapped_file = store.commitlog.find(phy_offset)
    if mapped_file is None:
        answer.notes.append(f"outside of the log, which has files from {store.commitlog.min_offset} to "
                            f"{store.commitlog.max_offset}")
        return answer
    with LogReader(store.commitlog) as log:
        record = record_at(store, log, phy_offset)
        if record is not None:
            answer.messages.append(Found(record))
            return answer
        note_damage(store, log, phy_offset, answer, named=False)
    base = mapped_file.file_from_offset
    with FileReader(mapped_file.path) as reader:
        following = base + next_record(reader, phy_offset - base, base, mapped_file.length)
    behind = "none follows in its file" if following >= mapped_file.end else f"the next one starts at {following}"
    answer.notes.append(f"no intact record starts at {phy_offset}; {behind}")
    return answer


def query_id(store: Store, message_id: str, topic: str | None = None) -> Answer:
    """A message by its offset id (16 or 28 bytes in hex), or by its unique key.

    Both have the same form, so the id is first taken for a place in this log, and the record there
    must come from the host that the id names; else it is looked up as a key of `topic`, or of every
    topic that has queues or is configured.
    """
    message_id = message_id.strip()
    if not message_id:
        raise UsageRefusal("the message id is empty", "Give an offset id or a unique key.")
    try:
        parts = parse_offset_id(message_id)
    except FormatError:
        parts = None
    if parts is not None and store.commitlog.find(parts.phy_offset) is not None:
        with LogReader(store.commitlog) as log:
            record = record_at(store, log, parts.phy_offset)
            answer = Answer("id")
            if record is None and note_damage(store, log, parts.phy_offset, answer, named=False):
                return answer
        if record is not None and record.store_host == (parts.ip, parts.port):
            return Answer("id", [Found(record)])
    known = Topics(store)
    topics = [topic] if topic is not None else sorted({*known.folders, *(known.configured or ())})
    answer = query_key(store, topics, message_id)
    answer.way = "id" if answer.messages else answer.way
    return answer
