"""Damaged messages that one flipped bit explains, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from recover.findings import Finding, finding
from recover.one_bit import flipped_bits
from recover.store import Store
from recover.survey import Survey
from recover.verify.commitlog import place_in_file


def flipped_bit_findings(store: Store, look: Survey) -> Iterator[Finding]:
    """One finding for each such message, at the byte that has the bit."""
    for item in flipped_bits(look.log, look.losses):
        mapped_file, record = item.damage.mapped_file, item.restored.record
        assert mapped_file is not None
        yield finding(
            "commitlog-flipped-bit", *place_in_file(store, mapped_file, item.phy_offset), start=item.damage.start,
            position=item.restored.position, field=item.restored.field, bit=item.bit, stored=item.stored,
            right=item.restored.content[0], odds=item.odds, topic=record.topic_name, queue=record.queue_id,
            queue_offset=record.queue_offset,
        )
