"""A bridged gap as every start of every broker sees it: wherever in its queue it is, and whatever the queue is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.lab.packed import readers, settings
from fixtures.lab.report import Logged
from tests.broker.cases import Case, marked
from tests.broker.gaps import REPLAY, of_queue, prepare, recovered, some_records
from tests.broker.judge import broken_promises, start
from tests.support.stores import copy_store

pytestmark = pytest.mark.broker

KINDS = ("clean", "crash", "replay")
STORES = ("clean-4.5.1", "clean-5.3.3", "killed-5.5.0")
STARTS = [(s, lost, v) for s in STORES for lost in ("default", "visible", "gap") for v in readers(s)]
#: Where in its queue; these queues are long enough for all, and end in mid-log.
PLACES = {
    "first": slice(0, 1),
    "first three": slice(0, 3),
    "last": slice(-1, None),
    "last three": slice(-3, None),
    "neighbours": slice(40, 44),
    "all of the queue": slice(0, None),
}
QUEUE = {"clean-4.5.1": "TopicB/0", "clean-5.3.3": "Orders-2026/1", "killed-5.5.0": "TopicB/1"}
IN_QUEUE = [(s, place, v) for s in STORES for place in PLACES for v in readers(s)]
#: A queue file of this store holds 100 units.
BORDERS = {
    "last of a file": (99,),
    "first of a file": (100,),
    "both": (99, 100),
    "a whole file": tuple(range(100, 200)),
}
AT_BORDERS = [("clean-manyfiles-5.3.3", at, v) for at in BORDERS for v in readers("clean-manyfiles-5.3.3")]
SPECIAL = {
    "clean-4.5.1": (
        "%RETRY%CG_retry",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
    ),
    "clean-5.3.3": ("TopicLmq", "rmq_sys_wheel_timer", "%RETRY%CG_retry", "RMQ_SYS_TRANS_HALF_TOPIC"),
    "killed-5.5.0": ("TopicLmq", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"),
}
IN_SPECIAL = [(s, topic, v) for s in STORES for topic in SPECIAL[s] for v in readers(s)]


@pytest.mark.parametrize(("store", "lost", "version"), marked(STARTS, 2))
def test_every_start_keeps_what_stands_behind_a_gap(store: str, lost: str, version: str, tmp_path: Path) -> None:
    options = [] if lost == "default" else ["--lost", lost]
    # With filler alone a broker's own replay moves later messages down: the reason why it is not the default.
    kinds = KINDS[:2] if lost == "gap" else KINDS
    assert not _broken(store, some_records(store, "TopicA"), version, tmp_path, *options, kinds=kinds)


@pytest.mark.parametrize(("store", "place", "version"), marked(IN_QUEUE, 2))
def test_gap_anywhere_in_its_queue(store: str, place: str, version: str, tmp_path: Path) -> None:
    records = of_queue(store, QUEUE[store])[PLACES[place]]
    assert not _broken(store, records, version, tmp_path, write=QUEUE[store])


@pytest.mark.parametrize(("store", "place", "version"), marked(AT_BORDERS, 1))
def test_gap_at_the_border_of_queue_files(store: str, place: str, version: str, tmp_path: Path) -> None:
    queue = of_queue(store, "Orders/2")
    assert not _broken(store, [queue[at] for at in BORDERS[place]], version, tmp_path, write="Orders/2")


@pytest.mark.parametrize(("store", "topic", "version"), marked(IN_SPECIAL, 2))
def test_gap_in_a_topic_of_the_brokers_own(store: str, topic: str, version: str, tmp_path: Path) -> None:
    assert not _broken(store, some_records(store, topic), version, tmp_path)


def _broken(
    store: str,
    records: list[Logged],
    version: str,
    folder: Path,
    *options: str,
    kinds: tuple[str, ...] = KINDS,
    write: str | None = None,
) -> dict[str, list[str]]:
    """What a clean start, one after a crash, and one that builds all queues anew each break of what was promised."""
    root, done, told = recovered(store, folder, records, *options)
    case, wrong = Case(store, "spoil", version), {}
    for kind in kinds:
        prepared = copy_store(root, folder / kind)
        prepare(prepared, kind)
        conf = {**settings(store), **(REPLAY if kind == "replay" else {})}
        copy = copy_store(prepared, folder / f"started-{kind}")
        seen = start(case, copy, conf=conf, write={write: 3} if write else None)
        lmq = not (version == "4.5.1" and kind == "replay")
        wrong[kind] = broken_promises(case, seen, done, told["valid_to"], prepared, lmq)
    return {kind: found for kind, found in wrong.items() if found}
