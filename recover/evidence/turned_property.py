"""The one bit of a message kept for later that makes its properties what a broker's service can read."""

from __future__ import annotations

from collections.abc import Collection

from formats import properties as props
from formats.commitlog import Record, iter_index_keys
from formats.commitlog.service import is_served
from recover.evidence.contradicted_carrier import a_bit_away
from recover.evidence.expected import QueueKey

_YEAR_MS = 366 * 24 * 3600 * 1000


def served_again(record: Record, queues: Collection[QueueKey]) -> tuple[Record, int, int] | None:
    """(record, byte, bit), or None if there is no such bit or more than one.

    Of several the one that names one of these `queues`, and no time that is years away.
    """
    found = [
        one for one in a_bit_away(record)
        if is_served(one[0]) and props.structure_problem(one[0].properties) is None and _keys(one[0]) == _keys(record)
    ]
    if len(found) > 1:
        found = [one for one in found if _is_likely(one[0], queues)]
    return found[0] if len(found) == 1 else None


def _keys(record: Record) -> list[str]:
    return list(iter_index_keys(record, tags=True))


def _is_likely(record: Record, queues: Collection[QueueKey]) -> bool:
    values = record.property_map()
    time = int(values.get(props.TIMER_OUT_MS, record.store_timestamp))
    named = QueueKey(values[props.REAL_TOPIC], int(values[props.REAL_QID]))
    return named in queues and abs(time - record.store_timestamp) < _YEAR_MS
