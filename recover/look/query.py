"""Messages of a store, found as a broker finds them, or by a scan where that fails. Read-only."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
from msgspec import Struct, field

from formats.basics import FormatError, index_key_hash
from formats.consumequeue import CQ_UNIT, is_pre_blank, is_valid
from formats.index import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, IndexGeometry, IndexHeader
from formats.record import HEAD, HEAD_SIZE, HEADS, Record
from formats.record.message import parse_offset_id
from formats.sysflag import HOSTS_V6
from recover.broker.versions import NEAREST_BY_TIME, NEWEST_COMPARED, BrokerVersion
from recover.derived.index_files import index_geometry, list_index_files
from recover.findings.code import Refusal, UsageRefusal
from recover.findings.model import Phrase
from recover.log.judge import LogReader, judge, reason_of
from recover.look.items import next_record
from recover.look.store import log_is_gone
from recover.store.config_files import Topics
from recover.store.derived_files import ExtFiles, unit_at
from recover.store.mapped_files import MappedFileQueue
from recover.store.reader import FileReader
from recover.store.source import open_file
from recover.store.store import COMMITLOG, Store, last_unit
from recover.store.unread import unread_parts

# --- The result of a search, and whether it was complete.


class Found(Struct, frozen=True):
    """One message. `stale`: of an earlier generation of the log; `superseded`: its queue offset was reused."""

    record: Record
    stale: bool = False
    superseded: bool = False


class Answer(Struct):
    """The result. `complete` is False if a part that could hold a hit was not searched; `notes` name it, and other
    facts.

    `damaged`: places of the log that a unit named, or whose bytes claim to be a message, without an intact one, and the
    reason. `way` is how the search was made: index, queue, id, offset, scan or list. `left_out`: how many more messages
    a list has.
    """

    way: str
    messages: list[Found] = field(default_factory=list)
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    more: bool = False
    left_out: int = 0
    queue_offset: int | None = None
    damaged_ranges: int = 0
    damaged: list[dict[str, object]] = field(default_factory=list)

    def incomplete(self, note: str) -> None:
        self.complete = False
        self.notes.append(note)


def record_at(store: Store, reader: LogReader, phy_offset: int, answer: Answer, *, named: bool) -> Record | None:
    """Return the intact record that starts at `phy_offset`; None, with damage noted in `answer`, if there is none.

    `named`: a unit or an index entry names the place. Otherwise damage is noted only if the bytes claim this offset.
    `ReadFailure` from the disk.
    """
    mapped_file = store.commitlog.find(phy_offset)
    if mapped_file is None:
        return None
    base = mapped_file.file_from_offset

    def read(at: int, length: int) -> bytes:
        return reader.read(base + at, length)

    place = read, phy_offset - base, base, base + store.mapped_file_size
    with suppress(FormatError):
        return judge(*place)
    head = reader.read(phy_offset, HEAD_SIZE)
    if named or (len(head) == HEAD_SIZE and HEAD.decode(head).phy_offset == phy_offset and any(head)):
        reason, _ = reason_of(*place)
        answer.damaged.append({"phy_offset": phy_offset, "reason": reason, "file": store.relative(mapped_file.path)})
    return None


def store_timestamp_at(reader: LogReader, phy_offset: int) -> int:
    """The store timestamp of the record there, not validated (CommitLog.pickupStoreTimestamp); -1 after the log."""
    content = reader.read(phy_offset, HEAD_SIZE)
    if len(content) < HEAD_SIZE:
        return -1
    layout = HEADS[HEAD.decode(content).sys_flag & HOSTS_V6]
    content = reader.read(phy_offset, layout.size)
    return int(layout.decode(content).store_timestamp) if len(content) == layout.size else -1


# --- Messages by key, searched as a broker does (IndexService.queryOffset, IndexFile.selectPhyOffset).


FOREVER = (1 << 63) - 1


def has_key(record: Record, key: str) -> bool:
    """Whether a record carries a key, as its unique key or as a word of KEYS."""
    return key == record.uniq_key or bool(record.keys and key in record.keys.split(" "))


def query_key(
    store: Store, topics: list[str], key: str, *, begin: int = 0, end: int = FOREVER, limit: int = 0
) -> Answer:
    """Return messages of any of `topics` with `key`, stored from `begin` to `end` (ms, both included), newest first by
    the index. Each hit is read and compared. `Refusal` (8) without index files, or if their layout is unknown.
    """
    answer = Answer("index")
    listing = list_index_files(store.index_dir)
    if not listing.files:
        if not store.commitlog.files:
            return answer
        raise Refusal("there is no index file", "`{typed} --scan` scans the whole log instead.")
    geometry = index_geometry(store, listing)
    if geometry is None:
        raise Refusal("the layout of the index files is unknown",
                      "Set --index-slots and --index-entries, or scan the whole log: `{typed} --scan`.")
    wanted = dict.fromkeys(index_key_hash(f"{topic}#{key}") for topic in topics)
    seen: set[int] = set()
    with LogReader(store.commitlog) as log:
        for file in reversed(listing.files):
            try:
                with open_file(file.path) as reader:
                    if file.length < geometry.size:
                        answer.incomplete(Phrase("index file {file} is too short to be searched", file=file.name))
                        continue
                    offsets = list(_offsets(reader, geometry, wanted, begin, end, answer, file.name))
                    older = INDEX_HEADER.decode(reader.read(0, INDEX_HEADER.size)).begin_timestamp < begin
            except (OSError, FormatError) as error:
                answer.incomplete(Phrase("index file {file} could not be read: {error}", file=file.name,
                                         error=str(error)))
                continue
            for phy_offset in offsets:
                if phy_offset in seen:
                    continue
                seen.add(phy_offset)
                if limit and len(answer.messages) >= limit:
                    answer.more = True
                    return answer
                record = _record_of(store, log, phy_offset, answer)
                if record is not None and record.topic_name in topics and has_key(record, key) \
                        and begin <= record.store_timestamp <= end:
                    answer.messages.append(Found(record))
            if older:
                break
    return answer


def _record_of(store: Store, log: LogReader, phy_offset: int, answer: Answer) -> Record | None:
    """The record that an index entry points to; if there is none, `answer` says why."""
    try:
        record = record_at(store, log, phy_offset, answer, named=True)
    except OSError as error:
        answer.incomplete(Phrase("the log could not be read at {at}: {error}", at=phy_offset, error=error.strerror))
        return None
    if record is None and phy_offset >= store.commitlog.min_offset:
        answer.notes.append(Phrase("the index points to {at}, where no intact record starts", at=phy_offset))
    return record


_SECOND = 1000
"""Units count whole seconds: a broker compares these, and so misses messages of the first second."""


def _matches(header: IndexHeader, begin: int, end: int) -> bool:
    """IndexFile.isTimeMatched."""
    first, last = header.begin_timestamp, header.end_timestamp
    return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def _offsets(
    reader: FileReader, geometry: IndexGeometry, wanted: Iterable[int], begin: int, end: int, answer: Answer, name: str
) -> Iterator[int]:
    """Physical offsets of the units whose hash and time fit, newest first; each chain is walked once."""
    header = INDEX_HEADER.decode(reader.read(0, INDEX_HEADER.size))
    if header.index_count <= 1 and any(reader.read(geometry.unit_offset(1), INDEX_UNIT.size)):
        answer.incomplete(Phrase("the header of index file {file} is damaged", file=name))
    if header.index_count <= 1 or not _matches(header, begin, end):
        return
    for key_hash in wanted:
        slot, above = geometry.slot_of(key_hash), min(header.index_count + 1, geometry.entries)
        number = INDEX_SLOT.decode(reader.read(geometry.slot_offset(slot), INDEX_SLOT.size)).number
        while number != 0:
            unit = None
            # a chain leads to ever lower numbers, and all its units are those of its slot
            if 0 < number < above:
                unit = INDEX_UNIT.decode(reader.read(geometry.unit_offset(number), INDEX_UNIT.size))
            if unit is None or not any(unit) or unit.time_diff < 0 or geometry.slot_of(unit.key_hash) != slot:
                answer.incomplete(Phrase("a chain of index file {file} is damaged", file=name))
                break
            stored = header.begin_timestamp + unit.time_diff * 1000
            # the first unit counts from the begin of the file before (IndexFile.putKey)
            if unit.key_hash == key_hash and (number == 1 or begin - _SECOND < stored <= end):
                yield unit.phy_offset
            if stored <= begin - _SECOND:
                break
            above, number = number, unit.previous


# --- Messages by queue offset or by time through the consume queue, as a broker finds them.


class _Queue:
    """The units of one queue, read one at a time."""

    def __init__(self, store: Store, topic: str, queue_id: int) -> None:
        folder = next((f for f in store.queue_folders if (f.topic, f.queue_id) == (topic, queue_id)), None)
        if folder is None:
            known = sorted({f.queue_id for f in store.queue_folders if f.topic == topic})
            hint = Phrase("That topic has the queues {known}.", known=tuple(map(str, known))) if known else Phrase(
                "There are no queue files of that topic{near}; `{typed} --scan` scans the log instead.",
                near=nearest(topic, known_topics(store)))
            raise Refusal(Phrase("there is no consume queue {topic}/{queue_id}", topic=topic, queue_id=queue_id), hint)
        self.files = MappedFileQueue.load((folder.path,), store.queue_file_size, CQ_UNIT.size)
        self.min_offset = self.files.min_offset // CQ_UNIT.size
        self.max_offset, _ = last_unit(self.files.files, [])
        self.unit = partial(unit_at, self.files)


def deliver_time(store: Store, topic: str, queue_id: int, queue_offset: int) -> int | None:
    """Return when a delayed message is due (ms), which its unit holds in place of a tags code; None without a unit."""
    try:
        unit = _Queue(store, topic, queue_id).unit(queue_offset)
    except (Refusal, OSError):
        return None
    if unit is None or not is_valid(unit) or is_pre_blank(unit):
        return None
    codes = ExtFiles(store, topic, queue_id).tags_codes(np.array([unit.tags_code], dtype=np.int64))
    return int(codes[0]) if codes[0] > 0 else None


def query_offset(store: Store, topic: str, queue_id: int, queue_offset: int) -> Answer:
    """Return the message at a queue offset. `Refusal` (8) if the queue does not exist."""
    answer = Answer("queue", queue_offset=queue_offset)
    queue = _Queue(store, topic, queue_id)
    unit = queue.unit(queue_offset) if queue_offset >= 0 else None
    if unit is None or not is_valid(unit) or is_pre_blank(unit):
        answer.notes.append(Phrase("no entry there; the queue holds {first} to {stop}", first=queue.min_offset,
                                   stop=queue.max_offset))
        return answer
    with LogReader(store.commitlog) as log:
        record = record_at(store, log, unit.phy_offset, answer, named=True)
    if record is None:
        answer.notes.append(Phrase(
            "the entry points to {at}, which has expired from the log" if unit.phy_offset < store.commitlog.min_offset
            else "the entry points to {at}, where no intact record starts", at=unit.phy_offset))
        return answer
    if (record.topic_name, record.queue_id, record.queue_offset) != (topic, queue_id, queue_offset):
        answer.notes.append(Phrase("the entry points to a record of {topic}/{queue}, queue offset {offset}",
                                   topic=record.topic_name, queue=record.queue_id, offset=record.queue_offset))
    answer.messages.append(Found(record))
    return answer


def queue_records(store: Store, topic: str, queue_id: int, first: int, answer: Answer) -> Iterator[Record]:
    """Yield the intact records that a queue leads to from a queue offset on; damaged ones are noted in `answer`.
    `Refusal` (8) if the queue does not exist."""
    queue = _Queue(store, topic, queue_id)
    with LogReader(store.commitlog) as log:
        for number in range(max(first, queue.min_offset), queue.max_offset):
            unit = queue.unit(number)
            if unit is not None and is_valid(unit) and not is_pre_blank(unit):
                record = record_at(store, log, unit.phy_offset, answer, named=True)
                if record is not None:
                    yield record


def query_time(
    store: Store, topic: str, queue_id: int, timestamp: int, version: BrokerVersion = NEWEST_COMPARED
) -> Answer:
    """Return the message of a queue that this release finds for a time (ms): ConsumeQueue.getOffsetInQueueByTime with
    the lower boundary. Units of expired messages count as earlier. `Refusal` (8) if the queue does not exist."""
    queue = _Queue(store, topic, queue_id)
    answer = Answer("queue")
    with LogReader(store.commitlog) as log:
        search = _nearest_in_time if version.has(NEAREST_BY_TIME) else _first_from
        at = search(queue, store, log, timestamp, answer)
    answer.queue_offset = at
    if at >= queue.max_offset or not answer.complete:
        answer.notes.append(Phrase("no message of that queue was stored at or after that time; its end is {stop}",
                                   stop=queue.max_offset))
        return answer
    found = query_offset(store, topic, queue_id, at)
    found.complete &= answer.complete
    return found


def _stored_at(queue: _Queue, store: Store, log: LogReader, number: int, answer: Answer) -> int | None:
    """The store time (ms) of the message of a unit; None where it has expired, -1 where it cannot be read."""
    unit = queue.unit(number)
    if unit is None or is_pre_blank(unit) or unit.phy_offset < store.commitlog.min_offset:
        return None
    stored = store_timestamp_at(log, unit.phy_offset)
    if stored < 0:
        answer.incomplete(Phrase("the record of queue offset {offset} could not be read", offset=number))
    return stored


def _first_from(queue: _Queue, store: Store, log: LogReader, timestamp: int, answer: Answer) -> int:
    """The queue offset of the first message stored at `timestamp` or later; the end of the queue if there is none."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        stored = _stored_at(queue, store, log, middle, answer)
        if stored is not None and stored < 0:
            break
        if stored is None or stored < timestamp:
            low = middle + 1
        else:
            high = middle
    return low


def _nearest_in_time(queue: _Queue, store: Store, log: LogReader, timestamp: int, answer: Answer) -> int:
    """The queue offset of the message stored nearest to `timestamp`, the earlier of two, in the first file that was
    changed then or later, else the last. Of several with that very time: the one that the bisection meets first."""
    if not queue.files.files:
        return 0
    file = next((file for file in queue.files.files if file.path.stat().st_mtime_ns // 1_000_000 >= timestamp),
                queue.files.files[-1])
    low = file.file_from_offset // CQ_UNIT.size
    high = min(queue.max_offset, file.end // CQ_UNIT.size) - 1
    before, after = low, queue.max_offset
    behind = ahead = 0  # how far those are from the time, 0 for no such message
    while low <= high:
        middle = (low + high) // 2
        stored = _stored_at(queue, store, log, middle, answer)
        if stored is not None and (stored < 0 or stored == timestamp):
            return middle
        if stored is None or stored < timestamp:
            low = middle + 1
            before, behind = middle, behind if stored is None else timestamp - stored
        else:
            high, after, ahead = middle - 1, middle, stored - timestamp
    return before if behind and (not ahead or behind <= ahead) else after


def note_unread(store: Store, answer: Answer) -> None:
    """Mark an answer incomplete if the log is gone, or a part that is not read holds messages too. A message found by
    its place needs no mark: there is only one."""
    if answer.messages and answer.way in ("id", "offset", "queue"):
        return
    for line in unread_notes(store):
        if line not in answer.notes:
            answer.incomplete(line)


def unread_notes(store: Store) -> Iterator[str]:
    """Yield a line for a missing log, and for each part with messages that is not read."""
    for item in log_is_gone(store):
        yield item.message
    for part in unread_parts(store):
        if part.needed_for == COMMITLOG and part.holds(part.path):
            yield Phrase("{part} ({what}) was not searched: mqtool does not read it", part=store.relative(part.path),
                         what=part.what)


def query_phy_offset(store: Store, phy_offset: int) -> Answer:
    """Return the record that starts at an offset of the log; if none does, a note names the next one."""
    answer = Answer("offset")
    mapped_file = store.commitlog.find(phy_offset)
    if mapped_file is None:
        answer.notes.append(Phrase("outside of the log, which has files from {first} to {stop}",
                                   first=store.commitlog.min_offset, stop=store.commitlog.max_offset))
        return answer
    with LogReader(store.commitlog) as log:
        record = record_at(store, log, phy_offset, answer, named=False)
    if record is not None:
        answer.messages.append(Found(record))
        return answer
    base = mapped_file.file_from_offset
    with open_file(mapped_file.path) as reader:
        following = base + next_record(reader, phy_offset - base, base, mapped_file.length)
    answer.notes.append(Phrase(
        "no intact record starts at {at}; none follows in its file" if following >= mapped_file.end else
        "no intact record starts at {at}; the next one starts at {following}", at=phy_offset, following=following))
    return answer


def known_topics(store: Store) -> list[str]:
    """Topics that have queues or are configured."""
    known = Topics(store)
    return sorted({*known.folders, *(known.configured or ())})


def no_such_topic(store: Store, name: str) -> str:
    """Return a line for a topic that is not among the known ones, with the nearest of these; "" for one that is, and
    if none is known."""
    known = known_topics(store)
    return Phrase("neither queue files nor topics.json name the topic {topic}{near}", topic=name,
                  near=nearest(name, known)) if known and name not in known else ""


def nearest(name: str, known: Collection[str]) -> str:
    """Return the known name that is most similar to an unknown one, as an addition to its report; "" for a known
    one."""
    names = {} if name in known else {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, 1, 0.5)
    return Phrase("; the nearest is {name}", name=names[near[0]]) if near else ""


def query_place(store: Store, message_id: str) -> Answer | None:
    """Return the message at the log offset in an offset id (16 or 28 bytes in hex), or the damage there; None for
    another text, or if no record of the host in the id is there."""
    try:
        parts = parse_offset_id(message_id)
    except FormatError:
        return None
    if store.commitlog.find(parts.phy_offset) is None:
        return None
    answer = Answer("id")
    with LogReader(store.commitlog) as log:
        record = record_at(store, log, parts.phy_offset, answer, named=False)
    if record is not None and record.store_host == (parts.ip, parts.port):
        answer.messages.append(Found(record))
    return answer if answer.messages or answer.damaged else None


def query_id(store: Store, message_id: str, topic: str | None = None) -> Answer:
    """Return a message by its offset id, or by its unique key.

    Both have the same form. The id is first tried as a place in this log; then it is looked up as a key of `topic`, or
    of every known topic.
    """
    message_id = message_id.strip()
    if not message_id:
        raise UsageRefusal("the message id is empty", "Give an offset id or a unique key.")
    if (placed := query_place(store, message_id)) is not None:
        return placed
    answer = query_key(store, known_topics(store) if topic is None else [topic], message_id)
    answer.way = "id" if answer.messages else answer.way
    return answer
