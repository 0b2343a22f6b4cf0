"""T18 to T25 and T30: queues that lack units, hold wrong ones, or begin elsewhere."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.damage import walk
from fixtures.damage.patch import overwrite
from fixtures.synth import StoreWriter
from formats.consumequeue import CQ_UNIT
from formats.record import HEAD
from mqtool import exits
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import KILLED, PLAIN, Drill, all_stores, file_name, messages, queue_bytes
from tests.support.sampling import few
from tests.support.stores import EXPECTED, real_store, write_at
from tests.support.trees import assert_unchanged
from tests.support.unread_stores import add_batch_queue, add_rocksdb, put

# --- T19 to T23, T25, T30, T39: queues that are gone, after, ahead or wrong, queues of other kinds, deleted topics.


# The whole brokers were run with a delay table of their own.
DELAYS = "messageDelayLevel=1s 2s 3s 4s 5s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
WHOLE = [name for name in all_stores() if "empty" not in name and "expired" not in name]
QUICK = ("clean-4.5.1", "killed-lmq-4.9.7", "killed-ext-5.5.0", "clean-multipath-4.9.7")


def sizes(store: Drill) -> tuple[str, ...]:
    """The broker settings that nothing is left to show once all queues are gone."""
    size = store.run("inspect").document["sizes"]["queue_file_size"]
    ext = [path.stat().st_size for path in (store.root / "consumequeue_ext").rglob("0*") if path.is_file()]
    settings = [f"mappedFileSizeConsumeQueue={size}", *(f"mappedFileSizeConsumeQueueExt={n}" for n in ext[:1])]
    settings += [DELAYS] if store.root.name in EXPECTED else []
    return tuple(item for setting in settings for item in ("--set", setting))


@pytest.mark.parametrize(("long", "told"), [(0, "by names"), (2000, "by names"), (0, "by a setting")])
def test_one_file_that_is_too_long_beside_one_that_is_not_sets_no_length(
    drill: Start, long: int, told: str
) -> None:
    store = drill(PLAIN)
    before, queue = queue_bytes(store.root), store.root / "consumequeue" / "Orders" / "0"
    kept = {queue} if told == "by names" else {queue, queue.with_name("1")}
    for other in {path.parent for path in store.root.glob("consumequeue/*/*/*")} - kept:
        shutil.rmtree(other)
    if told == "by a setting":
        (queue / file_name(2000)).unlink()
    os.truncate(queue / file_name(long), 4000)
    with store.recovered(0, *["--set", "mappedFileSizeConsumeQueue=2000"] * (told == "by a setting")):
        assert queue_bytes(store.root) == before


# --- T19, T20: gone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in WHOLE
])
def test_t19_all_queues_missing_come_back_as_the_broker_wrote_them(drill: Start, name: str) -> None:
    store = drill(name)
    before, options = queue_bytes(store.root), sizes(store)
    shutil.rmtree(store.root / "consumequeue")
    result = store.verify(*options)
    expected = result.document["consumequeue"]
    assert (result.code, expected["missing"]) == (2, expected["expected"])
    missing = result.found("consumequeue-missing-units")
    assert {item["file"] for item in missing} == {path.rsplit("/", 1)[0] for path in before}
    with store.recovered(0, *options):
        assert queue_bytes(store.root) == before


@few("name", [PLAIN, "clean-4.5.1", "clean-5.3.3"], quick=(0, 1))
def test_t20_queues_of_one_topic_are_rebuilt_in_full(drill: Start, name: str) -> None:
    store = drill(name)
    before = queue_bytes(store.root)
    topic = store.strike("topic-queues-missing").facts["topic"]
    gone = {path for path in before if path.startswith(f"consumequeue/{topic}/")}
    expected = sum(m.topic == topic for m in store.messages)
    missing = store.found("consumequeue-missing-units")
    assert {item["file"] for item in missing} == {path.rsplit("/", 1)[0] for path in gone}
    assert sum(item["facts"]["count"] for item in missing) == expected
    for version in store.brokers:
        said = store.run("predict", "--broker", version).document
        assert said["unreachable_messages"] > 0, "a clean start of a broker would bring all of them back"
    options = sizes(store)
    with store.recovered(0, *options):
        assert queue_bytes(store.root) == before
    rebuilt = store.run("rebuild-consumequeue", "--topic", topic, "--yes", *options)
    assert rebuilt.code == exits.CORRECTED
    assert queue_bytes(store.root) == before


# --- T21, T22: wrong, ahead, after -----------------------------------------------------------------------


def test_t23_zero_file_behind_a_full_one_is_no_unit(drill: Start) -> None:
    store = drill("killed-lmq-4.9.7")
    path = store.root / "consumequeue" / "Carrier" / "0" / file_name(2000)
    path.write_bytes(bytes(2000))
    for version in store.brokers:  # seen with real brokers: they take the zeros for one unit
        assert store.run("predict", "--broker", version).document["queues"]["Carrier/0"] == [0, 101]
    store.finds("consumequeue-empty-last-file", f"consumequeue/Carrier/0/{path.name}", 0, exit_code=2)
    with store.recovered():
        for version in store.brokers:
            assert store.run("predict", "--broker", version).document["queues"]["Carrier/0"] == [0, 100]


# --- T25: other kinds of queues --------------------------------------------------------------------------------


UNSUPPORTED: dict[str, Callable[[Path], object]] = {
    "batchconsumequeue": add_batch_queue,
    "consumequeue_rocksdb": lambda root: add_rocksdb(root / "consumequeue_rocksdb", empty=False),
    "compaction/compactionLog": lambda root: [
        put(root / "compaction" / name / "Compacted" / "0" / file_name(0), bytes([0, 0, 1, 0]))
        for name in ("compactionLog", "compactionCq")],
}


@pytest.mark.parametrize("part", UNSUPPORTED)
def test_t25_unsupported_queues_are_named_and_abort_stays(drill: Start, part: str) -> None:
    store = drill(KILLED)
    UNSUPPORTED[part](store.root)
    found = store.finds("part-not-supported", part, None, exit_code=64)
    assert found["facts"]["part"] == part
    assert "cannot read" in found["message"]
    store.strike("queue-behind")
    with store.recovered(64 | 2, starts=False) as done:
        assert (store.root / "abort").exists()
        assert not any(step["file"] == "abort" for step in done["plan"]["steps"])
        assert store.look().notable == {"abort-present", "part-not-supported"}


# --- T30: full disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [PLAIN, "killed-manyfiles-4.9.7"])
def test_t30_what_a_full_disk_left_undispatched(drill: Start, name: str) -> None:
    store = drill(name)
    before = queue_bytes(store.root)
    facts = store.strike("queues-behind").facts
    missing = store.found("consumequeue-missing-units")
    assert sum(item["facts"]["count"] for item in missing) == facts["missing"]
    pointers = store.run("inspect").document["offsets"]
    assert pointers["dispatched_to"] == facts["phy_offset"]
    assert pointers["undispatched_bytes"] > 0
    with store.recovered():
        assert queue_bytes(store.root) == before


def test_t30_disk_full_in_the_middle_of_everything(drill: Start) -> None:
    store = drill(KILLED)
    before = queue_bytes(store.root)
    facts = store.strike("crash-disk-full").facts
    empty = facts["log-last-empty"]["file_from_offset"]
    store.finds("commitlog-bad-file-length", f"commitlog/{file_name(empty)}", 0, exit_code=2)
    with store.recovered():
        assert queue_bytes(store.root) == before
        assert messages(store.root) == store.messages


# --- T39: deleted topics -----------------------------------------------------------------------------------------


NEWER = 4_000_000_000_000


def delete_topic(root: Path, topic: str, at: int | None = NEWER) -> None:
    """What `mqadmin deleteTopic` leaves: records, and a table that is newer (ms) than all of them; None: no newer one,
    as if topics.json.bak had been restored and the queues were lost."""
    for path in (root / "config").glob("topics.json*"):
        document = json.loads(path.read_text())
        document["topicConfigTable"].pop(topic, None)
        document["dataVersion"] |= {} if at is None else {"timestamp": at}
        path.write_text(json.dumps(document, indent="\t"))
    shutil.rmtree(root / "consumequeue" / topic, ignore_errors=True)


@few("name", ["clean-4.5.1", "clean-5.3.3"], quick=(0,))
def test_t39_deleted_topic_is_not_resurrected_unless_asked_for(drill: Start, name: str) -> None:
    store = drill(name)
    before = queue_bytes(store.root)
    delete_topic(store.root, "TopicB")
    found = store.finds("topic-deleted", exit_code=0)
    assert found["severity"] == "info"
    assert found["facts"]["names"] == "TopicB"
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code == 0
    # no broker serves a topic that topics.json does not list: the same run adds it
    assert "TopicB" in store.verify("--include-deleted").found("config-topics-guessed")[0]["message"]
    back = store.run("recover", "--yes", "--include-deleted")
    assert back.code == exits.CORRECTED and "config-topics-are-a-guess" in back.codes
    assert "TopicB" in json.loads((store.root / "config" / "topics.json").read_text())["topicConfigTable"]
    assert queue_bytes(store.root) == before
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code == 0


def test_t39_predict_names_the_deleted_topics_that_a_start_brings_back(drill: Start) -> None:
    store = drill("clean-4.5.1")
    delete_topic(store.root, "TopicB")
    assert "brings back" not in mqtool("predict", store.root).stdout
    (store.root / "abort").touch()
    shown = mqtool("predict", store.root, "--broker", "4.5.1").stdout
    assert re.search("brings back topic +TopicB *\n", shown)
    assert store.run("predict", "--broker", "4.5.1").document["revived_topics"] == ["TopicB"]


def test_predict_brings_back_no_lmq_queue_as_a_topic(drill: Start) -> None:
    store = drill("killed-lmq-4.9.7")
    for folder in (store.root / "consumequeue").glob("%LMQ%*"):
        shutil.rmtree(folder)
    said = store.run("predict", "--broker", "4.9.7", "--set", "enableLmq=true", "--set", "enableMultiDispatch=true")
    assert any(name.startswith("%LMQ%") for name in said.document["queues"])
    assert said.document["revived_topics"] == []


def test_queue_folders_without_files_of_a_topic_that_topics_json_lacks_take_one_run(drill: Start) -> None:
    store = drill("clean-5.3.3")
    before = queue_bytes(store.root)
    delete_topic(store.root, "TopicB")
    for folder in {Path(name).parent for name in before if Path(name).parts[1] == "TopicB"}:
        (store.root / folder).mkdir(parents=True)
    back = store.run("recover", "--yes")
    assert back.code == exits.CORRECTED and "config-topics-are-a-guess" in back.codes
    assert queue_bytes(store.root) == before
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes").code == 0


@pytest.mark.parametrize("name", ["clean-4.5.1", "clean-5.3.3"])
def test_a_topic_that_an_older_table_lacks_is_not_deleted(drill: Start, name: str) -> None:
    """A restored topics.json.bak, or a lost line: its messages are newer than the table, so nothing deleted them."""
    store = drill(name)
    before = queue_bytes(store.root)
    delete_topic(store.root, "TopicB", at=None)
    found = store.verify()
    assert not found.found("topic-deleted")
    assert {item["facts"]["topic"] for item in found.found("consumequeue-missing-units")} == {"TopicB"}
    assert store.run("recover", "--yes").code & ~exits.DERIVED == exits.CORRECTED
    assert queue_bytes(store.root) == before
    assert "TopicB" in json.loads((store.root / "config" / "topics.json").read_text())["topicConfigTable"]


def test_a_table_of_unknown_time_and_one_put_together_by_mqtool_prove_no_deletion(drill: Start) -> None:
    store = drill("clean-5.3.3")
    delete_topic(store.root, "TopicB")
    path = store.root / "config" / "topics.json"
    whole = json.loads(path.read_text())
    assert store.verify().found("topic-deleted")
    for table in ({**whole, "dataVersion": {"counter": 3}}, {"guessedBy": "mqtool", **whole}):
        path.write_text(json.dumps(table))
        assert not store.verify().found("topic-deleted")


def test_t39_light_queue_without_folder_comes_back_unless_a_newer_table_proves_that_it_was_deleted(
    drill: Start
) -> None:
    store = drill("killed-lmq-4.9.7")
    before = queue_bytes(store.root)
    topics = {path.name for path in (store.root / "consumequeue").iterdir()}
    store.strike("lmq-queue-missing")
    gone = topics - {path.name for path in (store.root / "consumequeue").iterdir()}
    delete_topic(store.root, "NoTopic")
    assert {store.finds("topic-deleted", exit_code=exits.DERIVED)["facts"]["names"]} == gone
    refused = store.run("rebuild-consumequeue", "--topic", *gone, "--yes")
    assert refused.code == exits.USAGE and "--include-deleted" in refused.document["error"]["remedy"]
    assert not store.verify("--include-deleted").found("topic-deleted")
    delete_topic(store.root, "NoTopic", at=0)
    assert {item["facts"]["topic"] for item in store.verify().found("consumequeue-missing-units")} >= gone
    assert store.run("recover", "--yes").code & exits.CORRECTED
    assert queue_bytes(store.root) == before


def test_t39_light_queue_that_dispatch_did_not_reach_is_not_deleted(folder: Path) -> None:
    """A power cut takes the newest units and the folders of queues that they began; a start dispatches them anew."""
    writer, root = StoreWriter(folder / "s"), folder / "s"
    for number in range(60):
        writer.put("Carrier", b"m%d" % number, lmq=("%LMQ%old",))
    for number in range(20):
        writer.put("Carrier", b"n%d" % number, lmq=("%LMQ%old", "%LMQ%new"))
    writer.close(clean=False)
    before = queue_bytes(root)
    shutil.rmtree(root / "consumequeue" / "%LMQ%new")
    for topic in ("Carrier", "%LMQ%old"):
        write_at(root / "consumequeue" / topic / "0" / file_name(0), 60 * 20, bytes(20 * 20))
    found = mqtool("verify", root, "--json")
    assert not found.found("topic-deleted")
    assert {item["facts"]["topic"]: item["facts"]["count"] for item in found.found("consumequeue-missing-units")} == {
        "Carrier": 20, "%LMQ%old": 20, "%LMQ%new": 20}
    assert mqtool("recover", root, "--yes").code == exits.CORRECTED
    assert queue_bytes(root) == before


@pytest.mark.parametrize("command", ["recover", "rebuild-consumequeue"])
@pytest.mark.parametrize(("name", "part", "setting", "usual"), [
    ("clean-plain-4.9.7", "consumequeue", "mappedFileSizeConsumeQueue", 6_000_000),
    # real 4.5.1 and 5.3.3 of another length do not start on these
    ("killed-ext-4.5.1", "consumequeue_ext", "mappedFileSizeConsumeQueueExt", 48 << 20),
])
def test_length_of_queue_files_that_nothing_tells_is_an_assumption(
    drill: Start, folder: Path, name: str, part: str, setting: str, usual: int, command: str
) -> None:
    store = drill(name)
    size = next((store.root / part).glob("*/*/*")).stat().st_size
    shutil.rmtree(store.root / part)
    done = store.run(command, "--dry-run").document
    (said,) = [text for text in done["assumptions"] if setting in text]
    assert str(usual) in said and f"{setting}={usual}" in done["summary"]
    assert f"{setting}={usual}" in mqtool(command, store.root, "--dry-run").stdout
    conf = folder / "broker.conf"
    conf.write_text(f"{setting}={size}\n")
    for options in (["--broker-conf", conf], ["--set", f"{setting}={size}"]):
        told = store.run(command, "--dry-run", *options).document
        assert setting not in " ".join([*told["assumptions"], told["summary"]])
    assert store.run(command, "--broker-conf", conf, "--yes").code & exits.CORRECTED
    assert {path.stat().st_size for path in (store.root / part).glob("*/*/*")} == {size}


# --- T24: queues that begin after their own end, because a file of theirs was renamed, or is not theirs.


def queue_folder(store: Drill, topic: str, queue: int) -> Path:
    return store.root / "consumequeue" / topic / str(queue)


@pytest.mark.parametrize("how", ["renamed", "renamed, and zeros now", "zeros far behind"])
def test_t24_first_offset_behind_the_last(drill: Start, how: str) -> None:
    store = drill(PLAIN)
    before = queue_bytes(store.root)
    folder = queue_folder(store, "Orders", 1)
    units = len(walk.units(next(q for q in walk.queues(store.root) if (q.topic, q.queue_id) == ("Orders", 1))))
    (folder / file_name(0)).rename(folder / file_name(2000 if how == "renamed, and zeros now" else 4000))
    if how != "renamed":
        next(folder.iterdir()).write_bytes(bytes(2000))
    assert units < 100
    missing = store.finds("consumequeue-missing-units", exit_code=2)
    assert (missing["file"], missing["offset"]) == ("consumequeue/Orders/1", None)
    facts = missing["facts"]
    assert (facts["topic"], facts["queue"], facts["first"], facts["count"]) == ("Orders", 1, 0, units)
    with store.recovered():
        assert queue_bytes(store.root) == before
        for version in store.brokers:
            assert store.run("predict", "--broker", version).document["queues"]["Orders/1"] == [0, units]


@pytest.mark.parametrize("queue", [0, 1])
def test_t24_file_of_zeros_in_front_goes_and_a_queue_without_a_message_left_keeps_its_file(
    drill: Start, queue: int
) -> None:
    store = drill("clean-expired-4.5.1")
    before = queue_bytes(store.root)
    (queue_folder(store, "Old", queue) / file_name(0)).write_bytes(bytes(2000))
    with store.recovered():
        assert queue_bytes(store.root) == before


# --- Units after the end of a queue that name no message of it: copied cells, noise, another queue's units.


UNIT = CQ_UNIT.size


@pytest.mark.parametrize("kind", ["repeated", "of another queue", "into a record", "noise"])
def test_t22_units_behind_the_last_message_that_name_none_go(drill: Start, kind: str) -> None:
    store = drill("clean-plain-4.9.7")
    before = queue_bytes(store.root)
    queues = {(q.topic, q.queue_id): q for q in walk.queues(store.root)}
    units = list(walk.units(queues["Audit", 0]))
    other = walk.units(queues["Orders", 1])[3]
    last = units[-1]
    cell = {
        "repeated": CQ_UNIT.struct.pack(last.unit.phy_offset, last.unit.size, last.unit.tags_code),
        "of another queue": CQ_UNIT.struct.pack(other.unit.phy_offset, other.unit.size, other.unit.tags_code),
        "into a record": CQ_UNIT.struct.pack(last.unit.phy_offset + 5, 100, 0),
        "noise": CQ_UNIT.struct.pack(77, 99, random.Random(4).getrandbits(60)),
    }[kind]
    write_at(store.root / "consumequeue" / "Audit" / "0" / file_name(0), len(units) * UNIT, cell * 2)
    wrong = store.finds("consumequeue-wrong-units", exit_code=2)["facts"]
    assert (wrong["topic"], wrong["queue"], wrong["first"], wrong["count"]) == ("Audit", 0, len(units), 2)
    with store.recovered():
        assert queue_bytes(store.root) == before


# --- A last message whose number became 0 begins no new life of its queue, as long as a unit names it in its old place.


def number_last(store: Drill, topic: str, queue_id: int) -> int:
    """Give the last message of a queue the number 0; its own one."""
    hits = [hit for hit in store.records() if (hit.record.topic_name, hit.record.queue_id) == (topic, queue_id)]
    last = hits[-1]
    overwrite(store.root, last.file.path, last.position + HEAD.offset("queue_offset"), bytes(8), "number 0")
    store.struck()
    return last.record.queue_offset


@pytest.mark.parametrize(("name", "topic"), [("clean-plain-4.9.7", "Orders"), ("clean-expired-5.5.0", "Orders")])
def test_last_message_with_the_number_0_is_put_back_and_none_before_it_is_given_up(
    drill: Start, name: str, topic: str
) -> None:
    store = drill(name)
    before, own = queue_bytes(store.root), number_last(store, topic, 0)
    found = store.finds("commitlog-contradicted-field", exit_code=exits.MESSAGES)
    assert (found["facts"]["field"], found["facts"]["queue_offset"]) == ("queue_offset", own)
    assert store.look().document["commitlog"]["superseded"] == 0
    with store.recovered(0, "--mend-bits") as done:
        assert done["plan"]["loss"] == []
        assert messages(store.root) == store.messages
        assert queue_bytes(store.root) == before


@pytest.mark.parametrize(("shift", "of_each", "wrong"), [
    (1000, 1, 0), (-10_000, 1, 40), (1000, 2, 20), (700, 3, 13),
])
def test_deliver_times_are_read_alike_by_verify_and_predict(
    shift: int, of_each: int, wrong: int, folder: Path
) -> None:
    """Another delay of all messages of a level is another table, unless nothing is left of it; of some it is wrong."""
    root = real_store("clean-plain-4.9.7", folder)
    queue = root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / ("0" * 20)
    content = bytearray(queue.read_bytes())
    for number, at in enumerate(range(0, 40 * 20, 20)):
        if number % of_each == of_each - 1:
            time = int.from_bytes(content[at + 12:at + 20]) + shift
            content[at + 12:at + 20] = time.to_bytes(8)
    queue.write_bytes(content)
    checked, started = (mqtool(command, root, "--json").document for command in ("verify", "predict"))
    assert (checked["consumequeue"]["wrong"], started["unreachable_messages"]) == (wrong, wrong)
