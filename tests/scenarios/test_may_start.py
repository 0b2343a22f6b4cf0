"""May it start? Whatever ends in "start the broker" asks what predict asks, and names no start where that says no."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.damage import damage
from formats.config.json import Style, dumps, loads
from mqtool import exits
from mqtool.next_steps import START_BROKER
from tests.cli.runner import Result, mqtool
from tests.support.sampling import few
from tests.support.stores import real_store

_OWNER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root gives files away")


def _closed_log_file(root: Path) -> tuple[str, ...]:
    """All files are of one user but one of the log, which root owns and nobody else may read."""
    for path in (root, *root.rglob("*")):
        os.chown(path, _OWNER, _OWNER)
    last = max((root / "commitlog").iterdir())
    os.chown(last, 0, 0)
    last.chmod(0o600)
    return ()


def _short_retention(root: Path) -> tuple[str, ...]:
    """The broker is to keep log files for one hour, and all but the last are older."""
    return ("--set", "fileReservedTime=1")


def _other_offsets(root: Path) -> tuple[str, ...]:
    """The settings select the file of consumer offsets that has none."""
    return ("--broker", "4.9.7", "--set", "enableLmq=true")


AROUND = [pytest.param(_closed_log_file, marks=AS_ROOT), _short_retention, _other_offsets]


def _named(result: Result) -> list[str]:
    return [step["command"] for step in result.document["next"]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sound store with several log files."""
    return real_store("clean-4.5.1", tmp_path)


@pytest.mark.parametrize("surround", AROUND)
@few("recipe", ["", "bit-in-body"], quick=(1,))
def test_no_command_names_a_start_that_predict_advises_against(
    surround: Callable[[Path], tuple[str, ...]], recipe: str, root: Path, tmp_path: Path
) -> None:
    if recipe:
        damage(recipe, root, 3)
    given = surround(root)
    plan = tmp_path / "plan.json"
    commands: list[tuple[object, ...]] = [
        ("inspect", root, *given), ("verify", root, *given), ("groups", root, *given),
        ("recover", root, *given, "--dry-run", "--plan-out", plan), ("rebuild", root, *given, "--yes"),
        ("recover", root, *given, "--yes"), ("recover", root, *given, "--yes"), ("undo", root, "--yes"),
        ("apply", plan, "--yes"), ("report", root, *given),
    ]
    for words in commands:
        said = mqtool(*words, "--json")
        assert START_BROKER not in _named(said), words
    assert mqtool("predict", root, *given).code & exits.MESSAGES


@pytest.mark.parametrize("surround", AROUND)
def test_a_repair_says_first_what_keeps_the_broker_from_starting(
    surround: Callable[[Path], tuple[str, ...]], root: Path
) -> None:
    damage("bit-in-body", root, 3)
    given = surround(root)
    done = mqtool("recover", root, *given, "--yes", "--json")
    if surround is _closed_log_file and done.code & exits.OPERATIONAL:
        pytest.skip("NOT RUN: recover acts as the store's user, who may not read the file")
    assert done.code & exits.CORRECTED
    expected = {_closed_log_file: "chown", _short_retention: "fileReservedTime", _other_offsets: "enableLmq=false"}
    assert expected[surround] in _named(done)[0], _named(done)


def test_a_repair_ends_with_the_start_where_it_costs_nothing(root: Path) -> None:
    damage("bit-in-body", root, 3)
    done = mqtool("recover", root, "--yes", "--json")
    assert _named(done)[0] == START_BROKER


# --- After a kill the start itself may be the repair.


@pytest.mark.parametrize("name", ["killed-manyfiles-4.9.7", "killed-manyfiles-5.5.0", "killed-5.5.0"])
def test_what_a_kill_leaves_is_restored_by_the_start_where_predict_says_so(name: str, tmp_path: Path) -> None:
    """The last messages of the log are in no queue yet: verify says what predict says, and not only "recover"."""
    root = real_store(name, tmp_path)
    damage("queue-behind", root, 3)
    checked = mqtool("verify", root, "--json")
    assert checked.code == exits.DERIVED and checked.notable == {"abort-present", "consumequeue-missing-units"}
    played = mqtool("predict", root, "--json")
    if played.code:
        assert START_BROKER not in _named(checked), played
        return
    assert _named(checked) == [START_BROKER, f"mqtool recover {root} --dry-run"]
    assert "restores what the kill left, at no cost" in checked.document["next"][0]["why"]


def test_some_start_after_a_kill_is_the_repair(tmp_path: Path) -> None:
    root = real_store("killed-manyfiles-5.5.0", tmp_path)
    damage("queue-behind", root, 3)
    assert _named(mqtool("verify", root, "--json"))[0] == START_BROKER


def test_index_entries_that_no_start_writes_again_are_not_restored_by_it(tmp_path: Path) -> None:
    """A start indexes only what it dispatches; older entries of a lost file stay missing."""
    root = real_store("killed-manyfiles-5.5.0", tmp_path)
    damage("index-middle-missing", root, 3)
    checked = mqtool("verify", root, "--json")
    assert checked.notable == {"abort-present", "index-missing-units"}
    assert START_BROKER not in _named(checked)


# --- A change of settings is a question, answered from what brokers do.


@pytest.mark.parametrize(("setting", "code", "named"), [
    ("storeType=defaultRocksDB", exits.MESSAGES, "settings-select-other-queues"),
    ("mappedFileSizeConsumeQueue=4000", exits.MESSAGES, "settings-contradict-files"),
    ("mappedFileSizeCommitLog=2097152", exits.MESSAGES, "settings-contradict-files"),
    ("enableLmq=true", exits.MESSAGES, "config-other-offsets"),
    ("forceVerifyPropCRC=true", exits.MESSAGES, "settings-would-truncate"), ("enabledAppendPropCRC=true", 0, ""),
])
def test_a_change_of_settings_is_answered(setting: str, code: int, named: str, root: Path) -> None:
    """4 and never 64: the files that a broker with that setting does not read, or refuses, are there."""
    played = mqtool("predict", root, "--broker", "5.3.3", "--set", setting, "--json")
    assert played.code == code
    assert not named or played.found(named)
    assert (START_BROKER in _named(played)) is not bool(code)


def test_queues_in_files_are_not_read_with_queues_in_rocksdb(root: Path) -> None:
    """From 5.2.0 on the setting selects an empty database; older releases do not know it."""
    new, old = (mqtool("predict", root, "--broker", broker, "--set", "storeType=defaultRocksDB", "--json").document
                for broker in ("5.3.3", "4.9.7"))
    before = mqtool("predict", root, "--broker", "5.3.3", "--json").document
    ends = {name: stop for name, (_, stop) in before["queues"].items() if stop}
    assert {name: high for name, high, low in new["lowered_queues"] if low == 0} == ends
    assert new["starts"] is True and "does not read the" in new["reason"]
    assert (old["exit_code"], old["lowered_queues"]) == (0, [])


def _progress(root: Path, file: str, change: Callable[[dict[Any, Any]], None]) -> None:
    """Change the table of offsets in a file that a broker wrote; keys stay numbers without quotes."""
    path = root / "config" / file
    value = loads(path.read_bytes())
    assert isinstance(value, dict)
    change(value["offsetTable"])
    path.write_bytes(dumps(value, Style.FASTJSON1))


@pytest.mark.parametrize(("file", "behind", "by", "queue"), [
    ("consumerOffset.json", lambda table: table["TopicA@CG_retry"].update({0: 100}), "group CG_retry", "TopicA/0"),
    ("delayOffset.json", lambda table: table.update({1: 30}), "delay level 1", "SCHEDULE_TOPIC_XXXX/0"),
])
def test_a_first_file_with_messages_that_nobody_has_read_is_looked_for(
    file: str, behind: Callable[[dict[Any, Any]], None], by: str, queue: str, root: Path
) -> None:
    """Of a queue with messages from 118 (39) on, those before are missing; retention has not deleted them."""
    _progress(root, file, behind)
    min((root / "commitlog").iterdir()).unlink()
    expected = {"TopicA/0": [100, 118], "SCHEDULE_TOPIC_XXXX/0": [30, 39]}[queue]
    for words in (("verify",), ("predict",), ("doctor",), ("recover", "--dry-run"), ("recover", "--yes")):
        said = mqtool(words[0], root, *words[1:], "--json")
        assert said.code & exits.MESSAGES and said.document["next"][0]["command"].startswith("Find them"), words
        assert START_BROKER not in _named(said), words
    (found,) = mqtool("verify", root, "--json").found("commitlog-begin-missing")
    assert (found["facts"]["by"], found["facts"]["queues"]) == (by, {queue: expected})
    meant = mqtool("verify", root, "--set", "fileReservedTime=0", "--json")
    assert "commitlog-begin-missing" not in meant.codes and not meant.code & exits.MESSAGES


def test_a_queue_that_has_no_message_left_tells_what_nobody_has_read(root: Path) -> None:
    """Only its entries, all before the first file, tell how many messages it had."""
    units = (root / "consumequeue" / "TopicB" / "0" / ("0" * 20)).read_bytes()
    gone = root / "consumequeue" / "Gone" / "0"
    gone.mkdir(parents=True)
    (gone / ("0" * 20)).write_bytes(units[:12 * 20].ljust(len(units), b"\0"))
    _progress(root, "consumerOffset.json", lambda table: table.update({"Gone@late": {0: 5}, "Gone@done": {0: 12}}))
    min((root / "commitlog").iterdir()).unlink()
    (found,) = mqtool("verify", root, "--json").found("commitlog-begin-missing")
    assert (found["facts"]["by"], found["facts"]["queues"]) == ("group late", {"Gone/0": [5, 12]})


def test_a_wrong_bit_in_a_topic_leads_every_command_to_its_repair(root: Path) -> None:
    """One next step for one cause: no rebuild, no start before it, no undo of what did not touch the message."""
    log = min((root / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    at = -1
    for _ in range(21):
        at = content.index(b"\x06TopicA", at + 1)
    content[at + 3] ^= 1
    log.write_bytes(content)
    mend = f"mqtool recover {root} --mend-bits"
    for words in (("verify",), ("predict",), ("doctor",), ("recover", "--dry-run"), ("recover", "--yes")):
        said = mqtool(words[0], root, *words[1:], "--json")
        assert _named(said)[0].startswith(mend), words
        assert not any("rebuild" in item["remedy"] for item in said.document["findings"]), words
        assert not any(" && " in command for command in _named(said)), words
    (root / "checkpoint").unlink()
    changed = mqtool("recover", root, "--yes", "--json")
    assert _named(changed)[:2] == [START_BROKER, f"{mend} --dry-run"]
    assert mqtool("recover", root, "--mend-bits", "--yes").code == exits.CORRECTED
    assert _named(mqtool("verify", root, "--json")) == [f"mqtool predict {root}"]


def test_a_part_that_only_a_setting_tells_of_is_named_as_an_assumption(tmp_path: Path) -> None:
    root = real_store("kinds/clean-pop-5.5.0", tmp_path)
    shutil.rmtree(root / "kvStore")
    checked, started = (mqtool(command, root, "--json") for command in ("verify", "predict"))
    assert (checked.code, started.code) == (exits.CLEAN, exits.CLEAN)
    assert "popConsumerKVServiceInit=false" in checked.document["summary"]
    assert any("popConsumerKVServiceInit=false" in text for text in started.document["assumptions"])
    assert "provided that it has popConsumerKVServiceInit=false" in started.document["next"][0]["why"]
    said = ("--set", "popConsumerKVServiceInit=false")
    assert "popConsumerKVServiceInit" not in mqtool("verify", root, *said, "--json").document["summary"]
    assert mqtool("verify", root, "--set", "popConsumerKVServiceInit=true").code & exits.DERIVED


@AS_ROOT
@pytest.mark.parametrize(("part", "starts", "code"), [
    ("index", True, exits.DERIVED), ("config", False, exits.MESSAGES),
])
def test_a_start_needs_no_list_of_index_files(part: str, starts: bool, code: int, root: Path) -> None:
    """IndexService.load takes a folder that it cannot list for an empty one, in 4.9.7 as in 5.3.3."""
    for path in (root, *root.rglob("*")):
        os.chown(path, _OWNER, _OWNER)
    os.chown(root / part, 0, 0)
    (root / part).chmod(0o700)
    for release in ("4.9.7", "5.3.3"):
        played = mqtool("predict", root, "--broker", release, "--json")
        assert (played.document["starts"], played.code) == (starts, code), release
        assert played.document["next"][0]["command"].startswith("chown")
