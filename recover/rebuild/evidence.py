"""Units that tell what the log does not, for changes that leave damage where it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recover.evidence.expected import QueueKey
from recover.rebuild.consumequeue import Evidence
from recover.scan.log import Damage
from recover.verify.survey import Survey


def evidence_of(seen: Survey, damaged: Sequence[Damage]) -> Evidence:
    """The units of the damaged ranges that stay in the log, and those that a changed field of a record contradicts."""
    denied: dict[QueueKey, set[int]] = {}
    for item in seen.contradictions:
        for key, queue_offset in item.places:
            denied.setdefault(key, set()).add(queue_offset)
    return Evidence(
        np.array([damage.start for damage in damaged], dtype=np.int64),
        np.array([damage.stop for damage in damaged], dtype=np.int64), denied,
        frozenset(item.phy_offset for item in seen.contradictions),
    )
