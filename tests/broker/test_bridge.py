"""A bridged gap as brokers and their consumers see it: in every start, by pull and by push, in system topics."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import Change, Damage
from fixtures.lab.lab import VERSIONS, Delivered, Logged
from fixtures.lab.observe import reference
from fixtures.lab.packed import readers, settings
from fixtures.lab.whole import Subscription, WholeBroker
from formats.names import offset_to_name
from tests.broker.cases import Case, marked
from tests.broker.judge import FILLER, REFUSED, broken_promises, mqtool, start
from tests.support.brokers import require_lab
from tests.support.stores import copy_store, real_store

pytestmark = pytest.mark.broker

FILE_SIZE = 1 << 20
#: Body of a V1 record with IPv4 hosts; none of the stores here has another kind.
BODY = 88
REPLAY: dict[str, object] = {"commitLogRecoverMaxNum": 1000}
STORES = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0")
STARTS = [(s, lost, v) for s in STORES for lost in ("default", "visible", "gap") for v in readers(s)]


def spoil(root: Path, *records: Logged) -> Damage:
    """One bit flipped in the body of each of these records."""
    changes = []
    for record in records:
        path = root / "commitlog" / offset_to_name(record.phy_offset // FILE_SIZE * FILE_SIZE)
        at = record.phy_offset % FILE_SIZE + BODY
        with path.open("r+b") as handle:
            handle.seek(at)
            old = handle.read(1)[0]
            handle.seek(at)
            handle.write(bytes([old ^ 4]))
        changes.append(Change(f"commitlog/{path.name}", at, "bit flipped in the body"))
    offsets = tuple(sorted(record.phy_offset for record in records))
    return Damage("spoil", 0, tuple(changes), offsets, offsets)


def some_records(store: str, topic: str, count: int = 3, queue_id: int | None = None) -> list[Logged]:
    """Records of a topic from the middle of its queues; not neighbours in one queue."""
    found = [r for r in reference(store).walked if r.topic == topic and queue_id in (None, r.queue_id)]
    assert len(found) > 4 * count, f"{store} holds only {len(found)} of {topic}"
    return found[len(found) // 3 :: max(1, len(found) // (2 * count))][:count]


def recovered(store: str, folder: Path, records: list[Logged], *options: str) -> tuple[Path, Damage, dict[str, Any]]:
    """A copy with these records spoilt and then recovered."""
    root = real_store(store, folder)
    done = spoil(root, *records)
    result = mqtool("recover", root, "--yes", *options)
    assert not result.code & REFUSED, result.document
    return root, done, result.document


@pytest.mark.parametrize(("store", "lost", "version"), marked(STARTS, 6))
def test_every_start_keeps_what_stands_behind_a_gap(store: str, lost: str, version: str, tmp_path: Path) -> None:
    require_lab()
    options = [] if lost == "default" else ["--lost", lost]
    root, done, told = recovered(store, tmp_path, some_records(store, "TopicA"), *options)
    case = Case(store, "spoil", version)
    for kind in ("clean", "crash", "replay"):
        if kind == "replay" and lost == "gap":
            continue  # then a broker's own replay moves every later message down: the reason why it is not the default
        copied = copy_store(root, tmp_path / kind)
        _prepare(copied, kind)
        copy = copy_store(copied, tmp_path / f"started-{kind}")
        seen = start(case, copy, conf={**settings(store), **(REPLAY if kind == "replay" else {})})
        without_lmq = version == "4.5.1" and kind == "replay"
        assert not broken_promises(case, seen, done, told["valid_to"], copied, lmq=not without_lmq), kind


def _prepare(root: Path, kind: str) -> None:
    if kind != "clean":
        (root / "abort").touch()
    if kind == "replay":
        for part in ("consumequeue", "consumequeue_ext", "index"):
            shutil.rmtree(root / part, ignore_errors=True)
        (root / "checkpoint").unlink()


@pytest.mark.parametrize(("lost", "version"), marked([(k, v) for k in ("default", "visible") for v in VERSIONS], 2))
def test_push_consumers_get_everything_behind_a_gap(lost: str, version: str, tmp_path: Path) -> None:
    require_lab()
    store = "clean-4.5.1"
    options = [] if lost == "default" else ["--lost", lost]
    root, done, _ = recovered(store, tmp_path, some_records(store, "TopicA"), *options)
    asked = [Subscription("TopicA"), Subscription("TopicA", "Tag1"), Subscription("TopicA", "*", True)]
    with WholeBroker(version, root, settings(store), kill=True) as broker:
        everything, tagged, orderly = broker.consume(asked)
    due = _intact(store, "TopicA", done)
    for received in (everything, orderly):
        counts = Counter(one.phy_offset for one in received if one.body_length)
        assert due - set(counts) == set()
        assert sum(counts.values()) - len(counts) <= len(done.lost)
        assert FILLER not in {one.topic for one in received}
        markers = [one for one in received if one.phy_offset in done.lost]
        assert len(markers) <= (len(done.lost) if lost == "visible" else 0)
    assert {one.phy_offset for one in tagged} == {o.phy_offset for o in everything if o.tags == "Tag1"}


def _intact(store: str, topic: str, done: Damage) -> set[int]:
    return {m.phy_offset for m in _messages(store, topic) if m.phy_offset not in done.lost}


def _messages(store: str, topic: str) -> list[Delivered]:
    return [m for queue, m in reference(store).messages() if queue.startswith(topic + "/")]


@pytest.mark.parametrize("version", [pytest.param(v, marks=pytest.mark.deep if v == "4.9.7" else []) for v in VERSIONS])
def test_delay_service_walks_over_a_gap(version: str, tmp_path: Path) -> None:
    """The level is delivered again from its start; its offset must reach the end of its queue."""
    require_lab()
    store, level = "clean-4.5.1", 3
    spoilt = some_records(store, "SCHEDULE_TOPIC_XXXX", 2, level - 1)
    root, _, _ = recovered(store, tmp_path, spoilt)
    for path in (root / "config").glob("delayOffset.json*"):
        path.unlink()
    sound = reference(store).after_start
    assert sound is not None
    end = sound.queues[f"SCHEDULE_TOPIC_XXXX/{level - 1}"][1]
    with WholeBroker(version, root, {**settings(store), "flushDelayOffsetInterval": 500}, kill=True):
        assert _await_level(root / "config" / "delayOffset.json", level, end) >= end


def _await_level(path: Path, level: int, end: int) -> int:
    reached, until = 0, time.monotonic() + 40
    while reached < end and time.monotonic() < until:
        time.sleep(0.5)
        if path.exists() and (text := path.read_text("utf-8")):
            reached = _offset(text, level)
    return reached


def _offset(text: str, level: int) -> int:
    """Brokers leave number keys without quotes."""
    table = text[text.find("offsetTable") :]
    words = "".join(c if c.isdigit() else " " for c in table).split()
    pairs = dict(zip(map(int, words[::2]), map(int, words[1::2]), strict=False))
    return pairs.get(level, 0)
