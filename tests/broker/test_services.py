"""Real services and clients: push consumers, full replay, message IDs, and the lock."""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from fixtures.damage import damage
from fixtures.lab.client import taken
from fixtures.lab.packed import WHOLE_BROKER, made, readers, settings
from fixtures.lab.report import OracleReport
from fixtures.lab.units import Units, queue_units
from fixtures.lab.whole import Received, Subscription, WholeBroker
from formats import sysflag
from formats.errors import FormatError
from formats.index import IndexGeometry, IndexUnit, decode
from formats.record import BLANK_SIZE, HEAD, check_strict
from tests.broker.cases import marked, one_deep
from tests.broker.gaps import REPLAY, deliveries, prepare, recovered, some_records, spoil
from tests.broker.judge import FILLER, REFUSED, broker_options, mqtool, parts
from tests.broker.progress import await_offset, delivered, end_of, taken_up
from tests.support.brokers import VERSIONS, oracle, require_lab
from tests.support.commitlog import Placed, kinds, placed_records, uncovered
from tests.support.counts import Count
from tests.support.plans import count_operations, killed_at
from tests.support.stores import EXPECTED, STORES, copy_store, real_store
from tests.support.trees import assert_unchanged

# --- A bridged gap as whole brokers and their consumers see it: by push and by pop, filtered, and inside system topics.


pytestmark = pytest.mark.broker

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
WHEEL = "rmq_sys_wheel_timer"
MODERN = [version for version in VERSIONS if version.startswith("5.")]
#: Where the transaction check stands, in its own words (TransactionalMessageServiceImpl.check).
_CHECKED = re.compile(r"Before check, the queue=.*? msgOffset=(\d+)")


@pytest.mark.parametrize(("lost", "version"), marked([(k, v) for k in ("default", "visible") for v in VERSIONS], 1))
def test_push_consumers_get_everything_behind_a_gap(lost: str, version: str, tmp_path: Path) -> None:
    require_lab()
    store, topic = "clean-4.5.1", "TopicA"
    options = [] if lost == "default" else ["--lost", lost]
    root, done, _ = recovered(store, tmp_path, some_records(store, topic), *options)
    intact = {message.phy_offset for message in deliveries(store, topic)} - set(done.lost)
    with_tag = {message.phy_offset for message in deliveries(store, topic) if message.tags == "Tag1"} - set(done.lost)
    every = ("concurrent", "orderly", *(["pop"] if version in MODERN else []))
    asked = [
        *(Subscription(topic, "*", kind, due=len(intact)) for kind in every),
        Subscription(topic, "Tag1", due=len(with_tag)),
        Subscription(topic, "TAGS = 'Tag1'", "sql", due=len(with_tag)),
    ]
    with WholeBroker(version, root, {**settings(store), "enablePropertyFilter": True}, kill=True) as broker:
        *unfiltered, tagged, by_sql = broker.consume(asked)
    for received in unfiltered:
        assert _missing(received, intact) == set()
        assert _repeated(received, intact) <= len(done.lost)
        assert FILLER not in {one.topic for one in received}
        markers = [one for one in received if one.phy_offset in done.lost]
        assert len(markers) <= (len(done.lost) if lost == "visible" else 0)
    assert {one.phy_offset for one in tagged} == {one.phy_offset for one in by_sql} == with_tag


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("field", "byte", "bits"), [("born_port", 1, 4), ("store_port", 1, 4), ("sys_flag", 3, 1)])
def test_what_no_client_can_unpack_keeps_messages_from_consumers_until_it_is_put_back(
    field: str, byte: int, bits: int, version: str, tmp_path: Path
) -> None:
    """A client throws at the message, and passes over all that came after it in the same answer."""
    require_lab()
    store, topic = "clean-4.5.1", "TopicA"
    (hit,) = some_records(store, topic, 1)
    damaged, sound = real_store(store, tmp_path / "damaged"), real_store(store, tmp_path / "sound")
    for root in (damaged, sound):
        spoil(root, store, [hit], HEAD.offset(field) + byte, bits)
    assert mqtool("verify", damaged).code & 4
    assert mqtool("recover", sound, "--mend-bits", "--yes").document["plan"]["loss"] == []
    due = {message.phy_offset for message in deliveries(store, topic)}
    received = []
    for root, wanted in ((damaged, 1), (sound, len(due))):
        with WholeBroker(version, root, settings(store), kill=True) as broker:
            received += broker.consume([Subscription(topic, due=wanted)])
    assert hit.phy_offset in _missing(received[0], due)
    assert _missing(received[1], due) == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_group_gets_its_retries_behind_a_gap(version: str, tmp_path: Path) -> None:
    require_lab()
    store, group = "clean-4.5.1", "CG_retry"
    root, done, _ = recovered(store, tmp_path, some_records(store, f"%RETRY%{group}"))
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    due = {message.phy_offset for message in deliveries(store, f"%RETRY%{group}")} - set(done.lost)
    with WholeBroker(version, root, settings(store), kill=True) as broker:
        both = len(due) + len(deliveries(store, "TopicTx"))
        (received,) = broker.consume([Subscription("TopicTx", group=group, due=both)])
    assert len(due) > 50 and _missing(received, due) == set()


def _missing(received: list[Received], due: set[int]) -> set[int]:
    return due - {one.phy_offset for one in received}


def _repeated(received: list[Received], due: set[int]) -> int:
    counts = Counter(one.phy_offset for one in received if one.phy_offset in due)
    return sum(counts.values()) - len(counts)


@pytest.mark.parametrize("version", one_deep(VERSIONS, "4.9.7"))
def test_delay_service_walks_over_a_gap(version: str, tmp_path: Path) -> None:
    """The level is delivered again from its start; its offset must reach the end of its queue."""
    require_lab()
    store, level = "clean-4.5.1", 3
    root, _, _ = recovered(store, tmp_path, some_records(store, SCHEDULE, 2, level - 1))
    for path in (root / "config").glob("delayOffset.json*"):
        path.unlink()
    end = end_of(store, f"{SCHEDULE}/{level - 1}")
    with WholeBroker(version, root, {**settings(store), "flushDelayOffsetInterval": 500}, kill=True):
        assert await_offset(lambda: delivered(root / "config" / "delayOffset.json", level), end) >= end


@pytest.mark.parametrize("version", VERSIONS)
def test_transaction_check_walks_over_a_gap(version: str, tmp_path: Path) -> None:
    """Half messages are checked again from the start; the service must come to the end of those that there were."""
    require_lab()
    store = "clean-4.5.1"
    root, _, _ = recovered(store, tmp_path, some_records(store, HALF))
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    often = {"transactionCheckInterval": 500, "transactionTimeOut": 100}
    end = end_of(store, f"{HALF}/0")
    with WholeBroker(version, root, {**settings(store), **often}, kill=True) as broker:
        assert await_offset(lambda: max(map(int, _CHECKED.findall(broker.log())), default=0), end) >= end


@pytest.mark.parametrize("queues", ["kept", "all built anew"])
@pytest.mark.parametrize("version", MODERN)
def test_timer_walks_over_a_gap(version: str, queues: str, tmp_path: Path) -> None:
    """Timer messages are taken up again from the first to the last; in queues built anew the timer meets markers."""
    require_lab()
    store = "clean-5.3.3"
    root, _, _ = recovered(store, tmp_path, some_records(store, WHEEL, 2))
    if queues != "kept":
        prepare(root, "replay")
    for name in ("timerwheel", "config/timercheck"):
        (root / name).unlink()
    shutil.rmtree(root / "timerlog")
    end = end_of(store, f"{WHEEL}/0")
    with WholeBroker(version, root, {**settings(store), **REPLAY, "timerWheelEnable": True}, kill=True):
        assert await_offset(lambda: taken_up(root / "config" / "timercheck"), end) >= end


# --- Queues and index made by us and by a broker from the same log are the same.


DELAYED = "SCHEDULE_TOPIC_XXXX/"
NOT_EMPTY = [name for name in (*WHOLE_BROKER, *made()) if "empty" not in name]
#: Their index files all come from one run, so that the order of the entries is known.
ONE_RUN = [name for name in made() if "restarts" not in name and "expired" not in name and "empty" not in name]


@pytest.mark.parametrize(("store", "version"), marked([(s, v) for s in NOT_EMPTY for v in readers(s)], 3))
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


# --- What verify takes for intact released clients can unpack: with each bit turned over, and noise, but in the body.


_NOISE = 1000
_DEEP = {("clean-5.3.3", "5.5.0"), ("clean-4.5.1", "4.9.7")}
_PAIRS = [
    pytest.param(store, version, marks=pytest.mark.deep if (store, version) in _DEEP else [])
    for store, version in product(STORES, VERSIONS) if not ("v2" in store and version.startswith("4."))
]


class Struck(NamedTuple):
    """A record that is not what it was, and that verify would take for intact."""

    old: Placed
    content: bytes
    what: tuple[int, ...]


def _is_intact(content: bytes, phy_offset: int) -> bool:
    try:
        record = check_strict(content, 0, len(content) + BLANK_SIZE, phy_offset)
    except FormatError:
        return False
    return record.property_crc is not None or not sysflag.contradicted_by(record.sys_flag, record.body)


def _struck(it: Placed, rng: random.Random) -> Iterator[Struck]:
    places = uncovered(it.record)
    changes = [(at, bytes([it.raw[at] ^ 1 << bit])) for at in places for bit in range(8)]
    changes += [(at, rng.randbytes(rng.randint(1, 8))) for at in rng.choices(places, k=_NOISE)]
    for at, change in changes:
        content = (it.raw[:at] + change + it.raw[at + len(change) :])[: len(it.raw)]
        if content != it.raw and _is_intact(content, it.phy_offset):
            yield Struck(it, content, (at, *change))


def _may_differ(struck: Struck) -> bool:
    """Whether nothing tells any more that the body is compressed: clients are given it as it is."""
    record = check_strict(struck.content, 0, len(struck.content) + BLANK_SIZE, struck.old.phy_offset)
    was = bool(struck.old.record.sys_flag & sysflag.COMPRESSED)
    return was and not record.sys_flag & (sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE)


@pytest.mark.parametrize(("store", "version"), _PAIRS)
def test_clients_unpack_whatever_verify_takes_for_intact(store: str, version: str) -> None:
    """And what stands after it in the same answer."""
    toolchain, rng = oracle(version).toolchain, random.Random(f"{store} {version}")
    some, behind = kinds(store), placed_records(store)[0].raw
    usual = dict(zip(some, taken(toolchain, [it.raw + behind for it in some]), strict=True))
    assert {one.messages for one in usual.values()} == {2}
    struck = [one for it in some for one in _struck(it, rng)]
    assert len(struck) > 1000
    found = taken(toolchain, [one.content + behind for one in struck])
    for one, seen in zip(struck, found, strict=True):
        told = (one.old.phy_offset, one.old.record.topic_name, one.what, seen)
        assert seen.messages == 2, told
        assert seen == usual[one.old] or _may_differ(one), told


# --- One at a time: no broker starts while the lock is ours, and we keep off while a broker runs.


every_version = pytest.mark.parametrize("version", one_deep(VERSIONS, "5.3.3"))

_FLOCK = "hhqqi4x"
_REFUSAL = "Lock failed"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """An exclusive lock on the first byte of the file, owned by the open file as mqtool's is."""
    with path.open("r+b") as handle:
        fcntl.fcntl(handle, 37, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 1, 0))  # 37: F_OFD_SETLK, nameless in 3.11
        yield


@every_version
def test_broker_does_not_start_while_the_lock_is_held(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with held(store / "lock"):
        seen = oracle(version).start(store)
    assert seen.loaded and not seen.started
    assert _REFUSAL in (seen.error or "")
    assert oracle(version).start(store).starts


@every_version
def test_broker_has_cut_the_log_before_it_asks_for_the_lock(version: str, tmp_path: Path) -> None:
    """Why a broker must not even be tried while mqtool works: docs/broker-start.md says so."""
    store = real_store("clean-4.5.1", tmp_path)
    damage("crash-bit-without-checkpoint", store, 0)
    end = EXPECTED["clean-4.5.1"]["log_end"]
    with held(store / "lock"):
        seen = oracle(version).start(store)
    assert seen.loaded and not seen.started
    assert seen.after_load is not None and seen.after_load.max_phy < end
    assert any(path.startswith("commitlog") for path in seen.deleted_files)


@every_version
def test_broker_does_not_start_while_a_change_is_on_its_way(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mqtool stops at its first write to a data file until a broker has tried to start on the store."""
    store = real_store("clean-4.5.1", tmp_path)
    damage("queue-file-zeroed", store, 0)
    tried: list[OracleReport] = []
    sync = os.fsync

    def try_a_start(descriptor: int) -> None:
        sync(descriptor)
        if not tried and "consumequeue" in os.readlink(f"/proc/self/fd/{descriptor}"):
            tried.append(oracle(version).start(store))

    monkeypatch.setattr(os, "fsync", try_a_start)
    answer = mqtool("recover", store, "--yes")
    assert answer.document["applied"] and not answer.code & REFUSED
    assert [(seen.loaded, seen.started) for seen in tried] == [(True, False)]
    assert _REFUSAL in (tried[0].error or "")
    assert oracle(version).start(store).starts


@every_version
def test_a_real_broker_between_kill_and_resume_is_noticed(version: str, tmp_path: Path, count: Count) -> None:
    """recover is killed half way, and somebody starts a broker on what it left."""
    store = real_store("clean-4.5.1", tmp_path)
    damage("queue-file-zeroed", store, 0)
    damage("checkpoint-zero", store, 0)
    copy = copy_store(store, tmp_path / "copy")
    operations = len(count_operations(lambda: mqtool("recover", copy, "--yes")))
    # before the first file is changed, between two of them, and after the last
    for stop in (operations * 3 // 5, operations * 3 // 4, operations * 9 // 10):
        root = copy_store(store, tmp_path / str(stop))
        assert killed_at(stop, lambda root=root: mqtool("recover", root, "--yes"))  # type: ignore[misc]
        assert [run["state"] for run in mqtool("journal", root).document["runs"]] == ["unfinished"]
        assert oracle(version).start(root).loaded
        with assert_unchanged(root):
            assert mqtool("resume", root, "--yes").code & REFUSED
        count("starts of a real broker between kill and resume refused", 1)


@every_version
def test_changing_commands_refuse_while_a_broker_runs(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with oracle(version).running(store):
        answer = mqtool("recover", store, "--yes")
        assert answer.code & REFUSED
        assert not (store / ".mqtool").exists()
    assert oracle(version).start(store).starts


@every_version
def test_inspect_names_the_broker_that_holds_the_lock(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with oracle(version).running(store) as pid:
        answer = mqtool("inspect", store)
    assert str(pid) in str(answer.document)


@every_version
def test_reading_a_live_store_changes_nothing_in_it(version: str, tmp_path: Path) -> None:
    store = real_store("clean-4.5.1", tmp_path)
    with (
        oracle(version).running(store),
        assert_unchanged(store / "commitlog"),
        assert_unchanged(store / "consumequeue"),
    ):
        mqtool("verify", store)
