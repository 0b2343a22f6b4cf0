"""Numbers of messages in their queues that do not go on one by one, where nothing shows how they should."""

from __future__ import annotations

from collections.abc import Iterator

from recover.evidence.stray_places import strays_of
from recover.files.store import Store
from recover.findings import Finding, finding
from recover.verify.commitlog import place_in_file
from recover.verify.survey import Survey


def numbering_findings(store: Store, look: Survey) -> Iterator[Finding]:
    """Records that fit nowhere into the queue that they name, and places of queues that no record is left for."""
    known = {item.phy_offset for item in look.contradictions}
    for key, strays in strays_of(look.log, look.expectation).items():
        for queue_offset, phy_offset, _ in strays:
            mapped_file = look.log.queue.find(phy_offset)
            if phy_offset not in known and mapped_file is not None:
                yield finding(
                    "commitlog-unplaced-record", *place_in_file(store, mapped_file, phy_offset), start=phy_offset,
                    topic=key.topic, queue=key.queue_id, queue_offset=queue_offset,
                )
    # a bridge leaves such places where it has no markers, or no room for all
    for lack in look.losses.lacking if not (look.log.fillers or look.log.markers) else ():
        # what leaves them out is wrong itself
        if known.isdisjoint((lack.before, lack.behind)):
            yield finding(
                "commitlog-number-missing", "commitlog", None, topic=lack.key.topic, queue=lack.key.queue_id,
                first=lack.first, last=lack.last, count=lack.last - lack.first + 1, before=lack.before,
                behind=lack.behind,
            )
