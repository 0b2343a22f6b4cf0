"""Restore damaged records: by the one field that everything else fixes, or the one bit that a checksum names.

Every candidate changes one field of the record's head, one length or one bit, and counts only if the reference codec
then accepts the whole record and its place in a queue is one that is missing. The error of a CRC is different for each
flipped bit that it covers, so it identifies the bit. Other damage can match by chance, and the longer the record, the
more often; so a flipped bit is only reported, and corrected on demand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from formats import sysflag
from formats.basics import CRC31_MASK, FormatError, crc31
from formats.native.walk import bits_that_change
from formats.record import (
    BLANK_SIZE,
    HEAD,
    HEADS,
    MAGIC_BLANK,
    MAGICS,
    MIN_RECORD_SIZE,
    Record,
    check_strict,
    decode,
    grammar,
)
from formats.record.layout import PROPERTIES_LENGTH, TOPIC_LENGTHS
from formats.sysflag import HOSTS_V6
from recover.derived.expected import QueueKey
from recover.log.file_scan import scan_file
from recover.log.judge import LARGEST, LogReader, is_same_log
from recover.log.scan import DENIED, Damage, LogView
from recover.reading.edits import Edit, single_edit
from recover.reading.lost import Losses, LostPosition
from recover.reading.places import moved
from recover.reading.policy import POLICIES
from recover.store.columns import Rows
from recover.store.mapped_files import MappedFile, MappedFileQueue
from recover.store.reading import FILE
from recover.store.store import named_by_record

_MOST_WORK = 1 << 32
"""Bytes that are searched for one record, all candidates together; each candidate costs _TRY_COST extra."""
_TRY_COST = 10_000
_SIZE_BYTES = 4
_LARGEST_SERIES = 4 << 20
"""Size limit (bytes) of a damage that is searched for more than one message."""
_LEAST_ODDS = 1000
"""Minimum `Edit.odds`: below it (records above 262 KiB) other damage looks like a flipped bit too often to report."""
_MOST_SUSPECTS = 4
"""Two bits can only have the same CRC error in records above 11 KiB, and rarely do."""


def flipped_bits(log: LogView, losses: Losses) -> Iterator[Edit]:
    """Yield the bit edits of damages that flipped bits explain completely, each record in them being restored.

    Records that recover restores anyway are left out.
    """
    with LogReader(log.queue) as reader:
        for damage, lost in zip(log.damaged, losses.by_damage, strict=True):
            # bytes that do not look like a record are not read
            content = content_of(reader, damage) if _begins_with_record(reader, damage) else None
            found = [] if content is None else restoring_edits(content, damage.start, lost, bits=True)
            yield from (edit for edit in found if edit.kind == "bit")


def content_of(reader: LogReader, damage: Damage) -> bytes | None:
    """Return the bytes of a damage that may be one record; None if it cannot be one, or cannot be read."""
    size = damage.stop - damage.start
    is_whole = damage.ended_by in ("record", "blank") or damage.facts.get("size") == size
    if damage.mapped_file is None or damage.reason in DENIED or not is_whole or size > LARGEST:
        return None
    try:
        content = reader.read(damage.start, size)
    except OSError:
        return None
    return content if len(content) == size else None


def _begins_with_record(reader: LogReader, damage: Damage) -> bool:
    size = damage.stop - damage.start
    try:
        head = HEAD.decode(reader.read(damage.start, HEAD.size))
    except (OSError, FormatError):
        return False
    return head.total_size == size or (head.phy_offset == damage.start and head.total_size < size <= _LARGEST_SERIES)


def restoring_edits(damaged: bytes, phy_offset: int, lost: Sequence[LostPosition], *, bits: bool = False) -> list[Edit]:
    """Return the edits that restore all records in `damaged`; empty if one of them cannot be restored.

    Fields are tried first; with `bits`, which the user requests, also bits of the records that no field explains.
    """
    by_field = restore(damaged, phy_offset, lost) if lost else None
    by_fields = [by_field] if by_field else _edits_of_records(damaged, phy_offset, lost, bits=False) if lost else []
    return by_fields or (_edits_of_records(damaged, phy_offset, lost, bits=True) if bits else [])


def _edits_of_records(damaged: bytes, phy_offset: int, lost: Sequence[LostPosition], *, bits: bool) -> list[Edit]:
    """Return the edits that restore all records in `damaged`; empty if one cannot be restored, or there are too many.

    With `bits`, a bit may be corrected in any of them; else there must be several, each fixed by a field of its own.
    """
    most = POLICIES["bit" if bits else "field"].limit
    found: list[Edit] = []
    at = 0
    while at < len(damaged):
        if len(found) >= most:
            return []
        size = int.from_bytes(damaged[at : at + _SIZE_BYTES], "big")
        if not MIN_RECORD_SIZE < size <= len(damaged) - at:
            return []
        piece = damaged[at : at + size]
        own = [place for place in lost if place.phy_offset in (None, phy_offset + at)]
        restored = flipped_back(piece, phy_offset + at, own) if bits and (own or not lost) else None
        if restored is None and size < len(damaged) and len(own) <= most:
            # in a row of records, a field that one place alone fixes is as certain as a bit
            restored = restore(piece, phy_offset + at, own)
        edits = [restored] if restored else _bit_and_place(piece, phy_offset + at, own) if bits else []
        if not edits:
            return []
        found += edits
        at += size
    return found


def _bit_and_place(damaged: bytes, phy_offset: int, own: Sequence[LostPosition]) -> list[Edit]:
    """Return the bit edit that a checksum names, and a second one that moves the record to the one place a unit
    names."""
    edit = flipped_back(damaged, phy_offset, [])
    if edit is None or edit.record.property_crc is not None:
        return []
    moves = [moved(edit.record, *each.place) for each in own if (each.start, each.stop) == (phy_offset, edit.stop)]
    by_a_bit = [move for move in moves if move is not None and move.bit is not None]
    return [edit, *by_a_bit] if len(by_a_bit) == 1 else []


def restore(damaged: bytes, phy_offset: int, lost: Iterable[LostPosition]) -> Edit | None:
    """Return the edit that restores `damaged`, all bytes of one record at `phy_offset`, if exactly one field does; else
    None."""
    if not MIN_RECORD_SIZE < len(damaged) <= LARGEST:
        return None
    return _single_edit("field", damaged, phy_offset, [*lost], _candidates(damaged, phy_offset, [*lost]))


def flipped_back(damaged: bytes, phy_offset: int, lost: Sequence[LostPosition]) -> Edit | None:
    """Return the edit that restores `damaged`, all bytes of one record at `phy_offset`, if exactly one bit does; else
    None.

    If there are `lost` places, the record must be at one of them.
    """
    try:
        record = decode(damaged, check_crc=False)
    except FormatError:
        return None
    if record.total_size != len(damaged) or (CRC31_MASK + 1) // (8 * len(damaged)) < _LEAST_ODDS:
        return None
    suspects = (
        (_part_name(record, position), position, bytes([damaged[position] ^ 1 << bit]))
        for position, bit in _suspects(record, damaged)
    )
    return _single_edit("bit", damaged, phy_offset, lost, suspects)


def _single_edit(
    kind: str, damaged: bytes, phy_offset: int, lost: Sequence[LostPosition],
    candidates: Iterable[tuple[str, int, bytes]],
) -> Edit | None:
    """Return the one candidate (field, position, bytes) that makes the codec accept the record, at a lost place."""
    found = []
    left = _MOST_WORK // (len(damaged) + _TRY_COST)
    for field, position, content in candidates:
        left -= 1
        if left < 0:
            # too many candidates, as in a body full of topic-like bytes: a match so far is not known to be the only one
            return None
        stored = damaged[position : position + len(content)]
        changed = damaged[:position] + content + damaged[position + len(content) :]
        if stored == content:
            continue
        try:
            record = check_strict(changed + bytes(BLANK_SIZE), 0, len(changed) + BLANK_SIZE, phy_offset)
        except FormatError:
            continue
        needs_place = kind == "field" or bool(lost)
        edit = Edit(kind, phy_offset, record, field, position, stored, content)
        if record.total_size == len(damaged) and (not needs_place or any(each.place == edit.place for each in lost)):
            found.append(edit)
    return single_edit(found)


def _candidates(damaged: bytes, phy_offset: int, lost: list[LostPosition]) -> Iterator[tuple[str, int, bytes]]:
    """Yield (field, position, bytes) of each change worth trying."""
    head = HEAD.decode(damaged)
    yield _field("total_size", len(damaged))
    if head.magic == MAGIC_BLANK:
        # an end mark over the record: its first two fields, known from the next record's offset and a checksum
        for magic in MAGICS:
            yield "total_size", 0, _field("total_size", len(damaged))[2] + _field("magic", magic)[2]
    if head.total_size != len(damaged):
        # then size is the one field; other candidates would cost much in ranges of many records with as many lost
        # places
        return
    yield _field("phy_offset", phy_offset)
    layout = HEADS[head.sys_flag & sysflag.HOSTS_V6]
    if len(damaged) >= layout.size:
        for rule in grammar.RULES:
            for beginning in rule.repairs():
                yield rule.where, layout.offset(rule.where), beginning
    for bit in (sysflag.BORNHOST_V6, sysflag.STOREHOST_V6):
        yield _field("sys_flag", head.sys_flag ^ bit)
    for position in lost:
        yield _field("queue_id", position.key.queue_id)
        yield _field("queue_offset", position.queue_offset)
        yield from _length_candidates(damaged, position.key.topic.encode())


def _length_candidates(damaged: bytes, topic: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield lengths and topic that fit a message of this topic whose total size is right."""
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


def _suspects(record: Record, damaged: bytes) -> Iterator[tuple[int, int]]:
    """Yield (byte, bit) of each bit of a record, or of its outermost checksum, that alone makes that checksum right."""
    # the outermost checksum covers all others
    for checksum in grammar.checksums(record)[-1:]:
        right = crc31(damaged[checksum.start : checksum.stop])
        written = checksum.encode(right)
        stored = damaged[checksum.at : checksum.at + len(written)]
        said = checksum.decode(stored)
        change = 0 if said is None else said ^ right
        found = np.zeros(_MOST_SUSPECTS, dtype=np.int64)
        count = bits_that_change(checksum.stop - checksum.start, change, found) if 0 < change <= CRC31_MASK else 0
        numbers = found[:count].tolist() if count <= _MOST_SUSPECTS else []
        yield from ((checksum.start + number // 8, number % 8) for number in numbers)
        change = int.from_bytes(stored, "big") ^ int.from_bytes(written, "big")
        if change.bit_count() == 1:
            number = change.bit_length() - 1
            yield checksum.at + len(written) - 1 - number // 8, number % 8


def _part_name(record: Record, position: int) -> str:
    """Return the name of the part at a byte of the record: a field of its head, body, topic, or properties."""
    layout = HEADS[record.sys_flag & HOSTS_V6]
    if position < layout.size:
        return next(field.name for field in reversed(layout.fields) if field.offset <= position)
    topic = layout.size + len(record.body)
    properties = topic + TOPIC_LENGTHS[record.magic].size + len(record.topic)
    return "body" if position < topic else "topic" if position < properties else "properties"


# --- Messages that another file of the log's folders still holds.


class Copied(NamedTuple):
    """A message that another file still holds."""

    file: Path
    record: Record


def copies_beside(log: LogView, losses: Losses) -> list[list[Copied]]:
    """Return, for each damage of the log, the intact records that other files in its folders hold in it, ascending,
    where they are the messages that are lost there: in the place that a unit names, or in one that its queue lacks if
    the file is of the same log.

    These are files of the same name in another folder, and files of another name, such as a `.bak`, that begin with the
    same offset by their first record.
    """
    struck = {damage.mapped_file.file_from_offset for damage in log.damaged if damage.mapped_file is not None}
    beside = [_Beside.of(log, file) for file in (*log.queue.duplicates, *_odd_files(log, struck))
              if file.file_from_offset in struck]
    return [list(_copies(log, beside, *each)) for each in zip(log.damaged, losses.by_damage, strict=True)]


def _odd_files(log: LogView, struck: Collection[int]) -> Iterator[MappedFile]:
    """Yield the files of another name than log files have, at the offset that their first record states."""
    for odd in log.queue.odd if struck else ():
        place = named_by_record(odd.path) if odd.kind == FILE and odd.length else None
        if place is not None:
            yield MappedFile(odd.path, place, odd.length)


class _Beside(NamedTuple):
    """A second file at the place of a log file, its records (offset, bytes; two rows of int64), and whether it is known
    to be of the same log: by its name, or by a record that both have."""

    queue: MappedFileQueue
    records: Rows
    is_of_log: bool

    @classmethod
    def of(cls, log: LogView, file: MappedFile) -> _Beside:
        queue = MappedFileQueue(log.queue.directories, log.queue.file_size, [file])
        parts = [np.stack([split.records["phy_offset"], split.records["size"]])
                 for split in scan_file(file, log.queue.file_size).splits]
        records = np.concatenate([np.empty((2, 0), dtype=np.int64), *parts], axis=1)
        return cls(queue, records, file in log.queue.duplicates or is_same_log(log.queue, queue, *records))


def place_of(record: Record) -> tuple[QueueKey, int]:
    return QueueKey(record.topic_name, record.queue_id), record.queue_offset


def _copies(
    log: LogView, beside: list[_Beside], damage: Damage, positions: list[LostPosition]
) -> Iterator[Copied]:
    """Yield what `copies_beside` has for one damage."""
    lost = {position.place: position.phy_offset for position in positions}
    if damage.mapped_file is None or not lost:
        return
    at = damage.start
    for other in beside:
        if other.queue.min_offset != damage.mapped_file.file_from_offset:
            continue
        inside = other.records[:, slice(*np.searchsorted(other.records[0], [damage.start, damage.stop]))].T
        with LogReader(other.queue) as reader:
            for start, size in inside.tolist():
                if at <= start and start + size <= damage.stop:
                    record = reader.record(start, size)
                    named = lost.get(place_of(record), -1)
                    if named == start or (named is None and other.is_of_log):
                        yield Copied(other.queue.files[0].path, record)
                        at = start + size
