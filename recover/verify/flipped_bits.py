"""Damaged messages, and wrong tags and keys, that one flipped bit explains, as findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recover.evidence.flipped_bits import flipped_bits
from recover.evidence.wrong_bit import WrongBit
from recover.files.store import Store
from recover.findings import Finding, finding
from recover.verify.commitlog import place_in_file
from recover.verify.survey import Survey


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
