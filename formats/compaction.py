"""Compaction of topics that keep the newest message of a key. Sources: CompactionLog, CompactionPositionMgr.

compactionLog/<topic>/<queue> holds commitlog records whose physical offset counts from the start of
that log, compactionCq/<topic>/<queue> the units of `formats.batchconsumequeue` for them, a file of the
same name each. Since 5.0.0.
"""

from __future__ import annotations

from formats.config.json import Json, loads
from formats.errors import FormatError

POSITION_FILE_NAME = "position-checkpoint"
LOG_DIRECTORY = "compactionLog"
CQ_DIRECTORY = "compactionCq"
WORK_DIRECTORIES = ("compacting", "replicating")
"""Below a queue's folder: what a run was about to write; a start throws it away."""

_TABLE = "queueOffsetMap"
def decode_positions(data: bytes) -> dict[tuple[str, int], int]:
    """position-checkpoint: (topic, queue id) -> queue offset compacted up to.

    `FormatError` as `formats.config.json.loads`, or "bad-positions" when the text holds something else.
    """
    value = loads(data)
    table = value.get(_TABLE) if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise FormatError("bad-positions", 0, f"no table {_TABLE}")
    return {_queue(str(key)): _position(str(key), offset) for key, offset in table.items()}


def _queue(key: str) -> tuple[str, int]:
    topic, separator, queue_id = key.rpartition("_")
    if not separator or not (queue_id.isascii() and queue_id.isdecimal()) or len(queue_id) > len(str(2**31)):
        raise FormatError("bad-positions", 0, f"{key!r} is not a topic and a queue", key=key)
    return topic, int(queue_id)


def _position(key: str, value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError("bad-positions", 0, f"the offset of {key!r} is not a number", key=key)
    return value
