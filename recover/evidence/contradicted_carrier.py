"""Records that fill LMQ queues, and of which one bit of the properties was changed.

No checksum covers properties unless brokers were told to write one. What such a record no longer says, the
units still do: they name its place and its length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import structs

from formats import properties as props
from formats.commitlog import Record
from recover.evidence.expected import QueueKey, lmq_targets

Place = tuple[QueueKey, int]

_NAMES = (props.INNER_MULTI_DISPATCH, props.INNER_MULTI_QUEUE_OFFSET)


def restored_carrier(
    record: Record, claimed: Collection[Place], right: Collection[Place], unknown: Collection[Place] = ()
) -> Record | None:
    """The one record, a bit away from `record`, that names every place that units claim it for.

    It has to go on naming those places of the stored record at which its units stand (`right`), and may name
    those of queues that are not there (`unknown`), but no others. None if there is no such record, or more
    than one, or if a property CRC says that nothing was changed.
    """
    if record.property_crc is not None:
        return None
    needed = set(claimed) | set(right)
    allowed = needed | set(unknown)
    found = [changed for changed, _, _ in a_bit_away(record) if needed <= set(lmq_targets(changed)) <= allowed]
    return found[0] if len(found) == 1 else None


def changed_property(record: Record, right: Record) -> tuple[str, str]:
    """Name of the property that differs from the one in `right`, and its value as stored."""
    stored, values = record.property_map(), right.property_map()
    name = next((name for name in _NAMES if stored.get(name) != values.get(name)), _NAMES[0])
    return name, stored.get(name, "")


def a_bit_away(record: Record) -> Iterator[tuple[Record, int, int]]:
    """Each record that differs in one bit of its properties; which byte and bit of the record that is."""
    start = record.total_size - len(record.properties)
    for position in range(len(record.properties)):
        for bit in range(8):
            content = bytearray(record.properties)
            content[position] ^= 1 << bit
            yield structs.replace(record, properties=bytes(content)), start + position, bit
