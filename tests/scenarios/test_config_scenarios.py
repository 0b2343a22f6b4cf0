"""T28, T29, T33, T34, T40: config files and offsets, the timer's log, DLedger, settings that would cut the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fixtures.synth import StoreWriter
from formats.config.tables import BY_NAME
from formats.dledger import DLEDGER_ENTRY_HEAD, DLedgerEntryHead
from formats.timer import MAGIC_BLANK, TIMER_LOG_BLANK, TIMER_LOG_UNIT, TimerLogBlank, TimerLogUnit, decode, units_of
from mqtool import exits
from recover.store.config_files import read_config
from tests.cli.runner import mqtool
from tests.scenarios.conftest import Start
from tests.scenarios.drill import BROKERS, Drill, file_name
from tests.support import plain_reader as plain
from tests.support.sampling import few
from tests.support.stores import write_at
from tests.support.trees import assert_unchanged

WITH_CONFIG, PLAIN, KILLED, TIMER = "clean-4.5.1", "clean-plain-4.9.7", "killed-plain-4.5.1", "clean-5.3.3"


def members(path: Path) -> dict[str, object]:
    """The entries of a config file, as far as they can be read."""
    return dict(read_config(path, BY_NAME[path.name.removesuffix(".bak")]).table)


# --- T28 ------------------------------------------------------------------------------------------------


def test_t28_missing_file_comes_back_from_its_backup(drill: Start) -> None:
    store = drill(WITH_CONFIG)
    name = store.strike("config-missing-bak-sound").facts["file"]
    content = (store.root / "config" / f"{name}.bak").read_bytes()
    store.finds("config-missing", f"config/{name}", None, exit_code=2)
    with store.recovered():
        assert (store.root / "config" / name).read_bytes() == content


def test_t28_guessed_topics_are_named_before_the_start_until_a_broker_has_written_them(drill: Start) -> None:
    store = drill(TIMER)
    store.strike("topics-missing")
    with store.recovered() as done:
        path = store.root / "config" / "topics.json"
        for later in (done, store.run("predict").document):
            (start,) = [step for step in later["next"] if step["command"] == "start the broker"]
            assert "config/topics.json, which mqtool guessed" in start["why"]
        found = store.finds("config-topics-are-a-guess", "config/topics.json", None, exit_code=0)
        assert found["severity"] == "info" and found["facts"]["topics"] == len(members(path))
        made, written = path.read_bytes(), json.loads(path.read_bytes())
        written.pop("guessedBy")
        path.write_text(json.dumps(written))
        assert "config-topics-are-a-guess" not in store.look().document["finding_counts"]
        path.write_bytes(made)


def test_t28_offsets_of_which_a_part_is_left_are_named_before_the_start(drill: Start) -> None:
    store = drill("clean-4.5.1")
    path = store.root / "config" / "consumerOffset.json"
    path.write_bytes(path.read_bytes()[:122])
    path.with_name("consumerOffset.json.bak").unlink()
    store.struck()
    found = store.finds("config-lost", "config/consumerOffset.json", 122, exit_code=exits.DERIVED)
    assert "mqtool recover" in found["remedy"] and found["facts"]["readable"] == 2
    with store.recovered() as done:
        for later in (done, store.run("predict").document):
            (start,) = [step for step in later["next"] if step["command"] == "start the broker"]
            assert "config/consumerOffset.json, of which mqtool kept what could be read" in start["why"]
        assert store.finds("config-partly-kept", exit_code=0)["facts"]["count"] == 2


@pytest.mark.parametrize("queues", ["all", "none"])
def test_t28_topics_of_another_broker_are_added_to_and_are_no_proof_of_deletion(drill: Start, queues: str) -> None:
    store = drill(TIMER)
    path = store.root / "config" / "topics.json"
    written = json.loads(path.read_bytes())
    fresh = {name: topic for name, topic in written["topicConfigTable"].items()
             if not name.startswith(("Topic", "Orders", "%"))}
    path.write_text(json.dumps({**written, "topicConfigTable": fresh}))
    path.with_name("topics.json.bak").unlink(missing_ok=True)
    if queues == "none":
        shutil.rmtree(store.root / "consumequeue")
    found = store.finds("config-topics-guessed", "config/topics.json", None, exit_code=2)
    assert "lists no topic that holds messages" in found["message"]
    with store.recovered():
        assert written["topicConfigTable"].keys() == members(path).keys()
        units = plain.units(store.root)
        assert {("TopicA", 0, 0), ("Orders-2026", 3, 0)} <= units.keys()


def test_t28_difference_between_file_and_backup_is_shown(drill: Start) -> None:
    store = drill(WITH_CONFIG)
    path = store.root / "config" / "topics.json"
    older = members(path.with_name("topics.json.bak"))
    path.write_bytes(path.read_bytes()[:900])
    # the backup is from before a topic that has messages: no broker would serve that
    found = store.finds("config-topics-guessed", exit_code=2)
    assert found["file"] == "config/topics.json"
    assert 800 < found["offset"] <= 900
    facts = found["facts"]
    assert facts["backup"]["members"] == len(older)
    assert 0 < len(facts["only_in_backup"]) < len(older)
    with store.recovered():
        assert older.items() < members(path).items()


def test_t28_topic_that_only_its_queues_and_the_log_know_is_added(drill: Start) -> None:
    store = drill(WITH_CONFIG)
    path = store.root / "config" / "topics.json"
    written = json.loads(path.read_bytes())
    del written["topicConfigTable"]["TopicA"]
    for copy in (path, path.with_name("topics.json.bak")):
        copy.write_text(json.dumps(written))
    found = store.finds("config-topics-guessed", "config/topics.json", None, exit_code=2)
    assert "does not list TopicA" in found["message"]
    told = store.run("predict")
    assert told.code & exits.MESSAGES
    (forgets,) = (one for one in told.document["findings"] if one["code"] == "start-forgets-config")
    assert forgets["message"].endswith(
        "forget content of config/topics.json: it does not list TopicA")
    with store.recovered():
        assert members(path).items() > written["topicConfigTable"].items()
        assert members(path)["TopicA"]["readQueueNums"] == 4


# --- T29 ------------------------------------------------------------------------------------------------


# without its first file the log begins later than retention explains, and the group had not read that file
@pytest.mark.parametrize(("recipe", "code"), [
    ("consumer-offset-below-min", exits.MESSAGES), ("consumer-offset-unknown-topic", exits.CLEAN),
])
def test_t29_offsets_that_nothing_repairs_are_listed(drill: Start, recipe: str, code: int) -> None:
    store = drill(WITH_CONFIG)
    facts = store.strike(recipe).facts
    found = store.finds(recipe, "config/consumerOffset.json", None, exit_code=code)
    assert (found["severity"], found["facts"]["group"], found["facts"]["topic"]) == (
        "info", facts["group"], facts["topic"])
    with assert_unchanged(store.root):
        assert store.run("recover", "--yes", "--clamp-offsets").code == code


# --- T33 ------------------------------------------------------------------------------------------------


def timer_end(store: Drill) -> tuple[Path, int, TimerLogUnit]:
    """The timerlog, where the next unit would go, and its last unit."""
    path = store.root / "timerlog" / file_name(0)
    with path.open("rb") as file:
        content = file.read(1 << 20)
    used = len(content.rstrip(b"\0")) // TIMER_LOG_UNIT.size + 1
    end = used * TIMER_LOG_UNIT.size
    return path, end, decode(content, end - TIMER_LOG_UNIT.size)


def test_t33_end_mark_of_the_timerlog_is_no_unit(drill: Start) -> None:
    store = drill(TIMER)
    path, end, _ = timer_end(store)
    write_at(path, end, TIMER_LOG_BLANK.encode(TimerLogBlank(path.stat().st_size - end, 0, MAGIC_BLANK)))
    assert store.look().code == 0
    assert not [item for item in store.look().document["findings"] if item["code"].startswith("timer-")]


@few("unclean", [False, True], quick=(1,))
def test_t33_timerlog_that_points_past_the_end_is_made_again(drill: Start, unclean: bool) -> None:
    store = drill(TIMER)
    path, end, last = timer_end(store)
    log_end = store.look().document["commitlog"]["log_end"]
    write_at(path, end, TIMER_LOG_UNIT.encode(last._replace(phy_offset=log_end + 1000, write_timestamp=1 << 41)))
    found = store.finds("timer-points-beyond-log", f"timerlog/{file_name(0)}", end, exit_code=2)
    assert (found["facts"]["count"], found["facts"]["log_end"]) == (1, log_end)
    if unclean:
        (store.root / "abort").touch()
    with store.recovered():
        units, _ = units_of(path.read_bytes())
        assert units.size and not (units["phy_offset"] >= log_end).any()
        assert not (store.root / "abort").exists()


# --- T34 ------------------------------------------------------------------------------------------------


def dledger_log(root: Path, damage: str) -> str:
    """Two entries of a DLedger group, the second of them damaged."""
    size = DLEDGER_ENTRY_HEAD.size + 100
    heads = [DLedgerEntryHead(1, size, number, 1, number * size, 0, 0, 0, 100) for number in range(2)]
    if damage == "entry":
        heads[1] = heads[1]._replace(size=-5)
    if damage == "index":
        heads[1] = heads[1]._replace(entry_index=77)
    folder = root / "dledger-n0" / "data"
    folder.mkdir(parents=True)
    content = b"".join(DLEDGER_ENTRY_HEAD.encode(head) + bytes(100) for head in heads)
    (folder / file_name(0)).write_bytes(content.ljust(64 << 10, b"\0"))
    return "dledger-n0"


@pytest.mark.parametrize("damage", ["entry", "index"])
def test_t34_dledger_log_is_refused_in_clear_words_and_abort_stays(drill: Start, damage: str) -> None:
    store = drill(KILLED)
    part = dledger_log(store.root, damage)
    found = store.finds("part-not-supported", part, None, exit_code=exits.UNSUPPORTED)
    assert "DLedger" in found["message"]
    assert "cannot read" in found["message"]
    store.strike("bit-in-body")
    left = exits.UNSUPPORTED | exits.MESSAGES | exits.DERIVED
    store.finds("commitlog-damaged-record", exit_code=left)
    with assert_unchanged(store.root):
        refused = store.run("recover", "--yes")
    assert refused.code == exits.OPERATIONAL | left
    assert part in refused.document["error"]["message"]
    assert (store.root / "abort").exists()


# --- T40 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["--set", "--broker-conf"])
def test_t40_checksum_settings_over_an_old_store_are_warned_of(drill: Start, folder: Path, how: str) -> None:
    store = drill(PLAIN)
    conf = folder / "broker.conf"
    conf.write_text("brokerName=a\nappendPropCRC=true\nforceVerifyPropCRC=true\n")
    options = ("--set", "forceVerifyPropCRC=true") if how == "--set" else ("--broker-conf", conf)
    with assert_unchanged(store.root):
        result = store.run("verify", *options)
        (found,) = [item for item in result.document["findings"] if item["severity"] != "info"]
        assert (found["code"], found["file"], found["offset"], result.code) == (
            "settings-would-truncate", "commitlog", 0, 2)
        assert found["facts"]["count"] == len(store.messages)
        # not "a start would": the next one may begin after it
        assert "a recovery that comes to 0 cuts the log there" in found["message"]
        said = store.run("predict", "--broker", "5.3.3", *options)
    assert said.code == 4
    assert said.document["max_phy"] == 131072  # a clean start reads the newest file only
    assert said.document["lost_messages"] == sum(m.phy_offset >= 131072 for m in store.messages)
    store.starts(*BROKERS)


@pytest.mark.parametrize(("version", "warned"), [("4.9.7", False), ("5.3.3", True), ("5.5.0", True)])
def test_t40_duplication_over_records_without_its_property_is_warned_of_from_5_0_0(
    drill: Start, version: str, warned: bool
) -> None:
    store = drill(PLAIN)
    options = ("--broker", version, "--set", "duplicationEnable=true")
    result = store.run("verify", *options)
    found = [item for item in result.document["findings"] if item["severity"] != "info"]
    assert [(item["code"], item["offset"]) for item in found] == [("settings-would-truncate", 0)] * warned
    assert result.code == 2 * warned
    assert store.run("predict", *options).code == 4 * warned


def test_t40_the_same_settings_over_records_with_checksums_are_fine(drill: Start) -> None:
    store = drill("clean-propcrc-5.3.3")
    options = ("--set", "forceVerifyPropCRC=true")
    assert store.verify(*options).code == 0
    assert store.run("predict", "--broker", "5.3.3", *options).code == 0
    facts = store.strike("bit-in-properties").facts
    found = store.finds("commitlog-damaged-record", *store.place(facts["phy_offset"]), exit_code=4)
    assert found["facts"]["reason"] == "bad-property-crc"
    with store.recovered(0, starts=False):
        assert store.verify(*options).code == 0
        assert store.run("predict", "--broker", "5.3.3", *options).document["lost_messages"] == 0


def test_the_topic_of_replies_that_a_new_broker_names_makes_no_other_topic_deleted(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    writer.put("Orders", b"one")
    writer.put("lab_REPLY_TOPIC", b"answer", {"MSG_TYPE": "reply"})
    writer.close()
    topics = tmp_path / "store" / "config" / "topics.json"
    table = json.loads(topics.read_bytes())
    del table["topicConfigTable"]["Orders"]
    topics.write_text(json.dumps(table))
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    document = mqtool("verify", tmp_path / "store", "--json").document
    codes = {finding["code"] for finding in document["findings"]}
    assert "topic-deleted" not in codes
    assert document["consumequeue"]["missing"] == 2
