"""Real services: push consumers behind gaps and what was lost, and full replay by a broker."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from fixtures.lab.packed import WHOLE_BROKER, made, readers, settings
from fixtures.lab.units import Units, queue_units
from fixtures.lab.whole import Received, Subscription, WholeBroker
from formats.index import INDEX_HEADER, INDEX_UNIT, IndexGeometry, IndexUnit
from formats.record import HEAD
from tests.broker.cases import marked
from tests.broker.gaps import REPLAY, deliveries, prepare, recovered, some_records, spoil
from tests.broker.judge import FILLER, REFUSED, broker_options, mqtool, parts
from tests.broker.progress import await_offset, delivered, end_of, taken_up
from tests.support.brokers import VERSIONS, oracle
from tests.support.harm import gone
from tests.support.stores import copy_store, real_store, unpacked

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
    store, topic = "clean-4.5.1", "TopicA"
    (hit,) = some_records(store, topic, 1)
    damaged, sound = real_store(store, tmp_path / "damaged"), real_store(store, tmp_path / "sound")
    for root in (damaged, sound):
        spoil(root, [hit], HEAD.offset(field) + byte, bits)
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
    store, group = "clean-4.5.1", "CG_retry"
    root, done, _ = recovered(store, tmp_path, some_records(store, f"%RETRY%{group}"))
    gone("config/consumerOffset.json*")(root)
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


@pytest.mark.parametrize("version", VERSIONS)
def test_delay_service_walks_over_a_gap(version: str, tmp_path: Path) -> None:
    """The level is delivered again from its start; its offset must reach the end of its queue."""
    store, level = "clean-4.5.1", 3
    root, _, _ = recovered(store, tmp_path, some_records(store, SCHEDULE, 2, level - 1))
    gone("config/delayOffset.json*")(root)
    end = end_of(store, f"{SCHEDULE}/{level - 1}")
    with WholeBroker(version, root, {**settings(store), "flushDelayOffsetInterval": 500}, kill=True):
        assert await_offset(lambda: delivered(root / "config" / "delayOffset.json", level), end) >= end


@pytest.mark.parametrize("version", VERSIONS)
def test_transaction_check_walks_over_a_gap(version: str, tmp_path: Path) -> None:
    """Half messages are checked again from the start; the service must come to the end of those that there were."""
    store = "clean-4.5.1"
    root, _, _ = recovered(store, tmp_path, some_records(store, HALF))
    gone("config/consumerOffset.json*")(root)
    often = {"transactionCheckInterval": 500, "transactionTimeOut": 100}
    end = end_of(store, f"{HALF}/0")
    with WholeBroker(version, root, {**settings(store), **often}, kill=True) as broker:
        assert await_offset(lambda: max(map(int, _CHECKED.findall(broker.log())), default=0), end) >= end


@pytest.mark.parametrize("queues", ["kept", "all built anew"])
@pytest.mark.parametrize("version", MODERN)
def test_timer_walks_over_a_gap(version: str, queues: str, tmp_path: Path) -> None:
    """Timer messages are taken up again from the first to the last; in queues built anew the timer meets markers."""
    store = "clean-5.3.3"
    root, _, _ = recovered(store, tmp_path, some_records(store, WHEEL, 2))
    if queues != "kept":
        prepare(root, "replay")
    gone("timer[lw]*", "config/timercheck")(root)
    end = end_of(store, f"{WHEEL}/0")
    with WholeBroker(version, root, {**settings(store), **REPLAY, "timerWheelEnable": True}, kill=True):
        assert await_offset(lambda: taken_up(root / "config" / "timercheck"), end) >= end


# --- Queues and index made by us and by a broker from the same log are the same.


DELAYED = "SCHEDULE_TOPIC_XXXX/"
NOT_EMPTY = [name for name in (*WHOLE_BROKER, *made()) if "empty" not in name]
#: Their index files all come from one run, so that the order of the entries is known.
ONE_RUN = [name for name in made() if "restarts" not in name and "expired" not in name and "empty" not in name]


@pytest.mark.parametrize(("store", "version"), marked([(s, v) for s in NOT_EMPTY for v in readers(s)], 1))
def test_full_replay_by_a_broker_gives_the_files_that_rebuild_gives(store: str, version: str, tmp_path: Path) -> None:
    root = real_store(store, tmp_path / "log")
    prepare(root, "replay")
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
    files = [path.read_bytes() for path in sorted((root / "index").glob("*"))]
    units = [
        [INDEX_UNIT.decode(content, geometry.unit_offset(number)) for number in range(1, header.index_count)]
        for content in files for header in [INDEX_HEADER.decode(content)]
    ]
    return [each for each in units if each]


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


@pytest.mark.parametrize(("wanted", "messages"), [((), 200), (("--topic", "Batched", "--queue-offsets", "7:12"), 20)])
def test_consumers_get_the_batches_of_an_exported_store(
    wanted: tuple[str, ...], messages: int, tmp_path: Path,
) -> None:
    """Each batch is five messages; without abort 5.5.0 gives none of them, and markers would be messages."""
    name, out = "kinds/clean-batch-5.5.0", tmp_path / "out"
    assert mqtool("export", unpacked(name), "-o", out, "--format", "store", *wanted)[0] == 0
    with WholeBroker("5.5.0", out, settings(name), kill=True) as broker:
        (got,) = broker.consume([Subscription("Batched", due=messages)], idle=6)
    assert len(got) == len({(one.queue_id, one.queue_offset) for one in got}) == messages
