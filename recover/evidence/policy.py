"""What recover may edit in a record: who tells it, what verify reports, whether it is done unasked, and its limit.

The log outranks what derives from it: where a checksum takes a record, nothing of it is written unasked.
"""

from __future__ import annotations

from msgspec import Struct

UNASKED, ON_DEMAND = "unasked", "--mend-bits"


class Policy(Struct, frozen=True):
    """One kind of edit. `limit`: records of it that are looked at in a store, and why there is one.

    `of_damage`: the record is damage without it; `is_loss`: its message counts as damaged.
    """

    kind: str
    witness: str
    finding: str
    done: str
    limit: int
    why: str
    of_damage: bool = False
    is_loss: bool = True


_EACH_BIT = "every bit of its properties is tried, and so many at once are another cause than flipped bits"
POLICIES = {policy.kind: policy for policy in (
    Policy("field", "its checksums and a place that its queue lost", "commitlog-damaged-record", UNASKED, 100,
           "records that stand beside one another in one damage: each is held against all places that were lost",
           of_damage=True),
    Policy("bit", "its checksum", "commitlog-flipped-bit", ON_DEMAND, 100,
           "as above; and above 262 KiB other damage looks like a bit too often", of_damage=True),
    Policy("place", "units, neighbours and gaps of its queue", "commitlog-contradicted-field", ON_DEMAND, 10_000,
           "records that are read one by one"),
    Policy("lmq", "the units of LMQ queues", "commitlog-contradicted-field", ON_DEMAND, 100, _EACH_BIT),
    Policy("flag", "its body", "commitlog-contradicted-flag", ON_DEMAND, 100, "more are another client, not damage"),
    Policy("service", "its topic", "commitlog-unserved-message", ON_DEMAND, 100, _EACH_BIT),
    Policy("tag", "its unit", "commitlog-flipped-property", ON_DEMAND, 100, _EACH_BIT, is_loss=False),
    Policy("key", "the index", "commitlog-flipped-property", ON_DEMAND, 100, _EACH_BIT, is_loss=False),
)}
