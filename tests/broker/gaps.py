"""Chosen messages spoilt and the store recovered: bridged gaps at places that matter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fixtures.damage import Change, Damage
from fixtures.lab.observe import reference
from fixtures.lab.report import Delivered, Logged
from tests.broker.judge import REFUSED, mqtool
from tests.support.harm import gone
from tests.support.stores import flip, log_place, real_store

#: Body of a V1 record with IPv4 hosts; none of the stores used here has another kind.
_BODY = 88
#: Any number of log files is replayed; 5.4 and later look at no more than ten unless told.
REPLAY: dict[str, object] = {"commitLogRecoverMaxNum": 1000}


def spoil(root: Path, records: Iterable[Logged], place: int = _BODY, bits: int = 4) -> Damage:
    """Bits flipped in the body of each of these records, or in the byte at `place` in them."""
    changes, offsets = [], []
    for record in records:
        path, at = log_place(root, record.phy_offset + place)
        flip(path, at, bits)
        changes.append(Change(f"commitlog/{path.name}", at, "bits flipped"))
        offsets.append(record.phy_offset)
    lost = tuple(sorted(offsets))
    return Damage("spoil", 0, tuple(changes), lost, lost)


def of_queue(store: str, queue: str) -> list[Logged]:
    """The records of a queue ("Topic/0"), in its order."""
    found = [record for record in reference(store).walked if f"{record.topic}/{record.queue_id}" == queue]
    return sorted(found, key=lambda record: record.queue_offset)


def some_records(store: str, topic: str, count: int = 3, queue_id: int | None = None) -> list[Logged]:
    """Records of a topic from the middle of its queues; not neighbours in one queue."""
    found = [r for r in reference(store).walked if r.topic == topic and queue_id in (None, r.queue_id)]
    assert len(found) > 2 * count, f"{store} holds only {len(found)} of {topic}"
    return found[len(found) // 3 :: max(1, len(found) // (2 * count))][:count]


def recovered(
    store: str, folder: Path, records: Iterable[Logged], *options: str
) -> tuple[Path, Damage, dict[str, Any]]:
    """A copy with these records spoilt and then recovered, what was done to it, and what recover said."""
    root = real_store(store, folder)
    done = spoil(root, records)
    result = mqtool("recover", root, "--yes", *options)
    assert not result.code & REFUSED, result.document
    return root, done, result.document


def deliveries(store: str, topic: str) -> list[Delivered]:
    """What the sound store delivers of a topic."""
    return [message for queue, message in reference(store).messages() if queue.rpartition("/")[0] == topic]


def prepare(root: Path, kind: str) -> None:
    """Make the next start one after a crash, or (replay) one that builds all queues and the index anew."""
    if kind != "clean":
        (root / "abort").touch()
    if kind == "replay":
        gone("consumequeue", "consumequeue_ext", "index", "checkpoint")(root)
