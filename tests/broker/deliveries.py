"""What a real broker's services store once it has started: the judge of what predict says that a start delivers.

It shares no code with mqtool: records are read by the plain reader, before the start and after it, and what was
appended is counted by kind and real topic. A message that the log held at the same place before, with the same unique
key, birth, reconsume times and body, came again; so did a half message whose commit the log held, or that was stored
twice. What a pull client gets a second time is counted as well.
"""

from __future__ import annotations

import shutil
import struct
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fixtures.lab.kinds import step
from fixtures.lab.lab import SMALL_FILES
from fixtures.lab.whole import WholeBroker
from tests.support import plain_reader as plain

HALF, OP, SCHEDULE, WHEEL = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX",
                             "rmq_sys_wheel_timer")
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_SECONDS = 9
#: With these the first check of half messages comes soon, and the second after the broker is killed.
CONF: dict[str, object] = {**SMALL_FILES, "transactionCheckInterval": CHECK_SECONDS * 1000, "timerWheelEnable": True}
_QUIET_SECONDS = 3.0
#: (kind, real topic) -> messages.
Counts = Counter[tuple[str, str]]


class Happened(NamedTuple):
    """What a start stored: messages that came again, for the first time, and half messages that it gave up; what pull
    clients got more than once, by topic; and the settings that it ran with."""

    again: Counts
    now: Counts
    skipped: Counts
    twice: Counter[str]


def happened(version: str, copy: Path, conf: dict[str, object] | None = None, read: bool = True) -> Happened:
    """Start a whole broker on the copy, let its services deliver what is due, kill it, and count."""
    before = plain.records(copy)
    with WholeBroker(version, copy, {**CONF, **(conf or {})}, kill=True) as broker:
        began = time.monotonic()
        _settle(copy, began)
        topics = sorted({real(record)[0] for record in before if record.topic in (SCHEDULE, WHEEL)})
        got = broker.act([step("read", *topics)]) if read and topics else {}
    twice = Counter({topic: sum(number - 1 for number in Counter(
        (key, crc) for rows in queues.values() for _, _, key, crc in rows).values()) for topic, queues in got.items()})
    return counted(before, plain.records(copy), twice)


def counted(before: list[plain.Record], after: list[plain.Record], twice: Counter[str]) -> Happened:
    """Count the records of `after` that `before` lacks."""
    end = max((record.phy_offset + record.size for record in before), default=0)
    known = {identity(record, *where(record)) for record in before}
    found = Happened(Counter(), Counter(), Counter(), twice)
    seen: set[tuple[object, ...]] = set()
    # a start is foretold up to its first check; on a slow machine a second one comes before the broker is killed
    first = min((record.store_time for record in after if record.phy_offset >= end
                 and record.topic in (HALF, DISCARDED)), default=0)
    for record in after:
        if record.phy_offset < end or record.topic in (SCHEDULE, WHEEL, OP) or record.topic.startswith("rmq_sys_"):
            continue
        if record.topic in (HALF, DISCARDED) and record.store_time > first + (CHECK_SECONDS - 2) * 1000:
            continue
        if record.topic in (HALF, DISCARDED):
            kind, topic = "half", record.properties.get("REAL_TOPIC", record.topic)
        else:
            kind, topic = ("timer" if "TIMER_OUT_MS" in record.properties else "delay"), record.topic
        own = identity(record, record.topic, record.queue_id)
        if record.topic == DISCARDED:
            found.skipped[kind, topic] += 1
        elif own in seen or identity(record, *real(record)) in known:
            found.again[kind, topic] += 1
        else:
            found.now[kind, topic] += 1
        # of the copies of a half message that earlier checks left, only the last one was not stored again before
        seen.add(own)
    return found


def where(record: plain.Record) -> tuple[str, int]:
    return record.topic, record.queue_id


def real(record: plain.Record) -> tuple[str, int]:
    """Topic and queue that a message waits for."""
    return (record.properties.get("REAL_TOPIC", record.topic),
            int(record.properties.get("REAL_QID", record.queue_id)))


def identity(record: plain.Record, topic: str, queue: int) -> tuple[object, ...]:
    raw = record.raw()
    return (topic, queue, record.properties.get("UNIQ_KEY"), raw["born_timestamp"],
            struct.unpack(">i", raw["reconsume_times"])[0], record.body)


def _settle(copy: Path, began: float) -> None:
    """Wait for the first check, and until the log has not grown for a while."""
    size, since = -1, time.monotonic()
    while True:
        time.sleep(0.5)
        now = sum(len(path.read_bytes().rstrip(b"\0")) for path in copy.glob("commitlog*/*") if path.is_file())
        if now != size:
            size, since = now, time.monotonic()
        waited = time.monotonic() - began
        if waited > CHECK_SECONDS + 2 and time.monotonic() - since > _QUIET_SECONDS:
            return
        if waited > 2 * CHECK_SECONDS - 1:
            return


def copied(root: Path, target: Path) -> Path:
    return Path(shutil.copytree(root, target, symlinks=True))
