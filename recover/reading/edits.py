"""Edits: corrections of a part of a record that other evidence shows to be wrong.

One type covers all of them: a field fixed by other parts, a bit named by a checksum or a witness, a place shown by a
queue. Several edits of one record apply in order. `recover.reading.policy` has their policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, structs

from formats import properties as props
from formats.basics import CRC31_MASK
from formats.record import Record, encode
from recover.derived.expected import QueueKey

Place = tuple[QueueKey, int]


class Edit(Struct, frozen=True):
    """Replaces the `stored` bytes at `position` of a record by `content`, which restores the original `record`.

    `start`: physical offset of the record. `before` and `after`: the field's values as text. `places`: the queue
    positions to which an edit moves it. `kind` is that of its policy.
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
        """How unlikely a false match is: one in this many other damages looks like a flipped bit of such a record."""
        return (CRC31_MASK + 1) // (8 * self.record.total_size)

    @property
    def place(self) -> Place:
        record = self.record
        return self.places[0] if self.places else (QueueKey(record.topic_name, record.queue_id), record.queue_offset)


def between(
    kind: str, stored: Record, right: Record, field: str, values: tuple[str, str] = ("", ""),
    places: tuple[Place, ...] = (),
) -> Edit:
    """Return the edit from the `stored` record to `right`, which has the same length; `values`: the field before and
    after."""
    old, new = encode(stored), encode(right)
    differ = [at for at, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
    first, stop = differ[0], differ[-1] + 1
    return Edit(kind, stored.phy_offset, right, field, first, old[first:stop], new[first:stop], *values, places)


def single_edit(edits: Iterable[Edit]) -> Edit | None:
    """Return the edit if all of these edits make the same record; None if there is none, or if they make different
    ones."""
    made = {encode(edit.record): edit for edit in edits}
    return next(iter(made.values())) if len(made) == 1 else None


def property_bit(
    kind: str, stored: Record, agrees: Callable[[Record], bool], places: tuple[Place, ...] = (), *,
    likely: Callable[[Record], bool] | None = None,
) -> Edit | None:
    """Return the edit of the single property bit with which `agrees` accepts the record; `likely` decides between
    several.

    None if no bit, or more than one, qualifies, or if a property CRC proves the properties unchanged.
    """
    if stored.property_crc is not None:
        return None
    found = [one for one in one_bit_variants(stored) if props.structure_problem(one.properties) is None and agrees(one)]
    if likely is not None and len(found) > 1:
        found = [*filter(likely, found)]
    return single_edit(_of_property(kind, stored, right, places) for right in found)


def _of_property(kind: str, stored: Record, right: Record, places: tuple[Place, ...]) -> Edit:
    before, after = stored.property_map(), right.property_map()
    name = next((name for name in after if before.get(name) != after[name]), "")
    return between(kind, stored, right, name, (before.get(name, ""), after.get(name, "")), places)


def by_record(edits: Iterable[Edit]) -> dict[int, list[Edit]]:
    """Group edits by the physical offset of their record, ascending; edits of one record keep their order.

    Each applies to the record with the previous ones: the last one's record is the result of all.
    """
    found: dict[int, list[Edit]] = {}
    for edit in sorted(edits, key=lambda edit: edit.start):
        found.setdefault(edit.start, []).append(edit)
    return found


def one_bit_variants(record: Record) -> Iterator[Record]:
    """Yield the record with each single bit of its properties flipped."""
    for position in range(len(record.properties)):
        for bit in range(8):
            content = bytearray(record.properties)
            content[position] ^= 1 << bit
            yield structs.replace(record, properties=bytes(content))
