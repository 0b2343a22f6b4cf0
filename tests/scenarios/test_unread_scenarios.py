"""Parts that mqtool cannot read, and parts that must be there and are not."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from fixtures.damage import damage
from fixtures.lab.packed import manifest
from mqtool import exits
from tests.cli.runner import Result, mqtool
from tests.scenarios.drill import begins_late, messages
from tests.support import plain_reader as plain
from tests.support.harm import Harm, bit, cut, cut_at, gone, newest, noise, zeroed
from tests.support.sampling import few
from tests.support.stores import KINDS, real_store, unpacked
from tests.support.trees import assert_unchanged
from tests.support.unread_stores import FIRST, add_batch_queue, add_rocksdb, put, to_dledger, to_rocksdb

# --- Logs and queues that mqtool does not read: never judged, never written, and never taken for a loss.


LATE = "commitlog-begins-late"
CLEAN, KILLED, MANY = "clean-plain-4.9.7", "killed-expired-5.3.3", "clean-manyfiles-5.3.3"
REFUSED, UNREAD = exits.OPERATIONAL, exits.UNSUPPORTED
CHANGES = (("recover",), ("rebuild",), ("rebuild-consumequeue",), ("rebuild-index",), ("truncate", "--to", "0"))


def verify(root: Path, *options: object) -> Result:
    with assert_unchanged(root):
        return mqtool("verify", root, *options, "--json")


def refuses(root: Path, command: str, *options: object) -> Result:
    """The command refuses, touches nothing, and a verify says the same afterwards."""
    before = verify(root)
    with assert_unchanged(root):
        result = mqtool(command, root, *options, "--yes", "--json")
    assert result.code == REFUSED | before.code, result.stdout
    assert verify(root).code == before.code
    return result


def test_an_offset_of_a_queue_that_ends_in_a_log_that_is_not_read_is_not_judged(folder: Path) -> None:
    """The last 49 messages of the queue are in the DLedger log, and a group has read most of them."""
    root = real_store("kinds/clean-mixed-5.3.3", folder)
    path = root / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace('"offsetTable":{', '"offsetTable":{"Orders@ahead":{0:140},', 1))
    found = verify(root)
    assert found.code == UNREAD and "consumer-offset-above-max" not in found.codes
    (row,) = mqtool("groups", root, "--json").document["groups"]
    assert (row["committed"], row["lag"], row["skips"]) == (140, None, None)


@pytest.mark.parametrize("name", [CLEAN, KILLED, MANY])
@pytest.mark.parametrize("keep", [0, 1])
def test_a_healthy_dledger_store_is_not_judged_by_its_queues(folder: Path, name: str, keep: int) -> None:
    root = to_dledger(real_store(name, folder), keep)
    found = verify(root)
    left = {"abort-present"} if (root / "abort").exists() else set()
    left |= {LATE} if keep and begins_late(name) else set()
    assert found.notable == {"part-not-supported"} | left
    assert found.code == UNREAD | (exits.DERIVED if left else 0)
    assert found.document["not_checked"].keys() == {"commitlog", "consumequeue", "index", "checkpoint"}
    assert found.document["commitlog"]["damaged_messages"] == 0
    if keep:
        assert found.document["commitlog"]["messages"] == len(messages(root)) > 0


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_nothing_is_changed_that_a_dledger_answers_for(folder: Path, change: tuple[str, ...], keep: int) -> None:
    root = to_dledger(real_store(MANY, folder), keep)
    said = refuses(root, *change)
    assert "dledger-n0" in said.document["error"]["message"]


@pytest.mark.parametrize("search", [
    ("--topic", "none", "--key", "none"), ("--topic", "none", "--key", "none", "--scan"),
    ("--msg-id", "7F00000100002A9F0000000000000000"), ("--phy-offset", "48"),
])
def test_a_search_of_a_dledger_store_could_not_look(folder: Path, search: tuple[str, ...]) -> None:
    root = to_dledger(real_store(CLEAN, folder))
    said = mqtool("query", root, *search, "--json")
    assert said.code == REFUSED
    assert said.document.get("complete") is not True


@pytest.mark.parametrize(("file", "content"), [
    (f"compaction/compactionLog/T/0/{FIRST}", bytes([0, 0, 1, 0])),
    ("tieredstore/broker/T/0/commitlog/segment", b"data"),
    (f"dledger-n0/data/{FIRST}", bytes(4096)),
])
def test_no_other_part_stands_for_a_log_that_is_gone(folder: Path, file: str, content: bytes) -> None:
    root = real_store(CLEAN, folder)
    for path in (root / "commitlog").iterdir():
        path.unlink()
    put(root / file, content)
    assert "commitlog-empty-queues-left" in verify(root).notable
    for change in CHANGES:
        refuses(root, *change)
    assert mqtool("query", root, "--topic", "none", "--key", "none", "--json").code == REFUSED


# --- queues in RocksDB --------------------------------------------------------------------------


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(("name", "empty"), [(CLEAN, False), (KILLED, False), (KILLED, True)])
def test_no_queue_files_are_expected_where_queues_are_in_rocksdb(
    folder: Path, name: str, empty: bool, separate: bool,
) -> None:
    root = to_rocksdb(real_store(name, folder), empty=empty, separate=separate)
    found = verify(root)
    left = {"abort-present"} if name == KILLED else set()
    late = {LATE} if begins_late(name) else set()
    assert found.notable == left | late | (set() if empty else {"part-not-supported"})
    assert list(found.document["not_checked"]) == ["consumequeue"]
    assert "not checked: consumequeue" in mqtool("verify", root, "--quiet").stdout
    with assert_unchanged(root):
        done = mqtool("recover", root, "--yes", "--json")
    assert done.code == found.code and done.document["plan"]["steps"] == []
    queues = "consumequeue_rocksdb" if separate else "consumequeue"
    assert done.document["abort_stays_for"] == ([queues] if left else [])
    said = mqtool("predict", root, "--json")
    assert said.code == UNREAD and said.document["starts"] is None


def test_no_files_are_expected_of_light_queues_that_are_in_rocksdb(folder: Path) -> None:
    root = real_store("kinds/killed-combined-5.5.0", folder)
    shutil.rmtree(root / "consumequeue" / "Orders")
    found = mqtool("verify", root, "--json").found("consumequeue-missing-units")
    assert {item["facts"]["topic"] for item in found} == {"Orders"}


def test_recover_mends_beside_queues_in_rocksdb_and_leaves_abort(folder: Path) -> None:
    root = to_rocksdb(real_store(KILLED, folder))
    damage("checkpoint-zero", root)
    damage("index-unit-hash", root)
    done = mqtool("recover", root, "--yes", "--json")
    assert done.code == exits.CORRECTED | exits.DERIVED | UNREAD
    assert not any(step["file"].startswith(("consumequeue", "abort")) for step in done.document["plan"]["steps"])
    assert verify(root).notable == {"abort-present", LATE, "part-not-supported"}


@pytest.mark.parametrize("change", [("rebuild",), ("rebuild-consumequeue",), ("truncate", "--to", "0")],
                         ids=lambda change: change[0])
def test_no_queue_files_are_written_into_a_rocksdb_folder(folder: Path, change: tuple[str, ...]) -> None:
    refuses(to_rocksdb(real_store(CLEAN, folder)), *change)


def test_file_queues_of_a_store_with_queues_in_rocksdb_are_written_by_export(folder: Path) -> None:
    """The way back from queues in RocksDB; a real 5.3.3 delivered all messages and LMQ queues of the result."""
    root = real_store("kinds/clean-rocksdb-5.5.0", folder)
    refused = mqtool("rebuild-consumequeue", root, "--yes", "--json")
    assert refused.code & REFUSED
    named = f"mqtool export {root} --format store -o DIR"
    assert named in refused.document["error"]["remedy"]
    assert mqtool(*shlex.split(named.replace("DIR", str(folder / "out")))[1:]).code == exits.CLEAN
    checked = verify(folder / "out").document
    assert checked["exit_code"] == exits.CLEAN
    assert checked["consumequeue"]["right"] > checked["commitlog"]["messages"] > 0


def test_rebuild_into_another_folder_refuses_too(folder: Path) -> None:
    root = to_rocksdb(real_store(CLEAN, folder))
    assert mqtool("rebuild", root, "--output", folder / "out", "--json").code & REFUSED
    assert not (folder / "out").exists()


def test_damage_is_not_bridged_where_the_units_of_lost_messages_are_in_rocksdb(folder: Path) -> None:
    root = to_rocksdb(real_store(CLEAN, folder))
    damage("bit-in-body", root)
    refuses(root, "recover")


@pytest.mark.parametrize(("gone", "code"), [
    ("file", "commitlog-missing-file"), ("zeros", "commitlog-damaged-range"), ("torn", "commitlog-damaged-range"),
])
def test_index_and_checkpoint_tell_of_messages_at_the_end_where_queues_are_in_rocksdb(
    folder: Path, gone: str, code: str
) -> None:
    root = to_rocksdb(real_store(MANY, folder))
    files = sorted(path for path in (root / "commitlog").iterdir() if any(path.read_bytes()))
    if gone == "file":
        for path in sorted((root / "commitlog").iterdir())[len(files) - 1:]:
            path.unlink()
    else:
        content = files[-1].read_bytes()
        kept = sum(len(record.content) for record in plain.chain(content, int(files[-1].name))) // 2
        files[-1].write_bytes((content[:kept] + b"\xee" * (36 if gone == "torn" else 0)).ljust(len(content), b"\0"))
    found = verify(root)
    assert code in found.notable and found.code & (exits.MESSAGES | UNREAD) == exits.MESSAGES | UNREAD
    assert found.document["commitlog"]["damaged_messages"] > 0
    assert all(verify(root, "--only", part).code & exits.BUG == 0 for part in ("consumequeue", "index", "checkpoint"))


def test_a_setting_says_where_queues_are_before_there_is_a_file_of_them(folder: Path) -> None:
    root = real_store(CLEAN, folder)
    shutil.rmtree(root / "consumequeue")
    rocksdb = ("--set", "storeType=defaultRocksDB")
    assert list(verify(root, *rocksdb).document["not_checked"]) == ["consumequeue"]
    assert mqtool("predict", root, "--broker", "5.5.0", *rocksdb, "--json").document["starts"] is None


def test_files_beside_rocksdb_are_judged(folder: Path) -> None:
    root = real_store(CLEAN, folder)
    add_rocksdb(root / "consumequeue", empty=False)
    damage("queue-behind", root)
    found = verify(root)
    assert "consumequeue-missing-units" in found.notable and not found.document["not_checked"]
    assert mqtool("predict", root, "--json").code & UNREAD


def test_a_cut_refuses_where_batch_queues_would_have_to_follow(folder: Path) -> None:
    root = real_store(CLEAN, folder)
    add_batch_queue(root)
    refuses(root, "truncate", "--to", "0", "--max-loss", "all")
    assert "lose nothing" not in mqtool("predict", root, "--quiet").stdout


# --- Parts that must be there, or whole, though mqtool does not read what they hold: never "clean", never "start it".
#
# What 5.5.0 does with each was asked of a real broker (`NO_START`).


ROCKSDB, ACL = "kinds/clean-rocksdb-5.5.0", "kinds/clean-acl-5.5.0"
POP, KILLED_POP, EPOCHS = (f"kinds/{name}-5.5.0" for name in ("clean-pop", "killed-pop", "clean-epochs"))
COMPACTED = "kinds/clean-compaction-5.5.0"
EPOCH_FILE = "epochFileCheckpoint"
NO_START, STARTS, CANNOT_SAY = exits.MESSAGES, None, exits.UNSUPPORTED


def options_of(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def predicted(root: Path, *settings: str) -> Result:
    return mqtool("predict", root, "--broker", "5.5.0", *options_of(*settings), "--json")


@few(("name", "part", "harm", "start"), [
    (ROCKSDB, "consumequeue", gone("consumequeue/CURRENT"), NO_START),
    (ROCKSDB, "consumequeue", gone("consumequeue/MANIFEST-*"), NO_START),
    (ROCKSDB, "consumequeue", noise("consumequeue/MANIFEST-*"), NO_START),
    (ROCKSDB, "consumequeue", cut("consumequeue/MANIFEST-*", 0.5), STARTS),
    (ROCKSDB, "consumequeue", gone("consumequeue/000010.sst"), NO_START),
    (ROCKSDB, "consumequeue", cut("consumequeue/000010.sst", 0.5), NO_START),
    (ROCKSDB, "consumequeue", noise("consumequeue/000010.sst"), NO_START),
    (ROCKSDB, "config/topics", cut("config/topics/MANIFEST-*", 0.9), STARTS),
    (ACL, "config/users", cut("config/users/MANIFEST-*", 0), NO_START),
    (ACL, "config/users", cut("config/users/MANIFEST-*", 0.1), NO_START),
    (ACL, "config/acls", noise("config/acls/*.sst"), NO_START),
    (ACL, "rocksdbstore", gone("rocksdbstore/CURRENT"), STARTS),
    (ACL, "config/users", gone("config/users/[CM]*"), NO_START),
    (ACL, "config/users", cut_at("config/users/MANIFEST-*", 66), STARTS),
    (ACL, "config/users", cut("config/users/MANIFEST-*", 0.9), STARTS),
    (ACL, "config/users", bit("config/users/*.sst", 300), NO_START),
    (ACL, "config/users", bit("config/users/*.sst", 1110), NO_START),
    (ACL, "config/users", bit("config/users/*.sst", 10), STARTS),
    (ACL, "config/users", bit("config/users/*.sst", 250), STARTS),
    (ACL, "config/acls", bit("config/acls/*.sst", 10), STARTS),
    (ROCKSDB, "config/topics", bit("config/topics/000011.sst", 10), NO_START),
    (ROCKSDB, "config/subscriptionGroups", bit("config/subscriptionGroups/*.sst", 10), NO_START),
    ("kinds/clean-config2-5.5.0", "config/rdb", bit("config/rdb/*.sst", 10), NO_START),
    ("kinds/clean-timersdb-5.5.0", "rocksdbstore", bit("rocksdbstore/*.sst", 10), STARTS),
    (POP, "kvStore", cut("kvStore/CURRENT", 0), NO_START),
    (POP, "kvStore", cut_at("kvStore/MANIFEST-*", 121), STARTS),
    (KILLED_POP, "kvStore", gone("kvStore/[CM]*"), NO_START),
    (KILLED_POP, "kvStore", gone("kvStore/*.log"), STARTS),
    (KILLED_POP, "kvStore", noise("kvStore/*.log"), STARTS),
    ("kinds/clean-batch-5.5.0", f"batchconsumequeue/Batched/1/{0:020}", cut("batchconsumequeue/*/1/*", 0.5), NO_START),
    (COMPACTED, "compaction/compactionCq/Compacted/0", cut(f"compaction/compactionCq/*/0/{0:020}", 0.5), STARTS),
    (COMPACTED, "compaction/compactionCq/Compacted/0", zeroed(f"compaction/compactionCq/*/0/{0:020}"), STARTS),
    ("kinds/clean-timersdb-5.5.0", "rocksdbstore", cut("rocksdbstore/MANIFEST-*", 0), STARTS),
    ("kinds/clean-services-5.5.0", "rocksdbstore", noise("rocksdbstore/MANIFEST-*"), STARTS),
    ("kinds/clean-config2-5.5.0", "config/rdb", gone("config/rdb/CURRENT"), NO_START),
], quick=(0, 3, 4, 7, 12, 16, 18, 22, 25, 27, 29, 31, 33))
def test_a_database_that_is_not_whole_is_damaged(
    name: str, part: str, harm: Harm, start: int | None, folder: Path,
) -> None:
    root = real_store(name, folder)
    harm(root)
    found = verify(root)
    assert [item["file"] for item in found.found("part-damaged")] == [part]
    assert found.code & exits.DERIVED
    said = predicted(root)
    assert said.code & (start or CANNOT_SAY)
    assert said.document["starts"] is (False if start == NO_START else None if name == ROCKSDB else True)
    if start == NO_START:
        assert part in said.document["reason"]


@pytest.mark.parametrize(("name", "part", "harm", "damaged"), [
    ("kinds/killed-combined-5.5.0", "consumequeue", None, False), (KILLED_POP, "kvStore", None, False),
    (KILLED_POP, "kvStore", gone("kvStore/*.log"), True), (POP, "kvStore", None, True),
])
def test_a_table_that_was_finished_right_before_a_kill_is_no_damage(
    name: str, part: str, harm: Harm | None, damaged: bool, folder: Path,
) -> None:
    """The manifest names it only afterwards; a real 5.5.0 opened the database and deleted the table."""
    root = real_store(name, folder)
    shutil.copyfile(newest(unpacked(POP), "kvStore/*.sst"), root / part / "000099.sst")
    if harm is not None:
        harm(root)
    assert {item["file"] for item in verify(root).found("part-damaged")} == {*[part] * damaged}


@pytest.mark.parametrize(("harm", "starts"), [
    (noise(EPOCH_FILE), False), (cut(EPOCH_FILE, 0), False), (cut(EPOCH_FILE, 0.5), True), (gone(EPOCH_FILE), True),
])
def test_terms_of_a_controller_that_cannot_be_read(harm: Harm, starts: bool, folder: Path) -> None:
    """A real 5.5.0 said which of these it starts on."""
    root = real_store(EPOCHS, folder)
    harm(root)
    found = mqtool("verify", root, "--json").document["findings"]
    assert [item["file"] for item in found if item["code"] in ("part-damaged", "part-missing")] == [EPOCH_FILE]
    said = predicted(root, "enableControllerMode=true")
    assert said.document["starts"] is starts
    assert said.code & (CANNOT_SAY if starts else NO_START)
    if not starts:
        assert EPOCH_FILE in said.document["next"][0]["command"]


@pytest.mark.parametrize(("harm", "settings", "told"), [
    (gone("brokerIdentity"), ("enableControllerMode=true",), True), (gone("brokerIdentity"), (), False),
    (cut("brokerIdentity", 0.5), (), True), (zeroed("brokerIdentity"), (), True), (cut("brokerIdentity", 0), (), True),
    (noise("brokerIdentity"), (), True), (cut("lock", 0), ("brokerName=other",), True),
    (cut("lock", 0), ("brokerName=lab",), False),
])
def test_who_a_broker_with_a_controller_is(harm: Harm, settings: tuple[str, ...], told: bool, folder: Path) -> None:
    """Cut or zeroed a real 5.5.0 registered as replica 2, and its controller, which knew 1 alone, did not elect it."""
    root = real_store(EPOCHS, folder)
    harm(root)
    found = verify(root, *options_of(*settings))
    named = [item["file"] for item in found.document["findings"] if item["code"] in ("part-damaged", "part-missing")]
    assert (named, found.code) == (["brokerIdentity"] * told, exits.DERIVED * told)
    assert predicted(root, *settings).code == (CANNOT_SAY if told else 0)


def test_the_log_of_a_controller_is_named_as_not_checked(folder: Path) -> None:
    found = verify(real_store(EPOCHS, folder)).document["findings"]
    assert ["not checked" in item["message"] for item in found if item["file"] == "controller"] == [True]


@pytest.mark.parametrize("name", [POP, ACL])
def test_popped_messages_and_users_are_named_as_not_read_and_nothing_of_them_is_promised(
    name: str, folder: Path
) -> None:
    root = real_store(name, folder)
    assert "part-not-supported" in verify(root).notable
    assert "lose nothing" not in mqtool("predict", root, "--quiet").stdout


def test_damage_beside_batch_queues_is_recovered_by_the_hint(folder: Path) -> None:
    root = real_store("kinds/clean-batch-5.5.0", folder)
    damage("bit-in-body", root)
    hints = [step["command"] for step in verify(root).document["next"]]
    assert any(hint.startswith("mqtool recover") for hint in hints), hints
    assert mqtool("recover", root, "--yes").code & (exits.CORRECTED | REFUSED) == exits.CORRECTED


def test_topics_of_a_dledger_store_that_stop_a_start_are_named(folder: Path) -> None:
    root = real_store("kinds/clean-dledger-5.3.3", folder)
    for name in ("topics.json", "topics.json.bak"):
        put(root / "config" / name, b"{,")
    said = mqtool("predict", root, "--broker", "5.3.3", "--json")
    refused = said.found("start-refused")[0]
    assert "config/topics.json" in refused["remedy"]
    assert not any(step["command"].startswith("mqtool recover") for step in said.document["next"])
    assert "Copy it from" in str(said.document["next"])


@few(("name", "part", "settings", "harm"), [
    (ROCKSDB, "consumequeue", (), gone("consumequeue")),
    ("kinds/clean-batch-5.5.0", "batchconsumequeue/Batched", (), gone("batchconsumequeue")),
    ("kinds/clean-batch-5.5.0", "batchconsumequeue/Batched", (), gone("batchconsumequeue/Batched")),
    ("kinds/clean-batch-5.5.0", "batchconsumequeue/Batched/1", (), gone("batchconsumequeue/Batched/1")),
    ("kinds/clean-batch-5.5.0", "batchconsumequeue/Batched/0", (), zeroed("batchconsumequeue/Batched/0/0*")),
    ("kinds/clean-compaction-5.5.0", "compaction/compactionCq/Compacted/0", (), gone("compaction/compactionCq")),
    ("kinds/clean-compaction-5.5.0", "compaction/compactionLog/Compacted/0", (), gone("compaction/compactionLog")),
    ("kinds/clean-compaction-5.5.0", "compaction/compactionLog/Compacted/0", (), gone("compaction/compaction*")),
    ("clean-v2-5.5.0", "kvStore", ("popConsumerKVServiceInit=true",), gone("kvStore")),
    ("clean-v2-5.5.0", "kvStore", ("popConsumerKVServiceInit=TRUE",), gone("kvStore")),
    (ACL, "config/users", ("authenticationMetadataProvider=org.example.LocalAuthenticationMetadataProvider",),
     gone("config/users")),
    ("kinds/clean-config2-5.5.0", "config/rdb", ("configManagerVersion=v2",), gone("config/rdb")),
    (ROCKSDB, "config/topics", ("storeType=defaultRocksDB",), gone("config/topics")),
    (ROCKSDB, "config/consumerOffsets", ("storeType=defaultRocksDB",), gone("config/consumerOffsets")),
], quick=(0, 1, 4, 5, 8, 10, 11))
def test_a_part_that_is_gone_is_missed_by_who_knows_of_it(
    name: str, part: str, settings: tuple[str, ...], harm: Harm, folder: Path,
) -> None:
    root = real_store(name, folder)
    harm(root)
    options = options_of(*settings)
    found = verify(root, *options)
    assert [item["file"] for item in found.found("part-missing")] == [part] and found.code & exits.DERIVED
    said = predicted(root, *settings)
    assert said.code & CANNOT_SAY
    assert part in str(said.document["unsupported"])
    assert "lose nothing" not in mqtool("predict", root, *options, "--quiet").stdout
    with assert_unchanged(root):
        assert mqtool("recover", root, "--yes", *options, "--json").code == found.code


@pytest.mark.parametrize("name", [name for name in KINDS if manifest(name)["kind"] == "combined"])
def test_settings_of_two_queue_stores_that_stop_a_start(name: str, folder: Path) -> None:
    root = real_store(name, folder)
    double, lmq, separate = (f"{setting}=true" for setting in (
        "rocksdbCQDoubleWriteEnable", "combineCQUseRocksdbForLmq", "useSeparateStorePathForRocksdbCQ"))
    assert predicted(root, double).document["starts"] is False
    assert "combineCQUseRocksdbForLmq" in predicted(root, double).document["reason"]
    assert predicted(root, double, lmq).document["starts"] is True
    assert "consumequeue" in predicted(root, double, lmq, separate).document["reason"]
    assert mqtool("predict", root, "--broker", "5.3.3", "--set", double, "--json").document["starts"] is True


def test_the_other_folder_of_a_rocksdb_of_queues_stops_a_start(folder: Path) -> None:
    root = real_store(ROCKSDB, folder)
    separate, rocksdb = "useSeparateStorePathForRocksdbCQ=true", "storeType=defaultRocksDB"
    assert predicted(root, rocksdb).document["starts"] is None
    assert predicted(root, rocksdb, separate).document["starts"] is False
    shutil.move(root / "consumequeue", root / "consumequeue_rocksdb")
    assert predicted(root, rocksdb, separate).document["starts"] is None
    assert predicted(root, rocksdb).document["starts"] is False
