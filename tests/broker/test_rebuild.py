"""Queues and index made by us and by a broker from the same log are the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.lab.packed import WHOLE_BROKER, made, readers, settings
from fixtures.lab.units import Units, queue_units
from formats.index import IndexGeometry, IndexUnit, decode
from tests.broker.cases import marked
from tests.broker.judge import REFUSED, broker_options, mqtool, parts
from tests.support.brokers import oracle
from tests.support.stores import copy_store, real_store

pytestmark = pytest.mark.broker

DELAYED = "SCHEDULE_TOPIC_XXXX/"
#: Any number of log files is replayed; 5.4 and later look at no more than ten unless told.
REPLAY: dict[str, object] = {"commitLogRecoverMaxNum": 1000}
STORES = [name for name in (*WHOLE_BROKER, *made()) if "empty" not in name]
#: Their index files all come from one run, so that the order of the entries is known.
ONE_RUN = [name for name in made() if "restarts" not in name and "expired" not in name and "empty" not in name]


@pytest.mark.parametrize(("store", "version"), marked([(s, v) for s in STORES for v in readers(s)], 3))
def test_full_replay_by_a_broker_gives_the_files_that_rebuild_gives(store: str, version: str, tmp_path: Path) -> None:
    root = real_store(store, tmp_path / "log")
    for part in ("consumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(root / part, ignore_errors=True)
    (root / "checkpoint").unlink(missing_ok=True)
    (root / "abort").touch()
    theirs = copy_store(root, tmp_path / "theirs")
    conf = {**settings(store), "enableConsumeQueueExt": False}
    seen = oracle(version).start(theirs, {**conf, **REPLAY}, end="shutdown")
    assert seen.starts and seen.after_start is not None
    ours = tmp_path / "ours"
    options = broker_options(store, version, (*seen.ignored_settings, "enableConsumeQueueExt", *REPLAY))
    result = mqtool("rebuild", root, *parts(store, root), *options, *_sizes(store), "--output", ours)
    assert not result.code & REFUSED, result.document
    live = seen.after_start.min_phy
    mine, other = queue_units(ours, live), queue_units(theirs, live)
    if version.startswith("4.9."):
        mine, other = _without_delivery_times(mine), _without_delivery_times(other)
    if version == "4.5.1":  # it knows no LMQ and fills none
        mine = {name: units for name, units in mine.items() if not name.startswith("%LMQ%")}
    assert _differences(mine, other) == []
    assert index_units(ours, store) == index_units(theirs, store)


@pytest.mark.parametrize("store", marked([(s,) for s in ONE_RUN], 3))
def test_rebuild_gives_the_index_that_the_writing_broker_left(store: str, tmp_path: Path) -> None:
    root = real_store(store, tmp_path)
    ours = tmp_path / "ours"
    result = mqtool("rebuild", root, *parts(store, root), "--output", ours)
    assert not result.code & REFUSED, result.document
    assert index_units(ours, store) == index_units(root, store)


def _sizes(store: str) -> list[str]:
    """Without queues and index the sizes cannot be seen any more."""
    conf = settings(store)
    return ["--index-slots", str(conf["maxHashSlotNum"]), "--index-entries", str(conf["maxIndexNum"])]


def index_units(root: Path, store: str) -> list[list[IndexUnit]]:
    """The entries of every index file, files in the order of their names, entries in the order they were written."""
    conf = settings(store)
    geometry = IndexGeometry(int(str(conf["maxHashSlotNum"])), int(str(conf["maxIndexNum"])))
    images = [decode(path.read_bytes(), geometry) for path in sorted((root / "index").glob("*"))]
    return [[IndexUnit._make(row.item()) for row in image.units[1 : image.used]] for image in images if image.used > 1]


def _without_delivery_times(queues: Units) -> Units:
    """4.9 recovers the log before it reads its delay table, and writes the hash of the tags where the time belongs."""
    return {
        name: {index: unit._replace(tags_code=0) if name.startswith(DELAYED) else unit for index, unit in units.items()}
        for name, units in queues.items()
    }


def _differences(ours: Units, theirs: Units) -> list[str]:
    wrong = [f"{name}: only {'ours' if name in ours else 'theirs'}" for name in sorted(set(ours) ^ set(theirs))]
    for name in sorted(set(ours) & set(theirs)):
        mine, other = ours[name], theirs[name]
        odd = [index for index in sorted({*mine, *other}) if mine.get(index) != other.get(index)]
        if odd:
            at = odd[0]
            wrong.append(f"{name}: {len(odd)} units differ, first at {at}: {mine.get(at)} / {other.get(at)}")
    return wrong
