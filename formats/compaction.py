"""Compaction of topics that keep the newest message of a key. Sources: CompactionLog, CompactionPositionMgr.

compactionLog/<topic>/<queue> holds commitlog records whose physical offset counts from the start of
that log, compactionCq/<topic>/<queue> the units of `formats.batchconsumequeue` for them, a file of the
same name each. Since 5.0.0.
"""

from __future__ import annotations

from formats.batchconsumequeue import BATCH_CQ_UNIT
from formats.config.json import Json, Style, dumps, loads
from formats.errors import FormatError

POSITION_FILE_NAME = "position-checkpoint"
LOG_DIRECTORY = "compactionLog"
CQ_DIRECTORY = "compactionCq"
WORK_DIRECTORIES = ("compacting", "replicating")
"""Below a queue's folder: what a run was about to write; a start throws it away."""

DEFAULT_LOG_FILE_SIZE = 100 * 1024 * 1024
DEFAULT_CQ_FILE_SIZE = 10 * 1024 * 1024
_TABLE = "queueOffsetMap"
_LEAST_CQ_FILES = 5


def decode_positions(data: bytes) -> dict[tuple[str, int], int]:
    """position-checkpoint: (topic, queue id) -> queue offset compacted up to.

    `FormatError` as `formats.config.json.loads`, or "bad-positions" when the text holds something else.
    """
    value = loads(data)
    table = value.get(_TABLE) if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise FormatError("bad-positions", 0, f"no table {_TABLE}")
    return {_queue(str(key)): _position(str(key), offset) for key, offset in table.items()}


def encode_positions(positions: dict[tuple[str, int], int]) -> bytes:
    """The text of position-checkpoint as a broker writes it."""
    table: dict[str | int, Json] = {f"{topic}_{queue_id}": offset for (topic, queue_id), offset in positions.items()}
    value: dict[str | int, Json] = {"empty": not table, _TABLE: table}
    return dumps(value, Style.FASTJSON1)


def cq_file_size(configured: int = DEFAULT_CQ_FILE_SIZE) -> int:
    """Length of a file of the compaction queue: rounded down to whole units."""
    return configured // BATCH_CQ_UNIT.size * BATCH_CQ_UNIT.size


def log_file_size(configured: int = DEFAULT_LOG_FILE_SIZE, cq_configured: int = DEFAULT_CQ_FILE_SIZE) -> int:
    """Length of a compaction log file: the nearest multiple of the queue file's, five of them at least."""
    cq_size = cq_file_size(cq_configured)
    count, rest = divmod(configured, cq_size)
    if count < _LEAST_CQ_FILES:
        return _LEAST_CQ_FILES * cq_size
    return (count + (2 * rest >= cq_size)) * cq_size


def _queue(key: str) -> tuple[str, int]:
    topic, separator, queue_id = key.rpartition("_")
    if not separator or not (queue_id.isascii() and queue_id.isdecimal()) or len(queue_id) > len(str(2**31)):
        raise FormatError("bad-positions", 0, f"{key!r} is not a topic and a queue", key=key)
    return topic, int(queue_id)


def _position(key: str, value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError("bad-positions", 0, f"the offset of {key!r} is not a number", key=key)
    return value
