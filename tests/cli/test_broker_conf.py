"""The broker's configuration names the store and its parts; what the files contradict is a finding with its remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mqtool.next_steps import START_BROKER
from recover.broker.settings import KNOWN
from tests.cli.runner import Result, mqtool
from tests.scenarios.drill import LOG_FOLDERS
from tests.support.stores import real_store

COMMANDS = (("inspect",), ("verify",), ("predict",), ("recover", "--dry-run"), ("rebuild", "--dry-run"))
READING = (("inspect",), ("verify",), ("predict",), ("query", "--phy-offset", "0"))


def _conf(folder: Path, **settings: object) -> Path:
    path = folder / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 500,
         "maxIndexNum": 2_000}
"""With what the lab wrote most of its stores."""


def _codes(result: Result) -> set[str]:
    return {item["code"] for item in result.document["findings"]}


@pytest.mark.parametrize("line", READING, ids=lambda line: line[0])
def test_the_store_and_the_folders_of_its_log_are_read_in_the_conf(line: tuple[str, ...], tmp_path: Path) -> None:
    root = real_store("clean-multipath-4.9.7", tmp_path)
    first, second = (root / name for name in LOG_FOLDERS)
    second = second.rename(tmp_path / "disk2")
    sizes = {**SIZES, "mappedFileSizeCommitLog": 128 << 10, "mappedFileSizeConsumeQueue": 2_000}
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=first, readOnlyCommitLogStorePaths=second, **sizes)
    named = mqtool(line[0], root, *line[1:], "--commitlog", first, "--commitlog", second, "--json")
    both = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=f"{first},{second}", **sizes)
    for options in ((root, "--broker-conf", conf), ("--broker-conf", conf), ("--broker-conf", both)):
        result = mqtool(line[0], *line[1:], *options, "--json")
        own = {"next", "assumptions", "seconds", "notes", "engine", "summary", "time"}
        assert result.code == named.code == 0, result.stderr
        assert {key: value for key, value in result.document.items() if key not in own} == {
            key: value for key, value in named.document.items() if key not in own}
        steps = result.document["next"]
        assert all("--broker-conf" in step["command"] for step in steps if step["command"].startswith("mqtool"))


def test_a_copy_is_not_judged_by_the_log_of_the_original(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    for path in (root / "commitlog").iterdir():
        path.write_bytes(b"")
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=root / "commitlog")
    assert mqtool("verify", copy, "--broker-conf", conf).code == 0


def test_no_store_and_no_conf_is_a_usage_error(tmp_path: Path) -> None:
    result = mqtool("verify", "--broker-conf", _conf(tmp_path, brokerName="a"), "--json")
    assert result.code == 16
    assert "storePathRootDir" in result.document["error"]["remedy"]
    assert mqtool("verify").code == 16


def test_a_log_folder_of_the_conf_that_is_not_mounted_is_a_log_that_is_gone(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    (root / "commitlog").rename(tmp_path / "elsewhere")
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=tmp_path / "unmounted")
    result = mqtool("verify", "--broker-conf", conf, "--json")
    assert result.code & 4
    assert "commitlog-empty-queues-left" in _codes(result)
    assert mqtool("recover", "--broker-conf", conf, "--yes").code & 8


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line[0])
@pytest.mark.parametrize(("key", "value", "right"), [
    ("mappedFileSizeCommitLog", 1 << 30, 1 << 20), ("mappedFileSizeConsumeQueue", 6_000_000, 20_000),
    ("maxHashSlotNum", 5_000_000, 500),
])
def test_a_size_that_the_files_contradict_is_told_with_its_own_remedy(
    line: tuple[str, ...], key: str, value: int, right: int, tmp_path: Path,
) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    result = mqtool(line[0], root, *line[1:], "--broker-conf", _conf(tmp_path, **{key: value}), "--json")
    (found,) = (item for item in result.document["findings"] if item["code"] == "settings-contradict-files")
    assert found["remedy"].startswith(f"Set {key}={right} ")
    assert result.code & 2 or result.code & 4
    if line[0] != "inspect":
        commands = [step["command"] for step in result.document["next"]]
        assert commands == [found["remedy"]]
    assert mqtool(line[0], root, *line[1:], "--broker-conf", _conf(tmp_path, **{key: right})).code == 0


def test_a_setting_that_would_cut_the_log_is_to_be_switched_off(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    for name in ("verify", "predict"):
        result = mqtool(name, root, "--broker", "5.3.3", "--set", "forceVerifyPropCRC=true", "--json")
        assert [step["command"].split()[0] for step in result.document["next"]] == ["Leave"]
    assert result.code == 4


def test_a_downgrade_is_answered_with_the_release_to_use(tmp_path: Path) -> None:
    root = real_store("clean-v2-5.5.0", tmp_path)
    result = mqtool("predict", root, "--broker", "4.9.7", "--json")
    assert result.code & 4
    assert [step["command"] for step in result.document["next"]] == ["Start release 5.1.0 or later on this store."]
    newest = mqtool("predict", root, "--broker", "5.5.0", "--json")
    assert [step["command"] for step in newest.document["next"]] == [START_BROKER]


@pytest.mark.parametrize("name", [
    name for name, it in KNOWN.items() if it.default.isdecimal() or it.default in ("true", "false")])
def test_a_value_of_another_type_is_a_usage_error(name: str, tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    result = mqtool("verify", root, "--set", f"{name}=abc", "--json")
    assert result.code == 16
    assert f"{name}=abc" in result.document["error"]["message"]


def test_undo_is_told_the_folders_of_the_log_that_the_conf_names(tmp_path: Path) -> None:
    root = real_store("clean-plain-4.9.7", tmp_path)
    log = (root / "commitlog").rename(tmp_path / "log")
    shutil.rmtree(root / "index")
    (log / "stray").write_text("x")
    conf = _conf(tmp_path, storePathRootDir=root, storePathCommitLog=log)
    done = mqtool("recover", "--broker-conf", conf, "--yes", "--json")
    assert done.code == 1, done.stdout
    assert done.document["next"][0]["command"] == START_BROKER
    assert done.document["undo"]["command"] == f"mqtool undo {root} --commitlog {log}"
    assert mqtool(*done.document["undo"]["command"].split()[1:], "--yes").code == 0
    assert (log / "stray").exists()


def test_a_size_that_is_no_number_is_told_as_the_default_that_a_broker_takes(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    conf = _conf(tmp_path, **{**SIZES, "mappedFileSizeCommitLog": "1M"})
    for line in (("verify",), ("predict", "--broker", "5.3.3")):
        result = mqtool(line[0], root, *line[1:], "--broker-conf", conf, "--json")
        (found,) = (item for item in result.document["findings"] if item["code"] == "settings-contradict-files")
        assert result.code & 2 and "'1M'" in found["message"] and "1073741824" in found["message"]
        assert result.document["next"][0]["command"].startswith("Set mappedFileSizeCommitLog=1048576")


def test_a_size_that_the_conf_leaves_out_is_told_before_the_start(tmp_path: Path) -> None:
    root = real_store("clean-5.3.3", tmp_path)
    conf = _conf(tmp_path, brokerName="a", **{key: value for key, value in SIZES.items() if key != "maxIndexNum"})
    for line in (("verify",), ("predict", "--broker", "5.3.3")):
        result = mqtool(line[0], root, *line[1:], "--broker-conf", conf, "--json")
        (found,) = (item for item in result.document["findings"] if item["code"] == "settings-leave-out-size")
        assert (result.code, found["severity"], found["facts"]["setting"]) == (0, "info", "maxIndexNum")
    assert result.document["next"][0]["command"] == START_BROKER
    assert "maxIndexNum=2000, which it lacks" in result.document["next"][0]["why"]
    assert "settings-leave-out-size" not in _codes(mqtool("verify", root, "--set", "brokerName=a", "--json"))
