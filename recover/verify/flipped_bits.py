"""Damaged messages, and wrong tags, that one flipped bit explains, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from recover.findings import Finding, finding
from recover.flipped_tags import flipped_tags
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


def flipped_tag_findings(store: Store, look: Survey) -> Iterator[Finding]:
    """One finding for each record whose tag is another than its unit says, and was the same before a bit flipped."""
    for item in flipped_tags(look):
        start = item.stored.phy_offset
        stored, right = item.content
        yield finding(
            "commitlog-flipped-tag", *place_in_file(store, item.mapped_file, start + item.position), start=start,
            position=item.position, bit=item.bit, stored=stored, right=right, topic=item.key.topic,
            queue=item.key.queue_id, queue_offset=item.stored.queue_offset, tag=item.right.get_property("TAGS"),
        )
