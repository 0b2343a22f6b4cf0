"""Filters of messages, and iteration over the matches in log order: by rows first, then by the records."""

from __future__ import annotations

import datetime
import fnmatch
import glob
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from formats import properties as props
from formats.basics import FormatError, index_key_hash, java_string
from formats.native.rows import place_hashes
from formats.properties import is_number
from formats.record import decode
from formats.record.message import decompress
from formats.record.rows import BIT_INNER_BATCH, BIT_STALE, BIT_SUPERSEDED, STAND_IN
from formats.sysflag import BATCH, INNER_BATCH, TRANSACTION_ROLLBACK
from recover.export.messages import Message, has_real_topic, is_system, message_of, place_text, unfolded
from recover.export.sources import Scanned
from recover.findings.code import N_, UsageRefusal
from recover.findings.model import Phrase
from recover.log.file_scan import FileScan, ProgressCallback
from recover.look.query import FOREVER as FOREVER, Answer, Found
from recover.store.columns import Rows, Split
from recover.store.mapped_files import MappedFile
from recover.store.reader import ReadFailure
from recover.store.source import open_file

WINDOW = 8 << 20
KINDS = ("stale", "superseded", "system", "copies")
_BACK = re.compile(r"-(\d{1,15}(?:\.\d+)?)(ms|s|m|h|d|w)")
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
Span = tuple[int, int]


class Wanted(Struct, frozen=True):
    """The filters of an export; None and empty mean no filter. Spans are [from, to), times in ms and [since, until).

    `topics` are globs; one must match the topic that consumers know or the one that the record is stored under.
    `cut_at`: only records at or after this offset of the log. `include`: stale, superseded, system, copies.
    """

    topics: tuple[str, ...] = ()
    queue: int | None = None
    queue_offsets: Span = (0, FOREVER)
    phy_offsets: Span = (0, FOREVER)
    since: int = 0
    until: int = FOREVER
    key: str | None = None
    tag: str | None = None
    msg_id: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    include: frozenset[str] = frozenset()
    cut_at: int = 0
    limit: int = 0
    raw_body: bool = False
    unfold: bool = False

    @property
    def by_rows(self) -> bool:
        """Whether scan rows alone decide about every message that is stored under its own topic."""
        return self.key is None and self.tag is None and self.msg_id is None and not self.properties and not self.limit

    @property
    def span(self) -> Span:
        """The range of the log in which wanted records begin."""
        return max(self.phy_offsets[0], self.cut_at), self.phy_offsets[1]

    @property
    def wants_everything(self) -> bool:
        """Whether no filter but `include` is set."""
        return self == Wanted(include=self.include)


class Selected(NamedTuple):
    """One message, and the record's bytes as stored."""

    message: Message
    content: bytes


def parse_span(text: str, option: str) -> Span:
    """Parse `A:B`, `A:` or `:B` to [A, B); `UsageRefusal` (16) otherwise."""
    first, colon, last = text.partition(":")
    if not colon or not all(part == "" or part.isdecimal() for part in (first, last)):
        raise UsageRefusal(Phrase("{option} {text}: write A:B", option=option, text=text),
                           Phrase("For instance {option} 100:200, or 100: from 100 on.", option=option))
    span = (_number(first or "0"), _number(last) if last else FOREVER)
    if span[0] > span[1]:
        raise UsageRefusal(Phrase("{option} {text}: the end is before the start", option=option, text=text),
                           "Write the smaller offset first.")
    return span


def _number(text: str) -> int:
    """A number of any length, at most FOREVER."""
    return min(int(text), FOREVER) if len(text) < 1000 else FOREVER


def parse_time(text: str, option: str) -> int:
    """Parse a time to ms since the epoch (rounded up): ms, ISO 8601 with its zone, or `-2h` before now (ms, s, m, h, d,
    w); `UsageRefusal` (16) otherwise."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return _number(text)
    if back := _BACK.fullmatch(text):
        return int(time.time() * 1000) - int(float(back[1]) * _UNITS[back[2]])
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        why = N_("is not a time") if moment is None else N_("has no time zone")
        raise UsageRefusal(Phrase("{option} {text} {why}", option=option, text=text, why=why),
                           Phrase("Write {option} '2026-11-21 01:58+08:00', {option} -2h, or milliseconds since 1970.",
                                  option=option))
    return -((_EPOCH - moment) // datetime.timedelta(milliseconds=1))


def parse_times(since: str | None, until: str | None) -> Span:
    """Parse --since and --until to [since, until) in ms; `UsageRefusal` (16) for an invalid time, or if they are in
    the wrong order."""
    first = 0 if since is None else parse_time(since, "--since")
    stop = FOREVER if until is None else parse_time(until, "--until")
    if first > stop:
        raise UsageRefusal("--until is before --since", "Write the earlier time with --since.")
    return first, stop


def selected(
    scanned: Scanned, wanted: Wanted, note: Callable[[str], None], progress: ProgressCallback | None = None,
) -> Iterator[Selected]:
    """Yield every intact record of the log that passes the filters, in log order; later read errors go to `note`. No
    message is kept in memory."""
    choice = Choice(scanned.log.queues, scanned.log.files, wanted, scanned.doubted, scanned.earlier)
    left = wanted.limit or FOREVER
    for scan, split, rows in choice.rows():
        for row, content in contents(scan.mapped_file, rows, note):
            for item in choice.messages(content, row, scan.mapped_file, note):
                yield item
                left -= 1
                if left <= 0:
                    return
        if progress is not None:
            progress(int(split.records["size"].sum()), rows.size)


class Choice:
    """The filters applied to one log: to rows first, then to messages."""

    def __init__(
        self, queues: Sequence[tuple[bytes, int]], files: Sequence[FileScan], wanted: Wanted,
        doubted: Mapping[int, list[str]] = MappingProxyType({}), earlier: Sequence[Rows] = (),
    ) -> None:
        self.files, self.wanted, self.doubted, self.earlier = files, wanted, doubted, earlier
        self._marks = marks_of(queues) if earlier else np.empty(0, dtype=np.int64)
        self._topic = re.compile("|".join(map(fnmatch.translate, wanted.topics)) or ".*", re.DOTALL)
        self.names = [(java_string(topic), queue_id) for topic, queue_id in queues]
        self._queues = np.array([self._may_hold(*name) for name in self.names], dtype=bool)
        # hashes of the key under every topic
        self._hashes = None if wanted.key is None else np.array(
            [index_key_hash(f"{name}#{wanted.key}") for name, _ in self.names], dtype=np.int32)

    def _may_hold(self, name: str, queue_id: int) -> bool:
        """Whether a queue can hold a wanted message, judging by its name."""
        if has_real_topic(name):
            return True
        if is_system(name) and "system" not in self.wanted.include:
            return False
        return self._topic.match(name) is not None and self.wanted.queue in (None, queue_id)

    def rows(self) -> Iterator[tuple[FileScan, Split, Rows]]:
        """Yield the rows of each split that may hold wanted messages, in log order."""
        for scan in self.files:
            for split in filter(self.may_be_in, scan.splits):
                yield scan, split, split.records[self.fitting(split)]

    def may_be_in(self, split: Split) -> bool:
        """Whether a split can hold a wanted message, judging without its rows."""
        first, stop = self.wanted.span
        return bool(split.size) and not split.lacks(self._queues) and split.first < stop and split.last >= first

    def fitting(self, split: Split) -> Rows:
        """Which rows may hold wanted messages (bool array)."""
        rows, wanted = split.records, self.wanted
        first, stop = wanted.span
        bits, offsets, times = rows["bits"], rows["phy_offset"], rows["store_timestamp"]
        mask: Rows = self._queues[rows["queue"]] & ((bits & STAND_IN) == 0)
        mask &= (offsets >= first) & (offsets < stop)
        mask &= (times >= wanted.since) & (times < wanted.until)
        first, stop = wanted.queue_offsets
        # a batch goes on after its queue offset
        mask &= ((rows["queue_offset"] >= first) & (rows["queue_offset"] < stop)) | ((bits & BIT_INNER_BATCH) != 0)
        for bit, kind in ((BIT_STALE, "stale"), (BIT_SUPERSEDED, "superseded")):
            if kind not in wanted.include:
                mask &= (bits & bit) == 0
        if self.earlier and "copies" not in wanted.include and mask.any():
            mask &= self.copies(rows) == 0
        if self._hashes is not None and mask.any():
            owners = np.repeat(np.arange(rows.size), rows["hashes"].astype(np.int64))
            # the rows of rollbacks have no hashes, as the index has none of them
            hit = (rows["sys_flag"] & TRANSACTION_ROLLBACK) == TRANSACTION_ROLLBACK
            hit |= (rows["sys_flag"] & BATCH == BATCH) & wanted.unfold  # nor has it those of messages in a batch
            hit[owners[np.isin(split.hashes, self._hashes)]] = True
            mask &= hit
        return mask

    def copies(self, rows: Rows) -> Rows:
        """How many earlier sources have each record, too (int64)."""
        found = np.zeros(rows.size, dtype=np.int64)
        own = identities(rows, self._marks) if self.earlier else found
        for known in self.earlier:
            at = np.searchsorted(known, own)
            found += np.append(known, np.uint64(0))[at] == own
        return found

    def messages(
        self, content: bytes, row: np.void, mapped_file: MappedFile, note: Callable[[str], None],
    ) -> Iterator[Selected]:
        """Yield the wanted messages of one record."""
        bits, phy_offset = int(row["bits"]), int(row["phy_offset"])
        try:
            record = decode(content, check_crc=False)
        except FormatError as error:
            note(Phrase("the record at {at} changed while it was read: {error}", at=phy_offset, error=str(error)))
            return
        state = "stale" if bits & BIT_STALE else "superseded" if bits & BIT_SUPERSEDED else "live"
        message = message_of(record, state, raw_body=self.wanted.raw_body)
        message.doubtful = self.doubted.get(phy_offset, [])
        message.place = place_text(mapped_file.path, phy_offset - mapped_file.file_from_offset)
        message.copy = int(self.copies(row.reshape(1))[0]) if self.earlier else 0
        found = [message]
        if self.wanted.unfold and record.sys_flag & BATCH:
            with suppress(FormatError, ImportError):  # the message says itself why its body is as stored
                found = [*unfolded(message, decompress(record.body, record.sys_flag))]
        if "system" in self.wanted.include or not (is_system(message.topic) or message.kind == "reply"):
            yield from (Selected(item, content) for item in found if self.fits(item, message))

    def fits(self, message: Message, whole: Message) -> bool:
        """Whether a message passes the filters; it may be part of a batch, `whole`. An illegible field passes no
        filter."""
        wanted, keys = self.wanted, message.keys or whole.keys
        first, stop = wanted.queue_offsets
        spans = ((message.queue_offset, (first - _following(message), stop)), (message.phy_offset, wanted.phy_offsets),
                 (message.store_time, (wanted.since, wanted.until)))
        return (
            any(self._topic.match(topic or "") for topic in (message.topic, message.stored_topic))
            and wanted.queue in (None, message.queue, message.stored_queue)
            and all(span == (0, FOREVER) or (value is not None and span[0] <= value < span[1]) for value, span in spans)
            and wanted.key in (None, whole.unique_key, message.unique_key, *(keys.split(" ") if keys else ()))
            and wanted.tag in (None, message.tags)
            and (wanted.msg_id in (None, message.unique_key, whole.msg_id) or wanted.msg_id.upper() == whole.msg_id)
            and all((message.properties or {}).get(name) == value for name, value in wanted.properties)
        )


def _following(message: Message) -> int:
    """How many messages of a batch that is stored as one record follow the first one."""
    number = (message.properties or {}).get(props.INNER_NUM, "")
    is_batch = (message.sys_flag or 0) & INNER_BATCH and is_number(number, props.QUEUE_ID_DIGITS)
    return max(0, int(number) - 1) if is_batch else 0


def identities(rows: Rows, marks: Rows) -> Rows:
    """Return a hash (uint64) of each record: its place in log and queue, size and times, by which copies of it are
    known. `marks`: those of its log's queues."""
    return np.asarray(place_hashes(0, rows["phy_offset"], rows["size"], rows["queue_offset"], rows["store_timestamp"],
                                   marks[rows["queue"]]))


def marks_of(queues: Sequence[tuple[bytes, int]]) -> Rows:
    """Return a hash (int64) of each topic and queue id, the same in every log."""
    return np.array([int.from_bytes(hashlib.blake2b(b"%d %s" % (number, topic), digest_size=8).digest(), signed=True)
                     for topic, number in queues], dtype=np.int64)


def contents(mapped_file: MappedFile, rows: Rows, note: Callable[[str], None]) -> Iterator[tuple[Rows, bytes]]:
    """Yield each row with the bytes of its record, read in windows."""
    if not rows.size:
        return
    base = mapped_file.file_from_offset
    try:
        reader = open_file(mapped_file.path)
    except OSError as error:
        note(Phrase("{path} could not be opened: {error}", path=mapped_file.path, error=error.strerror))
        return
    with reader:
        at, window = 0, b""
        for row, start, size in zip(rows, (rows["phy_offset"] - base).tolist(), rows["size"].tolist(), strict=True):
            if start < at or start + size > at + len(window):
                at = start
                try:
                    window = bytes(reader.read(at, max(WINDOW, size)))
                except ReadFailure as error:
                    window = b""
                    note(Phrase("{path} could not be read at {start}: {error}", path=mapped_file.path, start=start,
                                error=error.strerror))
                    continue
            yield row, window[start - at : start - at + size]


# --- Messages as the answer to a query, found by a scan of the whole log without index or queues.


def scan_for(
    scanned: Scanned, wanted: Wanted, *, topic: str | None = None, queue: int | None = None, only_stale: bool = False,
    limit: int = 0, lists: str | None = None,
) -> Answer:
    """Return every wanted intact message of a scanned store that is stored under `topic` and `queue`, in log order; at
    most `limit`.

    With `lists` (a topic) all are counted, and messages for that topic that are stored under another one are included.
    A key is also searched in the messages of a batch, which is found once.
    """
    wanted = structs.replace(wanted, unfold=wanted.key is not None)
    answer = Answer("scan" if lists is None else "list")
    for line in scanned.unread:
        answer.incomplete(line)
    answer.damaged_ranges = len(scanned.log.damaged)
    if answer.damaged_ranges:
        answer.notes.append(Phrase("{n:damaged range} of the log may have held more", n=answer.damaged_ranges))
    elsewhere = 0
    last: bytes | None = None
    for message, content in selected(scanned, wanted, answer.incomplete):
        if content is last:
            continue
        last = content
        if topic not in (None, message.stored_topic) or queue not in (None, message.stored_queue):
            continue
        if only_stale and message.state != "stale":
            continue
        elsewhere += message.stored_topic != lists
        if not limit or len(answer.messages) < limit:
            record = decode(content, check_crc=False)
            answer.messages.append(Found(record, message.state == "stale", message.state == "superseded"))
            if message.sys_flag != record.sys_flag:
                answer.notes.append(Phrase("the message is in the batch at {at}; `mqtool export --unfold` splits it",
                                           at=record.phy_offset))
            continue
        answer.more = True
        if lists is None:
            break
        answer.left_out += 1
    if elsewhere and lists is not None:
        answer.notes.append(Phrase("{n} of them are stored under other topics: delayed, half, retry or dead-letter "
                                   "messages", n=elsewhere))
    return answer


def list_messages(scanned: Scanned, topic: str, wanted: Wanted, limit: int) -> Answer:
    """Return the live messages of `topic` that pass the filters, in log order."""
    wanted = structs.replace(wanted, topics=(glob.escape(topic),), include=frozenset({"system"}))
    return scan_for(scanned, wanted, lists=topic, limit=limit)
