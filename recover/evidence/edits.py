"""Edits: a part of a record that was something else, told by what speaks of it beside the part itself; their policy.

One value for all: a field that others fix, a bit that a checksum or a witness names, a place that a queue shows.
Several edits of one record build on one another. `POLICIES` says of each kind who tells it, what verify reports, and
whether recover does it unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, structs

from formats import properties as props
from formats.basics import CRC31_MASK
from formats.record import Record, encode
from recover.derived.expected import QueueKey

# --- What recover may edit in a record: who tells it, what verify reports, whether it is done unasked, and its limit.
#
# The log outranks what derives from it: where a checksum takes a record, nothing of it is written unasked.


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


Place = tuple[QueueKey, int]


class Edit(Struct, frozen=True):
    """`content` from `position` of a record on, in place of what is `stored`, makes it the `record` that it was.

    `start`: physical offset of the record. `before` and `after`: the field's values in words. `places`: where in which
    queues it belongs by an edit that moves it. `kind` is that of its policy.
    """

    kind: str
    start: int
    record: Record
    field: str
    position: int
    stored: bytes
    content: bytes
    before: str = ""
    after: str = ""
    places: tuple[Place, ...] = ()

    @property
    def stop(self) -> int:
        return self.start + self.record.total_size

    @property
    def bit(self) -> int | None:
        """The bit of the byte at `position` that was flipped, None if more than one bit differs."""
        change = int.from_bytes(self.stored, "big") ^ int.from_bytes(self.content, "big")
        return change.bit_length() - 1 if len(self.content) == 1 == change.bit_count() else None

    @property
    def odds(self) -> int:
        """Of so many damages of another kind, one looks like a flipped bit of such a record."""
        return (CRC31_MASK + 1) // (8 * self.record.total_size)

    @property
    def place(self) -> Place:
        record = self.record
        return self.places[0] if self.places else (QueueKey(record.topic_name, record.queue_id), record.queue_offset)


def between(
    kind: str, stored: Record, right: Record, field: str, values: tuple[str, str] = ("", ""),
    places: tuple[Place, ...] = (),
) -> Edit:
    """The edit that makes `right` of the `stored` record, as long as that; `values`: the field's before and after."""
    old, new = encode(stored), encode(right)
    differ = [at for at, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
    first, stop = differ[0], differ[-1] + 1
    return Edit(kind, stored.phy_offset, right, field, first, old[first:stop], new[first:stop], *values, places)


def only(edits: Iterable[Edit]) -> Edit | None:
    """The one explanation of a record among these edits of it; None without any, and where they make several."""
    made = {encode(edit.record): edit for edit in edits}
    return next(iter(made.values())) if len(made) == 1 else None


def property_bit(
    kind: str, stored: Record, agrees: Callable[[Record], bool], places: tuple[Place, ...] = (), *,
    likely: Callable[[Record], bool] | None = None,
) -> Edit | None:
    """The one bit of a record's properties without which `agrees` takes the record; of several the `likely` one.

    None where there is no such bit, or more than one, or a property CRC, which shows that nothing was changed.
    """
    if stored.property_crc is not None:
        return None
    found = [one for one in a_bit_away(stored) if props.structure_problem(one.properties) is None and agrees(one)]
    if likely is not None and len(found) > 1:
        found = [*filter(likely, found)]
    return only(_of_property(kind, stored, right, places) for right in found)


def _of_property(kind: str, stored: Record, right: Record, places: tuple[Place, ...]) -> Edit:
    before, after = stored.property_map(), right.property_map()
    name = next((name for name in after if before.get(name) != after[name]), "")
    return between(kind, stored, right, name, (before.get(name, ""), after.get(name, "")), places)


def by_record(edits: Iterable[Edit]) -> dict[int, list[Edit]]:
    """Edits by the physical offset of their record, ascending; of one record in the order in which they were found.

    Each was found on the record with those before it: the last one's is what all of them make.
    """
    found: dict[int, list[Edit]] = {}
    for edit in sorted(edits, key=lambda edit: edit.start):
        found.setdefault(edit.start, []).append(edit)
    return found


def a_bit_away(record: Record) -> Iterator[Record]:
    for position in range(len(record.properties)):
        for bit in range(8):
            content = bytearray(record.properties)
            content[position] ^= 1 << bit
            yield structs.replace(record, properties=bytes(content))
