"""Records of which a tag or key is not what their units say, where one flipped bit of the record explains that.

No checksum covers properties unless brokers were told to write one. The queue's unit, made when the message was stored,
has the hash of its tag: a consumer that asks for this tag is sent the message, and drops it for what the record says by
now. The units of the index have the hashes of its keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from formats import properties as props
from formats.errors import FormatError
from formats.javahash import index_key_hash
from formats.record import Record, delay_level, iter_index_keys, tags_code
from recover.check.log import place_in_file
from recover.check.survey import Survey
from recover.evidence.contradictions import a_bit_away
from recover.evidence.flipped_bits import WrongBit, flipped_bits
from recover.evidence.restore import LARGEST
from recover.findings.model import Finding, finding
from recover.log.judge import LogReader
from recover.store.store import Store

if TYPE_CHECKING:
    from recover.derived.index_file_check import IndexReport


def flipped_bit_findings(store: Store, look: Survey) -> Iterator[Finding]:
    """One finding for each such message, at the byte that has the bit."""
    for item in flipped_bits(look.log, look.losses):
        record = item.restored.record
        yield finding(
            "commitlog-flipped-bit", *place_in_file(store, item.mapped_file, item.phy_offset), start=item.start,
            position=item.restored.position, field=item.restored.field, bit=item.bit, stored=item.stored,
            right=item.restored.content[0], odds=item.odds, topic=record.topic_name, queue=record.queue_id,
            queue_offset=record.queue_offset,
        )


def flipped_property_findings(store: Store, flipped: Iterable[WrongBit]) -> Iterator[Finding]:
    """One finding for each record of which a tag or key is not what units remember, and was before a bit flipped."""
    for item in flipped:
        start = item.stored.phy_offset
        stored, right = item.content
        yield finding(
            "commitlog-flipped-property", *place_in_file(store, item.mapped_file, start + item.position), start=start,
            position=item.position, bit=item.bit, stored=stored, right=right, name=item.name,
            value=item.right.get_property(item.name), witness=item.witness, topic=item.stored.topic_name,
            queue=item.stored.queue_id, queue_offset=item.stored.queue_offset,
        )


_MOST = 100
"""So many records are looked at for queues, and for the index, at most: each bit of their properties is tried."""
_ALL_BITS = (1 << 64) - 1
_SIZE_BYTES = 4


def flipped_properties(look: Survey, index: IndexReport | None) -> Iterator[WrongBit]:
    """Those that units show, one at most of a record; none by the queues, or the index, where these name too many."""
    seen = {item.phy_offset for item in look.contradictions}
    with LogReader(look.log.queue) as reader:
        for item in chain(_by_queues(look, reader), _by_index(look, index, reader)):
            if item.stored.phy_offset not in seen:
                seen.add(item.stored.phy_offset)
                yield item


def _by_queues(look: Survey, reader: LogReader) -> Iterator[WrongBit]:
    """Wrong units that name the very record of their place.

    One that is itself a bit away from what the record asks for is as likely wrong: then nothing is said.
    """
    wrong = [
        (key, unit, code) for key, verdict in (look.queues.verdicts if look.queues is not None else {}).items()
        for unit, code in zip(verdict.wrong, verdict.wrong_tags, strict=True)
    ]
    for key, (queue_offset, phy_offset, size), code in wrong if len(wrong) <= _MOST else ():
        record = _record(reader, phy_offset, size)
        if record is None or (record.topic_name, record.queue_id, record.queue_offset) != (*key, queue_offset):
            continue

        def agrees(changed: Record, code: int = code) -> bool:
            return tags_code(changed) == code

        off = (tags_code(record) ^ code) & _ALL_BITS
        if delay_level(record) is None and off.bit_count() > 1:
            yield from _led_back(look, record, "its unit", agrees)


def _by_index(look: Survey, index: IndexReport | None, reader: LogReader) -> Iterator[WrongBit]:
    """Units of the index that name a record which has no such key, though they hang in the chain of that key.

    One that is itself a bit away from a key of the record is as likely wrong, as with queues.
    """
    claimed: dict[int, set[int]] = defaultdict(set)
    for verdict in index.verdicts if index is not None else ():
        for phy_offset, key_hash in verdict.other_keys:
            claimed[phy_offset].add(key_hash)
    for phy_offset, hashes in claimed.items() if len(claimed) <= _MOST else ():
        record = _record(reader, phy_offset)
        if record is None or hashes <= (before := _hashes(record)):
            continue
        if any((mine ^ its).bit_count() == 1 for mine in hashes - before for its in before):
            continue

        def agrees(changed: Record, least: set[int] = hashes, most: set[int] = hashes | before) -> bool:
            # it may lose keys, but must not get any that no unit has
            return least <= _hashes(changed) <= most

        yield from _led_back(look, record, "the index", agrees)


def _record(reader: LogReader, phy_offset: int, size: int | None = None) -> Record | None:
    """The record without a property CRC that stands there, of the size that is given or that it has."""
    try:
        if size is None:
            size = int.from_bytes(reader.read(phy_offset, _SIZE_BYTES), "big")
        record = reader.record(phy_offset, size) if size <= LARGEST else None
    except (FormatError, OSError):
        return None
    return record if record is not None and record.property_crc is None else None


def _hashes(record: Record) -> set[int]:
    return {index_key_hash(text) for text in iter_index_keys(record, tags=True)}


def _led_back(
    look: Survey, record: Record, witness: str, agrees: Callable[[Record], bool]
) -> Iterator[WrongBit]:
    """The one record a bit away in its properties that `agrees`, if there is just one."""
    mapped_file = look.log.queue.find(record.phy_offset)
    found = [
        one for one in a_bit_away(record)
        if props.structure_problem(one[0].properties) is None and agrees(one[0])
    ]
    if len(found) == 1 and mapped_file is not None:
        yield WrongBit(mapped_file, witness, record, *found[0])
