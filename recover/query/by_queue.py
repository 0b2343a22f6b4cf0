"""Messages by queue offset or by time through the consume queue, as a broker finds them."""

from __future__ import annotations

import numpy as np

from formats.consumequeue import CQ_UNIT, CqUnit, is_pre_blank, is_valid
from recover.errors import Refusal
from recover.files.ext_files import ExtFiles
from recover.files.mapped_files import MappedFileQueue
from recover.files.queue_files import unit_at
from recover.files.store import QueueFolder, Store
from recover.query.model import Answer, Found, note_damage, record_at, store_timestamp_at
from recover.scan.judge import LogReader


class _Queue:
    """The units of one queue, read one at a time."""

    def __init__(self, store: Store, topic: str, queue_id: int) -> None:
        folder = next((f for f in store.queue_folders if (f.topic, f.queue_id) == (topic, queue_id)), None)
        if folder is None:
            known = sorted({f.queue_id for f in store.queue_folders if f.topic == topic})
            hint = f"That topic has the queues {', '.join(map(str, known))}." if known else \
                "No queue of that topic is there; --scan looks through the log instead."
            raise Refusal(f"there is no consume queue {topic}/{queue_id}", hint)
        self.folder: QueueFolder = folder
        self.files = MappedFileQueue.load((folder.path,), store.queue_file_size)
        self.file_size = store.queue_file_size
        self.min_offset = self.files.min_offset // CQ_UNIT.size
        self.max_offset = self._max_offset()

    def unit(self, queue_offset: int) -> CqUnit | None:
        """The unit of a queue offset, None where there is no file. `OSError`."""
        return unit_at(self.files, queue_offset)

    def _max_offset(self) -> int:
        from recover.inspect_store.pointers import queue_end

        return queue_end(self.files.files)


def deliver_time(store: Store, topic: str, queue_id: int, queue_offset: int) -> int | None:
    """When a delayed message is due: what its unit holds in place of a tags code. None without a unit."""
    try:
        unit = _Queue(store, topic, queue_id).unit(queue_offset)
    except (Refusal, OSError):
        return None
    if unit is None or not is_valid(unit) or is_pre_blank(unit):
        return None
    codes = ExtFiles(store, topic, queue_id).tags_codes(np.array([unit.tags_code], dtype=np.int64))
    return int(codes[0]) if codes[0] > 0 else None


def query_offset(store: Store, topic: str, queue_id: int, queue_offset: int) -> Answer:
    """The message at a queue offset. `Refusal` (8) when the queue is not there."""
    answer = Answer("queue", queue_offset=queue_offset)
    queue = _Queue(store, topic, queue_id)
    unit = queue.unit(queue_offset) if queue_offset >= 0 else None
    if unit is None or not is_valid(unit) or is_pre_blank(unit):
        answer.notes.append(f"no unit there; the queue holds {queue.min_offset} to {queue.max_offset}")
        return answer
    with LogReader(store.commitlog) as log:
        record = record_at(store, log, unit.phy_offset)
    if record is None:
        expired = unit.phy_offset < store.commitlog.min_offset
        if not expired:
            with LogReader(store.commitlog) as log:
                note_damage(store, log, unit.phy_offset, answer, named=True)
        answer.notes.append(f"the unit points to {unit.phy_offset}, " + (
            "which has expired from the log" if expired else "where no intact record starts"))
        return answer
    if (record.topic_name, record.queue_id, record.queue_offset) != (topic, queue_id, queue_offset):
        answer.notes.append(f"the unit points to a record of {record.topic_name}/{record.queue_id}, queue offset "
                            f"{record.queue_offset}")
    answer.messages.append(Found(record))
    return answer


def query_time(store: Store, topic: str, queue_id: int, timestamp: int) -> Answer:
    """The first message of a queue stored at or after `timestamp` (ms), by bisection over the units.

    ConsumeQueue.getOffsetInQueueByTime with the lower boundary. Units of expired messages count as
    earlier. `Refusal` (8) when the queue is not there.
    """
    queue = _Queue(store, topic, queue_id)
    answer = Answer("queue")
    low, high = queue.min_offset, queue.max_offset
    with LogReader(store.commitlog) as log:
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(middle)
            if unit is None or is_pre_blank(unit) or unit.phy_offset < store.commitlog.min_offset:
                low = middle + 1
                continue
            stored = store_timestamp_at(log, unit.phy_offset)
            if stored < 0:
                answer.incomplete(f"the record of queue offset {middle} could not be read")
                break
            if stored < timestamp:
                low = middle + 1
            else:
                high = middle
    answer.queue_offset = low
    if low >= queue.max_offset or not answer.complete:
        answer.notes.append(f"no message of that queue was stored at or after that time; its end is {queue.max_offset}")
        return answer
    found = query_offset(store, topic, queue_id, low)
    found.complete &= answer.complete
    return found
