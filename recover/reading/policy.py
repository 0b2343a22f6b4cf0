"""What is believed: the sources of claims and their weights, the one decision, and what recover may do about it.

A record, a queue entry (unit), its neighbours in the queue, the name of a file: each makes a statement about the same
bytes, and each may be wrong. Rules:

1. None alone overrides what is stored: that takes two claims of different sources, and no fewer than support the bytes
   as they are.
2. Two statements that derive from the same bytes are one source, whatever their number: a source that counts says so.
3. A checksum is not outvoted. A doubt yields no explanation of bytes that a checksum proves right.
4. In one round, a range has one explanation: the next round looks at what is left.
5. If the same witnesses deny every one of several ranges, it is the witnesses that are wrong.
6. The log outranks what derives from it: nothing in a record with a valid checksum is edited unasked (`POLICIES`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from recover.log.judge import Claim, most_claimed
from recover.reading.accepting import Becomes

# --- Who says what.


class Source(Struct, frozen=True):
    """A source of claims: what it is, and the weight of one claim. `each`: what is counted, if claims of it add up."""

    name: str
    what: str
    weight: int = 1
    each: str = ""


SOURCES = {source.name: source for source in (
    Source("record", "what an intact record says of itself: its place in log and queue, its time"),
    Source("file name", "the offset in the name of a log file"),
    Source("bytes", "bytes that are not zero where a message should be, or a file that is there"),
    Source("end mark", "the end mark of a full file, after which a broker creates the next one"),
    Source("unit", "a queue entry that names a record or a place in the log", each="record"),
    Source("adjoining units", "entries of different queues, of which one begins where the other ends", each="pair"),
    Source("second unit", "another entry that agrees: of the record after a gap, or the next of the queue"),
    Source("no unit", "queues without an entry for any record in question"),
    Source("neighbours", "records before and after a place of a queue that are in order with it", each="neighbour"),
    Source("elimination", "no other place is left for a record"),
    Source("one bit", "exactly one flipped bit makes a record agree with all that name it"),
    Source("earlier record", "a record before it in the log that holds the same place"),
    Source("numbering", "queues that continue across the edges of a file, or break there"),
    Source("leaps", "queues that skip more offsets to a file than there is room for", each="queue after the first"),
    Source("times", "store times that go back at the edges of a file"),
    Source("files after it", "files that would all be older than this one", each="file"),
    Source("index", "the index names messages there; in a file with right ones, ten times as many wrong ones"),
    Source("index right elsewhere", "the same index files are right about another log file"),
    Source("checkpoint", "the times and offsets of the checkpoint"),
    Source("topics.json", "the table of topics knows the one topic and not the other"),
)}
INDEX_OUTWEIGHED = 10
"""Number of wrong index entries that outweigh one that happens to lead to a record."""


# --- The decision.


class Explanation(Struct, frozen=True, eq=False):
    """What some bytes of the log are, if not what the log says so far: `becomes`. `kind` names the doubt.

    `claims`: what the sources say of it; it holds if they say `says` rather than `stored`, what the bytes say. Without
    claims it follows from what was accepted before. `where`: the range that it explains, (start, stop). `among`: the
    number of ranges that the same witnesses judge. `about`: what a report tells of it.
    """

    kind: str
    becomes: Becomes
    claims: tuple[Claim[Any], ...] = ()
    says: Any = True
    stored: Any = False
    where: tuple[int, int] | None = None
    among: int = 0
    about: Any = None


def decide(found: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """Return the explanations that outweigh what the log says: the only place where one claim outweighs another."""
    taken: set[tuple[int, int]] = set()
    accepted: list[Explanation] = []
    for one in found:
        if one.where in taken or (one.claims and most_claimed(map(_weighed, one.claims), one.stored) != one.says):
            continue
        accepted.append(one)
        taken |= {one.where} if one.where is not None else set()
    denied = Counter(one.kind for one in accepted if one.among)
    return tuple(one for one in accepted if not 1 < one.among <= denied[one.kind])


def _weighed(claim: Claim[Any]) -> Claim[Any]:
    return claim._replace(weight=claim.weight * SOURCES[claim.source].weight)


# --- What recover may edit in a record: the witness, the finding, whether it is done unasked, and the limit.


UNASKED, ON_DEMAND = "unasked", "--mend-bits"


class Policy(Struct, frozen=True):
    """One kind of edit. `limit`: number of records that are examined for it in a store; `why`: the reason for the
    limit.

    `of_damage`: without the edit the record is damage; `is_loss`: its message counts as damaged.
    """

    kind: str
    witness: str
    finding: str
    done: str
    limit: int
    why: str
    of_damage: bool = False
    is_loss: bool = True


_EACH_BIT = "every bit of the properties is tried, and more at once do not come from flipped bits"
POLICIES = {policy.kind: policy for policy in (
    Policy("field", "its checksums and a place that its queue lost", "commitlog-damaged-record", UNASKED, 100,
           "neighbours in one damage: each is compared with all lost places",
           of_damage=True),
    Policy("bit", "its checksum", "commitlog-flipped-bit", ON_DEMAND, 100,
           "as for fields; and above 262 KiB other damage too often looks like a flipped bit", of_damage=True),
    Policy("place", "entries, neighbours and gaps of its queue", "commitlog-contradicted-field", ON_DEMAND, 10_000,
           "records are read one by one"),
    Policy("lmq", "the entries of LMQ queues", "commitlog-contradicted-field", ON_DEMAND, 100, _EACH_BIT),
    Policy("flag", "its body", "commitlog-contradicted-flag", ON_DEMAND, 100, "more come from a client, not damage"),
    Policy("service", "its topic", "commitlog-unserved-message", ON_DEMAND, 100, _EACH_BIT),
    Policy("tag", "its queue entry", "commitlog-flipped-property", ON_DEMAND, 100, _EACH_BIT, is_loss=False),
    Policy("key", "the index", "commitlog-flipped-property", ON_DEMAND, 100, _EACH_BIT, is_loss=False),
    Policy("checksum", "the checksum after it", "commitlog-flipped-property", ON_DEMAND, 100, _EACH_BIT, is_loss=False),
)}
