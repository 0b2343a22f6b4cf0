"""Legible parts of damaged messages: fields whose bytes are there, what queues hold, and which fields are doubtful."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import structs

from formats.basics import FormatError, java_string
from formats.properties import structure_problem
from formats.record import HEAD, HEAD_SIZE, HEADS, MAGIC_V1, Record, decode, host_text
from formats.record.grammar import valid_topic
from formats.sysflag import HOSTS_V6
from recover.export.messages import COLUMNS, Message, has_real_topic, message_of, place_text, real_destination
from recover.export.select import Selected
from recover.log.file_scan import own_heads
from recover.log.judge import LogReader
from recover.log.scan import DENIED, Damage
from recover.reading.lost import LostPosition
from recover.reading.reading import Reading

_MOST_READ = 64 << 20
_SANE_TIME = range(1_000_000_000_000, 10_000_000_000_000)
"""ms: the years 2001 to 2286."""


def damaged_messages(analysis: Reading) -> Iterator[Selected]:
    """Yield what is left of each message in a damaged range: from its own bytes, else from the queue that names it.

    The state is `damaged`; `doubtful` names the fields that no checksum or second witness confirms; unreadable fields
    are None. Messages that only queues name have only their place.
    """
    with LogReader(analysis.log.queue) as reader:
        for damage, positions in zip(analysis.log.damaged, analysis.losses.by_damage, strict=True):
            named = {position.phy_offset: position for position in positions if position.phy_offset is not None}
            # whole records of other messages stand there, not what is left of these
            for at, content in () if damage.reason in DENIED else _heads(reader, damage, set(named)):
                found = _legible(at, content, named.pop(at, None), damage)
                if damage.mapped_file is not None:
                    found.place = place_text(damage.mapped_file.path, at - damage.mapped_file.file_from_offset)
                yield Selected(found, content)
            left = [*named.values(), *(position for position in positions if position.phy_offset is None)]
            for position in left:
                yield Selected(_legible(position.phy_offset, b"", position, damage), b"")


def _heads(reader: LogReader, damage: Damage, named: set[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes to the next head or the range's end) of apparent records: recognised by magic and own
    offset, or named by a queue."""
    if damage.mapped_file is None:
        return
    content = reader.read(damage.start, min(damage.stop - damage.start, _MOST_READ))
    starts = {at - damage.start for at in named if damage.start <= at < damage.stop}
    starts |= set(own_heads(np.frombuffer(content, dtype=np.uint8), 0, damage.start).tolist())
    if content.strip(b"\0"):
        starts.add(0)
    ordered = sorted(starts)  # none in a range of zeros
    for start, stop in zip(ordered, [*ordered[1:], len(content)], strict=False):
        yield damage.start + start, content[start:stop]


def _legible(at: int | None, content: bytes, position: LostPosition | None, damage: Damage) -> Message:
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    doubtful: list[str] = []
    try:
        record = decode(content, check_crc=False)
        values.update(structs.asdict(message_of(record, "damaged")))
        doubtful += _doubts(record, content, damage)
    except FormatError as error:
        values.update(_of_head(content))
        doubtful += [name for name, value in values.items() if value is not None]
        values["body_problem"] = str(error) if content else None
    values.update(phy_offset=at, state="damaged")
    if position is not None:
        seen = {"stored_topic": position.key.topic, "stored_queue": position.key.queue_id,
                "queue_offset": position.queue_offset, "size": position.size}
        for name, value in seen.items():
            if values[name] in (None, value) or name in doubtful:
                values[name] = value
                doubtful = [each for each in doubtful if each != name]
    if values["stored_topic"] is not None:
        doubtful = _place(values, doubtful)
    values["doubtful"] = sorted({*doubtful} - {"state", "place", "copy"})
    values.update(damage=damage.reason, copy=0)
    return Message(**values)


def _place(values: dict[str, Any], doubtful: list[str]) -> list[str]:
    """Set topic, queue and kind as consumers know them; return the doubtful fields: these two as those of the record,
    and if properties that may name another topic are."""
    stored, number, known = values["stored_topic"], values["stored_queue"], values["properties"]
    values["topic"], queue, values["kind"] = real_destination(stored, -1 if number is None else number, known or {})
    values["queue"] = None if queue < 0 else queue
    found = {*doubtful} - {"topic", "queue"}
    unsure = has_real_topic(stored) and (known is None or "properties" in found)
    found |= {"topic"} if unsure or "stored_topic" in found else set()
    found |= {"queue"} if unsure or "stored_queue" in found or "stored_topic" in found else set()
    return sorted(found)


def _doubts(record: Record, content: bytes, damage: Damage) -> list[str]:
    """Fields of a record with consistent lengths that other evidence contradicts."""
    try:
        decode(content)
    except FormatError as error:
        if error.reason == "bad-body-crc":
            return ["body"]
        if error.reason == "bad-property-crc":
            sure = ("phy_offset", "state", "damage", "doubtful", "body", "place", "copy")
            return [name for name in COLUMNS if name not in sure]
    doubts = []
    if not valid_topic(record.topic):
        doubts += ["topic", "stored_topic"]
    for name in ("store_timestamp", "born_timestamp"):
        if getattr(record, name) not in _SANE_TIME:
            doubts.append(name.removesuffix("stamp"))
    if record.queue_id < 0:
        doubts += ["queue", "stored_queue"]
    if record.queue_offset < 0:
        doubts.append("queue_offset")
    if structure_problem(record.properties) is not None or (not doubts and damage.reason == "bad-properties"):
        doubts += ["properties", "keys", "tags", "unique_key"]
    return doubts


def _of_head(content: bytes) -> dict[str, Any]:
    """The fields of a head, if it is complete; the topic and what follows depend on lengths that do not add up."""
    if len(content) < HEAD_SIZE or not content[:HEAD_SIZE].strip(b"\0"):
        return {}
    layout = HEADS[HEAD.decode(content).sys_flag & HOSTS_V6]
    if len(content) < layout.size:
        return {}
    head = layout.decode(content)
    if head.store_timestamp not in _SANE_TIME:
        return {}
    found: dict[str, Any] = {
        "size": head.total_size, "queue": head.queue_id, "stored_queue": head.queue_id, "flag": head.flag,
        "queue_offset": head.queue_offset, "sys_flag": head.sys_flag, "reconsume_times": head.reconsume_times,
        "born_host": host_text((head.born_ip, head.born_port)), "store_time": head.store_timestamp,
        "store_host": host_text((head.store_ip, head.store_port)),
    }
    if head.born_timestamp in _SANE_TIME:
        found["born_time"] = head.born_timestamp
    topic_at = layout.size + max(0, head.body_length)
    length = content[topic_at] if head.magic == MAGIC_V1 and topic_at < len(content) else 0
    topic = content[topic_at + 1 : topic_at + 1 + length]
    if length and len(topic) == length and valid_topic(topic):
        found["topic"] = found["stored_topic"] = java_string(topic)
    return found

