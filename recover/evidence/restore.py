"""Fields of a damaged record that other evidence fixes uniquely, put back.

Every candidate changes one field of the record's head or one length, and counts only if the
reference codec then takes the whole record and its place in a queue is one that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from formats import sysflag
from formats.errors import FormatError
from formats.record import (
    BLANK_SIZE,
    HEAD,
    HEADS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    Record,
    check_strict,
    grammar,
)
from formats.record.layout import PROPERTIES_LENGTH, TOPIC_LENGTHS
from recover.evidence.lost import LostPosition
from recover.log.judge import LogReader
from recover.log.scan import DENIED, Damage

LARGEST = 64 << 20
"""Bytes of the largest record that is tried."""
_MOST_WORK = 1 << 32
"""Bytes that are looked through for one record, all its tries together; each counts _TRY_COST more than it has."""
_TRY_COST = 10_000


class Restored(Struct, frozen=True):
    """The record as it was stored, and the one field that had to change: its position in the record, its bytes."""

    record: Record
    field: str
    position: int
    content: bytes


def content_of(reader: LogReader, damage: Damage) -> bytes | None:
    """All bytes of a damage that may be one record; None where it is no such thing, or cannot be read."""
    size = damage.stop - damage.start
    is_whole = damage.ended_by in ("record", "blank") or damage.facts.get("size") == size
    if damage.mapped_file is None or damage.reason in DENIED or not is_whole or size > LARGEST:
        return None
    try:
        content = reader.read(damage.start, size)
    except OSError:
        return None
    return content if len(content) == size else None


def restore(damaged: bytes, phy_offset: int, lost: Iterable[LostPosition]) -> Restored | None:
    """The record that `damaged` (all of its bytes, from `phy_offset` on) was, if exactly one field gives it away."""
    if not MIN_RECORD_SIZE < len(damaged) <= LARGEST:
        return None
    positions = list(lost)
    found: dict[bytes, Restored] = {}
    left = _MOST_WORK // (len(damaged) + _TRY_COST)
    for field, position, content in _candidates(damaged, phy_offset, positions):
        left -= 1
        if left < 0:
            # a body in which everything looks like a topic: what was found so far is not known to be the only one
            return None
        changed = damaged[:position] + content + damaged[position + len(content) :]
        if changed == damaged:
            continue
        try:
            record = check_strict(changed + bytes(BLANK_SIZE), 0, len(changed) + BLANK_SIZE, phy_offset)
        except FormatError:
            continue
        if record.total_size == len(damaged) and is_missing(record, positions):
            found[changed] = Restored(record, field, position, content)
    return next(iter(found.values())) if len(found) == 1 else None


def is_missing(record: Record, lost: Iterable[LostPosition]) -> bool:
    """Whether the place in a queue that a record names is one that is lost."""
    return any(
        p.key.topic == record.topic_name and p.key.queue_id == record.queue_id and p.queue_offset == record.queue_offset
        for p in lost
    )


def _candidates(damaged: bytes, phy_offset: int, lost: list[LostPosition]) -> Iterator[tuple[str, int, bytes]]:
    """(field, position, bytes) of each change worth trying."""
    yield _field("total_size", len(damaged))
    if HEAD.decode(damaged).magic == MAGIC_BLANK:
        # an end mark was written over the record: its first two fields, which the record after it and a checksum tell
        for magic in (MAGIC_V1, MAGIC_V2):
            yield "total_size", 0, _field("total_size", len(damaged))[2] + _field("magic", magic)[2]
    if HEAD.decode(damaged).total_size != len(damaged):
        # then that is the one field; as in every range that many records stood in, with a lost position for each
        return
    yield _field("phy_offset", phy_offset)
    flag = HEAD.decode(damaged).sys_flag
    layout = HEADS[flag & sysflag.HOSTS_V6]
    if len(damaged) >= layout.size:
        for rule in grammar.RULES:
            for beginning in rule.repairs():
                yield rule.where, layout.offset(rule.where), beginning
    for bit in (sysflag.BORNHOST_V6, sysflag.STOREHOST_V6):
        yield _field("sys_flag", flag ^ bit)
    for position in lost:
        yield _field("queue_id", position.key.queue_id)
        yield _field("queue_offset", position.queue_offset)
        yield from _length_candidates(damaged, position.key.topic.encode())


def _length_candidates(damaged: bytes, topic: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Lengths and topic that fit a message of this topic whose total size is right."""
    head = HEAD.decode(damaged)
    layout = HEADS[head.sys_flag & sysflag.HOSTS_V6]
    topic_length = TOPIC_LENGTHS.get(head.magic)
    if topic_length is None or len(damaged) < layout.size:
        return
    if len(topic) >= 1 << (8 * topic_length.size - 1):
        return
    written = topic_length.pack(len(topic)) + topic
    body_end = damaged.find(written, layout.size)
    while body_end >= 0:
        field = layout.field("body_length")
        yield "body_length", field.offset, (body_end - layout.size).to_bytes(field.size, "big")
        body_end = damaged.find(written, body_end + 1)
    end = layout.size + max(0, layout.decode(damaged).body_length)
    topic_at = end + topic_length.size
    properties_at = topic_at + len(topic) + PROPERTIES_LENGTH.size
    if properties_at > len(damaged):
        return
    yield "topic_length", end, topic_length.pack(len(topic))
    yield "topic", topic_at, topic
    length = len(damaged) - properties_at
    if length < 1 << (8 * PROPERTIES_LENGTH.size - 1):
        yield "properties_length", properties_at - PROPERTIES_LENGTH.size, PROPERTIES_LENGTH.struct.pack(length)


def _field(name: str, value: int) -> tuple[str, int, bytes]:
    field = HEAD.field(name)
    return name, field.offset, value.to_bytes(field.size, "big", signed=True)
