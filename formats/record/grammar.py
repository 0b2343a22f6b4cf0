"""The record grammar: the definition of an intact record, one rule a row, and the reader based on it.

All code that judges a record reads `RULES`. Their order is an interface: the first rule that fails determines reason
and offset of a damage (`check_strict`). `inspect` shows each rule on its own (`results`), the compiled walk loops over
the ranges (`range_table`), a repair tries the values that rules allow (`Rule.repairs`) and bits that checksums name
(`Checksum`), a broker applies the rules of its release (`Rule.broker`), docs/format.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from formats import properties as props, sysflag
from formats.basics import LEGAL_TOPIC, Buffer, FormatError, crc31
from formats.record.layout import (
    BLANK,
    BLANK_SIZE,
    HEAD,
    HEAD_SIZE,
    HEADS,
    I32_STRUCT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAGICS,
    MIN_RECORD_SIZE,
    OFFSET_PHY_OFFSET,
    OFFSET_SYS_FLAG,
    PROPERTIES_LENGTH,
    PROPERTY_CRC_SIZE,
    TOPIC_LENGTHS,
    Head,
)
from formats.record.message import (
    DLQ_PREFIX,
    PROPERTY_CRC_START,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SERVICE_TOPICS,
    SYSTEM_PREFIX,
    Record,
    crc_digits,
    delay_level,
    inner_batch,
)

CrcOf = Callable[[int, int], int]
"""Returns the CRC, top bit cleared, of the bytes [start, stop) of a record."""


class Candidate:
    """Bytes that may be a record, parsed as far as their lengths allow; no length is used before it is checked.

    They begin at `offset` of the buffer. Without a `limit` (the end of the mapped file, in the same coordinate as
    `offset`) the buffer is all there is, and no blank has to fit after the record. `phy_offset` is their place in the
    log, if known. `available`: number of bytes, if there are more than the buffer holds. The first `left_out` bytes of
    the body may be missing in the buffer; `crc` covers them nevertheless.
    """

    def __init__(
        self, buffer: Buffer, offset: int, limit: int | None, phy_offset: int | None = None, *,
        available: int | None = None, left_out: int = 0, crc: CrcOf | None = None,
    ) -> None:
        self.buffer = buffer
        self.offset = offset
        self.phy_offset = phy_offset
        self.left_out = left_out
        self.room = None if limit is None else limit - offset
        self.held = max(0, len(buffer) - offset) if offset >= 0 else 0
        at_hand = self.held if available is None else available
        self.available = max(0, at_hand if self.room is None else min(self.room, at_hand))
        self.crc = crc or self._crc
        known = min(self.available, self.held) >= BLANK_SIZE
        self.size, self.magic = BLANK.struct.unpack_from(buffer, offset) if known else (0, 0)
        self.layout = HEAD
        self.head: Head | None = None
        self.record: Record | None = None
        self.places: dict[str, tuple[int, int]] = {}
        """Start and stop, in bytes from the record's start, of each part after the head that the lengths reach."""
        self.lengths = Result(None)
        if self.magic in TOPIC_LENGTHS and min(self.available, self.held) >= HEAD_SIZE:
            self._parse()

    def _crc(self, start: int, stop: int) -> int:
        return crc31(memoryview(self.buffer)[self.offset + start : self.offset + stop])

    def at(self, start: int, stop: int) -> bytes:
        """Return bytes of the record after its body, or of the part of the body in the buffer."""
        first = self.offset + start - self.left_out
        return bytes(self.buffer[max(first, self.offset + self.layout.size) : first + stop - start])

    def _parse(self) -> None:
        (sys_flag,) = I32_STRUCT.unpack_from(self.buffer, self.offset + OFFSET_SYS_FLAG)
        layout = self.layout = HEADS[sys_flag & sysflag.HOSTS_V6]
        end = self.size if MIN_RECORD_SIZE <= self.size <= self.available else self.available
        end = min(end, self.held + self.left_out)
        if self.held >= layout.size:
            self.head = Head(*layout.struct.unpack_from(self.buffer, self.offset))
        if self.head is None or layout.size > end:
            self.lengths = self._sum(layout.size)
            return
        stop = layout.size + self.head.body_length
        if self.head.body_length < 0:
            at = layout.offset("body_length")
            self.lengths = _failed(f"body length {self.head.body_length}", at, "bad-body-length",
                                   length=self.head.body_length)
            return
        if stop <= end:
            self.places["body"] = layout.size, stop
        for name, prefix in (("topic", TOPIC_LENGTHS[self.magic]), ("properties", PROPERTIES_LENGTH.struct)):
            start = stop + prefix.size
            least = start + (PROPERTIES_LENGTH.size if name == "topic" else 0)
            if least > end:
                self.lengths = self._sum(least)
                return
            (length,) = prefix.unpack_from(self.buffer, self.offset + stop - self.left_out)
            if length < 0:
                self.lengths = _failed(f"{name} length {length}", stop - self.left_out, f"bad-{name}", length=length)
                return
            self.places[f"{name}_length"] = stop, start
            stop = start + length
            if stop > end:
                self.lengths = self._sum(stop + (PROPERTIES_LENGTH.size if name == "topic" else 0))
                return
            self.places[name] = start, stop
        self.lengths = self._sum(stop)
        head = self.head
        self.record = Record(
            self.size, self.magic, head.body_crc, head.queue_id, head.flag, head.queue_offset, head.phy_offset,
            sys_flag, head.born_timestamp, (head.born_ip, head.born_port), head.store_timestamp,
            (head.store_ip, head.store_port), head.reconsume_times, head.prepared_transaction_offset,
            *(self.at(*self.places[name]) for name in ("body", "topic", "properties")),
        )

    def _sum(self, counted: int) -> Result:
        detail = f"size {self.size}, fields take {counted}"
        return Result(counted == self.size, detail, facts={"size": self.size, "counted": counted})


class Result(NamedTuple):
    """The result of a rule: `ok` is None if it does not apply; a failure is `at` bytes from the record's start.

    `reason` overrides that of the rule, for rules with several.
    """

    ok: bool | None
    detail: str = ""
    at: int = 0
    reason: str = ""
    facts: Mapping[str, Any] = MappingProxyType({})


def _failed(detail: str, at: int, reason: str = "", **facts: Any) -> Result:
    return Result(False, detail, at, reason, facts)


class Checksum(NamedTuple):
    """A checksum of one record: it covers the bytes [start, stop) and is stored at `at`.

    `encode` returns the stored bytes for a CRC (31 bits), `decode` the CRC, None for invalid bytes.
    """

    start: int
    stop: int
    at: int
    encode: Callable[[int], bytes]
    decode: Callable[[bytes], int | None]


BODY_CRC, PROPERTY_CRC, INNER_BATCH = "body CRC", "property CRC", f"{props.INNER_BASE}, {props.INNER_NUM}"
"""Names of rules."""
FRAME, FIELD, CHECKSUM, SERVICE = "frame", "field", "checksum", "service"
"""Kinds of rules: size and lengths, a value, a checksum, or what clients and services need to read a message."""
ALWAYS, NEVER = "always", "never"
EVERYTHING = "all before it"


class Rule(Struct, frozen=True):
    """One rule. `where`: a field of the head or a part of the record. It has `values` (data), or a `test`.

    A violated SERVICE rule is not damage: the message is intact, but cannot be delivered. `broker`: ALWAYS, NEVER, or
    the behaviour (recover/broker/versions.py) with which a broker checks it. `covers`: the parts that a checksum
    covers; `checksum` locates it in a record.
    """

    name: str
    reason: str
    where: str
    must: str
    kind: str = FIELD
    broker: str = NEVER
    values: Collection[int] | None = None
    test: Callable[[Candidate], Result | None] | None = None
    covers: str = ""
    checksum: Callable[[Record], Checksum | None] | None = None

    def judge(self, candidate: Candidate) -> Result | None:
        """Return the rule's result; None if the rule has nothing to check."""
        if self.test is not None:
            return self.test(candidate)
        if self.values is None or candidate.head is None:
            return None
        value = getattr(candidate.head, self.where)
        ok = value in self.values
        return Result(ok, f"{value}, {self.bounds}", candidate.layout.offset(self.where), facts={"value": value})

    @property
    def bounds(self) -> str:
        """The allowed values in words."""
        if not isinstance(self.values, range):
            return self.must
        least, most = self.values.start, self.values.stop - 1
        largest = (1 << (8 * HEAD.field(self.where).size - 1)) - 1
        return f"at least {least}" if most == largest else f"{least} to {most}"

    def repairs(self) -> Iterator[bytes]:
        """Yield the possible leading bytes of the field in an intact record, if few: candidates for a repair."""
        if self.values is None:
            return
        size = HEAD.field(self.where).size
        if not isinstance(self.values, range):
            yield from (value.to_bytes(size, "big", signed=True) for value in self.values)
        elif unused := size - -(-(self.values.stop - 1).bit_length() // 8):
            yield bytes(unused)


# --- Rules that are functions.


def _room(it: Candidate) -> Result | None:
    if it.available < BLANK_SIZE:
        return _failed(f"only {it.available} bytes left, a record takes at least {MIN_RECORD_SIZE}", 0, "short",
                       needed=BLANK_SIZE, available=it.available)
    return None


def magic_text(magic: int) -> str:
    """Describe a magic; text in its place is shown, since it tells where the reader is."""
    names = {MAGIC_V1: "V1", MAGIC_V2: "V2", MAGIC_BLANK: "blank"}
    word = f"{magic & 0xFFFFFFFF:08X}"
    if magic in names:
        return f"{word} ({names[magic]})"
    text = (magic & 0xFFFFFFFF).to_bytes(4, "big")
    if all(0x20 <= byte < 0x7F for byte in text):
        return f'{word} is the text "{text.decode("ascii")}": these bytes are the inside of a message'
    return f"{word} is not a magic"


def _magic(it: Candidate) -> Result | None:
    if it.available < BLANK_SIZE:
        return None
    if it.magic in TOPIC_LENGTHS:
        return Result(True, magic_text(it.magic))
    fact, reason = ("size", "blank") if it.magic == MAGIC_BLANK else ("magic", "bad-magic")
    return Result(False, magic_text(it.magic), HEAD.offset("magic"), reason, {fact: getattr(it, fact)})


def _size(it: Candidate) -> Result | None:
    if it.available < BLANK_SIZE:
        return None
    if it.room is None:
        detail, most = f"{it.size}, at least {MIN_RECORD_SIZE}", it.size
    else:
        most = it.room - BLANK_SIZE
        detail = f"{it.size}, at least {MIN_RECORD_SIZE}; of {it.room} bytes that are left a blank takes {BLANK_SIZE}"
    facts = {"size": it.size, "minimum": MIN_RECORD_SIZE} if it.size < MIN_RECORD_SIZE else (
        {"size": it.size, "room": it.room})
    return Result(MIN_RECORD_SIZE <= it.size <= most, detail, facts=facts)


def _at_hand(needed: Callable[[int], int], what: str) -> Callable[[Candidate], Result | None]:
    def test(it: Candidate) -> Result | None:
        least = needed(it.size)
        if it.magic not in TOPIC_LENGTHS or it.available >= least:
            return None
        return _failed(f"{what} of {least} bytes, {it.available} available", 0, needed=least, available=it.available)

    return test


def _own_offset(it: Candidate) -> Result | None:
    if it.phy_offset is None or it.available < HEAD_SIZE:
        return None
    own = HEAD.decode(it.buffer, it.offset).phy_offset
    return Result(own == it.phy_offset, f"{own} stored, the record is at {it.phy_offset}", OFFSET_PHY_OFFSET,
                  facts={"stored": own, "expected": it.phy_offset})


def _lengths(it: Candidate) -> Result | None:
    return it.lengths if it.lengths.ok is not None else None


# Names that the broker itself builds from a group, a topic (joined by "+" in the second kind of pop retry topic) or a
# cluster name, none of which is validated.
_BROKER_MADE_TOPIC = re.compile(
    rb"(?:%s|%s|%s)[!-~]+|[!-~]+%s"
    % tuple(re.escape(part.encode()) for part in (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX, REPLY_SUFFIX))
)


def valid_topic(topic: bytes) -> bool:
    """Whether a broker can have stored a message under this name (`TopicValidator`, or its own names)."""
    return LEGAL_TOPIC.fullmatch(topic) is not None or _BROKER_MADE_TOPIC.fullmatch(topic) is not None


def _topic(it: Candidate) -> Result | None:
    if "topic" not in it.places:
        return None
    start, stop = it.places["topic"]
    topic = it.at(start, stop)
    return Result(True) if valid_topic(topic) else _failed(f"not a topic name: {topic[:128]!r}", start, topic=topic)


def _properties(it: Candidate) -> Result | None:
    if it.record is None:
        return None
    problem = props.structure_problem(it.record.properties)
    return Result(True) if problem is None else _failed(problem, it.places["properties"][0], problem=problem)


def _number(name: str, read: Callable[[Record], object]) -> Callable[[Candidate], Result | None]:
    def test(it: Candidate) -> Result | None:
        if it.record is None:
            return None
        try:
            value = read(it.record)
        except ValueError as error:
            return _failed(str(error), it.places["properties"][0], problem=f"{name.rpartition(' ')[2]} is not a number")
        return None if value is None else Result(True, str(value))

    return test


def _batch_of(record: Record) -> tuple[int, int] | None:
    return inner_batch(record.property_map()) if props.INNER_NUM.encode() in record.properties else None


def _checksum_of(start: int, stop: int) -> Checksum | None:
    """Return the checksum of the body in [start, stop); None for an empty one: 0 is stored for null, and brokers skip
    it."""
    if start == stop:
        return None
    return Checksum(start, stop, HEAD.offset("body_crc"), I32_STRUCT.pack, lambda stored: int.from_bytes(stored, "big"))


def _body_checksum(record: Record) -> Checksum | None:
    start = HEADS[record.sys_flag & sysflag.HOSTS_V6].size
    return _checksum_of(start, start + len(record.body))


def _body_crc(it: Candidate) -> Result | None:
    if it.head is None or "body" not in it.places:
        return None
    checksum = _checksum_of(*it.places["body"])
    if checksum is None:
        return Result(None, "empty body: not checked")
    stored, computed = it.head.body_crc, it.crc(checksum.start, checksum.stop)
    return Result(stored == computed, f"stored {stored & 0xFFFFFFFF:08X}, computed {computed:08X}",
                  checksum.at, facts={"stored": stored, "computed": computed})


def _property_checksum(record: Record) -> Checksum | None:
    if record.property_crc is None:
        return None
    covered = record.total_size - PROPERTY_CRC_SIZE
    # the byte after the digits belongs to it, as no checksum covers that byte
    return Checksum(0, covered, covered + len(PROPERTY_CRC_START), lambda crc: crc_digits(crc) + props.PROPERTY_BYTE,
                    lambda stored: int(stored[-2::-1]) if stored[:-1].isdigit() else None)


def _property_crc(it: Candidate) -> Result | None:
    if it.record is None:
        return None
    if (digits := it.record.property_crc) is None:
        return Result(None, "none stored (written from 5.2.0 on, if switched on)")
    covered = it.places["properties"][1] - PROPERTY_CRC_SIZE
    computed = crc_digits(it.crc(0, covered))
    stored = digits.decode("latin-1")
    return Result(digits == computed, f"stored {stored}, computed {computed.decode()}", covered - it.left_out,
                  facts={"stored": stored, "computed": computed.decode()})


def _known_flags(it: Candidate) -> Result | None:
    if it.head is None or not it.head.sys_flag & ~sysflag.KNOWN:
        return None
    return Result(None, f"{it.head.sys_flag:#x} has bits that no known release sets")


def _body_as_flagged(it: Candidate) -> Result | None:
    record = it.record
    if record is None or not record.sys_flag & (sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE):
        return None
    # if a property CRC covers the flag, it was stored like this
    right = None if record.property_crc is not None else not sysflag.contradicted_by(record.sys_flag, record.body)
    return Result(right, f"sysFlag {record.sys_flag:#x}, body begins {record.body[:4].hex(' ')}")


# Messages that brokers keep for later delivery: the properties needed for it.
#
# Brokers write these properties themselves and rely on them when the time comes. If one is invalid, 4.9 stops
# delivering that delay level there, and the timer of 5.x processes nothing more (seen on 4.9.7, 5.3.3, 5.5.0); others
# drop the message.

_TOPIC_AND_QUEUE: dict[str, Callable[[str], bool]] = {
    props.REAL_TOPIC: lambda text: valid_topic(text.encode("utf-8", "surrogatepass")),
    props.REAL_QID: lambda text: props.is_number(text, props.QUEUE_ID_DIGITS),
}
_OF_KIND = {
    "delayed": _TOPIC_AND_QUEUE,
    "half": _TOPIC_AND_QUEUE,
    "timer": {**_TOPIC_AND_QUEUE, props.TIMER_OUT_MS: lambda text: props.is_number(text, props.TIME_DIGITS)},
}
NEEDED = {topic: _OF_KIND[kind] for topic, kind in SERVICE_TOPICS.items() if kind in _OF_KIND}
"""By topic, the properties that its service reads, and whether a value is one that brokers write."""


def unserved(record: Record) -> list[str]:
    """Return the properties because of which a broker's service could not deliver the message, in the order of NEEDED.

    Empty if none of them is valid, as no broker's service stored that, or if a property CRC proves that it was stored
    so.
    """
    wrong = [] if record.property_crc is not None else _wrong(record)
    return wrong if len(wrong) < len(NEEDED.get(record.topic_name, {})) else []


def is_served(record: Record) -> bool:
    """Whether a broker's service can deliver the message. False for messages of other topics."""
    return record.topic_name in NEEDED and not _wrong(record)


def _wrong(record: Record) -> list[str]:
    needed = NEEDED.get(record.topic_name)
    if needed is None:
        return []
    values = record.property_map()
    return [name for name, is_right in needed.items() if name not in values or not is_right(values[name])]


def _deliverable(it: Candidate) -> Result | None:
    if it.record is None or it.record.topic_name not in NEEDED:
        return None
    wrong = unserved(it.record)
    return Result(not wrong, ", ".join(wrong or NEEDED[it.record.topic_name]))


# --- The rules, in the order of the verdict: cheap ones come before checksums.


_NUMBERS = range(1 << 63)
_INTS = range(1 << 31)
_PORTS = range(1 << 16)

RULES: tuple[Rule, ...] = (
    Rule("room", "short", "total_size", "size and magic are present", FRAME, ALWAYS, test=_room),
    Rule("magic", "bad-magic", "magic", "DAA320A7, or from 5.1.0 DAA320AB", FRAME, ALWAYS,
         values=MAGICS, test=_magic),
    Rule("size", "bad-size", "total_size", f"{MIN_RECORD_SIZE} or more; a blank of {BLANK_SIZE} bytes fits after it",
         FRAME, "room-checked", test=_size),
    Rule("head", "short", "total_size", "the head is complete", FRAME, ALWAYS,
         test=_at_hand(lambda size: min(size, HEAD_SIZE), "the head")),
    Rule("own offset", "bad-phy-offset", "phy_offset", "the position of the record", test=_own_offset),
    Rule("whole", "short", "total_size", "the record is complete", FRAME, ALWAYS,
         test=_at_hand(lambda size: size, "a record")),
    Rule("length sum", "bad-length-sum", "total_size",
         "the sum of head, body, topic and properties; no length is negative", FRAME, ALWAYS, test=_lengths),
    Rule("queue id", "bad-queue-id", "queue_id", "not negative", values=_INTS),
    Rule("queue offset", "bad-queue-offset", "queue_offset", "not negative", values=_NUMBERS),
    # other values make clients throw and drop the other messages of the response (MessageDecoder.decode)
    Rule("born port", "bad-born-port", "born_port", "a port", values=_PORTS),
    Rule("store port", "bad-store-port", "store_port", "a port", values=_PORTS),
    Rule("sys flag", "", "sys_flag", "any value; bits that no release sets are noted", test=_known_flags),
    Rule("topic", "bad-topic", "topic", "a name that TopicValidator accepts or a broker creates",
         test=_topic),
    Rule("properties", "bad-properties", "properties", "empty, or with a name and no zero bytes", test=_properties),
    Rule(props.DELAY, "bad-properties", "properties", "a Java int, in delayed messages", broker=ALWAYS,
         test=_number(props.DELAY, delay_level)),
    Rule(INNER_BATCH, "bad-properties", "properties", "a Java long and a short",
         broker="inner-batches", test=_number(INNER_BATCH, _batch_of)),
    Rule(BODY_CRC, "bad-body-crc", "body_crc", "the CRC-32 of the body; not checked if the body is empty", CHECKSUM,
         ALWAYS, test=_body_crc, covers="body", checksum=_body_checksum),
    Rule(PROPERTY_CRC, "bad-property-crc", "property_crc", "the CRC-32 of all bytes before it; optional", CHECKSUM,
         "property-crc", test=_property_crc, covers=EVERYTHING, checksum=_property_checksum),
    Rule("body as flagged", "", "sys_flag", "the compression of the body", SERVICE, test=_body_as_flagged),
    Rule("can be delivered", "", "properties", "valid for the service that delivers delayed, timed and half messages",
         SERVICE, test=_deliverable),
)


# --- Functions derived from the rules.


def results(candidate: Candidate) -> Iterator[tuple[Rule, Result]]:
    """Yield the result of each rule on its own, in order; rules with nothing to check are left out."""
    for rule in RULES:
        found = rule.judge(candidate)
        if found is not None:
            yield rule, found


def _verdict(candidate: Candidate, *kinds: str) -> Record:
    for rule in RULES:
        if rule.kind in kinds:
            found = rule.judge(candidate)
            if found is not None and found.ok is False:
                offset = candidate.offset + found.at
                raise FormatError(found.reason or rule.reason, offset, f"{rule.name}: {found.detail}", **found.facts)
    if candidate.record is None:  # fewer bytes than announced: the file was shortened meanwhile
        raise FormatError("short", candidate.offset, f"a record of {candidate.size} bytes, {candidate.held} available",
                          needed=candidate.size, available=candidate.held)
    return candidate.record


def decode(buffer: Buffer, offset: int = 0, *, check_crc: bool = True) -> Record:
    """Return the record at `offset`, checked by the rules of FRAME and, with `check_crc`, of CHECKSUM.

    Raises FormatError: `short` (the buffer ends first), `blank` (there is a blank), `bad-magic`, `bad-size`,
    `bad-length-sum`, `bad-body-length`, `bad-topic` or `bad-properties` (a negative length), `bad-body-crc`,
    `bad-property-crc`.
    """
    return _verdict(Candidate(buffer, offset, None), FRAME, *([CHECKSUM] if check_crc else []))


def check_strict(buffer: Buffer, offset: int, limit: int, phy_offset: int) -> Record:
    """Return the record at `offset` if every field is what a broker writes there.

    `phy_offset` is the position of `offset` in the log, `limit` the end of the mapped file in the coordinate of
    `offset`: a blank must still fit after the record. The buffer may end before `limit`; a record that it does not hold
    completely is `short`, unless its head already shows damage. The first rule that fails gives the reason of the
    FormatError.
    """
    return _verdict(Candidate(buffer, offset, limit, phy_offset), FRAME, FIELD, CHECKSUM)


def check_ends(buffer: Buffer, size: int, left_out: int, crc: CrcOf | None) -> Record:
    """Return a record of `size` bytes that is complete in the log, but lacks the first `left_out` bytes of its body
    here.

    `crc` sums them up; without it only the rules of FRAME apply. Raises what `check_strict` raises.
    """
    kinds = (FRAME,) if crc is None else (FRAME, FIELD, CHECKSUM)
    return _verdict(Candidate(buffer, 0, None, available=size, left_out=left_out, crc=crc), *kinds)


def checksums(record: Record) -> list[Checksum]:
    """Return the checksums that this record has, the innermost first."""
    found = [rule.checksum(record) for rule in RULES if rule.checksum is not None]
    return [one for one in found if one is not None]


RANGE_COLUMNS = 3 + len(HEADS)


def range_table() -> np.ndarray[Any, Any]:
    """Return the ranges of the head's fields for the compiled walk: int64 rows of RANGE_COLUMNS.

    Size of the field (bytes), minimum, maximum, and its offset in each of the four heads (none, born, store, both
    IPv6).
    """
    return np.array([
        (HEAD.field(rule.where).size, rule.values.start, rule.values.stop - 1,
         *(layout.offset(rule.where) for layout in HEADS.values()))
        for rule in RULES if isinstance(rule.values, range)
    ], dtype=np.int64).reshape(-1, RANGE_COLUMNS)
