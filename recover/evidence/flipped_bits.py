"""Damaged messages that one flipped bit explains: turned back, every checksum of the record is right again.

A CRC says by how much it is off, and for each bit of what it covers that is another number; so it names the bit. Other
damage may look the same by chance, the more so the longer the record is. Hence this is told, and done when asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from msgspec import Struct

from formats import properties as props
from formats import sysflag
from formats.compression import MissingCodecError, decompress
from formats.crc import CRC31_MASK, crc31
from formats.errors import FormatError
from formats.native.walk import bits_that_change
from formats.record import (
    BLANK_SIZE,
    HEAD,
    HEADS,
    MIN_RECORD_SIZE,
    Record,
    check_strict,
    decode,
    encode,
    iter_index_keys,
)
from formats.record.grammar import checksums, is_served
from formats.record.layout import TOPIC_LENGTHS
from formats.sysflag import HOSTS_V6
from recover.derived.expected import QueueKey
from recover.evidence.contradictions import a_bit_away
from recover.evidence.lost import Losses, LostPosition
from recover.evidence.restore import Restored, content_of, is_missing, restore
from recover.log.judge import LogReader
from recover.log.scan import Damage, LogView
from recover.store.mapped_files import MappedFile

SYS_FLAG = "sysFlag"


class WrongBit(Struct, frozen=True):
    """Bit `bit` of byte `position` of a record was flipped, if it was `right`; `stored` is what the log has now.

    The `witness` tells that. `was_rejected`: nobody can read the message as it is.
    """

    mapped_file: MappedFile
    witness: str
    stored: Record
    right: Record
    position: int
    bit: int
    was_rejected: bool = False

    @property
    def name(self) -> str:
        """The property that differs, of two the one that it was; or SYS_FLAG."""
        if self.stored.sys_flag != self.right.sys_flag:
            return SYS_FLAG
        stored, right = self.stored.property_map(), self.right.property_map()
        return next((name for name in right if stored.get(name) != right[name]), "")

    @property
    def value(self) -> str:
        """What was in that field."""
        return self._of(self.right)

    @property
    def before(self) -> str:
        """What is in that field now, "" where it is a property without its name."""
        return self._of(self.stored)

    def _of(self, record: Record) -> str:
        return f"{record.sys_flag:#x}" if self.name == SYS_FLAG else record.get_property(self.name) or ""

    @property
    def content(self) -> tuple[int, int]:
        """The byte as it is, and as it was."""
        stored, right = encode(self.stored), encode(self.right)
        return stored[self.position], right[self.position]


_YEAR_MS = 366 * 24 * 3600 * 1000


def served_again(record: Record, queues: Collection[QueueKey]) -> tuple[Record, int, int] | None:
    """(record, byte, bit), or None if there is no such bit or more than one.

    Of several the one that names one of these `queues`, and no time that is years away.
    """
    found = [
        one for one in a_bit_away(record)
        if is_served(one[0]) and props.structure_problem(one[0].properties) is None and _keys(one[0]) == _keys(record)
    ]
    if len(found) > 1:
        found = [one for one in found if _is_likely(one[0], queues)]
    return found[0] if len(found) == 1 else None


def _keys(record: Record) -> list[str]:
    return list(iter_index_keys(record, tags=True))


def _is_likely(record: Record, queues: Collection[QueueKey]) -> bool:
    values = record.property_map()
    time = int(values.get(props.TIMER_OUT_MS, record.store_timestamp))
    named = QueueKey(values[props.REAL_TOPIC], int(values[props.REAL_QID]))
    return named in queues and abs(time - record.store_timestamp) < _YEAR_MS


COMPRESSION = sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE
TYPES = {
    sysflag.COMPRESSION_LEGACY_ZLIB: "zlib", sysflag.COMPRESSION_ZLIB: "zlib", sysflag.COMPRESSION_LZ4: "LZ4",
    sysflag.COMPRESSION_ZSTD: "Zstandard",
}
_BITS = tuple(1 << number for number in range(32) if COMPRESSION >> number & 1)
_LARGEST_BODY = 16 << 20


def right_flag(record: Record, usual: Counter[int]) -> int | None:
    """The sysFlag one bit away that the body agrees with; `usual` is how often others are compressed, by their bits.

    Of several that do, the one that other messages have most; where none has, that which clients of every version read,
    or None if the body may be a stream of the producer's own, or one of a type that is more than a bit away.
    """
    found = [flag for flag in (record.sys_flag ^ bit for bit in _BITS) if _agrees(flag, record.body)]
    compressed = [flag for flag in found if flag & sysflag.COMPRESSED]
    known = [flag for flag in compressed if usual[flag & COMPRESSION]]
    if known:
        return max(known, key=lambda flag: usual[flag & COMPRESSION])
    if len(compressed) < len(found) and any(_agrees(sysflag.COMPRESSED | kind, record.body) for kind in TYPES):
        return None
    return min(found, default=None)


def _agrees(sys_flag: int, body: bytes) -> bool:
    """Whether a producer's client may have stored the body with this sysFlag."""
    if not sys_flag & sysflag.COMPRESSED:
        return not sys_flag & sysflag.COMPRESSION_TYPE
    if sys_flag & sysflag.COMPRESSION_TYPE not in sysflag.streams(body):
        return False
    try:
        decompress(body, sys_flag, _LARGEST_BODY)
    except MissingCodecError:
        return True
    except FormatError as error:
        return error.reason == "body-too-large"
    return True


_SIZE_BYTES = 4
_CRC_BYTES = 4
_SEVERAL = 4 << 20
"""Bytes of the longest damage that is looked through for more than one message."""
_MOST_BESIDE = 100
"""So many messages beside one another are put back at most: each is held against the places that all of them lost."""
_LEAST_ODDS = 1000
"""Where more of the other damages look like a flipped bit, as they do in records above 262 KiB, nothing is said."""
_MOST_SUSPECTS = 4
"""Two bits can only look alike in more than 11 KiB, and hardly ever do."""


class FlippedBit(Struct, frozen=True):
    """Bit `bit` of the byte that `restored` writes was flipped; it is `stored` now. Its record begins at `start`."""

    mapped_file: MappedFile
    start: int
    restored: Restored
    stored: int
    bit: int

    @property
    def phy_offset(self) -> int:
        """Where the byte stands in the log."""
        return self.start + self.restored.position

    @property
    def odds(self) -> int:
        """Of so many damages of another kind, one looks like a flipped bit of such a record."""
        return _odds(self.restored.record.total_size)


def _odds(size: int) -> int:
    return (CRC31_MASK + 1) // (8 * size)


def flipped_bits(log: LogView, losses: Losses) -> Iterator[FlippedBit]:
    """Damaged messages of which one bit explains all, if all that stand beside one another can be put back.

    Those that recover restores anyway are not among them.
    """
    with LogReader(log.queue) as reader:
        for damage, lost in zip(log.damaged, losses.by_damage, strict=True):
            # bytes that are hardly records are not read
            content = content_of(reader, damage) if _begins_with_record(reader, damage) else None
            found = [] if content is None else all_put_back(content, damage.start, lost, bits=True)
            if content is None or damage.mapped_file is None or not found or put_back(content, damage.start, lost):
                continue
            for start, restored in found:
                stored = content[start - damage.start + restored.position]
                change = stored ^ restored.content[0]
                if len(restored.content) == 1 == change.bit_count():
                    yield FlippedBit(damage.mapped_file, start, restored, stored, change.bit_length() - 1)


def _begins_with_record(reader: LogReader, damage: Damage) -> bool:
    size = damage.stop - damage.start
    try:
        head = HEAD.decode(reader.read(damage.start, HEAD.size))
    except (OSError, FormatError):
        return False
    return head.total_size == size or (head.phy_offset == damage.start and head.total_size < size <= _SEVERAL)


def put_back(
    damaged: bytes, phy_offset: int, lost: Sequence[LostPosition], *, bits: bool = False
) -> list[tuple[int, Restored]]:
    """(phy offset, record) of each record that `damaged` was, none if that cannot be told of all of them.

    Fields come first; with `bits`, which somebody has to ask for, a bit of those that no field explains.
    """
    by_field = restore(damaged, phy_offset, lost) if lost else None
    if by_field is not None:
        return [(phy_offset, by_field)]
    by_fields = all_put_back(damaged, phy_offset, lost, bits=False) if lost else []
    return by_fields or (all_put_back(damaged, phy_offset, lost, bits=True) if bits else [])


def all_put_back(
    damaged: bytes, phy_offset: int, lost: Sequence[LostPosition], *, bits: bool
) -> list[tuple[int, Restored]]:
    """(phy offset, record) of each record that `damaged` was; none if one cannot be put back, or there are too many.

    With `bits` a bit may be turned back in any of them; else there are several, and a field of its own fixes each.
    """
    found: list[tuple[int, Restored]] = []
    at = 0
    while at < len(damaged):
        if len(found) == _MOST_BESIDE:
            return []
        size = int.from_bytes(damaged[at : at + _SIZE_BYTES], "big")
        if not MIN_RECORD_SIZE < size <= len(damaged) - at:
            return []
        piece = damaged[at : at + size]
        own = [place for place in lost if place.phy_offset in (None, phy_offset + at)]
        restored = turned_back(piece, phy_offset + at, own) if bits and (own or not lost) else None
        if restored is None and size < len(damaged) and len(own) <= _MOST_BESIDE:
            # beside others, a field that one place alone fixes is as sure as a bit
            restored = restore(piece, phy_offset + at, own)
        if restored is None:
            return []
        found.append((phy_offset + at, restored))
        at += size
    return found


def turned_back(damaged: bytes, phy_offset: int, lost: Sequence[LostPosition]) -> Restored | None:
    """The record that `damaged` (all of its bytes, from `phy_offset` on) was, if exactly one bit of it was flipped.

    A place in a queue that it has to have lost is one of `lost`, where there are any.
    """
    try:
        record = decode(damaged, check_crc=False)
    except FormatError:
        return None
    if record.total_size != len(damaged) or _odds(len(damaged)) < _LEAST_ODDS:
        return None
    found = []
    for position, bit in _suspects(record, damaged):
        content = bytes([damaged[position] ^ 1 << bit])
        changed = damaged[:position] + content + damaged[position + 1 :]
        try:
            right = check_strict(changed + bytes(BLANK_SIZE), 0, len(changed) + BLANK_SIZE, phy_offset)
        except FormatError:
            continue
        if right.total_size == len(damaged) and (not lost or is_missing(right, lost)):
            found.append(Restored(right, _part(record, position), position, content))
    return found[0] if len(found) == 1 else None


def _suspects(record: Record, damaged: bytes) -> Iterator[tuple[int, int]]:
    """(byte, bit) of each bit of a record that alone makes its outer checksum right."""
    # the outermost covers all others
    for checksum in checksums(record)[-1:]:
        right = checksum.encode(crc31(damaged[checksum.start : checksum.stop]))
        stored = damaged[checksum.at : checksum.at + len(right)]
        said = checksum.decode(stored)
        if said is not None:
            change = said ^ crc31(damaged[checksum.start : checksum.stop])
            yield from _of_text(checksum.start, checksum.stop - checksum.start, change)
        yield from _of_field(checksum.at, len(right), int.from_bytes(stored, "big") ^ int.from_bytes(right, "big"))


def _of_text(start: int, length: int, change: int) -> Iterator[tuple[int, int]]:
    """Bits of what a checksum covers."""
    found = np.zeros(_MOST_SUSPECTS, dtype=np.int64)
    count = bits_that_change(length, change, found) if 0 < change <= CRC31_MASK else 0
    for number in found[:count].tolist() if count <= _MOST_SUSPECTS else ():
        yield start + number // 8, number % 8


def _of_field(start: int, size: int, change: int) -> Iterator[tuple[int, int]]:
    """The bit of the checksum itself, if it differs in one."""
    if change.bit_count() == 1:
        number = change.bit_length() - 1
        yield start + size - 1 - number // 8, number % 8


def _part(record: Record, position: int) -> str:
    """What stands at a byte of the record: a field of its head, body, topic, or properties."""
    layout = HEADS[record.sys_flag & HOSTS_V6]
    if position < layout.size:
        return next(field.name for field in reversed(layout.fields) if field.offset <= position)
    topic = layout.size + len(record.body)
    properties = topic + TOPIC_LENGTHS[record.magic].size + len(record.topic)
    return "body" if position < topic else "topic" if position < properties else "properties"
