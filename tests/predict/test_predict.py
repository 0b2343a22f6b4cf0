"""What a start would do, played, and held against what released brokers did."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.observe import OBSERVED, SOUND
from fixtures.lab.packed import settings as packed_settings
from fixtures.synth import StoreWriter
from formats import properties as props
from mqtool import exits
from mqtool.screens.verdict import start_line
from recover.broker.settings import BrokerSettings
from recover.broker.versions import BrokerVersion
from recover.check.report import verify
from recover.check.surroundings import Surroundings
from recover.log.scan import LocalEngine
from recover.predict.prediction import Prediction
from recover.predict.start import play, predict
from recover.store.store import Store
from tests.cli.runner import mqtool
from tests.support import plain_reader as plain
from tests.support.harm import Harm
from tests.support.sampling import chosen, few
from tests.support.stores import EXPECTED, STORES, flip, real_store, struck_store, write_at
from tests.support.trees import assert_unchanged

# --- What a start would do and cost, on real stores and damaged copies of them.


MIB = 1 << 20


def ask(root: Path, version: str = "5.3.3", **given: str) -> Prediction:
    store = Store.open(root)
    return predict(store, LocalEngine().scan_log(store.commitlog), BrokerSettings(BrokerVersion.parse(version), given))


def log_file(root: Path, index: int) -> Path:
    return root / "commitlog" / f"{index * MIB:020d}"


def readers(name: str) -> list[str]:
    return ["5.1.0", "5.3.3", "5.5.0"] if "v2" in name else ["4.4.0", "4.5.1", "4.9.7", "5.0.0", "5.3.3", "5.5.0"]


@pytest.mark.parametrize("name", STORES)
def test_sound_store_costs_nothing_and_is_not_touched(store: Callable[[str], Path], name: str) -> None:
    root = store(name)
    with assert_unchanged(root):
        for version in readers(name):
            found = ask(root, version)
            assert (found.starts, found.exit_code, found.max_phy) == (True, 0, EXPECTED[name]["log_end"]), version
            assert sum(high - low for low, high in found.queues.values()) == EXPECTED[name]["units"]


def test_release_that_cannot_read_the_records_loses_them(store: Callable[[str], Path]) -> None:
    found = ask(store("killed-v2-ipv6-5.3.3"), "5.0.0")
    assert (found.starts, found.max_phy, found.lost_messages, found.exit_code) == (True, 0, 5000, 4)
    assert {finding.code for finding in found.findings()} >= {"start-loses-messages", "start-deletes-files"}


def test_one_lost_topic_stays_lost_after_a_clean_stop(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    shutil.rmtree(root / "consumequeue" / "TopicA")
    for version in ("4.9.7", "5.3.3", "5.5.0"):
        found = ask(root, version)
        assert (found.unreachable_messages, found.duplicated_offsets, found.exit_code) == (587, 587, 4)
        assert found.unreachable == {"TopicA/0": 161, "TopicA/1": 136, "TopicA/2": 148, "TopicA/3": 142}


def test_all_queues_lost_come_back_but_not_from_5_0_to_5_3_1(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    shutil.rmtree(root / "consumequeue")
    versions = ("4.4.0", "4.9.7", "5.0.0", "5.3.1", "5.3.3")
    costs = {version: ask(root, version).unreachable_messages for version in versions}
    assert costs == {"4.4.0": 2765, "4.9.7": 0, "5.0.0": 2765, "5.3.1": 2765, "5.3.3": 0}
    assert ask(root, "5.3.1", recheckReputOffsetFromCq="true").unreachable_messages == 0


def test_first_undispatched_message_is_skipped_from_5_3_2(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    path = root / "consumequeue" / "TopicA" / "0" / f"{0:020d}"
    # every queue ends early, so the largest offset of all lies before the end of the log
    for other in (root / "consumequeue").glob("*/*/*"):
        content = other.read_bytes()
        units = len(content.rstrip(b"\0")) // 20 + 1
        other.write_bytes(content[: max(0, units - 9) * 20].ljust(len(content), b"\0"))
    assert path.exists()
    assert ask(root, "4.9.7").misaligned_units == 0
    found = ask(root, "5.3.3")
    assert found.misaligned_units > 0 and found.duplicated_offsets > 0 and found.exit_code == 4


def first_of_length(length: int) -> Harm:
    return lambda root: os.truncate(log_file(root, 0), length)


@pytest.mark.parametrize(("harm", "starts", "reason"), [
    pytest.param(lambda root: log_file(root, 2).touch(),
                 {"4.9.7": False, "5.1.2": False, "5.1.3": True, "5.5.0": True}, "0 bytes", id="an empty last file"),
    *(pytest.param(first_of_length(length), dict.fromkeys(("4.5.1", "5.1.3", "5.5.0"), False), "0" * 20,
                   id=f"a file of {length} bytes") for length in (0, MIB // 2, MIB + 1)),
    pytest.param(lambda root: (root / "commitlog" / "old").mkdir(),
                 {"4.9.7": False, "5.0.0": False, "5.1.0": True, "5.5.0": True}, "", id="a folder among log files"),
])
def test_what_stops_a_start(
    store: Callable[[str], Path], harm: Harm, starts: dict[str, bool], reason: str
) -> None:
    root = store("clean-5.3.3")
    harm(root)
    for version, expected in starts.items():
        found = ask(root, version)
        assert found.starts is expected, version
        assert found.deleted_files == ([f"commitlog/{2 * MIB:020d}"] if expected and reason else [])
        assert expected or (found.reason is not None and reason in found.reason and found.exit_code == 4)


@pytest.mark.parametrize(("version", "left"), [("4.4.0", 23), ("4.5.1", 0), ("5.3.3", 0), ("5.5.0", 0)])
def test_without_a_log_the_queues_go_but_for_an_orderly_stop_of_old(
    store: Callable[[str], Path], version: str, left: int
) -> None:
    """CommitLog.recoverNormally calls destroyLogics since 4.5.0, recoverAbnormally always did; seen with 4.4.0."""
    root = store("clean-4.5.1")
    shutil.rmtree(root / "commitlog")
    for killed in (False, True):
        if killed:
            (root / "abort").touch()
        found = ask(root, version)
        kept = 0 if killed else left
        assert (found.starts, found.min_phy, found.max_phy, found.start_file) == (True, -1, 0, None)
        assert sum(high > 0 for _, high in found.queues.values()) == kept
        assert bool(found.deleted_files) is (not kept)


def test_file_of_another_length_ends_the_loading_up_to_4_4(store: Callable[[str], Path]) -> None:
    root = store("killed-5.5.0")
    os.truncate(log_file(root, 1), MIB // 2)
    found = ask(root, "4.4.0")
    assert found.starts and found.ignored_files == [f"commitlog/{MIB:020d}", f"commitlog/{2 * MIB:020d}"]
    assert found.lost_messages > 0


def test_another_file_size_in_the_settings_stops_the_start(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    found = ask(root, "5.3.3", mappedFileSizeCommitLog="1073741824")
    assert not found.starts and found.reason is not None and "1073741824" in found.reason
    assert any(text.startswith("mappedFileSizeCommitLog=1048576") for text in ask(root).assumptions)


def test_a_log_in_several_folders_is_not_found_up_to_4_9_1(store: Callable[[str], Path]) -> None:
    root = store("clean-multipath-4.9.7")
    folders = ("--commitlog", root / "commitlog-a", "--commitlog", root / "commitlog-b")
    old = mqtool("predict", root, *folders, "--broker", "4.9.1", "--json")
    assert old.code == exits.MESSAGES and old.found("start-needs-newer-broker")
    assert old.document["lost_messages"] == len(plain.records(root))
    assert set(map(tuple, old.document["queues"].values())) == {(0, 0)}
    for release in (("--broker", "4.9.2"), ()):
        assert mqtool("predict", root, *folders, *release, "--json").code == 0
    starts = mqtool("inspect", root, *folders, "--json").document["start_file"]
    assert starts["4.9.1"]["file"] is None and starts["4.9.2"]["file"] is not None


def test_crash_without_checkpoint_reads_everything_and_finds_old_damage(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    write_at(log_file(root, 0), 95, b"~")
    assert ask(root).lost_messages == 0
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    found = ask(root)
    assert found.start_file == f"commitlog/{0:020d}"
    assert (found.max_phy, found.lost_messages, found.exit_code) == (0, 2764, 4)
    assert f"commitlog/{MIB:020d}" in found.deleted_files


@pytest.mark.parametrize(("name", "moved", "max_phy", "starts"), [
    ("clean-manyfiles-5.3.3", 32768, 977295, True), ("clean-manyfiles-5.3.3", 655, 978605, True),
    ("clean-manyfiles-5.3.3", -655, 975985, True), ("clean-manyfiles-5.3.3", 98304, 1042831, False),
    ("killed-manyfiles-5.5.0", -32768, 1010063, False),
])
def test_a_last_file_whose_name_no_log_file_can_have_ends_the_log_elsewhere(
    store: Callable[[str], Path], name: str, moved: int, max_phy: int, starts: bool
) -> None:
    """As 4.5.1, 4.9.7, 5.3.3 and 5.5.0 had it. The last one is all zeros: what is written to it is never delivered.

    Up to 4.9.7 dispatch may wait for ever."""
    root = store(name)
    last = max((root / "commitlog").iterdir())
    last.rename(last.with_name(f"{int(last.name) + moved:020}"))
    for version in ("4.5.1", "4.9.7", "5.3.3", "5.5.0"):
        found = ask(root, version)
        assert (found.max_phy, found.exit_code) == (max_phy, exits.MESSAGES)
        assert found.starts == (starts or version > "5"), version
    assert mqtool("verify", root, "--mapped-file-size", "65536").code == mqtool("verify", root).code


@pytest.mark.parametrize(("offset", "outcome"), [
    (0, (False, 0, 4)), (-1, (False, 0, 4)), (1 << 40, (False, 0, 4)),
    (MIB, (True, 0, 0)), (MIB + 3, (True, 1402, 4)), (2 * MIB, (True, 0, 2)),
])
def test_accelerated_recovery_of_5_5_0_trusts_the_offset_of_the_checkpoint(
    store: Callable[[str], Path], offset: int, outcome: tuple[bool, int, int]
) -> None:
    """As 5.5.0 had it. It begins there even inside of a record, and refuses an offset that no file holds."""
    root = store("killed-5.5.0")
    write_at(root / "checkpoint", 40, offset.to_bytes(8, "big", signed=True))
    found = ask(root, "5.5.0", enableAcceleratedRecovery="true")
    assert (found.starts, found.lost_messages, found.exit_code) == outcome
    assert not any("enableAcceleratedRecovery" in text for text in found.assumptions)
    for version in ("5.3.3", "5.4.0"):
        assert ask(root, version, enableAcceleratedRecovery="true").starts


@pytest.mark.parametrize("change", ["cut", "longer", "stray"])
def test_a_file_that_does_not_belong_in_consumequeue_ext_stops_a_broker_that_uses_it(
    store: Callable[[str], Path], change: str
) -> None:
    """As 4.5.1, 4.9.7, 5.3.3 and 5.5.0 did. Where no setting says that it is used, that it is there does."""
    root = store("killed-ext-5.5.0")
    path = root / "consumequeue_ext" / "Audit" / "0" / f"{0:020d}"
    if change == "stray":
        path = path.with_name("notes.bak")
        path.write_bytes(b"1")
    else:
        os.truncate(path, path.stat().st_size + (100 if change == "longer" else -100))
    for version in ("4.5.1", "4.9.7", "5.3.3", "5.5.0"):
        found = ask(root, version)
        assert found.stop is not None and f"consumequeue_ext/Audit/0/{path.name}" in found.stop.reason
        assert any("enableConsumeQueueExt=true" in text for text in found.assumptions)
        assert not ask(root, version, enableConsumeQueueExt="true").starts
        assert ask(root, version, enableConsumeQueueExt="false").starts


@pytest.mark.parametrize(("name", "version", "late", "given", "wrong"), [
    ("killed-ext-4.5.1", "4.5.1", False, {}, {}),
    ("killed-ext-4.5.1", "4.9.7", False, {}, {"SCHEDULE_TOPIC_XXXX/2": 40}),
    ("killed-ext-5.5.0", "5.3.3", True, {}, {"Orders/1": 29, "Orders/2": 29, "Orders/3": 28}),
    ("killed-ext-5.5.0", "5.3.3", True, {"enableConsumeQueueExt": "false"}, {}),
])
def test_units_refer_to_what_a_start_writes_to_a_lost_consumequeue_ext(
    tmp_path: Path, name: str, version: str, late: bool, given: dict[str, str], wrong: dict[str, int]
) -> None:
    """A start that dispatches the whole log writes the same again, but for 4.9.7 the deliver times of delayed messages.
    Where it begins later, the first units of a queue refer to its last messages, and filters skip them."""
    root = real_store(name, tmp_path)
    shutil.rmtree(root / "consumequeue_ext")
    if late:
        write_at(root / "checkpoint", 0, (1 << 62).to_bytes(8, "big") * 3)
    found = ask(root, version, **given)
    assert found.unreachable == wrong
    assert any(text.startswith("enableConsumeQueueExt=true") for text in found.assumptions) is bool(wrong)
    (root / "abort").unlink()
    assert ask(root, version, **given).unreachable == {}


def test_timer_files_that_5_0_and_later_load_stop_them_too(store: Callable[[str], Path]) -> None:
    """A whole broker of 5.5.0 started with an empty last file, and neither with a stray one nor with timermetrics and
    its backup both cut."""
    root = store("killed-5.5.0")
    last = max((root / "timerlog").iterdir())
    (root / "timerlog" / f"{int(last.name) + last.stat().st_size:020d}").touch()
    assert ask(root, "5.5.0").starts and not ask(root, "5.1.0").starts
    stray = root / "timerlog" / "notes.bak"
    stray.write_bytes(b"1")
    found = ask(root, "5.5.0")
    assert found.stop is not None and "timerlog/notes.bak" in (found.stop.remedy or "")
    assert mqtool("verify", root, "--json").found("timer-odd-name")[0]["file"] == "timerlog/notes.bak"
    assert ask(root, "5.5.0", timerWheelEnable="false").starts and ask(root, "4.9.7").starts
    stray.unlink()
    for name in ("timermetrics", "timermetrics.bak"):
        (root / "config" / name).write_bytes(b'{"timingCount":{')
    refused = ask(root, "5.5.0")
    assert refused.stop is not None and "config/timermetrics" in refused.stop.reason
    assert ask(root, "5.5.0", timerWheelEnable="false").starts and ask(root, "4.9.7").starts


@pytest.mark.parametrize("name", ["abort", "checkpoint"])
def test_a_link_to_a_disk_that_is_not_mounted_leaves_the_start_open(store: Callable[[str], Path], name: str) -> None:
    """5.3.3 and 5.5.0 start with neither, 4.x without a checkpoint does not."""
    root = store("clean-5.3.3")
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(root / "not-mounted" / name)
    assert ask(root).exit_code & exits.UNSUPPORTED
    code = {"abort": "part-unreadable", "checkpoint": "checkpoint-unreadable"}[name]
    found = mqtool("verify", root, "--json")
    assert found.code == exits.OPERATIONAL and found.found(code)[0]["file"] == name


@pytest.mark.parametrize(("moved", "missed"), [(7, 1), (100, 5)])
def test_units_before_the_name_of_their_file_are_unreachable(
    store: Callable[[str], Path], moved: int, missed: int
) -> None:
    """A broker takes the position of a unit modulo the file size, in the file that begins at or before it."""
    root = store("clean-5.3.3")
    path = root / "consumequeue" / "Orders-2026" / "0" / f"{0:020d}"
    path.rename(path.with_name(f"{moved:020d}"))
    for version in ("4.5.1", "4.9.7", "5.3.3", "5.5.0"):
        found = ask(root, version)
        assert found.unreachable == {"Orders-2026/0": missed}


def test_messages_below_the_minimum_of_their_queue_are_unreachable(tmp_path: Path) -> None:
    """A zero unit that recovery leaves in a last file without units counts as expired, and the whole queue with it."""
    root, _ = struck_store("clean-expired-5.5.0", tmp_path, "queue-next-file-zero", 204)
    found = ask(root, "5.5.0")
    assert (found.queues["Orders/3"], found.unreachable, found.exit_code) == ([101, 101], {"Orders/3": 96}, 4)
    assert ask(root, "4.5.1").exit_code == exits.CLEAN


def test_index_that_is_deleted_and_not_made_again_is_a_cost(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    (root / "abort").touch()
    found = ask(root)
    assert [name for name in found.deleted_files if name.startswith("index/")]
    if found.index_gap is not None:
        assert found.exit_code == 2 and found.index_gap[0] < found.index_gap[1]
    assert ask(root, "5.3.3", messageIndexEnable="false").index_gap is None


def test_index_entries_of_expired_messages_are_no_loss(tmp_path: Path) -> None:
    root, _ = struck_store("killed-expired-5.3.3", tmp_path, "checkpoint-zero")
    found = ask(root)
    assert found.min_phy > 0 and any(name.startswith("index/") for name in found.deleted_files)
    assert found.index_gap is None


@pytest.mark.parametrize("offset", ["9" * 20, "9" * 5000, "-1", "", "x"])
def test_an_lmq_offset_that_no_broker_writes_is_no_position(tmp_path: Path, offset: str) -> None:
    writer = StoreWriter(tmp_path)
    for text in ("0", offset):
        writer.put("T", b"x", {props.INNER_MULTI_DISPATCH: "%LMQ%a", props.INNER_MULTI_QUEUE_OFFSET: text})
    writer.close(clean=False)
    shutil.rmtree(tmp_path / "consumequeue")
    ran = mqtool("predict", tmp_path, "--broker", "5.3.3", "--set", "enableMultiDispatch=true", "--set",
                 "enableLmq=true", "--json")
    assert ran.code & ~0xF == 0, ran.stderr
    assert ran.document["queues"]["%LMQ%a/0"] == [0, 1]


def test_messages_of_lmq_queues_are_dispatched_only_if_the_broker_is_told_to(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    shutil.rmtree(root / "consumequeue")
    plain = ask(root)
    assert plain.missing_lmq_units == 80 and any("enableMultiDispatch" in text for text in plain.assumptions)
    told = ask(root, "5.3.3", enableMultiDispatch="true", enableLmq="true")
    assert told.missing_lmq_units == 0 and told.queues["%LMQ%one/0"] == [0, 40]


def test_units_of_light_queues_left_out_are_said_to_be_that_and_no_unreachable_messages(
    store: Callable[[str], Path],
) -> None:
    root = store("clean-5.3.3")
    shutil.rmtree(root / "consumequeue")
    found = ask(root)
    costs = {item.code: item.facts["count"] for item in found.findings() if item.severity == "error"}
    assert (found.unreachable_messages, costs) == (0, {"start-leaves-light-queues": 80})
    line = start_line(found.json(), found.exit_code)
    assert "leave out 80 queue entries of LMQ queues, whose consumers" in line and found.exit_code == 4
    elsewhere = ask(root, "5.3.3", enableMultiDispatch="true")
    assert any("enableLmq=false" in text for text in elsewhere.assumptions) and elsewhere.exit_code == 4
    assert "lose no message" not in start_line(elsewhere.json(), elsewhere.exit_code)


@pytest.mark.parametrize(("name", "field", "value", "by_main", "in_4_9", "copies"), chosen([
    (*row, copies) for row in (
        ("topics.json", None, None, True, False), ("topics.json", "perm", "x", True, False),
        ("topics.json", "attributes", {"queue.type": "Foo"}, False, True),
        ("subscriptionGroup.json", None, None, True, False),
        ("topics.json", "attributes", {"queue.type": "SimpleCQ"}, True, True),
    ) for copies in ("both", "main", "bak")
], quick=6))
def test_a_member_of_the_wrong_kind_makes_a_broker_reject_the_text(
    store: Callable[[str], Path], copies: str, name: str, field: str | None, value: object, by_main: bool, in_4_9: bool,
) -> None:
    """Seen on whole brokers of 4.5.1, 4.9.7, 5.3.3 and 5.5.0: with both copies none starts, with the main one alone all
    start from the backup; a queue.type is read by 5.x only, after the choice of the copy."""
    root = store("clean-5.3.3")
    for path in (root / "config" / name, root / "config" / f"{name}.bak"):
        if copies != ("main" if path.suffix == ".bak" else "bak"):
            text = json.loads(path.read_bytes())
            table = text["topicConfigTable" if name == "topics.json" else "subscriptionGroupTable"]
            member = next(iter(table))
            table[member] = {**table[member], field: value} if field else value
            path.write_text(json.dumps(text))
    sound = value == {"queue.type": "SimpleCQ"}
    starts = sound or copies == "bak" or (copies == "main" and by_main)
    for version in ("4.9.7", "5.3.3", "5.5.0"):
        found = ask(root, version)
        right = starts or (in_4_9 and version == "4.9.7")
        assert (found.starts, found.exit_code) == (right, 0 if right else 4), version
    assert mqtool("verify", root).code == (0 if sound else 2)
    assert mqtool("recover", root, "--yes").code == (0 if sound else 1)
    assert (ask(root, "5.5.0").exit_code, mqtool("verify", root).code) == (0, 0)


@pytest.mark.parametrize(("name", "version", "starts"), [
    ("clean-5.3.3", "4.9.7", True), ("clean-5.3.3", "5.3.3", False), ("clean-5.3.3", "5.5.0", False),
    ("kinds/clean-batch-5.5.0", "5.5.0", False),
])
def test_queues_of_another_type_than_their_topic_has_stop_5_0_and_later(
    tmp_path: Path, name: str, version: str, starts: bool
) -> None:
    root = real_store(name, tmp_path)
    assert ask(root, version).starts
    for path in (root / "config").glob("topics.json*"):
        text = json.loads(path.read_bytes())
        topics = text["topicConfigTable"]
        if name == "clean-5.3.3":
            topics["TopicA"]["attributes"] = {"queue.type": "BatchCQ"}
        else:
            topics.pop("Batched", None)
        path.write_text(json.dumps(text))
    found = ask(root, version)
    assert (found.starts, found.exit_code & ~64) == (starts, 0 if starts else 4)
    assert found.exit_code & 64 == (64 if "batch" in name else 0)
    told = mqtool("verify", root, "--json").document
    (file,) = (item["file"] for item in told["findings"] if item["code"] == "queue-type-differs")
    assert file == ("consumequeue/TopicA" if name == "clean-5.3.3" else "batchconsumequeue/Batched")
    assert any("Correct the queue.type" in step["command"] for step in told["next"]) is (name == "clean-5.3.3")
    queues = sorted(path.read_bytes() for path in root.glob("consumequeue/*/*/*"))
    mqtool("recover", root, "--yes")
    assert sorted(path.read_bytes() for path in root.glob("consumequeue/*/*/*")) == queues


@pytest.mark.parametrize("folder", ["00", "+0", "x0"])
def test_a_queue_folder_of_another_name_than_its_number_is_not_found(tmp_path: Path, folder: str) -> None:
    root = real_store("killed-lmq-4.9.7", tmp_path)
    (root / "consumequeue" / "%LMQ%one" / "0").rename(root / "consumequeue" / "%LMQ%one" / folder)
    found = ask(root, "4.9.7")
    assert (found.missing_lmq_units, found.exit_code) == (150, 4)
    assert ask(root, "4.9.7", enableMultiDispatch="true", enableLmq="true").missing_lmq_units == 0
    (missing,) = mqtool("verify", root, "--json").found("consumequeue-missing-units")
    assert missing["file"].startswith("consumequeue/%LMQ%one/0")
    assert mqtool("recover", root, "--yes").code == 1
    assert ask(root, "4.9.7").exit_code == 0


@pytest.mark.parametrize(("version", "state", "gone"), [
    ("5.5.0", "zeros", True), ("5.4.0", "cut", True), ("5.5.0", "empty", True), ("5.3.3", "zeros", False),
    ("5.5.0", "sound", False), ("5.5.0", "flipped-name", False),
])
def test_from_5_4_0_on_a_config_file_that_cannot_be_read_is_deleted(
    version: str, state: str, gone: bool, store: Callable[[str], Path],
) -> None:
    """As a whole 5.5.0 and 5.3.3 did. One with a bit flipped in the name of its table is text, and stays."""
    root = store("clean-5.3.3")
    path = root / "config" / "topics.json"
    content = path.read_bytes()
    path.with_name("topics.json.bak").write_bytes(content)
    path.write_bytes({
        "zeros": bytes(len(content)), "cut": content[: len(content) // 2], "empty": b"", "sound": content,
        "flipped-name": content.replace(b"topicConfigTable", b"topicConfigTabme"),
    }[state])
    assert ("config/topics.json" in ask(root, version).deleted_files) == gone


@pytest.mark.parametrize(("gone", "how", "named"), [
    (["topics.json", "consumerOffset.json"], "missing", ["config/topics.json", "config/consumerOffset.json"]),
    (["topics.json", "consumerOffset.json"], "{}", ["config/topics.json", "config/consumerOffset.json"]),
    (["consumerOffset.json"], "missing", ["config/consumerOffset.json"]),
    (["consumerOffset.json"], "{}", ["config/consumerOffset.json"]),
    (["consumerOffset.json"], "empty, as its backup", ["config/consumerOffset.json"]),
    (["consumerOffset.json"], "without its table, beside its backup", ["config/consumerOffset.json"]),
    *((["consumerOffset.json"], f"{how} beside a backup with an empty table", ["config/consumerOffset.json"])
      for how in ("cut", "zeros", "missing")),
    (["delayOffset.json"], "zeros beside a backup with an empty table", ["config/delayOffset.json"]),
    (["consumerFilter.json"], "zeros beside a backup with an empty table", []),
    (["consumerFilter.json"], "missing", []), (["consumerFilter.json"], "{}", []),
    # real 5.3.3 and 4.9.7 delivered 20 delayed messages once more
    (["delayOffset.json"], "missing", ["config/delayOffset.json"]),
])
def test_config_that_is_missing_or_names_nothing_is_forgotten(
    store: Callable[[str], Path], gone: list[str], how: str, named: list[str],
) -> None:
    root = store("clean-4.5.1")
    for name in gone:
        path, backup = root / "config" / name, root / "config" / f"{name}.bak"
        content = path.read_bytes()
        for each in (path, backup):
            each.unlink()
        if how == "{}":
            path.write_bytes(b"{}")
        elif how == "empty, as its backup":
            path.touch(), backup.touch()
        elif "backup with an empty table" in how:
            backup.write_bytes(b'{"offsetTable":{}}')
            if "missing" not in how:
                path.write_bytes(content[:122] if "cut" in how else bytes(len(content)))
        elif how != "missing":
            path.write_bytes(content.replace(b"offsetTable", b"offsetTabme"))
            backup.write_bytes(content)
    found = ask(root)
    assert [*found.config_lost] == named and found.exit_code == (4 if named else 0)
    assert [item.file for item in found.findings() if item.code == "start-forgets-config"] == named


@pytest.mark.parametrize(("text", "backup", "sent_back", "forgotten"), [
    ('{"offsetTable":{}}', '{"offsetTable":{}}', False, False), ('{"offsetTable":{}}', None, False, False),
    ('{"dataVersion":{"counter":0,"stateVersion":0},"groupTopicMap":{},"offsetTable":{}}', None, False, False),
    # each of these shows that there were offsets: a backup, consumed messages, a count of changes, topics of a group
    ('{"offsetTable":{}}', '{"offsetTable":{"TopicA@CG_new":{0:1}}}', False, True),
    ('{"offsetTable":{}}', None, True, True),
    ('{"dataVersion":{"counter":1,"stateVersion":0},"offsetTable":{}}', None, False, True),
    ('{"groupTopicMap":{"CG_new":["TopicA"]},"offsetTable":{}}', None, False, True), ("{}", None, False, True),
])
def test_groups_that_never_committed_are_no_forgotten_progress(
    store: Callable[[str], Path], text: str, backup: str | None, sent_back: bool, forgotten: bool,
) -> None:
    """A group is known from its first heartbeat, or from mqadmin updateSubGroup; until it commits, a broker writes an
    empty table every few seconds."""
    root = store("clean-plain-4.9.7")
    group = {"groupName": "CG_new", "consumeEnable": True, "retryQueueNums": 1, "brokerId": 0}
    (root / "config").mkdir(exist_ok=True)
    table = {"subscriptionGroupTable": {"CG_new": group}}
    (root / "config/subscriptionGroup.json").write_text(json.dumps(table))
    (root / "config/consumerOffset.json").write_text(text)
    if backup is not None:
        (root / "config/consumerOffset.json.bak").write_text(backup)
    if sent_back:
        queue = min((root / "consumequeue").glob("*/0"))
        shutil.copytree(queue, root / "consumequeue/%RETRY%CG_new/0")
    found = ask(root)
    lost = "config/consumerOffset.json" in found.config_lost
    assert lost is (forgotten and not sent_back)
    shown = mqtool("inspect", root, "--json")
    named = [item["file"] for item in shown.document["findings"] if item["code"].startswith("config-")]
    assert ("config/consumerOffset.json" in named) is forgotten


@pytest.mark.parametrize("written", [
    lambda text: "\ufeff" + text, lambda text: text.replace('"', "'"), lambda text: re.sub(r'"(\w+)":', r"\1:", text),
], ids=["byte order mark", "single quotes", "bare keys"])
@few("name", ["topics.json", "consumerOffset.json"], quick=(0,))
def test_a_text_that_only_some_releases_read_is_found_and_written_anew(
    store: Callable[[str], Path], name: str, written: Callable[[str], str],
) -> None:
    """Real 4.9.7 forgot all topics of a text with a mark, 5.5.0 those of one with single quotes or bare keys."""
    root = store("clean-4.5.1")
    path = root / "config" / name
    sound = path.read_text()
    path.with_name(f"{name}.bak").unlink()
    path.write_text(written(sound), "utf-8")
    assert ask(root).exit_code == 4 and [*ask(root).config_lost] == [f"config/{name}"]
    assert {item["code"] for item in mqtool("verify", root, "--json").document["findings"]} > {"config-broken"}
    assert mqtool("recover", root, "--yes").code == 1
    assert json.loads(re.sub(r"(-?\d+):", r'"\1":', path.read_text())) == json.loads(
        re.sub(r"(-?\d+):", r'"\1":', sound))
    assert (ask(root).exit_code, mqtool("verify", root).code) == (0, 0)


@pytest.mark.parametrize(("levels", "waiting"), [("1s 2s 3s", 4), ("1s 2s 3s 4s", 4), ("1s 2s 3s 4s 5s", 0)])
def test_messages_of_delay_levels_that_the_table_lacks_are_never_delivered(
    store: Callable[[str], Path], levels: str, waiting: int,
) -> None:
    """Real 4.9.7 and 5.5.0 with three levels delivered none of ten that waited in level 11, and all with their own."""
    root = store("clean-4.5.1")
    assert ask(root, messageDelayLevel=levels).exit_code == 0
    path = root / "config" / "delayOffset.json"
    path.write_text(path.read_text().replace("5:6", "5:2"))
    found = ask(root, messageDelayLevel=levels)
    assert [(item.code, item.facts["count"]) for item in found.findings()] == (
        [("start-leaves-waiting", waiting)] if waiting else [])
    assert found.exit_code == (4 if waiting else 0)
    said = mqtool("predict", root, "--broker", "5.3.3", "--set", f"messageDelayLevel={levels}", "--json").document
    assert ("lose no message" in said["summary"]) is not bool(waiting)
    assert said["next"][0]["command"].startswith("Set messageDelayLevel" if waiting else "start the broker")


@pytest.mark.parametrize(("version", "given", "severity"), [
    ("5.5.0", {"timerWheelEnable": "false"}, "error"), ("5.5.0", {}, None), ("4.9.7", {}, "info"),
])
def test_messages_that_wait_in_the_timer_need_a_broker_that_runs_it(
    tmp_path: Path, version: str, given: dict[str, str], severity: str | None,
) -> None:
    root = real_store("kinds/clean-timers-5.5.0", tmp_path)
    found = ask(root, version, **given)
    assert [(item.code, item.severity, item.facts["count"]) for item in found.findings()] == (
        [("start-leaves-waiting", severity, 40)] if severity else [])
    assert found.exit_code == (4 if severity == "error" else 0)


def test_later_and_earlier_releases_than_were_compared_are_an_assumption(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    assert any("like 5.5.1" in text for text in ask(root, "5.6.0").assumptions)
    assert any("like 4.1.0" in text for text in ask(root, "4.0.0").assumptions)


# --- Predictions held against what released brokers did with the same damaged store (fixtures/observed).


KEPT: dict[str, dict[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted(OBSERVED.glob("*.json"))
}
# What no reader of the damaged store can know: which of two contradicting places was changed.
UNTOLD = {
    ("clean-5.3.3", "pages-swapped"): {"unreachable"},  # bytes of another page inside a record's properties
    ("killed-v2-ipv6-5.3.3", "bit-in-topic-legal"): {"unreachable", "duplicated_offsets"},  # no list of topics
}
CASES = [(name, recipe) for name, recipes in KEPT.items() for recipe in recipes]


def settings_for(name: str, version: str) -> BrokerSettings:
    given = {key: str(value).lower() if isinstance(value, bool) else str(value)
             for key, value in packed_settings(name).items()}
    return BrokerSettings(BrokerVersion.parse(version), given)


def expected_queues(name: str, seen: dict[str, Any]) -> dict[str, list[int]]:
    """The observation names what differs from the sound store under the version that wrote it."""
    sound = next(iter(o["all_queues"] for o in KEPT[name][SOUND].values() if not o.get("queues")))
    changed = {**sound, **seen.get("queues", {})}
    return {queue: limits for queue, limits in changed.items() if limits is not None}


def without_empty_schedule_queues(queues: dict[str, list[int]]) -> dict[str, list[int]]:
    """4.9 asks for a queue of every delay level; those that hold nothing exist in its memory only."""
    return {queue: limits for queue, limits in queues.items()
            if not (queue.startswith("SCHEDULE_TOPIC_XXXX/") and list(limits) == [0, 0])}


def comparable(prediction: Prediction, seen: dict[str, Any]) -> dict[str, Any]:
    """The prediction in the words of an observation, as far as this one goes."""
    found: dict[str, Any] = {"starts": prediction.starts, "mode": prediction.mode}
    if "start_file" in seen and prediction.start_file is not None:
        found["start_file"] = Path(prediction.start_file).name
    if "loaded_log" in seen:
        found["loaded_log"] = [prediction.min_phy, prediction.max_phy]
    if prediction.starts:
        # the lab starts a message store, which loads no config files
        found["deleted_files"] = [f for f in prediction.deleted_files
                                  if not f.startswith(("consumequeue_ext/", "config/"))]
        found["queues"] = without_empty_schedule_queues(prediction.queues)
        found["lost"] = prediction.lost_messages
        found["unreachable"] = prediction.unreachable_messages
        found["duplicated_offsets"] = prediction.duplicated_offsets
    return found


def as_it_is(root: Path) -> None:
    pass


def one_queue_lacks_its_end(root: Path) -> None:
    path = root / "consumequeue" / "TopicA" / "1" / f"{0:020d}"
    content = path.read_bytes()
    units = content.rstrip(b"\0")
    path.write_bytes(units[: len(units) // 20 // 2 * 20].ljust(len(content), b"\0"))


def no_checkpoint_after_a_kill(root: Path) -> None:
    (root / "abort").touch()
    (root / "checkpoint").unlink()


@pytest.mark.parametrize(("name", "harm", "given"), [
    ("clean-4.5.1", as_it_is, {}), ("clean-4.5.1", as_it_is, {"forceVerifyPropCRC": "true"}),
    ("clean-4.5.1", as_it_is, {"mappedFileSizeConsumeQueue": "24000"}), ("clean-4.5.1", one_queue_lacks_its_end, {}),
    ("clean-4.5.1", no_checkpoint_after_a_kill, {}),
    ("killed-v2-ipv6-5.3.3", as_it_is, {}), ("killed-expired-5.3.3", as_it_is, {}),
])
def test_what_verify_has_proven_is_not_counted_again_and_the_answer_is_the_same(
    store: Callable[[str], Path], name: str, harm: Harm, given: dict[str, str]
) -> None:
    root = store(name)
    harm(root)
    reading = verify(Store.open(root)).analysis
    assert reading.queues is not None and any(verdict.live is not None for verdict in reading.queues.verdicts.values())
    for version in ("4.4.0", "4.9.7", "5.0.0", "5.5.0"):
        settings = BrokerSettings(BrokerVersion.parse(version), given)
        counted, proven = (play(Surroundings(reading.store, reading.by_names), settings, proven=proof).prediction
                           for proof in ({}, reading.queues.verdicts))
        assert counted == proven, version


@pytest.mark.parametrize(("name", "recipe"), chosen(CASES, quick=12, one_in=45))
def test_prediction_agrees_with_brokers(name: str, recipe: str, tmp_path: Path) -> None:
    root = real_store(name, tmp_path) if recipe == SOUND else struck_store(name, tmp_path, recipe)[0]
    store = Store.open(root)
    view = LocalEngine().scan_log(store.commitlog)
    for version, seen in KEPT[name][recipe].items():
        predicted = comparable(predict(store, view, settings_for(name, version)), seen)
        observed = {key: seen.get(key, 0) for key in ("lost", "unreachable", "duplicated_offsets")}
        observed |= {key: seen[key] for key in ("starts", "start_file", "loaded_log", "mode") if key in seen}
        observed["deleted_files"] = [f for f in seen.get("deleted_files", []) if not f.startswith("consumequeue_ext/")]
        observed["queues"] = without_empty_schedule_queues(expected_queues(name, seen))
        untold = UNTOLD.get((name, recipe), set())
        observed = {key: value for key, value in observed.items() if key in predicted and key not in untold}
        assert {key: predicted[key] for key in observed} == observed, version


def test_a_start_that_finds_only_filler_left_to_dispatch_goes_on(store: Callable[[str], Path]) -> None:
    root = store("clean-5.3.3")
    before, last = plain.records(root)[-2:]
    path = max((root / "commitlog").iterdir())
    for at in (95, 96):
        flip(path, before.phy_offset - int(path.name) + at, 0xFF)
    assert mqtool("recover", root, "--yes", "--lost", "gap").code == exits.CORRECTED | exits.MESSAGES
    cut = mqtool("truncate", root, "--to", last.phy_offset, "--max-loss", 1, "--yes")
    assert cut.code == exits.CORRECTED | exits.MESSAGES
    for version in readers("clean-5.3.3"):
        found = ask(root, version)
        assert (found.starts, found.exit_code, found.max_phy) == (True, 0, last.phy_offset), version
