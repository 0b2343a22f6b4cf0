"""Records whose tag is not the one that their unit says, where one flipped bit of the record explains that.

No checksum covers properties unless brokers were told to write one. The unit, made when the message was stored, has the
hash of its tag: a consumer that asks for this tag is sent the message, and drops it for what the record says by now.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from formats import properties as props
from formats.commitlog import Record, delay_level, tags_code
from formats.errors import FormatError
from recover.expected import QueueKey
from recover.log_reader import LogReader
from recover.mapped_files import MappedFile
from recover.survey import Survey

_MOST = 100
"""So many units are looked at, at most: each bit of their records' properties is tried."""
_ALL_BITS = (1 << 64) - 1


class FlippedTag(Struct, frozen=True):
    """Bit `bit` of byte `position` of a record was flipped, if it was `right`; `stored` is what the log has now."""

    mapped_file: MappedFile
    key: QueueKey
    stored: Record
    right: Record
    position: int
    bit: int

    @property
    def content(self) -> tuple[int, int]:
        """The byte as it is, and as it was."""
        at = self.position - (self.stored.total_size - len(self.stored.properties))
        return self.stored.properties[at], self.right.properties[at]


def flipped_tags(look: Survey) -> Iterator[FlippedTag]:
    """Those of wrong units that name the very record of their place; none where there are too many of them.

    A unit that is itself one bit away from what the record asks for is as likely wrong: then nothing is said.
    """
    if look.queues is None:
        return
    denied = {item.phy_offset for item in look.contradictions}
    wrong = [
        (key, unit, code) for key, verdict in look.queues.verdicts.items()
        for unit, code in zip(verdict.wrong, verdict.wrong_tags, strict=True)
    ]
    with LogReader(look.log.queue) as reader:
        for key, (queue_offset, phy_offset, size), code in wrong if len(wrong) <= _MOST else ():
            mapped_file = look.log.queue.find(phy_offset)
            if mapped_file is None or phy_offset in denied:
                continue
            try:
                record = reader.record(phy_offset, size)
            except (FormatError, OSError):
                continue
            place = (record.topic_name, record.queue_id, record.queue_offset)
            if place == (*key, queue_offset) and (found := _a_bit_away(record, code)) is not None:
                yield FlippedTag(mapped_file, key, record, *found)


def _a_bit_away(record: Record, code: int) -> tuple[Record, int, int] | None:
    """The one record with this tags code that differs in one bit of its properties; which byte and bit of it."""
    off = (tags_code(record) ^ code) & _ALL_BITS
    if record.property_crc is not None or delay_level(record) is not None or off.bit_count() < 2:
        return None
    start = record.total_size - len(record.properties)
    found = []
    for number in range(8 * len(record.properties)):
        content = bytearray(record.properties)
        content[number // 8] ^= 1 << number % 8
        changed = structs.replace(record, properties=bytes(content))
        if tags_code(changed) == code and props.structure_problem(changed.properties) is None:
            found.append((changed, start + number // 8, number % 8))
    return found[0] if len(found) == 1 else None
