"""Real brokers deliver what recover keeps: over bridges, of batches, and from a store that export made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.lab.observe import SOUND
from fixtures.lab.packed import readers, settings
from fixtures.lab.report import Logged
from fixtures.lab.whole import WholeBroker
from fixtures.synth import StoreWriter
from formats.basics import offset_to_name
from formats.record import HEAD
from tests.broker.cases import Case, cases, marked
from tests.broker.gaps import REPLAY, of_queue, prepare, recovered, some_records, spoil
from tests.broker.judge import broken_promises, damaged, mqtool, parts, start
from tests.broker.progress import await_offset, delivered, end_of, taken_up
from tests.support import plain_reader as plain
from tests.support.brokers import VERSIONS, oracle
from tests.support.harm import gone
from tests.support.stores import broker_conf, copy_store, flip, log_place, real_store, write_at

# --- A message kept for later that does not say rightly where it is to go: whole brokers, before and after recover.


pytestmark = pytest.mark.broker

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
WHEEL = "rmq_sys_wheel_timer"
LEVEL = 3
MODERN = [version for version in VERSIONS if version.startswith("5.")]
_SECONDS = 15.0
_FAILED = ("messageTimeup execute error", "messageTimeUp execute error")


def _struck(folder: Path, store: str, hit: Logged, name: str) -> Path:
    """A copy in which a bit of the first letter of this property's name is turned over."""
    root = real_store(store, folder)
    path, start = log_place(root, hit.phy_offset)
    flip(path, path.read_bytes().rindex(f"{name}\x01".encode(), start, start + hit.size))
    assert mqtool("verify", root).code & 4
    return root


def _mended(root: Path) -> None:
    assert mqtool("recover", root, "--mend-bits", "--yes").document["plan"]["loss"] == []
    assert mqtool("verify", root).code & 4 == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("field", ["born_timestamp", "store_timestamp"])
def test_a_message_with_a_negative_time_is_delivered_before_and_after_recover(
    field: str, version: str, tmp_path: Path
) -> None:
    """Bridged, it would be lost: nothing but the time is wrong, and no broker looks at that."""
    store = "clean-4.5.1"
    (hit,) = some_records(store, "TopicA", 1)
    for name, command in (("left", "verify"), ("recovered", "recover")):
        root = real_store(store, tmp_path / name)
        spoil(root, [hit], HEAD.offset(field), 0x80)
        assert mqtool(command, root, *(["--yes"] if command == "recover" else [])).code & 4 == 0
        seen = start(Case(store, SOUND, version), root)
        assert hit.phy_offset in {message.phy_offset for _, message in seen.messages()}


@pytest.mark.parametrize(("version", "name"), marked([(v, n) for v in VERSIONS for n in ("REAL_QID", "REAL_TOPIC")], 0))
def test_a_delay_level_goes_on_once_a_message_says_again_where_it_is_to_go(
    version: str, name: str, tmp_path: Path
) -> None:
    """4.9 stands still at the message, the others drop it."""
    store = "clean-4.5.1"
    (hit,) = some_records(store, SCHEDULE, 1, LEVEL - 1)
    end = end_of(store, f"{SCHEDULE}/{LEVEL - 1}")
    for is_mended in (False, True):
        root = _struck(tmp_path / str(is_mended), store, hit, name)
        if is_mended:
            _mended(root)
        gone("config/delayOffset.json*")(root)
        offsets = root / "config" / "delayOffset.json"
        with WholeBroker(version, root, {**settings(store), "flushDelayOffsetInterval": 500}, kill=True) as broker:
            reached = await_offset(lambda path=offsets: delivered(path, LEVEL), end, _SECONDS)
            failed = any(word in broker.log() for word in _FAILED)
        if is_mended:
            assert reached >= end and not failed
        else:
            assert reached == hit.queue_offset if version.startswith("4.9") else reached >= end
            assert failed or version.startswith("4.5")


@pytest.mark.parametrize("version", [version for version in VERSIONS if version.startswith("4.9")])
def test_a_delay_level_is_led_past_a_message_by_hand(version: str, tmp_path: Path) -> None:
    """What `mqtool explain` advises where no bit explains it."""
    store = "clean-4.5.1"
    (hit,) = some_records(store, SCHEDULE, 1, LEVEL - 1)
    end = end_of(store, f"{SCHEDULE}/{LEVEL - 1}")
    root = _struck(tmp_path, store, hit, "REAL_QID")
    offsets = root / "config" / "delayOffset.json"
    (root / "config" / "delayOffset.json.bak").unlink()
    offsets.write_text(f'{{"offsetTable":{{{LEVEL}:{hit.queue_offset + 1}}}}}')
    with WholeBroker(version, root, {**settings(store), "flushDelayOffsetInterval": 500}, kill=True):
        assert await_offset(lambda: delivered(offsets, LEVEL), end, _SECONDS) >= end


@pytest.mark.parametrize("version", MODERN)
def test_the_timer_goes_on_once_a_message_says_again_when_it_is_due(version: str, tmp_path: Path) -> None:
    """It takes up nothing that came later. One that does not say where to go stops it too, but not every time.

    Where no bit explains it, the timer can be told to pass over it.
    """
    store = "clean-5.3.3"
    (hit,) = some_records(store, WHEEL, 1)
    end = end_of(store, f"{WHEEL}/0")
    for is_mended, skips in ((False, False), (True, False), (False, True)):
        root = _struck(tmp_path / f"{is_mended}-{skips}", store, hit, "TIMER_OUT_MS")
        if is_mended:
            _mended(root)
        file = root / "config" / "timercheck"
        gone("timer[lw]*", "config/timercheck")(root)
        told = {**settings(store), **REPLAY, "timerWheelEnable": True, "timerSkipUnknownError": skips}
        with WholeBroker(version, root, told, kill=True):
            taken = await_offset(lambda path=file: taken_up(path), end, _SECONDS)
        assert taken >= end if is_mended or skips else taken == hit.queue_offset


# --- A bridged gap as every start of every broker sees it: wherever in its queue it is, and whatever the queue is for.


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


# --- A record that says it has a batch inside, without a number: where a log of 5.x ends, before recover and after it.


SIZES = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 2000}  # those of the writer
MESSAGES, WRONG = 20, 7
CASES = [(version, name) for version in VERSIONS for name in ("INNER_BASE", "INNER_NUM")]


@pytest.mark.parametrize(("version", "name"), marked(CASES, 1))
def test_what_stands_behind_it_is_cut_by_5_x_unless_recovered(version: str, name: str, tmp_path: Path) -> None:
    for is_recovered in (False, True):
        root = tmp_path / str(is_recovered)
        writer = StoreWriter(root)
        ends = [0]
        for number in range(MESSAGES):
            values = {"INNER_BASE": str(number), "INNER_NUM": "1"}
            writer.put("T", b"body", {**values, **({name: "q"} if number == WRONG else {})})
            ends.append(writer.position)
        writer.close()
        if is_recovered:
            assert mqtool("recover", root, "--yes").document["bridged"]
        seen = oracle(version).start(root, SIZES)
        assert seen.after_start is not None
        cut = version.startswith("5.") and not is_recovered
        assert seen.after_start.max_phy == ends[WRONG if cut else MESSAGES]


LIGHT = {"mappedFileSizeConsumeQueue": 400, "enableLmq": True, "enableMultiDispatch": True}


@pytest.mark.parametrize(("version", "how"), marked(
    [(version, how) for version in VERSIONS if version > "4.9" for how in ("repeat", "gap")], 2))
@pytest.mark.parametrize("queues", [True, False])
def test_nothing_is_skipped_after_the_lost_first_messages_of_a_queue(
    version: str, how: str, queues: bool, tmp_path: Path
) -> None:
    """A light queue has no marker, and with --lost gap no queue has: a pre-blank would cost the rest of its file."""
    writer = StoreWriter(tmp_path / "s", queue_file_size=400)
    records = [writer.put("T", b"body", lmq=["%LMQ%x"]) for _ in range(30)]
    writer.put("U", b"body")
    root = writer.close().root
    log = root / "commitlog" / offset_to_name(0)
    write_at(log, 0, b"\xee" * records[2].phy_offset)
    if not queues:
        gone("consumequeue")(root)
    size = ("--set", "mappedFileSizeConsumeQueue=400")
    assert mqtool("recover", root, "--lost", how, "--yes", *size).document["damaged_messages"] == 2
    assert mqtool("verify", root).code == 0 and not mqtool("recover", root, "--yes").document["applied"]
    seen = oracle(version).start(root, {"mappedFileSizeCommitLog": 65536, **LIGHT}, read=True)
    for queue in ("T/0", "%LMQ%x/0"):
        assert {record.phy_offset for record in records[2:]} <= {
            message.phy_offset for name, message in seen.messages() if name == queue}


# --- Stores that `mqtool export --format store` writes: each release starts on them and delivers what was intact.


NO_QUEUES = "crash-everything-derived"
DAMAGES = (SOUND, "bit-in-body", "page-zeroed", "log-middle-missing", NO_QUEUES)
EXPORTED = [case for case in cases() if case.damage in DAMAGES and not case.store.startswith("clean-empty")]


def _lines(file: Path) -> set[tuple[str, int, int]]:
    """Where an export says that its messages stand."""
    return {(f"{line['stored_topic']}/{line['stored_queue']}", line["queue_offset"], line["phy_offset"])
            for line in map(json.loads, file.read_bytes().splitlines())}


@pytest.mark.parametrize(("store", "damage", "version"), marked(EXPORTED, 2))
def test_a_release_delivers_what_was_exported_to_a_store_and_to_lines(
    store: str, damage: str, version: str, tmp_path: Path
) -> None:
    case = Case(store, damage, version)
    root, done = damaged(store, damage, tmp_path)
    out, before, lines = tmp_path / "out", tmp_path / "before", tmp_path / "lines"
    # where no queue file is left, only the configuration says how long they are
    told = ("--broker-conf", broker_conf(store, root, tmp_path / "conf")) if damage == NO_QUEUES else ()
    document = mqtool("export", root, *parts(store, root), "-o", out, "--format", "store", *told).document
    assert document["complete"] and not document["assumed_settings"]
    shutil.copytree(out, before)
    conf = {name: value for name, value in settings(store).items() if name != "storePathCommitLog"}
    seen = start(case, out, conf)
    valid_to = mqtool("verify", before).document["commitlog"]["valid_to"]
    assert broken_promises(case, seen, done, valid_to, before) == []
    mqtool("export", root, *parts(store, root), "-o", lines, "--include", "system", *told)
    made = {record.phy_offset for base, content in plain.log_files(before).items()
            for record in plain.chain(content, base) if record.stands_in}
    told_by_api = {(f"{message.topic}/{message.queue_id}", message.queue_offset, message.phy_offset)
                   for _, message in seen.messages() if message.phy_offset not in made}
    assert told_by_api == _lines(lines)


@pytest.mark.parametrize("version", marked([(version,) for version in readers("clean-5.3.3")], 1))
def test_a_release_delivers_one_topic_that_was_exported_to_a_store(version: str, tmp_path: Path) -> None:
    case = Case("clean-5.3.3", SOUND, version)
    root, _ = damaged(case.store, case.damage, tmp_path)
    out, lines = tmp_path / "out", tmp_path / "lines"
    mqtool("export", root, "-o", out, "--format", "store", "--topic", "TopicA")
    mqtool("export", root, "-o", lines, "--topic", "TopicA")
    due = {
        (f"{message['stored_topic']}/{message['stored_queue']}", message["queue_offset"], message["phy_offset"])
        for message in map(json.loads, lines.read_bytes().splitlines()) if message["kind"] is None
    }
    seen = start(case, out)
    assert seen.starts
    got = {(queue, message.queue_offset, message.phy_offset) for queue, message in seen.messages()}
    assert due
    assert due <= got
    assert {queue for queue, _, _ in got} & {f"TopicB/{queue}" for queue in range(8)} == set()
