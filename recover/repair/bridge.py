"""Bridges over damage: records that brokers pass over, exactly as long as the damaged range.

A marker is an ordinary record with the topic, queue and queue offset of a lost message, a body of zeros and the
property MQTOOL_LOST, so that a broker that rebuilds its queues keeps every later queue offset.
Filler has transaction type 12, which no dispatcher of a broker takes. docs/bridge.md has the trials on real brokers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct, structs

from formats import sysflag
from formats.record import (
    BLANK_SIZE,
    MIN_RECORD_SIZE,
    PROPERTY_CRC_SIZE,
    SERVICE_TOPICS,
    Record,
    encode,
    encode_blank,
    grammar,
    make_record,
)
from formats.record.rows import BIT_PROP_CRC, FILLER_TOPIC, MARKER_PROPERTY
from recover.change.content import BytesContent, Content, LazyContent
from recover.findings.code import Refusal
from recover.findings.model import Phrase
from recover.reading.lost import LostPosition, Neighbour
from recover.store.config_files import LMQ_PREFIX

PIECE = 4 << 20
"""Longest filler record, bytes: a broker allocates a record's size when it checks it."""

_MARKER_BODY = 1
"""Marker body length: push consumers of 4.x fail on a message without a body and drop the whole response it came in
(ProcessQueue.putMessage)."""


class BridgeRange(Struct, frozen=True):
    """A range [start, stop) of one mapped file to be bridged; `to_file_end` when it ends with the file.

    `timestamp` (ms) is that of the intact record before, else after; `property_crc` when either carries one.
    """

    start: int
    stop: int
    to_file_end: bool
    timestamp: int
    property_crc: bool


def range_between(
    start: int, stop: int, beside: tuple[Neighbour | None, Neighbour | None], *, to_file_end: bool
) -> BridgeRange:
    """The range [start, stop) with time and property CRC of the intact records before and after; either may be
    missing."""
    there = [neighbour for neighbour in beside if neighbour is not None]
    timestamp = there[0].store_timestamp if there else 1
    return BridgeRange(start, stop, to_file_end, timestamp, any(item.bits & BIT_PROP_CRC for item in there))


class Bridge:
    """The bridge over a range: a marker for each lost position that fits, filler for the rest, a blank at a file's end.

    `content`, `markers`, `filler` after them, and the position of the `blank`. `content` can be shorter than the range:
    bytes after a blank do not matter. For a wide range it is produced on demand. `Refusal` (8) for a range between two
    records that is too narrow for any record.
    """

    def __init__(self, where: BridgeRange, lost: Iterable[LostPosition]) -> None:
        room = where.stop - where.start - (BLANK_SIZE if where.to_file_end else 0)
        stood_for, markers = [], []
        position = where.start
        for lost_position in lost:
            # LMQ queues are filled by the records of other topics; a broker that dispatched a damaged topic left a
            # queue of which no record can be
            topic = lost_position.key.topic
            if not topic.startswith(LMQ_PREFIX) and grammar.valid_topic(topic.encode("utf-8", "surrogatepass")):
                record = _marker(where, lost_position, position)
                if position + record.total_size <= where.start + room:
                    stood_for.append(lost_position)
                    markers.append(record)
                    position += record.total_size
        rest = where.start + room - position
        filler: list[Record] = []
        if where.to_file_end:
            if not markers and rest >= _least_filler(where):
                # one filler record shows later scans that something stood here
                filler = [_filler(where, position, _least_filler(where))]
                position += filler[0].total_size
        elif rest:
            filler = _filler_pieces(where, position, rest)
            if not filler and markers:
                markers[-1] = _marker(where, stood_for[-1], markers[-1].phy_offset, stretch=rest)
            elif not filler:
                raise Refusal(Phrase("{rest:byte} at {start} between two intact records are not enough for a bridge",
                                     rest=rest, start=where.start),
                              "Inspect both records with mqtool inspect on their file; mqtool truncate would cut the "
                              "log there.", start=where.start)
            position = where.stop
        self.blank = position if where.to_file_end else None
        end_mark = b"" if self.blank is None else encode_blank(where.stop - self.blank)
        self.markers, self.filler, self.records = tuple(markers), tuple(filler), (*markers, *filler)
        content = _Records(where.start, self.records, end_mark)
        self.content: Content = content if content.size > PIECE else BytesContent(b"".join(content.chunks()))


class _Records(LazyContent):
    """The records of a bridge that starts at `start`, and its end mark, encoded as they are read."""

    def __init__(self, start: int, records: Sequence[Record], end_mark: bytes) -> None:
        self._records, self._end_mark = records, end_mark
        self._starts = [record.phy_offset - start for record in records]
        end = self._starts[-1] + records[-1].total_size if records else 0
        super().__init__(end + len(end_mark), lambda: self._made(0))

    def _made(self, first: int) -> Iterator[bytes]:
        yield from map(encode, self._records[first:])
        yield self._end_mark

    def part(self, start: int, stop: int) -> bytes:
        first = max(0, bisect_right(self._starts, start) - 1)
        at = self._starts[first] if self._starts else 0
        found = bytearray()
        for chunk in self._made(first):
            found += chunk[max(0, start - at) : max(0, stop - at)]
            at += len(chunk)
            if at >= stop:
                break
        return bytes(found)


def _marker(where: BridgeRange, lost: LostPosition, position: int, stretch: int = 0) -> Record:
    kind = SERVICE_TOPICS.get(lost.key.topic)
    properties = {MARKER_PROPERTY: "1"}
    if kind in ("delayed", "half", "timer"):
        # without them, 4.9 stops delivering a delay level here for ever, and the timer rereads its unit again and again
        properties |= {"REAL_TOPIC": FILLER_TOPIC, "REAL_QID": "0"}
    if kind == "delayed":
        properties["DELAY"] = str(lost.key.queue_id + 1)
    elif kind == "timer":
        properties["TIMER_OUT_MS"] = str(where.timestamp)
    return make_record(
        lost.key.topic, bytes(_MARKER_BODY + stretch), properties, store_timestamp=where.timestamp,
        queue_id=lost.key.queue_id, queue_offset=lost.queue_offset, phy_offset=position,
        property_crc=where.property_crc,
    )


def _least_filler(where: BridgeRange) -> int:
    return MIN_RECORD_SIZE + 1 + (PROPERTY_CRC_SIZE if where.property_crc else 0)


def _filler_pieces(where: BridgeRange, position: int, length: int) -> list[Record]:
    """Filler of exactly `length` bytes; empty if that is too short for one record."""
    least = _least_filler(where)
    if length < least:
        where = structs.replace(where, property_crc=False)
        least = _least_filler(where)
    pieces: list[Record] = []
    while length >= least:
        size = min(length, PIECE)
        if 0 < length - size < least:
            size -= least
        pieces.append(_filler(where, position, size))
        position, length = position + size, length - size
    return pieces


def _filler(where: BridgeRange, position: int, size: int) -> Record:
    topic_room = size - MIN_RECORD_SIZE - (PROPERTY_CRC_SIZE if where.property_crc else 0)
    topic = FILLER_TOPIC[:topic_room]
    return make_record(
        topic, _zeros(topic_room - len(topic)), store_timestamp=where.timestamp, phy_offset=position,
        sys_flag=sysflag.TRANSACTION_ROLLBACK, property_crc=where.property_crc,
    )


@lru_cache(maxsize=2)
def _zeros(size: int) -> bytes:
    """The body of all filler of a size, shared: separate ones for 256 MiB of damage would take that much memory."""
    return bytes(size)
